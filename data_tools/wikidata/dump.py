"""A Wikidata JSON dump, plain or packed -> units of work -> lines of JSON with their places.

    plain          byte ranges
    bz2            ranges of packed bytes, read block by block (`data_tools.bz2_blocks`), of one stream or many
    gz, zst        one reader unpacks in order and hands pieces of `unit_mb` to the parsers through small files

A dump is an array with one entity a line (`[`, lines ending in `,`, `]`) or plain JSON lines. A line belongs to the
unit that holds the line end before it; the first line of the file to the first unit. So units need no look at each
other, and together give each line once.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from data_tools import bz2_blocks
from erica_dist.errors import DamagedInputError, UserError
from erica_dist.shards.tarfiles import write_atomically

Packing = Literal["plain", "bz2", "gz", "zst"]
MB = 10**6
# A unit of a packed file is cut by packed bytes. Wikidata packs to about a twentieth, so that its text is unit_mb and
# not much more.
BZ2_RATIO = 20
_MAGIC: dict[bytes, Packing] = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"[\0", b"{\0", b"\0[", b"\0{")
_BLANK = b"\xef\xbb\xbf \t\r\n"  # a byte-order mark may come first
_CHUNK = 1 << 20
_PROBES, _PROBE = 64, 1 << 16


@dataclass(frozen=True)
class Unit:
    """The lines of `path` after the line ends in its bytes [start, stop); of packed bytes if `packing` is bz2."""

    path: str
    packing: Packing
    start: int
    stop: int
    source: str = ""  # what messages name, where `path` is a piece of it
    origin: int = 0  # place of the piece in the unpacked source
    last: bool = True  # the source ends where `path` does
    is_array: bool = False  # and must end with a bracket

    @property
    def name(self) -> str:
        return self.source or self.path


class Line(NamedTuple):
    place: str
    content: bytes  # without the comma after it; never blank, `[` or `]`


def packing_of(path: str | Path) -> Packing:
    """Told by the first bytes.

    Raises:
        UserError: no such file, an empty one, or one that is neither packed nor begins like JSON.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise UserError(f"cannot read the dump {path}: {error.strerror}") from error
    if not head:
        raise UserError(f"the dump {path} is empty; fetch it again")
    if head.startswith(_WIDE):
        raise UserError(
            f"{path} is UTF-16 at byte 0; dumps are read as UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`"
        )
    packing: Packing = next((packing for magic, packing in _MAGIC.items() if head.startswith(magic)), "plain")
    if packing == "plain" and head.lstrip(_BLANK)[:1] not in (b"[", b"{"):
        raise UserError(
            f"{path} is no Wikidata JSON dump (it starts with {head[:20]!r}); give latest-all.json, plain or as .gz, "
            ".bz2 or .zst, an array or JSON lines"
        )
    return packing


def identity(path: str | Path) -> dict[str, str | int]:
    """Name, size and a hash of 64 pieces spread over the file (of all of it where it is small)."""
    size = Path(path).stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        if size <= _PROBES * _PROBE:
            digest.update(file.read())
        else:
            for probe in range(_PROBES):
                file.seek((size - _PROBE) * probe // (_PROBES - 1))
                digest.update(file.read(_PROBE))
    return {"path": Path(path).name, "bytes": size, "sha256 of probes": digest.hexdigest()}


def plan(path: str | Path, unit_mb: int) -> list[Unit] | None:
    """The units of a dump that can be read from any place, None for one that is read in order (`feed`)."""
    packing = packing_of(path)
    if packing in ("gz", "zst"):
        return None
    size = Path(path).stat().st_size
    step = max(1, unit_mb * MB // (BZ2_RATIO if packing == "bz2" else 1))
    _, head = next(_pieces(Unit(str(path), packing, 0, 64)), (0, b""))
    return [
        Unit(str(path), packing, start, min(start + step, size), is_array=_opens_array(head))
        for start in range(0, size, step)
    ]


def _opens_array(head: bytes) -> bool:
    return head[:64].lstrip(_BLANK).startswith(b"[")


# ------------------------------------------------------------------------------------------------ reading a unit


def lines(unit: Unit) -> Iterator[Line]:
    """The lines of `unit`.

    Raises:
        DamagedInputError: the dump is cut off or damaged; the lines before the place have been given.
    """
    seeking = unit.start > 0  # for the first line end of the unit
    rest, rest_place = b"", ""  # a line whose end has not been read
    last_line: bytes | None = None  # of the text that is read, ours or not
    for position, data in _pieces(unit):
        inside = position < unit.stop
        here = _place(unit, position)
        first, *others = data.split(b"\n")
        if not seeking:
            rest, rest_place = rest + first, rest_place or here
        elif not inside:
            return  # no line ends in this unit
        if not others:
            last_line = last_line or data  # a closing bracket may stand alone in the last unit
            continue
        if seeking:
            last_line = first
        else:
            last_line = rest
            if _is_line(rest):
                yield _line(rest, rest_place)
            if not inside:
                return  # that was the line after the unit's last line end
        seeking = False
        for content in others[:-1]:
            last_line = content if content.strip() else last_line
            if _is_line(content):
                yield _line(content, here)
        rest, rest_place = others[-1], here
    if not seeking and rest.strip():
        last_line = rest
        if _is_line(rest):
            yield _line(rest, rest_place)
    if last_line is None or not unit.last or last_line.strip() == b"]":
        return
    if unit.is_array or last_line.rstrip().endswith(b","):
        end = unit.origin + os.path.getsize(unit.path)
        where = f"byte {end}" + (" of the unpacked text" if unit.source else "")
        raise DamagedInputError(
            f"{unit.name}: the dump is cut off at {where}, its closing `]` is missing; compare its size with the "
            "source and fetch it again"
        )


def _line(content: bytes, place: str) -> Line:
    return Line(place, content.strip(_BLANK).removesuffix(b","))


def _is_line(content: bytes) -> bool:
    return content.strip(_BLANK) not in (b"", b"[", b"]", b",")


def _place(unit: Unit, position: int) -> str:
    if unit.packing == "bz2":
        return f"in the block at byte {position}"
    return f"after byte {position + unit.origin}" + (" of the unpacked text" if unit.source else "")


def _pieces(unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Text and its place: the byte of the plain file, or that at which the bz2 block starts."""
    if unit.packing == "bz2":
        yield from bz2_blocks.blocks(unit.path, unit.start)
        return
    with open(unit.path, "rb") as file:
        position = unit.start
        file.seek(position)
        while data := file.read(min(_CHUNK, unit.stop - position) if position < unit.stop else _CHUNK):
            yield position, data
            position += len(data)


# ------------------------------------------------------------------------------------------------ reading in order


def feed(path: str | Path, unit_mb: int, folder: Path, done: set[int]) -> Iterator[tuple[int, Unit | None]]:
    """Unpack a gz or zst dump in order into pieces that end with lines: number and unit of each, None if in `done`.

    A unit's file in `folder` is the caller's to remove.

    Raises:
        DamagedInputError: the file is cut off or damaged; the pieces before have been given.
    """
    size = unit_mb * MB
    number, origin, buffer = 0, 0, bytearray()
    is_array = False

    def piece(last: bool) -> tuple[int, Unit | None]:
        nonlocal buffer, number, origin, is_array
        is_array = is_array if number else _opens_array(bytes(buffer[:64]))
        end = len(buffer) if last else buffer.rindex(b"\n") + 1
        unit = None
        if number not in done:
            file = folder / f"piece-{number:06d}.json"
            write_atomically(file, bytes(memoryview(buffer)[:end]))
            unit = Unit(str(file), "plain", 0, max(end, 1), str(path), origin, last, is_array)
        given = number, unit
        buffer, number, origin = buffer[end:], number + 1, origin + end
        return given

    damage: DamagedInputError | None = None
    stream = _unpack_gz(path) if packing_of(path) == "gz" else _unpack_zst(path)
    try:
        for data in stream:
            buffer += data
            if len(buffer) >= size and b"\n" in data:
                yield piece(last=False)
    except DamagedInputError as error:
        damage = error
        buffer = buffer[: buffer.rfind(b"\n") + 1]
    if buffer or not (number or damage):
        yield piece(last=damage is None)
    if damage:
        raise damage


def _unpack_gz(path: str | Path) -> Iterator[bytes]:
    from isal import igzip, isal_zlib

    done = 0
    with open(path, "rb") as packed:
        try:
            with igzip.IGzipFile(fileobj=packed) as file:
                while data := file.read(_CHUNK):
                    done += len(data)
                    yield data
        except (EOFError, OSError, zlib.error, isal_zlib.IsalError) as error:  # type: ignore[misc]
            raise _damaged(path, packed.tell(), done, error) from error


def _unpack_zst(path: str | Path) -> Iterator[bytes]:
    import zstandard

    done = 0
    with open(path, "rb") as file:
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        whole = True
        packed = file.read(_CHUNK)
        while packed:
            try:
                data = unpacker.decompress(packed)
            except zstandard.ZstdError as error:
                raise _damaged(path, file.tell(), done, error) from error
            done += len(data)
            if data:
                yield data
            whole = unpacker.eof
            packed = (unpacker.unused_data if whole else b"") or file.read(_CHUNK)
            if whole:
                unpacker = zstandard.ZstdDecompressor().decompressobj()
        if not whole:
            raise _damaged(path, os.path.getsize(path), done, EOFError("it ends within a frame"))


def _damaged(path: str | Path, packed: int, unpacked: int, error: Exception) -> DamagedInputError:
    return DamagedInputError(
        f"{path}: cut off or damaged at about byte {packed} (byte {unpacked} of the unpacked text): {error}; compare "
        "its size with the source and fetch it again"
    )
