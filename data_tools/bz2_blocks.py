"""A bz2 file, of one stream or many, read from any byte on: compressed bytes -> unpacked blocks with their places.

    file --> marks (bits at which blocks and stream ends begin) --> each block's bits as a stream of its own --> bz2

bzip2 packs up to 900 kB of text into a block that needs nothing from its neighbours and begins with a 48-bit mark, at
any bit. So a reader of a byte range finds the marks in it and unpacks those blocks only, whoever wrote the file: this
is how a dump of a single stream is split between workers. A block carries a checksum of its text, which is verified.
The mark may occur by chance within a block (once in 2**48 bits); a block that cannot be unpacked is therefore tried
again up to the mark after the next.
"""

from __future__ import annotations

import bz2
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from erica_dist.errors import DamagedInputError, UserError

MAGIC = b"BZh"
_BLOCK = 0x314159265359
_END = 0x177245385090
_STREAM_HEAD = 4  # bytes: BZh and the size of blocks
_MARK_BITS = 48
_CRC_BITS = 32
_WINDOW = 1 << 20  # bytes searched for marks at a time
_CHANCE_MARKS = 2  # marks within one block that are taken for chance


class Block(NamedTuple):
    """`position`: file byte that holds the block's first bit."""

    position: int
    data: bytes


class _Mark(NamedTuple):
    bit: int  # place in the file
    is_block: bool  # else the end of a stream


def blocks(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[Block]:
    """The blocks with start <= position < stop, unpacked, in order; None: to the end of the file.

    Raises:
        UserError: the file cannot be read or is no bz2 file.
        DamagedInputError: a block that does not unpack to its checksum, or a file that ends within a stream.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(f"{path} is no bz2 file; give it its right suffix or fetch it again")
            yield from _blocks(path, file, start, stop)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _blocks(path: str | Path, file: BinaryIO, start: int, stop: int | None) -> Iterator[Block]:
    size = os.fstat(file.fileno()).st_size
    marks = _marks(file, start)
    pending: list[_Mark] = list(islice(marks, 1))
    if not start:
        _check_beginning(path, file, size, 0, pending)
    while pending:
        mark = pending[0]
        position = mark.bit // 8
        if stop is not None and position >= stop:
            return
        if not mark.is_block:
            end = (mark.bit + _MARK_BITS + _CRC_BITS + 7) // 8
            if end > size:
                raise _cut_off(path, size, position)
            pending = pending[1:] or list(islice(marks, 1))
            _check_beginning(path, file, size, end, pending)
            continue
        data, used = None, 1
        while data is None and used <= 1 + _CHANCE_MARKS:
            if len(pending) == used:
                pending.extend(islice(marks, 1))
            if len(pending) == used:
                break
            data = _unpack(file, mark.bit, pending[used].bit)
            used += 1
        if data is None:
            if len(pending) == 1:
                raise _cut_off(path, size, position)
            raise _damaged(path, position)
        pending = pending[used - 1 :]
        yield Block(position, data)


def _check_beginning(path: str | Path, file: BinaryIO, size: int, place: int, following: Sequence[_Mark]) -> None:
    """See that the next mark follows the head of a stream at byte `place`: else a block has lost its mark."""
    head = os.pread(file.fileno(), _STREAM_HEAD, place)
    if following and following[0].bit != 8 * (place + _STREAM_HEAD):
        raise _damaged(path, place)
    # Other bytes after the last stream are ignored, as bzip2 does.
    if not following and head and (head.startswith(MAGIC) or MAGIC.startswith(head)):
        raise _cut_off(path, size, place)


def _damaged(path: str | Path, position: int) -> DamagedInputError:
    return DamagedInputError(
        f"{path}: damaged bz2 data in the block at byte {position}; compare its checksum with the source's and fetch "
        "the file again"
    )


def _cut_off(path: str | Path, size: int, position: int) -> DamagedInputError:
    return DamagedInputError(
        f"{path}: the bz2 file is cut off at byte {size} (its last block starts at byte {position}); compare its size "
        "with the source and fetch it again"
    )


def _unpack(file: BinaryIO, first: int, last: int) -> bytes | None:
    """The text of the block in the bits [first, last) of the file, None where they are none."""
    packed = os.pread(file.fileno(), (last + 7) // 8 - first // 8, first // 8)
    whole, rest = divmod(last - first, 8)
    aligned = _shifted(packed, first % 8)
    crc = int.from_bytes(aligned[_MARK_BITS // 8 : (_MARK_BITS + _CRC_BITS) // 8], "big")
    # The few bits that fill no byte, then what ends a stream of one block, whose checksum is the block's
    tail = (aligned[whole] >> (8 - rest)) if rest else 0
    tail = ((tail << _MARK_BITS | _END) << _CRC_BITS | crc) << (-rest % 8)
    ending = tail.to_bytes((rest + _MARK_BITS + _CRC_BITS + 7) // 8, "big")
    try:
        return bz2.decompress(b"BZh9" + aligned[:whole] + ending)
    except (OSError, ValueError):
        return None


def _shifted(packed: bytes, bits: int) -> bytes:
    """`packed` moved left by less than 8 bits; the last byte is filled with zeros."""
    if not bits:
        return packed
    array = np.frombuffer(packed + b"\0", np.uint8)
    return ((array[:-1] << bits) | (array[1:] >> (8 - bits))).tobytes()


def _marks(file: BinaryIO, start: int) -> Iterator[_Mark]:
    """All marks whose first bit lies in byte `start` or later, ascending."""
    place = start
    while window := os.pread(file.fileno(), _WINDOW + 6, place):
        found = [
            _Mark(8 * (place + byte) + shift, mark == _BLOCK)
            for mark in (_BLOCK, _END)
            for shift in range(8)
            for byte in _places(window, mark, shift)
            if byte < _WINDOW
        ]
        yield from sorted(found)
        place += _WINDOW


def _places(window: bytes, mark: int, shift: int) -> Iterator[int]:
    """The bytes of `window` in which `mark` begins at bit `shift`."""
    # The five bytes in the middle are whole ones; the bits before and after are compared where these are found.
    middle = ((mark >> shift) & (2**40 - 1)).to_bytes(5, "big")
    byte = window.find(middle, 1) - 1
    while byte >= 0:
        around = int.from_bytes(window[byte : byte + 7].ljust(7, b"\0"), "big")
        if (around >> (8 - shift)) & (2**48 - 1) == mark and len(window) - byte >= 6 + bool(shift):
            yield byte
        byte = window.find(middle, byte + 2) - 1
