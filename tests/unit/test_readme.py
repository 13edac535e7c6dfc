"""What the README says of flags, metrics, paths and results is what the code says."""

import dataclasses
import doctest
import re
import shlex
from pathlib import Path

import pytest
from flag_parser import parse, parser_with_ours

from openrlhf_stare import TpoConfig
from openrlhf_stare.driver import checks, resources

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FIELDS = {
    f"--{method}.{field.name}": field
    for method, config in checks.CONFIGS.items()
    for field in dataclasses.fields(config)
    if field.default is not True  # a switch that is on has two flags
}
OPTION = rf"--(?:{'|'.join(checks.CONFIGS)})\.\w+"


def rows(first_cell: str) -> dict[str, list[str]]:
    """The table rows whose first cell is code and matches: that code -> the other cells."""
    found = re.findall(rf"^\| `({first_cell})` \| (.*) \|$", README, re.MULTILINE)
    names = [name for name, _ in found]
    assert len(names) == len(set(names)), "a row is there twice"
    return {name: re.split(r" ?\| ?", cells) for name, cells in found}


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


# Flags


@pytest.mark.parametrize("flag, field", FIELDS.items(), ids=FIELDS)
def test_the_row_of_an_option_has_its_values_its_default_and_its_help(flag, field):
    choices = field.metadata["choices"]
    values = (
        ", ".join(f"`{choice}`" for choice in choices) if choices else "on" if field.default is False else "number"
    )
    assert rows(OPTION)[flag] == [values, f"`{field.default}`", field.metadata["help"]]


def test_the_table_has_no_option_that_is_not_there():
    assert rows(OPTION).keys() == FIELDS.keys()


def test_the_row_of_the_policy_loss():
    values, default, _ = rows("--policy_loss")["--policy_loss"]
    assert values == ", ".join(f"`{name}`" for name in checks.POLICY_LOSSES)
    assert default == f"`{parse().policy_loss}`"


def test_every_flag_of_the_command_that_is_mentioned_exists():
    mentioned = set(re.findall(r"--[a-z]\w*(?:\.\w+)*", README))
    ours = {flag for flag in mentioned if "." in flag or "_" in flag}  # the flags of ray and pip have neither
    assert len(ours) > 40
    assert ours <= parser_with_ours()._option_string_actions.keys()


def test_the_cluster_command_is_accepted_and_needs_what_the_readme_says():
    (command,) = (block for block in fenced("bash") if "ray job submit" in block)
    words = shlex.split(command.replace("\\\n", ""))
    args = parse(*words[words.index("openrlhf_stare.train_ray") + 1 :])
    assert checks.check(args) == []
    needs = resources.required(args)
    assert f"{needs.gpus} GPUs and {needs.cpus} CPUs" in README


# Metrics


def test_the_metrics_are_those_that_the_code_logs():
    sources = [path.read_text() for path in (ROOT / "openrlhf_stare/actor_group").glob("*.py")]
    metric = r"stare/\w+|soft_advantage_(?:mean|std)"
    logged = {name for source in sources for name in re.findall(rf"\"({metric})\"", source)}
    assert len(logged) > 10
    assert rows(metric).keys() == logged


def test_a_switch_has_a_row_with_both_its_flags():
    _, normalize = dataclasses.fields(TpoConfig)
    flags = "--tpo.length_normalize`, `--tpo.no_length_normalize"
    default = "on" if normalize.default else "off"
    assert rows(re.escape(flags)) == {flags: ["on, off", default, normalize.metadata["help"]]}


def test_the_metrics_of_tpo_are_those_that_its_trainer_logs():
    source = (ROOT / "openrlhf_stare/actor_group/target_trainer.py").read_text()
    logged = set(re.findall(r"\"(tpo/\w+)\"", source))
    assert len(logged) == 4 and rows(r"tpo/\w+").keys() == logged


# Examples and paths


def test_the_worked_example_gives_what_is_printed():
    examples = "\n".join(fenced("python"))
    test = doctest.DocTestParser().get_doctest(examples, {}, "README.md", "README.md", 0)
    assert len(test.examples) > 10
    said = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


def test_every_refusal_that_is_quoted_is_what_is_said():
    quoted = re.findall(r"^train_ray: error: (--stare\.(\w+) (\S+) .*)$", README, re.MULTILINE)
    assert quoted
    for sentence, name, value in quoted:
        with pytest.raises(checks.UsageError) as caught:
            checks.check(parse(f"--stare.{name}", value))
        assert str(caught.value) == sentence


def test_every_path_of_the_repository_that_is_mentioned_exists():
    paths = set(re.findall(r"(?<![\w./])(?:openrlhf_stare|launch|tests|\.ci)/[\w./-]*[\w/]", README)) | {"LICENSE"}
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    folders = [path for path in paths if path.endswith("/")]
    assert all((ROOT / folder).is_dir() for folder in folders)
