"""Results of all units -> the shards of the corpus, the same bytes whatever built the units in whatever order.

In: the units' indices in the order of the input. Out: document shards, text shards, their records. Of equal or similar
documents, and of equal pages, the first in the input stays (`filters.duplicates`). A document's key is `page * 10,000 +
chunk` with pages counted over the whole input; a text's key is `page * 10,000`. Documents are spread over the shards by
a seeded permutation, so that neighbours in the input are none in a shard; texts stay in order. Sizes of shards differ
by one at most. Only places are held in memory, 32 bytes a line; the lines are copied from the units' files, which hold
them as the shards do.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from data_tools.near_duplicates import SKETCH, first_of_similar, read_sketches
from erica_dist.config import FilterConfig
from erica_dist.errors import UserError
from erica_dist.shards.documents import write_documents

CHUNKS_OF_PAGE = 10_000
OPEN_FILES = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line is: key, number of the unit, byte offset and bytes."""

    key: int
    unit: int
    offset: int
    size: int


@dataclass(frozen=True)
class Places:
    """Many places, as numbers: int64[n, 4], a row each."""

    rows: NDArray[np.int64]

    @classmethod
    def of(cls, places: Iterable[Place]) -> Places:
        rows = [(place.key, place.unit, place.offset, place.size) for place in places]
        return cls(np.array(rows, np.int64).reshape(-1, 4))

    @property
    def units(self) -> NDArray[np.int64]:
        return self.rows[:, 1]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Place]:
        return (Place(*row.tolist()) for row in self.rows)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> Places:
        return Places(self.rows[chosen])


@dataclass
class Gathered:
    """All that is kept, in the order of the input, and the counts of all units together."""

    documents: Places
    texts: Places
    counts: dict[str, Counter[str]]


def gather(indices: Iterable[dict[str, Any]], filters: FilterConfig, sketches: Sequence[Path] = ()) -> Gathered:
    """The places of all documents and texts that are no duplicates; `indices` in the order of the input.

    sketches: the file of each unit; read where near duplicates are to be dropped.
    """
    counts: dict[str, Counter[str]] = {}
    documents, texts = array("q"), array("q")  # of each line the four numbers of its place
    lines = array("i")  # of each document, its row among the sketches of its unit
    of_documents, of_texts = bytearray(), bytearray()
    dropped: Counter[str] = Counter()
    first_page = 0
    for unit, index in enumerate(indices):
        for stage, of_stage in index["counts"].items():
            counts.setdefault(stage, Counter()).update(of_stage)
        for line, (page, chunk, content, offset, size) in enumerate(index["documents"]):
            if chunk >= CHUNKS_OF_PAGE:
                dropped["dropped: page of too many passages"] += 1
            else:
                documents.extend(((first_page + page) * CHUNKS_OF_PAGE + chunk, unit, offset, size))
                of_documents += bytes.fromhex(content)
                lines.append(line)
        for page, content, offset, size in index["texts"]:
            texts.extend(((first_page + page) * CHUNKS_OF_PAGE, unit, offset, size))
            of_texts += bytes.fromhex(content)
        first_page += index["pages"]
    gathered = Gathered(_places(documents), _places(texts), counts)
    if filters.duplicates != "keep":
        kept = first_of_equal(of_documents)
        gathered.documents = gathered.documents[kept]
        dropped["dropped: duplicates"] = int((~kept).sum())
        new = first_of_equal(of_texts)
        gathered.texts = gathered.texts[new]
        dropped["text pages dropped: duplicates"] = int((~new).sum())
        if filters.duplicates == "near":
            found = _sketches(gathered.documents, np.asarray(lines, np.int32)[kept], sketches)
            kept = first_of_similar(found, filters.near_similarity)
            gathered.documents = gathered.documents[kept]
            dropped["dropped: near duplicates"] = int((~kept).sum())
    gathered.counts["documents"] = Counter(kept=len(gathered.documents), **+dropped)
    gathered.counts["documents"]["text pages kept"] = len(gathered.texts)
    return gathered


def first_of_equal(digests: bytes | bytearray) -> NDArray[np.bool_]:
    """Of n digests of 16 bytes, bool[n]: whether it is the first of those that are equal to it."""
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # a stable sort: of equal ones the first stays the first
    ordered = halves[order]
    first = np.ones(len(halves), bool)
    first[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return first


def _places(numbers: array[int]) -> Places:
    return Places(np.asarray(numbers).reshape(-1, 4))


def _sketches(places: Places, rows: NDArray[np.int32], files: Sequence[Path]) -> NDArray[np.uint8]:
    """The sketch of each place, whose row in the file of its unit is given."""
    found = np.zeros((len(places), SKETCH), np.uint8)
    borders = [0, *(np.flatnonzero(np.diff(places.units)) + 1).tolist(), len(places)]
    for first, last in itertools.pairwise(borders if len(places) else []):
        file = files[places.units[first]]
        try:
            found[first:last] = read_sketches(file)[rows[first:last]]
        except (IndexError, ValueError) as error:
            raise UserError(f"{file} is damaged ({error}); remove it and run again") from error
    return found


def spread(places: Places, seed: int) -> Places:
    """`places` in an order that is a function of their number and the seed."""
    key = int.from_bytes(hashlib.blake2b(f"shard order {seed}".encode(), digest_size=16).digest(), "little")
    order = np.random.Generator(np.random.Philox(key=key)).permutation(len(places))
    return places[order]


def write_shards(
    folder: Path,
    name: Literal["documents", "text"],
    places: Places,
    files: Sequence[Path],
    per_shard: int,
    statistics: Statistics | None = None,
) -> Iterator[dict[str, Any]]:
    """Write `places` as shards `<name>-00000.tar`, ... of about `per_shard` samples and give each one's record.

    files: the lines of each unit. statistics: told of every document written.
    """
    shards = math.ceil(len(places) / per_shard)
    borders = [len(places) * number // max(shards, 1) for number in range(shards + 1)]
    with _Lines(files) as lines:
        for number in range(shards):
            part = places[borders[number] : borders[number + 1]]
            samples = ((place.key, lines.read(place, statistics)) for place in part)
            yield write_documents(folder / f"{name}-{number:05d}.tar", samples, kind=name)


@dataclass
class Statistics:
    """What the documents hold, counted while they are written."""

    counts: Counter[str]
    relations: Counter[str]

    def add(self, document: dict[str, Any]) -> None:
        self.counts["words"] += len(document["text"].split())
        self.counts["entities"] += len(document["entities"])
        self.counts["labels"] += len(document["relations"])
        self.counts["labelled pairs"] += len({(head, tail) for head, tail, _ in document["relations"]})
        self.counts["barred pairs"] += len(document.get("barred", ()))
        self.relations.update(relation for _, _, relation in document["relations"])
        for entity in document["entities"]:
            self.counts["mentions"] += len(entity["mentions"])
            self.counts.update(f"mentions: {source}" for _, _, source in entity["mentions"])


class _Lines:
    """Reads single lines of many files, few of them open at a time."""

    def __init__(self, files: Sequence[Path]):
        self._files = files
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()

    def __enter__(self) -> _Lines:
        return self

    def read(self, place: Place, statistics: Statistics | None) -> bytes:
        """The line without its end; `statistics` is told of it."""
        file = self._open.get(place.unit)
        path = self._files[place.unit]
        try:
            if file is None:
                if len(self._open) >= OPEN_FILES:
                    self._open.popitem(last=False)[1].close()
                file = self._open[place.unit] = path.open("rb", buffering=0)
            self._open.move_to_end(place.unit)
            file.seek(place.offset)
            line = file.read(place.size)
            if len(line) < place.size or line[:1] != b"{" or line[-2:] != b"}\n":
                raise ValueError("no JSON object on a line of its own")
            if statistics is not None:
                statistics.add(json.loads(line))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is damaged at byte {place.offset} ({error}); remove it and run again") from error
        return line[:-1]

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
