"""The tables of entities and triples -> runs, as `extract` makes them of a dump.

Ids that are all Q ids keep their numbers, and nothing of the tables stays in memory. Other ids (Freebase mids and the
like) are numbered in sorted order, which takes about 150 bytes of memory for each entity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_tools.wikidata.extract import INSTANCE_OF, Rows, Selection
from data_tools.wikidata.items import entity_number
from data_tools.wikidata.tables import read_entities, read_triples
from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import UserError

_ROWS = 400_000  # in a run


@dataclass(frozen=True)
class Numbering:
    """Numbers of ids; `ids` sorted, None where the ids are Q ids and carry their number."""

    ids: tuple[str, ...] | None
    numbers: dict[str, int]

    @classmethod
    def of(cls, entities: str) -> Numbering:
        if all(entity_number(row.id) >= 0 for row in read_entities(entities)):
            return cls(None, {})
        ids = sorted({row.id for row in read_entities(entities)})
        return cls(tuple(ids), {identifier: number for number, identifier in enumerate(ids)})

    def __getitem__(self, identifier: str) -> int:
        """The number, -1 of what is no entity."""
        return entity_number(identifier) if self.ids is None else self.numbers.get(identifier, -1)


def table_runs(entities: str, triples: str, selection: Selection, folder: Path) -> tuple[list[Path], Numbering]:
    """Write the runs of both tables; gives their paths and how ids are numbered.

    Raises:
        UserError: a table cannot be read, or a line is malformed.
    """
    numbering = Numbering.of(entities)
    runs: list[Path] = []

    def write(rows: Rows) -> None:
        runs.append(folder / f"table-{len(runs):06d}")
        rows.write(runs[-1])

    for rows in _entity_rows(entities, numbering):
        write(rows)
    for rows in _triple_rows(triples, numbering, selection):
        write(rows)
    return runs, numbering


def _entity_rows(path: str, numbering: Numbering) -> Iterator[Rows]:
    rows = Rows()
    for entity in read_entities(path):
        rows.counts["entity lines"] += 1
        # A label serves as page title where the table gives none
        title = entity.title or normalise_title(entity.names[0])
        rows.entity(numbering[entity.id], list(entity.names), title, guessed=not entity.title)
        if len(rows.names) >= _ROWS:
            yield rows
    if not rows.counts["entity lines"] and not rows.ids:
        raise UserError(f"{path} holds no entity; a line is id<TAB>name|name|...")
    yield rows


def _triple_rows(path: str, numbering: Numbering, selection: Selection) -> Iterator[Rows]:
    rows = Rows()
    for head, relation, tail in read_triples(path):
        rows.counts["triples read"] += 1
        ends = numbering[head], numbering[tail]
        if relation == INSTANCE_OF and min(ends) >= 0:
            rows.counts["instance-of"] += 1
            rows.instance(*ends)
        elif not selection.wants(relation):
            rows.counts["triples of excluded relations"] += 1
        elif min(ends) < 0:
            rows.counts["triples with an unknown end"] += 1
        else:
            rows.fact(ends[0], relation, ends[1])
        if len(rows.facts) >= _ROWS:
            yield rows
    yield rows
