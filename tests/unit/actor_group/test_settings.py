"""What is written for the report at the start, and what the actor says once when its method has reached a limit."""

import json
from types import SimpleNamespace

import pytest
from flag_parser import parse

from openrlhf_stare import EntropyController, worker
from openrlhf_stare.actor_group import settings
from openrlhf_stare.methods import base
from openrlhf_stare.report.reading import FACTS, Settings, read_run

worker.install()

from openrlhf_stare.actor_group.policy_actor import StarePolicyActor  # noqa: E402


def args_of(tmp_path, words: str) -> SimpleNamespace:
    folders = ["--logger.tensorboard_dir", str(tmp_path / "logs"), "--logger.wandb.run_name", "run"]
    return parse(*words.split(), *folders, "--logger.wandb.key", "SECRET", "--reward.remote_url", "http://u:SECRET@h/")


def test_the_report_reads_what_is_written_and_nothing_secret_is_in_it(tmp_path):
    words = "--policy_loss stare+entropy_bonus --entropy.schedule pi --entropy.target 50% --actor.adam.lr 3e-4"
    args = args_of(tmp_path, words)
    args.ckpt.resume_from = ["what the driver found, which is no flag"]
    method = base.make(args)
    settings.write_settings(args, method, {"entropy.target": "50%"} | method.flags())
    text = (tmp_path / "logs/run/settings.json").read_text()
    assert "SECRET" not in text and not (tmp_path / "logs/run/settings.tmp").exists()
    (tmp_path / "logs/run/tokens.jsonl").write_text("")
    written = json.loads(text)
    assert written["policy_loss"] == "stare+entropy_bonus" and written["facts"].keys() == set(FACTS)
    assert not [name for name in written["arguments"] if name.startswith(("entropy.", "stare.", "logger.", "reward."))]
    record = {"step": 1, "time": 1.0, "prompt": "", "tokens": [], "surprisal": [], "advantage": [], "omega": []}
    record |= {"reward": 1.0, "tau_positive": None, "tau_negative": None}
    (tmp_path / "logs/run/tokens.jsonl").write_text(json.dumps(record) + "\n")
    assert read_run(tmp_path, "run").settings == Settings(
        strengths=("stare/reweight_w", "stare/reweight_m", "entropy_bonus/coefficient"),
        sets=("L+", "L-"),
        facts={"is_idle": False, "needs_advantages": False, "pursues_target": True},
        flags={"entropy.target": "50%"} | method.flags(),
        arguments=written["arguments"],
    )
    assert "ckpt.path" in written["arguments"] and "ckpt.resume_from" not in written["arguments"]
    assert written["arguments"]["actor.adam.lr"] == 3e-4 and written["flags"]["stare.w_max"] == 60


def test_without_a_method_nothing_of_one_is_written(tmp_path):
    args = args_of(tmp_path, "--policy_loss openrlhf")
    settings.write_settings(args, None, {})
    written = json.loads((tmp_path / "logs/run/settings.json").read_text())
    assert (written["strengths"], written["sets"], written["facts"], written["flags"]) == ([], None, {}, {})


def test_a_disk_that_cannot_be_written_to_costs_the_file_alone(tmp_path, capsys):
    (tmp_path / "logs").write_text("a file where the folder should be")
    settings.write_settings(args_of(tmp_path, "--policy_loss openrlhf"), None, {})
    assert "training goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, is_idle",
    [
        ("--policy_loss clip_higher --train.batch_size 128", True),
        ("--policy_loss clip_higher --train.batch_size 64", False),
        ("--policy_loss clip_higher --train.batch_size 128 --train.max_epochs 2", False),
        ("--policy_loss stare --train.batch_size 128", False),
        ("--policy_loss clip_higher+stare --train.batch_size 128", False),
        ("--policy_loss clip_higher --train.batch_size 128 --actor.policy_loss_type gspo", True),
        # There the ratio is to the policy that sampled.
        (
            "--policy_loss clip_higher --train.batch_size 128 --actor.policy_loss_type gspo "
            "--algo.advantage.is_correction_level seq",
            False,
        ),
        ("--policy_loss clip_higher+kl_cov --train.batch_size 128", True),
        # Half the prompts at once make rollouts of half the size.
        ("--policy_loss kl_cov --rollout.vllm_generate_batch_size 8 --train.batch_size 64", True),
        ("--policy_loss kl_cov --rollout.vllm_generate_batch_size 8 --train.batch_size 32", False),
        # One whole step is made of 128 responses, and what is left is not trained on.
        ("--policy_loss kl_cov --train.batch_size 96 --train.dynamic_batch_enable", True),
        ("--policy_loss kl_cov --train.batch_size 96", False),
    ],
)
def test_a_method_that_never_acts_is_known_from_its_facts_and_the_batch(words, is_idle):
    args = parse(*words.split(), *"--rollout.batch_size 16 --rollout.n_samples_per_prompt 8".split())
    assert base.facts(base.make(args), args)["is_idle"] == is_idle


def test_the_actor_says_once_that_its_method_is_at_its_bound_and_once_that_it_cannot_act():
    said, method = [], base.find("stare")()
    actor = StarePolicyActor.__new__(StarePolicyActor)
    control = base.entropy_control(type(method), {"schedule": "pi", "target": 0.4})
    actor.controller, actor.loss = EntropyController(control, method.strengths), SimpleNamespace(method=method)
    actor._notice, actor._told_of_a_bound, actor._told_of_no_advantage = said.append, False, False
    for rollout in range(30):
        actor.controller.update(0.05)
        actor._tell_of_limits(0.06 if rollout < 25 else 0.0)
        assert len(said) == (rollout >= 19) + (rollout >= 25)
    assert said[0].startswith("For 20 rollouts in a row the entropy was more than 25 % off its target with the method")
    assert "6 % of the tokens of the last one have an advantage" in said[0]
    assert said[1].startswith("No token of this rollout has an advantage")
