"""Ranges, index, scan and units: planned without reading, each page in one unit, wherever and however files are cut."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_tools.pages import Page
from data_tools.wikipedia.dump import read_pages
from data_tools.wikipedia.line_ranges import line_number, read_lines_of
from data_tools.wikipedia.multistream import index_of
from data_tools.wikipedia.ranges import Range, plan, records
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.scan import ScanTask, read_scan, scan_name, scan_range
from data_tools.wikipedia.sources import sources
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.errors import DamagedInputError, UserError
from tests.shared_files import shared
from tests.test_wikipedia_dump import HEAD, TAIL, page

LINES = [f'{{"title": "T{number}", "text": "{"é" * (number % 5)} text {number}"}}' for number in range(40)]
LINES.insert(7, "")
LINES.insert(8, "  ")


def write_multistream(
    folder: Path, pages: int = 60, per_stream: int = 4, index: str = ".txt.bz2", start: int = 1
) -> Path:
    """A dump with its index, as the real ones are named."""
    path = folder / "xwiki-20300101-pages-articles-multistream.xml.bz2"
    data, listed = bz2.compress(HEAD.encode()), []
    for first in range(start, start + pages, per_stream):
        numbers = range(first, min(first + per_stream, start + pages))
        listed += [f"{len(data)}:{number}:T: {number}\n" for number in numbers]
        data += bz2.compress("".join(page(number, f"T: {number}", f"Text {number}.") for number in numbers).encode())
    path.write_bytes(data + bz2.compress(TAIL.encode()))
    content = "".join(listed).encode()
    beside = folder / f"xwiki-20300101-pages-articles-multistream-index{index}"
    beside.write_bytes(bz2.compress(content) if index.endswith(".bz2") else content)
    return path


def pages_of(paths: list[Path], pages_per_task: int, range_bytes: int = 0) -> list[Page]:
    return [one for unit in plan_ranges(paths, pages_per_task, range_bytes=range_bytes) for one in read_unit(unit)[0]]


def scans(path: Path, folder: Path, range_bytes: int = 0) -> list[dict]:
    folder.mkdir(exist_ok=True)
    parts = plan(sources([path]), range_bytes)
    return [scan_range(ScanTask(part, scan_name(part, "x"), str(folder))) for part in parts]


# ------------------------------------------------------------------------------------------------ index


@pytest.mark.parametrize("index", [".txt.bz2", ".txt"])
def test_groups_of_streams_are_ranges_of_known_size(tmp_path: Path, index: str) -> None:
    path = write_multistream(tmp_path, index=index)
    streams = [place for place in range(path.stat().st_size) if path.read_bytes()[place : place + 3] == b"BZh"]
    parts = plan(sources([path]), range_bytes=1)
    assert [part.start for part in parts] == [0, *streams[2:-1]]
    assert [part.stop for part in parts] == [*streams[2:-1], None]
    assert [part.listed for part in parts] == [4] * 15
    assert dict(parts[0].namespaces) == {"fails": 6}
    assert [part.listed for part in plan(sources([path]), range_bytes=700)] != [4] * 15
    assert sum(part.listed for part in plan(sources([path]), range_bytes=700)) == 60
    assert [part.listed for part in plan(sources([path]))] == [60]
    assert [[record.page.page_id for record in records(part)] for part in parts] == [
        list(range(first, first + 4)) for first in range(1, 61, 4)
    ]


def test_planning_reads_no_more_than_the_head(tmp_path: Path) -> None:
    path = write_multistream(tmp_path)
    before = plan(sources([path]), range_bytes=500)
    data = bytearray(path.read_bytes())
    for place in range(len(bz2.compress(HEAD.encode())) + 300, len(data)):
        if data[place : place + 3] != b"BZh" and b"BZ" not in data[place - 2 : place + 3]:
            data[place] = 0
    path.write_bytes(data)
    assert plan(sources([path]), range_bytes=500) == before


def test_an_index_of_another_dump_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = write_multistream(tmp_path, index=".txt")
    index = index_of(path)
    assert index is not None
    text = index.read_text()
    first = int(text.split(":")[0])
    index.write_text(text.replace(f"{first}:", f"{first + 1}:"))
    with pytest.raises(UserError, match=f"names a stream at byte {first + 1} .*but none starts there.*remove it"):
        plan(sources([path]))
    index.write_text(text.replace("\n", "\nnonsense\n", 1))
    with pytest.raises(UserError, match=r"index\.txt:2: expected `offset:page id:title`"):
        plan(sources([path]))
    index.write_text("")
    with pytest.raises(UserError, match=r"is empty.*remove it"):
        plan(sources([path]))
    index.write_text(text + f"{path.stat().st_size + 5}:99:Z\n")
    with pytest.raises(DamagedInputError, match=rf"ends at byte {path.stat().st_size}, .*remove the index"):
        plan(sources([path]))
    index.write_text(text + text.splitlines()[-1] + "\n")
    with pytest.raises(UserError, match="names 61 pages here, the dump holds 60; the index is not of this dump"):
        plan_ranges([path], 10)
    index.unlink()
    assert len(pages_of([path], 10)) == 60


def test_the_index_of_a_part_has_the_names_of_the_part(tmp_path: Path) -> None:
    for dump, index in (
        ("e-multistream3.xml-p5p77.bz2", "e-multistream-index3.txt-p5p77.bz2"),
        ("e-multistream.xml.bz2", "e-multistream-index.txt"),
    ):
        (tmp_path / index).touch()
        assert index_of(tmp_path / dump) == tmp_path / index
    assert index_of(tmp_path / "e-pages-articles.xml.bz2") is None
    assert index_of(tmp_path / "other-multistream.xml.bz2") is None


# ------------------------------------------------------------------------------------------------ lines


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2"])
@pytest.mark.parametrize("step", [1, 7, 50, 333, 5000])
def test_ranges_share_the_lines_out(tmp_path: Path, packed: str, step: int) -> None:
    path = write_lines(tmp_path / f"p.jsonl{packed}", LINES)
    found = []
    for part in plan(sources([path]), step):
        own = [line for line in read_lines_of(path, part.start, part.stop) if line.owned]
        assert [line.number for line in own] == list(range(len(own)))
        found += [line.content.decode() for line in own]
        if own and not packed:
            assert line_number(path, part.start, 0) == len(found) - len(own) + 1
    assert found == LINES


def write_lines(path: Path, lines: list[str]) -> Path:
    data = ("\n".join(lines) + "\n").encode()
    if path.suffix == ".bz2":
        third = len(data) // 3
        data = b"".join(bz2.compress(data[first : first + third]) for first in range(0, len(data), third))
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2"])
@pytest.mark.parametrize("pages_per_task", [1, 3, 100])
@pytest.mark.parametrize("range_bytes", [20, 150, 100_000])
def test_pages_without_id_are_numbered_by_line_in_any_cut(
    tmp_path: Path, packed: str, pages_per_task: int, range_bytes: int
) -> None:
    path = write_lines(tmp_path / f"p.jsonl{packed}", LINES)
    found = pages_of([path], pages_per_task, range_bytes)
    assert [one.page_id for one in found] == [number for number in range(1, 43) if number not in (8, 9)]
    assert [one.title for one in found] == [f"T{number}" for number in range(40)]


@pytest.mark.parametrize("range_bytes", [30, 100, 100_000])
def test_a_malformed_line_is_named_in_any_range(tmp_path: Path, range_bytes: int) -> None:
    path = write_lines(tmp_path / "p.jsonl", [*LINES, '{"title": 3}'])
    with pytest.raises(UserError, match=r"p\.jsonl:43: 'title' is missing"):
        plan_ranges([path], 10, range_bytes=range_bytes)


# ------------------------------------------------------------------------------------------------ units


@pytest.mark.parametrize("range_bytes", [200, 900, 100_000])
@pytest.mark.parametrize("pages_per_task", [1, 7, 1000])
def test_units_do_not_depend_on_how_a_dump_is_cut(tmp_path: Path, range_bytes: int, pages_per_task: int) -> None:
    path = write_multistream(tmp_path)
    units = plan_ranges([path], pages_per_task, range_bytes=range_bytes)
    assert max(unit.count for unit in units) <= pages_per_task
    assert [unit.first_page for unit in units] == [
        sum(unit.count for unit in units[:number]) for number in range(len(units))
    ]
    found = [one for unit in units for one in read_unit(unit)[0]]
    assert [one.page_id for one in found] == list(range(1, 61))


def test_a_small_file_gives_enough_units_for_every_core(tmp_path: Path) -> None:
    path = write_multistream(tmp_path)
    assert [unit.count for unit in plan_ranges([path], 25)] == [20, 20, 20]


def test_each_page_once_over_all_inputs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = write_multistream(tmp_path, pages=20)
    second = write_multistream(tmp_path / "a", pages=20, start=11)
    found = pages_of([first, second], 3)
    assert [one.page_id for one in found] == list(range(1, 31))
    # in one dump also an id that comes back under another title; over two dumps ids may mean different things
    moved = tmp_path / "moved.xml"
    moved.write_text(HEAD + page(1, "A", "x") + page(2, "B", "x") + page(1, "C", "x") + TAIL)
    other = tmp_path / "other.xml"
    other.write_text(HEAD + page(1, "D", "x") + TAIL)
    assert [one.title for one in pages_of([moved, other], 1)] == ["A", "B", "D"]


def test_a_scan_is_read_back_as_it_was_and_a_damaged_one_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "d.xml"
    path.write_text(HEAD + page(1, "Ä", "x") + page(2, "B", "y", redirect="Ä") + page(3, "Fails:x", "z", 6) + TAIL)
    (part,) = plan(sources([path]))
    assert scan_range(ScanTask(part, "s", str(tmp_path))) == {"pages": 3, "damage": "", "refused": ""}
    scan = read_scan(tmp_path, "s")
    assert scan is not None
    assert (scan.titles, scan.targets, scan.counts) == (["B"], ["Ä"], {"namespace 0": 2, "namespace 6": 1})
    assert [key != 0 for key in scan.keys] == [True, False, False]
    data = (tmp_path / "s.npz").read_bytes()
    (tmp_path / "s.npz").write_bytes(data[: len(data) // 2])
    assert read_scan(tmp_path, "s") is None
    names = {
        scan_name(part, "content"),
        scan_name(part, "other content"),
        scan_name(dataclasses.replace(part, start=5), "content"),
        scan_name(dataclasses.replace(part, stop=9), "content"),
    }
    assert len(names) == 4


# ------------------------------------------------------------------------------------------------ real and made dumps


@pytest.mark.parametrize("range_bytes", [0, 150_000])
def test_the_real_multistream_gives_the_pages_of_the_single_stream(range_bytes: int) -> None:
    single = shared("data", "dumps", "enwiki-shortened-pages-articles.xml.bz2")
    multi = shared("data", "dumps", "enwiki-shortened-multistream.xml.bz2")
    assert index_of(multi) is not None

    def raw_pages(path: Path, pages_per_task: int) -> list:
        units = plan_ranges([path], pages_per_task, range_bytes=range_bytes)
        found = []
        for unit in units:
            part = Range(unit.path, unit.kind, unit.start, None, namespaces=unit.namespaces)
            own = itertools.islice(records(part), unit.skip, unit.skip + unit.count)
            found += [record.page for record in own]
        return found

    assert raw_pages(multi, 50) == raw_pages(single, 37) == list(read_pages(single))
    assert len(plan_ranges([single], 50)) == 5


def test_a_real_utf16_dump_is_refused_before_the_work() -> None:
    with pytest.raises(UserError, match=r"is UTF-16 at byte 0; .*iconv"):
        plan(sources([shared("data", "dumps", "bgwiki-utf16-shortened-pages-articles.xml.bz2")]))


@pytest.mark.parametrize("options", [["--seed", "1"], ["--seed", "2", "--rate", "redirect=1", "--rate", "empty=0.2"]])
def test_made_dumps_are_counted_exactly(tmp_path: Path, options: list[str]) -> None:
    maker = shared("tools", "make_wikipedia_dump.py")
    text, kb = shared("data", "wikipedia-text", "wiki_AA_00-24.txt.xz"), shared("data", "kb-wikidata")
    options = [*options, "--articles", "100", "--pages-per-stream", "10", "--kb", str(kb), "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(maker), str(text), *options], check=True, capture_output=True)
    truth = json.loads(next(tmp_path.glob("*-counts.json")).read_text())
    path = next(tmp_path.glob("*multistream.xml.bz2"))
    counts: Counter[str] = Counter()
    parts = plan(sources([path]), 100_000)
    assert len(parts) > 3
    redirects = 0
    for number, part in enumerate(parts):
        assert scan_range(ScanTask(part, str(number), str(tmp_path)))["pages"] == part.listed
        scan = read_scan(tmp_path, str(number))
        assert scan is not None
        counts.update(scan.counts)
        redirects += len(scan.titles)
    assert counts == {
        f"namespace {name.removeprefix('pages_ns')}": number
        for name, number in truth.items()
        if name.startswith("pages_ns")
    }
    assert counts.total() == truth["pages"]
    assert redirects == truth.get("redirect_pages", 0)
    of_pages: Counter[str] = Counter()
    for unit in plan_ranges([path], 20, tmp_path / "redirects"):
        of_pages.update(read_unit(unit)[1])
    assert of_pages["pages read"] == truth["pages"]
    assert of_pages["redirect pages"] == redirects
    # of the source's articles a few are disambiguation pages or lists themselves
    made = sum(raw.wikitext.endswith("{{disambiguation}}") for raw in read_pages(path))
    assert made == truth.get("disambig", 0)
    dropped = of_pages["disambiguation pages"] - made + of_pages["list pages"] + of_pages["pages without text"]
    assert of_pages["pages repeated"] == 0
    assert of_pages["pages kept"] + dropped == truth["articles"] + truth.get("empty", 0)
