"""Training shards: blocks of documents as columns, so that one document is a slice of a memory map.

In: blocks, each a dict of numpy columns. Out: `<name>.tar` (one WebDataset sample a block, members
`<key>.<column>.npy`) and `<name>.index.json` with the byte offset of each column's array data in the tar and each
document's length.

Ragged columns go with an offsets column: document i of the block owns rows offsets[i] to offsets[i + 1]. Spans are
half-open piece positions relative to the document's first piece; special tokens are not stored.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.shards.tarfiles import TarShardWriter, sha256_file, write_atomically

BlockColumns = dict[str, np.ndarray]
INDEX_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column: its name, the types it may have, its row width (0: one-dimensional) and what its rows follow."""

    name: str
    dtypes: tuple[str, ...]
    width: int = 0
    rows: str = ""  # name of the offsets column; "": one row a document; "+1": an offsets column itself


_TOKENS = (Column("tokens", ("<u2", "<u4"), rows="token_offsets"), Column("token_offsets", ("<i8",), rows="+1"))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "documents": (
        Column("document_key", ("<u8",)),
        *_TOKENS,
        Column("mention_spans", ("<i4",), 2, "mention_offsets"),
        Column("mention_entity", ("<i4",), rows="mention_offsets"),
        Column("mention_sentence", ("<i4",), rows="mention_offsets"),
        Column("mention_offsets", ("<i8",), rows="+1"),
        Column("entity_hash", ("<u8",), rows="entity_offsets"),
        Column("entity_type", ("|u1",), rows="entity_offsets"),
        Column("entity_offsets", ("<i8",), rows="+1"),
        Column("relations", ("<i4",), 3, "relation_offsets"),
        Column("relation_offsets", ("<i8",), rows="+1"),
        # ordered pairs whose label was taken away (leakage): neither labelled nor drawn as holding no relation
        Column("barred", ("<i4",), 2, "barred_offsets"),
        Column("barred_offsets", ("<i8",), rows="+1"),
    ),
    "sequences": (
        Column("document_key", ("<u8",)),
        *_TOKENS,
        Column("segment_split", ("<i4",)),
    ),
}


def kind_of(columns: BlockColumns) -> str:
    """Which kind of training shard a block belongs to, by its columns."""
    return "sequences" if "segment_split" in columns else "documents"


def complete_columns(columns: BlockColumns) -> BlockColumns:
    """The block with its columns in their fixed order and an empty `barred` where the writer gave none."""
    kind = kind_of(columns)
    filled = dict(columns)
    if kind == "documents" and "barred" not in filled:
        filled["barred"] = np.zeros((0, 2), "<i4")
        filled["barred_offsets"] = np.zeros(len(filled["document_key"]) + 1, "<i8")
    known = [column.name for column in COLUMNS[kind]]
    if set(filled) != set(known):
        raise ValueError(f"a block of kind {kind} has the columns {known}, got {sorted(filled)}")
    return {name: filled[name] for name in known}


def check_block(columns: BlockColumns, vocab_size: int = 2**32, relation_count: int = 2**31) -> None:
    """Check types, shapes, offsets, spans and indices of one complete block.

    Raises:
        ValueError: names the column and, where one document is at fault, its place in the block and its key.
    """
    kind = kind_of(columns)
    keys = columns["document_key"]
    for column in sorted(COLUMNS[kind], key=lambda column: column.rows != "+1"):  # offsets before what they divide
        array = columns[column.name]
        shape = (len(array), column.width) if column.width else (len(array),)
        if array.dtype.str not in column.dtypes or array.shape != shape:
            raise ValueError(
                f"column {column.name} is {array.dtype.str}{list(array.shape)}, wanted {column.dtypes}{list(shape)}"
            )
        if column.rows == "+1":
            if len(array) != len(keys) + 1 or array[0] != 0 or np.any(np.diff(array) < 0):
                raise ValueError(f"column {column.name} is no list of {len(keys)} + 1 rising offsets from 0")
            continue
        rows = int(columns[column.rows][-1]) if column.rows else len(keys)
        if len(array) != rows:
            raise ValueError(f"column {column.name} has {len(array)} rows, its offsets say {rows}")

    def fail(bad: np.ndarray, offsets: str, text: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            place = int(np.searchsorted(columns[offsets], row, side="right")) - 1
            raise ValueError(f"document {place} of the block (key {keys[place]}): {text}")

    lengths = np.diff(columns["token_offsets"])
    each = np.arange(len(keys))
    fail(columns["tokens"] >= vocab_size, "token_offsets", f"a piece is outside the vocabulary of {vocab_size}")
    if np.any(lengths < 1):
        place = int(np.argmin(lengths))
        raise ValueError(f"document {place} of the block (key {keys[place]}): has no pieces")
    if kind == "sequences":
        split = columns["segment_split"]
        bad = (split < 0) | (split >= lengths)
        if bad.any():
            place = int(np.argmax(bad))
            raise ValueError(f"document {place} of the block (key {keys[place]}): the segment split is outside it")
        return
    spans, entity = columns["mention_spans"], columns["mention_entity"]
    document_of_mention = np.repeat(each, np.diff(columns["mention_offsets"]))
    bad = (spans[:, 0] < 0) | (spans[:, 0] >= spans[:, 1]) | (spans[:, 1] > lengths[document_of_mention])
    fail(bad, "mention_offsets", "a mention is empty or lies outside the pieces")
    entities = np.diff(columns["entity_offsets"])
    bad = (entity < 0) | (entity >= entities[document_of_mention])
    fail(bad, "mention_offsets", "a mention belongs to no entity")
    mentioned = np.zeros(int(columns["entity_offsets"][-1]), bool)
    mentioned[entity + columns["entity_offsets"][:-1][document_of_mention]] = True
    fail(~mentioned, "entity_offsets", "an entity has no mention")
    for name, offsets in (("relations", "relation_offsets"), ("barred", "barred_offsets")):
        pairs = columns[name][:, :2]
        limit = np.repeat(entities, np.diff(columns[offsets]))
        bad = ((pairs < 0) | (pairs >= limit[:, None])).any(1) | (pairs[:, 0] == pairs[:, 1])
        fail(bad, offsets, f"a pair in {name} is not of two entities of the document")
    fail(columns["mention_sentence"] < 0, "mention_offsets", "a mention has a negative sentence number")
    relation = columns["relations"][:, 2]
    fail((relation < 0) | (relation >= relation_count), "relation_offsets", "a relation is not in the manifest's table")
    triples = np.column_stack([np.repeat(each, np.diff(columns["relation_offsets"])), columns["relations"]])
    step = np.diff(triples.astype(np.int64), axis=0)
    rising = step[np.arange(len(step)), (step != 0).argmax(axis=1)] > 0
    fail(np.append(False, ~rising)[: len(triples)], "relation_offsets", "relations are not sorted and unique")


def write_training_shard(folder: str | Path, name: str, split: str, blocks: Iterable[BlockColumns]) -> dict[str, Any]:
    """Write `<name>.tar` and its index into `folder`; gives the shard's record for the manifest.

    `name` ends in the shard's number (`train-00003`), which makes the block keys unique over the shards of a split.

    Raises:
        ValueError: a block that does not hold what its kind asks, or no block at all (there are no empty shards).
    """
    folder = Path(folder)
    number = re.search(r"(\d+)$", name)
    if number is None:
        raise ValueError(f"the shard name {name!r} does not end in a number")
    entries: list[dict[str, Any]] = []
    lengths: list[int] = []
    kinds: set[str] = set()
    with TarShardWriter(folder / f"{name}.tar") as tar:
        for position, block in enumerate(blocks):
            columns = complete_columns(block)
            check_block(columns)
            kinds.add(kind_of(columns))
            key = f"{int(number[1]):05d}{position:04d}"
            placed = {}
            for column, array in columns.items():
                data = _npy(array)
                start = tar.write(f"{key}.{column}.npy", data) + len(data) - array.nbytes
                placed[column] = {"offset": start, "dtype": array.dtype.str, "shape": list(array.shape)}
            entries.append({"key": key, "documents": len(columns["document_key"]), "columns": placed})
            lengths.extend(np.diff(columns["token_offsets"]).tolist())
        if len(kinds) != 1:
            raise ValueError(f"{name}: {'no blocks to write' if not kinds else 'blocks of two kinds in one shard'}")
    index = {"version": INDEX_VERSION, "kind": kinds.pop(), "blocks": entries, "lengths": lengths}
    data = (json.dumps(index, separators=(",", ":")) + "\n").encode()
    write_atomically(folder / f"{name}.index.json", data)
    return {
        "file": f"{name}.tar",
        "split": split,
        "documents": len(lengths),
        "tokens": sum(lengths),
        "bytes": tar.bytes_written,
        "sha256": tar.sha256,
        "index": f"{name}.index.json",
        "index_bytes": len(data),
        "index_sha256": sha256_file(folder / f"{name}.index.json"),
    }


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()
