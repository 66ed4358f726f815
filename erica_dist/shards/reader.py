"""A folder of training shards, local or behind a URL: what it holds, and single documents of it.

In: a folder that `erica-dist tokenize` wrote. Out: a `ShardFolder`, its manifest and the index of one split. No shard
is opened here; `gathering.ShardReader` reads documents, of one folder or of several.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from erica_dist.errors import UserError
from erica_dist.shards.blocks import COLUMNS
from erica_dist.shards.cache import ShardCache
from erica_dist.shards.gathering import ShardReader
from erica_dist.shards.index import SplitIndex, read_split_index
from erica_dist.shards.manifest import TRAINING_SHARDS, fingerprint, parse_manifest, read_manifest
from erica_dist.shards.remote import is_remote, read_bytes
from erica_dist.shards.tarfiles import write_atomically


@dataclass(frozen=True, slots=True)
class DocumentView:
    """One document of kind "documents". Pieces n, mentions M, entities E, relations R, barred pairs X."""

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
    """One split of a training shard folder: manifest and index. Open with `ShardFolder.open`."""

    def __init__(self, place: str, split: str, manifest: dict[str, Any], cache: ShardCache | None, tolerant: bool):
        self.place = place
        self.split = split
        self.manifest = manifest
        self.kind: str = manifest["kind"]
        self.tokenizer: dict[str, Any] = manifest["tokenizer"]
        self.relations: list[dict[str, Any]] = manifest.get("relations", [])
        self.fingerprint: str = manifest["fingerprint"]
        self.tolerant = tolerant
        self.shards: list[dict[str, Any]] = [shard for shard in manifest["shards"] if shard["split"] == split]
        self.cache = cache
        if cache is None and not tolerant:
            self._check_sizes()
        record = manifest.get("indices", {}).get(split)
        self.index: SplitIndex = read_split_index(place, self.shards, self.kind, record, self.locate)
        self.lengths = self.index.lengths
        self._reader: ShardReader | None = None

    @classmethod
    def open(
        cls, place: str | Path, split: str = "train", cache: ShardCache | None = None, tolerant: bool = False
    ) -> ShardFolder:
        """Read manifest and index of the folder or URL `place`; a split without shards gives an empty folder.

        Args:
            cache: where the shards of a URL are kept; not needed for a local folder.
            tolerant: shards that are missing or cut off are no error here; their documents are left out when read.

        Raises:
            UserError: no complete manifest, a shard or index missing or of another size than recorded, an index that
                does not fit its shard, or a URL without a cache.
        """
        if is_remote(str(place)):
            if cache is None:
                raise UserError(f"{place} is remote: give a folder for its shards (data.cache)")
            manifest = parse_manifest(str(place), read_bytes(f"{place}/manifest.json"), TRAINING_SHARDS)
        else:
            cache = None
            manifest = read_manifest(place, TRAINING_SHARDS)
        if manifest.get("kind") not in COLUMNS:
            raise UserError(f"{place}: unknown kind of training shards {manifest.get('kind')!r}")
        return cls(str(place).rstrip("/") or "/", split, manifest, cache, tolerant)

    @property
    def folder(self) -> Path:
        """The local folder."""
        return Path(self.place)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def document(self, i: int) -> DocumentView | SequenceView:
        """Document `i` of the split, 0 <= i < len(self), as copies; a `SequenceView` of kind "sequences"."""
        if not 0 <= i < len(self):
            raise IndexError(f"document {i} of {len(self)} in {self.place} ({self.split})")
        if self._reader is None:
            self._reader = ShardReader([self])
        arrays = dict(self._reader.read(np.array([i])).arrays)
        key = int(arrays.pop("document_key")[0])
        if self.kind == "sequences":
            return SequenceView(key, arrays["tokens"], int(arrays["segment_split"][0]))
        return DocumentView(key, **arrays)

    def locate(self, file: str, sha256: str, size: int) -> Path:
        """The local path of a file of the folder; a remote one is fetched."""
        if self.cache is None:
            return self.folder / file
        return self.cache.fetch(f"{self.place}/{file}", sha256, size)

    def open_file(self, file: str, sha256: str, size: int) -> BinaryIO:
        """A file of the folder, open for reading; the cache cannot lose it before it is mapped.

        Raises:
            OSError: a local file cannot be opened.
            UserError: a remote one cannot be fetched.
        """
        if self.cache is None:
            return (self.folder / file).open("rb")
        return self.cache.open(f"{self.place}/{file}", sha256, size)

    def tokenizer_folder(self) -> Path:
        """A local folder with the tokenizer's files; those of a remote folder are fetched.

        Raises:
            UserError: a remote folder does not say which they are, or one cannot be fetched.
        """
        if self.cache is None:
            return self.folder / "tokenizer"
        files = self.manifest.get("tokenizer_files")
        if not files:
            raise UserError(f"{self.place}: its manifest names no tokenizer files; run `erica-dist tokenize` again")
        folder = self.cache.folder / f"tokenizer-{fingerprint(files)[:32]}"
        for name, record in files.items():
            if Path(name).name != name:
                raise UserError(f"{self.place}: its manifest names the tokenizer file {name!r}, which is no plain name")
            data = self.locate(f"tokenizer/{name}", record["sha256"], record["bytes"]).read_bytes()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / name, data)
        return folder

    def _check_sizes(self) -> None:
        for shard in self.shards:
            path = os.path.join(
                self.place, shard["file"]
            )  # there may be many thousands: pathlib takes most of the time
            try:
                found = os.stat(path).st_size
            except OSError as error:
                raise UserError(
                    f"cannot read {path}: {error.strerror}; copy it again or run `erica-dist tokenize`"
                ) from error
            if found != shard["bytes"]:
                raise UserError(
                    f"{path} has {found} bytes, the manifest says {shard['bytes']}; it was cut off or changed: "
                    "copy it again"
                )
