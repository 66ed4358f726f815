"""Files behind URLs (`https://`, `s3://`, `gs://`, `file://`, ... what fsspec knows): read whole, or from any byte on.

In: a URL. Out: its bytes, each once and in order, whatever breaks on the way. Network faults are tried again with
growing waits, from the byte that came last; what no try can change (a missing file, a refused permission, a missing
package) is said at once. Credentials and proxies are taken where each protocol's package looks for them (AWS_*,
GOOGLE_APPLICATION_CREDENTIALS, ~/.netrc, HTTPS_PROXY, ~/.config/fsspec); none are settings of ours.

Works in forked processes whose parent has read URLs too. fsspec runs its connections on the event loop of a hidden
thread, which a fork does not copy: after one it forgets loop and file systems, and a child makes its own at first use.
"""

from __future__ import annotations

import errno
import os
import random
import re
import ssl
import time
from collections.abc import Iterator
from typing import Any

import fsspec
import fsspec.asyn
from fsspec.registry import known_implementations

from erica_dist.errors import DamagedFile, UserError

RETRIES = 5  # tries after the first that failed, counted anew whenever PIECE bytes have come
PIECE = 8 << 20  # bytes asked for at once: large beside a round trip, small beside what a broken store makes come twice
_CHUNK = 1 << 20  # bytes taken at most from an open HTTP answer at once
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_CONNECT_S, _SILENCE_S = 30.0, 60.0  # HTTP: no connection, or no byte, for so long is a fault
_WORTH_A_RETRY = {408, 425, 429}  # of the HTTP answers 4xx, which otherwise stay as they are

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_HTTP = ("http://", "https://")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_SECRET = re.compile(r"(?<=://)[^/@]*@|\?.*")
_sleep = time.sleep  # tests put a clock without waits here
_jitter = random.SystemRandom()  # draws nothing from the seeded generators, differs between forked processes

# fsspec's own hook misses the lock that guards the making of its loop; another thread may have held it at the fork
os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)
# Every file system of this process and of those it was forked from. One that is collected in a child closes its
# connections there, which through the shared epoll and sockets makes the parent wait for answers it never sees.
_never_collected: dict[int, Any] = {}


def is_remote(place: str) -> bool:
    """Whether `place` is a URL, to be read through this module and the cache, rather than a path.

    `file://` counts as one: a plain path is mapped where it lies, `file:///slow/network/disk` is copied to the cache.
    """
    return _SCHEME.match(place) is not None


def shown(url: str) -> str:
    """The URL for messages and logs: without a user's name, password or signature in it."""
    return _SECRET.sub("", url)


def read_bytes(url: str, retries: int = RETRIES) -> bytes:
    """All bytes of a small file (a manifest, an index).

    Raises:
        UserError: not there, not permitted, no such protocol or its package is missing (all at once); or still failing
            after `retries` more tries.
    """
    faults = 0
    while True:
        try:
            system, path = _locate(url)
            data: bytes = system.cat_file(path)
            return data
        except UserError:
            raise
        except Exception as error:
            faults += 1
            _wait_or_raise(url, error, faults, retries)


def stream(url: str, start: int, size: int, retries: int = RETRIES) -> Iterator[bytes]:
    """Bytes `start` to `size` of a file that has `size` bytes, as they come; at most 8 MiB at once.

    The bytes are asked for in ranges of `PIECE`. Of a server that ignores ranges the first bytes are thrown away, in
    memory of a chunk. More than `size` - `start` bytes never come; fewer only with an exception. A consumer's own
    exceptions are its own: only reading is tried again.

    Raises:
        UserError: as `read_bytes`; or the file has another size.
    """
    done, faults, counted_from = start, 0, start
    while done < size:
        try:
            for data in _range(url, done, min(done + PIECE, size), size):
                done += len(data)
                yield data
        except UserError:
            raise
        except Exception as error:
            if done - counted_from >= PIECE:
                faults, counted_from = 0, done
            faults += 1
            _wait_or_raise(url, error, faults, retries)


def _locate(url: str) -> tuple[Any, str]:
    """The file system of this process for a URL, and the file's name there."""
    match = _SCHEME.match(url)
    protocol = match[1].lower() if match else ""
    if protocol not in fsspec.available_protocols():
        raise UserError(
            f"cannot read {shown(url)}: {protocol or 'nothing'} is no protocol that fsspec {fsspec.__version__} knows; "
            "use s3://, gs://, https://, file:// or a plain path"
        )
    try:
        system, path = fsspec.url_to_fs(url, **(_http_options() if url.lower().startswith(_HTTP) else {}))
    except ImportError as error:
        package = _package(protocol)
        raise UserError(
            f"cannot read {shown(url)}: {protocol}:// needs a package that is not installed ({error}); "
            f"run `pip install {package} fsspec=={fsspec.__version__}`"
        ) from error
    _never_collected[id(system)] = system
    return system, path


def _package(protocol: str) -> str:
    """The package to install for a protocol of fsspec's list."""
    module = known_implementations.get(protocol, {}).get("class", "aiohttp").split(".")[0]
    return "aiohttp" if module == "fsspec" else module


def _http_options() -> dict[str, Any]:
    import aiohttp  # a third of a second that only readers of http pay

    # no limit on a whole answer: a large shard over a slow line takes longer than aiohttp's five minutes
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    # identity: ranges of a compressed answer would be ranges of other bytes
    options: dict[str, Any] = {
        "headers": {"Accept-Encoding": "identity"},
        "client_kwargs": {"timeout": timeout, "trust_env": True},
    }
    for name, ours in options.items():  # fsspec would let them replace the user's own, say a token's header
        options[name] = ours | fsspec.config.conf.get("http", {}).get(name, {})
    return options


def _range(url: str, start: int, end: int, size: int) -> Iterator[bytes]:
    """One request for bytes `start` to `end`; gives up to as many (over HTTP without ranges: up to `size`)."""
    system, path = _locate(url)
    if url.lower().startswith(_HTTP):
        yield from _http_range(system, path, start, end, size)
        return
    data = b""
    try:
        data = system.cat_file(path, start=start, end=end)
    except OSError as error:
        if error.errno != errno.EINVAL:  # with which s3fs says that the file ends before `start`
            raise
    if not data:
        raise _other_size(url, system.size(path) or start, size)
    yield data[: end - start]


def _http_range(system: Any, url: str, start: int, end: int, size: int) -> Iterator[bytes]:
    """One request over HTTP, given on while it comes, so that a cut connection loses only what was on its way."""
    headers = {**system.kwargs["headers"], "Range": f"bytes={start}-{end - 1}"}
    # block_size 0: the answer itself instead of a file with a cache; size: no request to ask for it
    with system.open(url, block_size=0, size=size, headers=headers) as answer:
        status, found = answer.r.status, answer.r.headers
        skip = 0
        if status == 206:
            match = _CONTENT_RANGE.fullmatch(place := found.get("Content-Range", ""))
            if match is None or int(match[1]) != start:
                raise ConnectionError(f"asked for bytes from {start} on, the server sent {place or 'unnamed ones'}")
            total = match[2]
        else:  # the range was ignored: everything comes, from byte 0 on
            skip, end, total = start, size, found.get("Content-Length", "*")
        if total not in ("*", str(size)):
            raise _other_size(url, int(total), size)
        left = end - start
        while left and (data := answer.read(_CHUNK)):
            data, skip = data[skip:], max(0, skip - len(data))
            data = data[:left]
            left -= len(data)
            if data:
                yield data
        if left:
            raise ConnectionError(f"the answer ended {left:,} bytes early")


def _other_size(url: str, found: int, size: int) -> UserError:
    return DamagedFile(
        f"{shown(url)} has {found:,} bytes, the manifest says {size:,}: they do not belong together, or the upload was "
        "cut off; upload the folder again"
    )


def _wait_or_raise(url: str, error: Exception, faults: int, retries: int) -> None:
    """Wait before try `faults` + 1, or raise what ends the tries."""
    fault = _fault(error).replace(url, shown(url))
    if remedy := _permanent(error):
        kind = DamagedFile if _status(error) == 416 else UserError
        raise kind(f"cannot read {shown(url)}: {fault}; {remedy}") from error
    if faults > retries:
        raise UserError(
            f"cannot read {shown(url)}: {fault}, the last of {faults} tries in a row; check the network and "
            "the server, then start again"
        ) from error
    # half of the wait is drawn, so that the ranks of a job do not come back all at once
    _sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (faults - 1)) * _jitter.uniform(0.5, 1.0))


def _permanent(error: Exception) -> str:
    """The remedy for a fault that stays whatever is tried; "" for one worth another try.

    Each protocol's package has exceptions of its own, so this names the few that stay and all others count as passing.
    """
    status = _status(error)
    if isinstance(error, FileNotFoundError):
        return "check the address, and that the upload is complete"
    if isinstance(error, PermissionError) or status in (401, 403) or "Credential" in type(error).__name__:
        return "check the credentials in this environment and their rights on this address"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "check the address, and the certificates that this machine trusts"
    if status == 416:
        return "it is shorter than the manifest says: they do not belong together; upload the folder again"
    wrong_place = (
        isinstance(error, (IsADirectoryError, NotADirectoryError)) or "invalidurl" in type(error).__name__.lower()
    )
    return "check the address" if wrong_place or (400 <= status < 500 and status not in _WORTH_A_RETRY) else ""


def _status(error: Exception) -> int:
    """The HTTP status that an exception of any of the packages carries; 0 if none."""
    for name in ("status", "code"):
        if isinstance(status := getattr(error, name, None), int):
            return status
    return 0


def _fault(error: Exception) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if status := _status(error):
        return f"HTTP {status} {getattr(error, 'message', '')}".rstrip()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
