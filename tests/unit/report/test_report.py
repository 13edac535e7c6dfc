"""The report of runs whose logs are made here: what is read and reckoned, and what page and picture show."""

import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from openrlhf_stare.report import figures, page, reading
from openrlhf_stare.report.__main__ import main
from openrlhf_stare.report.reading import read_run, read_runs

STEPS = range(1, 101)
HOSTILE = "</script><img src=x onerror=\"console.error('pwned')\">&amp;\n"
DAY = 1.7e9  # seconds since 1970


def log(folder: Path, values: dict[str, dict[int, float]], start: float = DAY, prefix: str = "train/") -> None:
    """TensorBoard logs as OpenRLHF writes them: tag -> step -> value, a second a step."""
    with SummaryWriter(str(folder)) as writer:
        for tag, series in values.items():
            for step, value in series.items():
                writer.add_scalar(prefix + tag, value, step, walltime=start + step)


def record(folder: Path, steps, start: float = DAY, name: str = "tokens.jsonl", **changes) -> None:
    """Three tokens a step: one of L+, one of L- and one of neither."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "a") as file:
        for step in steps:
            line = {
                "step": step,
                "time": start + step,
                "prompt": f"prompt {step}",
                "tokens": ["many", " words", " here"],
                "surprisal": [3.0, 2.0, 0.5],
                "advantage": [1.5, -0.5, 1.5],
                "omega": [1.1, 0.9, 1.0],
                "reward": 0.75,
                "tau_positive": 2.5,
                "tau_negative": 1.0,
            }
            file.write(json.dumps(line | changes) + "\n")


def settings(folder: Path, **changes) -> None:
    """What a run with STARE under C2 was started with."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "policy_loss": "stare",
        "strengths": ["stare/reweight_w", "stare/reweight_m"],
        "sets": ["L+", "L-"],
        "facts": {"is_idle": False, "needs_advantages": True, "pursues_target": True},
        "flags": {"stare.variant": "C2", "entropy.target": 0.4},
        "arguments": {"actor.adam.lr": 3e-4},
    }
    (folder / "settings.json").write_text(json.dumps(written | changes))


def stare_values(steps: range = STEPS, target: float = 0.4) -> dict[str, dict[int, float]]:
    """Entropy that falls to the target; the gate is open from the middle on."""
    middle = steps[len(steps) // 2]
    return {
        "entropy/mean": {step: target * (1 + max(0, middle - step) / 20) for step in steps},
        "entropy/target": dict.fromkeys(steps, target),
        "entropy/gate_on": {step: float(step >= middle) for step in steps},
        "stare/reweight_w": {step: 1 + 0.01 * step for step in steps},
        "stare/reweight_m": {step: 1 - 0.002 * step for step in steps},
        "rollout/reward_mean": {step: step / steps[-1] for step in steps},
        "rollout/response_length_mean": dict.fromkeys(steps, 7.5),
    }


def grpo_values(steps: range = STEPS) -> dict[str, dict[int, float]]:
    return {
        "entropy/mean": {step: 1 / step for step in steps},
        "rollout/reward_mean": dict.fromkeys(steps, 0.5),
    }


@pytest.fixture
def stare(tmp_path) -> Path:
    folder = tmp_path / "stare"
    log(folder / "tensorboard/run", stare_values())
    record(folder / "tensorboard/run", range(1, 101))
    settings(folder / "tensorboard/run")
    return folder


@pytest.fixture
def grpo(tmp_path) -> Path:
    folder = tmp_path / "grpo"
    log(folder / "tensorboard/run", grpo_values())
    return folder


class Page(HTMLParser):
    """The elements of a page, by their tags, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    def tokens(self) -> list[dict]:
        return [
            attributes
            for tag, attributes in self.elements
            if tag == "span" and attributes.get("class", "").split()[:1] == ["t"] and "title" in attributes
        ]


def page_of(*folders: Path) -> Page:
    return Page(page.html(read_runs(list(folders))))


# Reading


def test_tags_lose_their_prefix_and_those_of_evaluation_are_left(tmp_path):
    log(tmp_path, {"reward": {1: 0.5, 2: 0.75}})
    log(tmp_path, {"reward": {1: 9.0}}, prefix="eval/")
    run = read_run(tmp_path, "run")
    assert run.scalars.keys() == {"reward"}
    assert run.scalars["reward"].steps.tolist() == [1, 2] and run.scalars["reward"].values.tolist() == [0.5, 0.75]


@pytest.mark.parametrize("folders", [("a_first", "b_second"), ("b_first", "a_second"), ("one", "one")])
def test_after_a_resume_the_later_values_of_a_step_count(tmp_path, folders):
    first, second = (tmp_path / "tensorboard" / folder for folder in folders)
    log(first, {"reward": dict.fromkeys(range(1, 31), 1.0)})
    log(second, {"reward": dict.fromkeys(range(21, 51), 2.0)}, start=DAY + 1000)
    record(first, range(1, 31), reward=1.0)
    record(second, range(21, 51), start=DAY + 1000, reward=2.0)
    run = read_run(tmp_path, "run")
    assert run.scalars["reward"].steps.tolist() == list(range(1, 51))
    assert run.scalars["reward"].values.tolist() == [1.0] * 20 + [2.0] * 30
    assert run.logs == [(1, 30), (21, 50)]
    assert list(run.responses) == list(range(1, 51))
    assert [responses[0].reward for responses in run.responses.values()] == [1.0] * 20 + [2.0] * 30
    assert {len(responses) for responses in run.responses.values()} == {1}
    text = " ".join(Page(page.html([run])).text.split())
    assert "run was started 2 times: steps 1 to 30, then 21 to 50." in text


@pytest.mark.parametrize("folders", [("a_first", "b_second"), ("b_first", "a_second"), ("one", "one")])
def test_steps_that_were_given_up_are_not_shown(tmp_path, folders):
    """The run went back to an older checkpoint, and has not come as far again; then it went back once more."""
    first, second = (tmp_path / "tensorboard" / folder for folder in folders)
    log(first, {"reward": dict.fromkeys(range(1, 31), 1.0), "kl": dict.fromkeys(range(21, 31), 1.0)})
    log(second, {"reward": dict.fromkeys(range(11, 21), 2.0)}, start=DAY + 1000)
    record(first, range(1, 31), reward=1.0)
    record(second, range(11, 21), start=DAY + 1000, reward=2.0)
    run = read_run(tmp_path, "run")
    assert run.scalars.keys() == {"reward"}
    assert run.scalars["reward"].steps.tolist() == list(range(1, 21))
    assert run.scalars["reward"].values.tolist() == [1.0] * 10 + [2.0] * 10
    assert run.logs == [(1, 30), (11, 20)]
    assert [responses[0].reward for responses in run.responses.values()] == [1.0] * 10 + [2.0] * 10
    assert list(run.responses) == list(range(1, 21))
    log(second, {"reward": {5: 3.0}}, start=DAY + 2000)
    record(second, [5], start=DAY + 2000, reward=3.0)
    run = read_run(tmp_path, "run")
    assert run.scalars["reward"].values.tolist() == [1.0] * 4 + [3.0] and list(run.responses) == [1, 2, 3, 4, 5]


def test_the_parts_of_a_record_belong_together(tmp_path):
    record(tmp_path, range(5, 9))
    record(tmp_path, range(3, 5), name="tokens.1.jsonl")
    record(tmp_path, range(1, 3), name="tokens.2.jsonl")
    assert list(read_run(tmp_path, "run").responses) == list(range(1, 9))


def test_a_step_that_was_repeated_at_once_has_its_later_responses(tmp_path):
    record(tmp_path, [7, 7], reward=1.0)  # two responses of one rollout
    record(tmp_path, [7, 7, 7], start=DAY + 1000, reward=2.0)
    assert [response.reward for response in read_run(tmp_path, "run").responses[7]] == [2.0] * 3


def test_lines_that_cannot_be_read_are_counted_and_the_others_kept(tmp_path):
    record(tmp_path, [1])
    bad = [
        '{"step": 2, "prompt": "cut sh',
        "[]",
        "null",
        '{"step": 3}',
        "[" * 100_000,
        '{"tokens": ["a"], "surprisal": []}',
        "\x00",
    ]
    with open(tmp_path / "tokens.jsonl", "a") as file:
        file.write("\n".join(bad) + "\n")
    record(tmp_path, [4], omega=[1.0])  # not one number per token
    record(tmp_path, [5], omega=["1.0", 1.0, 1.0])
    for odd in (math.inf, math.nan, 10**400, 2**64, "x", None):
        record(tmp_path, [7], step=odd)
        record(tmp_path, [7], time=odd if odd != 2**64 else None)
    record(tmp_path, [6], tau_positive=None, reward=None)
    run = read_run(tmp_path, "run")
    assert list(run.responses) == [1, 6]
    assert run.notes == [f"{len(bad) + 14} of the lines of tokens.jsonl could not be read"]
    assert run.notes[0] in Page(page.html([run])).text


def test_numbers_that_no_training_has_are_left_out(tmp_path):
    for step, odd in enumerate((math.inf, -math.inf, math.nan, 10**400, -(10**400), 1e308), start=1):
        record(tmp_path, [step], surprisal=[odd, 2.0, 0.5], advantage=[1.5, odd, 1.5], reward=odd, tau_positive=odd)
    run = read_run(tmp_path, "run")
    for (response,) in run.responses.values():
        assert response.surprisal == [None, 2.0, 0.5] and response.advantage == [1.5, None, 1.5]
        assert response.reward is response.tau_positive is None
    main([str(tmp_path), "-o", str(tmp_path / "report.html"), "--png", str(tmp_path / "report.png")])
    assert "quadrants-dots-other" in Page((tmp_path / "report.html").read_text()).ids()


def test_values_as_large_as_a_log_can_hold_are_drawn(tmp_path):
    log(tmp_path, {"entropy/mean": {1: 3e38, 2: -3e38, 2**62: 1.0}, "reward": {1: 3e38, 2: 1e-45}})
    main([str(tmp_path), "-o", str(tmp_path / "report.html"), "--png", str(tmp_path / "report.png")])
    assert "reward-curve-0" in Page((tmp_path / "report.html").read_text()).ids()


def damaged(events: bytes, way: str) -> bytes:
    half = len(events) // 2
    match way:
        case "cut":
            return events[:half]
        case "changed":
            return events[:half] + bytes([events[half] ^ 1]) + events[half + 1 :]
        case "overwritten":
            return events[:half] + bytes(len(events) - half)
        case "hole":
            return events[:half] + events[half + 100 :]


@pytest.mark.parametrize("way", ["cut", "changed", "overwritten", "hole"])
def test_a_damaged_log_gives_what_it_has_and_says_what_is_missing(tmp_path, way):
    log(tmp_path, {"entropy/mean": dict.fromkeys(STEPS, 0.5)})
    (events,) = tmp_path.glob("events.out.*")
    assert read_run(tmp_path, "run").notes == []
    events.write_bytes(damaged(events.read_bytes(), way))
    run = read_run(tmp_path, "run")
    last = run.scalars["entropy/mean"].steps[-1]
    assert 40 <= last <= 60
    (note,) = run.notes
    assert note == f"{events.name} is damaged after step {last}, and what comes below is not shown (DataLossError)"
    assert f"run: {note}." in Page(page.html([run])).text


def test_what_is_no_regular_file_is_not_read(tmp_path, stare):
    os.mkfifo(stare / "tokens.pipe.jsonl")
    (stare / "tokens.zero.jsonl").symlink_to("/dev/zero")
    os.mkfifo(stare / "events.out.tfevents.pipe")
    (stare / "events.out.tfevents.zero").symlink_to("/dev/zero")
    (stare / "tokens.folder.jsonl").mkdir()
    command = [sys.executable, "-m", "openrlhf_stare.report", stare, "-o", tmp_path / "report.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "report.html").read_text()
    names = ["events.out.tfevents.pipe", "events.out.tfevents.zero"]
    names += [f"tokens.{kind}.jsonl" for kind in ("folder", "pipe", "zero")]
    for name in names:
        assert f"stare: {name} is not a regular file and was not read." in text


def test_names_tell_runs_apart(tmp_path):
    for name in ("x/seed0", "y/seed0", "z"):
        log(tmp_path / name, {"reward": {1: 1.0}})
    folders = [tmp_path / "x/seed0", tmp_path / "y/seed0", tmp_path / "z", tmp_path / "y/../z"]
    assert [run.name for run in read_runs(folders)] == ["x/seed0", "y/seed0", "z"]


def test_a_gate_opens_and_closes(tmp_path):
    log(tmp_path, {"entropy/gate_on": {1: 0, 2: 1, 3: 1, 4: 0, 6: 1}})
    assert read_run(tmp_path, "run").gate_spans() == [(1.5, 3.5), (5.5, 6.5)]


# Figures


def test_final_figures_are_over_the_second_half(stare, grpo):
    runs = read_runs([stare, grpo])
    ours, theirs = (page.final_figures(run, runs) for run in runs)
    assert (ours.name, ours.steps, ours.target, ours.borrowed_target) == ("stare", 100, pytest.approx(0.4), False)
    assert ours.entropy == pytest.approx(0.4) and ours.entropy_sd == pytest.approx(0, abs=1e-6)
    assert ours.in_band == 1 and ours.gate == 1
    assert ours.reward == pytest.approx(np.mean(np.arange(51, 101) / 100))
    assert ours.length == 7.5 and (ours.strength_name, ours.strength) == ("reweight_w", pytest.approx(1.755))
    # GRPO has no target; it is held against STARE's: 1/step is within a quarter of 0.4 nowhere after step 50.
    assert theirs.borrowed_target and theirs.target == ours.target and theirs.in_band == 0
    assert theirs.gate is theirs.strength is theirs.length is theirs.strength_name is None
    assert page.final_figures(runs[1], runs[1:]).target is None


def test_the_band_follows_a_target_that_changed(tmp_path):
    log(tmp_path / "a", {"entropy/mean": dict.fromkeys(range(1, 9), 0.6)})
    log(tmp_path / "b", {"entropy/target": {**dict.fromkeys(range(1, 7), 0.6), 7: 0.4, 8: 0.4}})
    (run,) = read_runs([tmp_path])
    row = page.final_figures(run, [run])
    assert row.target == pytest.approx(0.4) and row.in_band == 0.5


def test_values_that_are_not_finite_are_left_out(tmp_path):
    log(tmp_path, {"entropy/mean": {1: 1.0, 2: 1.0, 3: float("nan"), 4: 0.5, 5: float("inf")}})
    (run,) = read_runs([tmp_path])
    assert page.final_figures(run, [run]).entropy == pytest.approx(0.75)
    assert "nan" not in page.html([run])


def test_the_settings_name_the_strengths_and_what_cannot_be_read_is_said(tmp_path, stare):
    run = read_run(stare, "run")
    assert run.strengths == ["stare/reweight_w", "stare/reweight_m"] and run.set_names == {"+": "L+", "-": "L-"}
    broken = ['{"strengths"', "[]", '{"strengths": 1}', "[" * 100_000, '{"strengths": [], "sets": null, "facts": 3}']
    for text in broken:
        (stare / "tensorboard/run/settings.json").write_text(text)
        run = read_run(stare, "run")
        assert run.settings == reading.Settings() and run.strengths == []
        assert run.notes == ["settings.json could not be read"]
    settings(stare / "tensorboard/again", strengths=["stare/reweight_m"])  # the newest counts
    os.utime(stare / "tensorboard/again/settings.json", (9e9, 9e9))
    assert read_run(stare, "run").strength == "stare/reweight_m"


def test_the_page_has_the_verdict_at_its_top_and_the_settings(stare, grpo):
    shown = page_of(stare, grpo)
    sentence = "entropy 0.400 nats, target 0.400, over the second half of the steps, 100 % of them within ±25 %: held."
    assert sentence in shown.text and shown.text.index(sentence) < shown.text.index("Final figures")
    assert shown.text.count("over the second half of the steps, ") == 1  # grpo has no target
    assert "--stare.variant" in shown.text and "--actor.adam.lr" in shown.text and "0.0003" in shown.text


@pytest.mark.parametrize(
    "facts, kind",
    [
        ({"is_idle": False, "needs_advantages": True, "pursues_target": True}, "no authority"),
        ({"is_idle": True, "needs_advantages": True, "pursues_target": False}, "idle"),
        ({"is_idle": False, "needs_advantages": False, "pursues_target": True}, "at its bound"),
        ({}, "no authority"),
    ],
)
def test_the_verdict_of_a_run_goes_by_its_settings(tmp_path, facts, kind):
    figures = {"mean": 0.1, "target": 0.4, "gate_on": 1.0, "effort": 1.0, "authority": 0.05}
    log(tmp_path, {f"entropy/{name}": dict.fromkeys(STEPS, value) for name, value in figures.items()})
    settings(tmp_path, facts=facts)
    assert read_run(tmp_path, "run").verdict.kind == kind
    assert "authority-curve-0" in page_of(tmp_path).ids()


def test_a_schedule_that_pursues_no_target_has_no_verdict(tmp_path):
    log(tmp_path, stare_values())
    settings(tmp_path, facts={"pursues_target": False})
    assert read_run(tmp_path, "run").verdict is None


def test_moving_mean():
    values = np.arange(10.0) ** 2
    expected = [values[max(0, i - 2) : i + 3].mean() for i in range(10)]
    assert figures.moving_mean(values, 5) == pytest.approx(expected)


def test_the_set_of_a_token(tmp_path):
    record(tmp_path, [1])
    record(tmp_path, [2], omega=[1.0, 1.0, 1.0])  # the gate off: still in L+ and in L-
    record(tmp_path, [3], omega=[None, None, None], tau_positive=None, tau_negative=None)
    record(tmp_path, [4], surprisal=[None, 2.0, 0.0], tau_positive=0.0)  # probability 1 is in no set
    sets = [
        [response.picked(place) for place in range(3)]
        for responses in read_run(tmp_path, "run").responses.values()
        for response in responses
    ]
    assert sets == [["+", "-", ""], ["+", "-", ""], ["", "", ""], ["", "-", ""]]


# The page


def test_two_runs_compared(stare, grpo):
    shown = page_of(stare, grpo)
    ids = shown.ids()
    for key in ("entropy", "gate", "reward"):
        assert {f"{key}-curve-0", f"{key}-curve-1"} <= set(ids), key
    assert "strengths-curve-0" in ids and "strengths-curve-1" not in ids
    assert {"gate-target", "gate-gate-open", "quadrants-dots-+", "quadrants-dots--"} <= set(ids)
    assert (
        "Not in it: grpo, without a strength (they are named in settings.json) or an effort (entropy/effort)."
        in shown.text
    )
    assert "held against that of the others" in shown.text
    assert "0.400 ± 0.000" in shown.text and "100 %" in shown.text


def test_one_run_is_not_compared(stare):
    ids = page_of(stare).ids()
    assert "gate-curve-0" in ids and not any(name.startswith("entropy") for name in ids)


def test_the_text_of_a_picture_is_text(stare):
    assert "entropy (nats)" in page_of(stare).text


def test_what_no_run_has_is_left_out_and_said_so(tmp_path):
    log(tmp_path, {"reward": {1: 0.5, 2: 0.75}})
    shown = page_of(tmp_path)
    assert "reward-curve-0" in shown.ids()
    missing = [picture for picture in figures.PICTURES if picture.key != "reward"]
    for picture in missing:
        assert f"{picture.title}: no run has {picture.needs}." in shown.text
        assert picture.key not in shown.ids()


def test_each_strength_has_a_panel_of_its_own_beside_the_effort(stare, tmp_path):
    values = {"kl_cov/coefficient": {1: 0.5, 2: 1.0}, "entropy/effort": {1: 0.05, 2: 0.1}}
    log(tmp_path / "kl_cov", values)
    settings(tmp_path / "kl_cov", strengths=["kl_cov/coefficient"], sets=None)
    # Without settings the strength is not known; with them one of the user's own is.
    own = {"entropy/effort": {1: 0.0, 2: 0.5}, "mine/strength": {1: 3.0, 2: 4.0}}
    log(tmp_path / "own", own)
    log(tmp_path / "known", own)
    settings(tmp_path / "known", strengths=["mine/strength"], sets=None)
    assert "mine/strength" in Page(page.html([read_run(tmp_path / "known", "known")])).text
    runs = read_runs([stare, tmp_path / "kl_cov", tmp_path / "own"])
    shown = Page(page.html(runs))
    for tag in ("stare/reweight_w", "stare/reweight_m", "kl_cov/coefficient", "entropy/effort"):
        assert shown.text.count(tag) >= 1, tag
    assert "mine/strength" not in shown.text and "strengths-curve-2" in shown.ids()
    assert [run.strength for run in runs] == ["stare/reweight_w", "kl_cov/coefficient", None]
    assert "coefficient 1.00" in shown.text
    alone = Page(page.html(runs[1:2]))
    assert "kl_cov/coefficient" in alone.text and "reweight" not in alone.text.partition("Left out")[0]


def test_the_record_of_another_method_has_no_thresholds_and_names_its_weights(tmp_path):
    none = {"tau_positive": None, "tau_negative": None}
    record(tmp_path, [1, 2], omega=[0.5, 1.5, 0.5], **none)
    record(tmp_path, [3], omega=[1.0, 1.0, 1.0], **none)  # the gate off: nothing is known
    (run,) = read_runs([tmp_path])
    assert [run.responses[step][0].picked(place) for step in (1, 3) for place in range(3)] == [
        "+",
        "-",
        "+",
        "",
        "",
        "",
    ]
    shown = page_of(tmp_path)
    assert shown.tokens()[0]["title"].endswith("ω 0.500, ω ≠ 1, A > 0")
    assert "Most often ω ≠ 1, A < 0:" in shown.text and "L+: " not in shown.text
    assert {"quadrants-dots-+", "quadrants-dots--", "quadrants-dots-other"} <= set(shown.ids())


def test_a_record_alone_makes_a_page(tmp_path):
    record(tmp_path, [1, 2, 3])
    shown = page_of(tmp_path)
    assert "quadrants-dots-+" in shown.ids() and "prompt 3" in shown.text


def test_nothing_is_fetched_and_no_script_runs(stare, grpo):
    html = page.html(read_runs([stare, grpo]))
    shown = Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in shown.elements}
    links = [value for _, attributes in shown.elements for name, value in attributes.items() if "href" in name]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"url\((?!#)", html) and "@import" not in html
    (policy,) = (attributes["content"] for tag, attributes in shown.elements if "http-equiv" in attributes)
    assert "default-src 'none'" in policy and "script" not in policy


def test_references_inside_a_page_lead_somewhere(stare, grpo):
    html = page.html(read_runs([stare, grpo]))
    ids = set(Page(html).ids())
    assert set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", html)), "clip paths at least"
    for first, second in re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", html):
        assert (first or second) in ids


def test_a_token_shows_its_numbers_and_its_set(tmp_path):
    settings(tmp_path)
    record(tmp_path, [1])
    record(tmp_path, [2], tokens=["", "two\nlines", "x"], omega=[1.0, None, 1.0], surprisal=[3.0, 2.0, None])
    first, second, third, empty, lines, hole = page_of(tmp_path).tokens()
    assert first == {
        "class": "t up",
        "style": "--s: 0.75",
        "title": "surprisal 3.000 nats, advantage +1.50, ω 1.100, L+",
    }
    assert second["class"] == "t down" and second["title"].endswith("advantage -0.50, ω 0.900, L-")
    assert third["class"].split() == ["t"] and "L+" not in third["title"]
    assert empty["class"] == "t up idle"
    assert "ω –" in lines["title"]
    assert "surprisal –" in hole["title"]
    text = page_of(tmp_path).text
    assert "two↵\nlines" in text and "they depend on the training pass" in text


def test_a_tools_output_is_told_from_the_policys_tokens(tmp_path):
    record(tmp_path, [1], surprisal=[3.0, None, 0.5], advantage=[1.5, None, 1.5], omega=[1.1, None, 1.0])
    tokens = page_of(tmp_path).tokens()
    assert [token["class"].split()[1:] for token in tokens] == [["up"], ["hole"], []]
    assert tokens[1]["title"] == "not an action of the policy"


def test_the_words_that_are_most_often_critical(tmp_path):
    record(tmp_path, [1, 2])
    record(tmp_path, [3], tokens=["rare", " words", "many"])
    (run,) = read_runs([tmp_path])
    responses = [response for recorded in run.responses.values() for response in recorded]
    assert page._words(responses, "+") == [("many", 2, 3), ("rare", 1, 1)]
    assert page._words(responses, "-") == [(" words", 3, 3)]


def test_long_responses_are_cut_and_said_so(tmp_path):
    length = page.TOKENS_SHOWN + 100
    numbers = {name: [1.0] * length for name in ("surprisal", "advantage", "omega")}
    record(tmp_path, [1], tokens=["x"] * length, prompt="p" * 5000, **numbers)
    shown = page_of(tmp_path)
    assert len(shown.tokens()) == page.TOKENS_SHOWN
    assert "and 100 more tokens" in shown.text
    assert "p" * page.PROMPT_SHOWN in shown.text and "p" * (page.PROMPT_SHOWN + 1) not in shown.text


def test_the_steps_shown_are_spread_and_the_last_is_among_them(tmp_path):
    record(tmp_path, range(1, 102))
    shown = page_of(tmp_path)
    steps = [int(step) for step in re.findall(r"Step (\d+)", shown.text)]
    assert steps == [1, 21, 41, 61, 81, 101]
    opened = [attributes for tag, attributes in shown.elements if tag == "details" and "open" in attributes]
    assert len(opened) == 1


def test_hostile_text_is_text(tmp_path):
    folder = tmp_path / "<b>$x_{&amp;$"
    log(folder, stare_values(range(1, 11)))
    log(tmp_path / "_hidden", stare_values(range(1, 11)))
    record(folder, [1], tokens=[HOSTILE, "{{ 7 * 7 }}", "'\"><svg onload=alert(1)>"], prompt=HOSTILE)
    runs = read_runs([folder, tmp_path / "_hidden"])
    html = page.html(runs)
    shown = Page(html)
    plain = Page(page.html(read_runs([tmp_path / "_hidden"])))
    assert {tag for tag, _ in shown.elements} - {tag for tag, _ in plain.elements} <= {
        "section",
        "h3",
        "div",
        "details",
        "summary",
        "ul",
        "li",
    }
    assert not any(name.startswith("on") for _, attributes in shown.elements for name in attributes)
    assert shown.text.count("onerror") >= 2 and "{{ 7 * 7 }}" in shown.text and "<svg onload=alert(1)>" in shown.text
    assert "<b>$x_{&amp;$" in shown.text
    figures.png(runs, tmp_path / "hostile.png")


def test_text_that_has_no_utf8_does_not_stop_the_command(tmp_path):
    record(tmp_path, [1], tokens=["\ud800", "\x00\x1b[31m", "\u202e"])
    main([str(tmp_path), "-o", str(tmp_path / "report.html")])
    assert (tmp_path / "report.html").read_text(encoding="utf-8")


# The command


def test_seeds_share_a_colour_and_are_told_apart_by_dashes(tmp_path):
    for name in ("pi-seed0", "pi-seed1", "grpo-seed_0", "seedling"):
        log(tmp_path / name, {"reward": {1: 1.0}})
    folders = [tmp_path / name for name in ("pi-seed0", "pi-seed1", "grpo-seed_0", "seedling")]
    (a, b, c, d) = figures.styles(read_runs(folders)).values()
    assert a[0] == b[0] and a[1] != b[1]
    assert len({a[0], c[0], d[0]}) == 3 and a[1] == c[1] == d[1]


def test_the_command_writes_a_page_and_a_picture(stare, grpo, tmp_path, capsys):
    main([str(stare), str(grpo), "-o", str(tmp_path / "report.html"), "--png", str(tmp_path / "report.png")])
    assert "Final figures" in (tmp_path / "report.html").read_text()
    with Image.open(tmp_path / "report.png") as picture:
        assert picture.width == 1200 and picture.height > 1500
        colours = {colour for _, colour in picture.convert("RGB").getcolors(2**24)}
    for colour in figures.COLOURS[:2]:
        assert tuple(bytes.fromhex(colour[1:])) in colours
    assert capsys.readouterr().err == ""


def test_many_runs_fit_a_picture(tmp_path):
    for seed in range(12):
        log(tmp_path / f"method-{seed}", stare_values(range(1, 6)))
    runs = read_runs(sorted(tmp_path.iterdir()))
    assert len(set(figures.styles(runs).values())) == 12
    figures.png(runs, tmp_path / "report.png")
    assert sum(name.startswith("entropy-curve-") for name in Page(page.html(runs)).ids()) == 12


@pytest.mark.parametrize(
    "words, part",
    [
        (["nowhere", "-o", "x.html"], "nowhere is not a folder"),
        (["empty", "-o", "x.html"], "no TensorBoard logs of training and no token record"),
        (["garbage", "-o", "x.html"], "no TensorBoard logs of training and no token record"),
        (["stare"], "-o report.html"),
        (["stare", "-o", "missing/x.html"], "missing/x.html"),
        (["other", "--png", "x.png"], "nothing that a picture could show"),
    ],
)
def test_bad_input_ends_with_status_2_and_one_sentence(stare, tmp_path, monkeypatch, capsys, words, part):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("garbage").mkdir()
    Path("garbage/events.out.tfevents.1").write_bytes(b"no log" * 50)
    log(Path("other"), {"kl": {1: 0.0}})
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("report: ") and error.count("\n") == 1 and part in error


def test_without_the_extra_the_sentence_says_what_to_install(stare, tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("openrlhf_stare.report.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("openrlhf_stare.report.figures")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as end:
        main([str(stare), "-o", str(tmp_path / "x.html")])
    assert end.value.code == 2
    assert 'pip install "openrlhf-stare[report]"' in capsys.readouterr().err


def test_the_module_is_a_command(stare, tmp_path):
    command = [sys.executable, "-m", "openrlhf_stare.report", stare, "-o", tmp_path / "report.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "report.html").stat().st_size > 10_000
