"""A reward that could not be had is NaN, and its response is left out of training (non_finite_rewards.py).

A response whose address failed five times, or whose `reward_func` raised an error, has no reward in OpenRLHF 0.11.2,
and the first one ends the job: a reward model is then missing.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch


def count_as_nan(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.samples_generator`."""
    generator = module.SamplesGenerator
    process, generate_samples = generator._process_response_into_experience, generator.generate_samples

    def process_with_a_reward(self, response, **generate_kwargs):
        if response.get("reward") is None and self.args.reward.remote_url:  # else a reward model gives it later
            # Dynamic filtering takes the mean of a group's scores.
            response = {**response, "reward": math.nan, "scores": 0.0}
        return process(self, response, **generate_kwargs)

    def generate_with_the_same_figures(self, **generate_kwargs):
        samples, *others = generate_samples(self, **generate_kwargs)
        # OpenRLHF puts the figures that a reward function returns together by their names.
        names = {name for sample in samples for name in sample.info}
        for sample in samples:
            for name in names - sample.info.keys():
                sample.info[name] = torch.tensor([math.nan])
        return samples, *others

    generator._process_response_into_experience = process_with_a_reward
    generator.generate_samples = generate_with_the_same_figures
