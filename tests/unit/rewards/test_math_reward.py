"""The mathematics reward: what is right, and that no answer can hang, crash or outlive the job."""

import asyncio
import importlib.util
import math
import re
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from answer_pairs import PAIRS

from openrlhf_stare.rewards.workers import SECONDS_OVER, Workers

REWARD = Path(__file__).parents[3] / "openrlhf_stare" / "rewards" / "math_reward.py"
PROMPT = "What is it? Put the final answer within \\boxed{}.\n"
FOREVER = "\\boxed{9^{9^{9^{9}}}}"  # one integer power, which no signal handler of Python can interrupt


def load(seconds: float = 10.0):
    """The file as OpenRLHF loads it, by its path, with verifiers of its own."""
    spec = importlib.util.spec_from_file_location("reward_func", REWARD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SECONDS = seconds
    return module


@pytest.fixture(scope="module")
def math_reward():
    return load()


def reward(module, response: str, label: str) -> dict[str, float]:
    given = module.reward_func([PROMPT + response], [PROMPT], [label])
    assert given["rewards"].shape == given["scores"].shape == (1,)
    assert given["rewards"].item() == given["scores"].item()
    logs = {name: value.item() for name, value in given["extra_logs"].items()}
    assert logs.keys() == {"boxed", "verifier_failed"}
    return {"reward": given["rewards"].item(), **logs}


def verifiers(parent: int | None = None) -> list[psutil.Process]:
    children = psutil.Process(parent).children(recursive=True)
    children = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "math_worker.py" in " ".join(child.cmdline())]


# What is right


@pytest.mark.parametrize(
    "response, label",
    [
        ("so \\boxed{42}.<|im_end|>", "42"),
        ("so $\\boxed{\\dfrac{1}{2}}$", "0.5"),
        ("\\boxed{2\\sqrt{2}}", "\\sqrt{8}"),
        ("\\boxed{x^2 + 2x + 1}", "(x+1)^2"),
        ("\\boxed{3, 1}", "\\{1,3\\}"),
        ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}"),
        ("\\boxed{70}", "070"),
        ("\\boxed{12{,}345}", "12345"),
        ("\\boxed{4.5 \\cdot 10^{33}}", "4.5 \\times 10^{33}"),
        ("\\boxed{2, 3}", "$2$, $3$"),
        ("\\boxed{1}, no: \\boxed{2}", "2"),  # the last one counts
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{ \\{1\\} }", "\\{1\\}"),
    ],
)
def test_right_answers(math_reward, response, label):
    assert reward(math_reward, response, label) == {"reward": 1, "boxed": 1, "verifier_failed": 0}


@pytest.mark.parametrize(
    "response, label",
    [
        ("\\boxed{41}", "42"),
        ("\\boxed{2} or rather \\boxed{1}", "2"),
        ("\\boxed{1, 2, 3, 4, 5}", "5"),  # no reward for a list that holds the answer
        ("\\boxed{5 \\text{ or } 6}", "5"),
        ("\\boxed{the answer is 5, or not}", "5"),
        ("\\boxed{1} and \\boxed{}", "1"),
        ("\\boxed{(2,1)}", "(1,2)"),
        ("\\boxed{\\frac{1}{}", "1"),
        ("\\boxed{\\frac}", "1"),
        ("\\boxed{\\left( 1}", "1"),
        ("\\boxed{]$\\$^_&%#}", "1"),
        ("\\boxed{\\begin{pmatrix}}", "1"),
        ("\\boxed{1/0}", "1"),
        ("\\boxed{\x00\ud800}", "1"),
        ("\\boxed{__import__('os').abort()}", "1"),
    ],
)
def test_wrong_answers_and_what_cannot_be_parsed(math_reward, response, label):
    given = reward(math_reward, response, label)
    assert given["reward"] == 0 and given["verifier_failed"] == 0


@pytest.mark.parametrize(
    "response", ["", "42", "$42$", "\\boxed{}", "\\boxed{ }", "\\boxed{42", "\\boxed 42", "\\boxed"]
)
def test_without_an_answer_in_a_box(math_reward, response):
    assert reward(math_reward, response, "42") == {"reward": 0, "boxed": 0, "verifier_failed": 0}


@pytest.mark.parametrize("kind", PAIRS)
def test_the_table_of_answers(math_reward, kind):
    found = [
        (label, answer, right)
        for label, *answers in PAIRS[kind]
        for right, group in zip((True, False), answers, strict=True)
        for answer in group
        if reward(math_reward, f"\\boxed{{{answer}}}", label) != {"reward": right, "boxed": 1, "verifier_failed": 0}
    ]
    assert found == []


CONSTANTS = r"""
\frac{1.5}{0} | 0.0/0 | 0.5\cdot\infty | 1.0^{\infty} | \infty | -\infty | \frac{x}{0} | \infty:\infty | \infty^\circ
(\infty, \infty) | \{\infty\} | \emptyset | \mathbb{R} | x=x | 0=0 | x | \text{or} | nan | \pm\infty | \frac{1.5}{0}\%
\tan\frac{\pi}{2} | \text{ cm} | 1, 2, 3, 4, 5, 6, 7, 8, 9 | ? | \frac{1.5}{0}i | 0.0 \cdot \infty | 0:0 | 0.0:0
"""


def test_no_constant_wins_more_labels_than_it_equals(math_reward):
    """The labels are those of the table, each once, of which a constant may have the one that it is a writing of."""
    rows = [row for kind in PAIRS for row in PAIRS[kind]]
    labels = list(dict.fromkeys(label for label, *_ in rows))[::4]
    constants = [text.strip() for text in re.split(r"[|\n]", CONSTANTS) if text.strip()]
    assert len(labels) >= 100 and len(constants) == 28
    equal = {(label, answer) for label, answers, _ in rows for answer in answers}
    pairs = [
        (label, answer) for answer in constants for label in labels if label != answer and (label, answer) not in equal
    ]
    with ThreadPoolExecutor(2) as threads:
        given = list(threads.map(lambda pair: reward(math_reward, f"\\boxed{{{pair[1]}}}", pair[0]), pairs))
    won = [pair for pair, info in zip(pairs, given, strict=True) if info["reward"]]
    assert won == []


def test_the_table_is_long_enough_and_both_verdicts_are_in_it():
    right = [(label, answer) for rows in PAIRS.values() for label, answers, _ in rows for answer in answers]
    wrong = [(label, answer) for rows in PAIRS.values() for label, _, answers in rows for answer in answers]
    assert len(right) >= 1200 and len(wrong) >= 900
    assert len(right + wrong) == len(set(right + wrong))
    # In some pairs the order matters: "5" is right where "5\\%" is asked for, and not the other way round.
    assert len([pair for pair in right if pair[::-1] in wrong]) >= 3


# Which part of a query is the response

FILLED = "Put the answer within \\boxed{}. Example: 2 + 5 is \\boxed{7}. Now you: what is 3 + 4?\n"


@pytest.mark.parametrize("head", ["", "<s>", "<s> "], ids=repr)
@pytest.mark.parametrize("cut", [0, 5, 25], ids="cut {}".format)
@pytest.mark.parametrize("response, given", [("so 7", (0, 0)), ("so \\boxed{7}", (1, 1)), ("\\boxed{8}", (0, 1))])
def test_a_box_in_the_prompt_is_no_answer(math_reward, head, cut, response, given):
    query = head + FILLED[cut:] + response
    found = math_reward.reward_func([query], [FILLED], ["7"])
    assert (found["rewards"].item(), found["extra_logs"]["boxed"].item()) == given


@pytest.mark.parametrize("response, given", [("so 7", (0, 0)), ("so \\boxed{7}", (1, 1))])
def test_a_prompt_that_decodes_to_another_text_is_known_by_its_end(math_reward, response, given):
    found = math_reward.reward_func([FILLED.replace("the answer", " the answer") + response], [FILLED], ["7"])
    assert (found["rewards"].item(), found["extra_logs"]["boxed"].item()) == given


def test_the_end_of_a_prompt_is_not_taken_for_that_of_its_examples(math_reward):
    ask = " Put a box around the final answer.\n"
    prompt = f"3 + 4?{ask}\\boxed{{7}}\n2 + 5?{ask}"
    for response, right in (("so 7", 0), ("so \\boxed{7}", 1)):  # the prompt's last box is right
        found = math_reward.reward_func([prompt[4:].replace("2 +", "2+") + response], [prompt], ["7"])
        assert found["rewards"].item() == right


def test_where_the_prompt_is_not_found_there_is_no_answer(math_reward):
    query = "Now you: what's 3 + 4? Within \\boxed{7}!\n\\boxed{7}"
    for prompt in (FILLED, "12="):
        found = math_reward.reward_func([query], [prompt], ["7"])
        assert found["rewards"].item() == found["extra_logs"]["boxed"].item() == 0


PROGRAM = "```python\nprint(3 + 4)  # \\boxed{7}\n```\n"
OUTPUT = "```output\n\\boxed{7}\n```\n"


@pytest.mark.parametrize(
    "response, given",
    [
        (PROGRAM, (0, 0)),
        (OUTPUT, (0, 0)),
        (PROGRAM + OUTPUT, (0, 0)),
        (PROGRAM + OUTPUT + "So it is \\boxed{7}.", (1, 1)),
        ("It is \\boxed{7}.\n" + PROGRAM.replace("7", "8") + OUTPUT.replace("7", "8"), (1, 1)),
        ("\\boxed{8}\n" + PROGRAM + OUTPUT, (0, 1)),
        (PROGRAM + "```output\n\\boxed{7}", (0, 0)),  # cut off at the longest length
        ("```python\n# \\boxed{7}", (0, 0)),
        ("``` " + PROGRAM + OUTPUT, (0, 0)),
        ("```python\n" + PROGRAM + OUTPUT, (0, 0)),
        ("```output\n```\n" + PROGRAM + OUTPUT, (0, 0)),
        ("```output\nx " + PROGRAM + OUTPUT, (0, 0)),
        ("```c++\n// \\boxed{7}\n```\n", (0, 0)),
        ("```\n\\boxed{7}\n```\n", (1, 1)),  # in a block that is not said to be code
        ("```json\n{}\n```\n\\boxed{7}", (1, 1)),
        ("1. Compute:\n   ```python\n   print(3 + 4)  # \\boxed{8}\n   ```\n\nIt is \\boxed{7}.", (1, 1)),
        ("1. Compute:\n   ```python\n   # \\boxed{7}\n   ```\n", (0, 0)),
    ],
)
def test_a_box_in_code_or_in_a_tool_s_output_is_no_answer(math_reward, response, given):
    found = math_reward.reward_func([PROMPT + response], [PROMPT], ["7"])
    assert (found["rewards"].item(), found["extra_logs"]["boxed"].item()) == given


@pytest.mark.parametrize("label", [None, math.nan, "", " ", "nan", "NaN"], ids=repr)
def test_a_missing_label_gives_no_reward(math_reward, label):
    answers = [str(label), "nan", "None", "7"]
    queries = [PROMPT + (f"\\boxed{{{answer}}}" if answer.strip() else "") for answer in answers]
    given = math_reward.reward_func(queries, [PROMPT] * 4, [label] * 4)
    assert given["rewards"].isnan().all() and given["scores"].tolist() == [0.0] * 4


def test_a_label_that_is_a_number_is_read(math_reward):
    assert reward(math_reward, "\\boxed{7}", 7) == {"reward": 1, "boxed": 1, "verifier_failed": 0}


def test_the_verifier_has_no_torch(math_reward):
    reward(math_reward, "\\boxed{0.5}", "1/2")
    (verifier, *_) = verifiers()
    assert "libtorch" not in Path(f"/proc/{verifier.pid}/maps").read_text()


# As OpenRLHF calls it


def test_openrlhf_scores_many_responses_at_once():
    """OpenRLHF's own executor: one response a call, each in a thread."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    executor = SingleTurnAgentExecutor(str(REWARD))

    async def score_all():
        calls = [
            executor._fetch_rewards_via_func([f"{PROMPT}\\boxed{{\\frac{{{n}}}{{4}}}}"], [PROMPT], [str(n // 2 / 2)])
            for n in range(400)
        ]
        return await asyncio.gather(*calls)

    rewards = [info["rewards"].item() for (info,) in asyncio.run(score_all())]
    assert rewards == [float(n % 2 == 0) for n in range(400)]


# What goes wrong with a verifier costs its answer only


def test_answers_that_never_end_cost_themselves_only():
    module, before = load(seconds=2.0), set(verifiers())
    answers = [FOREVER if n % 5 == 0 else f"\\boxed{{{n}.0}}" for n in range(30)]
    start = time.monotonic()
    with ThreadPoolExecutor(16) as threads:
        given = list(threads.map(lambda n: reward(module, answers[n], str(n)), range(30)))
    assert [info["verifier_failed"] for info in given] == [float(n % 5 == 0) for n in range(30)]
    assert [info["reward"] for info in given] == [float(n % 5 != 0) for n in range(30)]
    assert time.monotonic() - start < 60
    assert len(set(verifiers()) - before) <= module.WORKERS


@pytest.mark.parametrize(
    "answer",
    [
        "10^{10^{10}}",
        "(10^9)!",
        "\\sum_{n=1}^{10^{12}} \\frac{1}{n}",
        "{" * 5000 + "1" + "}" * 5000,
        "1+" * 50000 + "1",
    ],
    ids=["power", "factorial", "sum", "braces", "terms"],
)
def test_what_is_too_large_gets_nothing_in_time(answer):
    module = load(seconds=1.0)
    start = time.monotonic()
    assert reward(module, f"\\boxed{{{answer}}}", "1")["reward"] == 0
    assert time.monotonic() - start < 30
    assert reward(module, "\\boxed{0.5}", "1/2")["reward"] == 1


def test_a_verifier_that_dies_costs_its_answer_and_is_replaced(caplog):
    module = load(seconds=60.0)
    before = set(verifiers())
    assert reward(module, "\\boxed{0.5}", "1/2")["reward"] == 1
    (verifier,) = set(verifiers()) - before
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reward, module, FOREVER, "1")
        time.sleep(0.5)
        verifier.kill()
        assert waiting.result(timeout=30) == {"reward": 0, "boxed": 1, "verifier_failed": 1}
    assert "ended with status -9" in caplog.text
    assert reward(module, "\\boxed{0.5}", "1/2")["reward"] == 1

    (idle,) = set(verifiers()) - before
    idle.kill()
    idle.wait(10)
    assert reward(module, "\\boxed{0.5}", "1/2") == {"reward": 1, "boxed": 1, "verifier_failed": 0}


@pytest.mark.parametrize("busy", [False, True])
def test_a_verifier_that_is_stopped_is_not_waited_for(caplog, busy):
    module = load(seconds=4.0 if busy else 1.0)  # by which time a busy one would end itself
    before = set(verifiers())
    assert reward(module, "\\boxed{0.5}", "1/2")["reward"] == 1
    (verifier,) = set(verifiers()) - before
    if not busy:
        verifier.suspend()
    start = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reward, module, FOREVER, "1")
        if busy:
            time.sleep(0.3)
            verifier.suspend()
        assert waiting.result(timeout=30) == {"reward": 0, "boxed": 1, "verifier_failed": 1}
    assert time.monotonic() - start < module.SECONDS + SECONDS_OVER + 5
    assert "ended with status -9" in caplog.text
    assert reward(module, "\\boxed{0.5}", "1/2") == {"reward": 1, "boxed": 1, "verifier_failed": 0}


def test_a_verifier_that_is_stopped_cannot_be_asked_too_much():
    module = load(seconds=1.0)
    before = set(verifiers())
    assert reward(module, "\\boxed{0.5}", "1/2")["reward"] == 1
    (verifier,) = set(verifiers()) - before
    verifier.suspend()
    for length in (30_000, 60_000, 2_000_000):  # the first is asked, and costs the verifier its life
        assert reward(module, f"\\boxed{{{'1' * length}}}", "1")["reward"] == 0


def test_no_verifier_outlives_the_process_that_started_it():
    code = f"""
import importlib.util, threading
spec = importlib.util.spec_from_file_location("reward_func", {str(REWARD)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.SECONDS = 3.0
module.reward_func(["\\\\boxed{{0.5}}"], [""], ["1/2"])
for query in [{FOREVER!r}, "\\\\boxed{{0.5}}"]:
    threading.Thread(target=module.reward_func, args=([query], [""], ["1/2"])).start()
threading.Event().wait(1)
print("ready", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        left = verifiers(parent.pid)
        assert len(left) == 2  # one busy for ever, one idle
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_without_math_verify_the_reward_does_not_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "openrlhf-stare\[math\]"'):
        load()


def test_a_verifier_that_does_not_start_is_no_wrong_answer(tmp_path):
    """The reward function raises it, so the response has no reward and the user is told."""
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    verifiers = Workers(tmp_path / "broken.py", 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^broken\.py did not start \(status 3\)$"):
            verifiers.ask("[]", 1.0)


def test_a_verifier_for_which_the_machine_has_no_room_is_no_wrong_answer(tmp_path):
    (tmp_path / "script.py").write_text('print(1, flush=True)\nfor line in open(0): print(line, end="", flush=True)')
    verifiers = Workers(tmp_path / "script.py", 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(RuntimeError, match=r"^script\.py did not start \(.*Too many open files\)$"):
            verifiers.ask("[]", 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert verifiers.ask("[]", 1.0) == []  # once there is room
