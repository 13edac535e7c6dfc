"""A rollout that the ranks cannot share evenly is cut.

OpenRLHF 0.11.2 deals micro-rollouts in contiguous chunks of a rounded-up size. Where they do not come out even, ranks
make unequal numbers of passes, or the last one gets none, and under ZeRO-3 the job hangs in a collective.
"""

from __future__ import annotations

from types import ModuleType

from openrlhf_stare.dealing import evenly_dealt
from openrlhf_stare.notices import notice


def cut(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.samples_generator`."""
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
