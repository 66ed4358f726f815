"""Deterministic tar files: the same members give the same bytes, and a file under its final name is always whole.

In: (name, bytes) pairs, in order. Out: a USTAR file that every tar and WebDataset reader opens. Owner, time and mode
are fixed. The writer works under a temporary name in the same folder and renames after fsync, so a killed or failing
writer leaves either the former file or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from erica_dist.errors import UserError

BLOCK = tarfile.BLOCKSIZE
_END = b"\0" * (2 * BLOCK)
_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")


class TarShardWriter:
    """Writes one tar shard; the file appears under `path` only when the `with` block ends without an exception."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._temporary = temporary_name(self.path)
        self._sha256 = hashlib.sha256()
        self._offset = 0
        try:
            self._file = self._temporary.open("wb")
        except OSError as error:
            raise UserError(f"cannot write {self._temporary}: {error.strerror}") from error

    def __enter__(self) -> TarShardWriter:
        return self

    def write(self, name: str, data: bytes) -> int:
        """Append one member; gives the byte offset of its data within the tar."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"{self.path}: {name!r} is no plain member name")
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.mode = 0o644
        self._put(info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
        start = self._offset
        self._put(data)
        self._put(b"\0" * (-len(data) % BLOCK))
        return start

    @property
    def bytes_written(self) -> int:
        """Bytes so far; the size of the file once closed."""
        return self._offset

    @property
    def sha256(self) -> str:
        """Hex digest of the bytes so far; of the file once closed."""
        return self._sha256.hexdigest()

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; is the disk full?") from error
        self._sha256.update(data)
        self._offset += len(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self._put(_END)
            commit(self._file, self._temporary, self.path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Drop the unfinished file."""
        self._temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # on a full disk, closing fails to write what is left
            self._file.close()


def temporary_name(path: Path) -> Path:
    """The name, in the same folder, under which this process writes `path` until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def commit(file: BinaryIO, temporary: Path, path: Path) -> None:
    """Flush `file` to the disk, close it and give it its final name, durably."""
    try:
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; is the disk full?") from error


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a small file under a temporary name, then rename it to `path`."""
    path = Path(path)
    temporary = temporary_name(path)
    try:
        try:
            with temporary.open("wb") as file:
                file.write(data)
                commit(file, temporary, path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_members(path: str | Path) -> Iterator[tuple[str, bytes]]:
    """The members of a tar, in order, as (name, bytes); nothing is extracted to the disk.

    Raises:
        UserError: no such file, no tar, cut off, or a member that is no plain file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - len(_END)))
            if size % BLOCK or file.read() != _END:
                raise UserError(f"{path} is cut off or no tar: the end mark is missing at byte {size}; build it again")
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (info := tar.next()) is not None:
                    # tarfile would keep every header it has seen
                    tar.members = []  # type: ignore[attr-defined]  # not in the stubs
                    content = tar.extractfile(info) if info.isfile() else None
                    if content is None:
                        raise UserError(f"{path}: member {info.name!r} is no plain file; build the shard again")
                    data = content.read()
                    yield info.name, data
                # a damaged header in the middle ends tarfile's loop as if it were the end of the archive
                file.seek(tar.offset)
                if file.read().strip(b"\0"):
                    raise UserError(f"{path} is damaged at byte {tar.offset}; build it again")
    except tarfile.TarError as error:
        raise UserError(f"{path} is damaged: {error}; build it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def sha256_file(path: str | Path) -> str:
    """Hex sha256 of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
