"""Sources -> units -> pages: articles only, each once, redirects resolved; a unit gives the same pages to anyone."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from data_tools.pages import Page, Paragraph
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.redirects import LOOP, RedirectMap, Redirects, follow
from data_tools.wikipedia.scan import title_hash
from data_tools.wikipedia.sources import source_kind
from data_tools.wikipedia.survey import plan_ranges, read_source
from erica_dist.errors import UserError
from tests.shared_files import shared
from tests.test_wikipedia_dump import HEAD, TAIL, page


def write_dump(path: Path, pages: list[str], streams: int = 1) -> Path:
    groups = [pages[i::streams] for i in range(streams)] if streams > 1 else [pages]
    parts = [HEAD, *("".join(group) for group in groups), TAIL]
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in parts))
    return path


def write_lines(path: Path, entries: list[dict]) -> Path:
    data = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_redirects(path: Path, redirects: list[tuple[str, str]], parts: int = 1) -> RedirectMap:
    gathered = Redirects()
    for part in range(parts):
        own = redirects[part::parts] if parts > 1 else redirects
        titles, targets = [title for title, _ in own], [target for _, target in own]
        hashes = [np.array([title_hash(text) for text in texts], np.uint64) for texts in (titles, targets)]
        gathered.add(titles, targets, *hashes)
    gathered.write(path)
    return RedirectMap(path)


def test_redirects_follow_chains_and_loops_lead_nowhere(tmp_path: Path) -> None:
    redirects = {"A": "B", "B": "C", "X": "Y", "Y": "X", "Z": "X", "S": "S", "O": "A", "U": "V", "V": "W", "W": "U"}
    redirects |= {f"Chain {i}": f"Chain {i + 1}" for i in range(100)}
    ends = {"A": "C", "B": "C", "X": "", "Y": "", "Z": "", "S": "", "O": "C", "U": "", "V": "", "W": "", "C": "C"}
    ends |= {f"Chain {i}": "Chain 100" for i in range(101)}
    for rows in (list(redirects.items()), list(redirects.items())[::-1]):
        found = write_redirects(tmp_path / "r", rows, parts=3)
        assert {title: found.resolve(title) for title in ends} == ends
    none = np.zeros(0, np.uint64)
    assert follow(none, none).tolist() == []
    assert follow(np.array([7], np.uint64), np.array([7], np.uint64)).tolist() == [LOOP]


def test_of_two_redirects_of_a_title_the_first_counts(tmp_path: Path) -> None:
    found = write_redirects(tmp_path / "r", [("A", "One"), ("B", "A"), ("A", "Two")])
    assert (found.resolve("A"), found.resolve("B")) == ("One", "One")


def test_the_redirect_file_is_the_same_in_any_order(tmp_path: Path) -> None:
    redirects = [(f"Titel {i} é", f"Titel {i + 1} é") for i in range(0, 200, 3)]
    write_redirects(tmp_path / "a", redirects)
    found = write_redirects(tmp_path / "b", redirects[::-1], parts=4)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert found.resolve("Titel 3 é") == "Titel 4 é"
    assert found.resolve("Elsewhere") == "Elsewhere"
    assert RedirectMap().resolve("Titel 3 é") == "Titel 3 é"
    assert write_redirects(tmp_path / "none", []).resolve("A") == "A"


def test_articles_are_kept_and_the_rest_is_counted_by_reason(tmp_path: Path) -> None:
    pages = [
        page(1, "One", "See [[Old name]], [[Loop a]] and [[two#x|Two]]."),
        page(2, "Two", "{{disambig}} * [[One]]"),
        page(3, "Names", "text {{Human name disambiguation|x}}"),
        page(4, "Three (disambiguation)", "text"),
        page(5, "Needs", "A [[x]]{{disambiguation needed|date=x}} article."),
        page(6, "List of dogs", "text"),
        page(7, "Loop a", "#REDIRECT [[Loop b]]", redirect="Loop b"),
        page(8, "Loop b", "#REDIRECT [[Loop a]]", redirect="Loop a"),
        page(9, "Old name", "#REDIRECT [[Older]]", redirect="Older"),
        page(10, "Older", "#REDIRECT [[One]]", redirect="One"),
        page(11, "Fails:x", "text", namespace=6),
        page(1, "One", "The same page again."),
        page(12, "Nothing", "{{x}}"),
    ]
    (unit,) = plan_ranges([write_dump(tmp_path / "d.xml.bz2", pages)], 100, tmp_path / "redirects")
    found, counts = read_unit(copy.deepcopy(unit))
    assert [found_page.title for found_page in found] == ["One", "Needs"]
    text = found[0].paragraphs[0].text
    assert [(text[link.start : link.end], link.target) for link in found[0].paragraphs[0].links] == [
        ("Old name", "One"),
        ("Two", "Two"),
    ]
    expected = {
        "pages read": 13,
        "pages kept": 2,
        "pages repeated": 1,
        "pages outside the article namespace": 1,
        "redirect pages": 4,
        "disambiguation pages": 3,
        "list pages": 1,
        "pages without text": 1,
        "links into a redirect loop": 1,
        "links through redirects": 2,
    }
    assert {key: counts[key] for key in expected} == expected


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("pages_per_task", [1, 2, 5, 100])
def test_any_cut_gives_the_same_pages(tmp_path: Path, pages_per_task: int, streams: int) -> None:
    pages = [page(number, f"T{number}", f"Text {number} of [[T{number - 1}]].") for number in range(1, 12)]
    pages.insert(5, page(3, "T3", "again"))
    dump = write_dump(tmp_path / "d.xml.bz2", pages, streams)
    lines = write_lines(
        tmp_path / "p.jsonl.gz", [{"title": f"L{i}", "text": f"é {i}\n\n second", "page_id": 100 + i} for i in range(7)]
    )
    whole = [p for unit in plan_ranges([dump, lines], 1000) for p in read_unit(unit)[0]]
    units = plan_ranges([dump, lines], pages_per_task)
    assert max(unit.count for unit in units) <= pages_per_task
    assert sum(unit.count for unit in units) == 19
    results = {unit: read_unit(unit)[0] for unit in reversed(units)}
    assert [p for unit in units for p in results[unit]] == whole
    assert len(whole) == 18
    assert whole[-1] == Page(106, "L6", (Paragraph("é 6"), Paragraph("second")))


def test_json_lines_without_page_id_are_numbered_by_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"title": "a_b", "text": "x"}\n\n{"title": "c", "text": "y\\n\\n z  z "}\n', encoding="utf-8")
    found, counts = read_source(path)
    assert list(found) == [
        Page(1, "A b", (Paragraph("x"),)),
        Page(3, "C", (Paragraph("y"), Paragraph("z z"))),
    ]
    assert counts["pages kept"] == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "not JSON"),
        ("[1]", "expected an object"),
        ('{"title": "a"}', "'text' is missing"),
        ('{"title": 3, "text": "x"}', "'title' is missing or no text"),
        ('{"title": "a", "text": "x", "page_id": "7"}', "'page_id' must be a whole number"),
        ('{"title": " ", "text": "x"}', "'title' is empty"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"title": "a", "text": "x"}\n' + line + "\n")
    with pytest.raises(UserError, match=reason) as error:
        plan_ranges([path], 10)
    assert f"{path}:2:" in str(error.value)


def test_a_cut_gzip_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl.gz", [{"title": str(i), "text": "x" * i} for i in range(500)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cut off at byte"):
        plan_ranges([path], 10)


def test_inputs_that_are_nothing_known_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no input file"):
        source_kind(tmp_path / "none.xml")
    odd = tmp_path / "odd.txt"
    odd.write_text("hello")
    with pytest.raises(UserError, match="neither a MediaWiki XML export"):
        source_kind(odd)
    odd.write_text("<mediawiki>")
    assert source_kind(odd) == "dump"
    odd.write_text('{"title": 1}')
    assert source_kind(odd) == "jsonlines"
    odd.write_text("\n")
    with pytest.raises(UserError, match="neither"):
        plan_ranges([odd], 10)
    empty = write_dump(tmp_path / "e.xml.bz2", [])
    with pytest.raises(UserError, match="holds no page"):
        plan_ranges([empty], 10)
    with pytest.raises(UserError, match="pages_per_task"):
        plan_ranges([empty], 0)


def test_an_input_that_shrank_is_noticed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"title": str(i), "text": "x"} for i in range(4)])
    (unit,) = plan_ranges([path], 10)
    write_lines(path, [{"title": "0", "text": "x"}])
    with pytest.raises(UserError, match="has changed since the build began"):
        read_unit(unit)


def test_real_dump_as_single_and_as_multistream_gives_the_same_articles() -> None:
    single = shared("data", "dumps", "enwiki-shortened-pages-articles.xml.bz2")
    multi = shared("data", "dumps", "enwiki-shortened-multistream.xml.bz2")
    unit_of = [plan_ranges([path], 12)[6] for path in (single, multi)]
    (pages, counts), (same, _) = (read_unit(unit) for unit in unit_of)
    assert pages == same
    assert counts["pages read"] == 12
    assert counts["links"] > 300
    for found in pages:
        for paragraph in found.paragraphs:
            ends = [0, *(end for link in paragraph.links for end in (link.start, link.end)), len(paragraph.text)]
            assert ends == sorted(ends)
            assert all(link.start < link.end and link.target for link in paragraph.links)
            assert not any(mark in paragraph.text for mark in ("[[", "]]", "{{", "}}", "<ref", "''"))
