"""`--look` with a real engine: what it finds is what is known of the model, and it leaves nothing behind."""

import json
import re
from pathlib import Path

import pytest
from jobs import job_flags, run_job


@pytest.fixture(scope="module")
def look(addends, tmp_path_factory, cluster):
    """One look at the addends model, with more answers than by default, so that chance matters less."""
    folder = tmp_path_factory.mktemp("look")
    words = "--look --look.prompts 60 --look.answers 16 --console compact --entropy.target 50%".split()
    job = run_job([*job_flags(addends, folder), *words], folder, cluster=cluster, timeout=300)
    assert job.status == 0, job.output[-4000:]
    return job, folder


def figure(output: str, name: str) -> float:
    return float(re.search(rf"^  {name} +([\d.]+)", output, re.MULTILINE)[1])


def test_it_finds_what_the_model_is_known_for(look, addends):
    output, known = look[0].output, json.loads((addends / "model/addends.json").read_text())
    assert "look: 60 prompts, 960 answers" in output
    # Over all totals, here 960 answers to 60 prompts: some 2 % of the entropy and of the answers are chance.
    assert abs(figure(output, "entropy") - known["entropy"]) < 0.08
    assert abs(figure(output, "half of it") - known["entropy"] / 2) < 0.04
    assert abs(figure(output, "reward") - known["sampled_reward"]) < 0.08
    assert abs(figure(output, "right") - 100 * figure(output, "reward")) < 1  # rewards are 0 and 1
    assert figure(output, "mixed") > 90 and figure(output, "identical") == 0
    assert 4 <= figure(output, "length") < 4.5 and figure(output, "truncated") <= 5
    assert re.search(r"^Good: \d+ of 60 groups are mixed", output, re.MULTILINE)


def test_the_answers_that_it_shows_are_scored_as_the_task_scores_them(look):
    shown = re.findall(r"^ +([01]) +(\d+)  '(\d\d)=' '(.*)'$", look[0].output, re.MULTILINE)
    assert len(shown) == 10 and len({prompt for _, _, prompt, _ in shown}) > 3
    for reward, _, prompt, answer in shown:
        right = re.fullmatch(r"(\d)\+(\d)<eos>", answer)
        assert (reward == "1") == bool(right and int(right[1]) + int(right[2]) == int(prompt))


def test_it_leaves_no_process_and_writes_no_file_but_the_console_s_own(look):
    job, folder = look
    assert not job.left_over
    assert [path.name for path in folder.iterdir()] == ["output.log"]  # what the test keeps of the output
    complete = Path(re.search(r"^complete output: (.*)$", job.output, re.MULTILINE)[1])
    assert "Good: " in complete.read_text() and complete.stat().st_mode & 0o077 == 0
    complete.unlink()


def test_an_engine_without_our_plugin_ends_it_with_the_engine_s_own_error(addends, tmp_path):
    """And a job, whose engines start in the same way."""
    environment = {"VLLM_PLUGINS": "some_other_plugin"}
    job = run_job([*job_flags(addends, tmp_path), "--look"], tmp_path, env=environment, timeout=300)
    assert job.status == 1 and not job.left_over
    error = job.output.split("train_ray: error: ")[-1]
    assert error.startswith("a vLLM engine (RolloutRayActor, process ") and "failed while loading: " in error
    assert "openrlhf-stare is not in place in vLLM's worker: let vLLM load the plugin openrlhf_stare" in error
