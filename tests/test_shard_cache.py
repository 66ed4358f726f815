"""Shards behind URLs: each comes once, whole and checked, whatever the network and other processes do."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from erica_dist.errors import DamagedFile, UserError
from erica_dist.shards import cache as cache_module
from erica_dist.shards import remote
from erica_dist.shards.cache import ReadAhead, ShardCache, default_folder
from tests.http_shards import MB, SIZE, Faults, ShardServer, in_child, wait_for, waits_for_a_lock


@pytest.fixture
def server(tmp_path) -> Iterator[ShardServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    with ShardServer(folder) as running:
        yield running


@pytest.fixture
def cache(tmp_path) -> ShardCache:
    return ShardCache(tmp_path / "cache", 100 * MB)


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[float]:
    """The waits between tries, in seconds, none of which is waited for."""
    waited: list[float] = []
    monkeypatch.setattr(remote, "_sleep", waited.append)
    return waited


def names(cache: ShardCache) -> list[str]:
    return sorted(os.listdir(cache.folder))


def use(path: Path, seconds_ago: float) -> None:
    os.utime(path, (time.time() - seconds_ago,) * 2)


def test_a_shard_comes_once_and_is_the_same(server, cache):
    shard = server.put()
    path = cache.fetch(*shard)
    assert path.read_bytes() == server.data()
    assert path == cache.folder / f"{shard[1]}.shard"
    assert names(cache) == [path.name]
    assert os.stat(cache.folder).st_mode & 0o777 == 0o700
    assert server.requests["/a.tar"] == 1
    assert cache.fetch(*shard) == path
    with cache.open(*shard) as file:
        assert file.read() == server.data()
    assert cache.fetch(*server.put("equal.tar")) == path
    assert server.requests == {"/a.tar": 1}


def test_a_shard_larger_than_a_piece_comes_in_ranges(server, cache, monkeypatch):
    monkeypatch.setattr(remote, "PIECE", MB)
    assert cache.fetch(*server.put()).read_bytes() == server.data()
    assert server.starts["/a.tar"] == [0, MB, 2 * MB, 3 * MB]
    assert server.bytes_sent["/a.tar"] == SIZE


def test_cut_connections_go_on_where_they_ended(server, cache, waits):
    shard = server.put()
    server.faults["/a.tar"] = Faults(cuts=3, cut_after=MB)
    assert cache.fetch(*shard).read_bytes() == server.data()
    starts = server.starts["/a.tar"]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert len(starts) == 4
    assert server.bytes_sent["/a.tar"] < 1.4 * SIZE
    assert len(waits) == 3


def test_a_server_that_is_busy_is_asked_again_with_growing_waits(server, cache, waits):
    shard = server.put()
    server.faults["/a.tar"] = Faults(unavailable=4)
    assert cache.fetch(*shard).read_bytes() == server.data()
    assert [0.5 * 2**k <= wait <= 2**k for k, wait in enumerate(waits)] == [True] * 4
    server.faults["/a.tar"] = Faults(unavailable=2)
    assert remote.read_bytes(shard[0]) == server.data()
    cache.fetch(*shard).unlink()
    server.faults["/a.tar"] = Faults(unavailable=1000)
    for read in (lambda: cache.fetch(*shard), lambda: remote.read_bytes(shard[0])):
        server.requests.clear()
        with pytest.raises(UserError, match=r"/a\.tar: HTTP 503 .*the last of 6 tries in a row; check the network"):
            read()
        assert server.requests["/a.tar"] == 6
    assert names(cache) == []


def test_tries_are_counted_anew_when_bytes_come(server, cache, monkeypatch, waits):
    monkeypatch.setattr(remote, "PIECE", MB // 4)
    shard = server.put()
    server.faults["/a.tar"] = Faults(cuts=1000, cut_after=MB // 8 + MB // 16)  # two thirds of a piece an answer
    assert ShardCache(cache.folder, 100 * MB, retries=6).fetch(*shard).read_bytes() == server.data()
    assert len(waits) > 6


@pytest.mark.parametrize(("status", "text"), [(404, "there is no such file"), (403, ".*check the credentials")])
def test_what_stays_is_said_at_once(server, cache, waits, status, text):
    shard = server.put()
    server.faults["/a.tar"] = Faults(status=status)
    for read in (lambda: cache.fetch(*shard), lambda: remote.read_bytes(shard[0])):
        server.requests.clear()
        with pytest.raises(UserError, match=text):
            read()
        assert server.requests["/a.tar"] == 1
    assert waits == []
    assert names(cache) == []


def test_wrong_bytes_are_refused_with_both_hashes_and_nothing_stays(server, cache):
    url, sha256, size = server.put()
    server.faults["/a.tar"] = Faults(corrupt=2)
    with pytest.raises(DamagedFile, match="upload the folder again") as raised:
        cache.fetch(url, sha256, size)
    data = server.data()
    damaged = bytes(byte ^ 0xFF for byte in data[: 1 << 16]) + data[1 << 16 :]
    assert sha256 in str(raised.value)
    assert hashlib.sha256(damaged).hexdigest() in str(raised.value)
    assert url in str(raised.value)
    assert names(cache) == []
    assert server.starts["/a.tar"] == [0, 0]


def test_one_bad_transfer_or_stale_partial_file_is_made_good(server, cache):
    shard = server.put()
    server.faults["/a.tar"] = Faults(corrupt=1)
    assert cache.fetch(*shard).read_bytes() == server.data()
    for stale in (b"other bytes", b"x" * (SIZE + 1), b"y" * SIZE):
        cache.fetch(*shard).unlink()
        (cache.folder / f"{shard[1]}.part").write_bytes(stale)
        assert cache.fetch(*shard).read_bytes() == server.data()
    assert names(cache) == [f"{shard[1]}.shard"]


@pytest.mark.parametrize("difference", [-1, 1, 5 * MB])
def test_another_size_is_said_with_both(server, cache, difference, waits):
    url, sha256, size = server.put()
    with pytest.raises(DamagedFile, match=f"has {size:,} bytes, the manifest says {size + difference:,}"):
        cache.fetch(url, sha256, size + difference)
    assert names(cache) == []
    (cache.folder / f"{sha256}.part").write_bytes(server.data())  # left by one who was told the right size
    with pytest.raises(DamagedFile, match=f"has {size:,} bytes|it is shorter than the manifest says"):
        cache.fetch(url, sha256, size + difference)
    assert waits == []


@pytest.mark.parametrize("cuts", [0, 2])
def test_a_server_without_ranges_serves_as_well(server, cache, monkeypatch, cuts):
    monkeypatch.setattr(remote, "PIECE", MB)
    shard = server.put()
    server.faults["/a.tar"] = Faults(ignore_range=True, cuts=cuts, cut_after=2 * MB)
    assert cache.fetch(*shard).read_bytes() == server.data()
    assert server.starts["/a.tar"] == [0] * (cuts + 1)
    for start in (0, 1, MB, SIZE - 1):
        assert b"".join(remote.stream(shard[0], start, SIZE)) == server.data()[start:]


def test_a_server_that_answers_another_range_is_refused(server, cache):
    url, sha256, size = server.put()
    cache.folder.mkdir()
    (cache.folder / f"{sha256}.part").write_bytes(server.data()[:MB])
    server.faults["/a.tar"] = Faults(wrong_range=True)
    with pytest.raises(UserError, match="asked for bytes from 1048576 on, the server sent bytes 0-"):
        cache.fetch(url, sha256, size)
    assert (cache.folder / f"{sha256}.part").read_bytes() == server.data()[:MB]


def test_other_file_systems_of_fsspec(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(remote, "PIECE", MB)
    data = np.random.default_rng(1).bytes(SIZE)
    sha256 = hashlib.sha256(data).hexdigest()
    fsspec.filesystem("memory").pipe_file("/shards/a.tar", data)
    (tmp_path / "a.tar").write_bytes(data)
    for url in ("memory://shards/a.tar", f"file://{tmp_path}/a.tar"):
        path = cache.fetch(url, sha256, SIZE)
        assert path.read_bytes() == data == b"".join(remote.stream(url, 0, SIZE))
        assert remote.read_bytes(url) == data
        path.unlink()
        with pytest.raises(UserError, match="there is no such file; check the address"):
            cache.fetch(f"{url}.gone", sha256, SIZE)
        with pytest.raises(UserError, match=f"has {SIZE:,} bytes, the manifest says {SIZE + 1:,}"):
            cache.fetch(url, sha256, SIZE + 1)


def test_what_is_remote():
    assert [remote.is_remote(place) for place in ("s3://b/x", "https://h/x", "memory://x", "file:///x")] == [True] * 4
    assert [remote.is_remote(place) for place in ("/data/x", "data/x", "C:x", "./a://b", "")] == [False] * 5


def test_no_server_is_said_without_passwords_and_signatures():
    text = r"cannot read http://127\.0\.0\.1:9/a\.json: .*the last of 3 tries"
    with pytest.raises(UserError, match=text) as raised:
        remote.read_bytes("http://user:secret@127.0.0.1:9/a.json?signature=secret", retries=2)
    assert "secret" not in str(raised.value)


def test_missing_packages_and_unknown_protocols_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(UserError, match=r"s3:// needs a package .*run `pip install s3fs fsspec=="):
        remote.read_bytes("s3://bucket/manifest.json")
    with pytest.raises(UserError, match="s4 is no protocol that fsspec"):
        remote.read_bytes("s4://bucket/manifest.json")


def test_what_was_used_least_lately_goes_and_mappings_stay(server, tmp_path):
    cache = ShardCache(tmp_path / "cache", 3 * MB)
    shards = [server.put(f"{k}.tar", MB, k) for k in range(5)]
    paths = [cache.fetch(*shard) for shard in shards[:3]]
    with paths[1].open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for path, age in zip(paths, (3000, 2000, 1000), strict=True):
        use(path, age)
    cache.fetch(*shards[0])  # used now, so 1 is the oldest
    cache.fetch(*shards[3])
    assert [path.exists() for path in paths] == [True, False, True]
    assert mapped[:] == server.data("1.tar")
    cache.fetch(*shards[4])
    assert [path.exists() for path in paths] == [True, False, False]
    assert len(names(cache)) == 3
    assert cache.fetch(*shards[1]).read_bytes() == server.data("1.tar")
    assert server.requests["/1.tar"] == 2
    assert server.requests["/0.tar"] == 1


def test_a_use_is_noted_at_most_once_a_minute(server, cache):
    shard = server.put()
    path = cache.fetch(*shard)
    for age, noted in ((30, False), (90, True)):
        use(path, age)
        before = path.stat().st_mtime_ns
        cache.fetch(*shard)
        assert (path.stat().st_mtime_ns > before) is noted


def test_what_cannot_be_kept_is_said_before_any_request(server, tmp_path):
    cache = ShardCache(tmp_path / "cache", MB)
    url, sha256, size = server.put()
    with pytest.raises(UserError, match=f"has {SIZE:,} bytes, the shard cache .* may hold {MB:,}"):
        cache.fetch(url, sha256, size)
    with pytest.raises(UserError, match="which is none"):
        cache.fetch(url, "../" * 20 + "etc/passwd", 10)
    assert not server.requests


def test_orphans_go_after_a_day_unless_someone_writes_them(server, cache):
    cache.fetch(*server.put())
    others = [cache.folder / f"{digit * 64}.part" for digit in "123"]
    for path in (*others, foreign := cache.folder / "notes.part"):
        path.write_bytes(b"bytes")
    for path in (others[0], others[1], foreign):
        use(path, 25 * 3600)
    with others[1].open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache.fetch(*server.put("b.tar", MB, 1))
    assert [path.exists() for path in (*others, foreign)] == [False, True, True, True]


def test_a_folder_that_cannot_be_written_is_one_clear_error(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the shard cache .*Not a directory; give it a folder"):
        ShardCache(tmp_path / "file" / "cache", 10 * MB).fetch(*server.put())


def test_a_full_disk_costs_other_copies_and_then_is_said(server, cache, monkeypatch):
    old, new = server.put("old.tar", MB, 1), server.put("new.tar", MB, 2)
    cache.fetch(*old)
    write, refused = os.write, []

    def full(descriptor: int, data: memoryview) -> int:
        if os.fstat(descriptor).st_size + len(data) > MB // 2 and (not refused or not fits):
            refused.append(1)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(cache_module.os, "write", full)
    fits = True
    assert cache.fetch(*new).read_bytes() == server.data("new.tar")
    assert names(cache) == [f"{new[1]}.shard"]
    fits = False
    with pytest.raises(UserError, match=r"is full .*No space left on device.*nothing else to delete"):
        cache.fetch(*old)
    assert names(cache) == []


def test_the_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ERICA_DIST_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == tmp_path / ".cache/erica-dist/shards"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
    assert default_folder() == Path("/var/x/erica-dist/shards")
    monkeypatch.setenv("ERICA_DIST_CACHE", "/scratch/shards")
    assert default_folder() == Path("/scratch/shards")


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_at_once_download_once(server, cache, processes):
    shard = server.put()
    server.faults["/a.tar"] = Faults(stall_after=MB)
    children = [in_child(lambda: cache.fetch(*shard).read_bytes()) for _ in range(processes)]
    wait_for(lambda: server.requests["/a.tar"])
    wait_for(lambda: sum(waits_for_a_lock(process.pid) for process, _ in children) == processes - 1)
    server.faults["/a.tar"].go_on.set()
    for process, connection in children:
        assert connection.recv() == server.data()
        process.join()
    assert server.requests["/a.tar"] == 1
    assert server.bytes_sent["/a.tar"] == SIZE
    assert names(cache) == [f"{shard[1]}.shard"]


def test_threads_at_once_download_once(server, cache):
    shard, found = server.put(), []
    threads = [threading.Thread(target=lambda: found.append(cache.fetch(*shard).read_bytes())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [server.data()] * 6
    assert server.requests["/a.tar"] == 1


def test_after_a_kill_the_next_one_goes_on(server, cache):
    shard = server.put()
    partial = cache.folder / f"{shard[1]}.part"
    server.faults["/a.tar"] = first = Faults(stall_after=2 * MB)
    killed, _ = in_child(lambda: cache.fetch(*shard))
    wait_for(lambda: partial.exists() and partial.stat().st_size >= MB)
    waiting, connection = in_child(lambda: cache.fetch(*shard).read_bytes())
    wait_for(lambda: waits_for_a_lock(waiting.pid))
    server.faults["/a.tar"] = Faults()
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    first.go_on.set()
    assert connection.recv() == server.data()
    waiting.join()
    assert names(cache) == [f"{shard[1]}.shard"]
    assert [start >= MB for start in server.starts["/a.tar"]] == [False, True]


def test_a_partial_file_deleted_while_one_waits_for_it_is_made_anew(server, cache):
    shard = server.put()
    cache.folder.mkdir()
    partial = cache.folder / f"{shard[1]}.part"
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process, connection = in_child(lambda: cache.fetch(*shard).read_bytes())
        wait_for(lambda: waits_for_a_lock(process.pid))
        partial.unlink()
        fcntl.flock(file, fcntl.LOCK_UN)
    assert connection.recv() == server.data()
    process.join()


def test_fetches_in_children_of_a_process_that_has_fetched(server, cache, waits, monkeypatch):
    """The parent's connection stays open over the fork and serves it afterwards."""
    monkeypatch.setattr(remote, "_SILENCE_S", 5.0)

    def fetch(shard: tuple[str, str, int]) -> bytes:
        gc.collect()  # must not end the parent's connections
        return cache.fetch(*shard).read_bytes()

    shards = [server.put(f"{k}.tar", MB, k) for k in range(6)]
    cache.fetch(*shards[0])
    for k in (1, 2):
        with fsspec.asyn.get_lock():  # a thread of the parent may have it
            children = [in_child(fetch, shard) for shard in (shards[k], shards[k + 2])]
        for (process, connection), number in zip(children, (k, k + 2), strict=True):
            assert connection.recv() == server.data(f"{number}.tar")
            process.join()
            assert process.exitcode == 0
        assert remote.read_bytes(shards[5][0]) == server.data("5.tar")
    assert sum(server.requests.values()) == 1 + 4 + 2
    assert waits == []


def test_a_child_forked_during_a_download_does_not_hold_its_lock(server, cache):
    shard = server.put()
    server.faults["/a.tar"] = Faults(stall_after=MB)

    def downloader_with_a_child_that_stays() -> None:
        threading.Thread(target=cache.fetch, args=shard, daemon=True).start()
        wait_for(lambda: (cache.folder / f"{shard[1]}.part").exists())
        wait_for(lambda: cache_module._descriptors)
        if os.fork() == 0:
            Path(cache.folder / "forked").write_text(str(os.getpid()))
            time.sleep(60)
        time.sleep(60)

    process, _ = in_child(downloader_with_a_child_that_stays)
    forked = cache.folder / "forked"
    wait_for(lambda: forked.exists() and forked.read_text())
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    server.faults["/a.tar"] = Faults()
    try:
        assert cache.fetch(*shard).read_bytes() == server.data()
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)


def test_what_is_wanted_comes_ahead_in_order_and_once(server, cache):
    shards = [server.put(f"{k}.tar", MB // 4, k) for k in range(6)]
    ahead = ReadAhead(cache, threads=1)
    server.faults["/0.tar"] = Faults(stall_after=0)
    ahead.want([*shards[:4], *shards[:4]])
    ahead.want(shards)
    server.faults["/0.tar"].go_on.set()
    wait_for(lambda: len(list(cache.folder.glob("*.shard"))) == 6)
    assert list(server.requests) == [f"/{k}.tar" for k in range(6)]
    assert [cache.fetch(*shard).read_bytes() for shard in shards] == [server.data(f"{k}.tar") for k in range(6)]
    assert set(server.requests.values()) == {1}
    ahead.close()


def test_what_fails_ahead_is_said_by_the_fetch(server, cache):
    bad, good = server.put("bad.tar", MB, 1), server.put("good.tar", MB, 2)
    server.faults["/bad.tar"] = Faults(status=404)
    ahead = ReadAhead(cache, threads=2)
    ahead.want([bad, good])
    wait_for(lambda: (cache.folder / f"{good[1]}.shard").exists())
    with pytest.raises(UserError, match="there is no such file"):
        cache.fetch(*bad)
    ahead.close()


def test_read_ahead_takes_no_more_than_half_the_cache(server, tmp_path):
    cache = ShardCache(tmp_path / "cache", 4 * MB)
    shards = [server.put(f"{k}.tar", MB, k) for k in range(4)]
    server.faults["/0.tar"] = Faults(stall_after=0)
    ahead = ReadAhead(cache, threads=1)
    ahead.want(shards)
    server.faults["/0.tar"].go_on.set()
    wait_for(lambda: len(list(cache.folder.glob("*.shard"))) == 2)
    ahead.close()
    assert set(server.requests) == {"/0.tar", "/1.tar"}


def test_read_ahead_made_before_a_fork_works_after_it(server, cache):
    shard = server.put()
    ahead = ReadAhead(cache)
    ahead.want([server.put("parent.tar", MB, 3)])

    def child() -> bytes:
        ahead.want([shard])
        wait_for(lambda: (cache.folder / f"{shard[1]}.shard").exists())
        ahead.close()
        return cache.fetch(*shard).read_bytes()

    process, connection = in_child(child)
    assert connection.recv() == server.data()
    process.join()
    ahead.close()
    assert server.requests["/a.tar"] == 1


def test_read_ahead_keeps_no_process_alive(server, cache):
    url, sha256, size = server.put()
    server.faults["/a.tar"] = Faults(stall_after=MB)
    program = f"""
        import time
        from pathlib import Path
        from erica_dist.shards.cache import ReadAhead, ShardCache
        folder = Path({str(cache.folder)!r})
        ReadAhead(ShardCache(folder, {100 * MB})).want([({url!r}, {sha256!r}, {size})])
        while not any(part.stat().st_size for part in folder.glob("*.part")):
            time.sleep(0.01)
        print("over")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "over\n")
    server.faults["/a.tar"] = Faults()
    assert cache.fetch(url, sha256, size).read_bytes() == server.data()
    assert server.starts["/a.tar"][1] > 0
