"""OpenRLHF's command `train_ppo_ray`, taken apart: its parser, its own checks of the flags, and its `train`.

Importing that module takes DeepSpeed and vLLM along, and its parser and checks are under `if __name__ == "__main__"`.
So that block is taken from its file and run by itself, in milliseconds; the module is imported only to train.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace

from openrlhf_stare.driver.seams import INSTALL, MissingSeam
from openrlhf_stare.options import UsageError

PARSING = "args = parser.parse_args()"  # the statement between the two halves of the block


def parser() -> argparse.ArgumentParser:
    """OpenRLHF's parser with all its flags, and none of ours."""
    names: dict = {}
    exec(_block()[0], names)
    return names["parser"]


def settle(flat: argparse.Namespace) -> SimpleNamespace:
    """OpenRLHF's own checks and adjustments of its parsed flags -> the nested arguments that its `train` gets.

    Raises:
        UsageError: OpenRLHF refuses the flags.
    """
    args = nested(flat)
    if not (args.train.agent_func_path or args.reward.remote_url or args.reward.model_name_or_path):
        raise UsageError(
            "nothing scores the responses: give --reward.remote_url (a Python file with a reward_func, or an "
            "address), --train.agent_func_path or --reward.model_name_or_path"
        )
    if (args.vllm.num_engines or 0) < 1:
        raise UsageError(
            f"--vllm.num_engines {args.vllm.num_engines or 0} leaves no engine to sample responses: give 1 or more"
        )
    making, settling = _block()
    trained: list[SimpleNamespace] = []
    names: dict = {}
    exec(making, names)
    names |= {"args": copy.deepcopy(flat), "hierarchize": nested, "train": trained.append}
    try:
        exec(settling, names)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "modelscope":
            raise
        raise UsageError("--use_ms needs the package modelscope, which is not installed: install it") from None
    except AssertionError as error:
        sentence = " ".join(str(error).split()).rstrip(".")
        raise UsageError(f"OpenRLHF refuses these flags: {sentence}") from None
    [settled] = trained
    return settled


def nested(flat: argparse.Namespace) -> SimpleNamespace:
    """OpenRLHF's `hierarchize`: the flag `--stare.variant` becomes `args.stare.variant`."""
    return _hierarchize()(flat)


@functools.cache
def _hierarchize() -> Callable[[argparse.Namespace], SimpleNamespace]:
    # From its file: importing it as openrlhf.utils.config takes transformers along, some five seconds.
    spec = importlib.util.spec_from_file_location("openrlhf_utils_config", _folder() / "utils" / "config.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.hierarchize


@functools.cache
def _block() -> tuple[CodeType, CodeType]:
    """The statements that make the parser, below the module's imports of the standard library; those that check."""
    tree = ast.parse((_folder() / "cli" / "train_ppo_ray.py").read_text())
    *_, last = tree.body
    block = last.body if isinstance(last, ast.If) else []
    statements = [ast.unparse(node) for node in block]
    if PARSING not in statements or statements[-1] != "train(args)":
        raise MissingSeam(
            f"OpenRLHF's train_ppo_ray.py does not end with `{PARSING}`, its checks and `train(args)`, which "
            f"openrlhf-stare needs: {INSTALL}"
        )
    middle = statements.index(PARSING)
    imports = [node for node in tree.body if _is_standard(node)]
    checks = [node for node in block[middle + 1 :] if "import hierarchize" not in ast.unparse(node)]
    return _compiled([*imports, *block[:middle]]), _compiled(checks)


def _compiled(statements: list[ast.stmt]) -> CodeType:
    return compile(ast.Module(statements, type_ignores=[]), "train_ppo_ray.py", "exec")


def _is_standard(node: ast.stmt) -> bool:
    """Whether a statement imports from the standard library."""
    match node:
        case ast.Import(names=[ast.alias(name=name)]) | ast.ImportFrom(module=str(name)):
            return name.split(".")[0] in sys.stdlib_module_names
    return False


def _folder() -> Path:
    package = importlib.util.find_spec("openrlhf")
    assert package and package.submodule_search_locations
    return Path(package.submodule_search_locations[0])
