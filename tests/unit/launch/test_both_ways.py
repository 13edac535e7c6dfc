"""The study of control from both sides: from runs to claims."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

LAUNCH = Path(__file__).parents[3] / "launch"
spec = importlib.util.spec_from_file_location("both_ways", LAUNCH / "study/both_ways.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def write_run(folder: Path, entropies: list[float], target: float | None) -> Path:
    logs = folder / "tensorboard" / folder.name
    with SummaryWriter(str(logs)) as writer:
        for step, entropy in enumerate(entropies, start=1):
            figures = {"entropy/mean": entropy, "rollout/reward_mean": 0.9}
            if target:
                figures |= {"entropy/target": target, "entropy/effort": -0.5}
            for name, value in figures.items():
                writer.add_scalar(f"train/{name}", value, step)
    facts = {"is_idle": False, "needs_advantages": True, "pursues_target": True}
    settings = {"strengths": [], "sets": None, "facts": facts if target else {}, "flags": {}, "arguments": {}}
    (logs / "settings.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "last, status, said",
    [
        # last of GRPO's entropy, of both's when it rises, and the slope of both's when the target falls
        ((2.0, 1.1, 0.04), 0, "pass rising, seed 0: GRPO has 2.00 times its first entropy, below 2.00 times; both"),
        ((1.2, 1.1, 0.04), 1, "MISS rising, seed 0: GRPO has 1.20 times its first entropy, below 1.20"),
        (
            (2.0, 1.4, 0.04),
            1,
            "MISS rising, seed 0: GRPO has 2.00 times its first entropy, below 2.00 times; both",
        ),
        ((2.0, 1.1, 0.04), 0, "pass falling, seed 0: both at step 20 and below at step never; wanted"),
        ((2.0, 1.1, 0.001), 1, "MISS falling, seed 0: both at step never and below at step never; wanted"),
    ],
)
def test_the_claims_of_the_study(tmp_path, monkeypatch, capsys, last, status, said):
    grpo, both, slope = last

    def run(name: str, entropies: list[float], target: float | None) -> Path:
        return write_run(tmp_path / f"{name}-seed0", entropies, target)

    runs = [
        run("rising-grpo", [1.0, *[grpo] * 39], None),
        run("rising-below", [1.0, *[grpo] * 39], 1.0),
        run("rising-both", [1.0, *[both] * 39], 1.0),
        run("falling-both", list(np.maximum(1 - slope * np.arange(40), 0.2)), 0.2),
        run("falling-below", list(1 - 0.01 * np.arange(40)), 0.2),
    ]
    monkeypatch.setattr(sys, "argv", ["both_ways.py", *map(str, runs), "--table", str(tmp_path / "table.md")])
    assert study.main() == status
    assert said in capsys.readouterr().out
    assert (tmp_path / "table.md").read_text().count("\n") == 2 + 5


@pytest.mark.parametrize("arm", ["sideways-both", "rising-botch", "bonus-grpo"])
def test_a_run_that_is_not_of_the_study_is_refused(arm):
    """Also where it comes from a mistyped ARMS, which the runs inherit."""
    command, environment = ["bash", LAUNCH / "both_ways.sh", arm, "0"], os.environ | {"ARMS": arm}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2 and f"{arm} is not one of rising-grpo" in done.stderr
