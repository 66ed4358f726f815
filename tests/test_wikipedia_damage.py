"""Inputs that are cut off or damaged: named by file and byte, what came before kept, and gone on with where allowed."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_tools.build import build_corpus
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.config import CorpusJob
from erica_dist.errors import DamagedInputError
from erica_dist.settings import dump
from erica_dist.shards.verify import verify
from tests.corpora import corpus_job, folder_bytes
from tests.test_wikipedia_dump import HEAD, TAIL, page
from tests.test_wikipedia_ranges import write_multistream


def kept(path: Path, range_bytes: int = 0) -> list[int]:
    """Ids of the pages that are read with `allow_incomplete`."""
    units = plan_ranges([path], 7, range_bytes=range_bytes, allow_incomplete=True)
    return [one.page_id for unit in units for one in read_unit(unit)[0]]


def refusal(path: Path, range_bytes: int = 0) -> str:
    with pytest.raises(DamagedInputError) as error:
        plan_ranges([path], 7, range_bytes=range_bytes)
    assert str(path) in str(error.value)
    return str(error.value)


def long_page(number: int) -> str:
    """A page whose text does not pack well, so that a few hundred of them fill several blocks."""
    return page(number, f"T {number}", " ".join(f"x{hash_like(number, word)}" for word in range(150)))


def hash_like(number: int, word: int) -> int:
    return (number * 2_654_435_761 + word * 40_503_009_137) % 999_999_937


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One stream of five blocks of 100 kB, 300 pages."""
    path = tmp_path_factory.mktemp("single") / "d.xml.bz2"
    text = HEAD + "".join(map(long_page, range(1, 301))) + TAIL
    path.write_bytes(bz2.compress(text.encode(), 1))
    return path


@pytest.mark.parametrize("range_bytes", [0, 600])
def test_a_multistream_that_is_cut_off(tmp_path: Path, range_bytes: int) -> None:
    path = write_multistream(tmp_path)
    data = path.read_bytes()
    streams = [place for place in range(len(data)) if data[place : place + 3] == b"BZh"]
    # three bytes before the end of a stream its text is there, and only the checksum of the whole is not
    for size, pages in ((streams[9], 32), (streams[9] + 40, 32), (streams[10] - 3, 36), (len(data) - 3, 60)):
        path.write_bytes(data[:size])
        text = refusal(path, range_bytes)
        # where the index names streams that are not there, that is said before anything is read
        assert f"byte {size}" in text
        assert kept(path, range_bytes) == list(range(1, pages + 1))
    path.write_bytes(data[: streams[1] - 3])
    assert "the index is another dump's" in refusal(path, range_bytes)
    assert kept(path, range_bytes) == []


@pytest.mark.parametrize("range_bytes", [0, 20_000])
def test_a_multistream_without_index_that_is_cut_off_between_streams(tmp_path: Path, range_bytes: int) -> None:
    path = write_multistream(tmp_path)
    next(tmp_path.glob("*index*")).unlink()
    data = path.read_bytes()
    streams = [place for place in range(len(data)) if data[place : place + 3] == b"BZh"]
    for size in (streams[9], streams[-1]):
        path.write_bytes(data[:size])
        assert "the XML ends too early" in refusal(path, range_bytes)
        assert kept(path, range_bytes) == list(range(1, 33 if size == streams[9] else 61))


@pytest.mark.parametrize("range_bytes", [0, 30_000, 7000])
def test_a_single_stream_that_is_cut_off(tmp_path: Path, single: Path, range_bytes: int) -> None:
    path = tmp_path / "cut.xml.bz2"
    size = single.stat().st_size * 2 // 3
    path.write_bytes(single.read_bytes()[:size])
    assert f"{path}: the bz2 file is cut off at byte {size}" in refusal(path, range_bytes)
    ids = kept(path, range_bytes)
    assert ids == list(range(1, len(ids) + 1))
    assert 100 < len(ids) < 200


@pytest.mark.parametrize("range_bytes", [0, 30_000, 7000])
def test_a_flipped_bit_loses_no_page_of_another_range(tmp_path: Path, single: Path, range_bytes: int) -> None:
    path = tmp_path / "flipped.xml.bz2"
    data = bytearray(single.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    text = refusal(path, range_bytes)
    assert "damaged bz2 data in the block at byte" in text
    ids = kept(path, range_bytes)
    assert ids == sorted(set(ids))
    assert ids[:90] == list(range(1, 91))
    if range_bytes:
        # the ranges after the damaged block are read
        assert ids[-80:] == list(range(221, 301))
    assert 20 < 300 - len(ids) < 210


def test_every_cut_of_a_plain_dump_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "d.xml"
    text = (HEAD + "".join(page(number, f"T{number}", "x") for number in range(1, 6)) + TAIL).encode()
    for size in range(len(HEAD) + 1, len(text) - 2, 31):
        path.write_bytes(text[:size])
        for range_bytes in (0, 150):
            with pytest.raises(DamagedInputError, match="ends too early at byte"):
                plan_ranges([path], 7, range_bytes=range_bytes)
    path.write_bytes(text[: -len(TAIL)])
    assert kept(path, 150) == [1, 2, 3, 4, 5]


def test_json_lines_in_a_cut_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    lines = "".join(json.dumps({"title": f"T{n}", "text": str(hash_like(n, 1)) * 40}) + "\n" for n in range(5000))
    data = gzip.compress(lines.encode())
    path.write_bytes(data[: len(data) - 30])
    assert f"{path}: the file is cut off at byte {len(data) - 30}" in refusal(path)
    ids = kept(path)
    assert ids == list(range(1, len(ids) + 1))
    assert len(ids) > 4000
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 64
    path.write_bytes(flipped)
    assert "damaged data before byte" in refusal(path)
    assert 1000 < len(kept(path)) < 5000


# ------------------------------------------------------------------------------------------------ the build


def cut_job(folder: Path, out: str) -> CorpusJob:
    """The small world, its pages as a gzip file that is cut off."""
    job = corpus_job(folder, out, pages=400)
    path = folder / "cut.jsonl.gz"
    if not path.exists():
        lines = Path(job.inputs[0]).read_bytes().splitlines(keepends=True)
        # members of their own, so that only the last is lost
        data = b"".join(gzip.compress(b"".join(lines[first : first + 40])) for first in range(0, 400, 40))
        path.write_bytes(data[:-10])
    return dataclasses.replace(job, inputs=[str(path)], pages_per_task=50)


def test_a_build_stops_before_the_work_and_goes_on_where_it_is_allowed(tmp_path: Path) -> None:
    job = cut_job(tmp_path, "corpus")
    settings = tmp_path / "job.yaml"
    settings.write_text(dump(job))
    command = [sys.executable, "-m", "erica_dist.cli", "build-corpus", "--config", str(settings)]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    size = (tmp_path / "cut.jsonl.gz").stat().st_size
    assert first.returncode == 2
    assert f"cut.jsonl.gz: the file is cut off at byte {size}" in first.stderr
    assert "--allow-incomplete" in first.stderr
    assert "Traceback" not in first.stderr
    scans = {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus" / ".build" / "scan").iterdir()}
    assert len(scans) == 1
    again = subprocess.run([*command, "--allow-incomplete"], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"incomplete: {tmp_path / 'cut.jsonl.gz'}: the file is cut off" in again.stdout
    assert "scan" not in again.stderr
    verify(tmp_path / "corpus")
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    (lost,) = manifest["incomplete"]
    assert lost["file"] == "cut.jsonl.gz"
    assert lost["place"] == f"cut.jsonl.gz, bytes 0 to {size}"
    assert f"cut off at byte {size}" in lost["text"]
    assert manifest["counts"]["pages"]["pages read"] == 399  # the last line may be half a one
    # nothing of the way there shows
    build_corpus(dataclasses.replace(cut_job(tmp_path, "at-once"), allow_incomplete=True))
    assert folder_bytes(tmp_path / "at-once") == folder_bytes(tmp_path / "corpus")


def test_a_whole_input_is_not_marked(tmp_path: Path) -> None:
    manifest = build_corpus(dataclasses.replace(corpus_job(tmp_path, "corpus"), allow_incomplete=True))
    assert manifest["incomplete"] == []


def test_a_refused_build_leaves_no_folder_behind(tmp_path: Path) -> None:
    job = corpus_job(tmp_path, "corpus")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"title": 1}\n')
    for inputs in ([str(bad)], [str(tmp_path / "none.jsonl")]):
        with pytest.raises(Exception, match=r"bad\.jsonl:1|no input file"):
            build_corpus(dataclasses.replace(job, inputs=inputs))
        assert not (tmp_path / "corpus").exists()
    build_corpus(job)
    before = folder_bytes(tmp_path / "corpus")
    with pytest.raises(Exception, match="other inputs"):
        build_corpus(dataclasses.replace(job, seed=9))
    assert folder_bytes(tmp_path / "corpus") == before
    assert not (tmp_path / "corpus" / ".build").exists()


@pytest.mark.parametrize("place", [12, 60, len(HEAD) + 10, len(HEAD) + 40])
def test_damage_in_the_head_or_the_first_page_is_named_like_any_other(tmp_path: Path, place: int) -> None:
    text = (HEAD + page(1, "A", "text") + page(2, "B", "text") + TAIL).encode()
    path = tmp_path / "d.xml"
    path.write_bytes(text[:place] + b"<&\0" + text[place + 3 :])
    assert "fetch the dump again" in refusal(path)
    assert kept(path) == []


def test_a_first_page_without_an_id_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.xml"
    path.write_text(HEAD + page(1, "A", "text").replace("<id>1</id>", "<id>one</id>") + TAIL)
    assert "d.xml" in refusal(path)
