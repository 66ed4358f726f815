"""Shapes that no schema foresees: what fits nothing is left out and counted, the rest is kept; both decoders agree."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.wikidata.items import Decoder, Language, facts
from tests.wikidata_entities import decoded, entity, item_value, label, read, statement

ODD: list[Any] = [
    [1, 2],
    5,
    "text",
    None,
    {},
    {"id": 5},
    {"id": None, "labels": {}},
    entity(labels={"en": "One"}),
    entity(labels={"en": {"language": "en"}}, aliases={"en": [label("alias")]}),
    entity(labels=5, aliases="x", sitelinks=True, claims="y"),
    entity(labels=["x"], sitelinks={"enwiki": []}),
    entity(labels=[label("in a list")], aliases=[["x"]]),
    entity(aliases={"en": label("no list")}),
    entity(sitelinks={"enwiki": {"site": "enwiki"}}),
    entity(claims=[[statement(item_value(2))]]),
    entity(type=None),
]


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_odd_shapes_are_left_out_and_the_rest_is_kept(tmp_path: Path, content: Any) -> None:
    good = entity("Q2", labels={"en": label("Two")}, claims={"P1": [statement(item_value(3))]})
    rows = read(tmp_path, [content, good])
    assert rows["facts"] == [(2, "P1", 3)]
    assert ("Two", 2, 1) in rows["names"]
    assert rows["damages"] == []
    assert rows["counts"]["lines"] == 2


def test_what_is_kept_of_odd_shapes(tmp_path: Path) -> None:
    content = entity(
        labels={"en": ["x"], "mul": label("M")},
        aliases={"en": 5, "mul": [label("N")]},
        sitelinks={"enwiki": {"title": "T"}},
        claims={"P1": [statement(item_value(2))], "P2": 5},
    )
    rows = read(tmp_path, [content])
    assert rows["names"] == [("M", 1, 1), ("N", 1, 0), ("T", 1, 0)]
    assert rows["titles"] == [("T", 1, 1)]
    assert rows["facts"] == [(1, "P1", 2)]
    assert rows["counts"]["parts of unexpected shape"] == 3


def test_json_that_the_fast_decoder_refuses(tmp_path: Path) -> None:
    """Half a surrogate pair, a number out of range, nesting without end: no line is lost but the last."""
    rows = read(
        tmp_path,
        [
            b'{"type":"item","id":"Q1","labels":{"en":{"value":"a\\ud800b"}},"aliases":{"en":[{"value":"\\ud83d\\ude00"}]}}',
            b'{"type":"item","id":"Q2","labels":{"en":{"value":"Two"},"de":{"value":"\\udc00"}}}',
            b'{"type":"item","id":"Q3","labels":{"en":{"value":"Three"}},"claims":{"P1":[{"mainsnak":{"snaktype":"value",'
            b'"datatype":"quantity","datavalue":{"value":1e999}}},{"mainsnak":{"snaktype":"value",'
            b'"datavalue":{"value":{"id":"Q1"}}}}]}}',
            b'{"type":"item","id":"Q4","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b"[" * 100_000 + b"]" * 100_000,
        ],
    )  # fmt: skip
    assert rows["names"] == [("Three", 3, 1), ("Two", 2, 1), ("a?b", 1, 1), ("\U0001f600", 1, 0)]
    assert rows["facts"] == [(3, "P1", 1)]
    assert rows["damages"] == []
    assert rows["counts"]["entities of unexpected shape"] == 5


def test_lines_that_are_no_json_are_damages_with_their_place(tmp_path: Path) -> None:
    bad = [b'{"id":"Q1"', b"{'id':1}", b'{"id":"Q1"} x', b'{"labels":{"en":{"value":"\xff"}},"id":"Q1"}', b"\0\0\0"]
    rows = read(tmp_path, [entity("Q2"), *bad, entity("Q3")])
    assert rows["ids"] == [2, 3]
    assert rows["counts"]["lines that are no JSON"] == len(rows["damages"]) == 5
    assert all(f"{tmp_path / 'dump.json'}: a line after byte 0 is no JSON (" in text for text in rows["damages"])


def test_an_entity_twice(tmp_path: Path) -> None:
    first = entity("Q2", claims={"P1": [statement(item_value(3))]})
    second = entity(
        "Q2", labels={"en": label("Other")}, claims={"P1": [statement(item_value(3)), statement(item_value(4))]}
    )
    rows = read(tmp_path, [first, second, first])
    assert rows["ids"] == [2]
    assert rows["names"] == [("One", 2, 1), ("Other", 2, 1)]
    assert rows["facts"] == [(2, "P1", 3), (2, "P1", 4)]
    assert rows["counts"]["duplicate triples"] == 2


def test_statements_of_unexpected_shape_keep_their_rank(tmp_path: Path) -> None:
    odd = {"mainsnak": {"snaktype": "value", "datavalue": {"value": [True]}}, "rank": "preferred"}
    claims = {
        "P1": [statement(item_value(2)), odd],
        "P2": [statement(item_value(2)), "statement", None, {"rank": 5}, {"mainsnak": 1, "rank": "normal"}],
        "P3": {"mainsnak": {}},
        "P4": [statement(item_value(3))],
    }
    decoder, found = decoded(entity(claims=claims))
    assert list(facts(found, "best")) == [("P1", 2, []), ("P2", 5, [2]), ("P4", 1, [3])]
    assert dict(decoder.counts) == {"entities of unexpected shape": 1, "parts of unexpected shape": 6}
    rows = read(tmp_path, [entity(claims=claims)])
    assert rows["facts"] == [(1, "P2", 2), (1, "P4", 3)]
    assert rows["counts"]["statements"] == 8
    assert rows["counts"]["parts of unexpected shape"] == 6


ANY: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        5,
        1.5,
        1e300,
        2**70,
        "",
        "x",
        "Q5",
        "\ud800",
        "\0",
        [],
        {},
        [[]],
        [{}],
        [None],
        {"a": [1]},
    ),
    *({"en": {}}, {"value": 5}, {"id": "Q7"}, "deprecated", {"entity-type": "item", "numeric-id": "7"}),
]


def changed_anywhere(content: Any, pick: random.Random) -> None:
    """Some node of `content` removed, renamed, or replaced by any JSON."""
    node = content
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = pick.choice(keys)
        if not (isinstance(node[key], dict | list) and node[key]) or pick.random() < 0.3:
            break
        node = node[key]
    if pick.random() < 0.15:
        del node[key]
    elif isinstance(node, dict) and pick.random() < 0.15:
        node[pick.choice(["x", "", "id", "value"])] = node.pop(key)
    else:
        node[key] = copy.deepcopy(pick.choice(ANY))


def test_any_json_anywhere(tmp_path: Path) -> None:
    """No line is a damage or takes another one with it, and what still fits is read."""
    pick = random.Random(4)
    odd = []
    for number in range(1000, 1600):
        content = entity(
            f"Q{number}",
            labels={"en": label("One"), "mul": label("Eins", "mul")},
            aliases={"en": [label("A"), label("B")]},
            sitelinks={"enwiki": {"site": "enwiki", "title": f"T {number}"}},
            claims={
                "P1": [statement(item_value(1)), statement(item_value(2), "preferred")],
                "P2": [statement(item_value(1))],
            },
        )
        for _ in range(pick.choice([1, 1, 2, 4])):
            changed_anywhere(content, pick)
        odd.append(content)
    good = entity("Q2", labels={"en": label("Two")}, claims={"P1": [statement(item_value(3))]})
    rows = read(tmp_path, [*odd, good])
    assert rows["damages"] == []
    assert rows["counts"]["lines"] == 601
    assert rows["counts"]["parts of unexpected shape"] > 100
    assert (2, "P1", 3) in rows["facts"]
    assert ("Two", 2, 1) in rows["names"]
    assert len(rows["ids"]) > 350
    assert sum(relation == "P2" for _, relation, _ in rows["facts"]) > 250


# ------------------------------------------------------------------------------------------------ two decoders

texts = st.fixed_dictionaries({"language": st.text(max_size=3), "value": st.text(max_size=8)})
codes = st.sampled_from(["en", "mul", "de", "en-gb"])
values = st.one_of(
    st.builds(item_value, st.integers(-5, 2**33)),
    st.fixed_dictionaries(
        {}, optional={"id": st.text(max_size=3), "entity-type": st.sampled_from(["item", "property"])}
    ),
    st.text(max_size=3),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
)
statements = st.builds(
    statement,
    st.none() | values,
    st.sampled_from(["normal", "preferred", "deprecated", "new rank"]),
    datatype=st.sampled_from(["wikibase-item", "time", "string", None]),
    kind=st.sampled_from(["value", "somevalue", "novalue"]),
)
entities = st.fixed_dictionaries(
    {"id": st.sampled_from(["Q1", "P1", "L1"]), "type": st.sampled_from(["item", "property", "lexeme"])},
    optional={
        "labels": st.dictionaries(codes, texts) | st.just([]),
        "aliases": st.dictionaries(codes, st.lists(texts, max_size=3)) | st.just([]),
        "sitelinks": st.dictionaries(st.sampled_from(["enwiki", "dewiki"]), st.builds(dict, title=st.text(max_size=5)))
        | st.just([]),
        "claims": st.dictionaries(st.sampled_from(["P1", "P2"]), st.lists(statements, max_size=4)) | st.just([]),
    },
)


@given(entities)
@settings(max_examples=200, deadline=None)
def test_both_decoders_say_the_same_of_good_input(content: dict[str, Any]) -> None:
    fast, piecewise = Decoder(Language()), Decoder(Language())
    first = fast(json.dumps(content).encode())
    second = piecewise._piece_by_piece(content)
    assert not fast.counts
    assert dict(piecewise.counts) == {"entities of unexpected shape": 1}
    assert first is not None
    assert second is not None
    assert (first.id, first.type) == (second.id, second.type)
    assert fast.label(first) == piecewise.label(second)
    assert fast.aliases(first) == piecewise.aliases(second)
    assert fast.title(first) == piecewise.title(second)
    for ranks in ("best", "nondeprecated"):
        assert list(facts(first, ranks)) == list(facts(second, ranks))  # type: ignore[arg-type]
