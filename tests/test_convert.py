"""Documents of other tools -> training shards: fields, spans and ids; workers, resume, real and own data."""

from __future__ import annotations

import dataclasses
import gzip
import json
import lzma
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_tools import convert as convert_module
from data_tools.alignment import entity_hash
from data_tools.audit import audit
from data_tools.build import build_corpus
from data_tools.convert import convert
from data_tools.foreign_documents import MalformedError, join_words, read_draft, word_of_pieces
from data_tools.tokenization import tokenize
from data_tools.tokenizer_files import load_tokenizer
from erica_dist.config import RayConfig, TokenizeJob
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from erica_dist.shards.reader import DocumentView, ShardFolder
from erica_dist.shards.verify import verify
from tests.corpora import corpus_job, folder_bytes, make_tokenizer
from tests.foreign_sets import CONVERTED, DOCRED, changed, documents_in, job, moved, ours, view, write_json, write_tar
from tests.shared_files import shared


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


# ------------------------------------------------------------------------------------------------ values


def test_a_docred_document_by_hand(tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_json(tmp_path / "rel_info.json")
    table.write_text('{"P17": "country", "P36": "the capital", "P99": "unused"}')
    manifest = convert(job(tmp_path, tokenizer, write_json(tmp_path / "dev.json", DOCRED), relations=str(table)))
    assert documents_in(tmp_path / "out-corpus") == [(0, CONVERTED)]
    assert list(read_documents(tmp_path / "out-corpus" / "text-00000.tar")) == [
        (0, {"title": "France", "page_id": 0, "paragraphs": [CONVERTED["text"]]})
    ]
    pieces = load_tokenizer(tokenizer).convert_tokens_to_ids
    one = view(tmp_path / "out")
    words = ["paris", "is", "the", "capital", "of", "france", ".", "berlin", "borders", "the", "paris"]
    assert one.tokens.tolist() == pieces(words)  # each of these is one piece
    assert one.mention_spans.tolist() == [[0, 1], [2, 6], [7, 8], [10, 11]]
    assert one.mention_entity.tolist() == [0, 1, 2, 0]
    assert one.mention_sentence.tolist() == [0, 0, 1, 1]
    assert one.entity_hash.tolist() == [entity_hash(name) for name in ("name:paris|LOC", "Q142", "name:berlin|LOC")]
    assert [manifest["entity_types"][number] for number in one.entity_type] == ["LOC", "", "LOC"]
    assert one.relations.tolist() == [[0, 1, 0], [1, 0, 1]]
    assert [(relation["id"], relation["name"]) for relation in manifest["relations"]] == [
        ("P17", "country"),
        ("P36", "the capital"),
    ]
    assert manifest["relations"][1]["pieces"] == pieces(["the", "capital"])
    counts = json.loads((tmp_path / "out" / "corpus_manifest.json").read_text())["counts"]
    assert counts["mentions"] == {"left out: the same again": 1, "read": 5}
    assert counts["labels"] == {"left out: no relation": 1, "left out: the same again": 1, "read": 4}
    assert counts["entity types"] == {"(none)": 1, "LOC": 2}
    assert "named by its id" not in capsys.readouterr().out


def test_the_published_codes_files_with_word_pieces(tmp_path: Path, tokenizer: str) -> None:
    record = {
        "tokenized_sents": [[["fra", "##nce"], ["is"], ["(", "eu"]], [["ber", "##lin"], ["borders"], ["paris"]]],
        "vertexSet": [
            [{"name": "france", "pos": [0, 1], "sent_id": 0, "type": "LOC", "id": "Q142"}],
            [{"name": "berlin", "pos": [0, 1], "sent_id": 1, "type": "None", "id": "Q64"}],
            [{"name": "paris", "pos": [2, 3], "sent_id": 1, "type": "LOC", "id": "Q90"}],
        ],
        "labels": [{"h": 0, "t": 2, "r": "P36", "in_test+dev_set": False}],
        # (2, 0) and (1, 2) are missing: their labels were taken out
        "na_triple": [[0, 1], [1, 0], [2, 1]],
    }
    path = tmp_path / "train_distant_0.json.xz"
    path.write_bytes(lzma.compress(json.dumps([record, record]).encode()))
    convert(job(tmp_path, tokenizer, path))
    (key, document), (second, other) = documents_in(tmp_path / "out-corpus")
    assert (key, second) == (0, 10_000)
    assert document["text"] == "france is (eu berlin borders paris"
    assert [(entity["id"], entity["name"], entity["mentions"]) for entity in document["entities"]] == [
        ("Q142", "france", [[0, 6, "name"]]),
        ("Q64", "berlin", [[14, 20, "name"]]),
        ("Q90", "paris", [[29, 34, "name"]]),
    ]
    assert document["barred"] == [[1, 2], [2, 0]]
    # without titles each record is a page of its own, so that splitting by pages splits them
    assert [document["title"], other["title"]] == ["train_distant_0.json.xz 1", "train_distant_0.json.xz 2"]
    assert view(tmp_path / "out").barred.tolist() == [[1, 2], [2, 0]]
    assert word_of_pieces("whole") == "whole"


def test_a_foreign_webdataset_with_other_members_and_dotted_keys(tmp_path: Path, tokenizer: str) -> None:
    folder = tmp_path / "dataset"
    (folder / "b").mkdir(parents=True)
    write_tar(
        folder / "b" / "part-1.tar.gz",
        [
            ("./vol.1.json", ours(3, title=None, barred=[[1, 0]])),
            ("./vol.2.json", DOCRED),
            ("./vol.2.pyd", b"\x80\x04never opened"),
        ],
        "w:gz",
    )
    write_tar(
        folder / "a.tar",
        [
            ("data", None),
            ("data/x.cls", b"7"),
            ("data/x.info.json", {"not": "a document"}),
            ("data/x.json", ours(1)),
            ("data/x.more.json", b"neither JSON"),
            ("data/x.txt", b"..."),
            ("data/y.json", ours(2, page_id=12, chunk=3)),
            ("data/._y.json", b"a file system's own"),
        ],
    )
    (folder / "README.json").write_text("{}")  # beside tars only tars are read
    convert(job(tmp_path, tokenizer, folder))
    found = documents_in(tmp_path / "out-corpus")
    assert [key for key, _ in found] == [0, 10_000, 20_000, 30_000]
    assert [document["title"] for _, document in found] == ["Page 1", "Page 2", "vol.1", "France"]
    assert [document["text"] for _, document in found[:3]] == [f"France borders Spain {i}" for i in (1, 2, 3)]
    assert [(document["page_id"], document["chunk"]) for _, document in found] == [(0, 0), (12, 3), (0, 0), (0, 0)]
    assert found[2][1]["barred"] == [[1, 0]]
    assert found[0][1]["entities"] == [
        {"id": "Q1", "name": "France", "type": "GPE", "mentions": [[0, 6, "link"]]},
        {"id": "Q4", "name": "Spain", "type": "GPE", "mentions": [[15, 20, "name"]]},
    ]
    manifest = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())
    assert manifest["counts"]["members"] == {
        "left out: *.cls": 1,
        "left out: *.json": 2,
        "left out: *.*.json beside the sample's own": 1,
        "left out: *.pyd": 1,
        "left out: *.txt": 1,
        "left out: no plain files": 1,
    }
    assert manifest["inputs"][0]["files"] == 2
    assert verify(tmp_path / "out-corpus")["documents"] == 4
    assert verify(tmp_path / "out")["train"] == 4
    audit(tmp_path / "out-corpus", tmp_path / "audit.html", documents=4)
    assert "too few" not in (tmp_path / "audit.html").read_text()


def test_entities_called_alike_are_one_over_documents_and_two_in_one(tmp_path: Path, tokenizer: str) -> None:
    def named(*names: str) -> dict[str, Any]:
        text = " and ".join(names)
        mentions = [[text.index(name, i), text.index(name, i) + len(name)] for i, name in enumerate(names)]
        mentions[1] = [len(text) - len(names[1]), len(text)]
        return {
            "text": text,
            "entities": [{"type": "GPE", "mentions": [mention]} for mention in mentions],
            "relations": [[0, 1, "P1"]],
        }

    convert(job(tmp_path, tokenizer, write_json(tmp_path / "a.json", named("Paris", "PARIS"), named("Rome", "paris"))))
    ids = [[entity["id"] for entity in document["entities"]] for _, document in documents_in(tmp_path / "out-corpus")]
    assert ids == [["name:paris|GPE", "name:paris|GPE#2"], ["name:rome|GPE", "name:paris|GPE"]]
    first, second = view(tmp_path / "out", 0), view(tmp_path / "out", 1)
    assert first.entity_hash[0] == second.entity_hash[1] != first.entity_hash[1]


def test_words_are_joined_by_single_blanks() -> None:
    text, spans = join_words([["a", "", "b\u2009c"], ["\n"], ["d"]])
    assert text == "a b c d"
    assert spans == [[(0, 1), (2, 2), (2, 5)], [(6, 6)], [(6, 7)]]


# ------------------------------------------------------------------------------------------------ the whole command


@pytest.mark.ray
def test_the_same_bytes_for_any_number_of_workers(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # that `tokenize` gives the same with any workers is tested with it: here one Ray is enough
    without = RayConfig(disabled=True)
    monkeypatch.setattr(convert_module, "tokenize", lambda job: tokenize(dataclasses.replace(job, ray=without)))
    for name in ("a", "b", "c"):
        write_tar(tmp_path / f"{name}.tar", [(f"{name}{i}.json", ours(i)) for i in range(9)])
    write_json(tmp_path / "d.json", DOCRED, moved([3, 5]))
    inputs = [tmp_path / name for name in ("a.tar", "b.tar", "c.tar", "d.json")]
    more = {"tolerant": True, "documents_per_shard": 5, "block_documents": 4, "validation_share": 0.3}
    folders = []
    for out, ray in (("one", without), ("two", without), ("ray", RayConfig(workers=2))):
        convert(job(tmp_path, tokenizer, *inputs, out=out, ray=ray, **more))
        folders.append((folder_bytes(tmp_path / out), folder_bytes(tmp_path / f"{out}-corpus")))
    assert folders[0] == folders[1] == folders[2]
    assert len(folders[0][1]) == 6 + 6 + 1


def test_the_corpus_between_goes_and_the_run_is_known_again(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_tar(tmp_path / "a.tar", [(f"a{i}.json", ours(i)) for i in range(9)])
    broken = tmp_path / "b.json"
    broken.write_text("[")
    hidden = tmp_path / ".out.corpus"
    work = job(tmp_path, tokenizer, first, broken, corpus_out="")
    with pytest.raises(UserError, match=r"b\.json"):
        convert(work)
    write_json(broken, DOCRED)
    done: list[str] = []
    converting = convert_module.convert_file
    monkeypatch.setattr(convert_module, "convert_file", lambda task: done.append(task.file.path) or converting(task))

    def no_tokenizing(job: TokenizeJob) -> dict[str, Any]:
        raise UserError("stopped")

    monkeypatch.setattr(convert_module, "tokenize", no_tokenizing)
    with pytest.raises(UserError, match="stopped"):
        convert(work)
    assert done == [str(broken)]  # the other file was done
    assert (hidden / "manifest.json").is_file()
    monkeypatch.setattr(convert_module, "tokenize", tokenize)
    convert(work)
    assert done == [str(broken)]
    assert not hidden.exists()
    assert json.loads((tmp_path / "out" / "corpus_manifest.json").read_text())["documents"] == 10
    before = folder_bytes(tmp_path / "out")
    capsys.readouterr()
    convert(work)
    assert "nothing to do" in capsys.readouterr().out
    assert folder_bytes(tmp_path / "out") == before
    assert not hidden.exists()
    for key, value in (("max_length", 64), ("tolerant", True), ("inputs", [str(first)])):
        other = job(tmp_path, tokenizer, first, broken, corpus_out="")
        setattr(other, key, value)
        with pytest.raises(UserError, match="holds the result of other inputs or settings"):
            convert(other)
    shutil.rmtree(tmp_path / "out")
    # a hidden corpus of other settings, left by a run that was stopped, makes room
    monkeypatch.setattr(convert_module, "tokenize", no_tokenizing)
    with pytest.raises(UserError, match="stopped"):
        convert(job(tmp_path, tokenizer, first, corpus_out=""))
    monkeypatch.setattr(convert_module, "tokenize", tokenize)
    convert(work)
    assert {name: data for name, data in folder_bytes(tmp_path / "out").items()} == before


def test_our_own_corpus_read_as_a_foreign_one_gives_the_same_training_documents(tmp_path: Path) -> None:
    corpus = corpus_job(tmp_path, pages=30)
    build_corpus(corpus)
    tokenizer, ray = str(tmp_path / "tokenizer"), RayConfig(disabled=True)
    tokenize(TokenizeJob(corpus=corpus.out, tokenizer=tokenizer, out=str(tmp_path / "ours"), ray=ray))
    convert(
        job(tmp_path, tokenizer, Path(corpus.out), validation_share=0.05, relations=str(tmp_path / "relations.tsv"))
    )
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("ours", "out")]
    assert manifests[0]["relations"] == manifests[1]["relations"]
    total = 0
    for split in ("train", "validation"):
        mine, theirs = (ShardFolder.open(tmp_path / name, split) for name in ("ours", "out"))
        assert len(mine) == len(theirs)
        total += len(mine)
        for number in range(len(mine)):
            one, other = mine.document(number), theirs.document(number)
            for column in DocumentView.__dataclass_fields__:
                if column != "key":
                    values = getattr(one, column), getattr(other, column)
                    assert values[0].dtype == values[1].dtype
                    assert values[0].tolist() == values[1].tolist(), column
    assert total > 20
    pages = json.loads((tmp_path / "out-corpus" / "manifest.json").read_text())["counts"]["pages"]
    assert pages["pages of text alone, of a corpus"] > 0


@pytest.mark.parametrize("name", ["dev", "test"])
def test_docred_counted_by_hand(tmp_path: Path, tokenizer: str, name: str) -> None:
    path = shared("data", "downstream", "re-docred", f"{name}_revised.json.gz")
    with gzip.open(path) as file:
        records = json.load(file)
    documents = entities = mentions = labels = 0
    for record in records:
        words = record["sents"]
        spans = set()
        for entity, vertex in enumerate(record["vertexSet"]):
            for mention in vertex:
                sentence, (start, end) = mention["sent_id"], mention["pos"]
                filled = [i for i in range(start, end) if words[sentence][i].strip()]
                spans.add((sentence, filled[0], -filled[-1], entity))
        left: set[int] = set()
        of_document, last = 0, (-1, -1)
        for sentence, first, negative, entity in sorted(spans):
            if (sentence, first) > last:
                left.add(entity)
                of_document += 1
                last = (sentence, -negative)
        triples = {(x["h"], x["t"], x["r"]) for x in record["labels"] if x["h"] in left and x["t"] in left}
        if len(left) >= 2 and triples:
            documents, entities, mentions = documents + 1, entities + len(left), mentions + of_document
            labels += len(triples)
    strict = job(tmp_path, tokenizer, path, max_length=8192)
    with pytest.raises(UserError, match=r"record \d+: entity \d+ \('.*overlaps"):
        convert(strict)
    strict.tolerant = True
    convert(strict)
    assert verify(tmp_path / "out-corpus") == {
        "shards": 2,
        "documents": documents,
        "text_pages": 500,
        "entities": entities,
        "mentions": mentions,
        "relations": labels,
    }
    folder = ShardFolder.open(tmp_path / "out")
    views = [folder.document(number) for number in range(len(folder))]
    assert len(views) == documents
    assert sum(len(one.relations) for one in views if isinstance(one, DocumentView)) == labels
    assert sum(len(one.mention_spans) for one in views if isinstance(one, DocumentView)) == mentions
    # none of the first ones is left out
    for (_, document), record in zip(documents_in(tmp_path / "out-corpus")[:50], records, strict=False):
        words = [word for sentence in record["sents"] for word in sentence]
        assert document["text"] == " ".join(" ".join(words).split())


def test_the_example_of_the_docs(tmp_path: Path, tokenizer: str) -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "convert.md").read_text()
    record, document = map(json.loads, re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    convert(job(tmp_path, tokenizer, write_json(tmp_path / "a.json", record)))
    assert documents_in(tmp_path / "out-corpus") == [(0, document)]


def test_read_draft_takes_relations_by_number() -> None:
    assert read_draft(changed(labels=[{"h": 0, "t": 1, "r": 17}]), "").labels == [(0, 1, "17")]
    with pytest.raises(MalformedError, match="is no JSON object"):
        read_draft(None, "")
