"""Documents as other tools write them, their files, and what converting them gives."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from erica_dist.config import ConvertJob, RayConfig
from erica_dist.shards.documents import read_documents
from erica_dist.shards.reader import DocumentView, ShardFolder

# two sentences; a blank word and one with a no-break space; a mention given twice; `Paris` has no id
DOCRED: dict[str, Any] = {
    "title": "France",
    "sents": [
        ["Paris", "is", "the", "capital", "of", "France", "."],
        ["\u00a0", "Berlin", "borders\u00a0the", "Paris"],
    ],
    "vertexSet": [
        [
            {"name": "Paris", "pos": [0, 1], "sent_id": 0, "type": "LOC"},
            {"name": "Paris", "pos": [3, 4], "sent_id": 1, "type": "LOC"},
            {"name": "Paris", "pos": [0, 1], "sent_id": 0, "type": "LOC"},
        ],
        [{"name": "the capital of France", "pos": [2, 6], "sent_id": "0", "type": "None", "id": "Q142"}],
        [{"name": "Berlin", "pos": [0, 2], "sent_id": 1, "type": "LOC"}],
    ],
    "labels": [
        {"h": 1, "t": 0, "r": "P36", "evidence": [0]},
        {"h": 0, "t": 1, "r": "P17", "evidence": []},
        {"h": 0, "t": 1, "r": "P17", "evidence": [0]},
        {"h": 2, "t": 0, "r": "Na", "evidence": []},
    ],
}
CONVERTED: dict[str, Any] = {
    "title": "France",
    "page_id": 0,
    "chunk": 0,
    "text": "Paris is the capital of France . Berlin borders the Paris",
    "entities": [
        {"id": "name:paris|LOC", "name": "Paris", "type": "LOC", "mentions": [[0, 5, "name"], [52, 57, "name"]]},
        {"id": "Q142", "name": "the capital of France", "type": None, "mentions": [[9, 30, "name"]]},
        {"id": "name:berlin|LOC", "name": "Berlin", "type": "LOC", "mentions": [[33, 39, "name"]]},
    ],
    "relations": [[0, 1, "P17"], [1, 0, "P36"]],
}


def ours(number: int = 0, **more: Any) -> dict[str, Any]:
    """A document in the project's own format."""
    return {
        "title": f"Page {number}",
        "text": f"France borders Spain {number}",
        "entities": [
            {"id": "Q1", "name": "France", "type": "GPE", "mentions": [[0, 6, "link"]]},
            {"id": "Q4", "name": "Spain", "type": "GPE", "mentions": [[15, 20]]},
        ],
        "relations": [[0, 1, "P47"]],
    } | more


def changed(**more: Any) -> dict[str, Any]:
    return json.loads(json.dumps(DOCRED | more))


def moved(pos: list[int], sentence: int = 0) -> dict[str, Any]:
    document = changed()
    document["vertexSet"][2].append({"name": "?", "pos": pos, "sent_id": sentence, "type": "LOC"})
    return document


def job(folder: Path, tokenizer: str, *inputs: Path, out: str = "out", **more: Any) -> ConvertJob:
    more = {
        "corpus_out": str(folder / f"{out}-corpus"),
        "ray": RayConfig(disabled=True),
        "validation_share": 0.0,
    } | more
    return ConvertJob(inputs=[str(path) for path in inputs], tokenizer=tokenizer, out=str(folder / out), **more)


def write_json(path: Path, *records: Any) -> Path:
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return path


def write_tar(path: Path, members: list[tuple[str, Any]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
                continue
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def documents_in(corpus: Path) -> list[tuple[int, dict[str, Any]]]:
    return [sample for path in sorted(corpus.glob("documents-*.tar")) for sample in read_documents(path)]


def view(folder: Path, number: int = 0) -> DocumentView:
    document = ShardFolder.open(folder).document(number)
    assert isinstance(document, DocumentView)
    return document
