"""What README.md and docs/ say of flags, metrics, commands, links and results is what the code says."""

import dataclasses
import doctest
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from flag_parser import OPENRLHF, openrlhf_parser, parse, parser_with_ours

from openrlhf_stare import EntropyControl, StareOptions, TpoConfig
from openrlhf_stare.driver import checks, flags, resources
from openrlhf_stare.methods import base
from openrlhf_stare.methods.stare import Stare

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCS = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = {"README.md": README} | {f"docs/{name}": text for name, text in DOCS.items()}
EVERYTHING = "\n".join(PAGES.values())
each_page = pytest.mark.parametrize("page", PAGES)

POLICY_LOSSES = (*base.names(), *base.WITHOUT_METHOD, "FILE.py")
FIELDS = {
    f"--{part}.{field.name}": field
    for part, config in ({"entropy": EntropyControl} | flags.method_options() | flags.CONFIGS).items()
    for field in dataclasses.fields(config)
    if field.default is not True  # a switch that is on has two flags
}
SWITCH = "--tpo.length_normalize`, `--tpo.no_length_normalize"  # the one that is on
FLAG = r"--[a-z][\w-]*(?:\.\w+)*"
PARSER_FLAGS = parser_with_ours()._option_string_actions.keys()


def rows(first_cell: str, text: str) -> dict[str, list[str]]:
    """The table rows whose first cell is code and matches: that code -> the other cells."""
    found = re.findall(rf"^\| `({first_cell})` \| (.*) \|$", text, re.MULTILINE)
    names = [name for name, _ in found]
    assert len(names) == len(set(names)), "a row is there twice"
    return {name: re.split(r" ?\| ?", cells) for name, cells in found}


FLAG_ROWS = rows(rf"{FLAG}|{SWITCH}", "\n".join(DOCS.values()))


def fenced(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """What a reader would type: the lines of the bash blocks, and inline code that starts like a command."""
    lines = "".join(fenced("bash", text)).replace("\\\n", "").splitlines()
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(text))]
    starts = re.compile(r"(?:[A-Z_]+=\S* )*(?:bash|python|pip|sbatch|source|ray|ssh) ")
    return [line for line in lines if line.strip()] + [code for code in inline if starts.match(code)]


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


# Pages and links


def test_the_front_door_is_short_and_leads_to_every_page():
    assert len(README.splitlines()) <= 220
    assert set(re.findall(r"\]\(docs/(\w+\.md)\)", README)) == DOCS.keys()


@each_page
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", PAGES[page])
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text()), link


@each_page
def test_a_picture_stands_beside_the_command_that_made_it(page):
    for section in re.split(r"^## ", PAGES[page], flags=re.MULTILINE):
        assert "![" not in section or commands(section)


@each_page
def test_every_path_of_the_repository_that_is_mentioned_exists(page):
    paths = re.findall(r"(?<![\w./])(?:openrlhf_stare|launch|tests|docs|\.ci)/[\w./-]*[\w/]", PAGES[page])
    missing = [
        path for path in paths if not (ROOT / path).exists() and not (ROOT / page).parent.joinpath(path).exists()
    ]
    assert missing == []
    assert all((ROOT / path).is_dir() for path in paths if path.endswith("/"))


# Commands


def source_of(module: str) -> Path:
    """The file that `python -m MODULE` runs, found without importing it."""
    top, *rest = module.split(".")
    package = OPENRLHF if top == "openrlhf" else Path(importlib.util.find_spec(top).origin).parent
    path = package.joinpath(*rest)
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def check_script(script: str, *words: str) -> None:
    """A script of ours: it is there, and knows its words; flags that it does not name itself go to train_ray."""
    text = (ROOT / script).read_text()
    for word in words:
        if word.startswith("-"):
            assert f'"{word}"' in text or word in PARSER_FLAGS, word
        elif not re.fullmatch(r"[A-Z_]+|[\d.]+", word):  # a placeholder, or the value of a flag
            assert word in text or (ROOT / word).exists() or word in POLICY_LOSSES, word


def check_train_ray(*words: str) -> None:
    if words[-1:] == ("...",):
        assert {word for word in words if word.startswith("--")} <= PARSER_FLAGS
    elif words != ("--help",):
        checks.check(parse(*words))


def check_module(module: str, *words: str) -> None:
    source = source_of(module)
    assert source.is_file(), module
    if module == "openrlhf_stare.train_ray":
        check_train_ray(*words)
    elif module.startswith("openrlhf_stare."):
        given = [word for word in words if word.startswith("-")]
        assert [flag for flag in given if f'"{flag}"' not in source.read_text()] == []


def check_pip(*words: str) -> None:
    assert words[0] == "install" and ("-e" in words or words[-1].partition("[")[0] in ("openrlhf-stare", "uv")), words
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    known = re.findall(r"^(\w+) = \[", extras, re.M)
    assert set(re.findall(r"\w+", words[-1].partition("[")[2])) <= set(known)


def check_command(command: str) -> None:
    words = shlex.split(command, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        variable = words.pop(0).partition("=")[0]
        scripts = [path.read_text() for path in (ROOT / "launch").rglob("*.sh")]
        assert any(re.search(rf"\b{variable}\b", script) for script in scripts), variable
    match words:
        case ["bash" | "sbatch", script, *rest]:
            check_script(script, *rest)
        case ["python", "-m", module, *rest]:
            check_module(module, *rest)
        case ["python", script, *rest]:
            check_script(script, *rest)
        case ["pip", *rest] | ["uv", "pip", *rest]:
            check_pip(*rest)
        case ["ray", "job", "submit", *rest]:
            if "--" in rest:
                check_command(shlex.join(rest[rest.index("--") + 1 :]))
        case ["openrlhf-stare", *rest]:
            check_train_ray(*(rest[1:] if rest[:1] == ["quickstart"] else rest))
        case ["uv", "venv", *_] | ["source", ".venv/bin/activate"] | ["ray", "start", *_] | ["ssh", *_]:
            pass
        case _:
            pytest.fail(f"nothing is known of {command}")


@each_page
def test_every_command_could_be_typed(page):
    for command in commands(PAGES[page]):
        check_command(command)


def test_the_pages_have_commands():
    assert sum(len(commands(text)) for text in PAGES.values()) > 40


def test_the_cluster_command_is_accepted_and_needs_what_the_readme_says():
    (command,) = (command for command in commands(README) if command.startswith("ray job submit -"))
    words = shlex.split(command)
    args = parse(*words[words.index("openrlhf_stare.train_ray") + 1 :])
    assert checks.check(args) == []
    needs = resources.required(args)
    assert f"{needs.gpus} GPUs and {needs.cpus} CPUs" in README


# Flags


def test_every_flag_that_we_add_has_a_row_in_docs_and_no_other_has():
    described = {flag for cell in FLAG_ROWS for flag in re.findall(FLAG, cell)}
    added = PARSER_FLAGS - openrlhf_parser()._option_string_actions.keys()
    assert described == added


@pytest.mark.parametrize("flag, field", FIELDS.items(), ids=FIELDS)
def test_the_row_of_an_option_has_its_values_its_default_and_its_help(flag, field):
    choices = field.metadata["choices"]
    number = "number, percentage" if field.metadata["percent"] else "number"
    values = ", ".join(f"`{choice}`" for choice in choices) if choices else "on" if field.default is False else number
    # Of a flag of the controller a method can have a default of its own, and of a method's a schedule.
    method = flags.methods().get(flag[2:].partition(".")[0])
    shown = base.option_default(method, field.name) if method else str(field.default)
    default, *of_methods = (base.control_default(field.name) if "--entropy." in flag else shown).split("; ")
    assert FLAG_ROWS[flag] == [values, "; ".join([f"`{default}`", *of_methods]), field.metadata["help"]]


def test_a_switch_has_a_row_with_both_its_flags():
    _, normalize = dataclasses.fields(TpoConfig)
    default = "on" if normalize.default else "off"
    assert FLAG_ROWS[SWITCH] == ["on, off", default, normalize.metadata["help"]]


def test_the_row_of_the_policy_loss():
    values, default, _ = FLAG_ROWS["--policy_loss"]
    assert values == ", ".join(f"`{name}`" for name in POLICY_LOSSES)
    assert default == f"`{parse().policy_loss}`"


def test_a_flag_has_its_row_in_one_page_alone():
    assert rows(FLAG, README) == {}
    assert {"--policy_loss", "--entropy.target", "--entropy.schedule", "--preflight"} <= FLAG_ROWS.keys()


@each_page
def test_every_flag_that_is_mentioned_exists(page):
    mentioned = set(re.findall(rf"(?<![\w-]){FLAG}", PAGES[page]))
    of_the_command = {flag for flag in mentioned if "." in flag or "_" in flag}
    assert of_the_command <= PARSER_FLAGS
    sources = [*ROOT.glob("openrlhf_stare/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("launch/**/*.*")]
    ours = "\n".join(path.read_text() for path in sources if path.suffix in (".py", ".sh"))
    assert [flag for flag in mentioned - of_the_command if not re.search(rf"{flag}\b", ours)] == []


# Metrics


def test_the_metrics_are_those_that_the_code_logs():
    logging = [
        path for path in (ROOT / "openrlhf_stare").rglob("*.py") if path.parent.name not in ("report", "driver")
    ]
    metric = rf"(?:entropy|tpo|{'|'.join(base.names())})/\w+|soft_advantage_(?:mean|std)"
    logged = {name for path in logging for name in re.findall(rf"\"({metric})\"", path.read_text())}
    assert len(logged) > 20
    made = {name: Stare(StareOptions(variant="C2")) if name == "stare" else base.find(name)() for name in base.names()}
    strengths = {f"{name}/{strength.name}" for name, method in made.items() for strength in method.strengths}
    assert rows(metric, EVERYTHING).keys() == logged | strengths


# Examples


def test_the_worked_examples_give_what_is_printed():
    examples = "\n".join(fenced("python", DOCS["library_use.md"]))
    test = doctest.DocTestParser().get_doctest(examples, {}, "library_use.md", "library_use.md", 0)
    assert len(test.examples) > 10
    said = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


def test_the_method_of_ones_own_is_the_one_that_is_trained_with():
    path = "tests/pipeline/methods/surprisal_weights.py"
    (shown,) = fenced("python", DOCS["methods.md"])
    assert shown == (ROOT / path).read_text() and len(shown.splitlines()) <= 25
    assert (
        f"`{path}`" in DOCS["methods.md"]
        and base.name_of(path) in (ROOT / "tests/pipeline/test_resume.py").read_text()
    )
    assert base.load(ROOT / path).strengths[0].name == "strength"


def test_every_refusal_that_is_quoted_is_what_is_said():
    quoted = re.findall(r"^train_ray: error: (--stare\.(\w+) (\S+) .*)$", EVERYTHING, re.MULTILINE)
    assert quoted
    for sentence, name, value in quoted:
        with pytest.raises(checks.UsageError) as caught:
            checks.check(parse(f"--stare.{name}", value))
        assert str(caught.value) == sentence
