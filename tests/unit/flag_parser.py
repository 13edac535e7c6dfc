"""OpenRLHF's own parser with our flags, as the command builds it, without starting the command."""

import argparse
import importlib.util
from pathlib import Path
from types import SimpleNamespace

from openrlhf_stare.driver import command, flags

OPENRLHF = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])
openrlhf_parser = command.parser


def parser_with_ours() -> argparse.ArgumentParser:
    parser = command.parser()
    flags.add_flags(parser)
    return parser


def parse(*words: str) -> SimpleNamespace:
    return command.nested(flags.parse(list(words)))
