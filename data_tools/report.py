"""The table of counts that a command ends with, and times in words."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table


def counts_table(title: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print `counts` (stage -> reason -> number) as a table on standard output."""
    table = Table(title=f"{title}: what was kept, and what was dropped why", title_justify="left")
    table.add_column("stage")
    table.add_column("what")
    table.add_column("number", justify="right")
    for stage, of_stage in counts.items():
        for place, (reason, number) in enumerate(of_stage.items()):
            table.add_row(stage if place == 0 else "", reason, f"{number:,}")
        table.add_section()
    Console(width=100).print(table)


def seconds_text(seconds: float) -> str:
    """`95.2` as `1 min 35 s`."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{seconds:.1f} s"
