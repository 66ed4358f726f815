"""The dump reader: real XML, all streams of a bz2, restarts, and refusals that name file and byte."""

from __future__ import annotations

import bz2
from pathlib import Path

import pytest

from data_tools.wikipedia import dump
from data_tools.wikipedia.dump import RawPage, Restart, namespaces, read_pages, read_range, scan
from erica_dist.errors import UserError
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


WRITERS = [write_plain, write_single, write_multistream, write_split]


@pytest.mark.parametrize("write", WRITERS)
def test_all_pages_are_read_in_order(tmp_path: Path, write) -> None:
    path = write(tmp_path / "dump")
    assert list(read_pages(path)) == EXPECTED
    assert namespaces(path) == {"fails": 6}


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
@pytest.mark.parametrize("write", WRITERS)
def test_reading_restarts_at_any_page(tmp_path: Path, write, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_CHUNK", chunk)
    path = write(tmp_path / "dump")
    places = [restart for _, restart in scan(path)]
    for first in range(len(EXPECTED)):
        for count in range(len(EXPECTED) - first + 1):
            assert list(read_range(path, places[first], count)) == EXPECTED[first : first + count]


def test_restarts_of_a_multistream_are_its_streams(tmp_path: Path) -> None:
    path = write_multistream(tmp_path / "dump.xml.bz2")
    places = [restart for _, restart in scan(path)]
    assert [place.skip for place in places] == [0, 1, 0, 1, 0, 1]
    assert len({place.offset for place in places}) == 3
    data = path.read_bytes()
    assert all(data[place.offset :].startswith(b"BZh") for place in places)


def test_a_plain_dump_restarts_at_the_page_itself(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "dump.xml")
    data = path.read_bytes()
    for (raw, restart), text in zip(scan(path), PAGES, strict=True):
        assert restart.skip == 0
        assert data[restart.offset :].startswith(text.strip().encode()[:30]), raw.title


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        list(read_pages(path))
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_truncated_bz2_is_refused_by_byte(tmp_path: Path) -> None:
    path = write_single(tmp_path / "cut.xml.bz2")
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    assert f"cut off at byte {len(data) - 10}" in refusal(path)


def test_a_multistream_that_ends_between_streams_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.xml.bz2"
    path.write_bytes(bz2.compress(HEAD.encode()) + bz2.compress(PAGES[0].encode()))
    assert "ends too early" in refusal(path)


def test_damaged_bz2_and_damaged_xml_are_refused(tmp_path: Path) -> None:
    path = write_single(tmp_path / "bad.xml.bz2")
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    assert "damaged bz2" in refusal(path) or "damaged at byte" in refusal(path)
    plain = tmp_path / "bad.xml"
    plain.write_text(HEAD + PAGES[0] + "<page></oops>" + TAIL)
    place = len((HEAD + PAGES[0] + "<page>").encode()) + 2
    assert f"damaged at byte {place}" in refusal(plain)


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
    found = list(scan(DUMPS / f"{name}.xml.bz2"))
    assert len(found) == pages
    assert sum(raw.namespace == 0 for raw, _ in found) == articles
    middle = pages // 2
    again = list(read_range(DUMPS / f"{name}.xml.bz2", found[middle][1], 5))
    assert again == [raw for raw, _ in found[middle : middle + 5]]
    assert found[0][1] == Restart(found[0][1].offset, 0)


@pytest.mark.skipif(not DUMPS.is_dir(), reason="the real dumps beside the repository are not here")
def test_a_real_utf16_dump_is_refused() -> None:
    assert "UTF-16" in refusal(DUMPS / "bgwiki-utf16-shortened-pages-articles.xml.bz2")
