"""A `Draft` -> a document of the corpus: every span and label checked, what is wrong refused or left out and counted.

Strict: the first fault is a `UserError` with its place. Tolerant: the smallest part that is wrong goes, mention, entity
or label, or else the record; each is counted by its reason. In both, exact repetitions of a mention or label and labels
that say that there is no relation are left out and counted, since nothing is lost by it.

Ids. An entity keeps the id that its record has (a Wikidata id). One without gets `name:<name>|<type>`, the name in
lower case, so that it is the same in all documents that call it the same; two of a document that are called alike stay
two (`#2`). No objective compares entities across documents: relations are matched by their labels, entities only within
their document. What ids are for is counting (`audit`), where the same name is nearly always the same thing; they never
equal a Wikidata id.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from data_tools.foreign_documents import Draft, Entity
from data_tools.leakage_readers import NO_FACT, name_key
from erica_dist.errors import UserError

NO_RELATION = NO_FACT | {"p0"}  # lower case; P0 in the published ERICA code
NO_TYPE = "(none)"
Span = tuple[int, int, str]  # start, end, source
Counts = dict[str, Counter[str]]  # stage -> reason -> number


@dataclass(frozen=True)
class Rules:
    """relations: the ids that may occur; None: any."""

    min_entities: int
    min_pairs: int
    tolerant: bool
    relations: frozenset[str] | None


@dataclass(frozen=True)
class Faults:
    """Where a fault is told or counted. place: of the record; counts: stage -> reason -> number."""

    place: str
    tolerant: bool
    counts: Counts

    def drop(self, stage: str, reason: str, text: str) -> None:
        """Count something of `stage` as dropped for `reason`; `text` tells which, and what is wrong with it.

        Raises:
            UserError: nothing may be dropped.
        """
        if not self.tolerant:
            raise UserError(f"{self.place}: {text}; mend it, or leave out and count what is wrong with --tolerant")
        self.counts[stage][f"{'pages ' if stage == 'pages' else ''}dropped: {reason}"] += 1


def clean(draft: Draft, rules: Rules, faults: Faults) -> dict[str, Any] | None:
    """The document as a corpus shard holds it; None, counted, where too little is left of it."""
    counts = faults.counts
    counts["passages"]["cut"] += 1
    spans = _spans(draft, faults)
    survivors = [place for place, of_entity in enumerate(spans) if of_entity]
    number = {entity: place for place, entity in enumerate(survivors)}
    labels, barred = _labels(draft, rules, number, faults)
    fault = ""
    if len(survivors) < rules.min_entities:
        fault = "too few entities"
    elif len({label[:2] for label in labels}) < rules.min_pairs:
        fault = "too few labelled pairs"
    if fault:
        counts["passages"][f"dropped: {fault}"] += 1
        return None
    counts["passages"]["passed"] += 1
    entities = [draft.entities[entity] for entity in survivors]
    names = [_name(draft.text, entity, spans[place]) for entity, place in zip(entities, survivors, strict=True)]
    ids = _ids(entities, names)
    counts["entity types"].update(entity.type or NO_TYPE for entity in entities)
    document: dict[str, Any] = {
        "title": draft.title,
        "page_id": draft.page_id,
        "chunk": draft.chunk,
        "text": draft.text,
        "entities": [
            {"id": identifier, "name": name, "type": entity.type, "mentions": [list(span) for span in spans[place]]}
            for identifier, name, entity, place in zip(ids, names, entities, survivors, strict=True)
        ],
        "relations": [list(label) for label in labels],
    }
    if barred:
        document["barred"] = [list(pair) for pair in barred]
    return document


def _spans(draft: Draft, faults: Faults) -> list[list[Span]]:
    """Of each entity its mentions, sorted; over the whole document none overlap.

    Of mentions that overlap the one that starts first stays, of those that start together the longer.
    """
    text, counts = draft.text, faults.counts
    found: list[tuple[int, int, int, int, str]] = []  # start, -end, entity, mention, source
    for place, entity in enumerate(draft.entities):
        seen: set[tuple[int, int]] = set()
        for m, mention in enumerate(entity.mentions):
            start, end = mention.start, mention.end
            counts["mentions"]["read"] += 1
            reason = fault = ""
            if mention.fault or not 0 <= start <= end <= len(text):
                reason = "outside the text"
                fault = mention.fault or f"[{start}, {end}) lies outside the text of {len(text)} characters"
            elif not text[start:end].strip():
                reason, fault = "empty", f"[{start}, {end}) is empty"
            if reason:
                faults.drop("mentions", reason, f"{_called(draft, place)}, mention {m}: {fault}")
            elif (start, end) in seen:
                counts["mentions"]["left out: the same again"] += 1
            else:
                seen.add((start, end))
                found.append((start, -end, place, m, mention.source))
    spans: list[list[Span]] = [[] for _ in draft.entities]
    before = (0, 0, 0)  # start, end, entity
    for start, negative, place, m, source in sorted(found):
        if start < before[1]:
            other = _called(draft, before[2])
            fault = f"[{start}, {-negative}) overlaps [{before[0]}, {before[1]}) of {other}"
            faults.drop("mentions", "overlaps another", f"{_called(draft, place)}, mention {m}: {fault}")
            continue
        spans[place].append((start, -negative, source))
        before = (start, -negative, place)
    for place in range(len(draft.entities)):
        counts["entities"]["read"] += 1
        if not spans[place]:
            faults.drop("entities", "no mention left", f"{_called(draft, place)} has no mention")
    return spans


def _labels(
    draft: Draft, rules: Rules, number: dict[int, int], faults: Faults
) -> tuple[list[tuple[int, int, str]], list[tuple[int, int]]]:
    """Sorted unique labels and barred pairs among the entities that are left, by their new places."""
    of_labels = faults.counts["labels"]
    entities = len(draft.entities)
    kept: set[tuple[int, int, str]] = set()
    barred = set(draft.barred)
    for head, tail, relation in draft.labels:
        of_labels["read"] += 1
        what = f"label [{head}, {tail}, {relation!r}]"
        if not (0 <= head < entities and 0 <= tail < entities):
            faults.drop("labels", "an end is no entity", f"{what}: the document has {entities} entities")
        elif relation.lower() in NO_RELATION:
            of_labels["left out: no relation"] += 1
        elif head == tail:
            faults.drop("labels", "head is tail", f"{what} joins an entity with itself")
        elif rules.relations is not None and relation not in rules.relations:
            faults.drop("labels", "relation not in the table", f"{what}: the table of relations has no {relation!r}")
            barred.add((head, tail))  # it holds something: never to be drawn as no relation
        elif head not in number or tail not in number:
            of_labels["dropped: an end is gone"] += 1
        elif (label := (number[head], number[tail], relation)) in kept:
            of_labels["left out: the same again"] += 1
        else:
            kept.add(label)
    labelled = {label[:2] for label in kept}
    pairs: set[tuple[int, int]] = set()
    for head, tail in barred:
        if not (0 <= head < entities and 0 <= tail < entities) or head == tail:
            faults.drop("labels", "barred pair is none", f"barred pair [{head}, {tail}] is not of two entities")
        elif head in number and tail in number and (number[head], number[tail]) not in labelled:
            pairs.add((number[head], number[tail]))
    return sorted(kept), sorted(pairs)


def _called(draft: Draft, place: int) -> str:
    """How an error text names an entity: its place from 0, and its name or first mention."""
    entity = draft.entities[place]
    name = entity.name or next((draft.text[m.start : m.end] for m in entity.mentions if not m.fault), entity.id)
    return f"entity {place} ({name[:40]!r})"


def _name(text: str, entity: Entity, spans: list[Span]) -> str:
    """The entity's name, else its longest mention, of several the first."""
    return entity.name or max((text[start:end] for start, end, _ in spans), key=len)


def _ids(entities: list[Entity], names: list[str]) -> list[str]:
    used: Counter[str] = Counter()
    ids = []
    for entity, name in zip(entities, names, strict=True):
        identifier = entity.id
        if not identifier:
            identifier = f"name:{name_key(name)}|{entity.type or ''}"
            used[identifier] += 1
            if used[identifier] > 1:
                identifier += f"#{used[identifier]}"
        ids.append(identifier)
    return ids
