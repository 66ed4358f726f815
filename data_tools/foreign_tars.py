"""A tar of another tool, plain or packed -> the document of each sample, in one run, whatever else the tar holds.

A sample's document is its member `<key>.json`. Keys may hold dots: `a.b.json` is the document of `a.b`, unless the
same sample has a member `a.json`, beside which it is one more member of `a`, as WebDataset groups them. All other
members are left out and counted, unread. Nothing is unpickled or extracted; one member is held at a time, and of a
sample whose own document comes late the JSON members before it.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

from data_tools.wikipedia.pieces import pieces
from erica_dist.errors import DamagedInputError

_HELD = 64  # members of a sample before its own document; more are documents whose keys begin alike
_CHUNK = 1 << 20  # bytes


def documents_of_tar(path: str, member: str, left_out: Counter[str]) -> Iterator[tuple[str, bytes]]:
    """(key, bytes) of each sample's document. member: its ending; left_out: gets the other members, by their endings.

    Raises:
        UserError: the file cannot be read.
        DamagedInputError: it is cut off or damaged; the documents before were given.
    """
    suffix = f".{member}"
    sample: str | None = None
    held: list[tuple[str, bytes]] = []  # would be documents, were there no `<sample>.json`
    plain = loose = False  # the sample has that one; or none after many members
    with _opened(path) as (stream, tar):
        for info in _members(path, stream, tar):
            name = info.name.removeprefix("./")
            base = name.rpartition("/")[2]
            of = name[: len(name) - len(base)] + base.partition(".")[0]
            if of != sample:
                yield from held
                sample, held, plain, loose = of, [], False, False
            key = name.removesuffix(suffix)
            if not info.isreg() or base.startswith(".") or key == name or (plain and key != sample):
                ending = f"*.{base.rpartition('.')[2]}" if "." in base else "without an ending"
                left_out[f"left out: {ending}" if info.isreg() else "left out: no plain files"] += 1
                continue
            content = tar.extractfile(info)
            data = content.read() if content else b""
            if key == sample:
                if held:
                    left_out[f"left out: *.*{suffix} beside the sample's own"] += len(held)
                held, plain = [], True
                yield key, data
            elif loose:
                yield key, data
            else:
                held.append((key, data))
                if len(held) > _HELD:
                    yield from held
                    held, loose = [], True
        yield from held


class _Unpacked:
    """What a tar reader reads from. seen: bytes given; filled: the place behind the last of them that is not zero."""

    def __init__(self, path: str):
        self._pieces = pieces(path)
        self._rest = memoryview(b"")
        self.seen = self.filled = 0

    def read(self, size: int) -> bytes:
        parts: list[memoryview] = []
        while size:
            if not self._rest:
                data = next((piece.data for piece in self._pieces if piece.data), b"")
                if not data:
                    break
                if nonzero := len(data.rstrip(b"\0")):
                    self.filled = self.seen + nonzero
                self.seen += len(data)
                self._rest = memoryview(data)
            parts.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(parts[-1])
        return b"".join(parts)


class _opened:
    """A tar open for reading in one run; its errors become errors of the input."""

    def __init__(self, path: str):
        self.path = path

    def __enter__(self) -> tuple[_Unpacked, tarfile.TarFile]:
        stream = _Unpacked(self.path)
        try:
            return stream, tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20)  # type: ignore[call-overload]
        except tarfile.TarError as error:
            raise DamagedInputError(f"{self.path} is no tar, or damaged at its start ({error})") from error

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, tarfile.TarError):
            raise DamagedInputError(f"{self.path} is damaged or cut off ({error}); fetch or build it again") from error


def _members(path: str, stream: _Unpacked, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (info := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every header it has seen
        yield info
    # a damaged header, and an end at the border of two members, end tarfile's loop as the end mark does
    end = tar.offset
    while stream.read(_CHUNK):
        pass
    if stream.filled > end:
        raise DamagedInputError(f"{path} is damaged at byte {end} of the unpacked tar; fetch or build it again")
    if stream.seen < end + tarfile.BLOCKSIZE:
        raise DamagedInputError(f"{path} is cut off at byte {stream.seen}: the end mark is missing; fetch it again")
