"""The text of an input file from any place on, whatever it is packed with: file -> pieces of unpacked bytes, in order.

    plain    pieces end anywhere; a place is a byte of the file
    bz2      a piece is a block (of one stream or many); a place is the byte of the file in which the block starts
    gz, xz   one run from the start; a place is a byte of the unpacked text

A plain or bz2 file is entered at any place at no cost, so ranges of it are read by different workers; a gz or xz file
is unpacked from its start. How a file is packed is told by its first bytes.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from data_tools.bz2_blocks import blocks
from erica_dist.errors import DamagedInputError, UserError

CHUNK = 1 << 20
_PACKED_CHUNK = 1 << 13  # small, as what a damaged chunk held is lost
_BZ2, _GZIP, _XZ = b"BZh", b"\x1f\x8b", b"\xfd7zXZ\x00"


class Piece(NamedTuple):
    """`data` starts at the place `position`; `whole`: only its start is a place to enter the file at. Without data it
    marks a border, before what lies beyond is unpacked."""

    position: int
    data: bytes
    whole: bool

    def place(self, index: int) -> int:
        """The last place from which the byte `index` of this piece can be reached."""
        return self.position if self.whole else self.position + index


def packing(path: str | Path) -> str:
    """ "bz2", "gz", "xz" or "" for a plain file.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(_XZ))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return next((name for name, magic in (("bz2", _BZ2), ("gz", _GZIP), ("xz", _XZ)) if head.startswith(magic)), "")


def is_splittable(path: str | Path) -> bool:
    """Whether ranges of the file can be read on their own."""
    return packing(path) in ("", "bz2")


def pieces(path: str | Path, start: int = 0, border: int | None = None) -> Iterator[Piece]:
    """The text from the place `start` to the end of the file; in a plain or bz2 file an empty piece stands at `border`.

    In a bz2 file the first piece is the first block that starts in byte `start` or later.

    Raises:
        UserError: the file cannot be read.
        DamagedInputError: it is damaged or cut off (the text names file and byte); what came before was given.
    """
    kind = packing(path)
    if kind == "bz2":
        for block in blocks(path, start, border):
            if block.data:
                yield Piece(block.position, block.data, True)
        if border is not None:
            yield Piece(border, b"", True)
            yield from pieces(path, border)
        return
    try:
        with open(path, "rb") as file:
            if not kind:
                yield from _plain(file, start, border)
            elif kind == "gz":
                yield from _run(path, file, lambda: zlib.decompressobj(31), start)
            else:
                yield from _run(path, file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), start)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _plain(file: BinaryIO, start: int, border: int | None) -> Iterator[Piece]:
    file.seek(start)
    position = start
    while True:
        if position == border:
            yield Piece(position, b"", False)
        wanted = border - position if border is not None and border > position else CHUNK
        data = file.read(min(wanted, CHUNK))
        if not data:
            return
        yield Piece(position, data, False)
        position += len(data)


def _run(path: str | Path, file: BinaryIO, make: Callable[[], Any], start: int) -> Iterator[Piece]:
    position = read = 0
    unpacker, whole = make(), False
    while packed := file.read(_PACKED_CHUNK):
        read += len(packed)
        while packed:
            try:
                data = unpacker.decompress(packed)
            except (zlib.error, lzma.LZMAError) as error:
                raise DamagedInputError(
                    f"{path}: damaged data before byte {read} ({error}); compare its checksum with the source's and "
                    "fetch the file again"
                ) from error
            first, position = position, position + len(data)
            if position > start and data:
                cut = max(0, start - first)
                yield Piece(first + cut, data[cut:], False)
            whole = unpacker.eof
            packed = unpacker.unused_data.lstrip(b"\0") if whole else b""
            if whole:
                unpacker = make()
    if not whole:
        raise DamagedInputError(
            f"{path}: the file is cut off at byte {read}; compare its size with the source and fetch it again"
        )
