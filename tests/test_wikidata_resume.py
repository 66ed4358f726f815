"""`build-kb` killed at any moment, out of disk, refused for a damaged dump, asked twice: what stands is whole and the
same bytes, or it is said what is wrong."""

from __future__ import annotations

import bz2
import fcntl
import gzip
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_tools.kb import KnowledgeBase
from data_tools.wikidata import builder, dump, runs, stages
from data_tools.wikidata.builder import build_kb
from erica_dist.cli import main
from erica_dist.config import KnowledgeBaseJob, RayConfig
from erica_dist.errors import UserError
from tests.corpora import folder_bytes
from tests.wikidata_naive import NaiveKb, assert_same, dump_of, world

ENTITIES = world(40)
CONTENT = dump_of(ENTITIES)
PACKED = {"plain": CONTENT, "gz": gzip.compress(CONTENT, mtime=0)}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few units and ranges of each step; nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(dump, "MB", 12_000)
    monkeypatch.setattr(dump, "BZ2_RATIO", 10)
    monkeypatch.setattr(dump, "_PACKED_CHUNK", 500)
    monkeypatch.setattr(runs, "SAMPLE", 4)
    monkeypatch.setattr(stages, "BYTES_A_NAME", 20_000)
    monkeypatch.setattr(stages, "BYTES_A_FACT", 20_000)


def job(folder: Path, content: bytes = CONTENT, out: str = "kb", **more: Any) -> KnowledgeBaseJob:
    folder.mkdir(exist_ok=True)
    (folder / "dump.json").write_bytes(content)
    more = {"unit_mb": 1, "task_mb": 1, "ray": RayConfig(disabled=True), **more}
    return KnowledgeBaseJob(dump=str(folder / "dump.json"), out=str(folder / out), **more)


def in_a_fork(function: Callable[[], Any]) -> int:
    """The status of a child that runs `function`: 0, 2 after a UserError, -9 if killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        except UserError:
            status = 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(moment: int, made: KnowledgeBaseJob) -> Callable[[], None]:
    """The build with SIGKILL when it opens, renames or removes a file for the `moment`-th time."""

    def run() -> None:
        left = moment

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            writing = event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in ("w", "x")
            if writing or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        build_kb(made)

    return run


@pytest.mark.parametrize("packing", PACKED)
def test_killed_at_any_moment_and_started_again(tmp_path: Path, packing: str) -> None:
    made = job(tmp_path, PACKED[packing])
    build_kb(made)
    expected = folder_bytes(tmp_path / "kb")
    moment, step, moments = 0, 1, 0
    longest = 14 if packing == "plain" else 35
    while True:
        out = tmp_path / f"kb{moment}"
        again = job(tmp_path, PACKED[packing], out.name)
        status = in_a_fork(killed_at(moment, again))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        moments += 1
        if (out / "manifest.json").exists():
            assert KnowledgeBase.open(out).manifest["complete"]
        else:
            with pytest.raises(UserError):
                KnowledgeBase.open(out)
        # killed a second time, somewhere else
        in_a_fork(killed_at(moment * 7 % 50, again))
        assert build_kb(again) == json.loads(expected["manifest.json"])["counts"]
        assert folder_bytes(out) == expected, moment
        assert not (out / ".build").exists()
        moment += step
        step = min(step + 3, longest)
    assert moments > 10
    assert_same(KnowledgeBase.open(out), NaiveKb(ENTITIES))


@pytest.mark.parametrize("packing", PACKED)
def test_a_full_disk_is_said_and_the_rest_is_kept(tmp_path: Path, packing: str) -> None:
    """Files that may not grow beyond a limit fail as on a full disk; the limits meet one step after the other."""
    made = job(tmp_path, PACKED[packing])
    build_kb(made)
    expected = folder_bytes(tmp_path / "kb")
    again = job(tmp_path, PACKED[packing], "second")

    def limited(limit: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        fails = limit < 10**9
        with pytest.raises(UserError, match=r"cannot write .*disk full") if fails else nullcontext() as error:
            build_kb(again)
        if fails and "Traceback" not in str(error.value):
            os._exit(2)

    found = [in_a_fork(lambda limit=limit: limited(limit)) for limit in (0, 60, 300, 1000, 2000, 4000, 10**9)]
    assert found == [2] * 6 + [0]
    assert folder_bytes(tmp_path / "second") == expected


def test_what_is_begun_needs_less_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "NEEDED", {"gz": 50.0})
    made = job(tmp_path, PACKED["gz"])
    assert in_a_fork(killed_at(25, made)) == -signal.SIGKILL
    begun = sum(path.stat().st_size for path in (tmp_path / "kb" / ".build").rglob("*") if path.is_file())
    needed = 50 * len(PACKED["gz"])
    assert 0 < begun < needed
    for free, fits in ((needed - begun - 1, False), (needed - begun + 1, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        with nullcontext() if fits else pytest.raises(UserError, match="are needed; make room"):
            build_kb(made)


def test_a_second_call_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = job(tmp_path)
    counts = build_kb(made)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kb").iterdir()}
    capsys.readouterr()
    made.ray.workers, made.ray.retries, made.allow_incomplete = 7, 9, True  # not what the result depends on
    assert build_kb(made) == counts
    assert "already built with these settings" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kb").iterdir()} == before


@pytest.mark.parametrize(
    "other", [{"ranks": "nondeprecated"}, {"unit_mb": 2}, {"excluded_relations": ["P17"]}, {"content": CONTENT[:-1]}]
)
def test_other_settings_and_inputs_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    build_kb(job(tmp_path))
    before = folder_bytes(tmp_path / "kb")
    with pytest.raises(UserError, match="result of other inputs, settings or code; give another --out"):
        build_kb(job(tmp_path, **other))
    assert folder_bytes(tmp_path / "kb") == before


def test_what_was_begun_otherwise_is_begun_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = job(tmp_path)
    assert in_a_fork(killed_at(60, first)) == -signal.SIGKILL
    assert list((tmp_path / "kb" / ".build" / "runs").iterdir())
    second = job(tmp_path, ranks="nondeprecated")
    build_kb(second)
    assert "with other inputs or settings is removed" in capsys.readouterr().out
    build_kb(job(tmp_path, out="fresh", ranks="nondeprecated"))
    assert folder_bytes(tmp_path / "kb") == folder_bytes(tmp_path / "fresh")


def test_a_standing_lock_is_respected(tmp_path: Path) -> None:
    made = job(tmp_path)
    (tmp_path / "kb" / ".build").mkdir(parents=True)
    with (tmp_path / "kb" / ".build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is writing"):
            build_kb(made)
    build_kb(made)
    assert_same(KnowledgeBase.open(made.out), NaiveKb(ENTITIES))


def test_a_file_that_was_lost_is_missed(tmp_path: Path) -> None:
    made = job(tmp_path)
    build_kb(made)
    (tmp_path / "kb" / "facts_tails.npy").unlink()
    with pytest.raises(UserError, match=r"has lost or changed facts_tails\.npy since"):
        build_kb(made)


# ------------------------------------------------------------------------------------------------ damaged dumps


def damaged(name: str) -> tuple[bytes, str]:
    """A damaged dump and what must be said of it."""
    half = len(CONTENT) // 2
    if name == "cut plain":
        return CONTENT[:half], rf"cut off at byte {half}, its closing line"
    if name == "no bracket":
        return CONTENT[: CONTENT.rindex(b"]")], r"its closing line `\]` is missing"
    if name == "no JSON":
        return CONTENT.replace(b'"item"', b'"item', 1), r"a line after byte \d+ is no JSON"
    if name == "cut gz":
        packed = gzip.compress(CONTENT)
        return packed[: len(packed) // 2], rf"cut off or damaged at about byte {len(packed) // 2} "
    streams = [bz2.compress(CONTENT[start : start + 5000], 1) for start in range(0, len(CONTENT), 5000)]
    packed = bytearray(b"".join(streams))
    if name == "cut bz2":
        return bytes(packed[:-30]), rf"cut off at byte {len(packed) - 30} "
    place = sum(map(len, streams[:3]))
    packed[place + len(streams[3]) // 2] ^= 8
    return bytes(packed), rf"damaged bz2 data in the block at byte {place + 4};"


DAMAGES = ["cut plain", "no bracket", "no JSON", "cut gz", "cut bz2", "flipped bz2"]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_dump_is_refused_and_kept_and_may_be_taken(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = damaged(name)
    made = job(tmp_path, content)
    for _ in range(2):  # the second time what can be read is read again, as the dump might have been mended
        with pytest.raises(UserError, match=said) as error:
            build_kb(made)
        assert made.dump in str(error.value)
        assert "--allow-incomplete" in str(error.value)
    assert list((tmp_path / "kb" / ".build" / "runs").glob("unit-*.json"))
    assert not (tmp_path / "kb" / "manifest.json").exists()
    made.allow_incomplete = True
    counts = build_kb(made)
    kb = KnowledgeBase.open(made.out)
    assert kb.manifest["complete"] is True
    assert len(kb.manifest["incomplete"]) >= 1
    assert all(Path(made.dump).name in text and made.dump not in text for text in kb.manifest["incomplete"])
    found = {kb.entity_id(place) for place in range(len(kb))}
    assert found <= {f"Q{number}" for number in NaiveKb(ENTITIES).ids}
    assert 5 < len(found) <= counts["entities"]
    # it stands for the damaged dump only as long as that is wanted
    made.allow_incomplete = False
    with pytest.raises(UserError, match="was built of a damaged dump"):
        build_kb(made)


def test_a_mended_dump_that_looks_the_same_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and probes are the same: nothing that was read of damaged units may be left."""
    monkeypatch.setattr(dump, "identity", lambda path: {"path": Path(path).name})
    build_kb(job(tmp_path, out="good"))
    for name, content in (
        ("plain", CONTENT.replace(b'"item"', b'"item', 1)),
        ("gz", PACKED["gz"][: len(PACKED["gz"]) // 2]),
    ):
        made = job(tmp_path, content, name)
        with pytest.raises(UserError, match="is damaged"):
            build_kb(made)
        made.allow_incomplete = True
        assert in_a_fork(killed_at(150, made)) == -signal.SIGKILL
        (tmp_path / "dump.json").write_bytes(PACKED[name])
        made.allow_incomplete = False
        build_kb(made)
        good, mended = (KnowledgeBase.open(tmp_path / out) for out in ("good", name))
        assert_same(mended, NaiveKb(ENTITIES))
        assert mended.manifest["incomplete"] == good.manifest["incomplete"] == []


def test_the_command_ends_with_status_2_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = job(tmp_path, CONTENT[:-200])
    arguments = ["build-kb", "--dump", made.dump, "--out", made.out, "ray.disabled=true"]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert f"{made.dump}: the dump is cut off at byte {len(CONTENT) - 200}" in said
    assert "Traceback" not in said
    assert main([*arguments, "--allow-incomplete"]) == 0
    assert KnowledgeBase.open(made.out).manifest["incomplete"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[\n]\n", "holds no entity with a name"),
        (b'[\n{"type":"item","id":"Q1","labels":{"en":{"value":"one"}}}\n]\n', "no triple between two entities"),
        (b'[\n{"type":"item","id":"Q1"}\n]\n', "holds no entity with a name"),
        (b"", "is empty"),
        (b"PK\3\4", "no Wikidata JSON dump"),
    ],
)
def test_a_dump_of_nothing_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build_kb(job(tmp_path, content))
    assert not (tmp_path / "kb" / "manifest.json").exists()
