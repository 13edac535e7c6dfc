"""The compact console, fed with what a job of three steps wrote (`console_output.log`, shortened)."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_stare.driver.progress import Progress, describe, step_figures
from openrlhf_stare.notices import notice

ROOT = Path(__file__).resolve().parents[3]
RECORDED = Path(__file__).with_name("console_output.log")
LINES = RECORDED.read_bytes().decode().split("\n")
STEPS = [line for line in LINES if "Global step" in line]
LOGGED = "(TrainingActor pid=7, ip=10.0.0.1) INFO 11-22 14:39:39 ppo_trainer_async.py:217] Global step "
BARS = [line for line in LINES if "Episode [1/1]" in line]
COMMAND = f"""
import ctypes, os, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
from openrlhf_stare.driver import console

args = SimpleNamespace(
    policy_loss=sys.argv[2],
    ckpt=SimpleNamespace(path=sys.argv[1]),
    rollout=SimpleNamespace(batch_size=16, n_samples_per_prompt=8),
    train=SimpleNamespace(batch_size=128, max_epochs=1),
    actor=SimpleNamespace(eps_clip=0.2, eps_clip_low_high=None, policy_loss_type="ppo"),
    algo=SimpleNamespace(dynamic_filtering_enable=False, advantage=SimpleNamespace(is_correction_level="off")),
)

def replay():
    os.write(1, Path({str(RECORDED)!r}).read_bytes())

with console.opened(sys.argv[3:]):
    print("imported")
"""


class Run:
    """The body under `console.opened`, as a process whose output goes to pipes, or to a terminal of some columns."""

    def __init__(
        self, body: str, folder: Path, *, columns=0, flags=("--console", "compact"), before="", policy_loss="openrlhf"
    ):
        """`openrlhf` has no strength to show, so that torch is not imported."""
        body = "".join(f"    {line}\n" for line in body.strip().splitlines())
        command = [sys.executable, "-c", before + COMMAND + body, str(folder), policy_loss, *flags]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
        if columns:
            ours, theirs = pty.openpty()
            process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment)
            os.close(theirs)
            shown = b""
            while chunk := self._read(ours):
                shown += chunk
            os.close(ours)
            self.status, self.out, self.err = process.wait(60), shown.decode(), ""
        else:
            done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, timeout=60)
            self.status, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()
        path = folder / "output.log"
        self.file = path.read_bytes().decode() if path.exists() else None

    @staticmethod
    def _read(descriptor: int) -> bytes:
        try:
            return os.read(descriptor, 4096)
        except OSError:  # the other side was closed
            return b""


# What a line says


def test_the_figures_of_a_step():
    step, figures = step_figures(STEPS[0])
    assert step == 1 and len(figures) == 43
    assert figures["rollout/reward_mean"] == 0.3671875 and figures["entropy/mean"] == 0.9334095683527514
    assert figures["return"] == 6.05359673500061e-09
    assert step_figures(LINES[0]) is None
    step, figures = step_figures(f"{LOGGED}12: {{'a': nan, 'b': -inf, 'c': np.float64(1e-05), 'd': 3, 'e': True}}")
    assert step == 12 and figures.pop("a") != 0 and figures == {"b": float("-inf"), "c": 1e-5, "d": 3}


@pytest.mark.parametrize(
    "line",
    [
        "Global step 999: {'reward': 99.0}",
        "(RolloutRayActor pid=7) Global step 999: {'reward': 99.0}",
        f"(RolloutRayActor pid=7) {STEPS[0]}",
        "(PPOTrainer pid=7) INFO 11-22 14:39:39 ppo_trainer.py:224] Sample: ['Global step 9: {\\'a\\': 1.0}', 1.0]",
        f"{LOGGED}{400 * '9'}: {{'a': 1.0}}",
    ],
)
def test_only_the_trainer_s_own_line_is_a_step(line):
    assert step_figures(line) is None


def test_a_figure_that_is_no_number_is_left_out():
    assert step_figures(f"{LOGGED}2: {{'a': 1.2.3, 'b': 2.0}}") == (2, {"b": 2.0})


def test_the_total_comes_from_the_bar_over_the_prompts():
    progress = Progress(prompts_per_step=16, varying=False)
    assert not progress.count_prompts(STEPS[0]) and progress.total is None
    assert progress.count_prompts(BARS[0]) and progress.total == 3
    progress.count_prompts(BARS[0].replace("[1/1]", "[2/5]"))
    assert progress.total == 15
    progress.count_prompts("Episode [1/1]:  10%|█         | 5/50 [00:01<00:02, 13.97it/s]")
    assert progress.total == 4


def test_with_dynamic_filtering_the_total_comes_from_the_prompts_that_the_steps_took():
    progress = Progress(prompts_per_step=16, varying=True)
    progress.count_prompts(BARS[0])
    assert progress.total is None
    progress.advance(2, now=0.0)
    progress.count_prompts(BARS[1])  # 16 of 48 prompts
    assert progress.total == 6


def test_seconds_and_time_left_are_those_of_the_last_twenty_steps():
    progress = Progress(prompts_per_step=16, varying=False, total=100)
    progress.advance(1, now=0.0)
    assert describe(progress, {}) == "step   1/100"
    for step in range(2, 41):
        progress.advance(step, now=1000.0 + 0.5 * step)
    figures = {"rollout/reward_mean": 0.25, "entropy/mean": 0.5, "entropy/target": 0.4}
    figures |= {"stare/reweight_w": 12.5, "stare/reweight_m": 0.9}
    start, end = "step  40/100  00:30 left  reward 0.250  entropy 0.500/0.400  ", "  0.50 s/step"
    assert describe(progress, figures, "stare/reweight_w") == start.rstrip() + end  # no gate was logged
    shut, opened = figures | {"entropy/gate_on": 0.0}, figures | {"entropy/gate_on": 1.0}
    assert describe(progress, shut, "stare/reweight_w") == f"{start}gate shut{end}"
    shown = describe(progress, opened, "stare/reweight_w")
    assert shown == f"{start}reweight_w 12.500{end}"
    assert len(shown.removesuffix(end)) <= 80
    assert describe(progress, opened, "kl_cov/coefficient") == f"{start}gate open{end}"  # which was not logged
    assert describe(progress, opened) == f"{start}gate open{end}"  # a method without a strength
    assert describe(progress, opened | {"entropy/authority": 0.2}) == f"{start}gate open{end}"
    assert describe(progress, opened | {"entropy/authority": 0.194}) == f"{start}gate open  authority 19 %{end}"


@pytest.mark.parametrize("total, count", [(3, 3), (20, 20), (47, 20), (1000, 20), (None, 100)])
def test_a_line_for_each_twentieth_of_the_run(total, count):
    progress = Progress(prompts_per_step=16, varying=False, total=total)
    shown = []
    for step in range(1, (total or 1000) + 1):
        progress.advance(step, now=float(step))
        shown += [step] * progress.starts_a_twentieth()
    assert len(shown) == count and shown[-1] == (total or 1000)


# A job that ends well


def test_a_job_in_a_pipe(tmp_path):
    job = Run("console.start_job(args)\nconsole.end_phase('Ray')\nreplay()", tmp_path, policy_loss="stare")
    assert job.status == 0 and job.err == ""
    checks, path, ray, *rest = job.out.splitlines()
    assert re.fullmatch(r"checks +\d+ s", checks) and re.fullmatch(r"Ray +\d+ s", ray)
    assert path == f"complete output: {tmp_path / 'output.log'}"
    engines, models, first_step, one, left_out, two, three, verdict, done = rest
    assert [line.split()[0] for line in (engines, models, first_step)] == ["engines", "models", "first"]
    assert one == "step 1/3  reward 0.367  entropy 0.933/0.400  gate shut"
    # The same sentence with other numbers came twice more.
    assert left_out.startswith("openrlhf-stare: 8 of 128 responses are left out of training")
    assert two.startswith("step 2/3") and three.startswith("step 3/3  00:00 left  reward 0.398")
    assert re.fullmatch(r"done in 0:00:\d\d; complete output: .*output.log", done)
    header, early, rest = job.file.split("\n", 2)
    assert header.startswith("── started") and early == "imported" and rest == RECORDED.read_bytes().decode()


def test_what_is_told_twice_stands_at_the_end_too(tmp_path):
    job = Run("console.start_job(args)\nconsole.tell_twice('no checkpoint in x')\nreplay()", tmp_path)
    assert job.status == 0
    assert [line for line in job.out.splitlines() if "no checkpoint" in line] == [
        "openrlhf-stare: no checkpoint in x",
        "no checkpoint in x",
    ]
    assert job.out.splitlines()[-2].startswith("done in") and "openrlhf-stare: no checkpoint in x" in job.file


def test_a_line_of_ours_is_shown_whole_and_an_error_of_others_is_cut(tmp_path):
    job = Run(
        """
console.start_job(args)
print("(StarePolicyActor pid=7) openrlhf-stare: " + "flag, " * 200 + "the end")
print("(RolloutRayActor pid=8) ERROR 11-28 09:00:00 [core.py:1] " + "word, " * 200 + "the last")
""",
        tmp_path,
    )
    assert "the end" in job.out and "word," in job.out and "the last" not in job.out and "the last" in job.file


def test_only_the_first_errors_of_others_are_shown(tmp_path):
    body = """
console.start_job(args)
for number in range(9):
    print(f"(RolloutRayActor pid=8) ERROR 11-28 09:00:00 [core.py:1] number {number}")
"""
    job = Run(body, tmp_path)
    assert [line[-1] for line in job.out.splitlines() if "number" in line] == list("01234")
    assert job.file.count("number") == 9


@pytest.mark.parametrize(
    "flags", [("--console=compact",), ("--consol", "compact"), ("--console=full", "--con=compact")]
)
def test_the_flag_can_be_written_as_argparse_takes_it(tmp_path, flags):
    assert "complete output" in Run("console.start_job(args)", tmp_path, flags=flags).out


@pytest.mark.parametrize("columns, end", [(200, "s/step"), (60, "entropy 0.834/0.400")])
def test_a_job_on_a_terminal_rewrites_its_last_line(tmp_path, columns, end):
    job = Run("console.start_job(args)\nreplay()\ntime.sleep(1)", tmp_path, columns=columns)
    assert job.status == 0
    assert "\x1b[2K" in job.out  # a line is erased, to be written again
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", job.out).replace("\r\n", "\n").split("\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in shown]
    assert lines[-2].startswith("done in") and lines[-4].startswith("step 3/3") and lines[-4].endswith(end)
    assert not [line for line in lines if line.startswith(("step 1", "step 2"))]
    assert job.out.rfind("\x1b[?25h") > job.out.rfind("\x1b[?25l")  # the cursor is shown


def test_what_native_code_and_child_processes_write_is_in_the_file(tmp_path):
    body = """
console.start_job(args)
ctypes.CDLL(None).printf(b"from C\\n")
subprocess.run(["sh", "-c", "echo from a child; echo its error >&2"])
print("from Python", file=sys.stderr)
"""
    job = Run(body, tmp_path)
    assert "from" not in job.out and "error" not in job.out and job.err == ""
    for text in ("from C", "from a child", "its error", "from Python"):
        assert f"{text}\n" in job.file


def test_a_resumed_job_goes_on_in_the_same_file(tmp_path):
    for _ in range(2):
        job = Run("console.start_job(args)\nreplay()", tmp_path)
    assert job.file.count("── started") == 2 and job.file.count("Global step 3:") == 2
    assert job.out.count("step 3/3") == 1


def test_the_verdict_of_a_resumed_job_is_on_the_steps_of_the_whole_run(tmp_path):
    def print_steps(steps: range, entropy: float) -> str:
        figures = f"{{'entropy/mean': {entropy}, 'entropy/target': 0.4, 'entropy/gate_on': 1.0}}"
        lines = [f"{LOGGED}{step}: {figures}" for step in steps]
        return "".join(f"print({line!r})\n" for line in lines)

    for steps, entropy in ((range(1, 11), 0.4), (range(9, 13), 0.8)):  # from the checkpoint of step 8
        job = Run(f"console.start_job(args)\n{print_steps(steps, entropy)}", tmp_path, policy_loss="stare")
    assert "entropy 0.667 nats, target 0.400, over the second half of the steps, 33 % of them" in job.out
    anew = Run(f"console.start_job(args)\n{print_steps(range(1, 3), 0.4)}", tmp_path, policy_loss="stare")
    assert "entropy 0.400 nats, target 0.400, over the second half of the steps, 100 % of them" in anew.out


HOSTILE = [
    "(RolloutRayActor pid=7) Global step 2: {'a': 1.2.3}",
    f"(RolloutRayActor pid=7) Global step {400 * '9'}: {{'rollout/reward_mean': 1.0}}",
    "(RolloutRayActor pid=7) Global step 999: {'rollout/reward_mean': 99.0}",
    f"(RolloutRayActor pid=7) Episode [1/1]:  0%| | 0/{5000 * '9'} [00:00<?, ?it/s]",
    "(PPOTrainer pid=16862) Episode [1/1]:  0%|          | 0/0 [00:00<?, ?it/s]",
    f"(PPOTrainer pid=16862) Episode [1/1]:  0%|          | 0/{5000 * '9'} [00:00<?, ?it/s]",
    "(RolloutRayActor pid=7) \ufffd\x00\x1b[",
]


def test_a_text_that_looks_like_a_step_neither_ends_the_console_nor_is_shown(tmp_path):
    body = f"""
console.start_job(args)
for line in {HOSTILE!r}:
    print(line)
replay()
sys.exit("train_ray: error: the end")
"""
    job = Run(body, tmp_path)
    assert job.status == 1 and job.err.endswith("train_ray: error: the end\n")
    assert "step 3/3" in job.out and "99.0" not in job.out and "999" not in job.out


ACTS = "\x1b]0;title\x07\x1b]52;c;Y2xpcA==\x07\x9b31m\x90q\x9c\u202eback\u2066 \x1b[31mred\x1b[0m\x08"


@pytest.mark.parametrize("columns", [0, 200])
def test_no_control_sequence_of_a_text_reaches_the_terminal(tmp_path, columns):
    body = f"""
console.start_job(args)
print("(RolloutRayActor pid=7) openrlhf-stare: a prompt {ACTS}")
time.sleep(0.5)
sys.exit("train_ray: error: process 7 on 10.0.0.1 {ACTS}")
"""
    job = Run(body.replace("\x1b", "\\x1b"), tmp_path, columns=columns)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", job.out + job.err)  # the console's own
    assert "openrlhf-stare: a prompt ]0;title" in shown and "back red" in shown
    assert {character for character in shown if not character.isprintable()} <= set("\r\n")


def test_what_the_command_says_itself_is_printable(capsys):
    notice(f"a column {ACTS}")
    assert capsys.readouterr().err == "openrlhf-stare: a column ]0;title]52;c;Y2xpcA==31mqback red\n"


def test_the_file_is_its_owners_alone(tmp_path):
    (tmp_path / "output.log").write_text("of an older job\n")
    os.chmod(tmp_path / "output.log", 0o644)
    Run("console.start_job(args)", tmp_path)
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600
    Run("console.start_job(args)", tmp_path / "other", before="import os\nos.umask(0)\n")
    assert (tmp_path / "other/output.log").stat().st_mode & 0o777 == 0o600


# A job that fails


def test_an_actor_that_died_is_shown_with_its_last_lines(tmp_path):
    sentence = "train_ray: error: the trainer (PPOTrainer, process 16862 on 192.0.2.2) died: it was killed"
    job = Run(f"console.start_job(args)\nreplay()\nsys.exit({sentence!r})", tmp_path)
    assert job.status == 1
    head, *lines, path, error = job.err.splitlines()
    assert head == "the last lines of process 16862:" and len(lines) == 20
    assert lines[-1].endswith("Prompt dataloader is exhausted.") and "Global step 3:" in lines[-3]
    assert all(line.startswith("  ") and len(line) <= 302 for line in lines)
    assert path == f"complete output: {tmp_path / 'output.log'}" and error == sentence
    assert job.file.endswith(f"{sentence}\n")


def test_an_error_of_several_lines_is_shown_whole(tmp_path):
    sentence = "train_ray: error: an engine failed while loading: one\ntwo\nthree"
    job = Run(f"console.start_job(args)\nsys.exit({sentence!r})", tmp_path)
    assert job.status == 1 and job.err.endswith(f"\n{sentence}\n")


def test_an_exception_of_a_worker_names_the_process_that_raised_it(tmp_path):
    # As Ray writes it: the trainer waited for the actor.
    error = (
        "ray::PPOTrainer.fit() (pid=16862, ip=192.0.2.2)\n  File ...\n"
        "ray.exceptions.RayTaskError(ValueError): ray::PolicyModelActor.fit() (pid=16477, ip=192.0.2.2)\n"
        "  File policy_actor.py, line 90, in fit\n    ^^^^\nValueError: the loss is odd"
    )
    job = Run(f"console.start_job(args)\nreplay()\nraise RuntimeError({error!r})", tmp_path)
    assert job.status == 1
    lines = job.err.splitlines()
    assert lines[0] == "the last lines of process 16477:"
    assert "  File policy_actor.py, line 90, in fit" in lines and "^^^^" not in job.err
    assert lines[-1] == "train_ray: error: ValueError: the loss is odd"
    assert "Traceback (most recent call last)" in job.file


def test_bad_flags_are_answered_as_on_the_full_console(tmp_path):
    job = Run("print('train_ray: error: --x 1 is odd: give 2', file=sys.stderr)\nsys.exit(2)", tmp_path)
    assert job.status == 2 and job.file is None
    assert job.out == "imported\ntrain_ray: error: --x 1 is odd: give 2\n"


def test_an_error_with_status_2_after_the_start_is_shown(tmp_path):
    body = "console.start_job(args)\nprint('train_ray: error: too few GPUs', file=sys.stderr)\nsys.exit(2)"
    job = Run(body, tmp_path)
    assert job.status == 2 and job.err.splitlines()[-1] == "train_ray: error: too few GPUs"


def test_help_is_shown_whole(tmp_path):
    job = Run("print('usage: ' + 2000 * 'x')\nsys.exit(0)", tmp_path)
    assert job.status == 0 and job.out == f"imported\nusage: {2000 * 'x'}\n"


def test_an_exception_before_the_start_has_its_traceback(tmp_path):
    job = Run("raise ValueError('odd')", tmp_path)
    assert job.status == 1 and job.err.startswith("Traceback") and job.err.endswith("ValueError: odd\n")


def test_ctrl_c_ends_with_its_own_status_and_one_line(tmp_path):
    # A job in the background of a script ignores Ctrl-C, and so do the tests' processes then.
    listens = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    job = Run("console.start_job(args)\nreplay()\nos.kill(os.getpid(), 2)\ntime.sleep(9)", tmp_path, before=listens)
    assert job.status == -signal.SIGINT
    assert job.err.splitlines()[-1] == "train_ray: interrupted" and "Traceback" not in job.err
    assert job.file.endswith("KeyboardInterrupt\n")


def test_a_driver_that_ends_at_once_says_why(tmp_path):
    job = Run("console.start_job(args)\nconsole.fail('train_ray: error: process 1 died')\nos._exit(1)", tmp_path)
    assert job.status == 1 and job.err.splitlines()[-1] == "train_ray: error: process 1 died"
    assert job.file.endswith("train_ray: error: process 1 died\n")


def test_a_killed_driver_leaves_everything_in_the_file(tmp_path):
    job = Run("console.start_job(args)\nprint('the last')\nos.kill(os.getpid(), 9)", tmp_path)
    assert job.status == -signal.SIGKILL and job.file.endswith("the last\n")


def disk_of(size: int) -> str:
    """A limit on the size of files is met as a full disk is: by a write that fails."""
    return f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"


@pytest.mark.parametrize("size", [300, 4096, 9001])  # full from the first line on, and within a step's
def test_a_full_disk_ends_no_job_and_costs_neither_a_figure_nor_the_verdict(tmp_path, size):
    body = f"""
console.start_job(args)
console.end_phase('Ray')
for line in Path({str(RECORDED)!r}).read_bytes().decode().split("\\n"): print(line)
"""
    whole = Run(body, tmp_path / "whole", policy_loss="stare").out.splitlines()
    job = Run(body, tmp_path / "full", policy_loss="stare", before=disk_of(size))
    file = tmp_path / "full/output.log"
    assert job.status == 0 and job.err == "" and file.stat().st_size == size
    told = f"openrlhf-stare: {file} cannot be written (File too large) and lacks lines from here on"
    shown = job.out.splitlines()
    assert shown.count(told) == 1
    shown.remove(told)
    assert shown[-1].endswith(f"; incomplete output, since not all could be written (File too large): {file}")
    same = [re.sub(r"\d+ s$|\S+ left|\S+ s/step", "", line) for line in shown[2:-1]]
    assert same == [re.sub(r"\d+ s$|\S+ left|\S+ s/step", "", line) for line in whole[2:-1]]
    assert "over the second half of the steps" in shown[-2]


def test_the_error_of_a_job_on_a_full_disk_is_shown(tmp_path):
    body = "console.start_job(args)\nprint(999 * 'x')\nprint('train_ray: error: odd', file=sys.stderr)\nsys.exit(143)"
    job = Run(body, tmp_path, before=disk_of(300))
    assert job.status == 143 and job.err == (
        f"incomplete output, since not all could be written (File too large): {tmp_path}/output.log\n"
        "train_ray: error: odd\n"
    )


def test_a_disk_that_is_full_from_the_start_is_told(tmp_path):
    job = Run("console.start_job(args)", tmp_path, before=disk_of(9))
    assert job.status == 1 and job.out == "imported\n"
    assert "UsageError: --ckpt.path" in job.err and "cannot be written (File too large): choose another" in job.err


def test_a_console_that_was_closed_ends_no_job(tmp_path):
    body = "console.start_job(args)\nreplay()\ntime.sleep(0.5)\nprint('the last')"
    command = [sys.executable, "-c", COMMAND + "".join(f"    {line}\n" for line in body.splitlines())]
    command += [str(tmp_path), "openrlhf", "--console", "compact"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as job:
        job.stdout.close()
    assert "the last\n" in (tmp_path / "output.log").read_text()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    job = Run("console.start_job(args)", tmp_path / "file" / "checkpoints")
    assert "UsageError: --ckpt.path" in job.err and "cannot be written" in job.err


@pytest.mark.parametrize("flags", [(), ("--console", "full"), ("--console=compact", "--console=full")])
def test_the_full_console_is_left_alone(tmp_path, flags):
    job = Run("console.start_job(args)\nconsole.end_phase('Ray')\nreplay()", tmp_path, flags=flags)
    assert job.file is None and job.out.replace("imported\n", "") == RECORDED.read_bytes().decode()


def test_the_last_lines_have_the_verdict(tmp_path):
    job = Run("console.start_job(args)\nconsole.end_phase('Ray')\nreplay()", tmp_path, policy_loss="stare")
    *_, verdict, done = job.out.splitlines()
    assert verdict.startswith("entropy 0.8") and ", target 0.400, over the second half of the steps, " in verdict
    assert done.startswith("done in ")
    without_target = Run("console.start_job(args)\nprint('x')", tmp_path / "other")
    assert "over the second half" not in without_target.out


@pytest.mark.parametrize("flags", [(), ("--console", "compact")])
def test_a_look_s_lines_are_shown_and_its_output_is_kept_for_its_owner_elsewhere(tmp_path, monkeypatch, flags):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    body = "console.start_look()\nconsole.end_phase('Ray')\nprint('of a worker')\nconsole.show('figure\\x07\\nGood')"
    job = Run(body, tmp_path / "run", flags=flags)
    assert job.status == 0 and "figure\nGood\n" in job.out and not (tmp_path / "run").exists()
    if not flags:
        assert "of a worker" in job.out
        return
    assert "of a worker" not in job.out and job.out.startswith("checks ")
    [file] = tmp_path.glob("openrlhf-stare-look-*.log")
    assert f"complete output: {file}\n" in job.out and file.stat().st_mode & 0o777 == 0o600
    assert "of a worker\nfigure\nGood\n" in file.read_text()
