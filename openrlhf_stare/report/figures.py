"""The pictures of a report, drawn by matplotlib: each as SVG for the page, and all together as one PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D

from openrlhf_stare.algorithms.verdict import AUTHORITY, BAND, EFFORT, ENTROPY, GATE, LITTLE_AUTHORITY, REWARD, TARGET
from openrlhf_stare.report import ReportError
from openrlhf_stare.report.reading import Response, Run, Series

# The names under which OpenRLHF logs a figure, the first that is there counting.
REWARD_TAGS = (REWARD, "reward")
LENGTH_TAGS = ("rollout/response_length_mean", "response_length")
WIDTH = 10  # inches

# Okabe and Ito's colours, which those who see fewer colours can tell apart too; then again as dashed lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
DASHES = ("solid", "dashed", "dotted")  # the names that CSS has too
SEED = r"\W*_?seed\W*_?\d+$"  # the end of a run's name
POSITIVE, NEGATIVE, OTHER = "#009e73", "#b0308f", "#9a9a9a"  # picked tokens with A > 0, with A < 0, and all others
GATE_SHADE = "#f4d58a"
LEAST_TO_SMOOTH = 60  # steps; below that a curve is shown as it is
MOST_DOTS = 3000  # tokens in a picture of the four quadrants

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a $ in the name of a run is a $
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Picture:
    """One picture: `shows` says whether a run has what it needs, `draw` draws the runs that have."""

    key: str
    title: str
    caption: str
    needs: str  # what is missing where it cannot be drawn
    shows: Callable[[Run], bool]
    draw: Callable[[FigureBase, list[Run], dict], None]
    height: Callable[[list[Run]], float]  # inches, by the runs drawn
    least: int = 1  # runs that it makes sense with

    def runs(self, runs: list[Run]) -> list[Run]:
        return [run for run in runs if self.shows(run)]


def styles(runs: list[Run]) -> dict[str, tuple]:
    """The colour and the dashes of each run, by its name. Runs that differ in their seed alone share a colour."""
    groups: dict[str, list[str]] = {}
    for run in runs:
        groups.setdefault(re.sub(SEED, "", run.name), []).append(run.name)
    chosen = {}
    for place, names in enumerate(groups.values()):
        for member, name in enumerate(names):
            dashes = DASHES[(place // len(COLOURS) + member) % len(DASHES)]
            chosen[name] = (COLOURS[place % len(COLOURS)], dashes)
    return chosen


def target_of(run: Run, runs: list[Run]) -> Series | None:
    """The target entropy of a run: its own, or, where it has none, the one value that all others have."""
    if own := run.finite(TARGET):
        return own
    values = {value for other in runs if (target := other.finite(TARGET)) for value in target.values}
    entropy = run.finite(ENTROPY)
    if len(values) != 1 or entropy is None:
        return None
    return Series(entropy.steps, np.full(len(entropy.steps), values.pop()))


def svg(picture: Picture, runs: list[Run]) -> str:
    """The picture as an `<svg>` element for a page; the ids in it begin with the picture's key."""
    drawn = picture.runs(runs)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": picture.key}):
        figure = Figure(figsize=(WIDTH, picture.height(drawn)))
        picture.draw(figure, drawn, styles(runs))
        stream = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{picture.key}-", text)
    # As wide as its place on the page; the view box keeps the proportions.
    return re.sub(r'^<svg ([^>]*?)width="[\d.]+pt" height="[\d.]+pt"|^<svg height="[\d.]+pt"', r"<svg \1", text)


def png(runs: list[Run], path: Path) -> None:
    """All pictures that the runs have something for, below one another, in one file."""
    shown = [(picture, picture.runs(runs)) for picture in PICTURES if len(picture.runs(runs)) >= picture.least]
    if not shown:
        raise ReportError("the runs have nothing that a picture could show: no entropy, no reward, no token record")
    title_height = 0.35
    legend_height = 0.3 + 0.25 * ((len(runs) + 1) // 2)
    heights = [legend_height, *(picture.height(drawn) + title_height for picture, drawn in shown)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, sum(heights)), dpi=120)
        top, *below = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        lines = [Line2D([], [], color=colour, linestyle=dash, lw=2) for colour, dash in styles(runs).values()]
        top.legend(lines, [run.name for run in runs], loc="center", ncols=2, frameon=False)
        for part, (picture, drawn) in zip(below, shown, strict=True):
            part.suptitle(picture.title, x=0.01, ha="left", weight="bold", size=11)
            picture.draw(part, drawn, styles(runs))
        figure.savefig(path, format="png")


# ── the pictures ──


def _draw_entropy(figure: FigureBase, runs: list[Run], style: dict) -> None:
    ax = figure.subplots()
    for run in runs:
        _curve(ax, run, style, run.finite(ENTROPY))
    _targets(ax, [run.finite(TARGET) for run in runs])
    _axes(ax, "entropy (nats per token)")
    ax.set_ylim(bottom=0)


def _draw_gates(figure: FigureBase, runs: list[Run], style: dict) -> None:
    """A panel for each run, with its target and the spans in which its gate is open."""
    columns = _gate_columns(len(runs))
    panels = figure.subplots(-(-len(runs) // columns), columns, sharex=True, sharey=True, squeeze=False)
    for ax, run in zip(panels.flat, runs, strict=False):
        _shade_gate(ax, run)
        _curve(ax, run, style, run.finite(ENTROPY))
        _targets(ax, [target_of(run, runs)], band=True)
        _axes(ax, "entropy (nats)")
        ax.label_outer()
        ax.set_title(_short(run.name, 100 // columns) + ("" if run.finite(GATE) else ", no gate"))
        ax.set_ylim(bottom=0)
    for ax in panels.flat[len(runs) :]:
        ax.set_visible(False)


def _draw_strengths(figure: FigureBase, runs: list[Run], style: dict) -> None:
    """A panel for each strength that a run has, and for the effort."""
    tags = _strength_tags(runs)
    panels = figure.subplots(-(-len(tags) // 2), min(2, len(tags)), squeeze=False)
    for ax, tag in zip(panels.flat, tags, strict=False):
        for run in runs:
            _curve(ax, run, style, run.finite(tag))
        _axes(ax, tag)
    for ax in panels.flat[len(tags) :]:
        ax.set_visible(False)


def _strength_tags(runs: list[Run]) -> list[str]:
    efforts = [EFFORT] if any(run.finite(EFFORT) for run in runs) else []
    return [*dict.fromkeys(tag for run in runs for tag in run.strengths), *efforts]


def _draw_reward(figure: FigureBase, runs: list[Run], style: dict) -> None:
    ax = figure.subplots()
    for run in runs:
        _curve(ax, run, style, run.finite(*REWARD_TAGS))
    _axes(ax, "mean reward")


def _draw_authority(figure: FigureBase, runs: list[Run], style: dict) -> None:
    ax = figure.subplots()
    for run in runs:
        _curve(ax, run, style, run.finite(AUTHORITY))
    ax.axhspan(0, LITTLE_AUTHORITY, color="#888888", alpha=0.15, lw=0)
    _axes(ax, "authority")
    ax.set_ylim(0, 1)


def _draw_quadrants(figure: FigureBase, runs: list[Run], style: dict) -> None:
    columns = min(2, len(runs))
    panels = figure.subplots(-(-len(runs) // columns), columns, squeeze=False)
    for ax, run in zip(panels.flat, runs, strict=False):
        newest = newest_responses(run)
        dots: dict[str, list[tuple[float, float]]] = {"": [], "-": [], "+": []}
        for response in newest:
            for place, (s, a) in enumerate(zip(response.surprisal, response.advantage, strict=True)):
                if s is not None and a is not None:
                    dots[response.picked(place)].append((s, a))
        marked = run.set_names
        names = {"": ("other tokens", OTHER, 8), "-": (marked["-"], NEGATIVE, 16), "+": (marked["+"], POSITIVE, 16)}
        for kind, points in dots.items():
            if points:
                name, colour, size = names[kind]
                x, y = np.array(points).T
                marks = ax.scatter(x, y, s=size, c=colour, alpha=0.55, linewidths=0, label=f"{name}: {len(points)}")
                marks.set_gid(f"dots-{kind or 'other'}")
        ax.axhline(0, color="#666666", lw=0.8)
        # Room above and below for what the quadrants do to the entropy.
        low, high = ax.get_ylim()
        reach = 1.35 * max(abs(low), abs(high), 0.1)
        ax.set_ylim(-reach, reach)
        ax.set_xlim(left=0)
        for tau, end, colour in (
            (newest[0].tau_positive, reach, POSITIVE),
            (newest[0].tau_negative, -reach, NEGATIVE),
        ):
            if tau is not None:
                ax.plot([tau, tau], [0, end], color=colour, lw=1, linestyle=(0, (4, 3)))
        corners = {(0.02, 0.97): "lowers entropy", (0.98, 0.97): "raises entropy"}
        corners |= {(0.02, 0.03): "raises entropy", (0.98, 0.03): "lowers entropy"}
        for (x, y), effect in corners.items():
            where = {"ha": "left" if x < 0.5 else "right", "va": "top" if y > 0.5 else "bottom"}
            ax.text(x, y, effect, transform=ax.transAxes, color="#666666", style="italic", size=9, **where)
        _axes(ax, "advantage", "surprisal (nats)")
        steps = f"steps {newest[-1].step} to {newest[0].step}"
        ax.set_title(f"{_short(run.name, 80 // columns)}, {steps}")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3, frameon=False, fontsize=9)
    for ax in panels.flat[len(runs) :]:
        ax.set_visible(False)


def newest_responses(run: Run) -> list[Response]:
    """The newest recorded responses, newest first, whose tokens together are about MOST_DOTS."""
    taken: list[Response] = []
    tokens = 0
    for step in sorted(run.responses, reverse=True):
        for response in run.responses[step]:
            if taken and tokens + len(response.tokens) > MOST_DOTS:
                return taken
            taken.append(response)
            tokens += len(response.tokens)
    return taken


def _has(*tags: str) -> Callable[[Run], bool]:
    return lambda run: run.finite(*tags) is not None


def _gate_columns(count: int) -> int:
    return 1 if count == 1 else 2 if count <= 4 else 3


PICTURES = (
    Picture(
        "entropy",
        "Entropy and target",
        "Mean entropy of the policy per action token. Dashed: the target.",
        "the entropy (entropy/mean)",
        _has(ENTROPY),
        _draw_entropy,
        lambda runs: 3.6,
        least=2,
    ),
    Picture(
        "gate",
        "Entropy, target and gate",
        f"Dashed: the target. Grey: within {100 * BAND:.0f} % of it. Yellow: the gate is open, that is, the method "
        "acts.",
        "the entropy (entropy/mean)",
        _has(ENTROPY),
        _draw_gates,
        lambda runs: 3.6 if len(runs) == 1 else 2.3 * -(-len(runs) // _gate_columns(len(runs))),
    ),
    Picture(
        "strengths",
        "Strengths",
        "What the controller has set each method's strengths to. The effort is how far the first of them is on its "
        "way from neutral (0) to its bound (1), or, where the entropy is pushed down, to its counter (-1).",
        "a strength (they are named in settings.json) or an effort (entropy/effort)",
        lambda run: bool(_strength_tags([run])),
        _draw_strengths,
        lambda runs: 2.8 * -(-len(_strength_tags(runs)) // 2),
    ),
    Picture(
        "reward",
        "Reward",
        "Mean reward of a rollout.",
        "the reward (rollout/reward_mean)",
        _has(*REWARD_TAGS),
        _draw_reward,
        lambda runs: 2.9,
    ),
    Picture(
        "authority",
        "Authority",
        f"Share of the tokens that have an advantage. Grey: below {100 * LITTLE_AUTHORITY:.0f} %, where a method that "
        "acts through advantages can do little.",
        "the authority (entropy/authority)",
        _has(AUTHORITY),
        _draw_authority,
        lambda runs: 2.4,
    ),
    Picture(
        "quadrants",
        "The four quadrants",
        "The newest recorded tokens. Coloured are those of the method's sets among the tokens with a positive and "
        "with a negative advantage, whether or not the gate was open, with the newest thresholds dashed; of a method "
        "without sets those whose weight ω is not 1.",
        "a token record (--entropy.record_tokens)",
        lambda run: bool(run.responses),
        _draw_quadrants,
        lambda runs: 3.6 * -(-len(runs) // 2),
    ),
)


# ── parts of pictures ──


def _curve(ax: Axes, run: Run, style: dict, series: Series | None) -> None:
    """A curve; a long one also as its moving mean, with the curve itself pale behind it."""
    if series is None:
        return
    colour, dash = style[run.name]
    values = series.values
    if len(values) >= LEAST_TO_SMOOTH:
        ax.plot(series.steps, values, color=colour, lw=0.8, alpha=0.3)
        values = moving_mean(values, max(5, len(values) // 40))
    (line,) = ax.plot(
        series.steps, values, color=colour, linestyle=dash, lw=1.6, marker="." if len(values) < 3 else ""
    )
    line.set_gid(f"curve-{list(style).index(run.name)}")


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` values around each, fewer at the ends. (S,) -> (S,)"""
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, end = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return (sums[end] - sums[first]) / (end - first)


def _shade_gate(ax: Axes, run: Run) -> None:
    for start, end in run.gate_spans():
        ax.axvspan(start, end, color=GATE_SHADE, alpha=0.55, lw=0, gid="gate-open")


def _targets(ax: Axes, targets: list[Series | None], band: bool = False) -> None:
    """The targets as dashed lines, with the band around them."""
    for target in targets:
        if target is None:
            continue
        if band:
            low, high = (1 - BAND) * target.values, (1 + BAND) * target.values
            ax.fill_between(target.steps, low, high, color="#888888", alpha=0.15, lw=0)
        (line,) = ax.plot(target.steps, target.values, color="#222222", lw=1.1, linestyle=(0, (5, 3)))
        line.set_gid("target")


def _axes(ax: Axes, y: str, x: str = "step") -> None:
    ax.set_ylabel(y)
    ax.set_xlabel(x)
    ax.margins(x=0.01)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
