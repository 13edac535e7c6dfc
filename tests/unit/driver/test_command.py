"""OpenRLHF's own block of flags and checks, run from its file."""

import pytest

from openrlhf_stare.driver import command, flags
from openrlhf_stare.driver.seams import MissingSeam
from openrlhf_stare.options import UsageError

SCORED = """--reward.remote_url a.py,b.py --advantage_estimator group_norm --rollout.n_samples_per_prompt 8
    --vllm.num_engines 1""".split()


def settled(*words: str):
    return command.settle(flags.parse([*SCORED, *words]))


def test_the_arguments_are_settled_as_openrlhfs_train_gets_them():
    args = settled("--actor.eps_clip", "0.3", "--rollout.batch_size", "64", "--stare.variant", "C2")
    assert args.reward.remote_url == ["a.py", "b.py"] and args.actor.eps_clip_low_high == (0.3, 0.3)
    assert args.critic.model_name_or_path is None and args.rollout.vllm_generate_batch_size == 64
    assert args.stare.variant == "C2"


def test_what_was_parsed_stays_as_it_was():
    flat = flags.parse([*SCORED, "--algo.advantage.is_correction_threshold", "0.1"])
    assert command.settle(flat).algo.advantage.is_correction_threshold == [0, 0.1]
    assert command.nested(flat).algo.advantage.is_correction_threshold == [0.1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--rollout.n_samples_per_prompt 1", "group_norm requires n_samples_per_prompt > 1"),
        ("--train.partial_rollout_enable", "--train.partial_rollout_enable requires --train.async_enable"),
        ("--rollout.vllm_generate_batch_size 4096", "--rollout.vllm_generate_batch_size > --rollout.batch_size"),
        ("--algo.dynamic_filtering_enable --algo.dynamic_filtering_range 1 0", "reward_clip_range[0] must be less"),
        ("--algo.advantage.is_correction_threshold 1 2 3", "--algo.advantage.is_correction_threshold takes"),
        ("--rollout.batch_size 1 --rollout.micro_batch_size 8", "The number of sample batches must be greater"),
    ],
)
def test_an_assertion_of_openrlhf_is_a_sentence(words, sentence):
    with pytest.raises(UsageError) as caught:
        settled(*words.split())
    assert str(caught.value).startswith(f"OpenRLHF refuses these flags: {sentence}")
    assert "\n" not in str(caught.value) and "  " not in str(caught.value)


def test_a_job_without_any_reward_is_refused():
    with pytest.raises(UsageError, match="nothing scores the responses: give --reward.remote_url"):
        command.settle(flags.parse([]))


@pytest.mark.parametrize("engines", ["", "--vllm.num_engines 0", "--vllm.num_engines 0 --ds.packing_samples"])
def test_a_job_without_an_engine_is_refused(engines):
    with pytest.raises(UsageError, match="--vllm.num_engines 0 leaves no engine to sample responses: give 1 or more"):
        command.settle(flags.parse(["--reward.remote_url", "reward.py", *engines.split()]))


def test_fewer_engines_than_none_are_refused():
    with pytest.raises(UsageError, match="--vllm.num_engines -1 leaves no engine to sample responses: give 1 or more"):
        settled("--vllm.num_engines", "-1")


def test_a_command_of_another_shape_is_a_missing_seam(tmp_path, monkeypatch):
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "train_ppo_ray.py").write_text("def main():\n    pass\n\nmain()\n")
    monkeypatch.setattr(command, "_folder", lambda: tmp_path)
    command._block.cache_clear()
    with pytest.raises(MissingSeam, match=r"does not end with `args = parser.parse_args\(\)`.*openrlhf==0.11.2"):
        command.parser()
    command._block.cache_clear()
