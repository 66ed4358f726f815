"""Input files -> ranges to read, planned without reading the files: a function of the inputs alone.

A range is about `RANGE_BYTES` of the file, so that a whole dump gives thousands and a worker that dies loses seconds.
Which pages belong to it is told by where they start (`dump.py`, `line_ranges.py`). Of a multistream dump with its index
a range is a group of streams, and the number of its pages is known. A gz or xz file is one range.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.pages import Page
from data_tools.wikipedia import dump
from data_tools.wikipedia.extracted import read_docs
from data_tools.wikipedia.jsonlines import parse_line
from data_tools.wikipedia.line_ranges import line_number, read_lines_of
from data_tools.wikipedia.multistream import check_stream, index_of, read_index
from data_tools.wikipedia.pieces import is_splittable, packing
from data_tools.wikipedia.sources import Kind, Source
from erica_dist.errors import DamagedInputError, UserError

_NONE = np.zeros(0, np.int64)
RANGE_BYTES = {"bz2": 2 << 20, "": 8 << 20}  # of the file as it is; about 8 MB of text either way


@dataclass(frozen=True)
class Range:
    """Places [start, stop) of a file (stop None: to its end); `listed`: its pages by the index, -1 where none says."""

    path: str
    kind: Kind
    start: int
    stop: int | None
    listed: int = -1
    namespaces: tuple[tuple[str, int], ...] = ()  # dumps: of the head


class Record(NamedTuple):
    """A page, the last place from which a range that starts there has it, the range's own lines before it, and its
    paragraphs dropped by reason (of a raw page none yet)."""

    page: dump.RawPage | Page
    place: int
    line: int
    counts: Counter[str]


def plan(files: Sequence[Source], range_bytes: int = 0, allow_incomplete: bool = False) -> list[Range]:
    """The ranges of all files, in order. range_bytes: instead of `RANGE_BYTES`.

    Raises:
        UserError: a file that cannot be read, an index that is not of its dump, a dump in UTF-16.
        DamagedInputError: a dump that ends before its index does; `allow_incomplete` takes what is there.
    """
    return [part for source in files for part in _ranges_of(source.path, source.kind, range_bytes, allow_incomplete)]


def _ranges_of(path: str, kind: Kind, range_bytes: int, allow_incomplete: bool) -> Iterator[Range]:
    offsets, counts, index = _NONE, _NONE, index_of(path) if kind == "dump" else None
    names = _namespaces(path) if kind == "dump" else ()
    size = os.path.getsize(path)
    step = range_bytes or RANGE_BYTES.get(packing(path), 0)
    if index is not None:
        offsets, counts = read_index(index, path, allow_incomplete)
    if index is not None and len(offsets):
        firsts = _groups(offsets, step)
        for first in firsts:
            check_stream(index, path, int(offsets[first]))
        # the head goes with the first group, what follows the last stream with the last
        borders = [0, *(int(offsets[first]) for first in firsts[1:]), None]
        for (start, stop), pages in zip(itertools.pairwise(borders), np.add.reduceat(counts, firsts), strict=True):
            yield Range(path, kind, start or 0, stop, int(pages), names)
    elif is_splittable(path):
        for start in range(0, max(size, 1), step):
            yield Range(path, kind, start, start + step if start + step < size else None, -1, names)
    else:
        yield Range(path, kind, 0, None, -1, names)


def _groups(offsets: np.ndarray, step: int) -> list[int]:
    """Numbers of the streams at which groups of at least `step` bytes begin."""
    firsts = [0]
    while (following := int(np.searchsorted(offsets, offsets[firsts[-1]] + step))) < len(offsets):
        firsts.append(max(following, firsts[-1] + 1))
    return firsts


def _namespaces(path: str) -> tuple[tuple[str, int], ...]:
    try:
        return tuple(sorted(dump.namespaces(path).items()))
    except DamagedInputError:
        return ()  # the scan says so, and of which place


def records(part: Range) -> Iterator[Record]:
    """The pages of a range, in order. Of JSON lines, the id is `NO_ID` where the line gives none.

    Raises:
        UserError: the file is not what its kind says; the text names the place.
        DamagedInputError: it is damaged or cut off; the pages before were given.
    """
    if part.kind == "dump":
        for page, place in dump.read_range(part.path, part.start, part.stop, dict(part.namespaces)):
            yield Record(page, place, 0, Counter())
    elif part.kind == "extracted":
        for doc in read_docs(part.path, part.start, read_lines_of(part.path, part.start, part.stop)):
            yield Record(doc.page, doc.place, doc.number, doc.counts)
    else:
        for line in read_lines_of(part.path, part.start, part.stop):
            if not line.owned:
                return
            if not line.content.strip():
                continue
            try:
                page_of_line, counts = parse_line(line.content)
            except ValueError as error:
                number = line_number(part.path, part.start, line.number)
                raise UserError(f"{part.path}:{number}: {error}") from error
            yield Record(page_of_line, line.place, line.number, counts)


def range_name(part: Range) -> str:
    """For people: the file and the bytes."""
    end = part.stop if part.stop is not None else os.path.getsize(part.path)
    return f"{Path(part.path).name}, bytes {part.start} to {end}"
