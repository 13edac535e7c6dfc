"""One self-contained page: the table of final figures, the pictures and the recorded responses."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean, stdev

import jinja2
from markupsafe import Markup

from openrlhf_stare.report import figures
from openrlhf_stare.report.figures import BAND, ENTROPY, GATE, LENGTH_TAGS, PICTURES, REWARD_TAGS, TARGET, target_of
from openrlhf_stare.report.reading import Response, Run, Series

STEPS_SHOWN = 6  # of a run
RESPONSES_SHOWN, TOKENS_SHOWN = 12, 1600  # of a step, at most; of the last response shown only a part may be
PROMPT_SHOWN = 600  # letters
WORDS_SHOWN = 16
DEEPEST = 4.0  # nats: the surprisal of the deepest colour
DASH = "–"


@dataclass(frozen=True)
class FinalFigures:
    """A run's figures over the second half of its steps; None where something was not logged."""

    name: str
    steps: int  # the last step
    target: float | None  # the last one, in nats
    borrowed_target: bool  # the run has none of its own; it is held against that of the others
    entropy: float | None  # mean, in nats
    entropy_sd: float | None
    in_band: float | None  # share of the steps whose entropy is within BAND of the target of that step
    reward: float | None
    length: float | None  # tokens per response
    gate: float | None  # share of the steps with an open gate
    strength: float | None  # the mean of the method's first one, which the controller may change from step to step
    strength_name: str | None


def final_figures(run: Run, runs: list[Run]) -> FinalFigures:
    """The figures of `run`; `runs` are all that it is compared with."""
    target, entropy = target_of(run, runs), run.finite(ENTROPY)
    entropies = _second_half(entropy)
    in_band = None
    if target is not None and entropies:
        targets = dict(zip(target.steps.tolist(), target.values.tolist(), strict=True))
        pairs = [(value, targets[step]) for step, value in entropies.items() if step in targets]
        in_band = fmean(abs(value - aim) <= BAND * aim for value, aim in pairs) if pairs else None
    last_steps = [int(series.steps[-1]) for series in run.scalars.values() if len(series.steps)]
    return FinalFigures(
        name=run.name,
        steps=max([*last_steps, *run.responses]),
        target=None if target is None else float(target.values[-1]),
        borrowed_target=target is not None and run.finite(TARGET) is None,
        entropy=_mean(entropies),
        entropy_sd=stdev(entropies.values()) if len(entropies) > 1 else None,
        in_band=in_band,
        reward=_mean(_second_half(run.finite(*REWARD_TAGS))),
        length=_mean(_second_half(run.finite(*LENGTH_TAGS))),
        gate=_mean(_second_half(run.finite(GATE))),
        strength=_mean(_second_half(run.finite(run.strength))) if run.strength else None,
        strength_name=run.strength and run.strength.partition("/")[2],
    )


def html(runs: list[Run]) -> str:
    """The page. What comes from a model or from a folder's name is escaped, and the page runs no script."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["figure"] = _figure
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        runs=runs,
        styles={name: f"{dashes} {colour}" for name, (colour, dashes) in figures.styles(runs).items()},
        table=[final_figures(run, runs) for run in runs],
        verdicts=[(run.name, found.sentence) for run in runs if (found := run.verdict)],
        settings=[(run.name, _settings(run)) for run in runs if run.settings.flags or run.settings.arguments],
        pictures=[_picture(picture, runs) for picture in PICTURES if len(picture.runs(runs)) >= picture.least],
        left_out=[f"{picture.title}: no run has {picture.needs}." for picture in PICTURES if not picture.runs(runs)],
        records=[_record(run) for run in runs if run.responses],
        notes=[f"{run.name}: {note}." for run in runs for note in run.notes],
        deepest=DEEPEST,
        band=BAND,
        positive=figures.POSITIVE,
        negative=figures.NEGATIVE,
    )


def _settings(run: Run) -> list[tuple[str, str]]:
    """The flags of a run and their values, ours first."""
    both = [sorted(of.items()) for of in (run.settings.flags, run.settings.arguments)]
    return [(f"--{flag}", str(value)) for flag, value in [*both[0], *both[1]]]


def _picture(picture: figures.Picture, runs: list[Run]) -> dict:
    names = [run.name for run in runs if not picture.shows(run)]
    without = ", ".join(names) if len(names) <= 3 else f"{len(names)} of the {len(runs)} runs"
    return {
        "key": picture.key,
        "title": picture.title,
        "caption": picture.caption,
        "missing": f"Not in it: {without}, without {picture.needs}." if names else "",
        "svg": Markup(figures.svg(picture, runs)),  # made by matplotlib, which escapes the names in it
    }


# ── the recorded responses ──


def _record(run: Run) -> dict:
    """What the page shows of a run's record: some steps, evenly over the run, the last one included."""
    steps = list(run.responses)
    count = min(STEPS_SHOWN, len(steps))
    chosen = [steps[round(place * (len(steps) - 1) / max(1, count - 1))] for place in range(count)]
    if count == 1:
        chosen = steps[-1:]
    responses = [response for recorded in run.responses.values() for response in recorded]
    return {
        "name": run.name,
        "steps": [
            {
                "step": step,
                "responses": _responses(run.responses[step], run.set_names),
                "last": step == steps[-1],
            }
            for step in chosen
        ],
        "words": [(sign, name, _words(responses, sign)) for sign, name in run.set_names.items()],
        "unknown": any(
            s is not None and omega is None
            for response in responses
            for s, omega in zip(response.surprisal, response.omega, strict=True)
        ),
    }


def _responses(responses: list[Response], names: dict[str, str]) -> list[dict]:
    shown, room = [], TOKENS_SHOWN
    for response in responses[:RESPONSES_SHOWN]:
        if room == 0:
            break
        count = min(room, len(response.tokens))
        room -= count
        prompt = response.prompt
        shown.append(
            {
                "prompt": prompt if len(prompt) <= PROMPT_SHOWN else "…" + prompt[-PROMPT_SHOWN:],
                "reward": response.reward,
                "tokens": [_token(response, place, names) for place in range(count)],
                "more": len(response.tokens) - count,
            }
        )
    return shown


def _token(response: Response, place: int, names: dict[str, str]) -> dict:
    s, advantage, omega = response.surprisal[place], response.advantage[place], response.omega[place]
    picked = response.picked(place)
    kind = ""
    if s is None and advantage is None:
        kind, hover = "hole", "not an action of the policy"
    else:
        hover = f"surprisal {_figure(s)} nats, advantage {_figure(advantage, 2, sign=True)}, ω {_figure(omega, 3)}"
        if picked:
            hover += f", {names[picked]}"
            kind = ("up" if picked == "+" else "down") + ("" if omega is not None and omega != 1 else " idle")
    text = response.tokens[place]
    return {
        "text": text.replace("\n", "↵\n") or "·",
        "kind": kind,
        "hover": hover,
        "depth": f"{min(s or 0.0, DEEPEST) / DEEPEST:.2f}",
    }


def _words(responses: list[Response], sign: str) -> list[tuple[str, int, int]]:
    """The texts that are most often picked with this sign: text, how often they are, how often they come at all."""
    picked: Counter[str] = Counter()
    all_of_them: Counter[str] = Counter()
    for response in responses:
        for place, text in enumerate(response.tokens):
            all_of_them[text] += response.surprisal[place] is not None
            picked[text] += response.picked(place) == sign
    return [
        (text.replace("\n", "↵") or "·", count, all_of_them[text])
        for text, count in picked.most_common(WORDS_SHOWN)
        if count
    ]


# ── numbers ──


def _second_half(series: Series | None) -> dict[int, float]:
    """Step -> value over the second half of the steps, the middle one included."""
    if series is None:
        return {}
    half = len(series.steps) // 2
    return dict(zip(series.steps[half:].tolist(), series.values[half:].tolist(), strict=True))


def _mean(values: dict[int, float]) -> float | None:
    return fmean(values.values()) if values else None


def _figure(value: float | None, digits: int = 3, sign: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:{'+' if sign else ''}.{digits}f}"
