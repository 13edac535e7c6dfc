"""What changes on the way of the data, in the controller actor: even shares for all ranks, and the advantage step.

Two of the changes are guards, which act only where OpenRLHF 0.11.2 would hang (ZeRO-3 with unequal numbers of passes)
or train on NaN. The others come with `--advantage_estimator sr_grpo` and with `--policy_loss`: under `stare` groups of
equal rewards get no advantage, and under `tpo` two more keep the responses of a prompt together.
"""

from __future__ import annotations

import itertools
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_stare.dealing import data_parallel_ranks, dealing_unit
from openrlhf_stare.notices import notice

if TYPE_CHECKING:
    import torch

GROUP_BASELINES = ("group_norm", "rloo", "reinforce_baseline", "dr_grpo")  # those that subtract a mean of the group


def deal_evenly(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.samples_generator`: a rollout that the ranks cannot share evenly is cut."""
    generate_samples = module.SamplesGenerator.generate_samples

    def generate_even_samples(self, **generate_kwargs):
        samples, pass_rate, prompts_consumed, exhausted = generate_samples(self, **generate_kwargs)
        kept = evenly_dealt(len(samples), self.args)
        if kept < len(samples):
            notice(
                f"Rollout of {len(samples)} responses: {len(samples) - kept} left out, {kept} kept, so that all ranks "
                "get the same share and a short rollout fills whole optimizer steps"
            )
        return samples[:kept], pass_rate, prompts_consumed, exhausted

    module.SamplesGenerator.generate_samples = generate_even_samples


def evenly_dealt(count: int, args: SimpleNamespace) -> int:
    """How many of a rollout's first `count` responses OpenRLHF deals in equal shares to all data-parallel ranks.

    Whole prompt groups only. A rollout shorter than `--rollout.batch_size` prompts is also cut to whole optimizer
    steps: gradients of a begun one would wait for the next rollout, whose loss is normalised without them.
    """
    short = count < args.rollout.batch_size * args.rollout.n_samples_per_prompt
    unit = dealing_unit(args, whole_steps=short)
    return count // unit * unit


def number_responses(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.experience_maker`: under TPO each response carries its number in the rollout.

    Groups are K numbers in a row. The number is in `scores`, which has served its purpose (dynamic filtering) by
    then: OpenRLHF's buffer keeps that field and the trainer does not log it, while `index` is dropped.
    """
    original = module.RemoteExperienceMaker.compute_advantages_and_returns

    def compute_advantages_and_returns(self, experiences):
        import torch

        experiences = original(self, experiences)
        if self.args.policy_loss == "tpo":
            for experience in experiences:
                experience.scores = torch.tensor(experience.index)
        return experiences

    module.RemoteExperienceMaker.compute_advantages_and_returns = compute_advantages_and_returns


def deal_whole_groups(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_trainer`: under TPO dynamic batches are dealt group by group, so that a prompt's
    responses are all on one rank. Without dynamic batches the chunks are contiguous and begin with a group anyway."""
    from openrlhf.trainer.ppo_utils.experience import make_experience_batch, split_experience_batch

    balance_experiences = module.balance_experiences

    def balance_groups(experiences, args):
        if args.policy_loss != "tpo":
            return balance_experiences(experiences, args)
        ranks, size = data_parallel_ranks(args), args.rollout.n_samples_per_prompt
        responses = [response for experience in experiences for response in split_experience_batch(experience)]
        responses.sort(key=lambda response: int(response.scores))
        groups = [responses[start : start + size] for start in range(0, len(responses), size)]
        groups.sort(key=lambda group: sum(float(response.total_length) for response in group))
        # There and back over the ranks, so that none gets the longest group of every turn.
        turns = [groups[start : start + ranks] for start in range(0, len(groups), ranks)]
        shares = zip(*(turn[:: (-1) ** place] for place, turn in enumerate(turns)), strict=True)
        return [make_experience_batch(list(itertools.chain(*share))) for share in shares]

    module.balance_experiences = balance_groups


def change_advantages(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.experience_maker`, which makes advantages of rewards, in three points.

    A response whose reward or advantage is not finite is left out of training and of its group's statistics. It stays
    where it is, so that the shares stay even, with an empty `action_mask`; its former tokens carry a NaN advantage, by
    which the policy actor counts them.

    `sr_grpo` is one more estimator: the reward of each response becomes the soft reward of its group.

    Under `--policy_loss stare` a group whose rewards are all equal gets an advantage of exactly 0 from the estimators
    that subtract a mean of the group (before `reinforce_baseline` whitens over the rollout): the rounding of that mean
    would fill T⁺ and T⁻, and `group_norm` divides it by a std that is as small.

    What is to be logged of a rollout goes into every response's `info`, whose means OpenRLHF logs.
    """
    original = module.RemoteExperienceMaker.compute_advantages_and_returns

    def compute_advantages_and_returns(self, experiences):
        import torch

        masks = [experience.action_mask for experience in experiences]
        lost = [~torch.isfinite(experience.rewards.float()) for experience in experiences]
        args = self.strategy.args
        ours = args.policy_loss == "stare" or args.algo.advantage.estimator == "sr_grpo"
        if ours or any(rows.any() for rows in lost):
            experiences = _reshaped(lost, module, self, original, experiences)
        else:
            experiences = original(self, experiences)

        for experience, mask, rows in zip(experiences, masks, lost, strict=True):
            rows |= (~torch.isfinite(experience.advantages) & mask.bool()).any(dim=-1)
            if rows.any():
                column = rows.unsqueeze(-1)
                experience.action_mask = mask.masked_fill(column, 0)
                experience.advantages = experience.advantages.masked_fill(column, 0)
                experience.advantages = experience.advantages.masked_fill(column & mask.bool(), torch.nan)
                experience.returns = experience.returns.masked_fill(column, 0)
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


def _reshaped(lost: list[torch.Tensor], module: ModuleType, maker, original, experiences: list) -> list:
    """Run OpenRLHF's own advantage step, as if the lost responses were not there, with our shaped rewards among its.

    The lost get a reward that leaves their group's mean where it is, after OpenRLHF's length penalties and before its
    group statistics; where that is not enough, and where the estimator is ours, the shaped rewards are replaced before
    OpenRLHF clips them, adds its KL penalty and spreads them over the tokens. `apply_length_penalties` and
    `compute_reward` are those two places.
    """
    import torch

    apply_length_penalties, compute_reward = module.apply_length_penalties, module.compute_reward
    replacements, stds = iter(()), ()

    def penalties_then_stand_ins(experiences, args):
        nonlocal replacements, stds
        apply_length_penalties(experiences, args)
        order = torch.tensor(list(itertools.chain.from_iterable(experience.index for experience in experiences)))
        sizes = [len(experience.index) for experience in experiences]
        in_turn = torch.cat([experience.rewards for experience in experiences])
        rewards, gone = torch.empty_like(in_turn), torch.empty(len(order), dtype=torch.bool)
        rewards[order] = in_turn
        gone[order] = torch.cat(lost)
        rewards, shaped, std, figures = reshape(rewards, gone, args)
        for experience, stand_in in zip(experiences, rewards[order].split(sizes), strict=True):
            experience.rewards = stand_in
            experience.info |= {name: torch.full((len(stand_in),), value) for name, value in figures.items()}
        replacements, stds = iter(shaped[order].split(sizes)), std[order].split(sizes)

    def compute_reward_from_replacements(r, *args, **kwargs):
        shaped = next(replacements)
        return compute_reward(torch.where(torch.isnan(shaped), r, shaped), *args, **kwargs)

    for experience, rows in zip(experiences, lost, strict=True):
        experience.action_mask = experience.action_mask.masked_fill(rows.unsqueeze(-1), 0)
        experience.rewards = experience.rewards.masked_fill(rows, 0)
    if maker.args.algo.advantage.estimator == "sr_grpo":
        maker.advantage_estimator = "group_norm"  # the name by which OpenRLHF gives all tokens one advantage
    module.apply_length_penalties, module.compute_reward = penalties_then_stand_ins, compute_reward_from_replacements
    try:
        experiences = original(maker, experiences)
    finally:
        module.apply_length_penalties, module.compute_reward = apply_length_penalties, compute_reward
    for experience, std in zip(experiences, stds, strict=True):
        if "group_reward_std" in experience.info:
            own = experience.info["group_reward_std"]
            experience.info["group_reward_std"] = torch.where(torch.isnan(std), own, std)
    return experiences


def _leave_out_of_means(experiences: list, lost: list[torch.Tensor]) -> None:
    """OpenRLHF logs means over the responses; with the mean of the others, a lost one does not count."""
    import torch

    for name in ("reward", "score", "return", "group_reward_std"):
        if name in experiences[0].info:
            values = [experience.info[name].float() for experience in experiences]
            mean = torch.cat(values)[~torch.cat(lost)].mean()
            for experience, value, rows in zip(experiences, values, lost, strict=True):
                experience.info[name] = value.masked_fill(rows, mean)


def reshape(
    rewards: torch.Tensor, lost: torch.Tensor, args: SimpleNamespace
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, float]]:
    """Rewards (P·K,) in prompt order, and which of them are lost -> the rewards with stand-ins for the lost ones; the
    shaped rewards and the std of each response's group, both NaN where OpenRLHF's own will do; figures for the log.

    A stand-in of the mean of the others leaves a group's mean exact. `group_norm` and `rloo` also depend on how many
    responses a group has, and the baseline of `flash_reinforce` is the mean of the whole rollout, so there the shaped
    rewards are computed here, over the responses that are left.
    """
    import torch

    from openrlhf_stare.algorithms.sr_grpo import soft_advantage

    estimator = args.algo.advantage.estimator
    grouped = rewards.reshape(-1, args.rollout.n_samples_per_prompt)
    lost = lost.reshape(grouped.shape)
    is_short = lost.any(dim=-1, keepdim=True)
    count = (~lost).sum(dim=-1, keepdim=True)
    values = grouped.masked_fill(lost, 0)
    mean = values.sum(dim=-1, keepdim=True) / count.clamp(min=1)
    deviation = (values - mean).masked_fill(lost, 0)
    degrees = (count - 1).clamp(min=1)
    std = (deviation.square().sum(dim=-1, keepdim=True) / degrees).sqrt()

    shaped, figures = torch.full_like(values, torch.nan), {}
    if estimator == "group_norm":
        shaped = torch.where(is_short, deviation / (std + 1e-9), shaped)
    elif estimator == "rloo":
        shaped = torch.where(is_short, deviation * count / degrees, shaped)
    elif estimator == "flash_reinforce" and lost.any():
        shaped = values - values.sum() / count.sum().clamp(min=1)
    elif estimator == "sr_grpo":
        shaped = soft_advantage(values, tau=args.sr_grpo.tau, valid=~lost)
        soft = shaped[~lost].double()
        figures["soft_advantage_mean"] = soft.mean().item()
        figures["soft_advantage_std"] = soft.std(correction=0).item()
    if args.policy_loss == "stare":
        highest, lowest = grouped.masked_fill(lost, -torch.inf), grouped.masked_fill(lost, torch.inf)
        all_equal = (count > 1) & (highest.amax(dim=-1, keepdim=True) == lowest.amin(dim=-1, keepdim=True))
        figures["stare/zero_variance_groups"] = float(all_equal.sum())
        if estimator in GROUP_BASELINES:
            shaped = shaped.masked_fill(all_equal, 0)
    std = torch.where(is_short, std, torch.nan).expand_as(values)
    return torch.where(lost, mean, values).flatten(), shaped.flatten(), std.flatten(), figures
