"""Shards behind URLs, copied once a node to a bounded folder on its disk.

In: a shard's URL, sha256 and size, from a manifest. Out: the path of a complete copy whose hash was right when it was
written. The ranks, loader workers and jobs of a node share one folder, and so do corpora that hold equal shards:

    <sha256>.shard   complete; its mtime says when it was last asked for, to the minute
    <sha256>.part    on its way; who holds the kernel's lock on it (flock) writes it

Nothing else is stored, and a cache object holds settings only, so it may be made before a fork and used after it.
Locks end with the process that holds them, however it ends; the next one goes on behind the bytes that are there.
Deleting a file that others have mapped is safe on Linux: their mappings stay whole, and the space comes back with the
last of them. The folder belongs on a disk of the node: a network disk would send the bytes over the network again, and
flock works over NFS only from Linux 2.6.12 on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from erica_dist.errors import DamagedFile, UserError
from erica_dist.shards.remote import RETRIES, shown, stream

Wanted = tuple[str, str, int]  # URL, hex sha256, bytes

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOUCH_S = 60.0  # a hit renews the time of use at most this often
_ORPHAN_S = 24 * 3600.0  # a partial file that nobody went on with for so long is removed

# Descriptors of partial files, held through locks. A forked child closes its copies, or it would hold the locks of a
# parent that was killed.
_descriptors: set[int] = set()


def _close_in_child() -> None:
    while _descriptors:
        os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_close_in_child)


def default_folder() -> Path:
    """$ERICA_DIST_CACHE, or erica-dist/shards in $XDG_CACHE_HOME, or in ~/.cache."""
    if own := os.environ.get("ERICA_DIST_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "erica-dist" / "shards"


class ShardCache:
    """Copies of shards in `folder`, at most `limit_bytes` beside what is on its way. For threads and processes."""

    def __init__(self, folder: Path, limit_bytes: int, retries: int = RETRIES):
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self.retries = retries

    def fetch(self, url: str, sha256: str, size: int) -> Path:
        """Path of a complete copy of the shard at `url`; downloads it, or waits for who does, if there is none.

        Where the cache is smaller than what all processes use at a time, another one can delete the file before this
        one has opened it; not so with `open`.

        Raises:
            UserError: the shard cannot be read (see `remote.stream`), is not what the manifest says, is larger than the
                limit, or the folder cannot be written or is full.
        """
        if not _SHA256.fullmatch(sha256):
            raise UserError(f"the manifest gives {shown(url)} the sha256 {sha256!r}, which is none; upload it again")
        path = self.folder / f"{sha256}.shard"
        if self._holds(path, size):
            return path
        if size > self.limit_bytes:
            raise UserError(
                f"{shown(url)} has {size:,} bytes, the shard cache {self.folder} may hold {self.limit_bytes:,}; raise "
                "data.cache_gb, to room for several shards"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.folder / f"{sha256}.part") as part:
                if not self._holds(path, size):  # else another one has finished it while this one waited
                    self._make_room(size, path)
                    self._download(part, path, url, sha256, size)
            self._make_room(0, path)
        except OSError as error:
            raise UserError(
                f"cannot write the shard cache {self.folder}: {error.strerror or error}; give it a folder on a disk of "
                "this node that you may write (data.cache, or ERICA_DIST_CACHE)"
            ) from error
        return path

    def open(self, url: str, sha256: str, size: int) -> BinaryIO:
        """The copy, open for reading: what `fetch` gives, and nobody can delete it in between."""
        while True:
            path = self.fetch(url, sha256, size)
            with contextlib.suppress(FileNotFoundError):
                return path.open("rb")

    def drop_if_damaged(self, sha256: str) -> bool:
        """Delete the copy where its bytes are no longer those of its hash; whether that was so.

        For who has found it senseless: a disk fault, or somebody's hand. `fetch` then brings it anew.
        """
        path = self.folder / f"{sha256}.shard"
        try:
            with path.open("rb") as file:
                damaged = hashlib.file_digest(file, "sha256").hexdigest() != sha256
            if damaged:
                path.unlink()
        except OSError:
            return False
        return damaged

    def _holds(self, path: Path, size: int) -> bool:
        """Whether a complete copy is there; notes its use.

        The size is compared, the hash is not: it was right before the file got its name, and the bytes were on the disk
        by then, so that a power cut cannot leave the name with other bytes.
        """
        try:
            found = path.stat()
        except OSError:
            return False
        if found.st_size == size and time.time() - found.st_mtime > _TOUCH_S:
            with contextlib.suppress(OSError):  # deleted just now, or a cache that may only be read
                os.utime(path)
        return found.st_size == size

    def _download(self, part: int, path: Path, url: str, sha256: str, size: int) -> None:
        """Fill the partial file, from where it ends, check it, and give it its name."""
        for _ in range(2):  # what an earlier process left, or one bad transfer, must not end a run
            digest, done = _hash_existing(part, size)
            for data in stream(url, done, size, self.retries):
                self._write(part, data, path, size - done)
                digest.update(data)
                done += len(data)
            if (found := digest.hexdigest()) == sha256:
                break
            os.ftruncate(part, 0)
        else:
            raise DamagedFile(
                f"{shown(url)} is damaged or another file: its sha256 is {found}, the manifest says {sha256}; they do "
                "not belong together: upload the folder again"
            )
        os.fsync(part)  # small beside the download, and what the trust in complete files rests on
        os.utime(part)
        os.replace(path.with_suffix(".part"), path)

    def _write(self, part: int, data: bytes, path: Path, wanted: int) -> None:
        """Append to the partial file; on a full disk, at the cost of copies used less lately."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(part, left) :]
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not _delete(self._complete(but=path), wanted):
                    os.ftruncate(part, 0)  # give the space back
                    raise UserError(
                        f"the disk of the shard cache {self.folder} is full ({error.strerror}), and the cache holds "
                        "nothing else to delete; make room, or give it a folder on another disk (data.cache, or "
                        "ERICA_DIST_CACHE)"
                    ) from error

    def _make_room(self, room: int, keep: Path) -> None:
        """Delete what was used least lately until `room` bytes more are within the limit, never `keep`; and orphans."""
        files = self._complete()
        excess = sum(size for _, size, _ in files) + room - self.limit_bytes
        _delete([file for file in files if file[2] != keep], excess)
        for path in self._named(".part"):
            with contextlib.suppress(OSError):  # someone writes it, or has deleted it
                if time.time() - path.stat().st_mtime > _ORPHAN_S:
                    with _locked(path, wait=False):
                        path.unlink()

    def _complete(self, but: Path | None = None) -> list[tuple[int, int, Path]]:
        """Complete copies as (mtime in ns, bytes, path), the longest unused first."""
        files = []
        for path in self._named(".shard"):
            with contextlib.suppress(OSError):  # deleted by another process just now
                if path != but:
                    found = path.stat()
                    files.append((found.st_mtime_ns, found.st_size, path))
        return sorted(files)

    def _named(self, suffix: str) -> list[Path]:
        """Files of the cache, and none that others may have put there."""
        names = (name for name in os.listdir(self.folder) if name.endswith(suffix))
        return [self.folder / name for name in names if _SHA256.fullmatch(name.removesuffix(suffix))]


def _delete(files: list[tuple[int, int, Path]], wanted: int) -> int:
    """Delete files in order until `wanted` bytes are gone, also by others who do the same; gives the bytes gone."""
    gone = 0
    for _, size, path in files:
        if gone >= wanted:
            break
        path.unlink(missing_ok=True)
        gone += size
    return gone


@contextlib.contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Descriptor of the partial file `path`, made if missing, that no other thread or process has.

    Raises:
        BlockingIOError: another one has it, and `wait` is false.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _descriptors.add(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # what was waited for may have its final name by now, or be deleted
            if _is_at(descriptor, path):
                try:
                    yield descriptor
                finally:
                    if os.fstat(descriptor).st_size == 0 and _is_at(descriptor, path):
                        path.unlink()  # nothing to go on with
                return
        finally:
            _descriptors.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # by name: a child forked just now may hold a copy
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _hash_existing(part: int, size: int) -> tuple[Any, int]:
    """Hash and length of what a partial file holds (one too long is emptied); leaves its position at the end."""
    if os.fstat(part).st_size > size:
        os.ftruncate(part, 0)
    os.lseek(part, 0, os.SEEK_SET)
    digest, done = hashlib.sha256(), 0
    while data := os.read(part, 1 << 20):
        digest.update(data)
        done += len(data)
    return digest, done


class ReadAhead:
    """Shards named ahead of their use, fetched by daemon threads so that `ShardCache.fetch` finds them.

    Threads begin at the first `want` of a process, since none live through a fork: it may be made before one, but a
    process that has used it must not fork and expect what was wanted there. They keep no process alive. What fails here
    is silent; the fetch that needs the shard meets the fault again and says it.
    """

    def __init__(self, cache: ShardCache, threads: int = 4):
        self._cache = cache
        self._threads = threads
        self._process = 0

    def want(self, shards: Sequence[Wanted]) -> None:
        """Fetch these, in order, after what was wanted before; those on their way already are left out.

        What is wanted and not yet used must fit into the cache, or it pushes itself out. No more than half the cache's
        limit is on its way at a time; what is wanted beyond that is left to `fetch`.
        """
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            for url, sha256, size in shards:
                fits = sum(self._pending.values()) + size <= self._cache.limit_bytes // 2
                if fits and sha256 not in self._pending:
                    self._pending[sha256] = size
                    self._queue.put((url, sha256, size))

    def close(self) -> None:
        """Drop what has not begun and end the threads, each after the download it is at."""
        if self._process == os.getpid():
            with self._lock:
                while not self._queue.empty():
                    self._queue.get_nowait()
                self._pending.clear()
                for _ in range(self._threads):
                    self._queue.put(None)
        self._process = 0

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Wanted | None] = queue.SimpleQueue()
        self._pending: dict[str, int] = {}  # sha256 -> bytes, queued or on their way
        for number in range(self._threads):
            arguments = (self._queue, self._pending, self._lock)
            threading.Thread(target=self._work, args=arguments, name=f"read-ahead-{number}", daemon=True).start()

    def _work(self, wanted: queue.SimpleQueue[Wanted | None], pending: dict[str, int], lock: threading.Lock) -> None:
        while (shard := wanted.get()) is not None:
            with contextlib.suppress(Exception):  # UserError or not: the fetch in need of it meets it again
                self._cache.fetch(*shard)
            with lock:
                pending.pop(shard[1], None)
