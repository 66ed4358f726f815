"""The dump reader: real XML, all streams of a bz2, ranges, restarts, and refusals that name file and byte."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_tools.bz2_blocks import Block
from data_tools.wikipedia import dump, pieces
from data_tools.wikipedia.dump import RawPage, namespaces, read_pages, read_range
from erica_dist.errors import DamagedInputError, UserError
from tests.shared_files import SHARED

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" xml:lang="en">
  <siteinfo><sitename>W</sitename><namespaces><namespace key="0" case="first-letter" />
    <namespace key="6" case="first-letter">Fails</namespace></namespaces></siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(number: int, title: str, text: str = "", namespace: int = 0, redirect: str = "") -> str:
    inner = f'<redirect title="{redirect}" />' if redirect else ""
    body = f'<text xml:space="preserve" bytes="1">{text}</text>' if text else '<text bytes="0" />'
    return (
        f"  <page><title>{title}</title><ns>{namespace}</ns><id>{number}</id>{inner}"
        f"<revision><id>9{number}</id><contributor><id>77</id></contributor>{body}</revision></page>\n"
    )


PAGES = [
    page(1, "A_b", "x &lt;ref&gt;y&lt;/ref&gt; é😀"),
    page(2, "Empty"),
    page(3, "Neighbour", "z"),
    page(4, "Old", "#REDIRECT [[neighbour#Part]]"),
    page(5, "Moved", "#REDIRECT [[A b]]", redirect="A b"),
    page(6, "Talk:A", "talk", namespace=1),
]
EXPECTED = [
    RawPage(1, 0, "A b", "", "x <ref>y</ref> é😀"),
    RawPage(2, 0, "Empty", "", ""),
    RawPage(3, 0, "Neighbour", "", "z"),
    RawPage(4, 0, "Old", "Neighbour", "#REDIRECT [[neighbour#Part]]"),
    RawPage(5, 0, "Moved", "A b", "#REDIRECT [[A b]]"),
    RawPage(6, 1, "Talk:A", "", "talk"),
]


def write_plain(path: Path) -> Path:
    path.write_text(HEAD + "".join(PAGES) + TAIL, encoding="utf-8")
    return path


def write_single(path: Path) -> Path:
    path.write_bytes(bz2.compress((HEAD + "".join(PAGES) + TAIL).encode()))
    return path


def write_multistream(path: Path, pages_per_stream: int = 2) -> Path:
    streams = (
        [HEAD] + ["".join(PAGES[i : i + pages_per_stream]) for i in range(0, len(PAGES), pages_per_stream)] + [TAIL]
    )
    path.write_bytes(b"".join(bz2.compress(stream.encode()) for stream in streams))
    return path


def write_split(path: Path) -> Path:
    """Streams that end anywhere, also in the middle of a page."""
    data = (HEAD + "".join(PAGES) + TAIL).encode()
    path.write_bytes(b"".join(bz2.compress(data[i : i + 150]) for i in range(0, len(data), 150)))
    return path


def write_gz(path: Path) -> Path:
    path.write_bytes(gzip.compress((HEAD + "".join(PAGES) + TAIL).encode()))
    return path


def write_xz(path: Path) -> Path:
    path.write_bytes(lzma.compress((HEAD + "".join(PAGES) + TAIL).encode()))
    return path


WRITERS = [write_plain, write_single, write_multistream, write_split, write_gz, write_xz]
SPLITTABLE = [write_plain, write_single, write_multistream, write_split]


@pytest.mark.parametrize("write", WRITERS)
def test_all_pages_are_read_in_order(tmp_path: Path, write) -> None:
    path = write(tmp_path / "dump")
    assert list(read_pages(path)) == EXPECTED
    assert namespaces(path) == {"fails": 6}


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
@pytest.mark.parametrize("write", WRITERS)
def test_reading_restarts_at_any_page(tmp_path: Path, write, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "CHUNK", chunk)
    path = write(tmp_path / "dump")
    places = [place for _, place in read_range(path)]
    assert places == sorted(places)
    for number, place in enumerate(places):
        skip = number - places.index(place)
        assert [page for page, _ in read_range(path, place)][skip:] == EXPECTED[number:]


@pytest.mark.parametrize("step", [*range(1, 40), 97, 150, 1000])
@pytest.mark.parametrize("write", SPLITTABLE)
def test_ranges_share_the_pages_out(tmp_path: Path, write, step: int) -> None:
    """Each page once and in order, wherever the file is cut: within tags and texts, within blocks and streams."""
    path = write(tmp_path / "dump")
    size = path.stat().st_size
    found = []
    for start in range(0, size, step):
        stop = start + step if start + step < size else None
        part = list(read_range(path, start, stop))
        assert all(start <= place and (stop is None or place < stop) for _, place in part)
        found += [page for page, _ in part]
    assert found == EXPECTED


def test_a_tag_that_straddles_two_blocks_belongs_to_the_first(tmp_path: Path) -> None:
    data = (HEAD + "".join(PAGES) + TAIL).encode()
    tag = data.index(b"<page>", data.index(b"<page>") + 1)
    for cut in range(tag, tag + 7):
        path = tmp_path / f"{cut}.xml.bz2"
        path.write_bytes(bz2.compress(data[:cut]) + bz2.compress(data[cut:]))
        border = len(bz2.compress(data[:cut])) + 1
        first = [page for page, _ in read_range(path, 0, border)]
        second = [page for page, _ in read_range(path, border)]
        assert first + second == EXPECTED
        assert len(first) == (1 if cut == tag else 2)


def test_places_of_a_multistream_are_its_streams(tmp_path: Path) -> None:
    path = write_multistream(tmp_path / "dump.xml.bz2")
    places = [place for _, place in read_range(path)]
    assert [len(list(group)) for _, group in itertools.groupby(places)] == [2, 2, 2]
    # the first block begins after the four bytes of its stream's head
    assert all(path.read_bytes()[place - 4 :].startswith(b"BZh") for place in places)


def test_the_place_in_a_plain_dump_is_the_page_itself(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "dump.xml")
    data = path.read_bytes()
    for (raw, place), text in zip(read_range(path), PAGES, strict=True):
        assert data[place:].startswith(text.strip().encode()[:30]), raw.title


def test_old_exports_name_namespaces_by_prefix_in_every_range(tmp_path: Path) -> None:
    old = "".join(PAGES[:3]).replace("<ns>0</ns>", "") + page(9, "Fails:x").replace("<ns>0</ns>", "")
    path = tmp_path / "old.xml"
    path.write_text(HEAD + old + TAIL)
    assert [raw.namespace for raw in read_pages(path)] == [0, 0, 0, 6]
    last = [place for _, place in read_range(path)][-1]
    assert [raw.namespace for raw, _ in read_range(path, last, None, namespaces(path))] == [6]


def refusal(path: Path, kind: type[UserError] = UserError) -> str:
    with pytest.raises(kind) as error:
        list(read_pages(path))
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_truncated_bz2_is_refused_by_byte(tmp_path: Path) -> None:
    path = write_single(tmp_path / "cut.xml.bz2")
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    assert f"cut off at byte {len(data) - 10}" in refusal(path, DamagedInputError)


def test_a_multistream_that_ends_between_streams_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.xml.bz2"
    path.write_bytes(bz2.compress(HEAD.encode()) + bz2.compress(PAGES[0].encode()))
    assert "ends too early" in refusal(path, DamagedInputError)
    # the range before the last sees it, too: there is nothing after it that could
    with pytest.raises(DamagedInputError, match="ends too early"):
        list(read_range(path, 0, path.stat().st_size - 1))


def test_a_cut_after_the_last_page_is_seen_by_the_last_range_with_a_page(tmp_path: Path) -> None:
    path = tmp_path / "cut.xml"
    data = (HEAD + "".join(PAGES)).encode()
    for rest in (TAIL[:5], "  "):
        path.write_bytes(data + rest.encode())
        for stop in (len(data) - 1, len(data)):
            with pytest.raises(DamagedInputError, match="ends too early"):
                list(read_range(path, 0, stop))
            assert list(read_range(path, stop)) == []


def test_nothing_beyond_a_range_is_unpacked_without_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_BLOCK", 0)
    path = write_multistream(tmp_path / "dump.xml.bz2")
    borders = sorted({place for _, place in read_range(path)})
    unpacked: list[int] = []
    real = pieces.blocks

    def watched(path: Path, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        for block in real(path, start, stop):
            unpacked.append(block.position)
            yield block

    monkeypatch.setattr(pieces, "blocks", watched)
    for start, stop in itertools.pairwise(borders):
        unpacked.clear()
        assert len(list(read_range(path, start, stop))) == 2
        assert unpacked == [start]


def test_damaged_bz2_and_damaged_xml_are_refused(tmp_path: Path) -> None:
    path = write_single(tmp_path / "bad.xml.bz2")
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    assert "damaged bz2 data in the block at byte 4" in refusal(path, DamagedInputError)
    plain = tmp_path / "bad.xml"
    plain.write_text(HEAD + PAGES[0] + "<page></oops>" + TAIL)
    place = len((HEAD + PAGES[0] + "<page>").encode()) + 2
    assert f"damaged at byte {place}" in refusal(plain, DamagedInputError)
    reading = read_pages(plain)
    assert next(reading) == EXPECTED[0]
    with pytest.raises(DamagedInputError):
        next(reading)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello", "no MediaWiki XML export"),
        (b"<html></html>", "root element is <html>"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><mediawiki></mediawiki>', "document type"),
        ("<mediawiki></mediawiki>".encode("utf-16"), "UTF-16"),
        ("<mediawiki></mediawiki>".encode("utf-16-le"), "UTF-16"),
        (HEAD.encode() + b"<page><title>A</title><ns>0</ns><id>x</id></page></mediawiki>", "whole number"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    for name, data in (("plain.xml", content), ("packed.xml.bz2", bz2.compress(content) if content else content)):
        path = tmp_path / name
        path.write_bytes(data)
        assert reason in refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot read" in refusal(tmp_path / "none.xml")


DUMPS = SHARED / "data" / "dumps"


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the real dumps beside the repository are not here")
@pytest.mark.parametrize(
    ("name", "pages", "articles"),
    [
        ("enwiki-shortened-pages-articles", 206, 205),
        ("enwiki-shortened-multistream", 206, 205),
        ("dbpedia-minidump-en", 27, 26),
        ("smallwiki-ltgwiki-pages-articles", 2004, 1050),
    ],
)
def test_real_dumps_are_read_whole(name: str, pages: int, articles: int) -> None:
    path = DUMPS / f"{name}.xml.bz2"
    found = list(read_range(path))
    assert len(found) == pages
    assert sum(raw.namespace == 0 for raw, _ in found) == articles
    middle = pages // 2
    places = [place for _, place in found]
    skip = middle - places.index(places[middle])
    again = itertools.islice(read_range(path, places[middle]), skip, skip + 5)
    assert [raw for raw, _ in again] == [raw for raw, _ in found[middle : middle + 5]]
    size = path.stat().st_size
    parts = [read_range(path, start, start + 200_000) for start in range(0, size, 200_000)]
    assert [raw for part in parts for raw, _ in part] == [raw for raw, _ in found]


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the real dumps beside the repository are not here")
def test_a_real_utf16_dump_is_refused() -> None:
    assert "UTF-16" in refusal(DUMPS / "bgwiki-utf16-shortened-pages-articles.xml.bz2")
