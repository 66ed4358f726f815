"""Visible pieces of a page, in order --> paragraphs of plain text with the spans of their links.

White space is collapsed as it is written, so a span is the place where the writer stood and is never searched for.
A finished paragraph loses the sentences that something removed has left hollow, and the punctuation that removed
templates have left hanging (spans move along). It is kept, or dropped and counted: with markup left over, or without a
letter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from data_tools.pages import Link, Paragraph
from data_tools.sentences import sentence_spans

_TIDY = re.compile(
    r"""\s[(\[][\s;,:–-]*[)\]]   # brackets that a removed template has emptied,
      | ^[(\[][\s;,:–-]*[)\]]\s*
      | (?<=[(])(?:\s|[;,:](?=\s|\)))+    # what it has left after an opening bracket,
      | (?:\s|(?<=\s)[;,:]|[;,](?=\s*\)))+(?=[)])   # before a closing one,
      | \s(?=[,.;](?:\s|$))               # or before a comma
      | (?<=[,;])\s*,(?=\s)""",
    re.VERBOSE,
)
# Wherever `_TIDY` finds something, one of these does. Each begins with one character, which is found at memory speed.
_BEFORE_MARK = re.compile(r" [,.;:)]")
_AFTER_COMMA = re.compile(r",[,)]")
_AFTER_SEMICOLON = re.compile(r";[,)]")
_OPENED = re.compile(r"\([\s;,:–\-)\]]")
_OPENED_SQUARE = re.compile(r"\[[\s;,:–\-)\]]")
_LEFTOVER = re.compile(
    r"""\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||\|-|''|^==|==$|\[https?:|(?:\bthumb|[0-9]px)\||\|[a-z]+=
      | </?(?:ref|br|div|span|small|sup|sub|table|tr|td|th|blockquote|center|font
                |nowiki|gallery|math|code|p|b|i|u)\b""",
    re.VERBOSE | re.IGNORECASE,
)
HOLE = "\ufffc"  # stands in a sentence for what was removed from it; never left in a text
# Beside a sentence or in brackets of its own, something removed is not missed.
_NOT_MISSED = re.compile(
    rf"""^(?:{HOLE}|\s)+
      | (?<=[.!?:…"”)])\s*(?:{HOLE}|\s)*{HOLE}(?=\s*$|\s+["“(]?[A-Z])
      | (?<=[(\[])\s*{HOLE}\s*(?=[)\]])""",
    re.VERBOSE,
)
_LETTER = re.compile(r"[^\W\d_]")


@dataclass
class ParagraphWriter:
    """Collapses white space, notes where links stand, and ends paragraphs at blank lines."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    section: str = ""
    one_line: bool = False  # in a list item, which ends with its line
    one_paragraph: bool = False  # all that is written is one text, to be fetched by `text`
    _pieces: list[str] = field(default_factory=list)
    _length: int = 0
    _blank: bool = False  # white space is due before the next visible character
    _newlines: int = 0
    _links: list[Link] = field(default_factory=list)
    _link_start: int | None = None
    _in_link: bool = False

    def write(self, text: str) -> None:
        if "\n" not in text:
            self._write_line(text)
            return
        for number, line in enumerate(text.split("\n")):
            if number:
                self._newlines += 1
                self._blank = True
                if self.one_line or self._newlines > 1:
                    self.end_paragraph()
            self._write_line(line)

    def _write_line(self, line: str) -> None:
        words = line.split()
        if not words:
            self._blank = self._blank or bool(line)
            return
        if self._length and (self._blank or line[0].isspace()):
            self._pieces.append(" ")
            self._length += 1
        if self._in_link and self._link_start is None:
            self._link_start = self._length
        shown = " ".join(words)
        self._pieces.append(shown)
        self._length += len(shown)
        self._blank = line[-1].isspace()
        self._newlines = 0

    def begin_link(self) -> None:
        self._in_link, self._link_start = True, None

    def end_link(self, target: str) -> None:
        """The link's surface is what was written since `begin_link`, without blanks at its ends; no link to ""."""
        if target and self._link_start is not None and self._length > self._link_start:
            self._links.append(Link(self._link_start, self._length, target))
        self._in_link, self._link_start = False, None

    def text(self) -> str:
        """What has been written of the paragraph that is not yet ended."""
        return " ".join("".join(self._pieces).replace(HOLE, "").split())

    def end_paragraph(self) -> None:
        if self.one_paragraph:
            self._blank = True
            return
        text, links = "".join(self._pieces), self._links
        if HOLE in text:
            text, links, hollow = without_hollow_sentences(text, links)
            self.counts["hollow sentences removed"] += hollow
        text, links = tidied(text, links)
        self._pieces, self._links, self._length = [], [], 0
        self._blank, self._newlines, self.one_line = False, 0, False
        self._link_start = None
        if not text:
            return
        if has_markup(text):
            self.counts["paragraphs with leftover markup"] += 1
        elif not _LETTER.search(text):
            self.counts["paragraphs without a letter"] += 1
        else:
            self.paragraphs.append(Paragraph(text, tuple(links), self.section))


def has_markup(text: str) -> bool:
    """Whether wikitext or HTML is left in a text."""
    # These look-ups are all that most paragraphs cost; a regular expression tries something at every character.
    suspect = "[" in text or "]" in text or "{" in text or "}" in text or "|" in text or "''" in text
    return (suspect or "==" in text or "<" in text) and _LEFTOVER.search(text) is not None


def without_hollow_sentences(text: str, links: list[Link]) -> tuple[str, list[Link], int]:
    """The text without the sentences that hold a `HOLE`, and how many there were."""
    text, links = _deleted(text, links, [match.span() for match in _NOT_MISSED.finditer(text) if match.group()])
    sentences = sentence_spans(text) if HOLE in text else []
    hollow = [number for number, (start, end) in enumerate(sentences) if HOLE in text[start:end]]
    starts = [*(start for start, _ in sentences), len(text)]
    text, links = _deleted(text, links, [(starts[number], starts[number + 1]) for number in hollow])
    return text.rstrip(), links, len(hollow)


def tidied(text: str, links: list[Link]) -> tuple[str, list[Link]]:
    """Punctuation that removed templates have left hanging is deleted until none is left."""
    while _may_hang(text):
        spans = [match.span() for match in _TIDY.finditer(text) if match.end() > match.start()]
        if not spans:
            break
        text, links = _deleted(text, links, spans)
    return text, links


def _may_hang(text: str) -> bool:
    """True wherever `_TIDY` finds something."""
    before = _BEFORE_MARK.search(text) or _AFTER_COMMA.search(text) or _AFTER_SEMICOLON.search(text)
    return (before or _OPENED.search(text) or _OPENED_SQUARE.search(text)) is not None


def _deleted(text: str, links: list[Link], spans: Sequence[tuple[int, int]]) -> tuple[str, list[Link]]:
    """`text` without `spans` (ascending, disjoint); links move along, one whose surface vanishes is dropped."""
    kept: list[str] = []
    place = 0
    for start, end in spans:
        kept.append(text[place:start])
        place = end
    kept.append(text[place:])

    def moved(position: int) -> int:
        return position - sum(min(end, position) - start for start, end in spans if start < position)

    left = "".join(kept)
    shifted: list[Link] = []
    for link in links:
        surface = left[moved(link.start) : moved(link.end)]
        if surface.strip():
            start = moved(link.start) + len(surface) - len(surface.lstrip())
            shifted.append(Link(start, start + len(surface.strip()), link.target))
    return left, shifted
