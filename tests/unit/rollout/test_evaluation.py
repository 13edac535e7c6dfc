"""Evaluation samples with `--eval_top_p`, training with `--rollout.top_p`, in OpenRLHF's own generator; what OpenRLHF
calls an evaluation's figures is what the flags allow for the best checkpoint."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from advantage_step import dealing_args
from flag_parser import parse

from openrlhf_stare import worker
from openrlhf_stare.driver import checks

worker.install()


@pytest.fixture
def generator(monkeypatch):
    """OpenRLHF's generator with our change; what it would ask the engines for is kept in `asked`."""
    module = importlib.import_module("openrlhf.trainer.ppo_utils.samples_generator")
    args = dealing_args(prompts=1, train=1)
    args.eval_top_p, args.vllm = None, SimpleNamespace(enable_sleep=False)
    args.algo.dynamic_filtering_enable = False
    generator = module.SamplesGenerator(SimpleNamespace(args=args), [], [], None, [])
    generator.asked = []

    def generate(**kwargs):
        generator.asked.append(kwargs["top_p"])
        return [], 0, True

    monkeypatch.setattr(generator, "_generate_vllm", generate)
    return generator


@pytest.mark.parametrize(("own", "evaluated"), [(None, 0.9), (0.7, 0.7)])
def test_the_top_p_of_evaluation_is_its_own_if_given(generator, own, evaluated):
    generator.args.eval_top_p = own
    generator.generate_samples(top_p=0.9)
    generator.generate_eval_samples(top_p=0.9)
    assert generator.asked == [0.9, evaluated]


@pytest.mark.parametrize("datasource", ["default", "aime_24", "two words"])
def test_every_figure_of_an_evaluation_can_choose_the_best_checkpoint(datasource):
    trainer, one = importlib.import_module("openrlhf.trainer.ppo_trainer"), torch.ones(1)
    sample = SimpleNamespace(prompts=["p"], rewards=1.0, response_length=one, truncated=one)
    figures = trainer.compute_eval_metrics([([datasource], ["p"], ["l"], [None])], [sample] * 8, 8)
    assert len(figures) == 7
    flags = "--eval.dataset eval.jsonl --eval.steps 10 --eval.n_samples_per_prompt 8 --ckpt.best_metric_key".split()
    for name in figures:
        assert checks.check(parse(*flags, name)) == []
