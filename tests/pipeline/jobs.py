"""Starts real training jobs in processes of their own, and sees to it that nothing of them is left."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[2]
# What a job with a method logs, and what STARE adds to it; under C2 its other strength too.
CONTROL_FIGURES = {
    "entropy/mean",
    "entropy/target",
    "entropy/gate_on",
    "entropy/effort",
    "entropy/authority",
    "entropy/nonfinite_tokens",
    "entropy/zero_variance_groups",
    "entropy/seconds",
}
FIGURES = CONTROL_FIGURES | {
    "stare/reweight_w",
    "stare/tau_positive",
    "stare/tau_negative",
    "stare/positive_candidate_ratio",
    "stare/negative_candidate_ratio",
    "stare/positive_reweight_ratio",
    "stare/negative_reweight_ratio",
    "stare/mean_weight",
}
# DeepSpeed's grad norm for two groups whose norms it could not compute: the sign of the race in ZeRO-3's gather.
PLACEHOLDER_GRAD_NORM = math.sqrt(2)
# Bounds of |vllm_kl|: vLLM's log-probs of the tokens it sampled against the actor's. Stale weights in the engine show
# here, a single one in float32. Asynchronous generation samples with weights of a step or two before, and differed by
# up to 0.09; random weights, and so those of the embedding, the head or the first layer alone, by more than 3.
ON_POLICY_KL, BFLOAT16_KL, OFF_POLICY_KL = 1e-6, 0.01, 0.5
MARK = "STARE_TEST_JOB"  # inherited by every process of a job: Ray's daemons and workers, vLLM's processes
# On a running cluster they inherit the cluster's, and bear these titles.
OF_A_JOB = re.compile("ray::(Policy|Critic|Reference|Rollout|Stare|PPO|Training|GenerateSamples|VLLMLock)|VLLM::")


@dataclass
class Cluster:
    """A running Ray."""

    address: str  # for jobs that join it
    jobs: str  # for jobs that are submitted to it
    mark: str


@dataclass
class Job:
    status: int
    output: str
    seconds: float
    left_over: list[str]  # command lines of processes that outlived the job
    scalars: dict[str, list[float]]  # TensorBoard tag, less its `train/`, -> one value per step

    def last(self, tag: str) -> float:
        return self.scalars[tag][-1]

    @property
    def rollouts(self) -> list[dict[str, float]]:
        """The control's figures and STARE's, a set for each rollout."""
        tags = [tag for tag in self.scalars if tag.startswith(("entropy/", "stare/"))]
        rows = zip(*(self.scalars[tag] for tag in tags), strict=True)
        return [dict(zip(tags, row, strict=True)) for row in rows]


def job_flags(model: Path, run: Path, *, prompts: int = 4, samples: int = 8, micro_batch: int = 16) -> list[str]:
    """A small job on the addends task: 2 actor ranks, ZeRO-3, 1 engine, `prompts` × `samples` responses a step."""
    return f"""--actor.num_gpus_per_node 2 --vllm.num_engines 1 --ds.zero_stage 3 --ds.param_dtype bf16
        --actor.model_name_or_path {model}/model --data.prompt_dataset {model}/prompts.jsonl --data.input_key input
        --data.label_key label --data.max_len 32 --reward.remote_url {ROOT}/launch/addends/reward.py
        --rollout.batch_size {prompts} --rollout.n_samples_per_prompt {samples} --rollout.max_new_tokens 8
        --rollout.min_new_tokens 0
        --rollout.micro_batch_size {micro_batch} --train.batch_size {prompts * samples}
        --train.micro_batch_size {micro_batch} --advantage_estimator group_norm --algo.kl.init_coef 0
        --algo.advantage.is_correction_level token --actor.adam.lr 3e-4 --actor.lr_scheduler constant
        --actor.lr_warmup_ratio 0 --entropy.target 0.9 --logger.tensorboard_dir {run}/tensorboard
        --logger.wandb.run_name run --ckpt.path {run}/checkpoints --ckpt.output_dir {run}/model""".split()


def run_job(
    flags: list[str],
    run: Path,
    *,
    timeout: float = 240,
    env: dict | None = None,
    command=None,
    cluster: Cluster | None = None,
    meanwhile: Callable[[subprocess.Popen, str], None] | None = None,
) -> Job:
    """Run `train_ray` with the flags, on its own Ray or the cluster; after `timeout` seconds all of it is killed and
    the status is 124.

    `meanwhile(process, mark)`, with the mark that the job's workers bear, is called once the job is on its way; the
    seconds that it takes do not count as timeout.
    """
    mark = uuid.uuid4().hex
    command = command or [sys.executable, "-m", "openrlhf_stare.train_ray"]
    address = cluster.address if cluster else "local"
    environment = {**os.environ, "RAY_ADDRESS": address, "HF_HUB_OFFLINE": "1", **marked(mark), **(env or {})}
    log = run / "output.log"
    run.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    status = 124
    with open(log, "w") as stream:
        process = subprocess.Popen(
            [*command, *flags], cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        if meanwhile:
            meanwhile(process, cluster.mark if cluster else mark)
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:  # after a failure in `meanwhile` too
        seconds = time.monotonic() - start
        # A worker that Ray was starting when its raylet died tries to connect for some 15 seconds.
        left_over = end_processes(mark, grace=0 if status == 124 else 30)
        if cluster:
            left_over += end_processes(cluster.mark, grace=30, titles=OF_A_JOB)
        process.wait()
    return Job(status, log.read_text(errors="replace"), seconds, left_over, read_scalars(run / "tensorboard"))


def problems(job: Job, steps: int, vllm_kl: float | None = ON_POLICY_KL) -> list[str]:
    """What is wrong with a job that should have trained for `steps` steps: a sentence each.

    `vllm_kl` bounds the figure of that name; None: OpenRLHF does not log it (under gspo).
    """
    found = []
    if job.status:
        found.append("it hung" if job.status == 124 else f"it ended with status {job.status}")
    if job.left_over:
        found.append(f"it left {len(job.left_over)} processes: {job.left_over[0][:80]}")
    norms = job.scalars.get("actor_grad_norm", [])
    if len(norms) != steps:
        found.append(f"it logged {len(norms)} steps, not {steps}")
    if any(abs(norm - PLACEHOLDER_GRAD_NORM) < 1e-6 for norm in norms):
        found.append("it logged DeepSpeed's placeholder for a grad norm")
    for tag, values in job.scalars.items():
        # An empty set of candidates has the threshold +inf.
        if not all(math.isfinite(value) for value in values) and not tag.startswith("stare/tau"):
            found.append(f"it logged {tag} as {values}")
    if vllm_kl and not all(abs(value) < vllm_kl for value in job.scalars.get("vllm_kl", [math.nan])):
        found.append(f"vLLM does not have the actor's weights: vllm_kl {job.scalars.get('vllm_kl')}")
    return found


def assert_sound(job: Job, steps: int, vllm_kl: float | None = ON_POLICY_KL) -> None:
    found = problems(job, steps, vllm_kl)
    assert not found, "; ".join(found) + "\n" + job.output[-4000:]


def assert_figures(job: Job, rollouts: int, variant: str = "O1", top_p_ratio: float = 0.1) -> None:
    """Every rollout logged STARE's figures once, and they agree with one another."""
    assert len(job.rollouts) == rollouts
    for figures in job.rollouts:
        assert figures.keys() == (FIGURES | {"stare/reweight_m"} if variant == "C2" else FIGURES)
        assert 0 < figures["entropy/mean"] < math.log(16)  # of 16 tokens
        assert figures["entropy/nonfinite_tokens"] == 0 and figures["entropy/seconds"] > 0
        assert figures["entropy/gate_on"] == (figures["entropy/mean"] < figures["entropy/target"])
        assert 0 <= figures["entropy/effort"] <= 1 and (figures["entropy/gate_on"] or figures["entropy/effort"] == 0)

        weights = {"positive": figures["stare/reweight_w"], "negative": figures.get("stare/reweight_m", 1.0)}
        mean_weight = 1.0
        for sign, weight in weights.items():
            candidates = figures[f"stare/{sign}_candidate_ratio"]
            critical = figures[f"stare/{sign}_reweight_ratio"]
            assert 0 < candidates < 1 and figures[f"stare/tau_{sign}"] > 0
            if figures["entropy/gate_on"] and weight != 1:
                # The k of n candidates, and what rounding k up and ties with the k-th add to them.
                assert top_p_ratio * candidates - 1e-6 <= critical <= top_p_ratio * candidates + 0.03
            else:
                assert critical == 0
            mean_weight += (weight - 1) * critical
        authority = figures["stare/positive_candidate_ratio"] + figures["stare/negative_candidate_ratio"]
        assert abs(figures["entropy/authority"] - authority) < 1e-6 and authority <= 1 + 1e-6
        assert abs(figures["stare/mean_weight"] - mean_weight) < 1e-5


def marked(mark: str) -> dict[str, str]:
    """The environment by which a job's processes are found again.

    With SPT_NOENV none writes its title over it: Ray's agents would lose the mark otherwise, in every second job.
    """
    return {MARK: mark, "SPT_NOENV": "1"}


def marked_processes(mark: str, titles: re.Pattern = re.compile("")) -> dict[int, str]:
    """The living processes that inherited the mark: id -> command line."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command and titles.match(command):  # a zombie has none
                    found[int(folder.name)] = command
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def end_processes(mark: str, grace: float, titles: re.Pattern = re.compile("")) -> list[str]:
    """Wait `grace` seconds for the marked processes, or those with a title, to end; kill the rest, and return their
    command lines."""
    deadline = time.monotonic() + grace
    while (alive := marked_processes(mark, titles)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return list(alive.values())


def cut_short(checkpoint: Path) -> None:
    """As after a crash: the last byte of a rank's optimizer states is missing."""
    file = sorted(checkpoint.glob("*optim_states.pt"))[-1]
    os.truncate(file, file.stat().st_size - 1)


def read_scalars(folder: Path) -> dict[str, list[float]]:
    scalars: dict[str, list[float]] = {}
    for events in sorted(folder.rglob("events.out.*")):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            values = [event.value for event in accumulator.Scalars(tag)]
            scalars.setdefault(tag.removeprefix("train/"), []).extend(values)
    return scalars
