"""Corpus -> training shards: alignment of mentions, windows, splits, ELECTRA examples, resume and refusals."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_tools.alignment import Vocabulary, align, entity_hash, pieces_of, visible_bounds
from data_tools.build import build_corpus
from data_tools.columns import blocks_of, cut, join, sequence_columns
from data_tools.corpus_columns import is_validation
from data_tools.sequences import Example, examples_of, page_random
from data_tools.tokenization import tokenize
from data_tools.tokenizer_files import load_tokenizer
from erica_dist.config import RayConfig, TokenizeJob
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from erica_dist.shards.reader import DocumentView, SequenceView, ShardFolder
from erica_dist.shards.tokenizers import tokenizer_record
from erica_dist.shards.verify import verify
from tests.corpora import corpus_job, folder_bytes
from tests.synthetic import tiny_tokenizer

VOCABULARY = Vocabulary({"P1": 0, "P2": 1}, {"": 0, "GPE": 1}, unknown_piece=1)


def document(
    text: str, mentions: list[list[tuple[int, int]]], relations: list[list[Any]], **more: Any
) -> dict[str, Any]:
    entities = [
        {
            "id": f"Q{number}",
            "name": "",
            "type": "GPE" if number == 0 else None,
            "mentions": [[*m, "ner"] for m in spans],
        }
        for number, spans in enumerate(mentions)
    ]
    return {"title": "T", "text": text, "entities": entities, "relations": relations, **more}


# ------------------------------------------------------------------------------------------------ alignment


def test_pieces_of_the_next_word_do_not_leak_into_a_mention() -> None:
    text = "in New York City"
    # a tokenizer that counts the blank before a word into its piece
    bounds = visible_bounds(text, [(0, 2), (2, 6), (6, 11), (11, 16)])
    assert bounds.tolist() == [[0, 2], [3, 6], [7, 11], [12, 16]]
    assert pieces_of(bounds, 3, 11) == (1, 3)
    assert pieces_of(bounds, 2, 3) == (0, 0)
    assert pieces_of(visible_bounds(text, [(0, 2), (2, 2), (3, 6)]), 2, 6) == (2, 3)


def test_mentions_without_a_piece_of_their_own_are_dropped_and_counted() -> None:
    text = "ab 🙂🙂 cd e\u0301"
    counts: Counter[str] = Counter()
    source = document(
        text,
        [[(0, 2)], [(3, 4)], [(4, 5)], [(6, 8), (9, 11)], [(2, 3)]],
        [[0, 3, "P1"], [0, 1, "P1"], [3, 0, "P2"]],
        barred=[[1, 3], [3, 0]],
    )
    # both smileys are one unknown piece; no piece covers the combining accent
    offsets = [(0, 2), (3, 5), (6, 7), (7, 8), (9, 10)]
    aligned = align(source, [5, 1, 6, 7, 8], offsets, 10, VOCABULARY, counts)
    assert aligned is not None
    assert aligned.mention_spans == [(0, 1), (2, 4), (4, 5)]
    assert aligned.mention_entity == [0, 1, 1]
    assert aligned.entity_hash == [entity_hash("Q0"), entity_hash("Q3")]
    assert aligned.entity_type == [1, 0]
    assert aligned.relations == [(0, 1, 0), (1, 0, 1)]
    assert aligned.barred == [(1, 0)]
    assert counts["mentions dropped: only a shared unknown piece"] == 2
    assert counts["mentions dropped: no piece of its own"] == 1
    assert counts["entities dropped: no mention left"] == 3
    assert counts["labels dropped: an end is gone"] == 1


def test_an_unknown_piece_of_its_own_keeps_the_mention() -> None:
    aligned = align(
        document("字 a", [[(0, 1)], [(2, 3)]], [[0, 1, "P1"]]), [1, 2], [(0, 1), (2, 3)], 9, VOCABULARY, Counter()
    )
    assert aligned is not None
    assert aligned.mention_spans == [(0, 1), (1, 2)]


def test_the_window_takes_mentions_entities_and_labels_with_it() -> None:
    text = "aa bb. Cc dd"
    source = document(text, [[(0, 2)], [(3, 5)], [(7, 9)], [(10, 12)]], [[0, 1, "P1"], [1, 2, "P1"]])
    offsets = [(0, 2), (3, 5), (5, 6), (7, 9), (10, 12)]
    counts: Counter[str] = Counter()
    aligned = align(source, [2, 3, 4, 5, 6], offsets, 4, VOCABULARY, counts)
    assert aligned is not None
    assert list(aligned.tokens) == [2, 3, 4, 5]
    assert aligned.mention_sentence == [0, 0, 1]
    assert aligned.relations == [(0, 1, 0), (1, 2, 0)]
    assert counts["mentions dropped: beyond the window"] == 1
    assert counts["pieces beyond the window"] == 1
    assert align(source, [2, 3, 4, 5, 6], offsets, 1, VOCABULARY, counts) is None
    assert counts["documents dropped: fewer than 2 entities left"] == 1
    unlabelled = source | {"relations": [[2, 3, "P1"]]}
    assert align(unlabelled, [2, 3, 4, 5, 6], offsets, 3, VOCABULARY, counts) is None
    assert counts["documents dropped: no label left"] == 1


def test_entity_hash_is_the_start_of_sha256() -> None:
    assert entity_hash("abc") == int.from_bytes(bytes.fromhex("ba7816bf8f01cfea"), "little")


# ------------------------------------------------------------------------------------------------ examples, blocks


def sentences_of(page: int) -> list[list[int]]:
    draw = np.random.default_rng(page)
    return [[page * 1000 + number] * int(draw.integers(0, 30)) for number in range(60)]


def test_examples_keep_the_order_and_the_length() -> None:
    one_segment = short = total = 0
    for page in range(1, 60):
        counts: Counter[str] = Counter()
        examples = list(examples_of(sentences_of(page), 64, page_random(1, page), counts))
        pieces = [piece for example in examples for piece in example.pieces]
        assert pieces == sorted(pieces)
        assert len(pieces) + counts["pieces cut off"] == sum(map(len, sentences_of(page)))
        for example in examples:
            special = 3 if example.split else 2
            assert 0 < len(example.pieces) <= 64 - special
            assert 0 <= example.split < len(example.pieces)
            if example.split:  # segments are cut between sentences
                assert example.pieces[example.split - 1] != example.pieces[example.split]
        total += len(examples) - 1
        one_segment += sum(example.split == 0 for example in examples[:-1])
        short += sum(len(example.pieces) < 40 for example in examples[:-1])
    assert 0.05 < one_segment / total < 0.2
    assert 0.005 < short / total < 0.1
    middles = [example.split for example in examples_of(sentences_of(7), 64, page_random(1, 7), Counter())]
    assert 15 < np.mean([middle for middle in middles if middle]) < 45


def test_examples_depend_on_seed_and_page_only() -> None:
    def made(seed: int, key: int) -> list[Example]:
        return list(examples_of(sentences_of(3), 64, page_random(seed, key), Counter()))

    assert made(1, 5) == made(1, 5)
    assert made(1, 5) != made(2, 5)
    assert made(1, 5) != made(1, 6)
    assert list(examples_of([[], []], 64, page_random(1, 1), Counter())) == []


def test_blocks_across_parts_hold_every_document_once() -> None:
    rows = [(key, Example(list(range(key, key + key % 7 + 1)), key % 2)) for key in range(1, 24)]
    parts = [sequence_columns(rows[:1], "<u2"), sequence_columns(rows[1:15], "<u2"), sequence_columns(rows[15:], "<u2")]
    blocks = list(blocks_of(parts, 5))
    assert [len(block["document_key"]) for block in blocks] == [5, 5, 5, 5, 3]
    whole = sequence_columns(rows, "<u2")
    again = join(blocks)
    assert all(np.array_equal(again[name], whole[name]) and again[name].dtype == whole[name].dtype for name in whole)
    assert cut(whole, 3, 5)["tokens"].tolist() == rows[3][1].pieces + rows[4][1].pieces


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    build_corpus(corpus_job(folder))
    return folder


def job(world: Path, out: str, **more: Any) -> TokenizeJob:
    usual = TokenizeJob(
        corpus=str(world / "corpus"),
        tokenizer=str(world / "tokenizer"),
        out=str(world / out),
        max_length=200,
        validation_share=0.3,
        block_documents=4,
        blocks_per_shard=2,
        ray=RayConfig(disabled=True),
    )
    return dataclasses.replace(usual, **more)


def corpus_documents(world: Path) -> dict[int, dict[str, Any]]:
    return {
        key: sample
        for path in sorted((world / "corpus").glob("documents-*.tar"))
        for key, sample in read_documents(path)
    }


def test_documents_come_out_as_they_went_in(world: Path) -> None:
    manifest = tokenize(job(world, "documents", max_length=302))
    verify(world / "documents")
    tokenizer = load_tokenizer(str(world / "documents" / "tokenizer"))
    corpus = corpus_documents(world)
    relations = [relation["id"] for relation in manifest["relations"]]
    assert tokenizer.decode(manifest["relations"][relations.index("P36")]["pieces"]) == "capital"
    seen: dict[str, set[str]] = {}
    keys: list[int] = []
    for split in ("train", "validation"):
        folder = ShardFolder.open(world / "documents", split)
        for number in range(len(folder)):
            view = folder.document(number)
            assert isinstance(view, DocumentView)
            source = corpus[view.key]
            keys.append(view.key)
            seen.setdefault(split, set()).add(source["title"])
            assert view.tokens.tolist() == tokenizer(source["text"], add_special_tokens=False)["input_ids"]
            spans = sorted((m[0], m[1], e) for e, one in enumerate(source["entities"]) for m in one["mentions"])
            assert view.mention_entity.tolist() == [entity for _, _, entity in spans]
            for (start, end, _), (first, last) in zip(spans, view.mention_spans.tolist(), strict=True):
                decoded = tokenizer.decode(view.tokens[first:last].tolist())
                assert decoded.replace("##", "").replace(" ", "") == source["text"][start:end].lower()
            found = [[head, tail, relations[relation]] for head, tail, relation in view.relations.tolist()]
            assert found == source["relations"]
            assert view.entity_hash.tolist() == [entity_hash(one["id"]) for one in source["entities"]]
    assert sorted(keys) == sorted(corpus)
    assert all(seen.values())
    assert seen["train"].isdisjoint(seen["validation"])
    assert seen["validation"] == {t for t in seen["train"] | seen["validation"] if is_validation(42, t, 0.3)}


def test_sequences_hold_the_text_of_all_pages(world: Path) -> None:
    tokenize(job(world, "sequences", kind="sequences", max_length=48))
    verify(world / "sequences")
    tokenizer = load_tokenizer(str(world / "tokenizer"))
    pages = {k: page for path in (world / "corpus").glob("text-*.tar") for k, page in read_documents(path)}
    of_page: dict[int, list[int]] = {}
    for split in ("train", "validation"):
        folder = ShardFolder.open(world / "sequences", split)
        for number in range(len(folder)):
            view = folder.document(number)
            assert isinstance(view, SequenceView)
            key, place = divmod(view.key, 1_000_000)
            assert (split == "validation") == is_validation(42, pages[key]["title"], 0.3)
            assert len(view.tokens) <= 48 - 2
            of_page.setdefault(key, []).append(place)
    assert of_page.keys() == pages.keys()
    assert all(places == list(range(len(places))) for places in of_page.values())
    first = tokenizer(pages[min(pages)]["paragraphs"][0], add_special_tokens=False)["input_ids"]
    split = "validation" if is_validation(42, pages[min(pages)]["title"], 0.3) else "train"
    folder = ShardFolder.open(world / "sequences", split)
    assert folder.document(0).tokens.tolist()[:20] == first[:20]


def test_a_second_run_reuses_and_a_stopped_one_goes_on(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = job(world, "whole")
    tokenize(whole)
    expected = folder_bytes(world / "whole")
    tokenize(whole)
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(UserError, match="other inputs, settings or code"):
        tokenize(dataclasses.replace(whole, seed=7))
    # as if killed after the shards were written and before the manifest
    work = world / "whole" / ".build" / "columns"
    (world / "whole" / "manifest.json").unlink()
    work.mkdir(parents=True)
    tokenize(whole)
    assert folder_bytes(world / "whole") == expected
    assert json.loads(expected["manifest.json"])["complete"] is True


@pytest.mark.ray
def test_ray_gives_the_same_bytes(world: Path) -> None:
    tokenize(job(world, "one"))
    tokenize(job(world, "two", ray=RayConfig(workers=2)))
    assert folder_bytes(world / "one") == folder_bytes(world / "two")


def test_refusals(world: Path, tmp_path: Path) -> None:
    def refused(text: str, **more: Any) -> None:
        with pytest.raises(UserError, match=text):
            tokenize(job(world, str(tmp_path / "out"), **more))
        assert not (tmp_path / "out" / "manifest.json").exists()

    refused("needs --corpus", corpus="")
    refused("no folder", corpus=str(tmp_path / "none"))
    refused("holds no manifest", corpus=str(tmp_path))
    refused("knowledge-base", corpus=str(world / "kb"))
    refused("tokenizer", tokenizer=str(tmp_path))
    refused("validation_share", validation_share=1.0)
    refused("max_length", max_length=3)
    refused("no documents came out", max_length=16)
    with pytest.raises(UserError, match="holds other files"):
        tokenize(job(world, "tokenizer"))


def test_a_tokenizer_without_a_special_token_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="has no mask token"):
        tokenizer_record(tokenizer, 64)


def test_a_damaged_corpus_shard_is_named(world: Path, tmp_path: Path) -> None:
    copy = tmp_path / "corpus"
    copy.mkdir()
    for name, data in folder_bytes(world / "corpus").items():
        (copy / name).write_bytes(data)
    shard = sorted(copy.glob("documents-*.tar"))[0]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(UserError, match=r"documents-00000.tar is missing or of another size"):
        tokenize(job(world, str(tmp_path / "out"), corpus=str(copy)))
    shard.write_bytes(data[:600] + b"\xff" + data[601:])
    with pytest.raises(UserError, match=r"1 of .* corpus shards failed") as caught:
        tokenize(job(world, str(tmp_path / "out"), corpus=str(copy)))
    assert "documents-00000.tar" in str(caught.value)
    shard.write_bytes(data)
    tokenize(job(world, str(tmp_path / "out"), corpus=str(copy)))


def test_truncation_and_padding_of_the_tokenizers_file_change_nothing(world: Path) -> None:
    """The files of sentence encoders ask for both, at 128 pieces."""
    source = json.loads((world / "tokenizer" / "tokenizer.json").read_text())
    fixed = world / "fixed"
    fixed.mkdir()
    for path in (world / "tokenizer").iterdir():
        (fixed / path.name).write_bytes(path.read_bytes())
    source["truncation"] = {"max_length": 12, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    source["padding"] = {
        "strategy": {"Fixed": 12},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (fixed / "tokenizer.json").write_text(json.dumps(source))
    for kind in ("documents", "sequences"):
        plain = tokenize(job(world, f"plain-{kind}", kind=kind))
        same = tokenize(job(world, f"fixed-{kind}", kind=kind, tokenizer=str(fixed)))
        assert [shard["sha256"] for shard in same["shards"]] == [shard["sha256"] for shard in plain["shards"]]
        assert same.get("relations") == plain.get("relations")
        assert same["tokenizer"]["fingerprint"] == plain["tokenizer"]["fingerprint"]
