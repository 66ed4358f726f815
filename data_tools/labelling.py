"""Mentions -> entities with all their relations: distant supervision.

In: the mentions of a passage. Out: its entities in order of first mention, the facts of the knowledge base between
every ordered pair of them (one look-up a passage, all relations kept), and the barred pairs: those that lost every
label, or that must not be learnt of (leakage), so that nothing later takes them for pairs without a relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_tools.kb import KnowledgeBase
from data_tools.leakage import LeakedPairs
from data_tools.leakage_readers import name_key
from data_tools.mentions import Mention
from erica_dist.config import LabellingConfig


@dataclass(frozen=True)
class Entity:
    """An entity of a document; `label`: the NER label most of its mentions have, "" if none has one."""

    number: int  # in the knowledge base
    label: str
    mentions: tuple[Mention, ...]


@dataclass(frozen=True)
class Labelled:
    """Entities, sorted unique (head, tail, relation number in the knowledge base) and sorted barred (head, tail);
    leaked: (head, tail, the sets it is from) of each label that leakage took."""

    entities: tuple[Entity, ...]
    relations: tuple[tuple[int, int, int], ...]
    barred: tuple[tuple[int, int], ...]
    leaked: tuple[tuple[int, int, int], ...] = ()

    @property
    def labelled_pairs(self) -> int:
        return len({(head, tail) for head, tail, _ in self.relations})


def excluded_numbers(kb: KnowledgeBase, excluded: Sequence[str]) -> frozenset[int]:
    """Numbers of the relations with the ids in `excluded` that the knowledge base has."""
    wanted = set(excluded)
    return frozenset(number for number in range(kb.relation_count) if kb.relation_id(number) in wanted)


def facts_between(kb: KnowledgeBase, entities: Sequence[int]) -> list[tuple[int, int, int]]:
    """All facts between the distinct `entities`: (place of the head, place of the tail, relation), sorted."""
    return [(head, tail, relation) for head, tail, relation in kb.facts_among(np.asarray(entities, np.int64)).tolist()]


def label(
    text: str,
    mentions: Sequence[Mention],
    kb: KnowledgeBase,
    config: LabellingConfig,
    excluded: frozenset[int],
    leaked: LeakedPairs,
    counts: Counter[str],
) -> Labelled:
    """Entities and relations of the passage `text`; labels that were taken away are added to `counts` by reason.

    Caps keep the entities mentioned first, of the labels of one relation those whose two entities are, and of all
    labels those of the relations that are rarest in the passage.
    """
    entities = _entities(mentions, config.max_entities, counts)
    barred: set[tuple[int, int]] = set()
    sets = leaked.between([_names(text, entity, kb) for entity in entities]) if leaked else {}
    barred.update(sets)
    taken: list[tuple[int, int, int]] = []
    kept: list[tuple[int, int, int]] = []
    lost: set[tuple[int, int]] = set()
    for fact in facts_between(kb, [entity.number for entity in entities]) if len(entities) > 1 else []:
        pair = fact[:2]
        if pair in barred:
            counts["removed: leakage"] += 1
            taken.append((*pair, sets[pair]))
        elif fact[2] in excluded:
            counts["removed: excluded relation"] += 1
            lost.add(pair)
        else:
            kept.append(fact)
    if config.max_per_relation:
        of_relation: Counter[int] = Counter()
        first: list[tuple[int, int, int]] = []
        for fact in sorted(kept, key=lambda fact: (max(fact[:2]), fact)):
            of_relation[fact[2]] += 1
            if of_relation[fact[2]] <= config.max_per_relation:
                first.append(fact)
            else:
                lost.add(fact[:2])
        counts["removed: over labelling.max_per_relation"] += len(kept) - len(first)
        kept = sorted(first)
    if config.max_labels and len(kept) > config.max_labels:
        frequency = Counter(relation for _, _, relation in kept)
        ranked = sorted(kept, key=lambda fact: (frequency[fact[2]], fact))
        lost.update(fact[:2] for fact in ranked[config.max_labels :])
        counts["removed: over labelling.max_labels"] += len(kept) - config.max_labels
        kept = sorted(ranked[: config.max_labels])
    barred |= lost - {fact[:2] for fact in kept}
    return Labelled(tuple(entities), tuple(kept), tuple(sorted(barred)), tuple(taken))


def _entities(mentions: Sequence[Mention], cap: int, counts: Counter[str]) -> list[Entity]:
    of_entity: dict[int, list[Mention]] = {}
    for mention in mentions:
        of_entity.setdefault(mention.entity, []).append(mention)
    entities = [Entity(number, _label(group), tuple(group)) for number, group in of_entity.items()]
    if cap and len(entities) > cap:
        counts["entities over labelling.max_entities"] += len(entities) - cap
        entities = entities[:cap]
    return entities


def _label(mentions: Sequence[Mention]) -> str:
    """The most frequent label; of several the one that comes first."""
    frequency = Counter(mention.label for mention in mentions if mention.label)
    return max(frequency, key=lambda name: frequency[name]) if frequency else ""


def _names(text: str, entity: Entity, kb: KnowledgeBase) -> set[str]:
    """What an entity is known by in leaked pairs: keys of its surfaces and its label, and its id."""
    surfaces = {text[mention.start : mention.end] for mention in entity.mentions}
    return {name_key(name) for name in surfaces | {kb.entity_name(entity.number)}} | {kb.entity_id(entity.number)}
