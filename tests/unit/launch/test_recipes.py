"""The recipes: the published settings, as flags that OpenRLHF's real parser accepts."""

import os
import shlex
import string
import subprocess
import sys
from pathlib import Path

import pytest
from flag_parser import parse

from openrlhf_stare import train_ray, worker
from openrlhf_stare.driver import checks, resources
from openrlhf_stare.methods import base

worker.install()

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(ROOT.glob("launch/**/*.sh"))
RECIPES = [path for path in sorted(ROOT.glob("launch/recipes/*.sh")) if path.name != "common.sh"]
by_name = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def command(recipe: Path, *flags: str, **variables: str) -> list[str]:
    """The command that the recipe prints first and runs, here with a Python that does nothing."""
    environment = {"PATH": os.environ["PATH"], "TRAIN_PYTHON": "true", **variables}
    done = subprocess.run(["bash", recipe, *flags], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.splitlines()[0])


def arguments(recipe: Path, *flags: str, **variables: str):
    words = command(recipe, *flags, **variables)
    assert words[:3] == ["true", "-m", "openrlhf_stare.train_ray"]
    return parse(*words[3:])


def recipe(name: str) -> Path:
    return ROOT / f"launch/recipes/{name}.sh"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_bash_can_read_it(script):
    subprocess.run(["bash", "-n", script], check=True)


@by_name
def test_the_published_settings(recipe):
    args = arguments(recipe)
    assert checks.check(args) == []
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt) == (64, 8)
    assert (args.train.batch_size, args.train.max_epochs) == (64 * 8, 1)  # one optimizer step a rollout
    assert args.actor.adam.lr == 1e-6 and args.actor.lr_scheduler == "constant" and args.actor.lr_warmup_ratio == 0
    assert args.actor.eps_clip_low_high == [0.2, 0.28] and args.actor.dual_clip == 10
    assert args.algo.kl.init_coef == 0 and args.algo.advantage.estimator == "group_norm"
    assert args.actor.loss_agg_mode == "token-mean"
    assert (args.rollout.temperature, args.rollout.top_p) == (1, 1)
    assert args.algo.dynamic_filtering_enable and args.algo.dynamic_filtering_range == [0, 1]
    assert (args.policy_loss, args.stare.variant, args.stare.top_p_ratio) == ("stare", "O1", 0.1)
    assert (args.entropy.schedule, args.entropy.target) == ("gate", 0.3)
    assert (args.eval.n_samples_per_prompt, args.eval.temperature, args.eval_top_p) == (32, 1, 0.7)
    assert [Path(name).stem for name in args.eval.dataset.split(",")] == ["aime24", "aime25"]
    needs = resources.required(args)
    assert needs.gpus == 16


@pytest.mark.parametrize(
    ("name", "model", "weights", "max_len"),
    [
        ("short_cot_7b", "Qwen/Qwen2.5-Math-7B", (1.1, 0.9), 4096),
        ("short_cot_14b", "Qwen/Qwen2.5-14B-Instruct", (1.05, 0.95), 8192),
        ("short_cot_32b", "Qwen/Qwen2.5-32B", (1.05, 0.95), 8192),
        ("long_cot_1.5b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", (1.1, 0.9), 16384),
        ("long_cot_8b", "Qwen/Qwen3-8B-Base", (1.1, 0.9), 16384),
        ("tool_use_7b", "Qwen/Qwen2.5-7B", (1.1, 0.9), 8192),
    ],
)
def test_what_is_the_recipe_s_own(name, model, weights, max_len):
    args = arguments(recipe(name))
    assert args.actor.model_name_or_path == model
    assert (args.stare.reweight_w, args.stare.reweight_m) == weights
    assert args.data.max_len == max_len == 1024 + args.rollout.max_new_tokens
    # A response of full length fits into one micro-batch, and the engines use all GPUs.
    assert args.train.max_tokens_per_gpu >= max_len
    assert args.vllm.num_engines * args.vllm.tensor_parallel_size == 16


@by_name
def test_the_baseline_is_the_same_command_but_for_the_loss(recipe):
    ours, baseline = command(recipe), command(recipe, BASELINE="1")
    own = [n for n, word in enumerate(ours) if word.startswith(("--stare.", "--entropy."))]  # each with its value
    assert len(own) > 3 and checks.check(parse(*baseline[3:])) == []
    ours = [word for n, word in enumerate(ours) if n not in own and n - 1 not in own]
    pairs = [(a, b) for a, b in zip(ours, baseline, strict=True) if a != b]
    assert ("stare", "openrlhf") in pairs
    assert all(b == a.replace("-stare", "-baseline") for a, b in pairs if a != "stare")  # the run's folder and name


@pytest.mark.parametrize("method", ["kl_cov", "clip_higher", "stare+entropy_bonus"])
def test_the_baseline_is_one_whatever_the_method(method):
    assert command(recipe("short_cot_7b"), BASELINE="1", METHOD=method) == command(
        recipe("short_cot_7b"), BASELINE="1"
    )


@by_name
@pytest.mark.parametrize("method", [name for name in base.names() if name != "stare"])
def test_another_method_has_its_own_published_values(recipe, method):
    words = command(recipe, METHOD=method)
    args = parse(*words[3:])
    assert checks.check(args) == [] and args.policy_loss == method
    assert not [word for word in words if word.startswith(("--stare.", "--entropy."))]
    assert args.ckpt.path.endswith(f"-{method}/checkpoints")
    # The baseline's upper clip range is what Clip-Higher would set.
    assert args.actor.eps_clip_low_high == ([0.2, 0.2] if method == "clip_higher" else [0.2, 0.28])


@by_name
def test_the_environment_and_then_flags_win(recipe):
    variables = {
        "MODEL": "mine",
        "DATA": "a.jsonl",
        "RUN": "/runs/mine",
        "REWEIGHT_M": "0.8",
        "RESPONSE_TOKENS": "100",
    }
    args = arguments(recipe, "--stare.reweight_w", "1.4", "--actor.adam.lr", "5e-7", **variables)
    assert (args.actor.model_name_or_path, args.data.prompt_dataset) == ("mine", "a.jsonl")
    assert args.ckpt.path == "/runs/mine/checkpoints" and args.data.max_len == 1124
    assert (args.stare.reweight_w, args.stare.reweight_m, args.actor.adam.lr) == (1.4, 0.8, 5e-7)


def test_a_target_and_a_schedule_that_are_given_are_any_method_s():
    given = {"TARGET_ENTROPY": "50%", "SCHEDULE": "pi"}
    for method in ("entropy_bonus", "stare+entropy_bonus"):
        args = arguments(recipe("short_cot_14b"), METHOD=method, **given)
        assert checks.check(args) == [] and (args.entropy.target, args.entropy.schedule) == ("50%", "pi")
    assert (args.stare.variant, args.stare.top_p_ratio) == ("O1", 0.1)
    assert "--entropy.target" not in command(recipe("short_cot_14b"), BASELINE="1", **given)
    both = arguments(recipe("short_cot_14b"), METHOD="stare+entropy_bonus")
    assert both.stare.reweight_w == 1.05 and base.control_of(both).schedule == "gate"


def test_a_run_that_is_set_otherwise_has_a_folder_of_its_own():
    sets = [{}, {"BASELINE": "1"}, {"BASELINE": "1", "UPDATES": "4"}, {"SCHEDULE": "pi"}, {"SCHEDULE": "adaptive"}]
    sets += [{"METHOD": "kl_cov"}, {"METHOD": "kl_cov", "UPDATES": "2"}, {"TARGET_ENTROPY": "50%"}, {"LR": "2e-6"}]
    sets += [{"MODEL": "Qwen/Qwen3-8B"}, {"MODEL": "models/one"}, {"MODEL": "other/one"}, {"SAMPLES": "16"}]
    sets += [{"DATA": "/a/train.jsonl"}, {"DATA": "/b/train.jsonl"}, {"REWARD": "http://me:SECRET@node:1?key=SECRET"}]
    sets += [{"IS_CORRECTION": "off"}, {"REWEIGHT_W": "1.3"}, {"REWEIGHT_M": "0.8"}, {"PROMPTS": "128"}]
    sets += [{"PROMPT_TOKENS": "512"}, {"RESPONSE_TOKENS": "6144"}, {"CHAT_TEMPLATE": "0"}, {"AGENT": "/a/agent.py"}]
    folders = {arguments(recipe("short_cot_7b"), **variables).ckpt.path for variables in sets}
    assert len(folders) == len(sets)
    assert all(Path(folder).parents[1] == ROOT / "runs" and "SECRET" not in folder for folder in folders)
    assert arguments(recipe("short_cot_7b"), NODES="1", EPISODES="200").ckpt.path in folders  # it goes on
    assert f"{ROOT}/runs/short_cot_7b-stare/checkpoints" in folders
    for name in ("short_cot_14b", "tool_use_7b"):  # its own values are not set otherwise
        assert arguments(recipe(name)).ckpt.path == f"{ROOT}/runs/{name}-stare/checkpoints"


def test_a_key_is_not_printed_with_the_command():
    words = command(recipe("short_cot_7b"), "--logger.wandb.key", "f00", "--actor.fused_head")
    assert words[-3:] == ["--logger.wandb.key", "KEY", "--actor.fused_head"]


@by_name
def test_letters_in_the_environment_change_nothing(recipe):
    # Somebody's W=2 or P=1 is not meant for us.
    assert command(recipe, **dict.fromkeys(string.ascii_uppercase, "2")) == command(recipe)


def test_a_cluster_of_another_size():
    args = arguments(recipe("short_cot_7b"), NODES="1", GPUS_PER_NODE="4", TENSOR_PARALLEL="2")
    assert args.vllm.num_engines == 2 and resources.required(args).gpus == 4
    args = arguments(recipe("short_cot_7b"), NODES="1", GPUS_PER_NODE="4", COLOCATE="0", ENGINES="2")
    assert resources.required(args).gpus == 6


@by_name
def test_a_dry_run_of_the_preflight_passes_with_a_small_model_in_place(recipe, tiny_task, monkeypatch, capsys):
    words = command(recipe, "--preflight", "--dry-run", **tiny_task)
    monkeypatch.setattr(sys, "argv", words[2:])
    status = train_ray.run()
    table = capsys.readouterr().out
    assert status == 0, table
    assert "the job needs 16 GPUs and 17 CPUs" in table and "preflight: ready" in table
