"""`build-kb` from a dump: all that the knowledge base says is what dictionaries say, in whatever parts it was built."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from data_tools.kb import KnowledgeBase
from data_tools.wikidata import dump, runs, stages
from data_tools.wikidata.builder import build_kb
from erica_dist.config import KnowledgeBaseJob, LanguageConfig, RayConfig
from erica_dist.errors import UserError
from tests.corpora import folder_bytes
from tests.wikidata_entities import entity, item_value, label, statement
from tests.wikidata_naive import NaiveKb, assert_same, dump_of, world

ENTITIES = world(120)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def job(folder: Path, content: bytes | list[dict[str, Any]], name: str = "dump.json", **more: Any) -> KnowledgeBaseJob:
    """A job without Ray; the dump is written beside its output."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else dump_of(content))
    more = {"unit_mb": 1, "task_mb": 1, "ray": RayConfig(disabled=True), **more}
    return KnowledgeBaseJob(dump=str(folder / name), out=str(folder / "kb"), **more)


def built(made: KnowledgeBaseJob) -> KnowledgeBase:
    build_kb(made)
    return KnowledgeBase.open(made.out)


@pytest.fixture
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 15 kB, ranges of two dozen rows."""
    monkeypatch.setattr(dump, "MB", 15_000)
    monkeypatch.setattr(dump, "BZ2_RATIO", 5)
    monkeypatch.setattr(dump, "_PACKED_CHUNK", 1000)
    monkeypatch.setattr(runs, "SAMPLE", 2)
    monkeypatch.setattr(stages, "BYTES_A_NAME", 40_000)
    monkeypatch.setattr(stages, "BYTES_A_FACT", 40_000)


@pytest.mark.parametrize("ranks", ["best", "nondeprecated"])
def test_what_the_knowledge_base_says(tmp_path: Path, ranks: str) -> None:
    kb = built(job(tmp_path, ENTITIES, ranks=ranks))
    assert_same(kb, NaiveKb(ENTITIES, ranks))
    assert [len(kb.manifest["tables"][table]) for table in ("names", "titles", "folded")] == [1, 1, 1]
    assert not (tmp_path / "kb" / ".build").exists()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_in_many_parts(tmp_path: Path, many_parts: None, seed: int) -> None:
    entities = world(120, seed)
    kb = built(job(tmp_path, entities))
    assert_same(kb, NaiveKb(entities))
    parts = {table: len(kb.manifest["tables"][table]) for table in ("names", "titles", "folded")}
    assert parts["names"] > 5 < parts["folded"]
    assert parts["titles"] > 1


def test_prefixes_over_many_parts(tmp_path: Path, many_parts: None) -> None:
    pick = random.Random(3)
    names = {"".join(pick.choice("ab ß東") for _ in range(pick.randrange(1, 9))).strip() for _ in range(800)} - {""}
    entities = [
        entity(f"Q{number}", labels={"en": label(name)}, claims={"P1": [statement(item_value(1))]})
        for number, name in enumerate(sorted(names), 1)
    ]
    kb = built(job(tmp_path, entities))
    parts = kb.manifest["tables"]["names"]
    assert len(parts) > 20
    stored = {kb.name_trie[row] for row in range(len(kb.name_trie))}
    assert len(stored) == len(kb.name_trie) == len({" ".join(name.split()) for name in names})
    texts = [name + tail for name in sorted(stored) for tail in ("", "a", "zzz")] + [first for _, first, _ in parts]
    for text in [*texts, "", "zz", "東東東東東東東東東", "\U0010ffff"]:
        assert kb.name_trie.prefixes(text) == [text[:end] for end in range(1, len(text) + 1) if text[:end] in stored]
    for row in range(len(kb.name_trie)):
        assert kb.name_trie.get(kb.name_trie[row]) == row
    assert all((name in kb.name_trie) == (name in stored) for name in texts)


def test_every_packing_gives_the_same(tmp_path: Path, many_parts: None) -> None:
    content = dump_of(ENTITIES)
    lines = content.replace(b",\n{", b"\n{").removeprefix(b"[\n").removesuffix(b"\n]\n")
    half = len(content) // 2
    packed = {
        "plain": content,
        "lines": lines,
        "windows": b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"),
        "bz2": bz2.compress(content, 1),
        "many.bz2": bz2.compress(content[:half], 1) + bz2.compress(content[half:], 1),
        "gz": gzip.compress(content),
        "zst": zstandard.compress(content[:half]) + zstandard.compress(content[half:]),
    }
    found = {}
    for name, data in packed.items():
        made = job(tmp_path / name, data, task_mb=1000)  # one range of keys, whatever the units
        kb = built(made)
        found[name] = (kb.fingerprint, {k: v for k, v in kb.manifest["counts"].items() if k != "bytes of JSON"})
        assert dict(found[name][1].items() ^ found["plain"][1].items()) == {}, name
        assert found[name] == found["plain"], name


def test_the_order_of_lines_does_not_matter(tmp_path: Path, many_parts: None) -> None:
    first = built(job(tmp_path / "a", ENTITIES))
    shuffled = ENTITIES.copy()
    random.Random(9).shuffle(shuffled)
    # the same ranges of keys: other units have other samples of them
    second = built(job(tmp_path / "b", shuffled))
    assert_same(second, NaiveKb(ENTITIES))
    assert len(first) == len(second)
    whole = built(job(tmp_path / "c", ENTITIES, task_mb=1000))
    again = built(job(tmp_path / "d", shuffled, task_mb=1000))
    assert whole.fingerprint == again.fingerprint


def test_counts(tmp_path: Path, many_parts: None) -> None:
    counts = build_kb(job(tmp_path, ENTITIES))
    naive = NaiveKb(ENTITIES)
    items = [one for one in ENTITIES if one["type"] == "item"]
    statements = [s for one in items for of in dict(one["claims"]).values() for s in of]
    expected = {
        "lines": len(ENTITIES),
        "items": len(items),
        "properties": 3,
        "entities that are no items": 1,
        "entities": len(naive.ids),
        "facts": len(naive.facts),
        "names": len(naive.names),
        "titles": len(naive.titles),
        "statements": len(statements),
        "instance-of kept": sum(map(len, naive.classes.values())),
        "entity lines merged": sum(bool(naive._names(one)) for one in items) - len(naive.ids),
        "relations": len({relation for _, relation, _ in naive.facts}),
        "items with a label in the language": sum("en" in dict(one["labels"]) for one in items),
        "relations without a label": len({relation for _, relation, _ in naive.facts} - {"P17", "P19", "P27"}),
    }
    assert {key: counts[key] for key in expected} == expected
    dropped = "duplicate triples", "triples from an entity to itself", "triples with an unknown end"
    assert counts["triples read"] - sum(counts[key] for key in dropped) == counts["facts"]
    assert min(counts[key] for key in dropped) > 0
    assert json.loads((tmp_path / "kb" / "manifest.json").read_text())["counts"] == counts
    kb = KnowledgeBase.open(tmp_path / "kb")
    assert kb.relation_name([kb.relation_id(r) for r in range(kb.relation_count)].index("P17")) == "label of P17"


def test_types_by_chains_of_subclasses(tmp_path: Path, many_parts: None) -> None:
    def thing(number: int, of_classes: list[int], above: list[int]) -> dict[str, Any]:
        claims = {
            "P31": [statement(item_value(one)) for one in of_classes],
            "P279": [statement(item_value(one)) for one in above],
        }
        return entity(f"Q{number}", labels={"en": label(f"thing {number}")}, claims=claims)

    chain = [thing(10_000 + step, [], [10_001 + step]) for step in range(20)]
    entities = [
        thing(100, [5], []),
        thing(101, [515], []),
        thing(102, [4167410, 5], []),
        thing(103, [201], []),
        thing(201, [], [202]),
        thing(202, [], [43229, 201]),  # and in a circle
        thing(104, [203], []),
        thing(203, [], [203]),
        thing(105, [999_999], []),
        thing(106, [], []),
        thing(107, [10_000], []),
        thing(108, [10_010], []),
        *chain,
        thing(10_020, [], [5]),
        thing(109, [205], []),
        thing(205, [], [515, 206]),  # the nearest counts
        thing(206, [], [5]),
        thing(2**32 - 1, [5], [5]),
        thing(0, [5], [6256]),
        thing(110, [*range(2_000_000, 2_000_060), 61_996_773], []),  # all classes count, in whatever ranges
        thing(5, [], [10_000]),
        *(thing(root, [], []) for root in (515, 6256, 43229)),
    ]
    kb = built(job(tmp_path, entities))
    types = {kb.entity_id(place): kb.entity_type(place) for place in range(len(kb))}
    expected = {100: "PERSON", 101: "GPE", 102: "DISAMBIGUATION", 103: "ORG", 104: "", 105: "", 106: "", 107: "",
                108: "PERSON", 109: "GPE", 110: "DISAMBIGUATION", 2**32 - 1: "PERSON", 0: "PERSON"}  # fmt: skip
    assert {number: types[f"Q{number}"] for number in expected} == expected
    assert kb.instance_of(kb.entity_number("Q102")) == ["Q5", "Q4167410"]
    assert kb.instance_of(kb.entity_number("Q106")) == []


def test_a_choice_of_relations(tmp_path: Path) -> None:
    naive = NaiveKb(ENTITIES)
    kb = built(job(tmp_path / "only", ENTITIES, only_relations=["P17", "P279", "P4711"]))
    count = sum(relation in ("P17", "P279") for _, relation, _ in naive.facts)
    assert (kb.relation_count, kb.manifest["counts"]["facts"]) == (2, count)
    kb = built(job(tmp_path / "without", ENTITIES, excluded_relations=["P17", "odd one"]))
    assert [kb.relation_id(relation) for relation in range(kb.relation_count)] == ["P19", "P27", "P279", "P47"]
    # what is known of an entity is what was kept: priors follow
    assert kb.manifest["counts"]["triples of excluded relations"] > 0


def test_labels_of_relations_from_a_table_where_the_dump_has_none(tmp_path: Path) -> None:
    (tmp_path / "relations.tsv").write_text("P17\tother\nP47\tshares  border with\nP999\tunused\n")
    kb = built(job(tmp_path, ENTITIES, relations=str(tmp_path / "relations.tsv")))
    names = {kb.relation_id(relation): kb.relation_name(relation) for relation in range(kb.relation_count)}
    assert names == {
        **{f"P{number}": f"label of P{number}" for number in (17, 19, 27)},
        **{"P279": "", "P47": "shares border with", "odd one": ""},
    }
    assert kb.manifest["counts"]["relations without a label"] == 2


def test_another_language(tmp_path: Path) -> None:
    kb = built(job(tmp_path, ENTITIES, language=LanguageConfig("de", [], "dewiki")))
    named = {
        int(one["id"][1:])
        for one in ENTITIES
        if one["type"] == "item" and ("de" in dict(one["labels"]) or dict(one["aliases"]).get("de"))
    }
    assert [int(kb.entity_id(place)[1:]) for place in range(len(kb))] == sorted(named)
    assert len(kb.title_trie) == 0
    assert kb.entity_title(0) == ""
    assert kb.manifest["settings"]["language"] == {"code": "de", "fallbacks": [], "site": "dewiki"}


def test_extreme_names_and_ids(tmp_path: Path) -> None:
    names = ["x" * 10_000, "tab\tand\nline", "nul\0nul", "\ufeffbom", "a" * 255, "'; --", "\u202ertl", "|pipe|", "\0 ."]
    entities = [
        entity(f"Q{number}", labels={"en": label(name)}, claims={"P-é 1": [statement(item_value(0))]})
        for number, name in enumerate(names, 2**32 - 1 - len(names))
    ]
    entities.append(entity("Q0", labels={"en": label("zero")}, claims={"P1": [statement(item_value(2**32 - 2))]}))
    entities.append(entity("Q99999999999"))
    kb = built(job(tmp_path, entities))
    assert len(kb) == len(names) + 1
    for number, name in enumerate(names, 2**32 - 1 - len(names)):
        place = kb.entity_number(f"Q{number}")
        clean = " ".join(name.replace("\0", " ").split())
        assert kb.entity_name(place) == clean
        assert kb.candidates(clean)[0].tolist() == [place]
        assert clean in kb.name_trie.prefixes(clean + " and more")
    assert kb.entity_id(0) == "Q0"
    assert kb.neighbours(0).tolist() == list(range(1, len(kb)))
    assert [kb.relation_id(relation) for relation in range(2)] == ["P-é 1", "P1"]


def test_the_smallest_knowledge_base(tmp_path: Path) -> None:
    entities = [entity("Q1", claims={"P1": [statement(item_value(2))]}), entity("Q2", labels={"en": label("Two")})]
    kb = built(job(tmp_path, entities))
    assert (len(kb), len(kb.title_trie), kb.relation_count) == (2, 0, 1)
    assert kb.relations_of(0, 1) == [0]
    assert kb.relations_of(1, 0) == []
    assert kb.facts_among(np.array([1, 0])).tolist() == [[1, 0, 0]]
    assert kb.facts_among(np.array([], np.int64)).tolist() == []
    assert kb.entity_type(0) == ""


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(tmp_path, ENTITIES)
    build_kb(made)
    monkeypatch.chdir(tmp_path)
    made.dump, made.out = "dump.json", "other"
    build_kb(made)
    assert folder_bytes(tmp_path / "other") == folder_bytes(tmp_path / "kb")


def test_nothing_is_pickled_and_opening_maps_only(tmp_path: Path) -> None:
    made = job(tmp_path, ENTITIES)
    build_kb(made)
    for path in Path(made.out).glob("*.npy"):
        with path.open("rb") as file:
            assert file.read(6) == b"\x93NUMPY"
        assert isinstance(np.load(path, mmap_mode="r", allow_pickle=False), np.memmap)
    kb = KnowledgeBase.open(made.out)
    assert kb.name_trie.tries == kb.title_trie.tries == [None]  # mapped when they are first needed
    suffixes = {path.suffix for path in Path(made.out).iterdir()}
    assert suffixes == {".npy", ".marisa", ".json"}
    objects = np.array([{"a": 1}], dtype=object)
    np.save(Path(made.out) / "facts_tails.npy", objects, allow_pickle=True)
    with pytest.raises(UserError, match="damaged"):
        KnowledgeBase.open(made.out)


def test_a_damaged_or_lost_trie_is_said_when_it_is_needed(tmp_path: Path) -> None:
    made = job(tmp_path, ENTITIES)
    build_kb(made)
    trie = Path(made.out) / "names-00000.marisa"
    content = trie.read_bytes()
    for damage in (content[:100], content[:-50], b"", b"\0" * len(content)):
        trie.write_bytes(damage)
        with pytest.raises(UserError, match=r"names-00000\.marisa"):
            KnowledgeBase.open(made.out).candidates("Ada")
    trie.unlink()
    with pytest.raises(UserError, match=r"names-00000\.marisa"):
        KnowledgeBase.open(made.out).candidates("Ada")
