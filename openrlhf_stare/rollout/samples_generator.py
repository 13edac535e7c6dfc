"""The samples generator: OpenRLHF's, which survives a reward that could not be had, and deals rollouts out evenly.

- A response whose address failed five times, or whose `reward_func` raised an error, has no reward in OpenRLHF 0.11.2,
  and the first one ends the job, since a reward model is missing then. A server's answer that is no single number does
  too. Here the reward is NaN, and the response is left out of training (experience_maker.py). An evaluation takes the
  mean of the other responses to its prompt. Dynamic filtering, which draws prompts until enough of their groups are
  kept, would draw all of them in vain where most rewards fail: here the job ends (failing_rewards.py).
- OpenRLHF ends the job over an agent's `extra_logs` that are no numbers. Here they are told and left out.
- OpenRLHF deals micro-rollouts in contiguous chunks of a rounded-up size. Where they do not come out even, ranks make
  unequal numbers of passes, or the last one gets none, and under ZeRO-3 the job hangs in a collective. Here what is
  too much is left out.
- OpenRLHF's evaluation has its own temperature, and the training's top-p. Here `--eval_top_p` holds for it.
- OpenRLHF asks for one token before the end token. So the engine forbids the end token in the first place of every
  response and gives its probability to the others, and the policy is never told. What the policy puts on the end there
  is never sampled and never pushed down: entropy and importance weights are those of a distribution that nobody
  samples from, `vllm_kl` grows by -log(1 - p_end) on each first token, and the saved model may answer with nothing.
  Here `--rollout.min_new_tokens` says how many, in training and in evaluation.
- With a larger `--rollout.vllm_generate_batch_size` responses wait for the next rollouts. A checkpoint's state of the
  loader is past their prompts, so that a resumed job leaves them out. Here it is the one of before they were drawn.
"""

from __future__ import annotations

import math

import openrlhf.trainer.ppo_utils.samples_generator as samples_generator
import torch

from openrlhf_stare.dealing import evenly_dealt
from openrlhf_stare.notices import notice
from openrlhf_stare.options import given
from openrlhf_stare.rollout.failing_rewards import FailedRewards, RewardWatch
from openrlhf_stare.rollout.reward_answers import figures, only_number


class StareSamplesGenerator(samples_generator.SamplesGenerator):
    """OpenRLHF's `SamplesGenerator` with the changes above."""

    _is_filtering = False  # of the responses that are being made

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.reward_watch = RewardWatch(FailedRewards(**given(self.args, "failed_rewards")))
        self._have_failed: list[bool] = []  # of the responses since the last count

    def generate_samples(self, **generate_kwargs):
        samples, pass_rate, prompts_consumed, exhausted = super().generate_samples(**generate_kwargs)
        if self._draws_ahead:
            self.prompts_dataloader.saved = self._before_drawing if self._sample_buffer else None
        _give_all_the_same_figures(samples)
        kept = evenly_dealt(len(samples), self.args)
        if kept < len(samples):
            notice(
                f"Rollout of {len(samples)} responses: {len(samples) - kept} left out, {kept} kept, so that all ranks "
                "get the same share and a short rollout fills whole optimizer steps"
            )
        return samples[:kept], pass_rate, prompts_consumed, exhausted

    def generate_eval_samples(self, **generate_kwargs):
        if self.args.eval_top_p is not None:
            generate_kwargs["top_p"] = self.args.eval_top_p
        samples = super().generate_eval_samples(**generate_kwargs)
        size = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        return with_finite_rewards(samples, size)

    @property
    def _draws_ahead(self) -> bool:
        at_once = getattr(self.args.rollout, "vllm_generate_batch_size", None)  # as OpenRLHF asks for it
        return bool(at_once) and at_once > self.args.rollout.batch_size

    def _generate_vllm(self, dataloader_iter, num_prompts, dynamic_filtering, **generate_kwargs):
        # Now that the iterator is there: without one, asking for the state would make one, and change the order.
        if self._draws_ahead and dataloader_iter is getattr(self, "_dataloader_iter", None):  # and not an evaluation's
            self.prompts_dataloader.saved = None
            self._before_drawing = self.prompts_dataloader.state_dict()
        self._is_filtering = dynamic_filtering
        return super()._generate_vllm(dataloader_iter, num_prompts, dynamic_filtering, **generate_kwargs)

    def _dispatch_prompts_to_vllm(self, *prompts, **generate_kwargs) -> list:
        generate_kwargs["min_new_tokens"] = self.args.rollout.min_new_tokens
        return super()._dispatch_prompts_to_vllm(*prompts, **generate_kwargs)

    def _watch(self, reward) -> None:
        """Count a response that dynamic filtering may drop, so that the experience maker never sees it.

        As many as a rollout has count as one.

        Raises:
            RewardsFail: for too many of them in a row most had no finite reward.
        """
        self._have_failed.append(not math.isfinite(reward))
        if len(self._have_failed) >= self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt:
            failed, self._have_failed = self._have_failed, []
            self.reward_watch.count(sum(failed), len(failed))

    def _process_response_into_experience(self, response, **generate_kwargs):
        response = {**response, "extra_logs": figures(response.get("extra_logs"))}
        if self.args.reward.remote_url:  # else a reward model gives it later
            reward, score = only_number(response.get("reward")), response.get("scores")
            # Dynamic filtering takes the mean of a group's scores: one that is not finite would cost the whole group.
            if reward is None:
                reward, score = math.nan, 0.0 if score is None else score
            if score is not None:
                score = only_number(score)
                score = score if score is not None and math.isfinite(score) else 0.0
            response |= {"reward": reward, "scores": score}
            if self._is_filtering:
                self._watch(reward)
        return super()._process_response_into_experience(response, **generate_kwargs)


def with_finite_rewards(samples: list, samples_per_prompt: int) -> list:
    """An evaluation's samples, of which each has a finite reward.

    One without gets the mean of the others of its prompt, which leaves both pass rates what they are without it.
    Prompts of which no response has one are left out.

    Args:
        samples: those of a prompt next to each other.
    """
    if any(sample.rewards is None for sample in samples):  # a reward model is to give them
        return samples
    rewards = torch.cat([sample.rewards.float().flatten() for sample in samples] or [torch.empty(0)])
    valid = rewards.isfinite()
    if valid.all():
        return samples
    kept = []
    for start in range(0, len(samples), samples_per_prompt):
        rows = slice(start, start + samples_per_prompt)
        if valid[rows].any():
            mean = rewards[rows][valid[rows]].mean()
            for sample, is_valid in zip(samples[rows], valid[rows], strict=True):
                sample.rewards = sample.rewards if is_valid else mean.reshape(sample.rewards.shape)
                kept.append(sample)
    prompts = (len(samples) - len(kept)) // samples_per_prompt
    notice(
        f"Evaluation: {int((~valid).sum())} of {len(samples)} responses have no finite reward and count as the mean "
        f"of the others to their prompt; prompts without any are left out: {prompts}"
    )
    return kept


def _give_all_the_same_figures(samples: list) -> None:
    """Every figure that a reward function or agent returned, for all samples in one order; NaN where it is missing.

    OpenRLHF puts them together by their names and then adds up those of the ranks one after the other: in another
    order one rank's figure would be added to another figure of the next.
    """
    names = list(dict.fromkeys(name for sample in samples for name in sample.info))
    for sample in samples:
        sample.info = {name: sample.info.get(name, torch.tensor([math.nan])) for name in names}
