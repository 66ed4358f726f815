"""The page of a comparison: one HTML file without anything from outside, and one PNG for each group of metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

from erica_dist.errors import UserError
from erica_dist.page_style import CSS, picture
from erica_dist.shards.tarfiles import write_atomically
from erica_dist.tracking.catalogue import GROUPS, Group, Metric, in_order
from erica_dist.tracking.comparison import RunSummary, date
from erica_dist.tracking.curves import colour, group_png, panel_svg
from erica_dist.tracking.tables import Cell, Table, by_kind, differences, kind_name, overview, results


def write_report(runs: Sequence[RunSummary], out: Path, experiment: str, uri: str) -> Path:
    """Write OUT/<kind>-<group>.png and, last, OUT/index.html; gives the page's path.

    Raises:
        UserError: the folder cannot be made or written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    sections = []
    for kind, members in by_kind(runs).items():
        parts = [_table(results(kind, members))]
        if len(members) > 1:
            parts.append(_table(differences(kind, members)))
        parts.append(_legend(members))
        for group, metrics in _groups(members).items():
            title = f"{kind_name(kind)}: {GROUPS[group].lower()}"
            name = f"{kind or 'other'}-{group}.png"
            write_atomically(out / name, group_png(title, metrics, members))
            parts.append(_panels(group, metrics, members, name))
        heading = f'<h2 id="{escape(kind or "other")}">{escape(kind_name(kind))}</h2>'
        sections.append(f"<section>{heading}{''.join(parts)}</section>")
    page = out / "index.html"
    write_atomically(page, _page(runs, experiment, uri, sections).encode())
    return page


def _groups(runs: Sequence[RunSummary]) -> dict[Group, list[Metric]]:
    """The metrics that any of the runs has, by group, in the catalogue's order; groups without metrics are left out."""
    metrics = in_order({key for run in runs for key in run.curves})
    grouped = {group: [metric for metric in metrics if metric.group == group] for group in GROUPS}
    return {group: members for group, members in grouped.items() if members}


def _page(runs: Sequence[RunSummary], experiment: str, uri: str, sections: Sequence[str]) -> str:
    title = f"Comparison of runs: {experiment}"
    finished = sum(run.status == "FINISHED" for run in runs)
    subtitle = (
        f"{len(runs)} run{'s' * (len(runs) != 1)}, {finished} finished &middot; {escape(uri)} "
        f"&middot; written {date(time.time())}"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{CSS}{_CSS}</style></head><body><main><header><h1>{escape(title)}</h1><p>{subtitle}</p></header>"
        f"<section>{_table(overview(runs))}</section>{''.join(sections)}"
        f"<footer>Written by <code>erica-dist compare</code>. "
        f"Strong lines are moving averages, faint lines the single steps.</footer></main></body></html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    body = []
    for row in table.rows:
        cells = [f'<th scope="row">{escape(row[0].text)}</th>']
        for cell in row[1:]:
            detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
            classes = [
                name for name, on in (("best", cell.best), (f"status {cell.text.lower()}", _is_status(cell))) if on
            ]
            attribute = f' class="{" ".join(classes)}"' if classes else ""
            body_cell = f"<span>{escape(cell.text)}</span>{detail}"
            cells.append(f"<td{attribute}>{body_cell}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    note = f"<p class=note>{escape(table.note)}</p>" if table.note else ""
    if not body:
        return f"<h3>{escape(table.title)}</h3>{note}"
    kind = "numbers" if table.numbers else "texts"
    return (
        f"<h3>{escape(table.title)}</h3><div class=scroll><table class={kind}><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>{note}"
    )


def _is_status(cell: Cell) -> bool:
    return cell.text in ("FINISHED", "FAILED", "KILLED", "RUNNING")


def _legend(runs: Sequence[RunSummary]) -> str:
    items = "".join(
        f'<li><i style="background:{colour(place)}"></i>{escape(run.label)}</li>' for place, run in enumerate(runs)
    )
    return f"<ul class=legend>{items}</ul>"


def _panels(group: Group, metrics: Sequence[Metric], runs: Sequence[RunSummary], png: str) -> str:
    figures = []
    for metric in metrics:
        text = f"{metric.label} ({metric.key}) by optimizer step"
        figures.append(picture(panel_svg(metric, runs), text))
    return (
        f"<h3>{escape(GROUPS[group])} <a href={escape(png, quote=True)}>PNG</a></h3>"
        f"<div class=panels>{''.join(figures)}</div>"
    )


_CSS = """
h3 a { font-size: 12px; font-weight: 500; color: var(--accent); text-decoration: none; margin-left: 6px; }
.numbers td:nth-child(n+2) { white-space: nowrap; }
.texts td { overflow-wrap: anywhere; min-width: 120px; font-family: ui-monospace, monospace; font-size: 13px; }
.texts tbody th { font-family: ui-monospace, monospace; font-size: 13px; }
td small { display: block; color: var(--soft); font-size: 12px; }
td.best span { font-weight: 700; color: #137333; }
td.status span { font-size: 12px; font-weight: 600; padding: 2px 8px; border-radius: 99px; background: #e8eaed; }
td.finished span { background: #e6f4ea; color: #137333; }
td.failed span, td.killed span { background: #fce8e6; color: #b3261e; }
td.running span { background: #e8f0fe; color: #0b57d0; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 20px; list-style: none; padding: 0; margin: 24px 0 0; }
.legend li { font-weight: 600; }
.legend i { display: inline-block; width: 22px; height: 4px; border-radius: 2px; margin: 0 8px 3px 0; }
"""
