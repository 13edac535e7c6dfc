"""Nothing of OpenRLHF, DeepSpeed, vLLM, Ray or torch is replaced but by `replacing.py`, and so by the table.

Read from the sources. What is looked for is anything that changes a module or class that another package has made.
"""

import ast
import sys
from pathlib import Path

import pytest

from openrlhf_stare.substitutions import TABLE

PACKAGE = "openrlhf_stare"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE
REPLACING = {"replacing.py", "when_imported.py"}  # the two that do it
# What looks like a replacement and is none of what the table is about.
EXCEPTIONS = {
    # Modules of ours, which stand in for flash_attn while a module of OpenRLHF is imported: a row of the table.
    ("without_flash_attn/stand_ins.py", "sys.modules"),
    ("without_flash_attn/stand_ins.py", "setattr(names['flash_attn.bert_padding'])"),
    ("methods/base.py", "sys.modules"),  # a user's own method gets its name
    ("rewards/math_worker.py", "grader.sympy_numeric_eq"),  # math-verify's, in the process of the verifier alone
    ("rewards/reasoning_gym_worker.py", "vars(builtins)"),  # Python's eval, in the process of a scorer alone
}
PATCHERS = {"patch_when_imported", "hold_during_import"}
PARTS = ("__class__", "__bases__", "__dict__", "__code__", "__defaults__")


class Foreign(ast.NodeVisitor):
    """The replacements in one source, as text."""

    def __init__(self, source: str) -> None:
        self.found: list[str] = []
        tree = ast.parse(source)
        # Names by which the source knows something of another package, wherever they are imported or derived.
        self.foreign: set[str] = set()
        self.mock: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._take(node)
        for _ in range(3):  # a name for a name for a name
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and self._is_foreign(node.value):
                    self.foreign |= {name.id for target in node.targets for name in ast.walk(target) if _stores(name)}
                elif isinstance(node, ast.arg) and node.annotation and "Module" in ast.unparse(node.annotation):
                    self.foreign.add(node.arg)
        self.visit(tree)

    def _take(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            module = alias.name if isinstance(node, ast.Import) else node.module
            name = alias.asname or alias.name.partition(".")[0]
            if module.startswith("unittest"):
                self.mock.add(name)
            elif module.partition(".")[0] not in (*sys.stdlib_module_names, PACKAGE):
                self.foreign.add(name)

    def _is_foreign(self, node: ast.AST) -> bool:
        """Whether an expression is a foreign module or class: a dotted name, or what finds one."""
        text = ast.unparse(node)
        if any(finder in text for finder in ("import_module(", "sys.modules", "__ray_metadata__", "plain_class(")):
            return True
        if isinstance(node, ast.Call):
            return False  # an object, unless it was found above
        root = _root(node)
        if root not in self.foreign:
            return False
        return True

    def _target(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            # `module.Class.method` of any origin, or an attribute of what is foreign, or an object's class.
            owner = text.rpartition(".")[0]
            of_a_class = any(part[:1].isupper() for part in owner.split(".")[1:] if part.isidentifier())
            if self._is_foreign(node.value) or of_a_class or node.attr in PARTS:
                self.found.append(text)
        elif isinstance(node, ast.Subscript):
            text = ast.unparse(node.value)
            if text == "sys.modules" or ".__dict__" in text or text.startswith(("vars(", "globals(")):
                self.found.append(text)
        elif isinstance(node, ast.Tuple | ast.List):
            for inner in node.elts:
                self._target(inner)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._target(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._target(node.target)
        self.generic_visit(node)

    visit_AnnAssign = visit_AugAssign

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._target(target)

    def visit_Call(self, node: ast.Call) -> None:
        text = ast.unparse(node.func)
        first = ast.unparse(node.args[0]) if node.args else ""
        if text in ("setattr", "delattr") and first != "self" and not first.startswith("self."):
            self.found.append(f"{text}({first})")
        elif text.partition(".")[0] in self.mock or text.rpartition(".")[2] in PATCHERS:
            self.found.append(f"{text}({first})")
        elif text in ("sys.modules.update", "sys.modules.setdefault", "sys.modules.pop"):
            self.found.append("sys.modules")
        elif text.endswith((".__dict__.update", ".__setattr__", ".__delattr__")) and first != "self":
            self.found.append(f"{text}({first})")
        elif text.startswith("vars(") and text.endswith(".update"):
            self.found.append(text)
        self.generic_visit(node)


def _stores(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


PLACES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("place", [place for place in PLACES if place not in REPLACING])
def test_nothing_foreign_is_replaced_but_by_the_table(place):
    found = Foreign((ROOT / place).read_text()).found
    assert [text for text in found if (place, text) not in EXCEPTIONS] == []


def test_both_that_do_it_are_found_to_do_it():
    assert all(
        Foreign((ROOT / place).read_text()).found for place in ("replacing.py", "without_flash_attn/stand_ins.py")
    )


OFFENCES = [
    "from unittest.mock import patch\nwith patch.object(loss, 'forward', None): pass",
    "from unittest import mock\nmock.patch('openrlhf.models.actor.compute_entropy', None).start()",
    "import openrlhf.models.actor as actor\nsetattr(actor, 'compute_entropy', None)",
    "import openrlhf.models.actor\nopenrlhf.models.actor.compute_entropy = None",
    "from openrlhf.models import PolicyLoss\nPolicyLoss.forward = None",
    "from openrlhf.models import PolicyLoss as Loss\nLoss.forward, other = None, 1",
    "def change(module):\n    module.SamplesGenerator.generate_samples = None",
    "def change(module: ModuleType):\n    module.balance_experiences = None",
    "import ray\ndef change():\n    ray.init = None",
    "import importlib\nmodule = importlib.import_module('vllm.v1.worker')\nmodule.cuda = None",
    "actor = ppo_actor.PolicyModelActor.__ray_metadata__.modified_class\nactor.fit = None",
    "import sys\nsys.modules['flash_attn'] = None",
    "import torch\ntorch.cuda.__dict__['synchronize'] = None",
    "import torch\nvars(torch.cuda).update(synchronize=None)",
    "import torch\ndel torch.cuda.synchronize",
    "engine.__class__ = Ours",
    "import torch\ncuda = torch.cuda\nbackends = cuda\nbackends.synchronize = None",
    "from openrlhf_stare.when_imported import patch_when_imported\npatch_when_imported('torch', change)",
]


@pytest.mark.parametrize("offence", OFFENCES)
def test_a_planted_offence_is_found(offence):
    assert Foreign(offence).found


@pytest.mark.parametrize(
    "harmless",
    [
        "class Ours:\n    def __init__(self, experience):\n        self.loss = 1\n        experience.info = {}",
        "import os, sys\nos.environ['A'] = 'b'\nsys.stdout = None",
        "import torch\nx = torch.zeros(3)\nx.grad = None\nx[0] = 1",
        "trainer.actor_loss_fn = Loss()",
    ],
)
def test_what_is_ours_or_an_object_is_no_offence(harmless):
    assert Foreign(harmless).found == []


def test_the_places_that_are_replaced_for_a_while_are_in_the_table():
    """`replaced` refuses others, but only when it is called."""
    places = {row.place for row in TABLE if row.during}
    named = []
    for place in PLACES:
        tree = ast.parse((ROOT / place).read_text())
        constants = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "replaced":
                first = node.args[0]
                named.append(first.value if isinstance(first, ast.Constant) else constants.get(first.id))
    assert set(named) <= places and len(named) > 5
