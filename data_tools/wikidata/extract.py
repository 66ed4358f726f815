"""One unit of a dump, or the tables -> sorted runs of what the knowledge base is made from.

    entities, facts --> `Rows` in memory --> one run with these parts, each sorted:
        ids      numbers of the entities that are kept
        names    (name, entity, is label)
        titles   (page title, entity, is given)
        facts    head << 32 | tail, relation (number in the run's own list)
        types    item << 32 | class, from instance-of

Numbers of entities are those of their Q ids here; they become rows of the knowledge base when runs are merged. So
whether the other end of a fact is kept need not be known yet.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.kb import normalise_name
from data_tools.wikidata.dump import Unit, lines
from data_tools.wikidata.items import (
    Decoded,
    Decoder,
    Language,
    Ranks,
    entity_number,
    facts,
    name_of_title,
)
from data_tools.wikidata.runs import number_columns, string_columns, write_run
from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import DamagedInputError, UserError

INSTANCE_OF = "P31"
MAX_RELATIONS = 1 << 16
_LISTED_DAMAGES = 100


@dataclass(frozen=True)
class Selection:
    """What of a dump is kept. relations: only these properties (empty: all) but those in `excluded`."""

    language: Language = field(default_factory=Language)
    ranks: Ranks = "best"
    relations: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()

    def wants(self, relation: str) -> bool:
        return relation not in self.excluded and (not self.relations or relation in self.relations)


@dataclass(frozen=True)
class ExtractTask:
    """A unit and the run to write."""

    unit: Unit
    selection: Selection
    run: str


@dataclass
class Rows:
    """What has been read, not sorted yet."""

    ids: array[int] = field(default_factory=lambda: array("I"))
    names: list[tuple[bytes, int, int]] = field(default_factory=list)
    titles: list[tuple[bytes, int, int]] = field(default_factory=list)
    facts: array[int] = field(default_factory=lambda: array("Q"))
    fact_relations: array[int] = field(default_factory=lambda: array("H"))
    types: array[int] = field(default_factory=lambda: array("Q"))
    relations: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  # of relations
    counts: Counter[str] = field(default_factory=Counter)

    def entity(self, number: int, names: list[str], title: str, guessed: bool = False) -> None:
        """An entity by its normalised names, label first, and its page title ("": none). guessed: no given title."""
        self.ids.append(number)
        self.names += [(name.encode(), number, place == 0) for place, name in enumerate(names)]
        if title:
            self.titles.append((title.encode(), number, not guessed))

    def fact(self, head: int, relation: str, tail: int) -> None:
        self.facts.append(head << 32 | tail)
        try:
            self.fact_relations.append(self.relations.setdefault(relation, len(self.relations)))
        except OverflowError:
            raise UserError(
                f"more than {len(self.relations) - 1:,} relations; at most {MAX_RELATIONS - 1:,} fit: name some in "
                "only_relations"
            ) from None

    def instance(self, item: int, of_class: int) -> None:
        self.types.append(item << 32 | of_class)

    def write(self, path: Path, **said: Any) -> dict[str, Any]:
        """Write the run, begin anew and give the run's index."""
        ids = np.unique(np.frombuffer(self.ids, np.uint32)) if self.ids else np.zeros(0, np.uint32)
        self.counts["entity lines merged"] += len(self.ids) - len(ids)
        columns_of_facts = number_columns(
            np.array(self.facts, np.uint64), relations=np.array(self.fact_relations, np.uint16)
        )
        self.counts["duplicate triples"] += len(self.facts) - len(columns_of_facts["keys"])
        parts = {
            "ids": {"keys": ids},
            "names": string_columns(self.names, "entities", "labels"),
            "titles": string_columns(self.titles, "entities", "given"),
            "facts": columns_of_facts,
            "types": number_columns(np.array(self.types, np.uint64)),
        }
        columns = {f"{part}.{name}": column for part, of_part in parts.items() for name, column in of_part.items()}
        relations = list(self.relations)
        index = write_run(
            path,
            columns,
            relations=relations,
            relation_labels=self.labels,
            counts=dict(sorted(self.counts.items())),
            **said,
        )
        self.__init__()  # type: ignore[misc]
        return index


def extract(task: ExtractTask) -> dict[str, Any]:
    """Read a unit and write its run, also where the unit is damaged: then up to that place, which the index names."""
    rows = Rows()
    decoder = Decoder(task.selection.language)
    damages = [task.unit.damage] if task.unit.damage else []
    size = 0
    try:
        for place, content in lines(task.unit):
            size += len(content)
            rows.counts["lines"] += 1
            try:
                entity = decoder(content)
            except ValueError as error:
                rows.counts["lines that are no JSON"] += 1
                if len(damages) < _LISTED_DAMAGES:
                    damages.append(f"{task.unit.name}: a line {place} is no JSON ({error}); fetch the dump again")
                continue
            if entity is not None:
                _take(entity, decoder, task.selection, rows)
    except DamagedInputError as error:
        damages.append(str(error))
    rows.counts.update(decoder.counts)
    rows.counts["bytes of JSON"] = size
    return rows.write(Path(task.run), damages=damages)


def _take(entity: Decoded, decoder: Decoder, selection: Selection, rows: Rows) -> None:
    counts = rows.counts
    if entity.type == "property":
        counts["properties"] += 1
        label, _ = decoder.label(entity)
        if label:
            rows.labels[entity.id] = normalise_name(label)
        return
    number = entity_number(entity.id)
    if entity.type not in ("item", "") or number < 0:
        counts["entities that are no items"] += 1
        return
    counts["items"] += 1
    label, code = decoder.label(entity)
    title = normalise_title(decoder.title(entity))
    counts["page titles in the dump"] += bool(title)
    own = [label] if label else []
    in_language = {label} if code == selection.language.code else set()
    for alias, of_language in decoder.aliases(entity):
        own.append(alias)
        if of_language == selection.language.code:
            in_language.add(alias)
    counts["items with a label in the language"] += code == selection.language.code
    counts["items with a label in a fallback language"] += bool(label) and code != selection.language.code
    if code == selection.language.code:
        counts["names in the language"] += len(in_language)
    if title:
        # A title is a name too, and the label where there is none: better than an alias
        own.insert(1 if label else 0, name_of_title(title))
    names = list(dict.fromkeys(filter(None, map(normalise_name, own))))
    kept = bool(names)
    if kept:
        rows.entity(number, names, title)
    else:
        counts["items without a name"] += 1
    of_statements = read = 0
    for relation, found, items in facts(entity, selection.ranks):
        of_statements += found
        if not items or not kept:
            continue
        if relation == INSTANCE_OF:
            counts["instance-of"] += len(items)
            for item in items:
                rows.instance(number, item)
        elif selection.wants(relation):
            read += len(items)
            for item in items:
                rows.fact(number, relation, item)
        else:
            counts["triples of excluded relations"] += len(items)
    counts["statements"] += of_statements
    counts["triples read"] += read
