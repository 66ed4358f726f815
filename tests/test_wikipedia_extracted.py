"""WikiExtractor's output: both forms, with and without links, escaped or not, plain and packed, files and folders."""

from __future__ import annotations

import bz2
import gzip
import html
import json
import lzma
from pathlib import Path

import pytest

from data_tools.pages import Link, Page, Paragraph
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.sources import source_kind
from data_tools.wikipedia.survey import plan_ranges, read_source
from erica_dist.errors import DamagedInputError, UserError
from tests.shared_files import shared

BODY = [
    "Tom &amp; Jerry",
    "",
    'A <a href="Cartoon%20series">cartoon</a> by <a href="MGM">M G  M</a>, é <a href="caf%C3%A9%23Menu">café</a>.',
    "History.",
    "Early years.",
    'It began in 1940 &lt;or so&gt;, see <a href="http://example.org/x">the site</a> and <a href="x"></a>.',
    "It went on for a long time, for many, many years indeed.",
    "Short last line.",
]
FIRST = "A cartoon by M G M, é café."
PAGE = Page(
    5,
    "Tom & Jerry",
    (
        Paragraph(FIRST, (Link(2, 9, "Cartoon series"), Link(13, 18, "MGM"), Link(22, 26, "Café")), section=""),
        Paragraph("It began in 1940 <or so>, see the site and.", (), "Early years"),
        Paragraph("It went on for a long time, for many, many years indeed.", (), "Early years"),
        Paragraph("Short last line.", (), "Early years"),
    ),
)


def doc(number: int, title: str, body: list[str]) -> str:
    return f'<doc id="{number}" url="http://x/wiki?curid={number}" title="{title}">\n' + "\n".join(body) + "\n</doc>\n"


def escaped(lines: list[str]) -> list[str]:
    """As WikiExtractor escapes: anchors too, quotation marks not; what stands escaped already is left."""
    return [line.replace("<", "&lt;").replace(">", "&gt;") for line in lines]


def documents(count: int) -> str:
    return "".join(
        doc(number, f"T{number}", [f"T{number}", "", f"Text {number}.", ""]) for number in range(1, count + 1)
    )


@pytest.mark.parametrize("body", [BODY, escaped(BODY)])
@pytest.mark.parametrize("form", ["doc", "json"])
def test_text_headings_and_links_are_read(tmp_path: Path, form: str, body: list[str]) -> None:
    path = tmp_path / "wiki_00"
    if form == "doc":
        path.write_text(doc(5, "Tom &amp; Jerry", body), encoding="utf-8")
    else:
        entry = {"id": "5", "url": "http://x/wiki?curid=5", "title": "Tom & Jerry", "text": "\n".join(body[2:])}
        path.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    assert source_kind(path) == ("extracted" if form == "doc" else "jsonlines")
    found, counts = read_source(path)
    assert list(found) == [PAGE]
    assert counts["pages kept"] == 1
    for paragraph in PAGE.paragraphs:
        surfaces = [paragraph.text[link.start : link.end] for link in paragraph.links]
        assert surfaces == (["cartoon", "M G M", "café"] if paragraph.text == FIRST else [])


def test_plain_json_lines_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"title": "t", "text": "Short.\na <b> &amp; c\nend"}) + "\n")
    found, _ = read_source(path)
    (only,) = found
    assert only.paragraphs == (Paragraph("Short."), Paragraph("a <b> &amp; c"), Paragraph("end"))


@pytest.mark.parametrize("pack", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("pages_per_task", [1, 4, 100])
@pytest.mark.parametrize("range_bytes", [40, 500, 100_000])
def test_any_cut_gives_the_same_pages(tmp_path: Path, pack: str, pages_per_task: int, range_bytes: int) -> None:
    data = documents(12).encode()
    parts = [data[first : first + 100] for first in range(0, len(data), 100)]
    packers = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path = tmp_path / f"wiki_00{pack}"
    path.write_bytes(b"".join(packers[pack](part) for part in parts))
    units = plan_ranges([path], pages_per_task, range_bytes=range_bytes)
    found = [page for unit in units for page in read_unit(unit)[0]]
    assert found == [Page(number, f"T{number}", (Paragraph(f"Text {number}."),)) for number in range(1, 13)]


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    for name, first in (("AB/wiki_00", 5), ("AA/wiki_01", 3), ("AA/wiki_00", 1)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(doc(n, f"T{n}", [f"T{n}", "", "Text."]) for n in (first, first + 1)))
    (tmp_path / "AA" / "notes.txt").write_text("no pages")
    (tmp_path / "AB" / "wiki_01").write_text("")
    found = [page.page_id for unit in plan_ranges([tmp_path], 10) for page in read_unit(unit)[0]]
    assert found == [1, 2, 3, 4, 5, 6]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no wiki_\* files"):
        plan_ranges([tmp_path / "empty"], 10)


def test_markup_left_over_is_dropped_and_counted_and_hanging_punctuation_tidied(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    body = ["A", "", "Kept ( ; ) text, of A.", "{{left}} over", "a &lt;ref&gt;note", "* * *", "The last of them."]
    path.write_text(doc(1, "A", body))
    found, counts = read_source(path)
    (only,) = found
    assert [paragraph.text for paragraph in only.paragraphs] == ["Kept text, of A.", "a note", "The last of them."]
    assert (counts["paragraphs with leftover markup"], counts["paragraphs without a letter"]) == (1, 1)


def test_disambiguation_and_list_pages_are_known_by_title(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    titles = ["A (disambiguation)", "List of dogs", "A"]
    path.write_text("".join(doc(number, title, [title, "", "Text."]) for number, title in enumerate(titles)))
    found, counts = read_source(path)
    assert [page.title for page in found] == ["A"]
    assert (counts["disambiguation pages"], counts["list pages"]) == (1, 1)


def test_what_is_not_wikiextractors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wiki_00").write_text(documents(1))
    (tmp_path / "wiki_01").write_text("no document\n" + documents(1))
    with pytest.raises(UserError, match=r"wiki_01: it begins with b'no document'"):
        plan_ranges([tmp_path], 10)
    (tmp_path / "wiki_01").write_text('<doc id="x" title="A">\nA\n</doc>\n<doc url="1" id="3" title="">\n</doc>\n')
    with pytest.raises(UserError, match="lacks an id or a title"):
        plan_ranges([tmp_path], 10)
    (tmp_path / "wiki_01").write_text(documents(3)[:-8])
    with pytest.raises(DamagedInputError, match=r'wiki_01: the file is cut off within the page <doc id="3"'):
        plan_ranges([tmp_path], 10)
    (tmp_path / "w.jsonl").write_text('{"id": "x", "url": "u", "title": "a", "text": "b"}\n')
    with pytest.raises(UserError, match="'id' must be a whole number"):
        plan_ranges([tmp_path / "w.jsonl"], 10)


def test_real_extracted_text_is_read_whole() -> None:
    path = shared("data", "wikipedia-text", "wiki_AA_00-24.txt.xz")
    titles = set()
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("<doc "):
                titles.add(html.unescape(line.split('title="')[1].split('">')[0]))
    counts = 0
    for unit in plan_ranges([path], 2000):
        pages, of_unit = read_unit(unit)
        counts += of_unit["pages read"]
        assert {page.title for page in pages} <= titles
        text = " ".join(paragraph.text for page in pages for paragraph in page.paragraphs)
        assert "<doc" not in text
        sections = {paragraph.section for page in pages for paragraph in page.paragraphs}
        assert {"History", "Etymology and terminology"} <= sections
    assert counts == len(titles) == 1717
