"""Responses whose reward or advantage is not finite are left out of training.

OpenRLHF 0.11.2 does not look: one NaN reward makes the advantages of its whole group NaN, or of the whole rollout
where advantages are whitened, and the next optimizer step makes every parameter NaN.

A response that is left out stays where it is, so that the ranks' shares stay even, with an empty `action_mask`. The
others get what they would get if it were not there. `entropy/nonfinite_tokens` counts the tokens left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

from openrlhf_stare.algorithms.groups import group_statistics
from openrlhf_stare.notices import notice
from openrlhf_stare.options import given
from openrlhf_stare.rollout.failing_rewards import FailedRewards, RewardWatch

# Rewards (P, K) in prompt order, which of them count (P, K), OpenRLHF's arguments -> the shaped rewards (P, K), NaN
# where OpenRLHF's own will do, or None for all of them; and figures for the log.
Shaper = Callable[[Tensor, Tensor, SimpleNamespace], tuple[Tensor | None, dict[str, float]]]


def leave_out(module: ModuleType, shapers: Sequence[Shaper] = ()) -> None:
    """Change `openrlhf.trainer.ppo_utils.experience_maker`, which makes advantages of rewards.

    `shapers` may replace the shaped rewards of any response; the last one that does wins. Their figures go into every
    response's `info`, whose means OpenRLHF logs.
    """
    original = module.RemoteExperienceMaker.compute_advantages_and_returns

    def compute_advantages_and_returns(self, experiences):
        masks = [experience.action_mask for experience in experiences]
        lost = [~torch.isfinite(experience.rewards.float()) for experience in experiences]
        watch = RewardWatch(FailedRewards(**given(self.strategy.args, "failed_rewards")))
        vars(self).setdefault("reward_watch", watch).count(int(torch.cat(lost).sum()), sum(map(len, lost)))
        for experience, rows in zip(experiences, lost, strict=True):
            experience.action_mask = experience.action_mask.masked_fill(rows.unsqueeze(-1), 0)
            experience.rewards = experience.rewards.masked_fill(rows, 0)
        shaping = _Shaping(module, lost, self.strategy.args, shapers)
        with (
            patch.object(module, "apply_length_penalties", shaping.penalties_then_stand_ins),
            patch.object(module, "compute_reward", shaping.compute_reward),
        ):
            experiences = original(self, experiences)
        shaping.add_figures(experiences)

        tokens = 0
        for experience, mask, rows in zip(experiences, masks, lost, strict=True):
            rows |= (~torch.isfinite(experience.advantages) & mask.bool()).any(dim=-1)
            column = rows.unsqueeze(-1)
            tokens += int((mask.bool() & column).sum())
            experience.action_mask = mask.masked_fill(column, 0)
            experience.advantages = experience.advantages.masked_fill(column, 0)
            experience.returns = experience.returns.masked_fill(column, 0)
        for experience, rows in zip(experiences, lost, strict=True):
            experience.info["entropy/nonfinite_tokens"] = torch.full((len(rows),), float(tokens))
        left_out, responses = int(torch.cat(lost).sum()), sum(map(len, lost))
        if left_out == responses:
            raise RuntimeError(
                f"None of the {responses} responses of this rollout has a finite reward and advantage: "
                "check the reward function"
            )
        if left_out:
            _leave_out_of_means(experiences, lost)
            notice(f"{left_out} of {responses} responses are left out of training: reward or advantage is not finite")
        return experiences

    module.RemoteExperienceMaker.compute_advantages_and_returns = compute_advantages_and_returns


class _Shaping:
    """Our rewards among OpenRLHF's own in one run of its advantage step.

    It calls `apply_length_penalties` before its group statistics: there a lost response gets a reward that leaves the
    mean of its group where it is. It calls `compute_reward` for each experience after them: there the shaped rewards
    are replaced, before OpenRLHF clips them, adds its KL penalty and spreads them over the tokens.
    """

    def __init__(
        self, module: ModuleType, lost: list[Tensor], args: SimpleNamespace, shapers: Sequence[Shaper]
    ) -> None:
        self.apply_length_penalties, self.openrlhfs_compute_reward = (
            module.apply_length_penalties,
            module.compute_reward,
        )
        self.lost, self.args, self.shapers = lost, args, shapers

    def penalties_then_stand_ins(self, experiences: list, args: SimpleNamespace) -> None:
        self.apply_length_penalties(experiences, args)
        order = torch.tensor(list(itertools.chain.from_iterable(experience.index for experience in experiences)))
        sizes = [len(experience.index) for experience in experiences]
        shape = (-1, args.rollout.n_samples_per_prompt)

        def in_prompt_order(values: list[Tensor]) -> Tensor:
            in_turn = torch.cat(values)
            return torch.empty_like(in_turn).index_copy_(0, order, in_turn).reshape(shape)

        def in_turn(values: Tensor) -> tuple[Tensor, ...]:
            return values.flatten()[order].split(sizes)

        rewards = in_prompt_order([experience.rewards for experience in experiences])
        valid = ~in_prompt_order(self.lost)
        stand_ins, shaped, stds = without_the_lost(rewards, valid, args.algo.advantage.estimator)
        self.figures = {}
        for shaper in self.shapers:
            replaced, figures = shaper(rewards, valid, args)
            self.figures |= figures
            if replaced is not None:
                shaped = torch.where(replaced.isnan(), shaped, replaced)
        for experience, own in zip(experiences, in_turn(stand_ins), strict=True):
            experience.rewards = own
        self.replacements, self.stds = iter(in_turn(shaped)), in_turn(stds)

    def compute_reward(self, r: Tensor, *args, **kwargs) -> Tensor:
        shaped = next(self.replacements)
        return self.openrlhfs_compute_reward(torch.where(shaped.isnan(), r, shaped), *args, **kwargs)

    def add_figures(self, experiences: list) -> None:
        for experience, std in zip(experiences, self.stds, strict=True):
            if "group_reward_std" in experience.info:
                own = experience.info["group_reward_std"]
                experience.info["group_reward_std"] = torch.where(std.isnan(), own, std)
            experience.info |= {name: torch.full((len(std),), value) for name, value in self.figures.items()}


def without_the_lost(rewards: Tensor, valid: Tensor, estimator: str) -> tuple[Tensor, Tensor, Tensor]:
    """What gives the others the advantages that they would have without the lost responses.

    The mean of the others as the reward of a lost one leaves the mean of its group exact. `group_norm` and `rloo` also
    depend on how many responses a group has, and the baseline of `flash_reinforce` is the mean of the whole rollout,
    so there the shaped rewards are computed here.

    Args:
        rewards: (P, K); those of the lost responses may be anything.
        valid: (P, K), False for them.
        estimator: OpenRLHF's name of the advantage estimator.

    Returns:
        The rewards with those of the lost replaced; the shaped rewards and the std of each response's group, both NaN
        where OpenRLHF's own will do. All (P, K).
    """
    rewards = rewards.masked_fill(~valid, 0)
    mean, deviation, std = group_statistics(rewards, valid)
    count = valid.sum(dim=-1, keepdim=True)
    is_short = count < valid.shape[-1]
    shaped = torch.full_like(rewards, torch.nan)
    if estimator == "group_norm":
        shaped = torch.where(is_short, deviation / (std + 1e-9), shaped)
    elif estimator == "rloo":
        shaped = torch.where(is_short, deviation * count / (count - 1).clamp(min=1), shaped)
    elif estimator == "flash_reinforce" and is_short.any():
        shaped = rewards - rewards.sum() / count.sum().clamp(min=1)
    return torch.where(valid, rewards, mean), shaped, torch.where(is_short, std, torch.nan).expand_as(rewards)


def _leave_out_of_means(experiences: list, lost: list[Tensor]) -> None:
    """OpenRLHF logs means over the responses; with the mean of the others, a lost one does not count."""
    all_lost = torch.cat(lost)
    for name in experiences[0].info:
        values = [experience.info[name].float() for experience in experiences]
        all_values = torch.cat(values)
        if name in ("reward", "score", "return", "group_reward_std") or all_values[all_lost].isnan().any():
            mean = all_values[~all_lost].mean()
            for experience, value, rows in zip(experiences, values, lost, strict=True):
                experience.info[name] = value.masked_fill(rows, mean)
