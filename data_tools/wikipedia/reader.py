"""A unit of work -> its articles: pages of any kind of input, each once, with links' redirects resolved.

    unit --> records of its range --> articles only --> clean paragraphs with links --> pages, counts

A unit is a range of input, so what it gives depends on nothing else: any worker, in any order, any number of times,
gets the same pages. `survey.py` makes the units.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace

from data_tools.pages import Link, Page, Paragraph
from data_tools.wikipedia.dump import RawPage
from data_tools.wikipedia.jsonlines import NO_ID
from data_tools.wikipedia.ranges import Range, records
from data_tools.wikipedia.redirects import RedirectMap
from data_tools.wikipedia.sources import Kind
from data_tools.wikipedia.wikitext import Prefixes, to_paragraphs
from erica_dist.errors import UserError

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
    """`count` pages of one input file from a place in it."""

    path: str
    kind: Kind
    first_page: int  # ordinal of the first page in the file, over all namespaces
    count: int
    start: int  # the place to begin reading at
    skip: int  # pages to skip from there
    first_line: int = 1  # JSON lines: number of the first page's line in the file
    repeated: tuple[int, ...] = ()  # ordinals of pages that stood before in the input
    redirects: str = ""  # file of the redirect map
    namespaces: tuple[tuple[str, int], ...] = ()  # dumps: of the head


def read_unit(unit: Unit) -> tuple[list[Page], Counter[str]]:
    """The articles of one unit, and what was read, kept and dropped for what reason.

    Raises:
        UserError: the file has changed since the unit was made, or cannot be read.
    """
    counts: Counter[str] = Counter()
    repeated = frozenset(unit.repeated)
    redirects = RedirectMap(unit.redirects)
    prefixes = Prefixes.of(dict(unit.namespaces))
    pages: list[Page] = []
    found = records(Range(unit.path, unit.kind, unit.start, None, namespaces=unit.namespaces))
    first_line = 0
    for number, record in enumerate(itertools.islice(found, unit.skip, unit.skip + unit.count)):
        counts["pages read"] += 1
        first_line = first_line if number else record.line
        page = record.page
        if number + unit.first_page in repeated:
            counts["pages repeated"] += 1
        elif reason := _no_article(page, unit.kind):
            counts[reason] += 1
        else:
            counts.update(record.counts)
            if isinstance(page, RawPage):
                paragraphs, of_text = to_paragraphs(page.wikitext, prefixes)
                counts.update(of_text)
                page = Page(page.page_id, page.title, tuple(paragraphs))
            elif page.page_id == NO_ID:
                page = replace(page, page_id=unit.first_line + record.line - first_line)
            if page.paragraphs:
                resolved = (_resolved(paragraph, redirects, counts) for paragraph in page.paragraphs)
                pages.append(replace(page, paragraphs=tuple(resolved)))
            else:
                counts["pages without text"] += 1
    if counts["pages read"] != unit.count:
        raise UserError(
            f"{unit.path}: expected {unit.count} pages from page {unit.first_page} on, found {counts['pages read']}; "
            "the file has changed since the build began: start the build anew"
        )
    counts["pages kept"] = len(pages)
    return pages, counts


def _no_article(page: RawPage | Page, kind: Kind) -> str:
    """Why this page is no article, "" where it is one."""
    if isinstance(page, RawPage):
        if page.namespace != 0:
            return "pages outside the article namespace"
        if page.redirect:
            return "redirect pages"
        if _DISAMBIGUATION.search(page.wikitext):
            return "disambiguation pages"
    elif kind == "jsonlines":
        return ""
    if page.title.endswith("(disambiguation)"):
        return "disambiguation pages"
    return "list pages" if _LIST_TITLE.match(page.title) else ""


def _resolved(paragraph: Paragraph, redirects: RedirectMap, counts: Counter[str]) -> Paragraph:
    if not paragraph.links:
        return paragraph
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
