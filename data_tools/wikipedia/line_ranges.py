"""Lines of a range of a text file: places in the file -> the lines that belong to the range, then those that follow.

A line belongs to the range in whose pieces the line end before it lies; the first line of the file to the first range.
So the ranges of a file share its lines out, each once, wherever they are cut and however the file is packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_tools.wikipedia.pieces import pieces


class PlacedLine(NamedTuple):
    number: int  # of the range's own lines, from 0, blank ones counted
    place: int  # the last place from which a range that starts there has this line
    owned: bool  # false: after the range
    content: bytes  # without its end


def read_lines_of(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[PlacedLine]:
    """The lines of the range [start, stop) (None: to the end), then the lines after it, marked as not `owned`.

    Raises:
        UserError: the file cannot be read.
        DamagedInputError: it is damaged or cut off; the lines before were given.
    """
    number = place = 0
    begun = line_owned = start == 0
    rest: list[bytes] = []
    for piece in pieces(path, start, stop):
        owned = stop is None or piece.position < stop
        data, at = piece.data, 0
        while (end := data.find(b"\n", at)) >= 0:
            if begun:
                rest.append(data[at:end])
                yield PlacedLine(number, place, line_owned, b"".join(rest))
                rest.clear()
                number += 1
            elif not owned:
                return
            begun, line_owned, place, at = True, owned, piece.place(end), end + 1
        if begun:
            rest.append(data[at:])
        elif not owned:
            return
    if last := b"".join(rest):
        yield PlacedLine(number, place, line_owned, last)


def count_line_ends(path: str | Path, start: int, stop: int) -> int:
    """The line ends in the pieces of the range [start, stop)."""
    found = 0
    for piece in pieces(path, start, stop):
        if piece.position >= stop:
            break
        found += piece.data.count(b"\n")
    return found


def line_number(path: str | Path, start: int, number: int) -> int:
    """Which line of the file, from 1, the line `number` of the range from `start` is; reads what lies before."""
    return count_line_ends(path, 0, start) + number + 2 if start else number + 1
