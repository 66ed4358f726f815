"""The knowledge base: look-ups, priors, refusals, and bytes that do not depend on the order of the tables."""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from data_tools.kb import KnowledgeBase, normalise_name
from data_tools.wikidata.builder import LABEL_WEIGHT, build_kb
from erica_dist.config import KnowledgeBaseJob, LanguageConfig, LinkPriorConfig
from erica_dist.errors import UserError
from erica_dist.shards.verify import verify
from tests.shared_files import shared

ENTITIES = """Q1\tGermany|Federal  Republic of Germany|German
Q2\tFrance|French\tFrance
Q3\tGeorgia|Sakartvelo\tGeorgia_(country)
Q4\tGeorgia|Peach State\tGeorgia (U.S. state)
Q5\tBerlin|berlin
Q6\tCafe\u0301|Straße|STRASSE
Q7\tDouble
Q8\tDouble
Q9\tAmbiguous
"""
TRIPLES = """Q1\tP47\tQ2
Q2\tP47\tQ1
Q2\tP47\tQ1
Q5\tP17\tQ1
Q5\tP1376\tQ1
Q1\tP36\tQ5
Q3\tP530\tQ1
Q3\tP530\tQ2
Q3\tP47\tQ5
Q4\tP17\tQ77
Q4\tP17\tQ4
Q4\tP131\tQ2
"""
RELATIONS = "P47\tshares border with\nP17\tcountry\nP36\tcapital\nP1376\tcapital of\nP999\tunused\n"


def job(folder: Path, entities: str = ENTITIES, triples: str = TRIPLES, relations: str | None = RELATIONS, **more):
    folder.mkdir(exist_ok=True)
    (folder / "entities.tsv").write_text(entities, encoding="utf-8")
    (folder / "triples.tsv").write_text(triples, encoding="utf-8")
    if relations is not None:
        (folder / "relations.tsv").write_text(relations, encoding="utf-8")
    return KnowledgeBaseJob(
        entities=str(folder / "entities.tsv"),
        triples=str(folder / "triples.tsv"),
        relations=str(folder / "relations.tsv") if relations is not None else "",
        out=str(folder / "kb"),
        **more,
    )


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    build_kb(job(tmp_path / "in"))
    return KnowledgeBase.open(tmp_path / "in" / "kb")


def ids(kb: KnowledgeBase, entities) -> list[str]:
    return [kb.entity_id(int(entity)) for entity in entities]


def relations(kb: KnowledgeBase, head: str, tail: str) -> list[str]:
    number = {kb.entity_id(i): i for i in range(len(kb))}
    offsets, found = kb.relations_of_pairs(np.array([number[head]]), np.array([number[tail]]))
    assert offsets.tolist() == [0, len(found)]
    return [kb.relation_id(int(relation)) for relation in found]


def test_entities_names_and_relations(kb: KnowledgeBase) -> None:
    assert len(kb) == 9
    assert [kb.entity_id(i) for i in range(9)] == [f"Q{i}" for i in range(1, 10)]
    assert kb.entity_name(0) == "Germany"
    assert kb.entity_name(5) == "Café"
    assert [kb.relation_id(i) for i in range(kb.relation_count)] == ["P131", "P1376", "P17", "P36", "P47", "P530"]
    assert kb.relation_name(4) == "shares border with"
    assert kb.relation_name(0) == ""
    with pytest.raises(IndexError):
        kb.entity_id(9)
    assert copy.copy(kb).entity_id(3) == "Q4"  # by the same protocol as pickle: mapped again


def test_all_relations_of_an_ordered_pair(kb: KnowledgeBase) -> None:
    assert relations(kb, "Q5", "Q1") == ["P1376", "P17"]
    assert relations(kb, "Q1", "Q5") == ["P36"]
    assert relations(kb, "Q1", "Q3") == []
    heads, tails = np.divmod(np.arange(81), 9)
    offsets, found = kb.relations_of_pairs(heads, tails)
    pairs = {(int(heads[i]), int(tails[i])): found[offsets[i] : offsets[i + 1]].tolist() for i in range(81)}
    assert {pair: value for pair, value in pairs.items() if value} == {
        (0, 1): [4],
        (1, 0): [4],
        (4, 0): [1, 2],
        (0, 4): [3],
        (2, 0): [5],
        (2, 1): [5],
        (2, 4): [4],
        (3, 1): [0],
    }
    offsets, found = kb.relations_of_pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (offsets.tolist(), found.tolist()) == ([0], [])


def test_neighbours_in_both_directions(kb: KnowledgeBase) -> None:
    assert ids(kb, kb.neighbours(0)) == ["Q2", "Q3", "Q5"]
    assert ids(kb, kb.neighbours(3)) == ["Q2"]
    assert ids(kb, kb.neighbours(8)) == []
    for number in range(len(kb)):
        expected = np.isin(np.arange(len(kb)), kb.neighbours(number))
        assert (kb.related(number, np.arange(len(kb))) == expected).all()
        assert (kb.related(number, np.arange(len(kb))[::-1]) == expected[::-1]).all()
    assert len(kb.related(0, np.zeros(0, np.int64))) == 0


def test_candidates_by_facts_and_label(kb: KnowledgeBase) -> None:
    entities, priors = kb.candidates("Georgia")
    assert ids(kb, entities) == ["Q3", "Q4"]
    np.testing.assert_allclose(priors, [4 / 6, 2 / 6], rtol=1e-6)
    assert ids(kb, kb.candidates("German")[0]) == ["Q1"]
    assert kb.candidates("german")[0].tolist() == []
    assert ids(kb, kb.candidates(normalise_name("Federal Republic  of Germany"))[0]) == ["Q1"]
    assert ids(kb, kb.candidates("Café")[0]) == ["Q6"]
    assert ids(kb, kb.candidates("Double")[0]) == ["Q7", "Q8"]


def test_a_label_weighs_more_than_an_alias(tmp_path: Path) -> None:
    build_kb(job(tmp_path / "in", "Q1\tA|X\nQ2\tX|B\n", "Q1\tP1\tQ2\n", None))
    kb = KnowledgeBase.open(tmp_path / "in" / "kb")
    entities, priors = kb.candidates("X")
    assert ids(kb, entities) == ["Q2", "Q1"]
    np.testing.assert_allclose(priors, [LABEL_WEIGHT / (LABEL_WEIGHT + 1), 1 / (LABEL_WEIGHT + 1)], rtol=1e-6)


def test_folded_names_count_an_entity_once(kb: KnowledgeBase) -> None:
    entities, priors = kb.candidates_folded("strasse")
    assert ids(kb, entities) == ["Q6"]
    assert priors.tolist() == [1.0]
    assert ids(kb, kb.candidates_folded("BERLIN")[0]) == ["Q5"]
    assert ids(kb, kb.candidates_folded("FEDERAL republic of germany")[0]) == ["Q1"]
    assert "berlin" in kb.folded_trie
    assert "Berlin" in kb.name_trie


def test_titles_given_and_guessed(kb: KnowledgeBase) -> None:
    titles = ["Georgia (country)", "Georgia (U.S. state)", "Germany", "Café", "Georgia", "Double", "Nothing"]
    assert [kb.entity_of_title(title) for title in titles] == [2, 3, 0, 5, -1, -1, -1]


def test_counts_of_what_was_left_out(tmp_path: Path) -> None:
    counts = build_kb(job(tmp_path / "in", excluded_relations=["P530"]))
    expected = {
        "entities": 9,
        "facts": 7,
        "triples read": 12,
        "duplicate triples": 1,
        "triples with an unknown end": 1,
        "triples from an entity to itself": 1,
        "triples of excluded relations": 2,
        "labels too ambiguous to be a title": 1,
        "relations without a label": 1,
    }
    assert {key: counts[key] for key in expected} == expected
    manifest = json.loads((tmp_path / "in" / "kb" / "manifest.json").read_text())
    assert manifest["counts"] == counts
    assert manifest["settings"]["excluded_relations"] == ["P530"]


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    rng = random.Random(7)
    entities = [f"Q{i}\tName {i % 40}|Alias {i % 17}|x{i}" for i in range(300)]
    triples = [f"Q{rng.randrange(300)}\tP{rng.randrange(9)}\tQ{rng.randrange(300)}" for _ in range(3000)]
    folders = []
    for name in ("a", "b"):
        rng.shuffle(entities)
        rng.shuffle(triples)
        made = job(tmp_path / name, "\n".join(entities), "\n".join(triples))
        build_kb(made)
        folders.append(Path(made.out))
    files = [{p.name: p.read_bytes() for p in folder.iterdir() if p.name != "manifest.json"} for folder in folders]
    assert files[0] == files[1]
    first, second = (KnowledgeBase.open(folder) for folder in folders)
    assert first.fingerprint == second.fingerprint
    build_kb(job(tmp_path / "c", "\n".join(entities), "\n".join(triples[1:])))
    assert KnowledgeBase.open(tmp_path / "c" / "kb").fingerprint != first.fingerprint


def test_gzip_tables_and_json_labels(tmp_path: Path) -> None:
    plain = job(tmp_path / "in")
    build_kb(plain)
    for name in ("entities", "triples"):
        path = tmp_path / "in" / f"{name}.tsv.gz"
        path.write_bytes(gzip.compress((tmp_path / "in" / f"{name}.tsv").read_bytes()))
        setattr(plain, name, str(path))
    labels = {line.split("\t")[0]: {"label": line.split("\t")[1]} for line in RELATIONS.splitlines()}
    (tmp_path / "in" / "relations.json.gz").write_bytes(gzip.compress(json.dumps(labels).encode()))
    plain.relations, first = str(tmp_path / "in" / "relations.json.gz"), KnowledgeBase.open(plain.out).fingerprint
    plain.out = str(tmp_path / "second")
    build_kb(plain)
    assert KnowledgeBase.open(plain.out).fingerprint == first


@pytest.mark.parametrize(
    ("tables", "place", "reason"),
    [
        ({"entities": "Q1\tA\nQ2\n"}, "entities.tsv:2", "expected id<TAB>name"),
        ({"entities": "Q1\tA\nQ2\t | \n"}, "entities.tsv:2", "has no name"),
        ({"entities": "Q1\tA\tQ5|x\n"}, "entities.tsv:1", "page title"),
        ({"entities": "Q1\tA\n\tB\n"}, "entities.tsv:2", "expected id<TAB>name"),
        ({"triples": "Q1\tP47\tQ2\nQ1 P47 Q2\n"}, "triples.tsv:2", "expected head<TAB>property<TAB>tail"),
        ({"triples": "Q1\t\tQ2\n"}, "triples.tsv:1", "empty column"),
        ({"triples": "Q1\tP47\tQ99\n"}, "triples.tsv", "holds no triple between two entities"),
        ({"entities": "\n"}, "entities.tsv", "holds no entity"),
        ({"relations": "P47\n"}, "relations.tsv:1", "expected property<TAB>label"),
        ({"relations": "P47\ta\nP47\tb\n"}, "relations.tsv", "two labels"),
    ],
)
def test_malformed_tables_are_refused_by_line(tmp_path: Path, tables: dict, place: str, reason: str) -> None:
    made = job(tmp_path / "in", **tables)
    with pytest.raises(UserError) as error:
        build_kb(made)
    assert place in str(error.value)
    assert reason in str(error.value)
    assert sorted(p.name for p in (tmp_path / "in").iterdir()) == ["entities.tsv", "relations.tsv", "triples.tsv"]


def test_any_change_of_a_table_is_seen(tmp_path: Path) -> None:
    """Also in the middle of a large one of the same size."""
    filler = "#" + "x" * 6_000_000 + "\n"
    build_kb(job(tmp_path / "in", filler + ENTITIES + filler))
    with pytest.raises(UserError, match="other inputs, settings or code"):
        build_kb(job(tmp_path / "in", filler + ENTITIES.replace("Berlin", "Berlim") + filler))


def test_not_utf8_is_refused_by_line(tmp_path: Path) -> None:
    made = job(tmp_path / "in")
    Path(made.entities).write_bytes(b"Q1\tA\nQ2\t\xff\n")
    with pytest.raises(UserError, match=r"entities\.tsv:2: not UTF-8"):
        build_kb(made)


def test_missing_settings_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--dump .* or --entities"):
        build_kb(KnowledgeBaseJob())
    made = job(tmp_path / "in")
    Path(made.triples).unlink()
    with pytest.raises(UserError, match="cannot read"):
        build_kb(made)


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    made = job(tmp_path / "in")
    (tmp_path / "in" / "kb").mkdir()
    (tmp_path / "in" / "kb" / "diary.txt").write_text("dear")
    with pytest.raises(UserError, match="holds other files"):
        build_kb(made)
    assert (tmp_path / "in" / "kb" / "diary.txt").read_text() == "dear"
    (tmp_path / "in" / "kb" / "diary.txt").unlink()
    build_kb(made)
    build_kb(made)
    assert len(KnowledgeBase.open(made.out)) == 9


def test_opening_what_is_none_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="build-kb"):
        KnowledgeBase.open(tmp_path / "none")
    made = job(tmp_path / "in")
    build_kb(made)
    (Path(made.out) / "facts_tails.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match="damaged"):
        KnowledgeBase.open(made.out)
    (Path(made.out) / "facts_tails.npy").unlink()
    with pytest.raises(UserError, match="damaged"):
        KnowledgeBase.open(made.out)


def test_real_tables_of_wikidata(tmp_path: Path) -> None:
    folder = shared("data", "kb-wikidata")
    counts = build_kb(
        KnowledgeBaseJob(
            entities=str(folder / "entities.tsv.gz"),
            triples=str(folder / "triples.tsv.gz"),
            relations=str(folder / "relations.json.gz"),
            out=str(tmp_path / "kb"),
        )
    )
    assert (counts["entities"], counts["facts"], counts["relations"]) == (27_841, 101_774, 70)
    kb = KnowledgeBase.open(tmp_path / "kb")
    austria = kb.entity_of_title("Austria")
    assert kb.entity_id(austria) == "Q40"
    assert relations(kb, "Q40", "Q46") == ["P30"]
    entities, priors = kb.candidates_folded("PARIS")
    assert kb.entity_id(int(entities[0])) == "Q90"
    assert priors[0] > 0.9


def test_verify_checks_every_byte_and_a_changed_size_is_not_taken_for_built(tmp_path: Path) -> None:
    made = job(tmp_path / "in")
    build_kb(made)
    assert verify(made.out)["entities"] == 9
    path = Path(made.out) / "names_weights.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"names_weights\.npy is damaged"):
        verify(made.out)
    (Path(made.out) / "names_offsets.npy").unlink()
    with pytest.raises(
        UserError, match=r"2 files are damaged:\n .*names_offsets\.npy: No such file.*\n .*names_weights\.npy is d"
    ):
        verify(made.out)
    path.write_bytes(whole[:-4])
    with pytest.raises(UserError, match=r"has lost or changed names_offsets\.npy, names_weights\.npy"):
        build_kb(made)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"language": LanguageConfig(code="EN")}, "lower case"),
        ({"links": LinkPriorConfig(min_share=2.0)}, "between 0 and 1"),
        ({"links": LinkPriorConfig(min_links=0)}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_first(tmp_path: Path, settings: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_kb(job(tmp_path / "in", **settings))


def test_an_out_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    made = job(tmp_path / "in")
    (tmp_path / "file").write_text("x")
    made.out = str(tmp_path / "file" / "kb")
    with pytest.raises(UserError, match="give another --out"):
        build_kb(made)
