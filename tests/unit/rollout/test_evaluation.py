"""Evaluation samples with `--eval_top_p`, training with `--rollout.top_p`, in OpenRLHF's own generator."""

import importlib.util
from types import SimpleNamespace

import pytest

from openrlhf_stare import worker
from openrlhf_stare.fixes import evaluation

worker.install()


@pytest.fixture
def generator(monkeypatch):
    """OpenRLHF's generator with our change; what it would ask the engines for is kept in `asked`."""
    name = "openrlhf.trainer.ppo_utils.samples_generator"
    spec = importlib.util.spec_from_file_location("copy_of_samples_generator", importlib.util.find_spec(name).origin)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    evaluation.use_own_top_p(module)
    rollout = SimpleNamespace(batch_size=1, n_samples_per_prompt=1)
    args = SimpleNamespace(
        eval_top_p=None,
        rollout=rollout,
        vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
    )
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
