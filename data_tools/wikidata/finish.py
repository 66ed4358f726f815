"""The merged runs, in order -> the arrays of the knowledge base, written piece by piece (see `data_tools.kb`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.kb import NONE
from data_tools.wikidata import types
from data_tools.wikidata.arrays import ArrayWriter, OffsetsWriter, mapped, numbers_of
from data_tools.wikidata.runs import Run, packed

_ROWS = 1 << 20  # entities of which arrays are made at a time
_BITMAP = 1 << 14  # bytes of it at a time: ids lie close together, in parts of the range only
SUBCLASS_OF = "P279"


def write_ids(runs: Sequence[Path], path: Path) -> tuple[int, int]:
    """The ids of all runs, sorted, once each: how many, and how many stood there more than once.

    Sorted by one bit for every number up to the largest: what is held does not grow with the entities.
    """
    present = np.zeros(0, np.uint8)
    total = 0
    for run in runs:
        keys = Run.open(run)["ids.keys"]
        total += len(keys)
        needed = int(keys[-1]) // 8 + 1 if len(keys) else 0
        if needed > len(present):
            present = np.concatenate([present, np.zeros(max(needed, 2 * len(present)) - len(present), np.uint8)])
        np.bitwise_or.at(present, keys >> 3, (1 << (keys & 7)).astype(np.uint8))
    with ArrayWriter(path, np.uint32) as ids:
        for start in range(0, len(present), _BITMAP):
            piece = present[start : start + _BITMAP]
            if piece.any():
                ids.write(np.flatnonzero(np.unpackbits(piece, bitorder="little")) + 8 * start)
    return ids.length, total - ids.length


def write_facts(runs: Sequence[Path], relations: Sequence[str], entities: int, out: Path) -> list[str]:
    """Arrays of the facts; gives the relations that have any, by number."""
    used = sorted({relation for path in runs for relation in Run.open(path).said["relations"]})
    number = np.zeros(max(len(relations), 1), np.uint16)
    for place, relation in enumerate(used):
        number[relations.index(relation)] = place
    with (
        ArrayWriter(out / "facts_tails.npy", np.uint32) as tails,
        ArrayWriter(out / "facts_relations.npy", np.uint16) as of_tails,
        ArrayWriter(out / "facts_offsets.npy", np.uint32) as places,
    ):
        offsets = OffsetsWriter(places, entities)
        for path in runs:
            run = Run.open(path)
            tails.write(run["tails"])
            of_tails.write(number[run["relations"]])
            offsets.write(run["heads"])
        offsets.close()
    return used


def write_grouped(runs: Sequence[Path], owner: str, value: str, entities: int, offsets: Path, values: Path) -> None:
    """Arrays of the column `value` and of where the values of each `owner` begin."""
    with ArrayWriter(values, np.uint32) as content, ArrayWriter(offsets, np.uint32) as places:
        writer = OffsetsWriter(places, entities)
        for path in runs:
            run = Run.open(path)
            content.write(run[value])
            writer.write(run[owner])
        writer.close()


def write_columns(runs: Sequence[Path], columns: Sequence[tuple[str, Path, Any]]) -> None:
    """One array for each (column, file, type): the column of all runs."""
    for column, path, dtype in columns:
        with ArrayWriter(path, dtype) as content:
            for run in runs:
                content.write(Run.open(run)[column])


def write_offsets(runs: Sequence[Path], path: Path) -> None:
    """Where the values of each row begin, from the column `counts` of all runs."""
    with ArrayWriter(path, np.uint32) as offsets:
        total = 0
        for run in runs:
            counts = Run.open(run)["counts"].astype(np.int64)
            if total + int(counts.sum()) >= 2**32:
                raise OverflowError("2**32 rows or more in one table")
            offsets.write(total + np.cumsum(counts) - counts)
            total += int(counts.sum())
        offsets.write(np.array([total]))


def write_owned_rows(runs: Sequence[Path], entities: int, path: Path) -> None:
    """For each entity the first of its rows, in the order of the runs (`NONE`: it has none)."""
    with ArrayWriter(path, np.uint32) as content:
        for start in range(0, entities, _ROWS):
            rows = np.full(min(_ROWS, entities - start), NONE, np.uint32)
            base = 0
            for run_path in runs:
                run = Run.open(run_path)
                first, last = np.searchsorted(run["owners"], np.array([start, start + len(rows)], np.uint32))
                places = run["owners"][first:last].astype(np.int64) - start
                free = rows[places] == NONE
                rows[places[free]] = run["owner_rows"][first:last][free] + np.uint32(base)
                base += run.said["rows"]
            content.write(rows)


def write_types(
    runs: Sequence[Path], relations: Sequence[str], ids: NDArray[np.uint32], out: Path, q_ids: bool
) -> None:
    """The coarse type of each entity: uint8, places in `types.NAMES`."""
    offsets, tails, of_tails = (mapped(out / f"facts_{name}.npy") for name in ("offsets", "tails", "relations"))
    subclass = relations.index(SUBCLASS_OF) if SUBCLASS_OF in relations else -1

    @lru_cache(maxsize=1 << 18)
    def superclasses(of_class: int) -> tuple[int, ...]:
        entity = int(numbers_of(ids, np.array([of_class], np.uint32))[0])
        if entity < 0 or subclass < 0:
            return ()
        rows = slice(int(offsets[entity]), int(offsets[entity + 1]))
        return tuple(ids[tails[rows][of_tails[rows] == subclass]].tolist())

    found: dict[int, int] = {}
    with ArrayWriter(out / "entity_types.npy", np.uint8) as content:
        written = 0
        for path in runs if q_ids else ():
            run = Run.open(path)
            classes, place = np.unique(run["classes"], return_inverse=True)
            for of_class in classes.tolist():
                if of_class not in found:
                    found[of_class] = types.coarse_type(of_class, superclasses)
            of_row = np.array([found[of_class] for of_class in classes.tolist()], np.int64)[place]
            items, first = np.unique(run["items"], return_index=True)
            if not len(items):
                continue
            # The smallest that is not 0; an item may go on in the next run
            best = np.minimum.reduceat(np.where(of_row == 0, 255, of_row), first)
            best[best == 255] = 0
            piece = np.zeros(int(items[-1]) + 1 - written, np.uint8)
            inside = items >= written
            piece[items[inside].astype(np.int64) - written] = best[inside]
            content.write(piece)
            written += len(piece)
        content.write(np.zeros(len(ids) - written, np.uint8))


def write_strings(out: Path, name: str, strings: Sequence[str]) -> None:
    """Strings by number."""
    data, offsets = packed([string.encode() for string in strings])
    np.save(out / f"{name}_bytes.npy", data)
    np.save(out / f"{name}_offsets.npy", offsets)
