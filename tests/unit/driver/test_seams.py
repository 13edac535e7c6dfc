"""Another version of OpenRLHF is refused at start, by the name of what is missing."""

import importlib
import importlib.metadata
import keyword
import re
import sys

import pytest

from openrlhf_stare.driver import seams
from openrlhf_stare.runtime import substitutions
from openrlhf_stare.substitutions import USED

FOUND = importlib.metadata.version("openrlhf")
RELIED_ON = list(dict.fromkeys([*USED, *(theirs for row in substitutions() for theirs in row.of_theirs)]))
EVERY_ARGUMENT = [(theirs, name) for theirs in RELIED_ON for name in theirs.arguments]
EVERY_MENTION = [(theirs, name) for theirs in RELIED_ON for name in theirs.mentions]


def named(value) -> str:
    return getattr(value, "place", value)


@pytest.fixture
def without(monkeypatch):
    """Their sources, in which a word is another."""
    source = seams.source

    def rename(module: str, word: str) -> None:
        pattern = rf'(?<="){word}(?=")' if keyword.iskeyword(word) else rf"\b{word}\b"
        renamed = re.sub(pattern, f"another_{word.lower()}", source(module))
        monkeypatch.setattr(seams, "source", lambda asked: renamed if asked == module else source(asked))

    return rename


def refusal(insist: bool = False) -> str:
    with pytest.raises(seams.MissingSeam) as error:
        seams.check(insist)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_installed_openrlhf_is_supported_and_has_everything_which_is_seen_without_importing_it():
    assert FOUND in seams.SUPPORTED
    for cached in (seams.source, seams._tree):
        cached.cache_clear()
    imported = set(sys.modules)
    seams.check()
    assert not {name for name in set(sys.modules) - imported if not name.startswith("packaging")}


@pytest.mark.parametrize("theirs", RELIED_ON, ids=named)
def test_a_missing_place_is_named_with_the_versions(theirs, without):
    without(theirs.module, theirs.name.rpartition(".")[2])
    assert seams.missing(theirs) == [theirs.place]


@pytest.mark.parametrize(("theirs", "name"), EVERY_ARGUMENT, ids=named)
def test_a_missing_argument_is_named(theirs, name, without):
    without(theirs.module, name)
    assert f"{theirs.place}({name})" in seams.missing(theirs)


@pytest.mark.parametrize(("theirs", "name"), EVERY_MENTION, ids=named)
def test_a_missing_attribute_or_key_is_named(theirs, name, without):
    without(theirs.module, name)
    assert {f"{theirs.place} with {name}", theirs.place} & set(seams.missing(theirs))


def test_the_refusal_names_what_is_missing_the_version_found_and_those_supported(without):
    without("openrlhf.models.actor", "compute_entropy")
    assert refusal() == (
        f"OpenRLHF {FOUND} has no openrlhf.models.actor.compute_entropy, which openrlhf-stare needs: "
        f"install openrlhf=={seams.SUPPORTED[0]}"
    )


def test_of_several_the_first_two_are_named(without):
    without("openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer")
    said = refusal()
    place = "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer"
    assert re.search(rf"^OpenRLHF {FOUND} has no {place}\S* and \d+ more, such as {place}", said), said


def test_a_missing_module_is_a_missing_seam(monkeypatch):
    gone = seams.Theirs("openrlhf.trainer.gone", "Trainer")
    assert seams.missing(gone) == ["openrlhf.trainer.gone.Trainer"]
    assert seams.missing(seams.Theirs("no_such_library.part", "name")) == ["no_such_library.part.name"]


def test_without_openrlhf_the_sentence_says_what_to_install(monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    sentence = f"OpenRLHF is not installed: install openrlhf==0.11.2, or where there is no GPU: {seams.WITHOUT_A_GPU}"
    assert refusal() == refusal(insist=True) == sentence


@pytest.mark.parametrize("version", ["0.11.1", "0.9.10", "0.11.2rc1", "0.12.0"])
def test_an_openrlhf_of_another_version_is_refused_unless_the_flag_insists(monkeypatch, capsys, without, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    said = refusal()
    assert said.startswith(f"OpenRLHF {version} is not 0.11.2, ")
    assert said.endswith(
        "install openrlhf==0.11.2, or add --any_openrlhf to take this one if it has all that is needed"
    )
    seams.check(insist=True)
    said = capsys.readouterr().err
    assert f"OpenRLHF {version} has all that openrlhf-stare needs, but only 0.11.2 has been tried" in said
    without("openrlhf.models.actor", "compute_entropy")
    assert refusal(insist=True).startswith(f"OpenRLHF {version} has no openrlhf.models.actor.compute_entropy,")


def test_what_openrlhf_misses_itself_is_not_called_a_seam(monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(seams.MissingSeam) as error:
        seams.import_command()
    assert str(error.value) == (
        "OpenRLHF cannot be imported, since flash_attn is not installed as it needs it (No module named "
        "'flash_attn'): install that, or all that OpenRLHF needs with its extras"
    )


def test_an_import_error_of_openrlhf_s_own_stays_what_it_is(monkeypatch):
    def import_module(name):
        raise ImportError("cannot import name 'x' from 'openrlhf.y'", name="openrlhf.y")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(ImportError, match="cannot import name 'x'"):
        seams.import_command()
