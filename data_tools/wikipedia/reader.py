"""From input files to units of work, and from a unit to its pages.

    files --> one pass: pages counted, redirects collected, places to restart from --> units (small, picklable)
    unit --> raw pages --> articles only, each once --> clean paragraphs, links with redirects resolved --> pages

The kind of a file is told by its content. A unit is a range of input, so what it gives depends on nothing else: any
worker, in any order, any number of times, gets the same pages.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from data_tools.lines import read_lines
from data_tools.pages import Link, Page, Paragraph
from data_tools.wikipedia import dump
from data_tools.wikipedia.jsonlines import parse_line
from data_tools.wikipedia.redirects import RedirectMap, write_redirects
from data_tools.wikipedia.wikitext import Prefixes, to_paragraphs
from erica_dist.errors import UserError

Kind = Literal["dump", "jsonlines"]

_DISAMBIGUATION = re.compile(
    r"""__DISAMBIG__ | \{\{\s*(?:template:)?\s*(?:
        (?:[^{}|<>\n]*[ _-])? disambig (?:uation)? (?:[ _-]?(?:page|cleanup))?
      | [^{}|<>\n]*combdisambig | disamb | dab | dabpage | geodis | hndis | hndis-cleanup | mil-?unit-?dis
      | (?:airport|hospital|number|road|school|station|township|plant|fungus|genus|species) -? dis
      | begriffsklärung | homonymie | desambiguación | desambiguação | desambig | disambigua | doorverwijspagina
      | ujednoznacznienie | неоднозначность
    )\s*(?:\||\}\})""",
    re.IGNORECASE | re.VERBOSE,
)
_LIST_TITLE = re.compile(r"Lists? of ")


@dataclass(frozen=True)
class Unit:
    """A range of one input file: `count` pages from a place in it."""

    path: str
    kind: Kind
    first_page: int  # ordinal of the first page in the file, over all namespaces
    count: int
    offset: int  # byte to begin reading at: of the file (dump), of the unpacked text (JSON lines)
    skip: int  # dump: pages to skip from there; JSON lines: lines before `offset`
    repeated: tuple[int, ...] = ()  # ordinals of pages that stood before in the input
    redirects: str = ""  # file of the redirect map
    prefixes: Prefixes = field(default_factory=Prefixes)


def source_kind(path: str | Path) -> Kind:
    """Tell a dump from JSON lines by name, then by the first character.

    Raises:
        UserError: no such file, an empty one, or neither of the two.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no input file {path}")
    if re.search(r"\.(xml|bz2)$", str(path)):
        return "dump"
    if re.search(r"\.(jsonl|ndjson|json)(\.gz)?$", str(path)):
        return "jsonlines"
    first = next((line.content.lstrip(b"\xef\xbb\xbf \t")[:1] for line in read_lines(path)), b"")
    if first == b"<":
        return "dump"
    if first == b"{":
        return "jsonlines"
    raise UserError(f"{path} is neither a MediaWiki XML export (*.xml, *.xml.bz2) nor JSON lines (*.jsonl, *.jsonl.gz)")


def plan_ranges(
    paths: Sequence[str | Path], pages_per_task: int, redirects_file: str | Path | None = None
) -> list[Unit]:
    """Cut the inputs into units of `pages_per_task` pages, in order, in one pass over them.

    redirects_file: where to keep the redirects of all dumps together, for all units; None: links stay as written.
    A page that has the same id and title as an earlier one is marked as repeated.

    Raises:
        UserError: an input that is missing, empty, damaged or of no known kind.
    """
    if pages_per_task < 1:
        raise UserError(f"pages_per_task must be at least 1, got {pages_per_task}")
    units: list[Unit] = []
    redirects: dict[str, str] = {}
    seen: set[int] = set()
    for path in map(str, paths):
        kind = source_kind(path)
        prefixes = Prefixes.of(dump.namespaces(path)) if kind == "dump" else Prefixes()
        unit: Unit | None = None
        for number, (article, offset, skip) in enumerate(_places(path, kind, redirects)):
            if unit is None or unit.count == pages_per_task:
                if unit:
                    units.append(unit)
                unit = Unit(path, kind, number, 0, offset, skip, (), str(redirects_file or ""), prefixes)
            unit = replace(unit, count=unit.count + 1)
            if article in seen:
                unit = replace(unit, repeated=(*unit.repeated, number))
            elif article is not None:
                seen.add(article)
        if unit is None:
            raise UserError(f"{path} holds no page")
        units.append(unit)
    if redirects_file is not None:
        write_redirects(redirects_file, redirects)
    return units


def _places(path: str, kind: Kind, redirects: dict[str, str]) -> Iterator[tuple[int | None, int, int]]:
    """For each page: a hash of its id and title if it is an article, and the offset and skip of the place it is found.

    The dump's redirects are added to `redirects`.
    """
    if kind == "jsonlines":
        for line in read_lines(path):
            page = parse_line(path, line.number, line.content)
            yield hash((page.page_id, page.title)), line.offset, line.number - 1
        return
    for raw, restart in dump.scan(path):
        if raw.redirect:
            redirects.setdefault(raw.title, raw.redirect)
        article = raw.namespace == 0 and not raw.redirect
        yield hash((raw.page_id, raw.title)) if article else None, restart.offset, restart.skip


def read_unit(unit: Unit) -> tuple[list[Page], Counter[str]]:
    """The articles of one unit, and what was read, kept and dropped for what reason."""
    counts: Counter[str] = Counter()
    repeated = frozenset(unit.repeated)
    redirects = RedirectMap(unit.redirects)
    pages: list[Page] = []
    for number, page in enumerate(_pages(unit), unit.first_page):
        counts["pages read"] += 1
        if number in repeated:
            counts["pages repeated"] += 1
        elif isinstance(page, dump.RawPage):
            if article := _article(page, redirects, unit.prefixes, counts):
                pages.append(article)
        elif page.paragraphs:
            pages.append(page)
        else:
            counts["pages without text"] += 1
    if counts["pages read"] != unit.count:
        raise UserError(
            f"{unit.path}: expected {unit.count} pages from page {unit.first_page} on, found {counts['pages read']}; "
            "the file has changed since the build began: start the build anew"
        )
    counts["pages kept"] = len(pages)
    return pages, counts


def _pages(unit: Unit) -> Iterator[dump.RawPage | Page]:
    if unit.kind == "dump":
        yield from dump.read_range(unit.path, dump.Restart(unit.offset, unit.skip), unit.count)
        return
    lines = read_lines(unit.path, unit.offset, unit.skip + 1)
    for line in itertools.islice(lines, unit.count):
        yield parse_line(unit.path, line.number, line.content)


def _article(raw: dump.RawPage, redirects: RedirectMap, prefixes: Prefixes, counts: Counter[str]) -> Page | None:
    reason = (
        "pages outside the article namespace"
        if raw.namespace != 0
        else "redirect pages"
        if raw.redirect
        else "disambiguation pages"
        if raw.title.endswith("(disambiguation)") or _DISAMBIGUATION.search(raw.wikitext)
        else "list pages"
        if _LIST_TITLE.match(raw.title)
        else ""
    )
    if reason:
        counts[reason] += 1
        return None
    paragraphs, of_text = to_paragraphs(raw.wikitext, prefixes)
    counts.update(of_text)
    if not paragraphs:
        counts["pages without text"] += 1
        return None
    return Page(raw.page_id, raw.title, tuple(_resolved(paragraph, redirects, counts) for paragraph in paragraphs))


def _resolved(paragraph: Paragraph, redirects: RedirectMap, counts: Counter[str]) -> Paragraph:
    links: list[Link] = []
    for link in paragraph.links:
        target = redirects.resolve(link.target)
        counts["links"] += 1
        counts["links through redirects"] += target != link.target
        if target:
            links.append(replace(link, target=target))
        else:
            counts["links into a redirect loop"] += 1
    return replace(paragraph, links=tuple(links))


def read_source(path: str | Path) -> tuple[Iterator[Page], Counter[str]]:
    """All articles of one file, read as they are asked for, and the counts, which grow with them.

    Links stay as written: redirects need the whole dump first, as `plan_ranges` reads it.
    """
    counts: Counter[str] = Counter()

    def pages() -> Iterator[Page]:
        for unit in plan_ranges([path], pages_per_task=1000):
            of_unit, of_counts = read_unit(unit)
            counts.update(of_counts)
            yield from of_unit

    return pages(), counts
