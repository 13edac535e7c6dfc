"""OpenRLHF's own parser with our flags, as the command builds it, without starting the command."""

import argparse
import ast
import importlib.util
from datetime import datetime
from pathlib import Path

from openrlhf_stare.driver import checks

OPENRLHF = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])


def load_hierarchize():
    """The function that nests the flags; its file imports nothing, unlike the package that it is in."""
    spec = importlib.util.spec_from_file_location("openrlhf_utils_config", OPENRLHF / "utils" / "config.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.hierarchize


hierarchize = load_hierarchize()


def parser_block():
    """The statements of the installed command that build its parser, up to the one that parses."""
    tree = ast.parse((OPENRLHF / "cli" / "train_ppo_ray.py").read_text())
    (main,) = (node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
    (end,) = (i for i, node in enumerate(main.body) if ast.unparse(node) == "args = parser.parse_args()")
    return compile(ast.Module(main.body[:end], type_ignores=[]), "train_ppo_ray.py", "exec")


PARSER_BLOCK = parser_block()


def openrlhf_parser() -> argparse.ArgumentParser:
    names = {"argparse": argparse, "datetime": datetime}
    exec(PARSER_BLOCK, names)
    return names["parser"]


def parser_with_ours() -> argparse.ArgumentParser:
    parser = openrlhf_parser()
    checks.add_flags(parser)
    return parser


def parse(*words: str):
    return hierarchize(parser_with_ours().parse_args(words))
