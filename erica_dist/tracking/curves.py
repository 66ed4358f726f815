"""Pictures of runs: one panel a metric, all runs that have it laid over each other.

Training metrics are noisy: each step is drawn faint, a moving average over it strong. Held-out scores are few: each is
a marked point. A panel is drawn alone as SVG (for the page) or with its group's others as one PNG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from erica_dist.page_style import COLOURS, PICTURE_STYLE, figure_bytes, new_figure
from erica_dist.tracking.catalogue import Metric
from erica_dist.tracking.comparison import Curve, RunSummary

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.")
_POINTS = 1500  # drawn a curve; longer ones are averaged into so many
_FEW = 12  # points that are marked one by one
_SMOOTHING = 15  # the moving average spans this fraction of the run
_NOT_SMOOTHED = frozenset({"lr"})


def colour(place: int) -> str:
    """The colour of the run at this place of its kind."""
    return COLOURS[place % len(COLOURS)]


def panel_svg(metric: Metric, runs: Sequence[RunSummary]) -> bytes:
    """One metric as SVG, text as outlines, so that it looks the same everywhere."""
    from matplotlib import rc_context

    with rc_context(PICTURE_STYLE):
        figure = new_figure(5.6, 3.4)
        axes = figure.add_subplot()
        _draw(axes, metric, runs)
        _legend(figure, axes, columns=2)
        return figure_bytes(figure, "svg", metadata={"Date": None})


def group_png(title: str, metrics: Sequence[Metric], runs: Sequence[RunSummary]) -> bytes:
    """The metrics of one group as one PNG, two panels a row."""
    from matplotlib import rc_context

    columns = min(2, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    with rc_context(PICTURE_STYLE):
        figure = new_figure(6.0 * columns, 3.5 * rows + 0.9)
        figure.suptitle(title, x=0.015, ha="left", fontsize=14, fontweight="bold")
        panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(metrics))]
        for axes, metric in zip(panels, metrics, strict=True):
            _draw(axes, metric, runs)
        _legend(figure, *panels, columns=2 * columns)
        return figure_bytes(figure, "png", dpi=130)


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` values [n]; near the ends over those that there are."""
    window = min(window, len(values)) | 1
    kernel = np.ones(window)
    full = np.convolve(np.pad(values, window // 2), kernel, mode="valid")
    counts = np.convolve(np.pad(np.ones(len(values)), window // 2), kernel, mode="valid")
    return full / counts


def thinned(curve: Curve, points: int = _POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values, averaged in at most `points` equal groups of neighbours."""
    if len(curve.steps) <= points:
        return curve.steps.astype(np.float64), curve.values
    starts = np.linspace(0, len(curve.steps), points, endpoint=False).astype(np.int64)
    sizes = np.diff(np.append(starts, len(curve.steps)))
    return np.add.reduceat(curve.steps, starts) / sizes, np.add.reduceat(curve.values, starts) / sizes


def _draw(axes: Axes, metric: Metric, runs: Sequence[RunSummary]) -> None:
    shown: list[np.ndarray] = []
    smoothed_over = 0
    for place, run in enumerate(runs):
        curve = run.curves.get(metric.key)
        if curve is None:
            continue
        steps, values = thinned(curve)
        line: dict[str, Any] = {
            "color": colour(place),
            "linestyle": _DASHES[place // len(COLOURS) % len(_DASHES)],
            "label": run.label,
        }
        window = max(1, len(values) // _SMOOTHING) | 1
        if len(values) <= _FEW:
            axes.plot(steps, values, marker="o", markersize=5, linewidth=1.6, **line)
        elif metric.key in _NOT_SMOOTHED or window < 3:
            axes.plot(steps, values, linewidth=1.8, **line)
        else:
            axes.plot(steps, values, color=colour(place), alpha=0.22, linewidth=0.8)
            axes.plot(steps, moving_average(values, window), linewidth=1.9, **line)
            smoothed_over = max(smoothed_over, round(window * len(curve.values) / len(values)))
        shown.append(values)
    axes.set_title(metric.label)
    axes.set_ylabel(metric.unit)
    note = f" (strong line: mean over {smoothed_over} steps)" if smoothed_over else ""
    axes.set_xlabel(f"optimizer step{note}")
    axes.margins(x=0.02)
    _limit(axes, np.concatenate(shown))
    _ticks(axes)


def _limit(axes: Axes, values: np.ndarray) -> None:
    """Leave single outliers outside of the panel, so that the rest can be read."""
    if len(values) <= 2 * _FEW:
        return
    low, high = np.quantile(values, [0.005, 0.995])
    room = 0.08 * (high - low)
    if room > 0:
        axes.set_ylim(low - room, high + room)


def _ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    formatter = ScalarFormatter(useOffset=False, useMathText=True)
    formatter.set_powerlimits((-3, 5))
    axes.yaxis.set_major_formatter(formatter)


def _legend(figure: Figure, *panels: Axes, columns: int) -> None:
    """One legend below all panels, each run once."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(str(label), handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower left",
        ncols=min(columns, len(entries)),
        frameon=False,
        fontsize=9,
    )
