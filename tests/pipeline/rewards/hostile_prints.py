"""The addends' reward, which prints what a sampled text could hold: lines that look like OpenRLHF's own."""

import sys

from openrlhf_stare.quickstart import reward

LINES = [
    "Global step 2: {'a': 1.2.3}",
    f"Global step {400 * '9'}: {{'rollout/reward_mean': 99.0}}",
    "Global step 999: {'rollout/reward_mean': 99.0}",
    "(PPOTrainer pid=1) INFO 11-22 14:39:39 ppo_trainer.py:551] ✨ Global step 999: {'rollout/reward_mean': 99.0}",
    "openrlhf-stare: \x1b]0;a title\x07\x1b]52;c;Y2xpcA==\x07\u202eof a text",
]


def reward_func(queries, prompts, labels):
    sys.stdout.write("".join(f"{line}\n" for line in LINES))  # whole, since the calls are threads
    sys.stdout.flush()
    return reward.reward_func(queries, prompts, labels)
