"""The only code that puts something of ours in the place of something of theirs, by the table in substitutions.py."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from openrlhf_stare.substitutions import TABLE, Substitution
from openrlhf_stare.when_imported import hold_during_import, patch_when_imported

_without: set[str | None] = set()  # for whose lack the table's rows have been announced
_announced: set[Substitution] = set()  # what is always to stand in its place in this process
_standing: set[Substitution] = set()  # what of it has been put there


def announce(missing: str | None) -> None:
    """Have all that stands there always put in place when its module is imported, once: the table's rows for where
    there is none of `missing`, or for everywhere.

    Cheap: neither theirs nor ours is imported here.
    """
    if missing in _without:
        return
    _without.add(missing)
    for row in TABLE:
        if row.missing != missing:
            continue
        if not row.name:
            hold_during_import(row.module, functools.partial(_call, row.by))
        elif row.during is None:
            _announced.add(row)
            patch_when_imported(row.module, functools.partial(_install, row))
            if not row.wraps:  # ours may be imported first, and is not ready then while it imports theirs
                patch_when_imported(row.by.rpartition(".")[0], functools.partial(_install_after_ours, row))


@contextmanager
def replaced(place: str, by: object, on: object | None = None) -> Iterator[None]:
    """Have `by` stand at a place for a while.

    Args:
        place: the dotted place, as in a row of the table that says for how long.
        on: the object of theirs that has the attribute, where the row's place is one of an instance.

    Raises:
        LookupError: no row of the table is about a replacement of this place for a while.
    """
    rows = [row for row in TABLE if row.place == place and row.during and row.of_instance == (on is not None)]
    if not rows:
        raise LookupError(f"no row of openrlhf_stare/substitutions.py replaces {place} for a while: add one")
    owner = on if on is not None else _owner(importlib.import_module(rows[0].module), rows[0].name)
    with patch.object(owner, place.rpartition(".")[2], by):
        yield


def plain_class(actor_class: Any) -> Any:
    """The class under a Ray actor class, which another class can extend; `Any`, since that is what theirs are here.

    It has copies of all its inherited methods, made by Ray.
    """
    return actor_class.__ray_metadata__.modified_class


def _install_after_ours(row: Substitution, _: ModuleType) -> None:
    if (module := sys.modules.get(row.module)) and not _is_loading(module):
        _install(row, module)


def _install(row: Substitution, module: ModuleType) -> None:
    """Put ours in its place for good, once and in the table's order; later if it is only being imported."""
    for each in [each for each in TABLE if each in _announced and each.place == row.place]:
        ours, name = importlib.import_module(each.by.rpartition(".")[0]), each.by.rpartition(".")[2]
        if each in _standing:
            continue
        if not hasattr(ours, name) and _is_loading(ours):
            return  # the next one may extend it
        _standing.add(each)
        _place(each, module)


def _is_loading(module: ModuleType) -> bool:
    return getattr(module.__spec__, "_initializing", False)


def _place(row: Substitution, module: ModuleType) -> None:
    owner, name = _owner(module, row.name), row.name.rpartition(".")[2]
    theirs: Any = getattr(owner, name, None)
    ours = pkgutil.resolve_name(row.by)
    if row.wraps:
        ours = ours(theirs)
    elif hasattr(theirs, "__ray_metadata__"):  # an actor class: ours becomes one with the same options
        import ray

        options = theirs._default_options
        ours = ray.remote(**options)(ours) if options else ray.remote(ours)
    if isinstance(inspect.getattr_static(owner, name, None), staticmethod):
        ours = staticmethod(ours)
    setattr(owner, name, ours)


def _owner(module: ModuleType, name: str) -> Any:
    """What has the last part of a dotted name as an attribute."""
    return functools.reduce(getattr, name.split(".")[:-1], module)


def _call(path: str) -> Any:
    return pkgutil.resolve_name(path)()
