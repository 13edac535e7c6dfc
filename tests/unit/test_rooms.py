"""The house: what each room of the package may import. Read from the sources alone."""

import ast
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = "openrlhf_stare"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE
# A room, which is a folder or a file of the package, and the rooms that it may import besides itself.
MAY_IMPORT = {
    "options": "",
    "rules": "options",
    "notices": "",
    "dealing": "rules",
    "when_imported": "",
    "algorithms": "options",
    "methods": "algorithms dealing options rules",
    "substitutions": "",
    "replacing": "substitutions when_imported",
    "without_flash_attn": "",
    "cpu": "dealing notices options replacing rules tools",
    "gpu": "notices options replacing rules substitutions",
    "runtime": "cpu gpu options replacing rules substitutions",
    "tpo": "algorithms dealing options rules",
    "actor_group": "algorithms methods notices options replacing tpo",
    "rollout": "actor_group algorithms dealing methods notices options replacing",
    "tools": "notices options rules",
    "rewards": "notices",
    "data": "",
    "report": "algorithms",
    "worker": "replacing runtime",
    "vllm_plugin": "runtime",
    "driver": "actor_group algorithms dealing methods notices options replacing rollout rules runtime substitutions "
    "tools tpo worker",
    "train_ray": "dealing driver notices options replacing rules runtime tools worker",
    "quickstart": "algorithms driver options report runtime train_ray",
    "__init__": "runtime",
    "__main__": "quickstart train_ray",
}
TORCH_ALONE = ("options", "algorithms", "methods")
GPU_QUESTIONS = {"is_available", "device_count", "on_cpu", "has_flash_attn"}
LONGEST = 60


def sources() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = sources()
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


class Imports(ast.NodeVisitor):
    """The modules that a source imports anywhere, less what is for type checkers only."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, "an import by the module's full name can be read and searched for"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self.found.add(whole if whole in SOURCES else node.module)


def imports(module: str) -> set[str]:
    visitor = Imports()
    visitor.visit(TREES[module])
    return visitor.found


OURS = {name: {found for found in imports(name) if found.split(".")[0] == PACKAGE} for name in SOURCES}


def test_every_room_is_in_the_table():
    assert {room(name) for name in SOURCES} <= MAY_IMPORT.keys()
    assert len(SOURCES) > 40


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_imports_run_downwards(name):
    allowed = {room(name), *MAY_IMPORT[room(name)].split()}
    # The package itself has the version, and nothing in it climbs.
    assert {found for found in OURS[name] if found != PACKAGE and room(found) not in allowed} == set()


@pytest.mark.parametrize("of", MAY_IMPORT)
def test_what_a_room_may_import_it_imports(of):
    imported = {room(found) for name in SOURCES if room(name) == of for found in OURS[name]}
    assert set(MAY_IMPORT[of].split()) <= imported


def test_no_two_files_import_each_other():
    """Not through others either, and not inside functions."""
    state: dict[str, str] = defaultdict(str)

    def visit(name: str, way: list[str]) -> None:
        assert state[name] != "open", " -> ".join([*way, name])
        if not state[name]:
            state[name] = "open"
            for found in sorted(OURS[name] - {PACKAGE}):
                visit(found, [*way, name])
            state[name] = "done"

    for name in sorted(SOURCES):
        visit(name, [])


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if room(name) in TORCH_ALONE))
def test_the_mathematics_needs_torch_alone(name):
    tops = {found.split(".")[0] for found in imports(name)}
    assert tops - sys.stdlib_module_names <= {"torch", PACKAGE}


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_only_the_place_that_chooses_imports_a_runtime(chosen):
    users = {name for name, found in OURS.items() if any(room(module) == chosen for module in found)}
    assert {name for name in users if room(name) != chosen} == {f"{PACKAGE}.runtime"}


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if room(name) not in ("cpu", "gpu", "runtime")))
def test_nothing_else_asks_for_a_gpu(name):
    names = {node.attr for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Name)}
    assert names.isdisjoint(GPU_QUESTIONS)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_no_function_is_longer_than_a_screen(name):
    functions = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    longer = {node.name for node in functions if node.end_lineno - node.lineno >= LONGEST}
    assert longer == set()


@pytest.mark.parametrize("name", sorted(name for name, path in SOURCES.items() if path.name == "__init__.py"))
def test_each_room_says_what_it_is_for(name):
    assert ast.get_docstring(TREES[name])
