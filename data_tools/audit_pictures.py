"""The audit's pictures, each a function from numbers to the bytes of an SVG.

Text is drawn as outlines and never read as mathematics or markup: names come from the corpus and may hold anything.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from data_tools.audit_counts import Distribution
from data_tools.audit_funnel import Step
from erica_dist.page_style import COLOURS, PICTURE_STYLE, figure_bytes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE = COLOURS[0], COLOURS[1]
_GREY, _INK = "#9aa0a6", "#3c4043"
_LONGEST_NAME = 40
_BINS = 40

Given = ParamSpec("Given")


def _styled(draw: Callable[Given, bytes]) -> Callable[Given, bytes]:
    @functools.wraps(draw)
    def styled(*args: Given.args, **kwargs: Given.kwargs) -> bytes:
        from matplotlib import rc_context

        with rc_context(PICTURE_STYLE):
            return draw(*args, **kwargs)

    return styled


@_styled
def waterfall_svg(title: str, steps: Sequence[Step]) -> bytes:
    """What went on (full bars from the left) and what was lost on the way (bars that hang where the rest ended)."""
    figure, axes = _panel(7.6, 0.7 + 0.31 * len(steps))
    first = max(steps[0].number, 1)
    left = steps[0].number
    for place, step in enumerate(steps):
        if step.dropped:
            left -= step.number
        share = f"{step.number:,}   {step.number / first:.1%}"
        axes.barh(
            place,
            step.number,
            left=left if step.dropped else 0,
            color=ORANGE if step.dropped else BLUE,
            height=0.72 if not step.dropped else 0.5,
        )
        end = left + step.number if step.dropped else step.number
        axes.text(end + 0.012 * first, place, share, va="center", fontsize=9, color=_INK)
    names = [f"– {_short(step.name.removeprefix('dropped: '), 52)}" if step.dropped else step.name for step in steps]
    _name_rows(axes, names)
    for label, step in zip(axes.get_yticklabels(), steps, strict=True):
        label.set_fontweight("normal" if step.dropped else "bold")
        label.set_color(ORANGE if step.dropped else "#202124")
    axes.set_xlim(0, first * 1.22)
    axes.set_title(title)
    _thousands(axes, "x")
    return _svg(figure)


@_styled
def histogram_svg(title: str, unit: str, counted: str, values: Distribution, log: bool = False) -> bytes:
    """How many `counted` things have how many of `unit`; few values far above the others share the last, grey bar."""
    figure, axes = _panel(5.2, 2.9)
    last = values.quantile(0.98)
    if values.largest <= 2 * last:
        last = values.largest
    width = max(1, -(-(last + 1) // _BINS))
    heights = np.zeros(last // width + 1)
    above = 0
    for value, number in values.counts.items():
        if value > last:
            above += number
        else:
            heights[value // width] += number
    starts = np.arange(len(heights)) * width
    centre = (width - 1) / 2
    axes.bar(starts + centre, heights, width=0.9 * width, color=BLUE)
    told = [f"median {values.quantile(0.5):,}, mean {values.mean:,.1f}"]
    if above:
        axes.bar(starts[-1] + width + centre, above, width=0.9 * width, color=_GREY)
        told.append(f"{above:,} above {last:,}, up to {values.largest:,}")
    axes.axvline(values.quantile(0.5), color=ORANGE, linewidth=1.6)
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.set_ylabel(f"{counted}, log scale" if log else counted)
    axes.set_xlim(left=max(0, min(values.counts, default=0) // width * width) - 0.6)
    if log:
        _logarithmic(axes, "y")
        axes.set_ylim(0.7, 10 * max(heights.max(), above))
    else:
        _thousands(axes, "y")
        axes.margins(y=0.3)
    _thousands(axes, "x")
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
    axes.text(
        0.995, 0.99, "\n".join(told), transform=axes.transAxes, ha="right", va="top", fontsize=9, color=_INK, bbox=box
    )
    return _svg(figure)


@_styled
def names_svg(title: str, unit: str, rows: Sequence[tuple[str, int]], total: int, log: bool = False) -> bytes:
    """A bar for each name, the first on top, with its number and its share of `total`."""
    figure, axes = _panel(7.6, 1.0 + 0.245 * max(len(rows), 1))
    numbers = [number for _, number in rows]
    axes.barh(range(len(rows)), numbers, color=BLUE, height=0.7)
    _name_rows(axes, [_short(name) for name, _ in rows])
    for place, number in enumerate(numbers):
        text = f" {number:,}   {number / max(total, 1):.1%}"
        axes.text(number * 1.06 if log else number, place, text, va="center", fontsize=8.5, color=_INK)
    axes.tick_params(axis="y", labelsize=9)
    if log:
        _logarithmic(axes, "x")
        axes.set_xlim(0.8, max(numbers, default=1) * 8)
    else:
        axes.margins(x=0.2)
        _thousands(axes, "x")
    axes.set_title(title)
    axes.set_xlabel(unit)
    return _svg(figure)


@_styled
def shares_svg(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> bytes:
    """A stacked bar of 100 % for each row; its parts are labelled in the bar or, where narrow, above it."""
    figure, axes = _panel(7.6, 0.8 + 0.75 * len(rows))
    for place, (_, parts) in enumerate(rows):
        total = max(sum(number for _, number in parts), 1)
        left = 0.0
        for order, (name, number) in enumerate(parts):
            share = 100 * number / total
            axes.barh(place, share, left=left, color=COLOURS[order % len(COLOURS)], height=0.5)
            inside = share >= 13
            axes.text(
                left + share / 2,
                place if inside else place - 0.38,
                f"{_short(name, 20)}\n{share:.0f} %"
                if inside
                else (f"{_short(name, 20)} {share:.1f} %" if number else ""),
                ha="center",
                va="center",
                fontsize=8.5,
                color="white" if inside else _INK,
                fontweight="bold" if inside else "normal",
            )
            left += share
    _name_rows(axes, [name for name, _ in rows])
    axes.set_xlim(0, 100)
    axes.set_xlabel("%")
    axes.set_title(title)
    return _svg(figure)


@_styled
def head_svg(title: str, unit: str, counts: Sequence[int]) -> bytes:
    """The share of all that the k most frequent hold, for every k; `counts` falling."""
    figure, axes = _panel(7.6, 3.6)
    cumulated = np.cumsum(counts)
    ranks = np.arange(1, len(counts) + 1)
    shares = 100 * cumulated / max(int(cumulated[-1]) if len(counts) else 0, 1)
    axes.plot(ranks, shares, color=BLUE, linewidth=1.9, marker="o" if len(counts) <= 60 else "", markersize=3)
    axes.set_ylim(0, 104)
    axes.set_title(title)
    axes.set_xlabel(f"number of {unit}, the most frequent first")
    axes.set_ylabel("% of all")
    if len(counts) > 200:
        _logarithmic(axes, "x")
    else:
        _thousands(axes, "x")
    return _svg(figure)


@_styled
def ranks_svg(title: str, counts: np.ndarray) -> bytes:
    """Documents of each entity by its rank, both axes logarithmic; `counts` falling."""
    figure, axes = _panel(7.6, 3.6)
    # As many points as can be told apart on a logarithmic axis
    ranks = np.unique(np.geomspace(1, max(len(counts), 1), 400).astype(np.int64))
    if len(counts):
        axes.plot(ranks, counts[ranks - 1], color=BLUE, linewidth=1.9, marker=".", markersize=4)
    _logarithmic(axes, "x")
    _logarithmic(axes, "y")
    axes.set_ylim(bottom=0.8)
    axes.set_title(title)
    axes.set_xlabel("rank of the entity")
    axes.set_ylabel("documents with it")
    return _svg(figure)


# ------------------------------------------------------------------------------------------------ parts


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes; the tables beside have it as text
        warnings.filterwarnings("ignore", message="Glyph")
        return figure_bytes(figure, "svg", metadata={"Date": None})


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _short(name: str, longest: int = _LONGEST_NAME) -> str:
    """The name on one line, without what cannot be drawn, and not too long for its picture."""
    line = "".join(character if character.isprintable() else " " for character in name)
    line = " ".join(line.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _thousands(axes: Axes, axis: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    which: Any = axes.xaxis if axis == "x" else axes.yaxis
    which.set_major_locator(MaxNLocator(nbins=6, integer=True))
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _logarithmic(axes: Axes, axis: str) -> None:
    """A logarithmic axis whose labels are plain numbers: those that matplotlib gives are mathematics."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    which: Any = axes.xaxis if axis == "x" else axes.yaxis
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else ""))
    which.set_minor_formatter(NullFormatter())
