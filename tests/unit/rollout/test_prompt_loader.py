"""OpenRLHF's own loader of prompts, resumed: with other prompts, with too few, and with responses in store."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from flag_parser import parse

from openrlhf_stare import worker

worker.install()

from openrlhf.trainer.ppo_trainer import prepare_datasets  # noqa: E402
from openrlhf.trainer.ppo_utils import samples_generator  # noqa: E402
from openrlhf.utils import get_strategy  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

from openrlhf_stare.rollout import prompt_loader  # noqa: E402
from openrlhf_stare.rollout.prompt_loader import PromptLoader  # noqa: E402


@pytest.fixture
def said(monkeypatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(prompt_loader, "notice", told.append)
    return told


def loader_of(folder: Path, prompts: list[str], *flags: str) -> PromptLoader:
    """What OpenRLHF makes of a file with these prompts."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"input": prompt}) + "\n" for prompt in prompts))
    words = ["--data.prompt_dataset", str(file), "--train.num_episodes", "1", *flags]
    loader, _, _ = prepare_datasets(get_strategy(parse(*words)), None)
    assert type(loader) is PromptLoader
    return loader


def drawn(rows, count: int | None = None) -> list[str]:
    """The next prompts."""
    return [next(rows)[1][0] for _ in range(count)] if count is not None else [row[1][0] for row in rows]


PROMPTS = [f"{number}=" for number in range(6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_with_the_same_prompts_the_episode_goes_on_without_a_word(tmp_path, said, workers):
    flags = ("--data.dataloader_num_workers", str(workers))
    rows = iter(loader := loader_of(tmp_path, PROMPTS, *flags))
    first, state = drawn(rows, 4), loader.state_dict()
    resumed = loader_of(tmp_path, PROMPTS, *flags)
    resumed.load_state_dict(state)
    assert drawn(resumed) == drawn(rows) and len(first) == 4 and said == []
    # Of a checkpoint from before prompts were kept, and by plain torchdata, of which OpenRLHF's loader is one.
    for other, of in ((loader_of(tmp_path, PROMPTS, *flags), {**state}), (None, state)):
        if other is None:
            other = StatefulDataLoader(resumed.dataset, shuffle=True, num_workers=workers, collate_fn=list)
        else:
            del of["prompts"]
        other.load_state_dict(of)
        assert len(list(other)) == 2 and said == []


@pytest.mark.parametrize("prompts", [[*PROMPTS, "6="], [*PROMPTS[:4], "5=", "4="], PROMPTS[:5]], ids=len)
def test_other_prompts_are_told(tmp_path, said, prompts):
    rows = iter(loader := loader_of(tmp_path, PROMPTS))
    drawn(rows, 4)
    resumed = loader_of(tmp_path, prompts)
    resumed.load_state_dict(loader.state_dict())
    assert len(drawn(resumed)) == len(prompts) - 4
    [sentence] = said
    assert f"(6 then, {len(prompts)} now): the episode goes on" in sentence


@pytest.mark.parametrize(
    ("flags", "prompts", "sentence"),
    [
        ([], PROMPTS[:3], "gives 3 prompts, and the checkpoint was saved when 4 of an episode were drawn: give the"),
        (["--data.max_samples", "3"], PROMPTS, "--data.prompt_dataset gives 3 prompts, and the checkpoint was saved"),
        (["--data.dataloader_num_workers", "1"], PROMPTS, "_workers 1 cannot go on .* saved with 0: give 0"),
    ],
)
def test_a_state_that_torchdata_cannot_take_is_refused_with_a_sentence(tmp_path, flags, prompts, sentence):
    rows = iter(loader := loader_of(tmp_path, PROMPTS))
    drawn(rows, 4)
    with pytest.raises(ValueError, match=sentence):
        loader_of(tmp_path, prompts, *flags).load_state_dict(loader.state_dict())


def test_a_job_that_stops_with_responses_in_store_samples_them_again(tmp_path, monkeypatch):
    """Their prompts were drawn with those of a rollout that was trained on, and OpenRLHF would leave them out."""
    flags = "--rollout.batch_size 2 --rollout.vllm_generate_batch_size 4 --rollout.n_samples_per_prompt 1".split()
    flags += ["--train.batch_size", "2", "--train.micro_batch_size", "2", "--actor.num_gpus_per_node", "1"]
    flags += ["--algo.kl.init_coef", "0", "--advantage_estimator", "reinforce"]

    class OpenRLHFs(samples_generator.SamplesGenerator):
        """Without engines: a prompt's response is the prompt."""

        def _dispatch_prompts_to_vllm(self, prompts, *others, **named):
            return [[prompt] for prompt in prompts]

        def _process_response_into_experience(self, response, **named):
            return SimpleNamespace(info={}, prompt=response, rewards=None)

    monkeypatch.setattr(ray, "get", lambda ref: ref)
    monkeypatch.setattr(ray, "wait", lambda refs, **named: (refs[:1], refs[1:]))

    def generator_of(loader: PromptLoader) -> OpenRLHFs:
        return OpenRLHFs(SimpleNamespace(args=parse(*flags)), loader, None, None, [])

    def rollout(generator) -> list[str]:
        return [sample.prompt for sample in generator.generate_samples()[0]]

    prompts = [f"{number}=" for number in range(10)]
    job = generator_of(loader := loader_of(tmp_path, prompts))
    job.eval_dataloader = [(None, ["1="], [""], [None])]
    assert len(job.generate_eval_samples()) == 1  # which may come first
    taken, states = [], []
    for _ in range(5):
        taken.append(rollout(job))
        states.append(loader.state_dict())
    assert sorted(sum(taken, [])) == prompts
    for number, goes_on_with in enumerate([0, 2, 2, 4]):
        resumed = generator_of(loader_of(tmp_path, prompts))
        resumed.prompts_dataloader.load_state_dict(states[number])
        assert [rollout(resumed) for _ in taken[goes_on_with:]] == taken[goes_on_with:]
    assert states[4]["_num_yielded"] == 10  # the end of the episode
