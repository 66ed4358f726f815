"""How the HTML pages and pictures that commands write look: one style sheet, one palette, one way to a figure.

Nothing in them comes from outside: style sheets stand in the page, pictures are data URIs with text as outlines.
"""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; its yellow is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#4D4D4D")
PICTURE_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.labelcolor": "#3c4043",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "grid.color": "#e8eaed",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#5f6368",
    "ytick.color": "#5f6368",
    "svg.hashsalt": "erica-dist",  # the same values give the same bytes
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, drawn without a display; use it within `rc_context(PICTURE_STYLE)`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    """The figure as a file of this kind."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def picture(svg: bytes, text: str) -> str:
    """A figure element with the SVG as an image, so that the ids inside one picture cannot meet those of another."""
    data = base64.b64encode(svg).decode()
    return f'<figure><img alt="{escape(text)}" src="data:image/svg+xml;base64,{data}"></figure>'


CSS = """
:root { color-scheme: light; --ink: #202124; --soft: #5f6368; --line: #e3e6ea; --accent: #0b57d0; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 48px; }
header h1 { margin: 0; font-size: 26px; letter-spacing: -.01em; }
header p { margin: 4px 0 22px; color: var(--soft); overflow-wrap: anywhere; }
section { background: #fff; border: 1px solid var(--line); border-radius: 12px; padding: 8px 22px 22px; }
section { margin-bottom: 22px; }
h2 { margin: 14px 0 0; font-size: 21px; }
h3 { margin: 22px 0 8px; font-size: 16px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 14px 7px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; white-space: nowrap; border-bottom-width: 2px; }
tbody th { font-weight: 500; min-width: 150px; }
.note { color: var(--soft); font-size: 13px; margin: 8px 0 0; max-width: 90ch; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 14px; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: 8px; }
figure img { display: block; width: 100%; height: auto; }
footer { color: var(--soft); font-size: 13px; }
"""
