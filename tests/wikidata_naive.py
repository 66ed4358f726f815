"""A made-up world of entities, its dump, and the knowledge base of it by dictionaries alone, written from the rules."""

from __future__ import annotations

import json
import random
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from data_tools.kb import KnowledgeBase
from data_tools.wikidata.types import ROOTS
from tests.wikidata_entities import item_value, label, statement

WORDS = [
    "Ada",
    "ada",
    "ADA",
    "Berlin",
    "Berlin Mitte",
    "Straße",
    "STRASSE",
    "Éa",
    "E\u0301a",
    "東京",
    "\U0001f600 Bar",
    "x\0y",
]
RELATIONS = ("P17", "P19", "P27", "P279", "P47", "odd one")
LABEL_WEIGHT = 4.0


def world(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Entities in the order of a dump: names shared and nested, all ranks, absent ends, lines that stand twice."""
    pick = random.Random(seed)
    numbers = pick.sample(range(1, 40 * count), count)
    classes = [5, 515, 4167410, *numbers[:6]]

    def name() -> str:
        words = [pick.choice(WORDS) for _ in range(pick.choice([1, 1, 2]))]
        if pick.random() < 0.7:
            words.append(str(pick.randrange(count)))
        return pick.choice([" ", "  ", "\u00a0"]).join(words)

    entities: list[dict[str, Any]] = []
    for number in numbers:
        labels = {code: label(name(), code) for code in ("en", "mul", "de") if pick.random() < 0.6}
        aliases = {code: [label(name(), code) for _ in range(pick.randrange(3))] for code in ("en", "mul", "de")}
        title = pick.choice(["", "", name(), f"{name()} ({pick.choice(WORDS[3:8])})", f"shared_{pick.randrange(9)}"])
        claims: dict[str, list[Any]] = defaultdict(list)
        for _ in range(pick.randrange(9)):
            tail = pick.choice(numbers) if pick.random() < 0.9 else 10**6
            tail = number if pick.random() < 0.05 else tail
            rank = pick.choice(["normal", "normal", "preferred", "deprecated"])
            claims[pick.choice(RELATIONS)].append(statement(item_value(tail), rank))
        for _ in range(pick.choice([0, 1, 1, 2])):
            claims["P31"].append(statement(item_value(pick.choice(classes))))
        if number in classes:
            claims["P279"].append(statement(item_value(pick.choice(classes))))
        entities.append(
            {
                "type": "item",
                "id": f"Q{number}",
                "labels": labels or [],
                "aliases": aliases,
                "sitelinks": {"enwiki": {"site": "enwiki", "title": title}} if title else [],
                "claims": claims or [],
            }
        )
    entities += [{**pick.choice(entities), "labels": {"en": label(name())}} for _ in range(count // 20)]
    entities += [
        {"type": "property", "id": relation, "labels": {"en": label(f"label of  {relation}")}}
        for relation in RELATIONS[:3]
    ]
    entities.append(
        {"type": "lexeme", "id": "L5", "lemmas": {}, "claims": {"P17": [statement(item_value(numbers[0]))]}}
    )
    pick.shuffle(entities)
    return entities


def dump_of(entities: Iterable[dict[str, Any]]) -> bytes:
    return b"[\n" + b",\n".join(json.dumps(entity).encode() for entity in entities) + b"\n]\n"


def clean(name: str) -> str:
    return unicodedata.normalize("NFC", " ".join(name.replace("\0", " ").split()))


def title_of(written: str) -> str:
    text = clean(written.replace("_", " "))
    return text[:1].upper() + text[1:]


class NaiveKb:
    """Everything by entity number of the Q id. ranks: best or nondeprecated."""

    def __init__(self, entities: list[dict[str, Any]], ranks: str = "best"):
        self.labels: dict[int, set[str]] = defaultdict(set)
        self.names: dict[str, set[int]] = defaultdict(set)
        self.facts: set[tuple[int, str, int]] = set()
        self.classes: dict[int, set[int]] = defaultdict(set)
        claimed: dict[str, set[int]] = defaultdict(set)
        for entity in entities:
            if entity["type"] != "item":
                continue
            number = int(entity["id"][1:])
            names = self._names(entity)
            if not names:
                continue
            self.labels[number].add(names[0])
            for name in names:
                self.names[name].add(number)
            if entity["sitelinks"]:
                claimed[title_of(entity["sitelinks"]["enwiki"]["title"])].add(number)
            for relation, statements in dict(entity["claims"]).items():
                given = {one["rank"] for one in statements} - {"deprecated"}
                wanted = {"preferred"} if "preferred" in given and ranks == "best" else given
                tails = {
                    one["mainsnak"]["datavalue"]["value"]["numeric-id"] for one in statements if one["rank"] in wanted
                }
                if relation == "P31":
                    self.classes[number] |= tails
                else:
                    self.facts |= {(number, relation, tail) for tail in tails}
        self.ids = sorted(self.labels)
        self.facts = {(h, r, t) for h, r, t in self.facts if t in self.labels and h != t}
        self.known = {number: 1 for number in self.ids}
        for head, _, _ in self.facts:
            self.known[head] += 1
        for _, tail in {(h, t) for h, _, t in self.facts}:
            self.known[tail] += 1
        self.titles = {title: min(of, key=lambda n: (-self.known[n], n)) for title, of in claimed.items()}

    @staticmethod
    def _names(entity: dict[str, Any]) -> list[str]:
        labels, aliases, sitelinks = (dict(entity[part]) for part in ("labels", "aliases", "sitelinks"))
        own = [labels[code]["value"] for code in ("en", "mul") if code in labels][:1]
        if sitelinks:
            title = title_of(sitelinks["enwiki"]["title"])
            own.append(title[: title.rindex(" (")] if title.endswith(")") else title)
        own += [alias["value"] for code in ("en", "mul") for alias in aliases.get(code, ())]
        return [clean(name) for name in own]

    def label(self, number: int) -> str:
        return min(self.labels[number], key=lambda name: name.encode())

    def weight(self, name: str, number: int) -> float:
        return self.known[number] * (LABEL_WEIGHT if name in self.labels[number] else 1.0)

    def candidates(self, name: str) -> list[tuple[int, float]]:
        found = [(number, self.weight(name, number)) for number in self.names.get(name, ())]
        total = sum(weight for _, weight in found)
        return [(number, weight / total) for number, weight in sorted(found, key=lambda one: (-one[1], one[0]))]

    def candidates_folded(self, name: str) -> list[tuple[int, float]]:
        best: dict[int, float] = {}
        for spelling, numbers in self.names.items():
            if clean(spelling.casefold()) == clean(clean(name).casefold()):
                for number in numbers:
                    best[number] = max(best.get(number, 0.0), self.weight(spelling, number))
        total = sum(best.values())
        return [(n, weight / total) for n, weight in sorted(best.items(), key=lambda one: (-one[1], one[0]))]

    def type(self, number: int) -> str:
        rank = {of_class: place for place, (_, roots) in enumerate(ROOTS) for of_class in roots}
        found = []
        for of_class in self.classes[number]:
            level, seen = {of_class}, {of_class}
            for _ in range(12):
                if hits := [rank[one] for one in level if one in rank]:
                    found.append(min(hits))
                    break
                level = {t for h, r, t in self.facts if r == "P279" and h in level} - seen
                seen |= level
        return ROOTS[min(found)][0] if found else ""


def assert_same(kb: KnowledgeBase, naive: NaiveKb) -> None:
    """All that can be asked of the one is what the other says."""
    number = [int(kb.entity_id(place)[1:]) for place in range(len(kb))]
    assert number == naive.ids
    of = {one: place for place, one in enumerate(number)}
    assert kb.entity_number("Q1000000") == kb.entity_number("Q99999999999") == kb.entity_number("P1") == -1
    # names and titles
    assert len(kb.name_trie) == len(naive.names)
    assert sorted(kb.name_trie[row] for row in range(len(kb.name_trie))) == sorted(naive.names)
    for name in [*naive.names, "absent", "", "Ad"]:
        entities, priors = kb.candidates(name)
        expected = naive.candidates(name)
        assert [number[place] for place in entities] == [one for one, _ in expected], name
        np.testing.assert_allclose(priors, [prior for _, prior in expected], rtol=1e-5)
        assert np.isnan(kb.link_probability(name))
    for name in [*list(naive.names)[:40], "BERLIN", "straSSe", "absent"]:
        entities, priors = kb.candidates_folded(name)
        expected = naive.candidates_folded(name)
        assert [number[place] for place in entities] == [one for one, _ in expected], name
        np.testing.assert_allclose(priors, [prior for _, prior in expected], rtol=1e-5)
    assert len(kb.title_trie) == len(naive.titles)
    assert {title: number[kb.entity_of_title(title)] for title in naive.titles} == naive.titles
    assert kb.entity_of_title("Absent") == -1
    # facts
    relations = [kb.relation_id(relation) for relation in range(kb.relation_count)]
    assert relations == sorted({relation for _, relation, _ in naive.facts})
    expected_facts = sorted((of[h], of[t], relations.index(r)) for h, r, t in naive.facts)
    count = len(kb)
    everyone = np.arange(count)
    assert [tuple(fact) for fact in kb.facts_among(everyone).tolist()] == expected_facts
    heads, tails = np.divmod(np.arange(count * count), count)
    offsets, found = kb.relations_of_pairs(heads, tails)
    pair = np.repeat(np.arange(count * count), np.diff(offsets))
    assert list(zip(heads[pair].tolist(), tails[pair].tolist(), found.tolist(), strict=True)) == expected_facts
    neighbours: dict[int, set[int]] = defaultdict(set)
    for head, tail, relation in expected_facts:
        neighbours[head].add(tail)
        neighbours[tail].add(head)
        assert relation in kb.relations_of(head, tail)
    # entities
    title_of_entity = {entity: title for title, entity in sorted(naive.titles.items(), reverse=True)}
    for place, one in enumerate(number):
        assert kb.entity_number(f"Q{one}") == place
        assert kb.neighbours(place).tolist() == sorted(neighbours[place])
        assert kb.entity_name(place) == naive.label(one)
        assert (kb.entity_title(place) in naive.titles) == (one in title_of_entity)
        assert not kb.entity_title(place) or naive.titles[kb.entity_title(place)] == one
        assert sorted(kb.instance_of(place)) == sorted(f"Q{of_class}" for of_class in naive.classes[one])
        assert kb.entity_type(place) == naive.type(one), one
