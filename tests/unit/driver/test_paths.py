"""Which arguments are paths of the driver's folder."""

import json
from types import SimpleNamespace

import pytest

from openrlhf_stare.driver import command, flags, paths
from openrlhf_stare.options import UsageError
from openrlhf_stare.rules import refuse

FLAGS = """--actor.model_name_or_path model --critic.model_name_or_path org/critic --advantage_estimator gae
--data.prompt_dataset prompts.jsonl,org/prompts@part,saved@part --reward.remote_url reward.py,http://127.0.0.1:1
--policy_loss own.py --ckpt.path checkpoints --logger.tensorboard_dir logs --actor.num_gpus_per_node 2
--vllm.num_engines 1 --train.batch_size 128""".split()
OWN = "from openrlhf_stare.methods.base import Method\n\n\nclass Own(Method):\n    pass\n"


@pytest.fixture
def args(tmp_path, monkeypatch) -> SimpleNamespace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    for folder in ("model", "saved", "org"):
        (tmp_path / folder).mkdir()
    (tmp_path / "prompts.jsonl").touch()
    (tmp_path / "own.py").write_text(OWN)
    return command.settle(flags.parse(FLAGS))


def test_what_is_here_gets_its_absolute_path_and_what_is_elsewhere_keeps_its_name(args, tmp_path):
    paths.make_absolute(args)
    assert args.actor.model_name_or_path == f"{tmp_path}/model"
    assert args.critic.model_name_or_path == "org/critic"
    assert args.data.prompt_dataset == f"{tmp_path}/prompts.jsonl,org/prompts@part,{tmp_path}/saved@part"
    assert args.reward.remote_url == [f"{tmp_path}/reward.py", "http://127.0.0.1:1"]
    assert args.policy_loss == f"{tmp_path}/own.py"
    assert (args.ckpt.path, args.logger.tensorboard_dir) == (f"{tmp_path}/checkpoints", f"{tmp_path}/logs")
    assert args.ckpt.output_dir == f"{tmp_path}/ckpt"  # OpenRLHF's default
    assert (args.reward.model_name_or_path, args.train.agent_func_path, args.eval.dataset) == (None, None, None)


def test_a_job_submitted_with_a_working_directory_keeps_its_own(args, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {"working_dir": "there"}}))
    paths.make_absolute(args)
    assert (args.policy_loss, args.ckpt.path) == ("own.py", "checkpoints")


def test_what_such_a_job_trains_is_not_written_into_a_node_s_copy(args, monkeypatch):
    refuse(paths.lost_with_the_job(args))
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {"working_dir": "there"}}))
    with pytest.raises(
        UsageError, match="^--ckpt.path checkpoints is relative, .*: give the absolute path of a folder"
    ):
        refuse(paths.lost_with_the_job(args))
    args.ckpt.path = "/shared/checkpoints"
    with pytest.raises(UsageError, match="^--ckpt.output_dir ./ckpt is relative"):
        refuse(paths.lost_with_the_job(args))
    args.ckpt.output_dir = "/shared/model"
    with pytest.raises(UsageError, match="^--logger.tensorboard_dir logs is relative"):
        refuse(paths.lost_with_the_job(args))
    args.logger.tensorboard_dir = None
    refuse(paths.lost_with_the_job(args))
