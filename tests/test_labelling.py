"""Entities and relations of a passage: all facts, caps, exclusions, leakage, and what is barred then."""

from __future__ import annotations

from collections import Counter

import pytest

from data_tools.documents import Passage
from data_tools.filters import cannot_pass, content_hash, labels_fault, length_fault
from data_tools.kb import KnowledgeBase
from data_tools.labelling import Labelled, excluded_numbers, label
from data_tools.leakage import LeakedPairs, add_pairs
from data_tools.leakage_readers import name_key
from data_tools.linking import NO_ENTITY
from data_tools.mentions import Mention, Possible
from erica_dist.config import FilterConfig, LabellingConfig
from tests.corpora import entity, make_kb

TEXT = "France Germany Paris Europe"  # Q1 Q2 Q101 Q900
NOTHING = LeakedPairs({})


def leaked_pairs(*pairs: tuple[str, str], ids: bool = False) -> LeakedPairs:
    partners: dict[str, dict[str, int]] = {}
    add_pairs(partners, pairs if ids else [(name_key(one), name_key(other)) for one, other in pairs], 1)
    return LeakedPairs(partners)


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    return KnowledgeBase.open(make_kb(tmp_path_factory.mktemp("kb")))


def labelled(
    kb: KnowledgeBase,
    config: LabellingConfig | None = None,
    leaked: LeakedPairs = NOTHING,
    counts: Counter[str] | None = None,
) -> Labelled:
    mentions = [
        Mention(TEXT.index(word), TEXT.index(word) + len(word), "name", entity(kb, identifier), kind)
        for word, identifier, kind in (
            ("France", "Q1", "ORG"),
            ("Germany", "Q2", "GPE"),
            ("Paris", "Q101", ""),
            ("Europe", "Q900", "LOC"),
        )
    ]
    mentions += [Mention(0, 6, "ner", entity(kb, "Q1"), kind) for kind in ("GPE", "GPE")]
    config = config or LabellingConfig()
    excluded = excluded_numbers(kb, config.excluded_relations)
    return label(TEXT, mentions, kb, config, excluded, leaked, Counter() if counts is None else counts)


def triples(kb: KnowledgeBase, found: Labelled) -> list[tuple[int, int, str]]:
    return [(head, tail, kb.relation_id(relation)) for head, tail, relation in found.relations]


ALL = [(0, 1, "P47"), (0, 2, "P36"), (0, 3, "P30"), (1, 0, "P47"), (1, 3, "P30")]


def test_all_relations_of_all_ordered_pairs(kb: KnowledgeBase) -> None:
    found = labelled(kb)
    assert triples(kb, found) == ALL
    assert found.barred == ()
    assert [kb.entity_id(one.number) for one in found.entities] == ["Q1", "Q2", "Q101", "Q900"]
    assert [one.label for one in found.entities] == ["GPE", "GPE", "", "LOC"]
    assert [len(one.mentions) for one in found.entities] == [3, 1, 1, 1]


def test_an_excluded_relation_leaves_a_barred_pair(kb: KnowledgeBase) -> None:
    counts: Counter[str] = Counter()
    found = labelled(kb, LabellingConfig(excluded_relations=["P47", "P999"]), counts=counts)
    assert triples(kb, found) == [(0, 2, "P36"), (0, 3, "P30"), (1, 3, "P30")]
    assert found.barred == ((0, 1), (1, 0))
    assert counts == {"removed: excluded relation": 2}


def test_leaked_pairs_lose_their_labels_in_both_directions_and_are_barred(kb: KnowledgeBase) -> None:
    counts: Counter[str] = Counter()
    found = labelled(kb, leaked=leaked_pairs(("paris", "FRANCE"), ("Paris", "Europe")), counts=counts)
    assert triples(kb, found) == [fact for fact in ALL if fact[:2] != (0, 2)]
    assert found.barred == ((0, 2), (2, 0), (2, 3), (3, 2))
    assert counts == {"removed: leakage": 1}
    assert found.leaked == ((0, 2, 1),)


def test_leaked_pairs_of_ids_count_whatever_the_names(kb: KnowledgeBase) -> None:
    found = labelled(kb, leaked=leaked_pairs(("Q101", "Q1"), ("Q2", "Q77"), ids=True))
    assert triples(kb, found) == [fact for fact in ALL if fact[:2] != (0, 2)]
    assert found.barred == ((0, 2), (2, 0))
    assert labelled(kb, leaked=leaked_pairs(("q101", "q1"))).barred == ()


def test_caps(kb: KnowledgeBase) -> None:
    counts: Counter[str] = Counter()
    found = labelled(kb, LabellingConfig(max_entities=3, max_labels=2), counts=counts)
    # P36 is the rarest relation; then the first of P47
    assert triples(kb, found) == [(0, 1, "P47"), (0, 2, "P36")]
    assert found.barred == ((1, 0),)
    assert counts == {"entities over labelling.max_entities": 1, "removed: over labelling.max_labels": 1}


def test_length_filter_counts_special_tokens_in_the_maximum_only() -> None:
    config = FilterConfig(min_tokens=10, max_tokens=20)
    passages = [Passage(1, "T", 0, "x", (), pieces) for pieces in (9, 10, 18, 19)]
    assert [length_fault(passage, config, 2) for passage in passages] == ["too short", "", "", "too long"]


def test_filters_on_possible_and_on_labelled(kb: KnowledgeBase) -> None:
    def possible(*identifiers: str) -> list[Possible]:
        return [Possible(0, 1, "name", entity(kb, identifier)) for identifier in identifiers]

    config = FilterConfig(min_entities=3, min_pairs=4)
    none: frozenset[int] = frozenset()
    two = [*possible("Q1", "Q2", "Q1"), Possible(0, 1, "name", NO_ENTITY)]
    assert cannot_pass(two, kb, config, none) == "too few possible entities"
    # Q1 and Q2 border each other and lie in Europe: four labelled pairs
    assert cannot_pass(possible("Q1", "Q2", "Q900"), kb, config, none) == ""
    assert cannot_pass(possible("Q1", "Q3", "Q900"), kb, config, none) == "too few possible labelled pairs"
    excluded = excluded_numbers(kb, ["P47"])
    assert cannot_pass(possible("Q1", "Q2", "Q900"), kb, config, excluded) == "too few possible labelled pairs"
    found = labelled(kb)
    assert labels_fault(found, config) == ""
    assert labels_fault(found, FilterConfig(min_entities=5)) == "too few entities"
    assert labels_fault(found, FilterConfig(min_pairs=6)) == "too few labelled pairs"
    leaked = labelled(kb, leaked=leaked_pairs(("Paris", "France")))
    assert labels_fault(leaked, FilterConfig(min_pairs=4)) == ""
    assert labels_fault(leaked, FilterConfig(min_pairs=5)) == "too few labelled pairs without the leaked ones"
    assert labels_fault(leaked, FilterConfig(min_pairs=6)) == "too few labelled pairs"
    assert content_hash("a  b\nc") == content_hash("a b c") != content_hash("a b", "c")
