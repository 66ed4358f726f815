"""The index of a multistream dump: `offset:page id:title` a line -> the streams of the dump and their pages.

The index is looked for beside the dump, packed or plain: `X-multistream-index.txt(.bz2)` for `X-multistream.xml.bz2`,
and `X-multistream-index3.txt-p1p2(.bz2)` for the part `X-multistream3.xml-p1p2.bz2`. It is read on one core; 16 bytes
a stream are held, not the titles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.bz2_blocks import MAGIC
from data_tools.wikipedia.line_ranges import read_lines_of
from erica_dist.errors import DamagedInputError, UserError

_NAME = re.compile(r"multistream(\d*)\.xml((?:-p\d+p\d+)?)\.bz2$")


def index_of(dump: str | Path) -> Path | None:
    """The index file that stands beside the dump, if one does."""
    name, replaced = _NAME.subn(r"multistream-index\1.txt\2", Path(dump).name)
    beside = [Path(dump).with_name(name + suffix) for suffix in (".bz2", "")] if replaced else []
    return next((path for path in beside if path.is_file()), None)


def read_index(index: Path, dump: str | Path, allow_incomplete: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets int64[n] of the streams that hold pages, ascending, and the number of pages int64[n] of each.

    allow_incomplete: leave out the streams that lie beyond the end of the dump.

    Raises:
        UserError: the index is none, or not of this dump.
        DamagedInputError: the index is damaged, or the dump ends before its last stream.
    """
    offsets, counts = _streams(index)
    size = Path(dump).stat().st_size
    if not len(offsets):
        raise UserError(f"the index {index} is empty; {_REMEDY}")
    if offsets[-1] >= size:
        first = int(offsets[np.searchsorted(offsets, size)])
        if not allow_incomplete:
            raise DamagedInputError(
                f"{dump}: the file ends at byte {size}, but its index {index} names a stream at byte {first}: the dump "
                f"is cut off, or the index is another dump's. Fetch the dump again or remove the index"
            )
        kept = offsets < size
        offsets, counts = offsets[kept], counts[kept]
    return offsets, counts


def check_stream(index: Path, dump: str | Path, offset: int) -> None:
    """See that a bz2 stream starts at `offset`."""
    with open(dump, "rb") as file:
        file.seek(offset)
        if file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{index} names a stream at byte {offset} of {dump}, but none starts there; {_REMEDY}")


_REMEDY = "it is not of this dump: fetch the index again, or remove it (the dump is read without it, too)"


def _streams(index: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    runs = list(_runs(index))
    return np.array([offset for offset, _ in runs], np.int64), np.array([count for _, count in runs], np.int64)


def _runs(index: Path) -> Iterator[tuple[int, int]]:
    current, count, text = -1, 0, b""
    for number, _, _, line in read_lines_of(index):
        if not line.strip():
            continue
        head, _, rest = line.partition(b":")
        if head != text:
            if not head.isdigit() or b":" not in rest or int(head) <= current:
                raise UserError(
                    f"{index}:{number + 1}: expected `offset:page id:title` with offsets ascending, found "
                    f"{line[:60].decode(errors='replace')!r}; fetch the index again or remove it"
                )
            if count:
                yield current, count
            current, count, text = int(head), 0, head
        count += 1
    if count:
        yield current, count
