"""A method's facts stay with the method: no other room of the package names one.

Docstrings, comments and what a user reads in prose may. The exceptions are public names, and the default of the flag.
"""

import ast
import re
from pathlib import Path

import pytest

from openrlhf_stare.methods import base

PACKAGE = Path(__file__).resolve().parents[3] / "openrlhf_stare"
NAMED = re.compile(rf"(?<![\w.])(?<!openrlhf-)(?:{'|'.join(base.names())})(?![\w])")
EXCEPTIONS = {
    "__init__.py": {"methods.stare"},  # the homes of public names
    "actor_group/policy_loss.py": {"openrlhf_stare.methods.stare"},  # StarePolicyLoss, a public name
    "driver/flags.py": {"stare"},  # the default of --policy_loss
}
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if "methods" not in path.relative_to(PACKAGE).parts]


def offences(source: str) -> set[str]:
    """The texts of a source that name a method, or a part of one's flags or figures, and its imports of a method."""
    tree = ast.parse(source)
    with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, with_docstring) and _has(node)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if NAMED.search(node.value) or re.search(r"(?<!\w)methods\.(?!base\b)\w", node.value):
                found.add(node.value)
        elif isinstance(node, ast.ImportFrom) and re.match(r"openrlhf_stare\.methods\.(?!base\b)\w", node.module):
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if ".methods." in alias.name}
    return found


def _has(node: ast.AST) -> bool:
    return bool(ast.get_docstring(node, clean=False)) if node.body else False


def test_no_room_but_methods_names_a_method():
    assert len(SOURCES) > 50
    found = {str(path.relative_to(PACKAGE)): offences(path.read_text()) for path in SOURCES}
    assert {path: texts for path, texts in found.items() if texts - EXCEPTIONS.get(path, set())} == {}
    assert {path for path, texts in found.items() if texts} == EXCEPTIONS.keys(), "an exception is not needed"


@pytest.mark.parametrize(
    "source, text",
    [
        ('if args.policy_loss == "kl_cov":\n    pass', "kl_cov"),
        ('NEED_STEPS = ("kl_cov", "ce_gppo")', "ce_gppo"),
        ('figures["stare/tau_positive"]', "stare/tau_positive"),
        ('print(f"give --entropy_bonus.coefficient {value}")', "give --entropy_bonus.coefficient "),
        ("from openrlhf_stare.methods.stare import surprisal", "openrlhf_stare.methods.stare"),
        ("import openrlhf_stare.methods.kl_cov", "openrlhf_stare.methods.kl_cov"),
        ('def f():\n    """kl_cov"""\n    return "repo"', "repo"),
    ],
)
def test_a_planted_offence_is_found(source, text):
    assert text in offences(source)


@pytest.mark.parametrize(
    "source", ['"""The figures of kl_cov."""', "# stare\nx = 1", 'x = "openrlhf_stare"', 'x = "a repository"']
)
def test_what_is_no_offence(source):
    assert offences(source) == set()
