"""`erica-dist verify FOLDER`: every byte, index entry and document of a corpus or training shard folder, checked.

In: a folder. Out: a summary on the terminal, or a `UserError` that names all damaged files, each with shard, key and
place of the first damage in it. What can be said of the whole folder only is compared when every file is whole.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.errors import UserError
from erica_dist.shards.blocks import COLUMNS, check_block
from erica_dist.shards.documents import read_documents
from erica_dist.shards.index import read_index, read_split_index
from erica_dist.shards.manifest import CORPUS, KNOWLEDGE_BASE, TRAINING_SHARDS, read_manifest
from erica_dist.shards.reader import ShardFolder
from erica_dist.shards.tarfiles import read_members, sha256_file

SHOWN = 20  # faults that are told in full


@dataclass
class Faults:
    """What was found so far, one text a damaged file."""

    texts: list[str] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A UserError inside ends the block and is kept."""
        try:
            yield
        except UserError as error:
            self.texts.append(str(error))

    def refuse(self, folder: str | Path) -> None:
        """Raises:
        UserError: there are faults; the text of one alone, or the first `SHOWN` and how many more.
        """
        if len(self.texts) == 1:
            raise UserError(self.texts[0])
        if self.texts:
            more = len(self.texts) - SHOWN
            lines = [f"{folder}: {len(self.texts)} files are damaged:", *self.texts[:SHOWN]]
            raise UserError("\n  ".join([*lines, f"... and {more} more"] if more > 0 else lines))


def verify(folder: str | Path) -> dict[str, int]:
    """Check all of `folder`, print a summary and give its counts.

    Raises:
        UserError: the damage, of each damaged file the first: missing file, other hash or size than the manifest says,
            a key twice, an index that does not fit, a span outside its text, an entity or relation that does not exist.
    """
    manifest = read_manifest(folder)
    faults = Faults()
    if manifest["format"] == CORPUS:
        counts = _verify_corpus(Path(folder), manifest, faults)
    elif manifest["format"] == TRAINING_SHARDS:
        counts = _verify_training(Path(folder), manifest, faults)
    elif manifest["format"] == KNOWLEDGE_BASE:
        for name, expected in manifest["files"].items():
            with faults.noted():
                _check_hash(Path(folder) / name, expected)
        counts = Counter(files=len(manifest["files"]), entities=manifest["counts"]["entities"])
    else:
        raise UserError(
            f"{folder} is a folder of format {manifest['format']!r}; verify checks knowledge bases, corpora and "
            "training shards"
        )
    faults.refuse(folder)
    text = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    print(f"{folder}: {manifest['format']} is whole: {text}")
    return dict(counts)


def _check_hash(path: Path, expected: str) -> None:
    found = sha256_file(path)
    if found != expected:
        raise UserError(f"{path} is damaged: its sha256 is {found}, the manifest says {expected}; copy it again")


# ------------------------------------------------------------------------------------------------ corpus


def _verify_corpus(folder: Path, manifest: dict[str, Any], faults: Faults) -> Counter[str]:
    counts: Counter[str] = Counter(shards=0, documents=0, text_pages=0, entities=0, mentions=0, relations=0)
    relations = {relation["id"] for relation in manifest["relations"]}
    seen: dict[str, set[int]] = {"documents": set(), "text": set()}
    for shard in manifest["shards"]:
        with faults.noted():
            _check_corpus_shard(folder / shard["file"], shard, relations, seen[shard["kind"]], counts)
    if not faults.texts:
        with faults.noted():
            for name in ("documents", "text_pages"):
                _expect(folder, name, counts[name], manifest[name])
    return counts


def _check_corpus_shard(
    path: Path, shard: dict[str, Any], relations: set[str], seen: set[int], counts: Counter[str]
) -> None:
    """Adds to `seen`, the keys of all shards of this kind, and to `counts`."""
    _check_hash(path, shard["sha256"])
    counts["shards"] += 1
    samples = 0
    for key, sample in read_documents(path):
        samples += 1
        if key in seen:
            raise UserError(f"{path}: key {key:012d} occurs twice in the corpus")
        seen.add(key)
        try:
            fault = document_fault(sample, relations) if shard["kind"] == "documents" else _page_fault(sample)
        except (KeyError, TypeError, ValueError) as error:
            fault = f"a field is missing or of a wrong kind ({error!r})"
        if fault:
            raise UserError(f"{path}: document {key:012d}: {fault}; build the corpus again")
        if shard["kind"] == "documents":
            counts["documents"] += 1
            counts["entities"] += len(sample["entities"])
            counts["mentions"] += sum(len(entity["mentions"]) for entity in sample["entities"])
            counts["relations"] += len(sample["relations"])
        else:
            counts["text_pages"] += 1
    _expect(path, "samples", samples, shard["samples"])


def document_fault(document: dict[str, Any], relations: set[str]) -> str:
    """What is wrong with a document of a corpus, "" if nothing; `relations`: ids in the manifest's table.

    Raises:
        KeyError, TypeError, ValueError: a field is missing or of a wrong kind.
    """
    text = document["text"]
    spans = sorted((start, end) for entity in document["entities"] for start, end, _ in entity["mentions"])
    if any(not entity["mentions"] for entity in document["entities"]):
        return "an entity has no mention"
    border = 0
    for start, end in spans:
        if not border <= start < end <= len(text):
            return f"mention [{start}, {end}) is empty, overlaps another or lies outside the text"
        border = end
    for entity in document["entities"]:
        if entity["mentions"] != sorted(entity["mentions"]):
            return f"mentions of {entity['id']} are not sorted"
    triples = [tuple(triple) for triple in document["relations"]]
    if triples != sorted(set(triples)):
        return "relations are not sorted and unique"
    for head, tail, relation in triples:
        if not (0 <= head < len(document["entities"]) and 0 <= tail < len(document["entities"]) and head != tail):
            return f"relation [{head}, {tail}, {relation}] is not between two entities of the document"
        if relation not in relations:
            return f"relation {relation} is not in the manifest's table"
    return ""


def _page_fault(page: dict[str, Any]) -> str:
    paragraphs = page["paragraphs"]
    if not isinstance(page["title"], str) or not all(isinstance(text, str) for text in paragraphs):
        return "title and paragraphs must be texts"
    return ""


# ------------------------------------------------------------------------------------------------ training shards


def _verify_training(folder: Path, manifest: dict[str, Any], faults: Faults) -> Counter[str]:
    counts: Counter[str] = Counter(shards=0, train=0, validation=0, tokens=0)
    seen: set[int] = set()
    for shard in manifest["shards"]:
        known, index = len(faults.texts), {}
        with faults.noted():
            index = read_index(folder, shard, manifest["kind"])
            _check_hash(folder / shard["index"], shard["index_sha256"])
        with faults.noted():
            _check_hash(folder / shard["file"], shard["sha256"])
        if len(faults.texts) == known:
            with faults.noted():
                _check_training_shard(folder, shard, manifest, index, seen)
                counts["shards"] += 1
                counts[shard["split"]] += shard["documents"]
                counts["tokens"] += shard["tokens"]
    for record in manifest.get("indices", {}).values():
        for name in ("lengths", "blocks"):
            with faults.noted():
                _check_hash(folder / record[name]["file"], record[name]["sha256"])
    for name, record in manifest.get("tokenizer_files", {}).items():
        with faults.noted():
            _check_hash(folder / "tokenizer" / name, record["sha256"])
    if not faults.texts:
        with faults.noted():
            _check_compiled(folder, manifest)
    return counts


def _check_training_shard(
    folder: Path, shard: dict[str, Any], manifest: dict[str, Any], index: dict[str, Any], seen: set[int]
) -> None:
    """The contents of a shard against its index; adds to `seen`, the keys of all shards."""
    path = folder / shard["file"]
    members = read_members(path)
    lengths: list[np.ndarray] = []
    for block in index["blocks"]:
        columns = {}
        for column in COLUMNS[manifest["kind"]]:
            name, data = next(members, ("nothing", b""))
            wanted = f"{block['key']}.{column.name}.npy"
            if name != wanted:
                raise UserError(f"{path}: holds {name} where the index says {wanted}; run `erica-dist tokenize` again")
            columns[column.name] = _load(path, name, data)
            _check_place(path, name, columns[column.name], block["columns"][column.name])
        try:
            check_block(columns, manifest["tokenizer"]["vocab_size"], len(manifest.get("relations", [])))
        except ValueError as error:
            raise UserError(f"{path}: block {block['key']}: {error}; run `erica-dist tokenize` again") from error
        for key in columns["document_key"].tolist():
            if key in seen:
                raise UserError(f"{path}: block {block['key']}: key {key} occurs twice in the folder")
            seen.add(key)
        lengths.append(np.diff(columns["token_offsets"]))
    if (extra := next(members, None)) is not None:
        raise UserError(f"{path}: holds {extra[0]}, which the index does not name")
    if not np.array_equal(np.concatenate(lengths), index["lengths"]):
        raise UserError(f"{folder / shard['index']}: the lengths are not those of the documents in {path}")


def _check_compiled(folder: Path, manifest: dict[str, Any]) -> None:
    """The compiled index of a split must say what the indices of its shards say."""
    for split, record in manifest.get("indices", {}).items():
        shards = [shard for shard in manifest["shards"] if shard["split"] == split]
        beside = ShardFolder.open(folder, split)
        single = read_split_index(str(folder), shards, manifest["kind"], None, beside.locate)
        for part in ("lengths", "block_shard", "block_start", "offset_BC", "rows_BC"):
            if not np.array_equal(getattr(beside.index, part), getattr(single, part)):
                raise UserError(
                    f"{folder / record['blocks']['file']}: does not say what the indices of the shards say; "
                    "run `erica-dist tokenize` again"
                )


def _load(path: Path, name: str, data: bytes) -> np.ndarray:
    try:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: member {name} is no array ({error}); run `erica-dist tokenize` again") from error


def _check_place(path: Path, name: str, array: np.ndarray, entry: dict[str, Any]) -> None:
    """The index must point at the very bytes of the array."""
    with path.open("rb") as file:
        file.seek(entry["offset"])
        data = file.read(array.nbytes)
    if [array.dtype.str, list(array.shape)] != [entry["dtype"], entry["shape"]] or data != array.tobytes():
        raise UserError(f"{path}: the index points {name} at byte {entry['offset']}, which holds something else")


def _expect(place: Path, name: str, found: int, expected: int) -> None:
    if found != expected:
        raise UserError(f"{place}: holds {found} {name}, the manifest says {expected}; build it again")
