"""Dumps whose maker says exactly what must be found in them, and the head of a real dump."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_tools.kb import KnowledgeBase
from data_tools.wikidata import dump, stages
from data_tools.wikidata.builder import build_kb
from data_tools.wikidata.items import Decoded, Decoder, Language, facts, item_of
from erica_dist.config import KnowledgeBaseJob, RayConfig
from erica_dist.errors import UserError
from tests.shared_files import shared

KEPT = 700  # entities of the shared knowledge base
MAKERS: dict[str, list[str]] = {
    "as it is": ["--seed", "1", "--compress", "none"],
    "many odd things": [
        *("--seed", "2", "--compress", "bz2", "--pad", "200", "--lexemes", "40"),
        *(
            argument
            for kind, rate in {
                "no_en_label": 0.3,
                "missing_entity": 0.2,
                "no_sitelink": 0.5,
                "deprecated": 0.4,
                "preferred": 0.3,
                "somevalue": 0.3,
                "novalue": 0.3,
                "redirect_object": 0.2,
                "duplicate": 0.3,
                "qualifiers": 0.5,
            }.items()
            for argument in ("--rate", f"{kind}={rate}")
        ),
    ],
    "packed and padded": ["--seed", "3", "--compress", "gz", "--pad", "400", "--rate", "preferred=1"],
}


@pytest.fixture(scope="module")
def small_kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first entities of the shared knowledge base with their facts; the ends of some are not there."""
    source, folder = shared("data", "kb-wikidata"), tmp_path_factory.mktemp("small")
    entities = gzip.decompress((source / "entities.tsv.gz").read_bytes()).splitlines(keepends=True)[:KEPT]
    ids = {line.split(b"\t")[0] for line in entities}
    (folder / "entities.tsv").write_bytes(b"".join(entities))
    for name in ("triples.tsv", "enwiki-titles.tsv"):
        lines = gzip.decompress((source / f"{name}.gz").read_bytes()).splitlines(keepends=True)
        (folder / name).write_bytes(b"".join(line for line in lines if line.split(b"\t")[0] in ids))
    (folder / "relations.json").write_bytes(gzip.decompress((source / "relations.json.gz").read_bytes()))
    return folder


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, small_kb: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A dump and its truth."""
    folder = tmp_path_factory.mktemp("made")
    tool = shared("tools", "make_wikidata_dump.py")
    command = [sys.executable, str(tool), "--kb", str(small_kb), "--out", str(folder), *MAKERS[request.param]]
    subprocess.run(command, check=True, capture_output=True)
    truth = json.loads((folder / "truth.json").read_text())
    return folder / truth["file"], truth


def checksum(triples: set[tuple[int, str, int]]) -> int:
    return sum(zlib.crc32(f"Q{s}\t{p}\tQ{o}".encode()) for s, p, o in triples) % 2**64


def entities_of(path: Path, tmp_path: Path) -> Iterator[Decoded]:
    decoder = Decoder(Language())
    units: Any = dump.plan(path, 100) or (unit for _, unit in dump.feed(path, 100, tmp_path, set()))
    for unit in units:
        for line in dump.lines(unit):
            entity = decoder(line.content)
            assert entity is not None
            yield entity
    assert not decoder.counts


def number(entity: Decoded) -> int:
    return int(entity.id[1:])


def test_the_lines_say_what_the_maker_wrote(made: Any, tmp_path: Path) -> None:
    path, truth = made
    items = [entity for entity in entities_of(path, tmp_path) if entity.type == "item"]
    found: dict[str, set[tuple[int, str, int]]] = {
        "all_ranks": {
            (number(entity), relation, item_of(statement.mainsnak))
            for entity in items
            for relation, statements in dict(entity.claims or {}).items()  # type: ignore[arg-type]
            for statement in statements
            if item_of(statement.mainsnak) >= 0
        }
    }
    for name, ranks in (("nondeprecated", "nondeprecated"), ("best_rank", "best")):
        found[name] = {
            (number(entity), relation, tail)
            for entity in items
            for relation, _, tails in facts(entity, ranks)  # type: ignore[arg-type]
            for tail in tails
        }
    for name, triples in found.items():
        assert len(triples) == truth[f"triples_{name}"]
        assert checksum(triples) == truth["checksums"][name]
    assert len(found["all_ranks"]) > len(found["nondeprecated"]) >= len(found["best_rank"])


@pytest.mark.parametrize("ranks", ["best", "nondeprecated"])
def test_the_knowledge_base_holds_what_the_maker_wrote(
    made: Any, tmp_path: Path, ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "MB", 400_000)
    monkeypatch.setattr(dump, "BZ2_RATIO", 2)
    monkeypatch.setattr(stages, "BYTES_A_FACT", 1000)
    monkeypatch.setattr(stages, "BYTES_A_NAME", 1000)
    path, truth = made
    counts = build_kb(
        KnowledgeBaseJob(
            dump=str(path), out=str(tmp_path / "kb"), ranks=ranks, unit_mb=1, task_mb=1, ray=RayConfig(disabled=True)
        )
    )
    kb = KnowledgeBase.open(tmp_path / "kb")
    assert len(kb.manifest["tables"]["names"]) > 1
    put_in = truth["put_in"]
    expected = {
        "lines": truth["lines"],
        "items": truth["items"],
        "items with a label in the language": truth["items_named"],
        "names in the language": truth["english_names"],
        "page titles in the dump": truth["enwiki_sitelinks"],
        "statements": truth["statements"],
        "properties": put_in["properties"],
        "entities that are no items": put_in["lexemes"],
        "bytes of JSON": truth["json_bytes"],
    }
    assert {key: counts[key] for key in expected} == expected
    assert counts.get("entities of unexpected shape", 0) == counts.get("lines that are no JSON", 0) == 0
    name = "best_rank" if ranks == "best" else "nondeprecated"
    dropped = "triples from an entity to itself", "triples with an unknown end"
    nameless = counts.get("items without a name", 0)
    if not nameless:
        assert counts["facts"] + sum(counts.get(key, 0) for key in dropped) == truth[f"triples_{name}"]
    # closed: both ends have a label in English; here those in a fallback language count, too
    entities = {number(entity): entity for entity in entities_of(path, tmp_path) if entity.type == "item"}
    english = {one for one, entity in entities.items() if Decoder(Language("en", ())).label(entity)[0]}
    ids = np.array([int(kb.entity_id(place)[1:]) for place in range(len(kb))])
    among = kb.facts_among(np.arange(len(kb)))
    assert len(among) == counts["facts"]
    closed = {
        (int(ids[head]), kb.relation_id(int(relation)), int(ids[tail]))
        for head, tail, relation in among.tolist()
        if ids[head] in english and ids[tail] in english
    }
    to_themselves = {
        (one, relation, one)
        for one, entity in entities.items()
        for relation, _, tails in facts(entity, ranks)  # type: ignore[arg-type]
        if one in tails and one in english
    }
    assert len(to_themselves) <= counts.get("triples from an entity to itself", 0)
    assert len(closed | to_themselves) == truth[f"triples_{name}_closed"]
    assert checksum(closed | to_themselves) == truth["checksums"][f"{name}_closed"]
    # names, labels and titles of every item
    for one, entity in entities.items():
        place = kb.entity_number(f"Q{one}")
        label = Decoder(Language()).label(entity)[0]
        if label:
            assert kb.entity_name(place) == " ".join(label.split())
            assert place in kb.candidates(" ".join(label.split()))[0]
        if link := Decoder(Language()).title(entity):
            assert kb.entity_of_title(link) == place
            assert kb.entity_title(place) == link
        assert (place < 0) == (not label and not link)
    assert len(kb) == truth["items"] - nameless
    assert len(kb.title_trie) == truth["enwiki_sitelinks"]


def test_the_head_of_a_real_dump(tmp_path: Path) -> None:
    """It is cut off after 49 entities."""
    path = shared("data", "wikidata-head", "entities.json.gz")
    job = KnowledgeBaseJob(dump=str(path), out=str(tmp_path / "kb"), unit_mb=1, ray=RayConfig(disabled=True))
    with pytest.raises(UserError, match=r"entities\.json\.gz: .* cut off at byte 3699023 of the unpacked text"):
        build_kb(job)
    job.allow_incomplete = True
    counts = build_kb(job)
    kb = KnowledgeBase.open(job.out)
    expected = {
        "lines": 49,
        "items": 49,
        "entities": 49,
        "items with a label in the language": 49,
        "page titles in the dump": 49,
    }
    assert {key: counts[key] for key in expected} == expected
    assert counts.get("entities of unexpected shape", 0) == 0
    assert len(kb.manifest["incomplete"]) == 1
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    entities = [json.loads(line.removesuffix(",")) for line in lines]
    assert counts["statements"] == sum(len(of) for entity in entities for of in entity["claims"].values())
    expected_facts, classes = set(), 0
    for entity in entities:
        for relation, statements in entity["claims"].items():
            preferred = [one for one in statements if one["rank"] == "preferred"]
            for one in preferred or [one for one in statements if one["rank"] == "normal"]:
                if one["mainsnak"]["snaktype"] == "value" and one["mainsnak"]["datatype"] == "wikibase-item":
                    tail = one["mainsnak"]["datavalue"]["value"]["id"]
                    classes += relation == "P31"
                    if relation != "P31" and tail != entity["id"]:
                        expected_facts.add((entity["id"], relation, tail))
    assert counts["instance-of"] == classes
    ids = [kb.entity_id(place) for place in range(49)]
    found = {(ids[h], kb.relation_id(r), ids[t]) for h, t, r in kb.facts_among(np.arange(49)).tolist()}
    assert found == {(head, relation, tail) for head, relation, tail in expected_facts if tail in ids}
    universe = kb.entity_of_title("Universe")
    assert (kb.entity_id(universe), kb.entity_name(universe)) == ("Q1", "universe")
    assert {entity["sitelinks"]["enwiki"]["title"] for entity in entities} == {kb.entity_title(n) for n in range(49)}
