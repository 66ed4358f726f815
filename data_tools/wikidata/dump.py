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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import zstandard

from data_tools import bz2_blocks
from erica_dist.errors import DamagedInputError, UserError
from erica_dist.shards.tarfiles import write_atomically

Packing = Literal["plain", "bz2", "gz", "zst"]
MB = 10**6
# A unit of a packed file is cut by packed bytes. Wikidata packs to about a twentieth, so that its text is unit_mb and
# not much more.
BZ2_RATIO = 20
_MAGIC: dict[bytes, Packing] = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
# what may stand between zst frames, and first: pzstd begins so
_MAGIC |= {bytes([first]) + b"\x2a\x4d\x18": "zst" for first in range(0x50, 0x60)}
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"[\0", b"{\0", b"\0[", b"\0{")
_BLANK = b"\xef\xbb\xbf \t\r\n"  # a byte-order mark may come first
_PADDING = b"\0"  # may follow a gz member
_HEAD = 64  # bytes that show what a file is
_CHUNK = 1 << 20
_PACKED_CHUNK = 1 << 16  # of gz and zst; what lies before a damage in the same chunk is lost
_GIVEN = 1 << 18  # of gz at a time: few enough not to be copied as it grows
_WINDOW = 1 << 31  # the longest that zst knows (--long=31)
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
    is_array: bool = False  # `path` must end with a bracket
    damage: str = ""  # why the source ends with this piece, where it should not

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
            head = file.read(_HEAD)
    except OSError as error:
        raise UserError(f"cannot read the dump {path}: {error.strerror}") from error
    if not head:
        raise UserError(f"the dump {path} is empty; fetch it again")
    packing: Packing = next((packing for magic, packing in _MAGIC.items() if head.startswith(magic)), "plain")
    if packing == "plain":
        _check_text(path, head)
    return packing


def _check_text(path: str | Path, head: bytes) -> None:
    """See that the text of `path` that starts with `head` can be a dump."""
    if head.startswith(_WIDE):
        raise UserError(
            f"{path} is UTF-16 at byte 0; dumps are read as UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`"
        )
    if head.lstrip(_BLANK)[:1] not in (b"[", b"{"):
        raise UserError(
            f"{path} is no Wikidata JSON dump (it starts with {head[:20]!r}); give latest-all.json, plain or as .gz, "
            ".bz2 or .zst, an array or JSON lines"
        )


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
    """The units of a dump that can be read from any place, None for one that is read in order (`feed`).

    Raises:
        UserError: as `packing_of`; or what is packed does not begin like JSON.
    """
    packing = packing_of(path)
    if packing in ("gz", "zst"):
        return None
    size = Path(path).stat().st_size
    step = max(1, unit_mb * MB // (BZ2_RATIO if packing == "bz2" else 1))
    try:
        texts = (data for _, data in _pieces(Unit(str(path), packing, 0, size)))
        head = next((data.lstrip(_BLANK)[:_HEAD] for data in texts if data.strip(_BLANK)), b"")
        _check_text(path, head)
    except DamagedInputError:
        head = b""  # said again by the unit that holds the place
    return [
        Unit(str(path), packing, start, min(start + step, size), is_array=_opens_array(head))
        for start in range(0, size, step)
    ]


def _opens_array(head: bytes) -> bool:
    return head.lstrip(_BLANK).startswith(b"[")


# ------------------------------------------------------------------------------------------------ reading a unit


def lines(unit: Unit) -> Iterator[Line]:
    """The lines of `unit`.

    Raises:
        DamagedInputError: the dump is cut off or damaged; the lines before the place have been given.
    """
    seeking = unit.start > 0  # for the first line end of the unit
    rest, rest_place = b"", ""  # a line whose end has not been read
    end = b""  # of the text that is read, ours or not, white space left out
    for position, data in _pieces(unit):
        inside = position < unit.stop
        here = _place(unit, position)
        if unit.is_array:
            end = data[-_HEAD:].strip() or data.strip()[-_HEAD:] or end
        first, *others = data.split(b"\n")
        if not seeking:
            rest, rest_place = rest + first, rest_place or here
        elif not inside:
            return  # no line ends in this unit
        if not others:
            continue
        if not seeking:
            if _is_line(rest):
                yield _line(rest, rest_place)
            if not inside:
                return  # that was the line after the unit's last line end
        seeking = False
        for content in others[:-1]:
            if _is_line(content):
                yield _line(content, here)
        rest, rest_place = others[-1], here
    if not seeking and _is_line(rest):
        yield _line(rest, rest_place)
    if unit.is_array and not _closes_array(end or _end_of_text(unit)):
        raise DamagedInputError(_no_bracket(unit.path, f"byte {os.path.getsize(unit.path)}"))


def _end_of_text(unit: Unit) -> bytes:
    """The last bytes of the dump that `unit` ends, where all that the unit holds of it is white space."""
    back = _CHUNK
    while True:
        start = max(0, unit.start - back)
        text = b"".join(data for _, data in _pieces(replace(unit, start=start))).strip()
        if text or not start:
            return text[-_HEAD:]
        back *= 4


def _closes_array(end: bytes) -> bool:
    return end.split(b"\n")[-1] == b"]"


def _no_bracket(name: str, place: str) -> str:
    return (
        f"{name}: the dump is cut off at {place}, its closing line `]` is missing; compare its size with the source's "
        "and fetch it again"
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

    A unit's file in `folder` is the caller's to remove. Where the dump is cut off or damaged, the last unit holds the
    whole lines before the place and says so (`Unit.damage`).

    Raises:
        UserError: what is packed does not begin like JSON.
    """
    size = unit_mb * MB
    number, origin, buffer, full = 0, 0, bytearray(), False
    head, end = b"", b""

    def piece(last: bool, damage: str = "") -> tuple[int, Unit | None]:
        nonlocal buffer, number, origin
        length = len(buffer) if last and not damage else buffer.rfind(b"\n") + 1
        unit = None
        if number not in done or damage:
            file = folder / f"piece-{number:06d}.json"
            write_atomically(file, bytes(memoryview(buffer)[:length]))
            unit = Unit(str(file), "plain", 0, max(length, 1), str(path), origin, damage=damage)
        given = number, unit
        buffer, number, origin = buffer[length:], number + 1, origin + length
        return given

    damage = ""
    try:
        for data in _unpack(path):
            if not head and (head := data.lstrip(_BLANK)[:_HEAD]):
                _check_text(path, head)
            if full:  # not the last piece, which must say what is wrong with the end
                yield piece(last=False)
            buffer += data
            full = len(buffer) >= size and b"\n" in data
            end = data[-_HEAD:].strip() or data.strip()[-_HEAD:] or end
    except DamagedInputError as error:
        damage = str(error)
    if not (head or damage):
        _check_text(path, head)
    if _opens_array(head) and not damage and not _closes_array(end):
        damage = _no_bracket(str(path), f"byte {origin + len(buffer)} of the unpacked text")
        buffer += b"\n"  # a last line may be whole
    yield piece(last=True, damage=damage)


def _unpack(path: str | Path) -> Iterator[bytes]:
    """The text of a file of gz members or zst frames."""
    from isal import isal_zlib

    packing = packing_of(path)

    def part() -> Any:
        if packing == "gz":
            return isal_zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()

    done = 0
    with open(path, "rb") as file:
        unpacker, whole = part(), True
        packed, data = file.read(_PACKED_CHUNK), b""
        while packed or (data and not whole):  # what was given last may have been limited
            try:
                data = unpacker.decompress(packed, _GIVEN) if packing == "gz" else unpacker.decompress(packed)
            except (zstandard.ZstdError, isal_zlib.IsalError) as error:  # type: ignore[misc]
                raise _damaged(path, file.tell(), done, error) from error
            done += len(data)
            if data:
                yield data
            whole = unpacker.eof
            packed = unpacker.unused_data.lstrip(_PADDING) if whole else unpacker.unconsumed_tail
            packed = packed or file.read(_PACKED_CHUNK)
            if whole:
                unpacker = part()
        if not whole:
            raise _damaged(path, os.path.getsize(path), done, EOFError("it ends within a compressed stream"))


def _damaged(path: str | Path, packed: int, unpacked: int, error: Exception) -> DamagedInputError:
    return DamagedInputError(
        f"{path}: cut off or damaged at about byte {packed} (byte {unpacked} of the unpacked text): {error}; compare "
        "its size with the source and fetch it again"
    )
