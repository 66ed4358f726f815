"""The audit's tables, and numbers and settings as text.

In: rows of texts and numbers. Out: HTML, every text escaped; a number stands to the right with its thousands parted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from data_tools.audit_documents import entity_link

Row = Sequence[str | int | float]


def table(header: Sequence[str], rows: Sequence[Row], dropped: int = -1, linked: int = -1) -> str:
    """A table; numbers to the right. `dropped`: the column whose negative numbers mark a row; `linked`: of ids."""

    def cell(column: int, value: str | int | float) -> str:
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if isinstance(value, float) else value
        inner = entity_link(text) if column == linked else escape(text)
        number = " class=number" if _is_number(value) else ""
        return f'<th scope="row">{inner}</th>' if column == 0 else f"<td{number}>{inner}</td>"

    kinds = [bool(rows) and _is_number(rows[0][column]) for column in range(len(header))]
    head = "".join(
        f'<th scope="col"{" class=number" if number and column else ""}>{escape(name)}</th>'
        for column, (name, number) in enumerate(zip(header, kinds, strict=True))
    )
    body = "".join(
        f"<tr{' class=dropped' if dropped >= 0 and _below_zero(row[dropped]) else ''}>"
        f"{''.join(cell(column, value) for column, value in enumerate(row))}</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    return f"<div class=scroll><table>{top}<tbody>{body}</tbody></table></div>"


def folded(text: str, header: Sequence[str], rows: Sequence[Row]) -> str:
    """The table behind a line that opens it."""
    return f"<details><summary>{text} as a table</summary>{table(header, rows)}</details>"


def _is_number(value: str | int | float) -> bool:
    return isinstance(value, int | float) or value.endswith(" %")


def _below_zero(value: str | int | float) -> bool:
    return isinstance(value, int) and value < 0


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.1f} %"


def flat(tree: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Settings by dotted name."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", as_text(value)


def as_text(value: Any) -> str:
    """A value of the manifest: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
