"""Random access to a training shard folder: document i of a split as numpy slices of a memory map.

In: a folder that `erica-dist tokenize` wrote. Out: lengths of all documents at once (for dealing) and views of single
documents. Only the manifest and the indices are read at opening; shards are mapped at first use and at most
`MAPPED_SHARDS` stay mapped, because each map holds a file descriptor. A folder object can be pickled; maps are not.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.errors import UserError
from erica_dist.shards.blocks import COLUMNS, INDEX_VERSION
from erica_dist.shards.manifest import TRAINING_SHARDS, read_manifest

MAPPED_SHARDS = 256


@dataclass(frozen=True, slots=True)
class DocumentView:
    """One document of kind "documents". Pieces n, mentions M, entities E, relations R; all arrays are read-only."""

    key: int
    tokens: np.ndarray  # uint16 or uint32 [n], no special tokens
    mention_spans: np.ndarray  # int32 [M, 2], half-open piece positions
    mention_entity: np.ndarray  # int32 [M]
    mention_sentence: np.ndarray  # int32 [M]
    entity_hash: np.ndarray  # uint64 [E]
    entity_type: np.ndarray  # uint8 [E]
    relations: np.ndarray  # int32 [R, 3]: head entity, tail entity, index in the manifest's relations
    barred: np.ndarray  # int32 [X, 2]: ordered pairs that are neither labelled nor drawn


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One sequence of kind "sequences"."""

    key: int
    tokens: np.ndarray  # uint16 or uint32 [n], no special tokens
    segment_split: int  # pieces in the first segment; 0: one segment


class ShardFolder:
    """One split of a training shard folder. Open with `ShardFolder.open`."""

    def __init__(self, folder: Path, split: str, manifest: dict[str, Any]):
        self.folder = folder
        self.split = split
        self.manifest = manifest
        self.kind: str = manifest["kind"]
        self.tokenizer: dict[str, Any] = manifest["tokenizer"]
        self.relations: list[dict[str, Any]] = manifest.get("relations", [])
        self.fingerprint: str = manifest["fingerprint"]
        self._files = [shard["file"] for shard in manifest["shards"] if shard["split"] == split]
        self._read_indices([shard for shard in manifest["shards"] if shard["split"] == split])
        self._maps: dict[int, mmap.mmap] = {}

    @classmethod
    def open(cls, folder: str | Path, split: str = "train") -> ShardFolder:
        """Read manifest and indices of `folder`; a split without shards gives an empty folder.

        Raises:
            UserError: no complete manifest, a shard or index missing or of another size than recorded, or an index
                that does not fit its shard.
        """
        manifest = read_manifest(folder, TRAINING_SHARDS)
        if manifest.get("kind") not in COLUMNS:
            raise UserError(f"{folder}: unknown kind of training shards {manifest.get('kind')!r}")
        return cls(Path(folder), split, manifest)

    def _read_indices(self, shards: list[dict[str, Any]]) -> None:
        columns = COLUMNS[self.kind]
        lengths: list[np.ndarray] = []
        block_documents: list[int] = []
        block_shard: list[int] = []
        offsets: list[list[int]] = []
        dtypes: dict[str, str] = {}
        for number, shard in enumerate(shards):
            index = read_index(self.folder, shard, self.kind)
            for block in index["blocks"]:
                block_documents.append(block["documents"])
                block_shard.append(number)
                offsets.append([block["columns"][column.name]["offset"] for column in columns])
                for column in columns:
                    dtype = block["columns"][column.name]["dtype"]
                    if dtypes.setdefault(column.name, dtype) != dtype:
                        raise UserError(
                            f"{self.folder / shard['index']}: block {block['key']} holds {column.name} as {dtype}, "
                            f"others as {dtypes[column.name]}; run `erica-dist tokenize` again"
                        )
            lengths.append(np.asarray(index["lengths"], np.int32))
        self.lengths: np.ndarray = np.concatenate(lengths) if lengths else np.zeros(0, np.int32)
        self._block_shard = np.asarray(block_shard, np.int32)
        self._block_start = np.concatenate([[0], np.cumsum(block_documents, dtype=np.int64)]).astype(np.int64)
        self._offset = np.asarray(offsets, np.int64).reshape(-1, len(columns))
        self._column = {column.name: position for position, column in enumerate(columns)}
        self._dtype = {name: np.dtype(dtype) for name, dtype in dtypes.items()}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def document(self, i: int) -> DocumentView | SequenceView:
        """Document `i` of the split, 0 <= i < len(self); a `DocumentView` or, of kind "sequences", a `SequenceView`."""
        if not 0 <= i < len(self):
            raise IndexError(f"document {i} of {len(self)} in {self.folder} ({self.split})")
        block = int(np.searchsorted(self._block_start, i, side="right")) - 1
        place = int(i - self._block_start[block])
        data = self._map(int(self._block_shard[block]))
        start = self._offset[block].tolist()
        column, dtype = self._column, self._dtype

        def rows(name: str, first: int, count: int, width: int = 1) -> np.ndarray:
            kind = dtype[name]
            begin = start[column[name]] + first * width * kind.itemsize
            array = np.frombuffer(data, kind, count * width, begin)
            return array if width == 1 else array.reshape(count, width)

        def extent(name: str) -> tuple[int, int]:
            first, last = rows(name, place, 2).tolist()
            return first, last - first

        key = int(rows("document_key", place, 1)[0])
        tokens = rows("tokens", *extent("token_offsets"))
        if self.kind == "sequences":
            return SequenceView(key, tokens, int(rows("segment_split", place, 1)[0]))
        mentions, entities = extent("mention_offsets"), extent("entity_offsets")
        return DocumentView(
            key=key,
            tokens=tokens,
            mention_spans=rows("mention_spans", *mentions, 2),
            mention_entity=rows("mention_entity", *mentions),
            mention_sentence=rows("mention_sentence", *mentions),
            entity_hash=rows("entity_hash", *entities),
            entity_type=rows("entity_type", *entities),
            relations=rows("relations", *extent("relation_offsets"), 3),
            barred=rows("barred", *extent("barred_offsets"), 2),
        )

    def _map(self, shard: int) -> mmap.mmap:
        mapped = self._maps.get(shard)
        if mapped is None:
            while len(self._maps) >= MAPPED_SHARDS:
                # views still in use keep the evicted map alive
                del self._maps[next(iter(self._maps))]
            path = self.folder / self._files[shard]
            try:
                with path.open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise UserError(f"cannot read {path}: {error}") from error
            self._maps[shard] = mapped
        return mapped


def read_index(folder: Path, shard: dict[str, Any], kind: str) -> dict[str, Any]:
    """The index of one shard record, checked against the record, the tar's size and the columns of `kind`.

    Raises:
        UserError: names the file and the block that does not fit.
    """
    tar, path = folder / shard["file"], folder / shard["index"]
    for file, size in ((tar, shard["bytes"]), (path, shard["index_bytes"])):
        try:
            found = file.stat().st_size
        except OSError as error:
            raise UserError(
                f"cannot read {file}: {error.strerror}; copy it again or run `erica-dist tokenize`"
            ) from error
        if found != size:
            raise UserError(
                f"{file} has {found} bytes, the manifest says {size}; it was cut off or changed: copy it again"
            )
    try:
        index = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); copy it again or run `erica-dist tokenize`") from error
    try:
        fault = _index_fault(index, kind, shard)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fault = f"an entry is missing or of a wrong kind ({error!r})"
    if fault:
        raise UserError(f"{path} does not fit its shard: {fault}; copy it again or run `erica-dist tokenize`")
    return index


def _index_fault(index: dict[str, Any], kind: str, shard: dict[str, Any]) -> str:
    """What is wrong with an index, or an empty text."""
    if index["version"] != INDEX_VERSION or index["kind"] != kind:
        return f"it is of version {index['version']!r} and kind {index['kind']!r}"
    documents = sum(block["documents"] for block in index["blocks"])
    if not documents == len(index["lengths"]) == shard["documents"]:
        return f"{documents} documents in blocks, {len(index['lengths'])} lengths, {shard['documents']} in the manifest"
    if sum(index["lengths"]) != shard["tokens"] or min(index["lengths"], default=1) < 1:
        return f"the lengths do not sum up to the manifest's {shard['tokens']} pieces"
    for block in index["blocks"]:
        for column in COLUMNS[kind]:
            entry = block["columns"][column.name]
            if entry["dtype"] not in column.dtypes:
                return f"column {column.name} of block {block['key']} is {entry['dtype']}, wanted {column.dtypes}"
            size = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
            if not 0 <= entry["offset"] <= entry["offset"] + size <= shard["bytes"]:
                return f"column {column.name} of block {block['key']} lies outside the shard"
    return ""
