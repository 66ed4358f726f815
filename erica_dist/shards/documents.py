"""Corpus shards: one WebDataset sample a document (or a page of text), a single member `<key>.json`.

In: (key, JSON object) pairs. Out: the tar and its record for the manifest; and the way back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import TarShardWriter, read_members

KEY_DIGITS = 12


def write_documents(
    path: str | Path,
    samples: Iterable[tuple[int, dict[str, Any] | bytes]],
    kind: Literal["documents", "text"] = "documents",
) -> dict[str, Any]:
    """Write one shard and give its record: file, kind, samples, bytes, sha256. Samples as bytes are JSON already.

    Raises:
        ValueError: a key twice, a key of more than 12 digits, or no sample at all (there are no empty shards).
    """
    path = Path(path)
    seen: set[int] = set()
    with TarShardWriter(path) as tar:
        for key, sample in samples:
            if key in seen or not 0 <= key < 10**KEY_DIGITS:
                raise ValueError(f"{path}: key {key} {'occurs twice' if key in seen else 'is out of range'}")
            seen.add(key)
            if not isinstance(sample, bytes):
                sample = json.dumps(sample, ensure_ascii=False, separators=(",", ":")).encode()
            tar.write(f"{key:0{KEY_DIGITS}d}.json", sample)
        if not seen:
            raise ValueError(f"{path}: no samples to write")
    return {
        "file": path.name,
        "kind": kind,
        "samples": len(seen),
        "bytes": tar.bytes_written,
        "sha256": tar.sha256,
    }


def read_documents(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The (key, object) pairs of one shard, in order.

    Raises:
        UserError: the shard is missing, cut off or damaged; names the shard and the member.
    """
    for name, data in read_members(path):
        stem, _, extension = name.partition(".")
        if extension != "json" or not (stem.isascii() and stem.isdigit()):
            raise UserError(f"{path}: member {name!r} is not <digits>.json; this is no shard of a corpus")
        try:
            sample = json.loads(data)
        except ValueError as error:
            raise UserError(f"{path}: member {name!r} is no valid JSON ({error}); build the shard again") from error
        if not isinstance(sample, dict):
            raise UserError(f"{path}: member {name!r} must be a JSON object, not a {type(sample).__name__}")
        yield int(stem), sample
