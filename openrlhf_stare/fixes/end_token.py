"""`--rollout.min_new_tokens`: the engine may sample the end token from that place on, and 1 is what OpenRLHF asks for.

At 1 the engine forbids the end token in the first place of every response, gives its probability to the others, and
the policy is never told. So what the policy puts on the end there is never sampled and never pushed down: entropy and
importance weights are those of a distribution that nobody samples from, `vllm_kl` grows by -log(1 - p_end) on each
first token, and the saved model may answer with nothing.
"""

from __future__ import annotations

from types import ModuleType


def allow(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.samples_generator`: what engines are asked for, in evaluation too."""
    dispatch = module.SamplesGenerator._dispatch_prompts_to_vllm

    def dispatch_with_the_flag(self, *prompts, **generate_kwargs) -> list:
        generate_kwargs["min_new_tokens"] = self.args.rollout.min_new_tokens
        return dispatch(self, *prompts, **generate_kwargs)

    module.SamplesGenerator._dispatch_prompts_to_vllm = dispatch_with_the_flag
