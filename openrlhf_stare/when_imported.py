"""Change a module at the moment it is imported, so that nothing heavy is imported only to be changed.

Ray starts many worker processes and vLLM several more; each of them gets our changes announced here when it starts, in
microseconds, and pays for OpenRLHF or vLLM only if it imports them itself.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


class _PatchingLoader(importlib.abc.Loader):
    def __init__(
        self, loader: importlib.abc.Loader, during: Callable[[], AbstractContextManager], patches: list[Patch]
    ) -> None:
        self.loader, self.during, self.patches = loader, during, patches

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self.during():
            self.loader.exec_module(module)
        for patch in self.patches:
            patch(module)

    def __getattr__(self, name: str) -> Any:  # get_code, get_source, … as runpy and inspect want them
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.patches: dict[str, list[Patch]] = {}
        self.during: dict[str, Callable[[], AbstractContextManager]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not (name in self.patches or name in self.during):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec and spec.loader:
                spec.loader = _PatchingLoader(
                    spec.loader, self.during.get(name, nullcontext), self.patches.setdefault(name, [])
                )
                return spec
        return None


_finder = _Finder()


def patch_when_imported(name: str, patch: Patch) -> None:
    """Call `patch(module)` right after the module is imported; at once if it already is."""
    if name in sys.modules:
        patch(sys.modules[name])
        return
    _install_finder()
    _finder.patches.setdefault(name, []).append(patch)


def hold_during_import(name: str, context: Callable[[], AbstractContextManager]) -> None:
    """Run the module's own code inside `context()` when it is imported. Without effect if it already is."""
    _install_finder()
    _finder.during[name] = context


def _install_finder() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
