"""What an entity of a dump says: names and fallbacks, page title, statements by rank, instance-of apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_tools.wikidata.items import Language, entity_number, facts, item_of, name_of_title
from tests.wikidata_entities import decoded, entity, item_value, label, read, snak, statement


def facts_of(claims: Any, ranks: Any = "best") -> list[tuple[str, int, list[int]]]:
    return list(facts(decoded(entity(claims=claims))[1], ranks))


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("parts", "names", "title"),
    [
        ({"labels": {"en": label("A"), "mul": label("M"), "de": label("D")}}, [("A", 1)], None),
        ({"labels": {"mul": label("M"), "de": label("D")}}, [("M", 1)], None),
        ({"labels": {"en": label("  "), "mul": label("M")}}, [("M", 1)], None),
        ({"labels": {"de": label("D")}, "sitelinks": {"enwiki": {"title": "T_(x)"}}}, [("T", 1)], "T (x)"),
        ({"labels": [], "sitelinks": {"enwiki": {"title": "t"}, "dewiki": {"title": "U"}}}, [("T", 1)], "T"),
        (
            {"labels": {}, "aliases": {"en": [label("B"), label("C")], "mul": [label("N")]}},
            [("B", 1), ("C", 0), ("N", 0)],
            None,
        ),
        (
            {"labels": {"mul": label("M")}, "aliases": {"en": [label("B")]}, "sitelinks": {"enwiki": {"title": "T"}}},
            [("B", 0), ("M", 1), ("T", 0)],
            "T",
        ),
        (
            {"aliases": {"en": [label("One"), label(" Two\t2 "), label("Two 2")], "de": [label("D")]}},
            [("One", 1), ("Two 2", 0)],
            None,
        ),
        ({"sitelinks": {"enwiki": {"title": "One (number)"}}, "aliases": []}, [("One", 1)], "One (number)"),
        ({"labels": None, "aliases": None, "sitelinks": {"enwiki": {"title": "(x)"}}}, [("(x)", 1)], "(x)"),
        ({"labels": {"en": label("a\u0301\u00a0b")}}, [("á b", 1)], None),
        ({"labels": {"en": label("\U0001f600")}}, [("\U0001f600", 1)], None),
        ({"labels": {"en": label("a\0b\nc")}}, [("a b c", 1)], None),
        ({"labels": {"en": label("long " * 2000)}}, [(("long " * 2000).strip(), 1)], None),
    ],
)  # fmt: skip
def test_names_and_titles(tmp_path: Path, parts: dict, names: list, title: str | None) -> None:
    rows = read(tmp_path, [entity(**parts)])
    assert rows["names"] == sorted((name, 1, is_label) for name, is_label in names)
    assert rows["titles"] == ([(title, 1, 1)] if title else [])
    assert rows["ids"] == [1]


@pytest.mark.parametrize(
    "parts",
    [
        {"labels": {}},
        {"labels": {"de": label("D")}},
        {"labels": {"en": label(" \n\t ")}, "aliases": {"en": [label("")]}},
        {"labels": {"en-gb": label("British")}, "sitelinks": {"dewiki": {"title": "D"}}},
        {"labels": [], "aliases": [], "sitelinks": []},
    ],
)
def test_items_without_a_name_are_left_out_with_their_statements(tmp_path: Path, parts: dict) -> None:
    rows = read(
        tmp_path, [entity(**parts, claims={"P1": [statement(item_value(2))], "P31": [statement(item_value(5))]})]
    )
    assert rows["ids"] == rows["names"] == rows["titles"] == rows["facts"] == rows["types"] == []
    assert rows["counts"]["items without a name"] == 1
    assert rows["counts"]["items"] == 1
    assert rows["counts"]["statements"] == 2


def test_names_are_counted_by_language(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        [
            entity("Q1", aliases={"en": [label("Uno"), label("One"), label("Uno")], "mul": [label("I")]}),
            entity("Q2", labels={"mul": label("Two")}, aliases={"en": [label("Deux")]}),
            entity("Q3", labels={}, sitelinks={"enwiki": {"site": "enwiki", "title": "Three"}}),
        ],
    )
    expected = {
        "items": 3,
        "items with a label in the language": 1,
        "items with a label in a fallback language": 1,
        "names in the language": 2,
        "page titles in the dump": 1,
        "items without a name": 0,
    }
    assert {key: rows["counts"][key] for key in expected} == expected


def test_another_language(tmp_path: Path) -> None:
    language = Language("de", ("mul", "en"), "dewiki")
    contents = [
        entity("Q1", labels={"en": label("One"), "de": label("Eins")}, sitelinks={"enwiki": {"title": "O"}}),
        entity("Q2", labels={"en": label("Two")}, sitelinks={"enwiki": {"title": "T"}, "dewiki": {"title": "zwei"}}),
        entity("P9", type="property", labels={"de": label("hat Teil"), "en": label("has part")}),
    ]
    rows = read(tmp_path, contents, language=language)
    assert rows["names"] == [("Eins", 1, 1), ("Two", 2, 1), ("Zwei", 2, 0)]
    assert rows["titles"] == [("Zwei", 2, 1)]
    assert rows["labels"] == {"P9": "hat Teil"}


def test_a_fallback_that_is_the_language_itself(tmp_path: Path) -> None:
    content = entity(labels={"mul": label("M")}, aliases={"en": [label("A")]})
    rows = read(tmp_path, [content], language=Language("en", ("en", "mul", "mul")))
    assert rows["names"] == [("A", 1, 0), ("M", 1, 1)]


def test_a_qualifier_of_a_title_is_no_part_of_the_name() -> None:
    names = {
        "Paris (mythology)": "Paris",
        "Paris_(film)": "Paris",
        "(x)": "(x)",
        "A (b) c": "A (b) c",
        "A (b) (c)": "A (b)",
        "F(x)": "F(x)",
        "A (b": "A (b",
        "A ()": "A",
    }
    assert {title: name_of_title(title) for title in names} == names


@pytest.mark.parametrize(
    ("identifier", "number"),
    [
        ("Q42", 42),
        ("Q0", 0),
        ("Q4294967295", 2**32 - 1),
        ("Q4294967296", -1),
        ("Q99999999999", -1),
        ("Q042", -1),
        ("Q", -1),
        ("", -1),
        ("42", -1),
        ("q42", -1),
        ("P42", -1),
        ("L7-F1", -1),
        ("Q-1", -1),
        ("Q²", -1),
        ("Q٤٢", -1),
        ("Q4 2", -1),
    ],
)
def test_entity_numbers(identifier: str, number: int) -> None:
    assert entity_number(identifier) == number


# ------------------------------------------------------------------------------------------------ statements


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (snak(item_value(5)), 5),
        (snak({"entity-type": "item", "numeric-id": 5}), 5),
        (snak({"entity-type": "item", "id": "Q5"}), 5),
        (snak({"id": "Q5"}), 5),
        (snak(item_value(5), datatype=None), 5),
        (snak(item_value(0)), 0),
        (snak(item_value(2**32 - 1)), 2**32 - 1),
        (snak(item_value(2**32)), -1),
        (snak(item_value(10**30)), -1),
        (snak({"entity-type": "item", "numeric-id": -5}), -1),
        (snak({"entity-type": "property", "numeric-id": 31, "id": "P31"}), -1),
        (snak({"entity-type": "property", "numeric-id": 31, "id": "P31"}, datatype="wikibase-property"), -1),
        (snak({"entity-type": "lexeme", "id": "L7"}), -1),
        (snak(item_value(5), datatype="string"), -1),
        (snak(None), -1),
        (snak(None, kind="somevalue"), -1),
        (snak(None, kind="novalue"), -1),
        (snak(item_value(5), kind="somevalue"), -1),
        (snak("Q5", datatype="external-id"), -1),
        (snak("Q5"), -1),
        (snak("text", datatype="string"), -1),
        (snak({"time": "+1990-00-00T00:00:00Z", "precision": 9, "timezone": 0}, datatype="time"), -1),
        (snak({"time": "-0044-02-30T00:00:00Z"}, datatype=None), -1),
        (snak({"amount": "+5", "unit": "http://www.wikidata.org/entity/Q5"}, datatype="quantity"), -1),
        (snak({"latitude": 1.5, "longitude": 2, "globe": "Q2"}, datatype="globe-coordinate"), -1),
        (snak({"text": "x", "language": "en"}, datatype="monolingualtext"), -1),
        (snak(5), -1),
        (snak(5.5), -1),
        ({"snaktype": "value", "datatype": "wikibase-item", "datavalue": {}}, -1),
        ({"snaktype": "value", "datatype": "wikibase-item", "datavalue": None}, -1),
        ({}, -1),
    ],
)  # fmt: skip
def test_the_item_of_a_statement(content: dict, number: int) -> None:
    """Also by the decoder that goes piece by piece."""
    for more in ({}, {"labels": {"en": 5}}):
        decoder, found = decoded(entity(claims={"P1": [{"mainsnak": content, "rank": "normal"}]}) | more)
        assert item_of(found.claims["P1"][0].mainsnak) == number
        assert decoder.counts["parts of unexpected shape"] == len(more)


RANKED = [(2, "normal"), (3, "deprecated"), (4, "normal"), (5, "preferred"), (None, "preferred"), (2, "normal")]


def test_ranks() -> None:
    claims = {"P1": [statement(item_value(n) if n else None, rank) for n, rank in RANKED]}
    assert facts_of(claims) == [("P1", 6, [5])]
    assert facts_of(claims, "nondeprecated") == [("P1", 6, [2, 4, 2, 5])]
    claims = {"P1": [statement(item_value(2)), statement(item_value(3), "deprecated")]}
    assert facts_of(claims) == [("P1", 2, [2])]
    # a preferred "unknown" leaves no fact: the normal ones are not what is known best
    claims = {"P1": [statement(item_value(2)), statement(None, "preferred", kind="somevalue")]}
    assert facts_of(claims) == [("P1", 2, [])]
    assert facts_of(claims, "nondeprecated") == [("P1", 2, [2])]
    assert facts_of({"P1": [statement(item_value(2), "deprecated")]}, "nondeprecated") == [("P1", 1, [])]
    for none in ([], {}, None):
        assert facts_of(none) == []


def test_instance_of_is_kept_apart(tmp_path: Path) -> None:
    claims = {
        "P31": [statement(item_value(5)), statement(item_value(6), "deprecated"), statement(item_value(5))],
        "P279": [statement(item_value(7))],
        "P17": [statement(item_value(8)), statement(item_value(8))],
        "P530": [statement(item_value(9))],
        "odd": [statement(item_value(9))],
        "": [statement(item_value(3))],
    }
    rows = read(tmp_path, [entity(claims=claims)], excluded=frozenset({"P530"}))
    assert rows["types"] == [(1, 5)]
    assert rows["facts"] == [(1, "", 3), (1, "P17", 8), (1, "P279", 7), (1, "odd", 9)]
    expected = {
        "statements": 9,
        "instance-of": 2,
        "triples read": 5,
        "triples of excluded relations": 1,
        "duplicate triples": 1,
    }
    assert {key: rows["counts"][key] for key in expected} == expected
    rows = read(tmp_path, [entity(claims=claims)], relations=frozenset({"P17", "P530"}))
    assert rows["facts"] == [(1, "P17", 8), (1, "P530", 9)]
    assert rows["types"] == [(1, 5)]


# ------------------------------------------------------------------------------------------------ what else there is


def test_properties_lexemes_and_redirects(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        [
            entity(
                "P17", type="property", labels={"en": label(" country ")}, claims={"P31": [statement(item_value(1))]}
            ),
            entity("P18", type="property", labels={"de": label("Bild")}),
            {"type": "lexeme", "id": "L1", "lemmas": {"en": label("x")}, "claims": {"P1": [statement(item_value(2))]}},
            {"entity": "Q9", "redirect": "Q1"},
            {"type": "mediainfo", "id": "M5", "labels": {"en": label("picture")}},
            entity("Q99999999999"),
            entity("Q12", type="property-like"),
            {"id": "Q7", "labels": {"en": label("typeless")}},
            entity("Q0", labels={"en": label("zero")}),
        ],
    )
    assert rows["labels"] == {"P17": "country"}
    assert rows["names"] == [("typeless", 7, 1), ("zero", 0, 1)]
    assert rows["facts"] == rows["types"] == rows["damages"] == []
    expected = {
        "lines": 9,
        "properties": 2,
        "entities that are no items": 4,
        "entities of unexpected shape": 1,
        "items": 2,
        "statements": 0,
    }
    assert {key: rows["counts"][key] for key in expected} == expected
