"""Pages as WikiExtractor writes them: lines of its `<doc>` form, or the text of its JSON form -> pages with links.

In the `<doc>` form a page is `<doc id="12" url="..." title="A">`, its title, a blank line, one paragraph a line, and
`</doc>`. In both forms a section's heading is a short line that ends in ".", and, where they were extracted, links are
`<a href="percent-encoded title">surface</a>`; the text is HTML-escaped or not, anchors included. Paragraphs are written
as those of wikitext are: spans noted while writing, hanging punctuation tidied, markup left over counted and dropped.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from data_tools.pages import Page
from data_tools.wikipedia.line_ranges import PlacedLine
from data_tools.wikipedia.titles import normalise_title
from data_tools.wikipedia.writer import ParagraphWriter
from erica_dist.errors import DamagedInputError, UserError

_DOC = re.compile(rb'<doc (?=[^<]*\btitle=")(?=[^<]*\bid=")')
_ID = re.compile(r'\bid="\s*(\d+)\s*"')
_TITLE = re.compile(r'\btitle="(.*?)"(?:\s+\w+="[^"]*")*\s*>\s*$')
_END = b"</doc>"
_ANCHOR = re.compile(
    r"""(?:<|&lt;) a \s+ href= (?:"|&quot;|') ([^"'<>]*?) (?:"|&quot;|') \s* (?:>|&gt;)
        (.*?) (?:<|&lt;) /a (?:>|&gt;)""",
    re.VERBOSE | re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|\w+);")
_TAG = re.compile(
    r"</?(?:br|ref|nowiki|templatestyles|section|noinclude|onlyinclude|includeonly)\b[^<>]*>", re.IGNORECASE
)
_MARKED_HEADING = re.compile(r"Section::::(.*?)\.?(?::)?$")
_BULLET = re.compile(r"(?:BULLET|NUMBERED|INDENT)::::\s*(?:[-–0-9.]+\s+)?")
_EXTERNAL = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
_HEADING_WORDS, _HEADING_CHARACTERS = 8, 70


class PlacedDoc(NamedTuple):
    page: Page
    counts: Counter[str]  # paragraphs dropped by reason
    place: int
    number: int  # lines of the range before it


def read_docs(path: str | Path, start: int, lines: Iterable[PlacedLine]) -> Iterator[PlacedDoc]:
    """The pages whose `<doc>` line is one of the range's own; `lines` as `read_lines_of` gives them from `start` on.

    Raises:
        UserError: the file is not WikiExtractor's, or a page lacks its id or title.
        DamagedInputError: it ends within a page.
    """
    opened: PlacedLine | None = None
    body: list[str] = []
    seen = start > 0  # in the middle of a file the first lines are those of a page that began before
    for line in lines:
        if opened is None:
            if not line.owned:
                return
            if _DOC.match(line.content):
                opened, seen = line, True
            elif not seen and line.content.strip(b" \t\r\xef\xbb\xbf"):
                raise UserError(
                    f"{path}: it begins with {line.content[:40]!r}, not with a <doc id= title=> of WikiExtractor; name "
                    "the file after what it holds (.xml, .jsonl) or leave it out"
                )
        elif line.content.rstrip() == _END:
            yield PlacedDoc(*_page(path, opened, body), opened.place, opened.number)
            opened, body = None, []
        else:
            body.append(line.content.decode(errors="replace"))
    if opened is not None:
        raise DamagedInputError(
            f"{path}: the file is cut off within the page {opened.content.decode(errors='replace')} (after byte "
            f"{opened.place}): its </doc> is missing; extract it again"
        )


def _page(path: str | Path, opened: PlacedLine, body: list[str]) -> tuple[Page, Counter[str]]:
    tag = opened.content.decode(errors="replace")
    number, title = _ID.search(tag), _TITLE.search(tag)
    if not number or not title or not normalise_title(title.group(1)):
        raise UserError(f"{path}: {tag} after byte {opened.place} lacks an id or a title; extract it again")
    return extracted_page(int(number.group(1)), title.group(1), body)


def extracted_page(page_id: int, title: str, lines: Iterable[str]) -> tuple[Page, Counter[str]]:
    """The page of WikiExtractor's lines, and its paragraphs dropped by reason; a first line that repeats the title is
    left out."""
    title = normalise_title(title)
    kept = [stripped for line in lines if (stripped := line.strip())]
    if kept and normalise_title(kept[0]) == title:
        del kept[0]
    writer = ParagraphWriter()
    for place, line in enumerate(kept):
        heading = _heading(line, last=place + 1 == len(kept), first=place == 0)
        if heading is not None:
            writer.section = heading
        else:
            _write(writer, _BULLET.sub("", line))
    return Page(page_id, title, tuple(writer.paragraphs)), +writer.counts


def _heading(line: str, first: bool, last: bool) -> str | None:
    """The heading that this line is, without its full stop; None for a paragraph."""
    if marked := _MARKED_HEADING.match(line):
        return _shown(marked.group(1))
    is_short = len(line) < _HEADING_CHARACTERS and len(line.split()) <= _HEADING_WORDS
    if first or last or not is_short or not line.endswith(".") or "[[" in line:
        return None
    return _shown(line[:-1])


def _write(writer: ParagraphWriter, line: str) -> None:
    """Write the line as one paragraph."""
    last = 0
    for anchor in _ANCHOR.finditer(line):
        writer.write(_plain(line[last : anchor.start()]))
        writer.begin_link()
        writer.write(_plain(anchor.group(2)))
        writer.end_link(_target(anchor.group(1)))
        last = anchor.end()
    writer.write(_plain(line[last:]))
    writer.end_paragraph()


def _plain(escaped: str) -> str:
    return _TAG.sub(" ", _ENTITY.sub(lambda match: html.unescape(match.group()), escaped))


def _shown(line: str) -> str:
    """The line's text without its links."""
    return " ".join(_plain(_ANCHOR.sub(r"\2", line)).split())


def _target(href: str) -> str:
    if _EXTERNAL.match(href):
        return ""
    # An encoded "#" is part of no title, so the fragment may be cut before or after decoding
    return normalise_title(normalise_title(href).partition("#")[0])
