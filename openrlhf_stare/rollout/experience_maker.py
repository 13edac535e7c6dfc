"""The experience maker: OpenRLHF's, whose advantages are finite, and 0 where a group has nothing to tell.

- OpenRLHF 0.11.2 does not look whether rewards are finite: one NaN makes the advantages of its whole group NaN, or of
  the whole rollout where advantages are whitened, and the next optimizer step makes every parameter NaN. Here a
  response whose reward, KL estimate, log-prob of the reference, value or advantage is not finite is left out of
  training. It stays where it is, so that the ranks' shares stay even, with an empty `action_mask`. The others get what
  they would get if it were not there. `entropy/nonfinite_tokens` counts the tokens left out.
- It logs means over all responses, which one NaN makes NaN: a figure that one response lacks, or the KL of one without
  an action token. Here what is missing does not count.
- The estimators that subtract a mean of the group leave its rounding in a group of equal rewards, which a method would
  take for advantages (STARE's T⁺ and T⁻ would fill with noise), and `group_norm` divides it by a std that is as small.
  Here they are exactly 0 under a method.
- `sr_grpo` is one more estimator (sr_grpo.py).
"""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import openrlhf.trainer.ppo_utils.experience_maker as experience_maker
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from openrlhf_stare.algorithms.groups import GROUP_BASELINES, all_equal
from openrlhf_stare.methods import base
from openrlhf_stare.notices import notice
from openrlhf_stare.options import given
from openrlhf_stare.replacing import replaced
from openrlhf_stare.rollout.failing_rewards import FailedRewards, RewardWatch
from openrlhf_stare.rollout.sr_grpo import soft_advantage

COMPUTE_REWARD = "openrlhf.trainer.ppo_utils.experience_maker.compute_reward"
ROLLOUT_BASELINES = ("flash_reinforce",)  # those that subtract a mean of the whole rollout
OF_TRAINING = ("reward", "score", "return", "group_reward_std")  # figures of the responses that are trained on


class StareExperienceMaker(experience_maker.RemoteExperienceMaker):
    """OpenRLHF's `RemoteExperienceMaker` with another advantage step."""

    advantage_estimator: str

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.advantage_estimator == "sr_grpo":
            # By this name OpenRLHF spreads rewards over tokens; all estimators of groups do it in the same way.
            self.advantage_estimator = "dr_grpo"
        self.reward_watch = RewardWatch(FailedRewards(**given(self.strategy.args, "failed_rewards")))

    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """OpenRLHF's step.

        Raises:
            RewardsFail: in too many rollouts in a row most responses had no finite reward.
            RuntimeError: no response of the rollout has a finite reward and advantage.
        """
        masks = [experience.action_mask for experience in experiences]
        lost = [~torch.isfinite(experience.rewards.float()) for experience in experiences]
        self.reward_watch.count(int(torch.cat(lost).sum()), sum(map(len, lost)))
        with_values = self.advantage_estimator == "gae"
        for experience, rows in zip(experiences, lost, strict=True):
            reference = experience.base_action_log_probs  # for a loss; else it is in the KL estimate
            for figures in (experience.kl, reference, experience.values if with_values else None):
                if figures is not None:
                    rows |= (~torch.isfinite(figures) & experience.action_mask.bool()).any(dim=-1)
            experience.kl = _made_finite(experience.kl, rows)
            if reference is not None:
                experience.base_action_log_probs = _made_finite(reference, rows)
            if with_values:
                experience.values = _made_finite(experience.values, rows)
            experience.action_mask = experience.action_mask.masked_fill(rows.unsqueeze(-1), 0)
            experience.rewards = experience.rewards.masked_fill(rows, 0)
        shaped = ShapedRewards(self, experiences, lost)
        with replaced(COMPUTE_REWARD, shaped.compute_reward):
            experiences = super().compute_advantages_and_returns(experiences)
        shaped.add_figures()
        _leave_out(experiences, masks, lost)
        return experiences

    def baseline_alone(self, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """What OpenRLHF's estimator makes of rewards (P, K), a row per prompt, before anything else is done with them.

        Returns:
            The shaped rewards and the std of each response's group, both (P, K); 0 for the std where K is 1.
        """
        args = self.strategy.args
        rollout = SimpleNamespace(n_samples_per_prompt=rewards.shape[1])
        maker = copy.copy(self)
        maker.strategy = SimpleNamespace(
            args=SimpleNamespace(algo=args.algo, rollout=rollout, reward=SimpleNamespace(clip_range=None))
        )
        zeros = rewards.new_zeros(rewards.numel(), 1)
        responses = Experience(
            index=list(range(rewards.numel())),
            rewards=rewards.flatten(),
            action_mask=torch.ones_like(zeros),
            kl=zeros,
            values=zeros,
        )
        super(StareExperienceMaker, maker).compute_advantages_and_returns([responses])
        stds = responses.info.get("group_reward_std", zeros)
        return responses.info["return"].view_as(rewards), stds.view_as(rewards)


class ShapedRewards:
    """Rewards of ours among those that OpenRLHF has shaped, in one run of its advantage step.

    OpenRLHF calls `compute_reward` for each experience in turn when it has penalised lengths and subtracted baselines,
    and there a shaped reward is replaced, before it is clipped, gets its KL penalty and is spread over the tokens.
    """

    def __init__(self, maker: StareExperienceMaker, experiences: list[Experience], lost: list[Tensor]) -> None:
        self.maker, self.experiences, self.lost = maker, experiences, lost
        self.args = maker.strategy.args
        self.openrlhfs_compute_reward = experience_maker.compute_reward
        self.figures: dict[str, float] = {}
        self.shaped: list[Tensor] = []  # of the experiences still to come, NaN where OpenRLHF's own will do
        self.stds: list[Tensor] | None = None  # of each response's group, NaN likewise; None until the first call

    def compute_reward(self, r: Tensor, *args, **kwargs) -> Tensor:
        if self.stds is None:
            with replaced(COMPUTE_REWARD, self.openrlhfs_compute_reward):
                self._shape()
        shaped = self.shaped.pop(0)
        return self.openrlhfs_compute_reward(torch.where(shaped.isnan(), r, shaped), *args, **kwargs)

    def add_figures(self) -> None:
        """Put the figures into every response's `info`, whose means OpenRLHF logs."""
        assert self.stds is not None
        for experience, std in zip(self.experiences, self.stds, strict=True):
            if "group_reward_std" in experience.info:
                openrlhfs = experience.info["group_reward_std"]
                experience.info["group_reward_std"] = torch.where(std.isnan(), openrlhfs, std)
            experience.info |= {name: torch.full((len(std),), value) for name, value in self.figures.items()}

    def _shape(self) -> None:
        order = torch.tensor(list(itertools.chain.from_iterable(each.index for each in self.experiences)))
        sizes = [len(each.index) for each in self.experiences]

        def in_prompt_order(values: list[Tensor]) -> Tensor:
            in_turn = torch.cat(values)
            ordered = torch.empty_like(in_turn).index_copy_(0, order, in_turn)
            return ordered.reshape(-1, self.args.rollout.n_samples_per_prompt)

        rewards = in_prompt_order([experience.rewards for experience in self.experiences])
        valid = ~in_prompt_order(self.lost)
        shaped, stds = self._without_the_lost(rewards, valid)
        if self.args.algo.advantage.estimator == "sr_grpo":
            shaped = soft_advantage(rewards, tau=self.args.sr_grpo.tau, valid=valid)
            soft = shaped[valid].double()
            self.figures["soft_advantage_mean"] = soft.mean().item()
            self.figures["soft_advantage_std"] = soft.std(correction=0).item()
        if self.args.policy_loss not in base.WITHOUT_METHOD:
            equal = all_equal(rewards, valid) & (valid.sum(dim=-1, keepdim=True) > 1)
            self.figures["entropy/zero_variance_groups"] = float(equal.sum())
            if self.args.algo.advantage.estimator in GROUP_BASELINES:
                shaped = shaped.masked_fill(equal, 0)
        self.shaped = list(shaped.flatten()[order].split(sizes))
        self.stds = list(stds.flatten()[order].split(sizes))

    def _without_the_lost(self, rewards: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Shaped rewards and stds as they are without the lost responses; NaN where OpenRLHF's own will do. (P, K)."""
        estimator, size = self.args.algo.advantage.estimator, rewards.shape[1]
        shaped, stds = torch.full_like(rewards, torch.nan), torch.full_like(rewards, torch.nan)
        counts = valid.sum(dim=-1)
        for count in set(counts.tolist()) - {0, size}:  # OpenRLHF's groups have one size, so those of a size at a time
            these = valid & (counts == count).unsqueeze(-1)
            if count > 1:
                groups = rewards[these].view(-1, count)
                shaped[these], stds[these] = (values.flatten() for values in self.maker.baseline_alone(groups))
            else:
                stds[these] = 0
                if estimator in GROUP_BASELINES:
                    shaped[these] = 0
        if estimator in ROLLOUT_BASELINES and valid.any() and not valid.all():
            shaped[valid] = self.maker.baseline_alone(rewards[valid].unsqueeze(-1))[0].flatten()
        return shaped, stds


def _made_finite(figures: Tensor, lost: Tensor) -> Tensor:
    """With 0 in lost rows, and for what is not finite at tokens that are no actions: times a mask of 0, NaN is NaN."""
    return figures.masked_fill(lost.unsqueeze(-1) | ~torch.isfinite(figures), 0)


def _leave_out(experiences: list[Experience], masks: list[Tensor], lost: list[Tensor]) -> None:
    """Empty the `action_mask` of responses that are lost or whose advantage is not finite.

    Args:
        masks: the action masks with all responses.
        lost: those whose reward is not finite, or what their advantage is made from.
    """
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
            f"None of the {responses} responses of this rollout has a finite reward and advantage: check the reward "
            "function and, if the rewards are finite, the log-probs of policy and reference model, and the critic"
        )
    if left_out:
        notice(
            f"{left_out} of {responses} responses are left out of training: reward, KL estimate, log-prob of the "
            "reference, value or advantage is not finite"
        )
    _leave_out_of_means(experiences)


def _leave_out_of_means(experiences: list[Experience]) -> None:
    """OpenRLHF logs means over the responses; with the mean of the others, what is missing does not count.

    It is what is NaN, and all that a response without an action token, lost or not, has of training.
    """
    without = torch.cat([~experience.action_mask.bool().any(dim=-1) for experience in experiences])
    sizes = [len(experience.action_mask) for experience in experiences]
    for name in experiences[0].info:
        values = torch.cat([experience.info[name].float() for experience in experiences])
        missing = values.isnan() | (without & ~values.isfinite())
        if name in OF_TRAINING:
            missing |= without
        if missing.any() and not missing.all():
            filled = values.masked_fill(missing, values[~missing].mean())
            for experience, own in zip(experiences, filled.split(sizes), strict=True):
                experience.info[name] = own
