"""Another version of OpenRLHF is refused at start, by the name of what is missing."""

import importlib
import importlib.metadata

import pytest

from openrlhf_stare import worker
from openrlhf_stare.driver import seams

worker.install()

FOUND = importlib.metadata.version("openrlhf")
EVERY_SEAM = [(module, name) for module, names in seams.SEAMS.items() for name in names]
EVERY_SEAM.remove(("openrlhf.models.actor", "Actor.forward"))  # torch gives every module a forward


def test_the_installed_openrlhf_is_supported_and_has_every_seam():
    assert FOUND in seams.SUPPORTED
    seams.check()


@pytest.mark.parametrize(("module", "name"), EVERY_SEAM, ids=lambda value: value)
def test_a_missing_seam_is_named_with_the_versions(module, name, monkeypatch):
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    for place in getattr(owner, "__mro__", [owner]):  # Ray derives a class of its own from OpenRLHF's
        if last in vars(place):
            monkeypatch.delattr(place, last)
    with pytest.raises(seams.MissingSeam) as error:
        seams.check()
    sentence = str(error.value)
    assert sentence.startswith(f"OpenRLHF {FOUND} has no {module}.{name} ")
    assert sentence.endswith(f"install openrlhf=={seams.SUPPORTED[0]}")
    assert "\n" not in sentence


def test_a_missing_module_is_a_missing_seam(monkeypatch):
    monkeypatch.setattr(seams, "SEAMS", {"openrlhf.trainer.gone": ("Trainer",)})
    with pytest.raises(seams.MissingSeam, match="has no openrlhf.trainer.gone.Trainer"):
        seams.check()


def test_without_openrlhf_the_sentence_says_what_to_install(monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    with pytest.raises(seams.MissingSeam, match=r"not installed: install openrlhf==0\.11\.2"):
        seams.check()


@pytest.mark.parametrize("version", ["0.11.1", "0.9.10", "0.11.2rc1"])
def test_an_older_openrlhf_is_refused_with_every_seam_in_place(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(seams.MissingSeam) as error:
        seams.check()
    assert str(error.value).startswith(f"OpenRLHF {version} is older than 0.11.2, and its entropies and losses")
    assert str(error.value).endswith("install openrlhf==0.11.2") and "\n" not in str(error.value)


def test_a_newer_openrlhf_with_every_seam_is_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12.0")
    seams.check()
    said = capsys.readouterr().err
    assert "OpenRLHF 0.12.0 has all that openrlhf-stare needs, but only 0.11.2 has been tried" in said
