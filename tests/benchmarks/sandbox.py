"""How long the Python tool takes for an honest program: sandbox.py [--against PACKAGE_DIR] [--runs 50]

The time of one run in the sandbox, from its start to its outcome, as a median of all runs. With --against the turns
alternate with those of another state of this package, for instance of `git worktree add OLD COMMIT` and
`--against OLD/openrlhf_stare`, and the ratio of the two medians is printed too.
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType

PROGRAMS = {
    "print(6 * 7)": "print(6 * 7)",
    "a thousand primes": "print([n for n in range(2, 7920) if all(n % d for d in range(2, int(n**0.5) + 1))][-1])",
}


def load(package: Path) -> tuple[ModuleType, ModuleType]:
    """The sandbox and the options of the package in a folder, apart from others of the same name."""
    for name in [name for name in sys.modules if name.split(".")[0] == "openrlhf_stare"]:
        del sys.modules[name]
    sys.path.insert(0, str(package.resolve().parent))
    try:
        return tuple(importlib.import_module(f"openrlhf_stare.tools.{name}") for name in ("sandbox", "config"))
    finally:
        del sys.path[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--runs", type=int, default=50)
    args = parser.parse_args()
    packages = {"here": load(Path(__file__).resolve().parents[2] / "openrlhf_stare")}
    if args.against:
        packages["against"] = load(args.against)
    for name, program in PROGRAMS.items():
        seconds = {package: [] for package in packages}
        for _ in range(args.runs):
            for package, (sandbox, config) in packages.items():
                start = time.perf_counter()
                outcome = sandbox.run(program, config.ToolConfig())
                seconds[package].append(time.perf_counter() - start)
                assert not outcome.failed, outcome
        medians = {package: statistics.median(times) for package, times in seconds.items()}
        print(name, *(f"{package} {1000 * median:.1f} ms" for package, median in medians.items()), sep=": ", end="")
        print(f": ratio {medians['here'] / medians['against']:.3f}" if args.against else "")


if __name__ == "__main__":
    main()
