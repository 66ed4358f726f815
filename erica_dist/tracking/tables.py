"""The tables of a comparison as plain values, and their printing on the terminal. The page prints the same tables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erica_dist.tracking.catalogue import HELD_OUT, Better, in_order
from erica_dist.tracking.comparison import LAST_STEPS, RunSummary, date, duration

if TYPE_CHECKING:
    from rich.table import Table as RichTable

KIND_NAMES = {"erica": "ERICA", "electra": "ELECTRA", "finetune": "Fine-tuning", "": "Other runs"}
_RUNS_A_TABLE = 5  # columns that a terminal has room for
_NOT_COMPARED = ("run.", "tracking.")
_COMPARED_TAGS = ("git_commit", "git_dirty", "cpu", "gpus")
_ARROWS: dict[Better, str] = {"lower": " ↓", "higher": " ↑", "": ""}


@dataclass(frozen=True)
class Cell:
    text: str
    detail: str = ""  # second line, smaller
    best: bool = False  # of its row


@dataclass(frozen=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[Cell]]
    note: str = ""
    numbers: bool = True  # columns after the first are aligned right
    kind: str = ""  # of its runs, which are its columns; empty: runs are rows


def tables(runs: Sequence[RunSummary]) -> list[Table]:
    """Overview of all runs; then for each kind of run its results and what differs in the settings."""
    found = [overview(runs)]
    for kind, members in by_kind(runs).items():
        found += [results(kind, members)]
        if len(members) > 1:
            found += [differences(kind, members)]
    return found


def by_kind(runs: Sequence[RunSummary]) -> dict[str, list[RunSummary]]:
    """The runs of each kind, ERICA first."""
    kinds = sorted({run.kind for run in runs}, key=lambda kind: (kind != "erica", kind != "electra", kind))
    return {kind: [run for run in runs if run.kind == kind] for kind in kinds}


def kind_name(kind: str) -> str:
    return KIND_NAMES.get(kind, kind)


def overview(runs: Sequence[RunSummary]) -> Table:
    header = ["Run", "Kind", "Status", "Steps", "Documents/s", "Tokens/s", "Time", "Started"]
    rows = [
        [
            Cell(run.label),
            Cell(kind_name(run.kind)),
            Cell(run.status),
            Cell(f"{run.steps:,}"),
            Cell(number(run.documents_per_second)),
            Cell(number(run.tokens_per_second)),
            Cell(duration(run.seconds)),
            Cell(date(run.started)),
        ]
        for run in runs
    ]
    note = "Documents/s and tokens/s: median over the steps, all ranks. Time: from start to end, pauses left out."
    return Table("Runs", header, rows, note)


def results(kind: str, runs: Sequence[RunSummary]) -> Table:
    """Main metrics by run: the final value, below it the first and the best."""
    rows = []
    for metric in in_order({key for run in runs for key in run.curves}):
        if not metric.main:
            continue
        held_out = metric.key.startswith(HELD_OUT)
        window = 1 if held_out else LAST_STEPS
        finals = {run.run_id: run.curves[metric.key].final(window) for run in runs if metric.key in run.curves}
        # Training losses of runs with other settings (pool of negatives, weights) are no contest; held-out scores are.
        contest = held_out and len(set(finals.values())) > 1
        top = (min if metric.better == "lower" else max)(finals.values()) if contest else None
        cells = [Cell(("held-out: " if held_out else "training: ") + metric.label + _ARROWS[metric.better])]
        for run in runs:
            curve = run.curves.get(metric.key)
            if curve is None:
                cells.append(Cell("–"))
                continue
            best, step = curve.best(metric.better, window)
            final = finals[run.run_id]
            detail = f"from {number(float(curve.values[0]))} · best {number(best)} @ {step}"
            cells.append(Cell(number(final), detail, best=final == top))
        rows.append(cells)
    note = (
        f"↓ lower is better, ↑ higher is better. Training values are means over the last {LAST_STEPS} steps; "
        "compare them only between runs with the same weights and the same negatives. Held-out scores are computed "
        "alike for all runs (entity markers are part of the input); the best final one is marked."
    )
    return Table(f"{kind_name(kind)}: results", ["Metric", *(run.label for run in runs)], rows, note, kind=kind)


def differences(kind: str, runs: Sequence[RunSummary]) -> Table:
    """The settings, source and versions that are not the same in all `runs`."""
    keys = sorted({key for run in runs for key in run.params if not key.startswith(_NOT_COMPARED)})
    rows = [[Cell(key), *(Cell(value) for value in values)] for key in keys if _differ(values := _settings(key, runs))]
    tags = sorted({tag for run in runs for tag in run.tags if tag in _COMPARED_TAGS or tag.startswith("version.")})
    for tag in tags:
        values = [run.tags.get(tag, "–") for run in runs]
        if _differ(values):
            rows.append([Cell(tag), *(Cell(value[:12] if tag == "git_commit" else value) for value in values)])
    note = "" if rows else "Nothing: the runs have the same settings."
    title = f"{kind_name(kind)}: what differs in the settings"
    return Table(title, ["Setting", *(run.label for run in runs)], rows, note, numbers=False, kind=kind)


def _settings(key: str, runs: Sequence[RunSummary]) -> list[str]:
    """The values of one setting; `old -> new` where a resume changed it."""
    return [run.tags.get(f"changed.{key}", run.params.get(key, "–")) for run in runs]


def _differ(values: list[str]) -> bool:
    return len(set(values)) > 1


def number(value: float | None) -> str:
    """Four significant digits; thousands are grouped."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def print_tables(runs: Sequence[RunSummary]) -> None:
    """Print all tables, split into several where there are more runs than columns on the terminal."""
    from rich.console import Console

    # A pipe or a log file has no width; the tables need more than the 80 columns assumed then.
    width = None if sys.stdout.isatty() else max(140, shutil.get_terminal_size().columns)
    console = Console(width=width)
    for table in tables(runs):
        console.print(*(_rich(part) for part in _split(table)), sep="\n")
        if table.note:
            console.print(table.note, style="dim", markup=False, highlight=False)
        console.print()


def _split(table: Table) -> list[Table]:
    if table.kind == "" or len(table.header) - 1 <= _RUNS_A_TABLE:
        return [table]
    parts = []
    for start in range(1, len(table.header), _RUNS_A_TABLE):
        chosen = [0, *range(start, min(start + _RUNS_A_TABLE, len(table.header)))]
        header = [table.header[i] for i in chosen]
        rows = [[row[i] for i in chosen] for row in table.rows]
        parts.append(Table(table.title, header, rows, numbers=table.numbers, kind=table.kind))
    return parts


def _rich(table: Table) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.header):
        # The first column holds names.
        right = place > 0 and table.numbers and (table.kind != "" or place >= 3)
        made.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        cells = []
        for cell in row:
            text = Text(cell.text, style="bold green" if cell.best else "")
            if cell.detail:
                text.append(f"\n{cell.detail}", style="dim")
            cells.append(text)
        made.add_row(*cells)
    return made
