"""Sorted runs: what one task of a build leaves on disk for the next ones, and how these read a range of keys of many.

    rows of one task --> sorted by key --> a run: one file of columns, one index
    samples of the keys of all runs --> splitters --> for each range between two of them: the rows of all runs, merged

This is an external sort: a task holds the rows of one range only, however many runs there are. Keys are numbers
(uint64) or strings (UTF-8, compared as bytes). Every `SAMPLE`-th key of a run is kept apart, so that the splitters come
from little data. The splitters depend on the runs only, never on who made them or when.

A run NAME is `NAME.bin`, its columns one after the other, and `NAME.json`, written last: the columns' places and what
else the task says of itself. A task whose index stands is done.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import commit, temporary_name, write_atomically

SAMPLE = 256
_ALIGNED = 64

Columns = Mapping[str, NDArray[Any]]


def write_run(path: Path, columns: Columns, **said: Any) -> dict[str, Any]:
    """Write the run `path` (without suffix) and give its index, which holds `said` too.

    Raises:
        UserError: it cannot be written.
    """
    places: dict[str, list[Any]] = {}
    target = path.with_name(path.name + ".bin")
    temporary = temporary_name(target)
    try:
        with temporary.open("wb") as file:
            for name, column in columns.items():
                file.write(b"\0" * (-file.tell() % _ALIGNED))
                places[name] = [file.tell(), column.dtype.str, len(column)]
                file.write(np.ascontiguousarray(column).tobytes())
            commit(file, temporary, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)
    index = {"columns": places, **said}
    write_atomically(path.with_name(path.name + ".json"), json.dumps(index, ensure_ascii=False).encode())
    return index


def read_index(path: Path) -> dict[str, Any] | None:
    """The index of the run `path`, None where it is not done."""
    try:
        index: dict[str, Any] = json.loads(path.with_name(path.name + ".json").read_bytes())
    except (OSError, ValueError):
        return None
    return index if path.with_name(path.name + ".bin").is_file() else None


@dataclass(frozen=True)
class Run:
    """A run opened: columns are views of one memory map, made when asked for."""

    mapped: NDArray[np.uint8]
    said: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Run:
        index = read_index(path)
        if index is None:
            raise UserError(f"{path}.json has vanished or is damaged; run the same command again")
        with open(f"{path}.bin", "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return cls(np.zeros(0, np.uint8), index)
            return cls(np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8), index)

    def __getitem__(self, column: str) -> NDArray[Any]:
        place, dtype, length = self.said["columns"][column]
        return self.mapped[place : place + length * np.dtype(dtype).itemsize].view(dtype)


def runs_of(listing: str | Path) -> Iterator[Run]:
    """The runs that a file lists, one path a line; one is open at a time if no view of it is kept."""
    for line in Path(listing).read_text(encoding="utf-8").splitlines():
        yield Run.open(Path(line))


def sampled(keys: Any) -> Any:
    """Every `SAMPLE`-th of sorted keys, from the middle of the first that many on: at least one, and none too low."""
    return keys[min(SAMPLE, len(keys)) // 2 :: SAMPLE]


# ------------------------------------------------------------------------------------------------ numbers as keys


def number_columns(keys: NDArray[np.uint64], **payload: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Columns of a run sorted by `keys`, then by the payload, equal rows once."""
    order = np.lexsort((*reversed(payload.values()), keys))
    keys, payload = keys[order], {name: column[order] for name, column in payload.items()}
    fresh = np.ones(len(keys), bool)
    if len(keys):
        fresh[1:] = keys[1:] != keys[:-1]
        for column in payload.values():
            fresh[1:] |= column[1:] != column[:-1]
    keys = keys[fresh]
    return {"keys": keys, "sample": sampled(keys), **{name: column[fresh] for name, column in payload.items()}}


def number_ranges(samples: Iterable[NDArray[np.uint64]], rows: int, kept_bits: int = 64) -> list[tuple[int, int]]:
    """Half-open ranges of keys, together all of them, with about `rows` rows each.

    Keys that agree in their upper `kept_bits` bits are in one range.
    """
    low = np.uint64(64 - kept_bits)
    keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *samples]) >> low << low)
    step = max(1, rows // SAMPLE)
    borders = [0, *keys[step::step].tolist(), 2**64]
    return list(itertools.pairwise(borders))


def number_range(run: Run, first: int, last: int, part: str = "") -> slice:
    """The rows of `run` whose keys (column `part` + "keys") are in [first, last)."""
    keys = run[part + "keys"]
    begin = int(np.searchsorted(keys, np.uint64(first)))
    end = len(keys) if last >= 2**64 else int(np.searchsorted(keys, np.uint64(last)))
    return slice(begin, end)


# ------------------------------------------------------------------------------------------------ strings as keys


def string_columns(rows: Iterable[tuple[bytes, *tuple[int, ...]]], *names: str) -> dict[str, NDArray[Any]]:
    """Columns of a run of (key, number, ...) rows: sorted, equal rows once; `names` of the number columns (uint32)."""
    ordered = sorted(set(rows))
    keys = [row[0] for row in ordered]
    columns: dict[str, NDArray[Any]] = {}
    columns["bytes"], columns["offsets"] = packed(keys)
    columns["sample_bytes"], columns["sample_offsets"] = packed(sampled(keys))
    for number, name in enumerate(names, 1):
        columns[name] = np.fromiter((row[number] for row in ordered), np.uint32, len(ordered))
    return columns


def packed(strings: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Strings one after the other, and where each begins and ends: uint32[n + 1]."""
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)), out=offsets[1:])
    if offsets[-1] >= 2**32:
        raise UserError(f"{offsets[-1]:,} bytes of names in one unit of work; make units smaller (unit_mb)")
    return np.frombuffer(b"".join(strings), np.uint8), offsets.astype(np.uint32)


def unpacked(data: NDArray[np.uint8], offsets: NDArray[np.uint32], rows: slice | None = None) -> list[bytes]:
    """The strings of `rows` (all) of what `packed` made."""
    first, last = (0, len(offsets) - 1) if rows is None else (rows.start, rows.stop)
    borders = offsets[first : last + 1].astype(np.int64)
    content = data[borders[0] : borders[-1]].tobytes()
    places = (borders - borders[0]).tolist()
    return [content[begin:end] for begin, end in itertools.pairwise(places)]


def string_ranges(samples: Iterable[bytes], rows: int) -> list[tuple[bytes, bytes | None]]:
    """Half-open ranges of strings, together all of them, with about `rows` rows each; None: no end."""
    keys = sorted(set(samples))
    step = max(1, rows // SAMPLE)
    borders = [b"", *keys[step::step]]
    return list(zip(borders, [*borders[1:], None], strict=True))


def string_range(run: Run, first: bytes, last: bytes | None, part: str = "") -> slice:
    """The rows of `run` whose keys (columns `part` + "bytes" and "offsets") are in [first, last)."""
    data, offsets = run[part + "bytes"], run[part + "offsets"]
    keys = _Strings(data, offsets)
    return slice(bisect_left(keys, first), len(keys) if last is None else bisect_left(keys, last))


@dataclass(frozen=True)
class _Strings(Sequence[bytes]):
    """The strings of a run as a sequence, for bisection."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()
