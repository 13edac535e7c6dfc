"""What a few answers, sampled before training, say about learning: figures in, sentences with remedies out.

A group is the answers to one prompt, or where each prompt has one answer, all of them. Estimators such as `group_norm`
compare the answers of a group with one another, so a group teaches only if its rewards differ. It is called mixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_stare.algorithms.verdict import HIGH_REWARD

# An answer that is cut off has no end, and hardly a reward function takes it for right: from a tenth on the reward
# says much about the limit, from nine tenths on nothing else.
SOME_TRUNCATED, MOST_TRUNCATED = 0.1, 0.9
# Of fewer mixed groups than this, three quarters of all that is sampled and computed teach nothing.
FEW_MIXED = 0.25
# Groups whose answers are all the same: in more than half of them nothing is explored.
MOST_IDENTICAL = 0.5


@dataclass(frozen=True)
class Figures:
    """What was sampled, and with which flags.

    Attributes:
        answers, groups: how many.
        right: answers with a reward above `verdict.HIGH_REWARD`, or with a score above it where there are scores.
        without_reward: answers whose reward function or server failed.
        mixed: groups whose rewards differ.
        identical: groups whose answers are all the same tokens.
        truncated: answers that reached the limit on new tokens.
        cut: answers whose prompt was too long and lost its beginning.
        entropy: sampled, in nats per token, at the temperature below; None where it cannot be had.
        target: what the controller is to hold, in nats; None where nothing is held.
        temperature: of the sampling.
        limit: the flag that limits an answer, with its value.
    """

    answers: int
    groups: int
    right: int
    without_reward: int
    mixed: int
    identical: int
    truncated: int
    cut: int
    entropy: float | None
    target: float | None
    temperature: float
    limit: str


def judge(found: Figures) -> list[str]:
    """A sentence for each thing that there is to say, the ones first that would make the others void."""
    said = []
    if found.cut:
        said.append(
            f"Prompts cut: {found.cut} of {found.answers} answers are to prompts that were too long and lost their "
            "beginning. Raise --data.max_len, or lower --rollout.max_new_tokens"
        )
    if found.without_reward:
        said.append(
            f"No reward: {found.without_reward} of {found.answers} answers have none, and training would leave them "
            "out. Fix the reward, whose first error is shown above"
        )
    if found.truncated > SOME_TRUNCATED * found.answers:
        said.append(_truncated(found))
    if found.identical > MOST_IDENTICAL * found.groups:
        said.append(_identical(found))
    if found.truncated > MOST_TRUNCATED * found.answers or 2 * found.without_reward > found.answers:
        return [*said, "Fix that first and look again: until then the rewards say little"]
    said.append(_learning(found))
    if found.entropy is not None and found.target is not None and found.target > found.entropy:
        said.append(
            f"Target: --entropy.target {found.target:g} is above the {found.entropy:.2f} nats that the policy has, so "
            f"the method would act from the first step on. Half of what it has, 50%, is {found.entropy / 2:.2f} nats"
        )
    return said


def _truncated(found: Figures) -> str:
    sentence = (
        f"Truncated: {found.truncated} of {found.answers} answers reached {found.limit} and have no end. Give more "
        "tokens, within the --data.max_len of prompt and answer together"
    )
    if found.truncated < found.answers:
        return sentence
    return (
        f"{sentence}; if none ends even so, look for the end token in the model's generation_config.json and its chat "
        "template"
    )


def _identical(found: Figures) -> str:
    remedy = (
        f"Raise --rollout.temperature {found.temperature:g}; at 1 the policy itself is sampled"
        if found.temperature < 1
        else "The policy is certain of them: give harder prompts, or begin with a model that was trained less on them"
    )
    return f"Identical: in {found.identical} of {found.groups} groups all answers are the same. {remedy}"


def _learning(found: Figures) -> str:
    of_groups = f"{found.mixed} of {found.groups} groups are mixed"
    if found.mixed == 0 and found.right == 0:
        return (
            "Too hard: no answer is right and no group is mixed, so there is nothing to learn from. Give easier "
            "prompts, a reward that tells a better wrong answer from a worse one, or a warm-up, which is supervised "
            "training on some right answers"
        )
    if found.mixed == 0 and found.right == found.answers:
        return "Too easy: every answer is right, so there is nothing left to learn. Give harder prompts"
    more = "more answers to a prompt (--rollout.n_samples_per_prompt)"
    if found.mixed == 0:
        return (
            f"Nothing to compare: {found.right} of {found.answers} answers are right, but none of the groups is "
            f"mixed. Give {more}, a higher --rollout.temperature, or prompts that are neither always nor never solved"
        )
    if found.right == 0:
        return (
            f"Hard: no answer is right, though {of_groups}, since some wrong answers get more than others. That can "
            "teach what they are better in, such as the form of an answer. If right answers do not come of it, give "
            "easier prompts, or a warm-up, which is supervised training on some right answers"
        )
    if found.mixed < FEW_MIXED * found.groups:
        easy = found.right > HIGH_REWARD * found.answers
        return (
            f"Slow: only {of_groups}, and the others teach nothing. Give {'harder' if easy else 'easier'} prompts, "
            f"{more}, or --algo.dynamic_filtering_enable, which samples until the groups are mixed"
        )
    return f"Good: {of_groups}, and those can be learned from"
