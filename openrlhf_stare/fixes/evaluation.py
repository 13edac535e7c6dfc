"""Evaluation with a top-p of its own: OpenRLHF 0.11.2 has its own temperature, and the training's top-p."""

from __future__ import annotations

from types import ModuleType


def use_own_top_p(module: ModuleType) -> None:
    """Change `openrlhf.trainer.ppo_utils.samples_generator`: `--eval_top_p` holds for what evaluation samples."""
    generate_eval_samples = module.SamplesGenerator.generate_eval_samples

    def generate_with_own_top_p(self, **generate_kwargs):
        if self.args.eval_top_p is not None:
            generate_kwargs["top_p"] = self.args.eval_top_p
        return generate_eval_samples(self, **generate_kwargs)

    module.SamplesGenerator.generate_eval_samples = generate_with_own_top_p
