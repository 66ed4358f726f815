"""npy files written piece by piece, and looked up without reading them whole.

The length of an array that comes in pieces is known at its end only; the head of the file is written then.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_HEAD = 128  # bytes of a version 1 head for any length of a one-dimensional array


class ArrayWriter:
    """A one-dimensional .npy file; the same bytes as `np.save` of the pieces together."""

    def __init__(self, path: Path, dtype: Any):
        self.path = path
        self.dtype = np.dtype(dtype)
        self.length = 0

    def __enter__(self) -> ArrayWriter:
        self._file: BinaryIO = self.path.open("wb")
        self._file.write(b"\0" * _HEAD)
        return self

    def write(self, piece: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(piece, self.dtype).tobytes())
        self.length += len(piece)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.seek(0)
            head = {"descr": npy.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)}
            npy.write_array_header_1_0(self._file, head)
            assert self._file.tell() == _HEAD
        self._file.close()


class OffsetsWriter:
    """Where the rows of each of `count` owners begin: uint32[count + 1], from the ascending owners of the rows.

    Raises:
        OverflowError: 2**32 rows or more.
    """

    def __init__(self, writer: ArrayWriter, count: int):
        self._writer = writer
        self._count = count
        self._next = 0  # the first owner whose beginning has not been written
        self._rows = 0

    def write(self, owners: NDArray[np.integer]) -> None:
        """The owners of the next rows."""
        if len(owners):
            last = int(owners[-1])
            # Owners before the last are finished; the last may go on in the next piece.
            self._begin(last + 1, np.searchsorted(owners, np.arange(self._next, last + 1)))
            self._rows += len(owners)

    def close(self) -> None:
        self._begin(self._count + 1, np.zeros(self._count + 1 - self._next, np.int64))

    def _begin(self, stop: int, places: NDArray[np.int64]) -> None:
        if self._rows + (places[-1] if len(places) else 0) >= 2**32:
            raise OverflowError("2**32 rows or more in one table")
        self._writer.write((places + self._rows).astype(np.uint32))
        self._next = stop


def mapped(path: Path) -> NDArray[Any]:
    """The array of an .npy file, memory-mapped; nothing is unpickled."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def numbers_of(sorted_ids: NDArray[np.uint32], ids: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The place of each of `ids` in `sorted_ids`, -1 of those that are not there."""
    if not len(sorted_ids):
        return np.full(len(ids), -1, np.int64)
    places = np.searchsorted(sorted_ids, ids)
    places[places == len(sorted_ids)] = 0
    places[sorted_ids[places] != ids] = -1
    return places
