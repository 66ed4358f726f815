"""Statistics of links in the knowledge base: priors, new names, shares; and tables of any ids in many parts."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_tools.kb import KnowledgeBase
from data_tools.wikidata import dump, runs, stages, table_runs
from data_tools.wikidata.builder import build_kb
from data_tools.wikidata.link_priors import LinkStatistics
from erica_dist.config import KnowledgeBaseJob, LinkPriorConfig, RayConfig
from erica_dist.errors import UserError
from erica_dist.shards.manifest import VERSION
from erica_dist.shards.tarfiles import sha256_file
from tests.wikidata_entities import entity, item_value, label, statement
from tests.wikidata_naive import dump_of

Links = dict[tuple[str, str], int]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(params=["one part", "many parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "many parts":
        monkeypatch.setattr(dump, "MB", 1500)
        monkeypatch.setattr(runs, "SAMPLE", 1)
        monkeypatch.setattr(stages, "BYTES_A_NAME", 100_000)
        monkeypatch.setattr(stages, "BYTES_A_FACT", 100_000)
    return request.param


def statistics(folder: Path, links: Links, unlinked: dict[str, int], fingerprint: str = "f") -> str:
    """A folder as `count-links` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = sorted((surface.encode(), target.encode(), count) for (surface, target), count in links.items())
    (folder / "links.tsv").write_bytes(b"".join(b"%s\t%s\t%d\n" % row for row in rows))
    linked: dict[bytes, int] = {}
    for surface, _, count in rows:
        linked[surface] = linked.get(surface, 0) + count
    every = sorted(linked.keys() | {surface.encode() for surface in unlinked})
    free = {surface.encode(): count for surface, count in unlinked.items()}
    (folder / "surfaces.tsv").write_bytes(
        b"".join(b"%s\t%d\t%d\n" % (surface, linked.get(surface, 0), free.get(surface, 0)) for surface in every)
    )
    manifest = {
        "format": "erica-dist/link-statistics",
        "version": VERSION,
        "counts": {},
        "inputs": [],
        "fingerprint": fingerprint,
        "complete": True,
    }
    vouch(folder, manifest)
    return str(folder)


def vouch(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest for the files as they are."""
    files = [{"file": name, "sha256": sha256_file(folder / name)} for name in ("links.tsv", "surfaces.tsv")]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files}))


def thing(number: int, name: str, title: str, tails: tuple[int, ...] = (1,), **more: Any) -> dict[str, Any]:
    links = {"enwiki": {"site": "enwiki", "title": title}} if title else []
    claims = {"P1": [statement(item_value(tail)) for tail in tails]}
    return entity(f"Q{number}", labels={"en": label(name)}, sitelinks=links, claims=claims, **more)


WORLD = [
    thing(1, "hub", "Hub", tails=(2,)),
    thing(2, "Paris", "Paris"),
    thing(3, "Paris", "Paris (mythology)", tails=(1, 2, 4, 5, 6)),
    thing(4, "Rose", ""),
    thing(5, "Rose", "Rose"),
    thing(6, "Georgia", "Georgia (country)", aliases={"en": [label("Sakartvelo")]}),
    *(thing(100 + number, f"filler {number:02d}", f"Filler {number:02d}") for number in range(60)),
]
LINKS = {
    ("Paris", "Paris"): 90,
    ("Paris", "Paris (mythology)"): 10,
    ("Paris", "Paris, Texas"): 50,  # no entity here
    ("City of Light", "Paris"): 4,
    ("City of Light", "Hub"): 1,
    ("few", "Hub"): 2,
    ("often unlinked", "Hub"): 10,
    ("nowhere", "Not here"): 70,
    ("filler 07", "Filler 08"): 5,
    ("Ünïcode", "Georgia (country)"): 7,
    ("a first", "Hub"): 3,
    ("zzz last", "Hub"): 3,
}
UNLINKED = {"Paris": 50, "often unlinked": 91, "Sakartvelo": 12, "unheard of": 5, "City of Light": 5}


def job(folder: Path, links: str = "", content: list[dict[str, Any]] = WORLD, **more: Any) -> KnowledgeBaseJob:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "dump.json").write_bytes(dump_of(content))
    more = {"unit_mb": 1, "task_mb": 1, "ray": RayConfig(disabled=True), **more}
    return KnowledgeBaseJob(
        dump=str(folder / "dump.json"), out=str(folder / "kb"), links=LinkPriorConfig(counts=links), **more
    )


def candidates(kb: KnowledgeBase, name: str) -> dict[str, float]:
    entities, priors = kb.candidates(name)
    assert priors.tolist() == sorted(priors.tolist(), reverse=True)
    return {kb.entity_id(int(place)): float(prior) for place, prior in zip(entities, priors, strict=True)}


def test_priors_names_and_shares(tmp_path: Path, parts: str) -> None:
    build_kb(job(tmp_path / "plain"))
    plain = KnowledgeBase.open(tmp_path / "plain" / "kb")
    made = job(tmp_path, statistics(tmp_path / "links", LINKS, UNLINKED))
    counts = build_kb(made)
    kb = KnowledgeBase.open(made.out)
    if parts == "many parts":
        assert len(kb.manifest["tables"]["names"]) > 5
    # guessed: Q3 has more facts; counted: Q2 is linked nine times as often; guesses weigh as one link together
    share = candidates(plain, "Paris")
    assert list(share) == ["Q3", "Q2"]
    found = candidates(kb, "Paris")
    assert found == pytest.approx({"Q2": (90 + share["Q2"]) / 101, "Q3": (10 + share["Q3"]) / 101}, rel=1e-5)
    assert kb.link_probability("Paris") == pytest.approx(150 / 200, abs=1e-3)
    # what is never linked keeps its guesses
    assert candidates(kb, "Rose") == pytest.approx(candidates(plain, "Rose"), rel=1e-5)
    assert math.isnan(kb.link_probability("Rose"))
    assert kb.link_probability("Sakartvelo") == 0
    # a surface becomes a name of what it leads to
    assert candidates(plain, "City of Light") == {}
    assert candidates(kb, "City of Light") == pytest.approx(
        {"Q2": (4 + weight(plain, "Q2", "Q1")) / 6, "Q1": (1 + weight(plain, "Q1", "Q2")) / 6}, rel=1e-5
    )
    assert kb.link_probability("City of Light") == 0.5
    assert list(candidates(kb, "Ünïcode")) == ["Q6"]
    assert list(candidates(kb, "a first")) == list(candidates(kb, "zzz last")) == ["Q1"]
    assert "City of Light" in kb.name_trie.prefixes("City of Lights")
    # linked too seldom, in too small a share, or to nothing that is known
    for surface in ("few", "often unlinked", "nowhere", "unheard of"):
        assert candidates(kb, surface) == {}
    # a label that is linked to another entity
    assert list(candidates(kb, "filler 07")) == ["Q108", "Q107"]
    assert counts["names from links"] == 4
    assert counts["names"] == len(plain.name_trie) + 4
    assert [kb.entity_name(place) for place in range(len(kb))] == [plain.entity_name(place) for place in range(len(kb))]
    # case ignored: a linked spelling comes before one that is never linked
    entities, _ = kb.candidates_folded("CITY OF LIGHT")
    assert [kb.entity_id(int(place)) for place in entities] == ["Q2", "Q1"]


def weight(plain: KnowledgeBase, identifier: str, other: str) -> float:
    """The share of what is known of one entity of two."""

    def known(one: str) -> int:
        place = plain.entity_number(one)
        everyone = np.arange(len(plain))
        facts = plain.facts_among(everyone)
        return 1 + int((facts[:, 0] == place).sum()) + len(set(facts[facts[:, 1] == place, 0].tolist()))

    return known(identifier) / (known(identifier) + known(other))


def test_the_bars_are_settings_and_part_of_the_request(tmp_path: Path) -> None:
    folder = statistics(tmp_path / "links", LINKS, UNLINKED)
    made = job(tmp_path, folder)
    made.links.min_links, made.links.min_share = 2, 0.05
    build_kb(made)
    kb = KnowledgeBase.open(made.out)
    assert list(candidates(kb, "few")) == list(candidates(kb, "often unlinked")) == ["Q1"]
    assert kb.manifest["settings"]["links"] == {
        "fingerprint": "f",
        "incomplete": [],
        "min_links": 2,
        "min_share": 0.05,
    }
    made.links.min_links = 3
    with pytest.raises(UserError, match="other inputs, settings or code"):
        build_kb(made)
    made.links.min_links = 2
    statistics(tmp_path / "links", LINKS, UNLINKED, "other")
    with pytest.raises(UserError, match="other inputs, settings or code"):
        build_kb(made)
    statistics(tmp_path / "moved", LINKS, UNLINKED)
    made.links.counts = str(tmp_path / "moved")  # the same statistics
    build_kb(made)


def test_ranges_of_the_statistics(tmp_path: Path) -> None:
    """Each surface in the range that holds it, whatever the borders."""
    pick = random.Random(1)
    links = {
        ("".join(pick.choice("ab ßz") for _ in range(pick.randrange(1, 5))).strip() or "a", f"T{pick.randrange(5)}"): n
        for n in range(1, 200)
    }
    folder = statistics(tmp_path / "links", links, {})
    read = LinkStatistics(folder, 1, 0.0)

    def entity_of(title: str) -> int:
        return int(title[1:]) - 1  # T0 is none

    whole = read.between(b"", None, entity_of)
    assert {s.decode(): e.links for s, e in whole.items()} == {
        surface: {int(t[1:]) - 1: n for (s, t), n in links.items() if s == surface and t != "T0"}
        for surface, _ in links
    }
    assert all(entry.is_name == bool(entry.links) for entry in whole.values())
    borders = sorted({b"", *(surface.encode() for surface, _ in links), b"\xff", b"aa", b"b", "ß".encode() + b"\0"})
    for first, last in zip(borders, [*borders[1:], None], strict=True):
        part = read.between(first, last, entity_of)
        assert part == {s: e for s, e in whole.items() if first <= s and (last is None or s < last)}


def test_empty_and_damaged_statistics(tmp_path: Path) -> None:
    empty = statistics(tmp_path / "empty", {}, {})
    assert LinkStatistics(empty, 1, 0.0).between(b"", None, lambda title: 1) == {}
    made = job(tmp_path, statistics(tmp_path / "links", LINKS, UNLINKED))
    links, manifest = tmp_path / "links", json.loads((tmp_path / "links" / "manifest.json").read_text())
    (links / "links.tsv").write_bytes(b"Paris\tParis\t3\n")
    with pytest.raises(UserError, match=r"links\.tsv is missing or damaged; count again"):
        build_kb(made)
    (links / "links.tsv").write_bytes(b"Paris\tParis\t3\nParis\tother\n")
    vouch(links, manifest)
    with pytest.raises(UserError, match=r"links\.tsv: the line at byte 14 has not 3 columns, 1 of numbers"):
        build_kb(made)
    (links / "links.tsv").write_bytes(b"Paris\tParis\tmany\n")
    vouch(links, manifest)
    with pytest.raises(UserError, match=r"links\.tsv: the line at byte 0 .*count again"):
        build_kb(made)
    vouch(links, {**manifest, "incomplete": [{"file": "dump.xml", "place": "at byte 5", "text": "cut off"}]})
    with pytest.raises(UserError, match=r"counted from a damaged dump \(dump\.xml: at byte 5\)"):
        build_kb(made)
    (links / "links.tsv").unlink()
    with pytest.raises(UserError, match=r"links\.tsv is missing or damaged"):
        build_kb(made)
    made.links.counts = str(tmp_path / "none")
    with pytest.raises(UserError, match="there is no folder"):
        build_kb(made)


# ------------------------------------------------------------------------------------------------ tables


def test_tables_of_other_ids_in_many_parts(tmp_path: Path, parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if parts == "many parts":
        monkeypatch.setattr(table_runs, "_ROWS", 150)
    pick = random.Random(2)
    ids = [f"/m/{number:03x}" for number in pick.sample(range(4000), 150)] + ["Q17", "é"]
    names = {one: [f"name {pick.randrange(60)}", f"alias {number}"] for number, one in enumerate(ids)}
    facts = {(pick.choice(ids), pick.choice(["/a/b", "/c/d", "P31"]), pick.choice(ids)) for _ in range(400)}
    lines = [f"{head}\t{relation}\t{tail}\n" for head, relation, tail in sorted(facts)]
    pick.shuffle(lines)
    (tmp_path / "entities.tsv").write_text("".join(f"{one}\t{'|'.join(names[one])}\n" for one in ids))
    (tmp_path / "triples.tsv").write_text("".join([*lines, *lines[:30], "/m/none\t/a/b\tQ17\n"]))
    made = KnowledgeBaseJob(
        entities=str(tmp_path / "entities.tsv"),
        triples=str(tmp_path / "triples.tsv"),
        out=str(tmp_path / "kb"),
        task_mb=1,
        ray=RayConfig(disabled=True),
    )
    counts = build_kb(made)
    kb = KnowledgeBase.open(made.out)
    if parts == "many parts":
        assert len(kb.manifest["tables"]["names"]) > 8
    assert [kb.entity_id(place) for place in range(len(kb))] == sorted(ids)
    number = {one: place for place, one in enumerate(sorted(ids))}
    assert {one: kb.entity_number(one) for one in ids} == number
    assert kb.entity_number("/m/none") == kb.entity_number("") == -1
    plain = {(h, r, t) for h, r, t in facts if r != "P31" and h != t}
    found = {(int(h), kb.relation_id(int(r)), int(t)) for h, t, r in kb.facts_among(np.arange(len(kb)))}
    assert found == {(number[h], r, number[t]) for h, r, t in plain}
    assert {one: kb.entity_name(number[one]) for one in ids} == {one: names[one][0] for one in ids}
    for one in ids:
        classes = {t for h, r, t in facts if r == "P31" and h == one}
        assert sorted(kb.instance_of(number[one])) == sorted(classes)
        assert kb.entity_type(number[one]) == ""
        assert number[one] in kb.candidates(names[one][1])[0]
    of_name = {name: {number[one] for one in ids if name in names[one]} for one in ids for name in names[one]}
    assert {name: set(kb.candidates(name)[0].tolist()) for name in of_name} == of_name
    # a label serves as title where it is one entity's
    labels = [names[one][0] for one in ids]
    alone = {f"N{label[1:]}": number[one] for one in ids if labels.count(label := names[one][0]) == 1}
    assert {title: kb.entity_of_title(title) for title in alone} == alone
    assert len(kb.title_trie) == len(alone)
    assert counts["triples with an unknown end"] == 1
    assert counts["duplicate triples"] == sum(line.split("\t")[1] != "P31" for line in lines[:30])


def test_too_many_relations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "entities.tsv").write_text("Q1\tone\nQ2\ttwo\n")
    (tmp_path / "triples.tsv").write_text("".join(f"Q1\tP{number}\tQ2\n" for number in range(2**16 + 2)))
    made = KnowledgeBaseJob(
        entities=str(tmp_path / "entities.tsv"),
        triples=str(tmp_path / "triples.tsv"),
        out=str(tmp_path / "kb"),
        ray=RayConfig(disabled=True),
    )
    with pytest.raises(UserError, match="more than 65,536 relations; at most 65,535 fit: name some in only_relations"):
        build_kb(made)
    made.only_relations = ["P7", "P70000"]
    assert build_kb(made)["facts"] == 1
