"""What is wrong in documents of other tools: refused with its place, or left out and counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data_tools.convert import convert
from data_tools.convert_inputs import read_relation_names
from erica_dist.config import ConvertFilterConfig
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from erica_dist.shards.verify import verify
from tests.corpora import make_tokenizer
from tests.foreign_sets import CONVERTED, DOCRED, changed, documents_in, job, moved, ours, write_json, write_tar


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


# ------------------------------------------------------------------------------------------------ faults


FAULTS = [
    (moved([6, 8]), "entity 2 ('Berlin'), mention 1: words [6, 8) of sentence 0, which has 7", "mentions", "outside"),
    (moved([0, 1], 2), "entity 2 ('Berlin'), mention 1: is in sentence 2 of 2", "mentions", "outside the text"),
    (moved([-1, 1]), "words [-1, 1) of sentence 0", "mentions", "outside the text"),
    (moved([1, 1]), "mention 1: [0, 0) is empty", "mentions", "empty"),
    (moved([0, 1], 1), "mention 1: [0, 0) is empty", "mentions", "empty"),
    (moved([3, 5]), "[13, 23) overlaps [9, 30) of entity 1 ('the capital of France')", "mentions", "overlaps another"),
    (
        changed(labels=[*DOCRED["labels"], {"h": 0, "t": 3, "r": "P1"}]),
        "has 3 entities",
        "labels",
        "an end is no entity",
    ),
    (changed(labels=[*DOCRED["labels"], {"h": 1, "t": 1, "r": "P1"}]), "with itself", "labels", "head is tail"),
    (changed(labels=[*DOCRED["labels"], {"h": 2, "t": 1, "r": "P9"}]), "has no 'P9'", "labels", "relation not in"),
    (changed(vertexSet=[*DOCRED["vertexSet"], []]), "entity 3 ('') has no mention", "entities", "no mention left"),
]


@pytest.mark.parametrize(("record", "text", "stage", "reason"), FAULTS)
def test_a_fault_is_refused_with_its_place_or_left_out_and_counted(
    tmp_path: Path, tokenizer: str, record: Any, text: str, stage: str, reason: str
) -> None:
    table = tmp_path / "relations.tsv"
    table.write_text("P17\tcountry\nP36\tcapital\nP1\tone\n")
    path = write_json(tmp_path / "dev.json", DOCRED, record)
    strict = job(tmp_path, tokenizer, path, relations=str(table))
    with pytest.raises(UserError) as error:
        convert(strict)
    assert f"{path}, record 2: " in str(error.value)
    assert text in str(error.value)
    assert "--tolerant" in str(error.value)
    assert not (tmp_path / "out").exists()
    strict.tolerant = True
    convert(strict)
    documents = documents_in(tmp_path / "out-corpus")
    expected = CONVERTED | ({"barred": [[2, 1]]} if "not in" in reason else {})
    assert [document for _, document in documents] == [CONVERTED, expected]
    counts = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())["counts"]
    assert [number for what, number in counts[stage].items() if what.startswith(f"dropped: {reason}")] == [1]


def test_an_entity_that_loses_its_mentions_goes_with_its_labels(tmp_path: Path, tokenizer: str) -> None:
    document = changed()
    document["vertexSet"].insert(0, [{"name": "France", "pos": [5, 6], "sent_id": 0, "type": "LOC"}])
    for label in document["labels"]:
        label.update(h=label["h"] + 1, t=label["t"] + 1)
    document["labels"].append({"h": 0, "t": 1, "r": "P31"})
    convert(job(tmp_path, tokenizer, write_json(tmp_path / "a.json", document), tolerant=True))
    assert documents_in(tmp_path / "out-corpus") == [(0, CONVERTED)]
    counts = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())["counts"]
    assert counts["entities"] == {"dropped: no mention left": 1, "read": 4}
    assert counts["labels"]["dropped: an end is gone"] == 1


MALFORMED = [
    ([1, 2], "is no JSON object"),
    ({"tokens": []}, "neither `text` nor `vertexSet` (its fields: tokens)"),
    ({"vertexSet": [], "labels": []}, "neither `sents` nor `tokenized_sents`"),
    (moved([3, 4, 7, 8]), "entity 2, mention 1: `pos` must be [start, end), not [3, 4, 7, 8]"),
    (changed(sents=[["a", 7]]), "'7' is no str"),
    (changed(sents=["a sentence"]), "'a sentence' is no list of words"),
    (changed(labels=[{"h": 0, "t": 1}]), "has no 'r'"),
    (changed(labels=[{"h": True, "t": 1, "r": "P1"}]), "'True' is no int"),
    (ours(entities=[{"id": "Q1"}]), "has no 'mentions'"),
    (ours(text=5), "'5' is no str"),
    (ours(title="\ud800"), "half of a surrogate pair"),
]


@pytest.mark.parametrize(("record", "text"), MALFORMED)
def test_a_malformed_record_is_refused_with_its_place_or_left_out(
    tmp_path: Path, tokenizer: str, record: Any, text: str
) -> None:
    path = tmp_path / "dev.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in (DOCRED, record)).encode()))
    strict = job(tmp_path, tokenizer, path)
    with pytest.raises(UserError) as error:
        convert(strict)
    assert f"{path}, line 2: " in str(error.value)
    assert text in str(error.value)
    strict.tolerant = True
    convert(strict)
    assert documents_in(tmp_path / "out-corpus") == [(0, CONVERTED)]
    counts = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())["counts"]
    assert counts["pages"]["pages read"] == 2
    assert counts["pages"]["pages kept"] == 1


def test_filters_and_texts_without_entities(tmp_path: Path, tokenizer: str) -> None:
    records = [ours(0), {"text": "alone\n\nwith a second line"}, ours(1, relations=[]), {"text": " \n"}]
    path = write_json(tmp_path / "a.json", *records)
    convert(job(tmp_path, tokenizer, path))
    counts = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())["counts"]
    assert counts["pages"] == {"pages kept": 3, "pages read": 4, "pages without text": 1}
    assert counts["passages"] == {
        "cut": 3,
        "dropped: too few entities": 1,
        "dropped: too few labelled pairs": 1,
        "passed": 1,
    }
    pages = [page for _, page in read_documents(tmp_path / "out-corpus" / "text-00000.tar")]
    assert pages[1]["paragraphs"] == ["alone", "with a second line"]
    sequences = convert(job(tmp_path, tokenizer, path, out="sequences", kind="sequences", max_length=16))
    assert sequences["kind"] == "sequences"
    assert verify(tmp_path / "sequences")["train"] >= 3
    loose = ConvertFilterConfig(min_entities=2, min_pairs=0)
    convert(job(tmp_path, tokenizer, path, out="loose", filters=loose))
    assert len(documents_in(tmp_path / "loose-corpus")) == 2
    with pytest.raises(UserError, match=r"no document came out of .*b\.json; see filters"):
        convert(job(tmp_path, tokenizer, write_json(tmp_path / "b.json"), out="none"))
    with pytest.raises(UserError, match=r"no document came out of .*a\.json; see filters"):
        convert(job(tmp_path, tokenizer, path, out="none", filters=ConvertFilterConfig(min_entities=3)))
    assert not (tmp_path / "none").exists()


def test_keys_over_shards_must_differ(tmp_path: Path, tokenizer: str) -> None:
    write_tar(tmp_path / "a.tar", [("x.json", ours(1)), ("y.json", ours(2))])
    write_tar(tmp_path / "b.tar", [("z.json", ours(3)), ("y.json", ours(4, relations=[])), ("x.json", ours(5))])
    strict = job(tmp_path, tokenizer, tmp_path / "a.tar", tmp_path / "b.tar")
    with pytest.raises(UserError, match=r"sample 'y' is in .*a\.tar and .*b\.tar"):
        convert(strict)
    strict.tolerant = True
    convert(strict)
    assert [document["title"] for _, document in documents_in(tmp_path / "out-corpus")] == [
        "Page 1",
        "Page 2",
        "Page 3",
    ]
    manifest = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())
    assert manifest["text_pages"] == 3
    assert manifest["counts"]["documents"] == {
        "dropped: key twice": 1,
        "kept": 3,
        "text pages dropped: key twice": 2,
        "text pages kept": 3,
    }
    every = convert(job(tmp_path, tokenizer, tmp_path / "a.tar", tmp_path / "b.tar", out="any", keys="any"))
    assert every["counts"]["documents"]["documents kept"] == 4
    odd = write_tar(tmp_path / "odd.tar", [("x\udcff.json", ours(1)), ("y.json", ours(2))])  # a name that is no UTF-8
    assert convert(job(tmp_path, tokenizer, odd, out="odd"))["counts"]["documents"]["documents kept"] == 2
    twice = write_tar(tmp_path / "c.tar", [("x.json", ours(1)), ("x.json", ours(2))])
    with pytest.raises(UserError, match=r"sample 'x' is in .*c\.tar, twice"):
        convert(job(tmp_path, tokenizer, twice, out="other"))


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_or_damaged_tar_is_refused_or_used_up_to_there(tmp_path: Path, tokenizer: str, packed: bool) -> None:
    members: list[tuple[str, Any]] = [(f"{i}.json", ours(i)) for i in range(4)]
    whole = write_tar(tmp_path / "whole.tar", members).read_bytes()
    member = 1024  # header and one block of data
    for name, data, documents, text in (
        ("inside", whole[: 3 * member - 400], 2, "damaged or cut off"),
        ("border", whole[: 2 * member], 2, f"cut off at byte {2 * member}"),
        ("header", whole[: 2 * member] + b"\xff" * 512 + whole[2 * member + 512 :], 2, f"damaged at byte {2 * member}"),
    ):
        path = tmp_path / f"{name}.tar"
        path.write_bytes(gzip.compress(data) if packed else data)
        strict = job(tmp_path, tokenizer, path, out=name)
        with pytest.raises(UserError) as error:
            convert(strict)
        assert str(path) in str(error.value)
        assert text in str(error.value)
        strict.tolerant = True
        convert(strict)
        manifest = json.loads((tmp_path / f"{name}-corpus" / "manifest.json").read_text())
        assert manifest["documents"] == documents
        assert [(one["file"], one["place"]) for one in manifest["incomplete"]] == [
            (path.name, f"after {documents} records")
        ]
    path = tmp_path / "packing.tar"
    path.write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(UserError, match=r"packing\.tar: the file is cut off at byte"):
        convert(job(tmp_path, tokenizer, path))
    (tmp_path / "no.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(UserError, match=r"no\.tar is no tar"):
        convert(job(tmp_path, tokenizer, tmp_path / "no.tar"))


def test_inputs_that_are_not_there_or_of_no_kind(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("text")
    good = write_json(tmp_path / "good.json", ours())
    for path, text in (
        (tmp_path / "none.tar", "there is no input"),
        (tmp_path / "empty", "holds no tar and no JSON file"),
        (tmp_path / "a.txt", "neither a tar nor JSON"),
    ):
        with pytest.raises(UserError, match=text):
            convert(job(tmp_path, tokenizer, path))
    for more, text in (
        ({"tokenizer": str(tmp_path)}, "tokenizer"),
        ({"corpus_out": str(tmp_path / "out")}, "--corpus-out must be another folder"),
        ({"member": ".json"}, "without its first dot"),
        ({"inputs": [str(good)] * 2}, "given twice"),
        ({"relations": str(good)}, "must be a JSON object"),
        ({"out": str(tmp_path)}, "holds other files"),
    ):
        wrong = job(tmp_path, tokenizer, good)
        for key, value in more.items():
            setattr(wrong, key, value)
        with pytest.raises(UserError, match=text):
            convert(wrong)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out-corpus").exists()


def test_tables_of_relations(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"P6": "head  of government", "P17": {"label": "country"}}')
    assert read_relation_names(str(tmp_path / "a.json")) == {"P6": "head of government", "P17": "country"}
    (tmp_path / "a.tsv").write_text("P6\thead of government\n")
    assert read_relation_names(str(tmp_path / "a.tsv")) == {"P6": "head of government"}
