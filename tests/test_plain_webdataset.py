"""What the commands write, read by plain `webdataset` alone: corpus shards and training shards, every value.

`test_shards_training.py` does so for blocks made by hand; here they come from `build-corpus` and `tokenize`, and what
is read is followed back to the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from torch.utils.data import DataLoader

from data_tools.alignment import entity_hash
from data_tools.build import build_corpus
from data_tools.tokenization import tokenize
from data_tools.tokenizer_files import load_tokenizer
from erica_dist.config import RayConfig, TokenizeJob
from erica_dist.shards.blocks import COLUMNS
from erica_dist.shards.documents import read_documents
from erica_dist.shards.reader import ShardFolder
from tests.corpora import corpus_job

Values = dict[str, list[Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A corpus and its training shards of both kinds, each of several shards."""
    folder = tmp_path_factory.mktemp("plain")
    job = corpus_job(folder, pages=60)
    build_corpus(job)
    found = {"corpus": Path(job.out)}
    for kind in ("documents", "sequences"):
        found[kind] = folder / kind
        more: Any = {"max_length": 300 if kind == "documents" else 48}
        tokenize(
            TokenizeJob(
                corpus=job.out,
                tokenizer=job.tokenizer,
                out=str(found[kind]),
                kind=kind,  # type: ignore[arg-type]
                validation_share=0.2,
                block_documents=8,
                blocks_per_shard=2,
                ray=RayConfig(disabled=True),
                **more,
            )
        )
    return found


def urls(folder: Path, pattern: str) -> list[str]:
    found = sorted(str(path) for path in folder.glob(pattern))
    assert len(found) > 1
    return found


def samples(paths: list[str]) -> list[dict[str, Any]]:
    return list(webdataset.WebDataset(paths, shardshuffle=False).decode())


def documents_of(block: dict[str, Any], kind: str) -> Iterator[Values]:
    """The documents of a block by docs/formats.md: a slice of each column, found by its offsets."""
    for place in range(len(block["document_key.npy"])):
        document: Values = {}
        for column in COLUMNS[kind]:
            array = block[f"{column.name}.npy"]
            if column.rows == "+1":
                continue
            if column.rows:
                start, end = block[f"{column.rows}.npy"][place : place + 2]
                document[column.name] = array[start:end].tolist()
            else:
                document[column.name] = [array[place].item()]
        yield document


@pytest.mark.parametrize("kind", ["documents", "text"])
def test_corpus_shards(folders: dict[str, Path], kind: str) -> None:
    paths = urls(folders["corpus"], f"{kind}-*.tar")
    read = samples(paths)
    expected = [sample for path in paths for sample in read_documents(path)]
    assert [(sample["__key__"], sample["json"]) for sample in read] == [
        (f"{key:012d}", content) for key, content in expected
    ]
    assert len({sample["__key__"] for sample in read}) == len(read) > 20
    assert all({key for key in sample if not key.startswith("__")} == {"json"} for sample in read)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("kind", ["documents", "sequences"])
def test_training_shards(folders: dict[str, Path], kind: str, split: str) -> None:
    blocks = samples(sorted(str(path) for path in folders[kind].glob(f"{split}-*.tar")))
    read = [document for block in blocks for document in documents_of(block, kind)]
    folder = ShardFolder.open(folders[kind], split)
    assert len(read) == len(folder) > 3
    assert len({block["__key__"] for block in blocks}) == len(blocks)
    for number, document in enumerate(read):
        view = folder.document(number)
        for column, values in document.items():
            name = "key" if column == "document_key" else column
            assert np.atleast_1d(getattr(view, name)).tolist() == values, (number, column)


def test_training_shards_are_the_documents_of_the_corpus(folders: dict[str, Path]) -> None:
    manifest = json.loads((folders["documents"] / "manifest.json").read_text())
    relations = [relation["id"] for relation in manifest["relations"]]
    to_pieces = load_tokenizer(str(folders["documents"] / "tokenizer")).convert_ids_to_tokens
    corpus = {int(sample["__key__"]): sample["json"] for sample in samples(urls(folders["corpus"], "documents-*.tar"))}
    blocks = samples([str(path) for path in sorted(folders["documents"].glob("*.tar"))])
    documents = [document for block in blocks for document in documents_of(block, "documents")]
    assert len(documents) == len(corpus)
    for document in documents:
        source = corpus[document["document_key"][0]]
        text = source["text"]
        assert document["entity_hash"] == [entity_hash(entity["id"]) for entity in source["entities"]]
        assert document["relations"] == [
            [head, tail, relations.index(name)] for head, tail, name in source["relations"]
        ]
        mentions = sorted(
            (start, end, place)
            for place, entity in enumerate(source["entities"])
            for start, end, _ in entity["mentions"]
        )
        assert document["mention_entity"] == [place for _, _, place in mentions]
        for (start, end, _), (first, stop) in zip(mentions, document["mention_spans"], strict=True):
            pieces = [piece.removeprefix("##") for piece in to_pieces(document["tokens"][first:stop])]
            assert "".join(pieces) == text[start:end].lower().replace(" ", "")


def test_workers_of_a_plain_loader_read_each_document_once(folders: dict[str, Path]) -> None:
    dataset = webdataset.WebDataset(urls(folders["documents"], "train-*.tar"), shardshuffle=10, seed=1).decode()
    blocks = list(DataLoader(dataset, batch_size=None, num_workers=2))
    keys = sorted(key for block in blocks for key in np.asarray(block["document_key.npy"]).tolist())
    folder = ShardFolder.open(folders["documents"])
    assert keys == sorted(folder.document(number).key for number in range(len(folder)))
