"""Facts and instance-of of all runs, one range of keys at a time -> sorted rows by entity numbers, and the way back.

runs --> rows of one range --> ends to entity numbers, unknown ends dropped --> run `facts-N`: heads, tails, relations
                                                                           --> in it: (tail, head), sorted, once
runs `facts-N` --> rows of one range of (tail, head) --> run `incoming-N`
runs --> rows of one range --> run `types-N`: item numbers, classes
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.wikidata.arrays import mapped, numbers_of
from data_tools.wikidata.runs import number_columns, number_range, runs_of, write_run

_TAIL = np.uint64(0xFFFFFFFF)
_HEAD_SHIFT = np.uint64(32)


@dataclass(frozen=True)
class RangeTask:
    """The rows of `runs` (a file that lists them) with first <= key < last, to be written as the run `run`."""

    runs: str
    first: int
    last: int
    ids: str  # sorted ids of the entities, .npy
    relations: tuple[str, ...]  # all relations in the order of their numbers
    run: str


def merge_facts(task: RangeTask) -> dict[str, Any]:
    """Write the run of facts; gives its index."""
    ids = mapped(Path(task.ids))
    number = {relation: place for place, relation in enumerate(task.relations)}
    keys: list[NDArray[np.uint64]] = []
    relations: list[NDArray[np.uint16]] = []
    for run in runs_of(task.runs):
        rows = number_range(run, task.first, task.last, "facts.")
        own = np.array([number[relation] for relation in run.said["relations"]], np.uint16)
        keys.append(run["facts.keys"][rows].copy())
        relations.append(own[run["facts.relations"][rows]] if len(own) else np.zeros(0, np.uint16))
    counts: Counter[str] = Counter()
    read = number_columns(np.concatenate(keys), relations=np.concatenate(relations))
    counts["duplicate triples"] = sum(map(len, keys)) - len(read["keys"])
    key = read["keys"]
    heads = numbers_of(ids, (key >> _HEAD_SHIFT).astype(np.uint32))
    tails = numbers_of(ids, (key & _TAIL).astype(np.uint32))
    known = (heads >= 0) & (tails >= 0)
    apart = heads != tails
    counts["triples with an unknown end"] = int(len(key) - known.sum())
    counts["triples from an entity to itself"] = int((known & ~apart).sum())
    keep = known & apart
    counts["facts"] = int(keep.sum())
    # Still in order: entities are numbered in the order of their ids
    head, tail = heads[keep].astype(np.uint64), tails[keep].astype(np.uint64)
    back = number_columns(tail << _HEAD_SHIFT | head)
    columns = {
        "heads": head.astype(np.uint32),
        "tails": tail.astype(np.uint32),
        "relations": read["relations"][keep],
        **{f"back.{name}": column for name, column in back.items()},
    }
    used = np.unique(columns["relations"]).tolist()
    return write_run(Path(task.run), columns, relations=[task.relations[place] for place in used], counts=dict(counts))


def merge_incoming(task: RangeTask) -> dict[str, Any]:
    """Write the run of (tail, head) pairs; gives its index."""
    keys = [run["back.keys"][number_range(run, task.first, task.last, "back.")].copy() for run in runs_of(task.runs)]
    pairs = np.unique(np.concatenate(keys))
    columns = {"tails": (pairs >> _HEAD_SHIFT).astype(np.uint32), "heads": (pairs & _TAIL).astype(np.uint32)}
    return write_run(Path(task.run), columns)


def merge_types(task: RangeTask) -> dict[str, Any]:
    """Write the run of the classes of items, as ids; gives its index."""
    ids = mapped(Path(task.ids))
    keys = [run["types.keys"][number_range(run, task.first, task.last, "types.")].copy() for run in runs_of(task.runs)]
    key = np.unique(np.concatenate(keys))
    items = numbers_of(ids, (key >> _HEAD_SHIFT).astype(np.uint32))
    known = items >= 0
    columns = {"items": items[known].astype(np.uint32), "classes": (key[known] & _TAIL).astype(np.uint32)}
    return write_run(Path(task.run), columns, counts={"instance-of kept": len(columns["items"])})
