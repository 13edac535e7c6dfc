"""The page of the report in a real browser: it renders, the curves are there, and nothing is said in the console."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from openrlhf_stare.report import figures, page
from openrlhf_stare.report.reading import read_runs

CHROMIUM = shutil.which("chromium")

HOSTILE = "</span></script><script>console.error('pwned')</script><img src=x onerror=\"console.error('pwned')\">"
WIDTH, HEIGHT = 1200, 2400


def browse(path: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """Open a file in chromium: what it prints, and the lines of the page's console."""
    assert CHROMIUM, "no chromium on the PATH, which launch/test.sh installs for root on Debian"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for name in ("stare", "grpo"):
        with SummaryWriter(str(folder / name)) as writer:
            for step in range(1, 81):
                writer.add_scalar("train/entropy/mean", 0.4 + 1 / step, step)
                writer.add_scalar("train/rollout/reward_mean", step / 80, step)
                if name == "stare":
                    writer.add_scalar("train/entropy/target", 0.5, step)
                    writer.add_scalar("train/entropy/gate_on", float(step > 10), step)
                    writer.add_scalar("train/stare/reweight_w", 1 + step / 80, step)
                    writer.add_scalar("train/stare/reweight_m", 0.9, step)
    line = {"step": 1, "time": 0, "prompt": HOSTILE, "tokens": [HOSTILE, "fine"], "reward": 1.0}
    line |= {"surprisal": [3.0, 0.1], "advantage": [1.0, -1.0], "omega": [1.1, 1.0]}
    line |= {"tau_positive": 2.0, "tau_negative": 1.0}
    (folder / "stare/tokens.jsonl").write_text(json.dumps(line) + "\n")
    settings = {"strengths": ["stare/reweight_w", "stare/reweight_m"], "sets": [HOSTILE, "L-"], "facts": {}}
    settings |= {"flags": {f"entropy.{HOSTILE}": HOSTILE}, "arguments": {}}
    (folder / "stare/settings.json").write_text(json.dumps(settings))
    path = folder / "report.html"
    path.write_text(page.html(read_runs([folder / "stare", folder / "grpo"])), encoding="utf-8")
    return path


def test_the_page_renders_with_its_curves_and_without_a_console_message(report, tmp_path):
    dom, console = browse(report, tmp_path, "--dump-dom")
    assert console == []
    for name in ("entropy-curve-0", "entropy-curve-1", "gate-target", "gate-gate-open", "strengths-curve-0"):
        assert f'id="{name}"' in dom, name
    # The browser's own reading of the page: the hostile text made no element.
    assert "<script" not in dom and "<img" not in dom
    assert dom.count("&lt;script&gt;console.error") >= 2


def test_the_curves_are_seen(report, tmp_path):
    shot = tmp_path / "shot.png"
    _, console = browse(report, tmp_path / "profile", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}")
    assert console == []
    with Image.open(shot) as picture:
        assert picture.size == (WIDTH, HEIGHT)
        seen = dict((colour, count) for count, colour in picture.convert("RGB").getcolors(2**24))
    for colour in figures.COLOURS[:2]:
        # Thin lines are mixed with the white around them; the two chips beside the runs' names are some 200 pixels.
        assert seen.get(tuple(bytes.fromhex(colour[1:])), 0) > 1000, colour


@pytest.mark.parametrize(
    "body", ["<script>console.error('seen')</script>", "<img src=x onerror=\"console.error('seen')\">"]
)
def test_a_console_message_would_be_noticed(tmp_path, body):
    bare = tmp_path / "bare.html"
    bare.write_text(f"<!doctype html><title>bare</title>{body}")
    _, console = browse(bare, tmp_path / "profile", "--dump-dom")
    assert any("seen" in line for line in console)


def test_the_policy_of_the_page_stops_a_script_that_gets_in(report, tmp_path):
    broken = tmp_path / "broken.html"
    text = report.read_text(encoding="utf-8")
    broken.write_text(text.replace("</body>", "<script>document.title = 'pwned'</script></body>"), encoding="utf-8")
    dom, console = browse(broken, tmp_path / "profile", "--dump-dom")
    assert "<title>pwned" not in dom and any("Content Security Policy" in line for line in console)
