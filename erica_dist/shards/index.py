"""Where everything lies in the shards of one split: the index files beside the shards, or all of them compiled.

In: the manifest's shard records. Out: a `SplitIndex`, tables over all blocks and documents of the split. Each shard has
its own `<name>.index.json`; `write_split_index` compiles those of a split into two `.npy` files that are memory-mapped,
so opening a hundred million documents takes a fraction of a second, and all processes of a node share the pages: 4
bytes a document and about 240 a block.

B blocks, C columns.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.errors import UserError
from erica_dist.shards.blocks import COLUMNS, INDEX_VERSION
from erica_dist.shards.tarfiles import sha256_file, write_atomically

REMEDY = "copy it again or run `erica-dist tokenize`"
Locate = Callable[[str, str, int], Path]  # (file, sha256, bytes) -> local path


@dataclass(frozen=True)
class SplitIndex:
    """Tables of one split; `lengths`, `offset_BC` and `rows_BC` may be memory maps."""

    lengths: np.ndarray  # int32 [documents], word pieces
    block_shard: np.ndarray  # int64 [B], number among the split's shards
    block_start: np.ndarray  # int64 [B + 1], first document of each block
    offset_BC: np.ndarray  # int64 [B, C], byte in the shard at which the column's array begins
    rows_BC: np.ndarray  # int64 [B, C], rows of the column
    dtypes: dict[str, np.dtype]  # of each column, in the order of C


def read_split_index(
    place: str, shards: Sequence[dict[str, Any]], kind: str, record: dict[str, Any] | None, locate: Locate
) -> SplitIndex:
    """The tables of the given shard records: from the compiled files that `record` names, or from each shard's index.

    Raises:
        UserError: a file is missing, of another size than recorded, or does not fit the shards.
    """
    if record is None:
        return compile_index(place, [read_index(place, shard, kind, locate) for shard in shards], shards, kind)
    lengths = _mapped(place, record["lengths"], locate)
    blocks = _mapped(place, record["blocks"], locate)
    columns = len(COLUMNS[kind])
    documents = sum(shard["documents"] for shard in shards)
    if blocks.dtype != np.int64 or blocks.ndim != 2 or blocks.shape[1] != 2 + 2 * columns or lengths.ndim != 1:
        raise UserError(f"{place}/{record['blocks']['file']} is no index of {kind}; {REMEDY}")
    start = np.concatenate([[0], np.cumsum(blocks[:, 1], dtype=np.int64)])
    shard_of = np.ascontiguousarray(blocks[:, 0])
    if start[-1] != documents or len(lengths) != documents or shard_of.max(initial=-1) >= len(shards):
        raise UserError(
            f"{place}/{record['blocks']['file']} tells of {int(start[-1])} documents and {len(lengths)} lengths, the "
            f"manifest of {documents}; {REMEDY}"
        )
    dtypes = {name: np.dtype(dtype) for name, dtype in record["columns"].items()}
    index = SplitIndex(lengths, shard_of, start, blocks[:, 2 : 2 + columns], blocks[:, 2 + columns :], dtypes)
    _check_places(index, shards, kind, f"{place}/{record['blocks']['file']}")
    return index


def write_split_index(folder: Path, split: str, shards: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Compile the indices of a split's shards into `<split>.lengths.npy` and `<split>.blocks.npy`; gives their record.

    Raises:
        UserError: an index is missing or does not fit its shard.
    """
    index = compile_index(
        str(folder), [read_index(str(folder), s, kind, _beside(folder)) for s in shards], shards, kind
    )
    blocks = np.column_stack([index.block_shard, np.diff(index.block_start), index.offset_BC, index.rows_BC])
    record: dict[str, Any] = {"columns": {name: dtype.str for name, dtype in index.dtypes.items()}}
    for name, array in (("lengths", index.lengths), ("blocks", blocks.astype(np.int64))):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
        path = folder / f"{split}.{name}.npy"
        write_atomically(path, buffer.getvalue())
        record[name] = {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
    return record


def compile_index(
    place: str, indices: Sequence[dict[str, Any]], shards: Sequence[dict[str, Any]], kind: str
) -> SplitIndex:
    """The tables of a split from the indices of its shards.

    Raises:
        UserError: blocks that hold a column in different types.
    """
    columns = COLUMNS[kind]
    dtypes: dict[str, str] = {}
    rows: list[list[int]] = []
    for number, (index, shard) in enumerate(zip(indices, shards, strict=True)):
        for block in index["blocks"]:
            entries = [block["columns"][column.name] for column in columns]
            for column, entry in zip(columns, entries, strict=True):
                if dtypes.setdefault(column.name, entry["dtype"]) != entry["dtype"]:
                    raise UserError(
                        f"{place}/{shard['index']}: block {block['key']} holds {column.name} as {entry['dtype']}, "
                        f"others as {dtypes[column.name]}; run `erica-dist tokenize` again"
                    )
            offsets, counts = [e["offset"] for e in entries], [e["shape"][0] for e in entries]
            rows.append([number, block["documents"], *offsets, *counts])
    table = np.asarray(rows, np.int64).reshape(-1, 2 + 2 * len(columns))
    lengths = [np.asarray(index["lengths"], np.int32) for index in indices]
    result = SplitIndex(
        lengths=np.concatenate(lengths) if lengths else np.zeros(0, np.int32),
        block_shard=np.ascontiguousarray(table[:, 0]),
        block_start=np.concatenate([[0], np.cumsum(table[:, 1], dtype=np.int64)]),
        offset_BC=table[:, 2 : 2 + len(columns)],
        rows_BC=table[:, 2 + len(columns) :],
        dtypes={name: np.dtype(dtype) for name, dtype in dtypes.items()},
    )
    _check_places(result, shards, kind, "")
    return result


def _check_places(index: SplitIndex, shards: Sequence[dict[str, Any]], kind: str, file: str) -> None:
    """Every array must lie inside its shard, where its type can be read; `file`: the compiled index, if it is one."""
    if not len(index.block_shard):
        return
    items = np.array([index.dtypes[column.name].itemsize for column in COLUMNS[kind]])
    widths = np.array([max(column.width, 1) for column in COLUMNS[kind]])
    size_B = np.array([shard["bytes"] for shard in shards], np.int64)[index.block_shard]
    ends = index.offset_BC + index.rows_BC * items * widths
    bad = (index.offset_BC < 0) | (index.rows_BC < 0) | (ends > size_B[:, None]) | (index.offset_BC % items != 0)
    if bad.any():
        block, column = np.argwhere(bad)[0]
        number = index.block_shard[block]
        shard, place = shards[int(number)], block - int(np.searchsorted(index.block_shard, number))
        raise UserError(
            f"{file or shard['index']}: column {COLUMNS[kind][column].name} of block {place} of {shard['file']} lies "
            f"outside the shard or crooked in it; {REMEDY}"
        )


def _mapped(place: str, record: dict[str, Any], locate: Locate) -> np.ndarray:
    path = locate(record["file"], record["sha256"], record["bytes"])
    _check_size(path, record["bytes"])
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{place}/{record['file']} is damaged ({error}); {REMEDY}") from error


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {REMEDY}") from error
    if found != size:
        raise UserError(f"{path} has {found} bytes, the manifest says {size}; it was cut off or changed: copy it again")


def _beside(folder: Path) -> Locate:
    return lambda file, sha256, size: folder / file


# ------------------------------------------------------------------------------------------------ one shard


def read_index(place: str | Path, shard: dict[str, Any], kind: str, locate: Locate | None = None) -> dict[str, Any]:
    """The index of one shard record, checked against the record and the columns of `kind`.

    Raises:
        UserError: names the file and the block that does not fit.
    """
    locate = locate or _beside(Path(place))
    path = locate(shard["index"], shard["index_sha256"], shard["index_bytes"])
    _check_size(path, shard["index_bytes"])
    try:
        index = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {REMEDY}") from error
    try:
        fault = _index_fault(index, kind, shard)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fault = f"an entry is missing or of a wrong kind ({error!r})"
    if fault:
        raise UserError(f"{path} does not fit its shard: {fault}; {REMEDY}")
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
