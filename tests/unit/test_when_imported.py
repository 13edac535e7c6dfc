"""Modules that are changed when they are imported, and everything else that goes on as before."""

import importlib
import importlib.util
import inspect
import pkgutil
import runpy
import sys
from contextlib import contextmanager

import pytest

from openrlhf_stare import when_imported
from openrlhf_stare.when_imported import hold_during_import, patch_when_imported

MODULE = """\
import sys
print_during = list(getattr(sys, "held", []))
value = 1

def double():
    return 2 * value
"""


@pytest.fixture(autouse=True)
def packages(tmp_path, monkeypatch):
    """A package `outer` with the modules `one` and `two` and the package `outer.inner` with a `three`."""
    for folder in ("outer", "outer/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("value = 0\n")
    for module in ("outer/one", "outer/two", "outer/inner/three"):
        (tmp_path / f"{module}.py").write_text(MODULE)
    (tmp_path / "outer/inner/data.txt").write_text("data")
    (tmp_path / "outer/broken.py").write_text("raise OSError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = when_imported._Finder()
    monkeypatch.setattr(when_imported, "_finder", finder)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("outer", "elsewhere")]:
        del sys.modules[name]


def set_to(value):
    return lambda module: setattr(module, "value", value)


def test_a_patch_waits_for_the_import_and_comes_after_the_modules_own_code():
    patch_when_imported("outer.one", set_to(5))
    assert "outer" not in sys.modules
    import outer.one

    assert (outer.one.value, outer.one.double()) == (5, 10)


def test_what_is_imported_from_a_patched_module_is_patched():
    patch_when_imported("outer.one", lambda module: setattr(module, "double", lambda: "changed"))
    from outer.one import double

    assert double() == "changed"


def test_a_module_that_is_imported_already_is_patched_at_once():
    import outer.one

    patch_when_imported("outer.one", set_to(5))
    assert outer.one.value == 5


def test_patches_come_in_the_order_in_which_they_were_announced():
    patch_when_imported("outer.one", set_to("first"))
    patch_when_imported("outer.one", lambda module: setattr(module, "value", module.value + " second"))
    import outer.one

    assert outer.one.value == "first second"
    patch_when_imported("outer.one", lambda module: setattr(module, "value", module.value + " third"))
    assert outer.one.value == "first second third"


def test_a_module_is_patched_once_however_often_it_is_imported_and_once_more_when_reloaded():
    calls = []
    patch_when_imported("outer.one", calls.append)
    for _ in range(3):
        module = importlib.import_module("outer.one")
    assert calls == [module]
    importlib.reload(module)
    assert calls == [module, module]


def test_parents_and_neighbours_are_left_alone():
    patch_when_imported("outer.inner.three", set_to(5))
    import outer.inner.three
    import outer.two

    assert (outer.value, outer.inner.value, outer.two.value, outer.inner.three.value) == (0, 0, 1, 5)
    for module in (outer, outer.inner, outer.two):
        assert not isinstance(module.__spec__.loader, when_imported._PatchingLoader)


def test_a_package_can_be_patched():
    patch_when_imported("outer.inner", set_to(5))
    import outer.inner.three

    assert (outer.inner.value, outer.inner.three.value) == (5, 1)


@contextmanager
def held(name):
    sys.held = [*getattr(sys, "held", []), name]
    try:
        yield
    finally:
        del sys.held


def test_a_context_is_held_while_the_modules_own_code_runs_and_no_longer():
    seen_by_patch = []
    hold_during_import("outer.one", lambda: held("context"))
    patch_when_imported("outer.one", lambda module: seen_by_patch.append(hasattr(sys, "held")))
    import outer.one
    import outer.two

    assert outer.one.print_during == ["context"]
    assert outer.two.print_during == []
    assert seen_by_patch == [False]
    assert not hasattr(sys, "held")


def test_a_context_without_a_patch_will_do():
    hold_during_import("outer.one", lambda: held("context"))
    import outer.one

    assert outer.one.print_during == ["context"]


def test_a_context_ends_with_an_import_that_fails():
    hold_during_import("outer.broken", lambda: held("context"))
    with pytest.raises(OSError, match="broken"):
        importlib.import_module("outer.broken")
    assert not hasattr(sys, "held")
    assert "outer.broken" not in sys.modules


def test_a_patch_that_fails_fails_the_import():
    """A module must not be used as if it had been changed."""

    def fail(module):
        raise AttributeError("no such seam")

    patch_when_imported("outer.one", fail)
    for _ in range(2):
        with pytest.raises(AttributeError, match="no such seam"):
            importlib.import_module("outer.one")


def test_a_module_that_does_not_exist_is_still_not_found():
    patch_when_imported("outer.missing", set_to(5))
    patch_when_imported("no_such_package.missing", set_to(5))
    assert importlib.util.find_spec("outer.missing") is None
    with pytest.raises(ModuleNotFoundError, match="outer.missing"):
        importlib.import_module("outer.missing")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("no_such_package.missing")


def test_looking_for_a_module_does_not_import_it():
    calls = []
    patch_when_imported("outer.one", calls.append)
    spec = importlib.util.find_spec("outer.one")
    assert (spec.name, spec.origin[-6:]) == ("outer.one", "one.py")
    assert "outer.one" not in sys.modules and calls == []
    import outer.one

    assert importlib.util.find_spec("outer.one") is outer.one.__spec__
    assert calls == [outer.one]


def test_source_and_data_of_a_patched_module_are_found(tmp_path):
    patch_when_imported("outer.one", set_to(5))
    patch_when_imported("outer.inner", set_to(5))
    import outer.inner
    import outer.one

    assert inspect.getsource(outer.one) == MODULE
    assert "return 2 * value" in inspect.getsource(outer.one.double)
    assert outer.one.__loader__.get_source("outer.one") == MODULE
    assert pkgutil.get_data("outer.inner", "data.txt") == b"data"
    assert [module.name for module in pkgutil.iter_modules(outer.inner.__path__)] == ["three"]


def test_a_patched_module_runs_as_a_command():
    patch_when_imported("outer.one", set_to(5))
    assert runpy.run_module("outer.one", run_name="__main__")["value"] == 1


def test_finders_of_others_are_asked_too(monkeypatch):
    """An editable installation is found by a finder of its own."""
    spec = importlib.util.find_spec("outer.two")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "elsewhere":
                return importlib.util.spec_from_file_location("elsewhere", spec.origin)
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    patch_when_imported("elsewhere", set_to(5))
    assert importlib.import_module("elsewhere").value == 5
