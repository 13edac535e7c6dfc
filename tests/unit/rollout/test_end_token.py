"""`--rollout.min_new_tokens` in what OpenRLHF's own generator asks its engines for."""

from types import SimpleNamespace

import pytest
import ray
from flag_parser import parse

from openrlhf_stare import worker

worker.install()

from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402

JOB = """--rollout.batch_size 1 --rollout.n_samples_per_prompt 2 --algo.advantage.is_correction_level token""".split()


class Engine:
    """Keeps what it is asked for, in the place of a Ray actor."""

    def __init__(self) -> None:
        self.asked = []
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)
        self.generate_responses = SimpleNamespace(remote=lambda **request: self.asked.append(request))


@pytest.mark.parametrize("fewest", [0, 1, 3])
@pytest.mark.parametrize("generate", ["generate_samples", "generate_eval_samples"])
def test_the_engines_are_asked_for_it_in_training_and_in_evaluation(monkeypatch, fewest, generate):
    engine = Engine()
    monkeypatch.setattr(ray, "get", lambda refs: refs)
    monkeypatch.setattr(ray, "wait", lambda refs, **options: ([], []))
    args = parse(*JOB, "--rollout.min_new_tokens", str(fewest))
    prompts = [(None, ["12="], ["12"], [None])]
    generator = SamplesGenerator(SimpleNamespace(args=args), prompts, prompts, None, [engine])
    getattr(generator, generate)(max_new_tokens=8)
    [request] = engine.asked
    assert request["sampling_params"].min_tokens == fewest and request["sampling_params"].max_tokens == 8
