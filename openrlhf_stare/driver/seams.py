"""What of OpenRLHF and the others the table in substitutions.py relies on, looked for before a job starts.

Only sources are read, since importing them takes many seconds, and fails for reasons of its own.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType

from openrlhf_stare import runtime
from openrlhf_stare.notices import notice
from openrlhf_stare.options import UsageError
from openrlhf_stare.substitutions import USED, Theirs

SUPPORTED = ("0.11.2",)
INSIST = "--any_openrlhf"
INSTALL = f"install openrlhf=={' or '.join(SUPPORTED)}"
WITHOUT_A_GPU = (
    'uv pip install --torch-backend cpu --override "$(openrlhf-stare cpu-overrides)" "openrlhf-stare[cpu,report]"'
)


class MissingSeam(UsageError):
    """OpenRLHF is another version than the plugin knows, or a place that it holds on to is not there."""


def check(insist: bool = False) -> None:
    """Look for the version and for all that the table relies on.

    Args:
        insist: take any version of OpenRLHF that has everything.

    Raises:
        MissingSeam: there is no OpenRLHF, it is of another version, or something is not there. The message names it,
            the version found and the versions supported.
    """
    found = installed("openrlhf")
    if found is None:
        raise MissingSeam(
            f"OpenRLHF is not installed: install openrlhf=={SUPPORTED[-1]}, or where there is no GPU: {WITHOUT_A_GPU}"
        )
    if found not in SUPPORTED and not insist:
        raise MissingSeam(
            f"OpenRLHF {found} is not {' or '.join(SUPPORTED)}, with which openrlhf-stare is tested: "
            f"{INSTALL}, or add {INSIST} to take this one if it has all that is needed"
        )
    if missing := all_missing():
        library = missing[0].partition(".")[0]
        # vLLM for a CPU is installed under a name of its own.
        version = installed(library) or installed(f"{library}-cpu") or "of an unknown version"
        others = f" and {len(missing) - 1} more, such as {missing[1]}" if len(missing) > 1 else ""
        name = "OpenRLHF" if library == "openrlhf" else library
        raise MissingSeam(f"{name} {version} has no {missing[0]}{others}, which openrlhf-stare needs: {INSTALL}")
    if found not in SUPPORTED:
        notice(f"OpenRLHF {found} has all that openrlhf-stare needs, but only {SUPPORTED[-1]} has been tried")


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_command() -> ModuleType:
    """OpenRLHF's command, with everything that it needs.

    Raises:
        MissingSeam: something that OpenRLHF imports is not installed.
    """
    try:
        return importlib.import_module("openrlhf.cli.train_ppo_ray")
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("openrlhf", "openrlhf_stare", ""):
            raise
        raise MissingSeam(
            f"OpenRLHF cannot be imported, since {module} is not installed as it needs it ({error}): install that, or "
            "all that OpenRLHF needs with its extras"
        ) from error


def all_missing() -> list[str]:
    """Everything of theirs that the table relies on here and that their sources do not have, as dotted names."""
    needed = dict.fromkeys([*USED, *(theirs for row in runtime.substitutions() for theirs in row.of_theirs)])
    return list(dict.fromkeys(name for theirs in needed for name in missing(theirs)))


def missing(theirs: Theirs) -> list[str]:
    """What of an entry the sources do not have: its place, arguments of it, or what it is to mention."""
    text = source(theirs.module)
    if text is None:
        return [theirs.place]
    nodes = _defined(theirs.module, theirs.name, text)
    if not nodes:
        return [theirs.place]
    arguments = {argument.arg for node in nodes for argument in _arguments(node)}
    words = set().union(*(_words(node) for node in nodes))
    return [
        *(f"{theirs.place}({name})" for name in theirs.arguments if name not in arguments),
        *(f"{theirs.place} with {name}" for name in theirs.mentions if name not in words),
    ]


@functools.cache
def source(module: str) -> str | None:
    """The text of an installed module, found without importing the packages above it; None if there is none."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec and spec.submodule_search_locations) or ():
        place = Path(folder, *below)
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                return path.read_text(encoding="utf-8")
    return None


@functools.cache
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _defined(module: str, name: str, text: str) -> list[ast.stmt]:
    """The nodes that define a dotted name in a module's source: several where it depends on a condition."""
    bodies = [_tree(text).body]
    found: list[ast.stmt] = []
    for part in name.split("."):
        found = [node for body in bodies for node in _statements(body) if part in _names(node)]
        bodies = [node.body for node in found if isinstance(node, ast.ClassDef)]
    return found


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body, with those under `if`, `try` and `with`."""
    all_statements = []
    for node in body:
        all_statements.append(node)
        for inner in ("body", "orelse", "handlers", "finalbody"):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                all_statements += _statements(getattr(node, inner, []))
    return all_statements


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _arguments(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _words(node: ast.AST) -> set[str]:
    """Attributes, variables, names of arguments and strings below a node."""
    words = set()
    for below in ast.walk(node):
        match below:
            case ast.Attribute(attr=word) | ast.Name(id=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                words.add(word)
            case ast.Constant(value=str(word)):
                words.add(word)
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word):
                words.add(word)
    return words
