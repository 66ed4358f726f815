"""Training shards: what is written comes back document by document, and damage is named."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import webdataset
from transformers import AutoTokenizer

from erica_dist.errors import UserError
from erica_dist.shards import gathering
from erica_dist.shards.blocks import write_training_shard
from erica_dist.shards.manifest import read_manifest, write_manifest
from erica_dist.shards.reader import DocumentView, SequenceView, ShardFolder
from erica_dist.shards.tarfiles import sha256_file
from erica_dist.shards.tokenizers import tokenizer_fingerprint, tokenizer_record
from erica_dist.shards.verify import verify
from tests.synthetic import (
    RAGGED,
    compile_indices,
    pack_block,
    tiny_tokenizer,
    write_documents_folder,
    write_sequences_folder,
)

DOCUMENT = {
    "document_key": 9,
    "tokens": [10, 11, 12, 13],
    "mention_spans": [(0, 1), (2, 4)],
    "mention_entity": [1, 0],
    "mention_sentence": [0, 1],
    "entity_hash": [2**63, 5],
    "entity_type": [3, 0],
    "relations": [(0, 1, 0), (1, 0, 2)],
    "barred": [],
}


@pytest.fixture
def documents(tmp_path) -> Path:
    return write_documents_folder(tmp_path / "documents", documents=40, validation=5, block_documents=8)


@pytest.fixture
def sequences(tmp_path) -> Path:
    return write_sequences_folder(tmp_path / "sequences", sequences=20, validation=4, block_documents=8)


def webdataset_blocks(folder: Path, split: str) -> list[dict[str, np.ndarray]]:
    urls = sorted(str(path) for path in folder.glob(f"{split}-*.tar"))
    return list(webdataset.WebDataset(urls, shardshuffle=False).decode())


@pytest.mark.parametrize("split", ["train", "validation"])
def test_views_equal_what_plain_webdataset_reads(documents, split):
    folder = ShardFolder.open(documents, split)
    number = 0
    for block in webdataset_blocks(documents, split):
        for place in range(len(block["document_key.npy"])):
            view = folder.document(number)
            assert isinstance(view, DocumentView)
            assert view.key == block["document_key.npy"][place]
            assert folder.lengths[number] == len(view.tokens)
            for name, (offsets, dtype, _) in RAGGED.items():
                start, end = block[f"{offsets}.npy"][place : place + 2]
                array = getattr(view, name)
                assert array.dtype.str == dtype
                assert array.tolist() == block[f"{name}.npy"][start:end].tolist(), name
            number += 1
    assert number == len(folder) == {"train": 40, "validation": 5}[split]


def test_sequences_equal_what_plain_webdataset_reads(sequences):
    folder = ShardFolder.open(sequences)
    blocks = webdataset_blocks(sequences, "train")
    assert [block["__key__"] for block in blocks] == ["000000000", "000000001", "000010000"]
    expected = [
        (int(key), block["tokens.npy"][start:end].tolist(), int(split))
        for block in blocks
        for key, start, end, split in zip(
            block["document_key.npy"],
            block["token_offsets.npy"],
            block["token_offsets.npy"][1:],
            block["segment_split.npy"],
            strict=False,
        )
    ]
    views = [folder.document(i) for i in range(len(folder))]
    assert all(isinstance(view, SequenceView) for view in views)
    assert [(view.key, view.tokens.tolist(), view.segment_split) for view in views] == expected


def test_same_input_gives_the_same_bytes(tmp_path):
    first = write_documents_folder(tmp_path / "a", seed=3)
    second = write_documents_folder(tmp_path / "b", seed=3)
    names = sorted(path.name for path in first.iterdir() if path.is_file())
    assert len(names) == 9
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_views_survive_pickling_and_few_maps(documents, monkeypatch):
    monkeypatch.setattr(gathering, "MAPPED_SHARDS", 1)
    folder = ShardFolder.open(documents)
    early = folder.document(0)
    tokens = early.tokens.tolist()
    copy = pickle.loads(pickle.dumps(folder))  # noqa: S301  # made a line above
    for number in (39, 0, 20, 39):
        assert copy.document(number).tokens.tolist() == folder.document(number).tokens.tolist()
    assert early.tokens.tolist() == tokens
    with pytest.raises(IndexError):
        folder.document(40)
    with pytest.raises(IndexError):
        folder.document(-1)


def test_a_split_without_shards_is_empty(tmp_path):
    folder = write_documents_folder(tmp_path, documents=8, validation=0)
    assert len(ShardFolder.open(folder, "validation")) == 0


def test_writer_accepts_large_vocabularies_and_fills_in_barred(tmp_path):
    block = pack_block([DOCUMENT])
    block["tokens"] = np.array([70000, 1, 2, 3], "<u4")
    del block["barred"], block["barred_offsets"]
    record = write_training_shard(tmp_path, "train-00002", "train", [block])
    assert (record["documents"], record["tokens"], record["bytes"]) == (
        1,
        4,
        (tmp_path / "train-00002.tar").stat().st_size,
    )
    (read,) = webdataset_blocks(tmp_path, "train")
    assert read["__key__"] == "000020000"
    assert read["tokens.npy"].tolist() == [70000, 1, 2, 3]
    assert (read["barred.npy"].shape, read["barred_offsets.npy"].tolist()) == ((0, 2), [0, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mention_spans": [(0, 1), (2, 5)]}, "key 9.*outside the pieces"),
        ({"mention_spans": [(0, 1), (2, 2)]}, "key 9.*empty"),
        ({"mention_spans": [(-1, 1), (2, 3)]}, "key 9.*outside the pieces"),
        ({"mention_entity": [1, 2]}, "key 9.*belongs to no entity"),
        ({"mention_entity": [1, 1]}, "key 9.*entity has no mention"),
        ({"mention_sentence": [0, -1]}, "key 9.*negative sentence"),
        ({"relations": [(0, 2, 0)]}, "key 9.*not of two entities"),
        ({"relations": [(0, 0, 0)]}, "key 9.*not of two entities"),
        ({"barred": [(1, 1)]}, "key 9.*barred is not of two entities"),
        ({"relations": [(0, 1, -1)]}, "key 9.*not in the manifest's table"),
        ({"relations": [(1, 0, 2), (0, 1, 0)]}, "key 9.*not sorted and unique"),
        ({"relations": [(0, 1, 0), (0, 1, 0)]}, "key 9.*not sorted and unique"),
        ({"tokens": [], "mention_spans": [], "mention_entity": [], "mention_sentence": []}, "key 9.*no pieces"),
    ],
)
def test_writer_refuses_a_bad_document_and_leaves_nothing(tmp_path, change, message):
    good = DOCUMENT | {"document_key": 8}
    with pytest.raises(ValueError, match=f"document 1 of the block.*{message}"):
        write_training_shard(tmp_path, "train-00000", "train", [pack_block([good, DOCUMENT | change])])
    assert list(tmp_path.iterdir()) == []


def test_writer_refuses_bad_columns(tmp_path):
    for name, array, message in (
        ("mention_entity", np.array([0, 1], "<i8"), "mention_entity is <i8"),
        ("mention_sentence", np.array([0], "<i4"), "mention_sentence has 1 rows, its offsets say 2"),
        ("relation_offsets", np.array([2, 0], "<i8"), "relation_offsets is no list"),
        ("more", np.array([0]), "'more'"),
    ):
        with pytest.raises(ValueError, match=message):
            write_training_shard(tmp_path, "train-00000", "train", [pack_block([DOCUMENT]) | {name: array}])
    with pytest.raises(ValueError, match="no blocks"):
        write_training_shard(tmp_path, "train-00000", "train", [])
    sequence = pack_block([{"document_key": 1, "tokens": [5, 6], "segment_split": 2}])
    with pytest.raises(ValueError, match="split is outside"):
        write_training_shard(tmp_path, "train-00000", "train", [sequence])


# ------------------------------------------------------------------------------------------------ damage


def test_verify_counts_whole_folders(documents, sequences, capsys):
    counts = verify(documents)
    assert (counts["shards"], counts["train"], counts["validation"]) == (4, 40, 5)
    assert counts["tokens"] == sum(int(ShardFolder.open(documents, s).lengths.sum()) for s in ("train", "validation"))
    assert verify(sequences)["train"] == 20
    assert "is whole" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train-00001.tar", "train-00001.index.json"])
def test_missing_and_cut_files_are_named_at_opening(documents, name):
    data = (documents / name).read_bytes()
    (documents / name).write_bytes(data[:-512])
    with pytest.raises(UserError, match=f"{name} has .* bytes, the manifest says {len(data)}"):
        ShardFolder.open(documents)
    (documents / name).unlink()
    with pytest.raises(UserError, match=f"cannot read .*{name}"):
        ShardFolder.open(documents)
    # another split does not need the file
    assert len(ShardFolder.open(documents, "validation")) == 5


def test_any_flipped_byte_is_noticed_by_verify(sequences):
    random = np.random.default_rng(0)
    for name in ("train-00000.tar", "train-00000.index.json"):
        data = (sequences / name).read_bytes()
        for place in random.integers(0, len(data), 25).tolist():
            changed = bytearray(data)
            changed[place] ^= 1 << int(random.integers(8))
            (sequences / name).write_bytes(changed)
            with pytest.raises(UserError, match="train-00000"):
                verify(sequences)
        (sequences / name).write_bytes(data)
    verify(sequences)


def test_verify_names_every_damaged_file(documents):
    damaged = [
        "train-00000.tar",
        "train-00002.index.json",
        "validation-00000.tar",
        "train.lengths.npy",
        "tokenizer.json",
    ]
    compile_indices(documents)
    for name in damaged:
        path = documents / ("tokenizer" if name == "tokenizer.json" else "") / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    (documents / "train-00001.tar").unlink()
    with pytest.raises(UserError) as caught:
        verify(documents)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{documents}: 6 files are damaged:"
    places = ["train-00000.tar", "train-00001.tar", "train-00002.index.json", "validation-00000.tar"]
    for name, line in zip([*places, "train.lengths.npy", "tokenizer/tokenizer.json"], lines, strict=True):
        assert f"{documents}/{name}" in line


def rewrite_index(folder: Path, name: str, change) -> None:
    """Change an index and make size and hash in the manifest agree with it."""
    path = folder / f"{name}.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    manifest = read_manifest(folder)
    for shard in manifest["shards"]:
        if shard["index"] == path.name:
            shard |= {"index_bytes": path.stat().st_size, "index_sha256": sha256_file(path)}
    write_manifest(folder, manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["blocks"].pop(), "documents in blocks"),
        (lambda index: index["lengths"].append(3), "lengths"),
        (lambda index: index["lengths"].__setitem__(0, 10**6), "do not sum up"),
        (
            lambda index: index["blocks"][0]["columns"]["tokens"].update(offset=10**9),
            "tokens of block 000000000 lies outside",
        ),
        (lambda index: index["blocks"][0]["columns"]["tokens"].update(dtype="|O"), "tokens of block 000000000"),
        (lambda index: index["blocks"][0]["columns"].pop("relations"), "entry is missing"),
        (lambda index: index.update(version=9), "version 9"),
        (lambda index: index.update(blocks=None), "entry is missing"),
    ],
)
def test_an_index_that_does_not_fit_is_refused_at_opening(documents, change, message):
    rewrite_index(documents, "train-00000", change)
    with pytest.raises(UserError, match=f"train-00000.index.json does not fit its shard: .*{message}"):
        ShardFolder.open(documents)


def test_verify_notices_an_index_that_points_elsewhere(documents):
    def shift(index):
        index["blocks"][0]["columns"]["mention_entity"]["offset"] += 4

    rewrite_index(documents, "train-00000", shift)
    with pytest.raises(UserError, match=r"points 000000000.mention_entity.npy at byte"):
        verify(documents)


def test_verify_checks_documents_against_the_manifest(documents):
    manifest = read_manifest(documents)
    write_manifest(documents, manifest | {"tokenizer": manifest["tokenizer"] | {"vocab_size": 50}})
    with pytest.raises(UserError, match=r"train-00000.tar: block 000000000: document 0 .*outside the vocabulary of 50"):
        verify(documents)
    write_manifest(documents, manifest | {"relations": manifest["relations"][:1]})
    with pytest.raises(UserError, match="a relation is not in the manifest's table"):
        verify(documents)
    write_manifest(documents, manifest | {"shards": [*manifest["shards"], manifest["shards"][0]]})
    with pytest.raises(UserError, match="key 0 occurs twice"):
        verify(documents)


def test_pickled_members_are_never_loaded(sequences):
    path = sequences / "train-00000.tar"
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    data = bytearray(path.read_bytes())
    evil = buffer.getvalue()
    data[512 : 512 + len(evil)] = evil
    path.write_bytes(data)
    manifest = read_manifest(sequences)
    manifest["shards"][0]["sha256"] = sha256_file(path)
    write_manifest(sequences, manifest)
    with pytest.raises(UserError, match=r"000000000.document_key.npy is no array"):
        verify(sequences)


# ------------------------------------------------------------------------------------------------ tokenizers


def test_tokenizer_fingerprint_survives_saving_and_ignores_truncation(documents):
    manifest = read_manifest(documents)
    loaded = AutoTokenizer.from_pretrained(documents / "tokenizer")
    assert tokenizer_record(loaded, 64) == manifest["tokenizer"]
    loaded("some text", truncation=True, max_length=4, padding="max_length")
    assert tokenizer_fingerprint(loaded) == manifest["tokenizer"]["fingerprint"]
    loaded.add_tokens(["more"])
    assert tokenizer_fingerprint(loaded) != manifest["tokenizer"]["fingerprint"]


def test_tokenizer_without_a_mask_token_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="no mask token"):
        tokenizer_record(tokenizer, 64)
    with pytest.raises(UserError, match="no fast tokenizer"):
        tokenizer_fingerprint(object())
