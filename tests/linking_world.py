"""A small world whose names are ambiguous, with persons and places, to link names in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.linking import Tables
from data_tools.documents import Passage
from data_tools.linking import Linker, PageContext
from data_tools.pages import Link

Row = tuple[str, str, str, Sequence[tuple[str, str]]]  # id, names, page title, facts
PERSON = [("P31", "Q5")]
WORLD: list[Row] = [
    ("Q10", "Georgia|Republic of Georgia", "Georgia (country)", [("P36", "Q12"), ("P47", "Q13"), ("P47", "Q14")]),
    ("Q11", "Georgia|State of Georgia", "Georgia (U.S. state)", [("P36", "Q15"), ("P47", "Q16"), ("P47", "Q17")]),
    ("Q12", "Tbilisi", "", []),
    ("Q13", "Armenia", "", []),
    ("Q14", "Turkey", "", []),
    ("Q15", "Atlanta", "", []),
    ("Q16", "Florida", "", []),
    ("Q17", "Alabama", "", []),
    ("Q20", "Paris", "Paris", [("P17", "Q22"), *((f"P{number}", "Q12") for number in range(100, 115))]),
    ("Q21", "Paris|Paris of Troy", "Paris (mythology)", [("P361", "Q23")]),
    ("Q22", "France|Paris", "France", []),  # the name of the city is one of its names too, an unlikely one
    ("Q23", "Troy", "", []),
    ("Q30", "Albert Einstein|Einstein", "Albert Einstein", PERSON),
    ("Q31", "Elsa Einstein", "", PERSON),
    ("Q32", "Vincent van Gogh", "", PERSON),
    ("Q33", "George Washington", "", PERSON),
    ("Q34", "Washington", "Washington, D.C.", []),
    ("Q35", "Marie Curie", "", []),  # of no known type
    ("Q36", "North Africa", "", [("P31", "Q2221906")]),
    ("Q37", "Stephen King", "", PERSON),
]


def make_tables(folder: Path, world: Sequence[Row] = WORLD) -> Tables:
    """The tables of entities, triples and relations, in `folder`, which is made where it is not there."""
    lines = {
        "entities": ["\t".join([row[0], row[1], *([row[2]] if row[2] else [])]) for row in world],
        "triples": [f"{row[0]}\t{relation}\t{tail}" for row in world for relation, tail in row[3]],
        "relations": sorted({f"{relation}\t{relation}" for row in world for relation, _ in row[3]}),
    }
    folder.mkdir(exist_ok=True)
    for name, rows in lines.items():
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return Tables(*(str(folder / f"{name}.tsv") for name in ("entities", "triples", "relations")))


def context(linker: Linker, title: str, *links: str) -> PageContext:
    """The context of a page whose text is its links, each `surface` or `surface=target`, with three characters between
    them."""
    text, spans = "", []
    for link in links:
        surface, _, target = link.partition("=")
        spans.append(Link(len(text), len(text) + len(surface), target or surface))
        text += f"{surface} . "
    return linker.page(title, [Passage(1, title, 0, text, tuple(spans), 0)])
