"""Wikitext -> nodes, built only where they are looked at.

    wikitext --> mwparserfromhell's tokenizer (C) --> flat list of tokens, each opening one paired with its closing one
             --> nodes of the level that is asked for; what lies inside one is a range of the same list

The library's own tree costs four times as much as its tokenizer, and most of it is never seen: infoboxes, citations,
tables. Here a node that is passed over costs one jump. A test compares these nodes with that tree, page by page.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from html.entities import name2codepoint
from typing import NamedTuple

from mwparserfromhell.parser import ParserError, tokens

try:
    from mwparserfromhell.parser._tokenizer import CTokenizer as Tokenizer
except ImportError:  # the library installed without a compiler: the same tokens, a hundred times slower
    from mwparserfromhell.parser.tokenizer import Tokenizer

__all__ = [
    "Code",
    "Entity",
    "External",
    "Heading",
    "Hidden",
    "Node",
    "ParserError",
    "Tag",
    "Template",
    "Wikilink",
    "parse",
]

_OPENING = frozenset(
    [
        tokens.TemplateOpen, tokens.ArgumentOpen, tokens.WikilinkOpen, tokens.ExternalLinkOpen, tokens.HTMLEntityStart,
        tokens.HeadingStart, tokens.CommentStart, tokens.TagOpenOpen,
    ]
)  # fmt: skip
_CLOSING = frozenset(
    [
        tokens.TemplateClose, tokens.ArgumentClose, tokens.WikilinkClose, tokens.ExternalLinkClose,
        tokens.HTMLEntityEnd, tokens.HeadingEnd, tokens.CommentEnd, tokens.TagCloseClose, tokens.TagCloseSelfclose,
    ]
)  # fmt: skip

# The tokenizer reads on to the page's end for each opening that is never closed, and then again from behind it: a page
# of nothing else would take hours. Real pages have a handful; these limits are seconds of work.
_MOST_UNCLOSED = 300
_MOST_READ_AGAIN = 200_000_000  # characters: unclosed openings x length of the page
_PAIRS = (("{{", "}}"), ("[[", "]]"), ("{|", "|}"), ("[http", "]"))
_OPENED_TAG = re.compile(r"<(?!(?:br|wbr|hr|li|dt|dd|td|th|tr|img)\b)[a-z][^<>]*>?", re.IGNORECASE)


class Code(NamedTuple):
    """A run of nodes beside each other: tokens `start` to `end` of a page; `partner` is each opening token's end."""

    tokens: list[tokens.Token]
    partner: list[int]
    start: int
    end: int

    def part(self, start: int, end: int) -> Code:
        return Code(self.tokens, self.partner, start, end)

    def nodes(self) -> list[Node]:
        all_tokens, partner, index, end = self
        found: list[Node] = []
        while index < end:
            token = all_tokens[index]
            if type(token) is tokens.Text:
                found.append(token["text"])
            else:
                close = partner[index]
                found.append(_node(token, self.part(index + 1, close)))
                index = close
            index += 1
        return found

    def breaks(self, *kinds: type) -> Iterator[int]:
        """Places of the tokens of these kinds that lie in no node of this run."""
        index = self.start
        while index < self.end:
            kind = type(self.tokens[index])
            if kind in kinds:
                yield index
            index = self.partner[index] + 1 if kind in _OPENING else index + 1

    def first_break(self, *kinds: type) -> int:
        """The first of `breaks`, or the end of the run."""
        return next(self.breaks(*kinds), self.end)

    def source_text(self) -> str:
        """All text in this run, whatever node it is in, without the markup between."""
        return "".join(token["text"] for token in self.tokens[self.start : self.end] if type(token) is tokens.Text)


class Wikilink(NamedTuple):
    title: Code
    text: Code | None  # None: no bar


class External(NamedTuple):
    """A link to an address; `label` is None without one, and for a bare address in the text."""

    address: Code
    label: Code | None


class Heading(NamedTuple):
    level: int
    title: Code


class Entity(NamedTuple):
    character: str  # "" for a number that is no character


class Hidden(NamedTuple):
    """A comment, or an argument of the template that this page would be."""

    content: Code


class Template(NamedTuple):
    inside: Code

    @property
    def name(self) -> Code:
        return self.inside.part(self.inside.start, self.inside.first_break(tokens.TemplateParamSeparator))

    def parameters(self) -> Iterator[tuple[Code | None, Code]]:
        """Each parameter's name, None for a positional one, and its value."""
        borders = [*self.inside.breaks(tokens.TemplateParamSeparator), self.inside.end]
        for start, end in itertools.pairwise(borders):
            parameter = self.inside.part(start + 1, end)
            equals = parameter.first_break(tokens.TemplateParamEquals)
            if equals < end:
                yield parameter.part(start + 1, equals), parameter.part(equals + 1, end)
            else:
                yield None, parameter


class Tag(NamedTuple):
    """HTML, or the markup of lists, rules and tables, which is read as the tag that it stands for."""

    markup: str  # "" for HTML
    inside: Code

    @property
    def name(self) -> str:
        name = self.inside.part(self.inside.start, self._end_of_name())
        return name.source_text().strip().lower()

    def attributes(self) -> Code:
        return self.inside.part(self._end_of_name(), self._end_of_opening())

    def content(self) -> Code:
        """Empty for a tag that closes itself."""
        opened = self._end_of_opening()
        closing = [place for place in self.inside.breaks(tokens.TagOpenClose) if place > opened]
        return self.inside.part(min(opened + 1, self.inside.end), closing[-1] if closing else self.inside.end)

    def _end_of_name(self) -> int:
        return self.inside.first_break(tokens.TagAttrStart, tokens.TagCloseOpen)

    def _end_of_opening(self) -> int:
        return self.inside.first_break(tokens.TagCloseOpen)


Node = str | Wikilink | Template | Tag | External | Heading | Entity | Hidden


def parse(wikitext: str) -> Code:
    """The page's nodes; quotes of bold and italic text stay in the text.

    Raises:
        ParserError: the tokenizer gave up, or would take too long over markup that is never closed.
    """
    unclosed = sum(_unclosed(wikitext, opening, closing) for opening, closing in _PAIRS) + _unclosed_tags(wikitext)
    if unclosed > _MOST_UNCLOSED or unclosed * len(wikitext) > _MOST_READ_AGAIN:
        raise ParserError("too much unclosed markup")
    found = Tokenizer().tokenize(wikitext, 0, True)
    partner = [0] * len(found)
    opened: list[int] = []
    for index, token in enumerate(found):
        kind = type(token)
        if kind in _OPENING:
            opened.append(index)
        elif kind in _CLOSING:
            partner[opened.pop()] = index
    return Code(found, partner, 0, len(found))


def _unclosed(wikitext: str, opening: str, closing: str) -> int:
    """How many of these openings are never closed; those of a page with few of them are not looked at."""
    if wikitext.count(opening) < _MOST_UNCLOSED // 10:
        return 0
    depth = 0
    for piece in wikitext.split(opening)[1:]:
        depth = max(0, depth + 1 - piece.count(closing))
    return depth


def _unclosed_tags(wikitext: str) -> int:
    closed = wikitext.count("</")
    if wikitext.count("<") - 2 * closed < _MOST_UNCLOSED // 10:
        return 0
    return max(0, sum(not tag.endswith("/>") for tag in _OPENED_TAG.findall(wikitext)) - closed)


def _node(token: tokens.Token, inside: Code) -> Node:
    kind = type(token)
    if kind is tokens.TemplateOpen:
        return Template(inside)
    if kind is tokens.WikilinkOpen:
        bar = inside.first_break(tokens.WikilinkSeparator)
        return Wikilink(inside.part(inside.start, bar), inside.part(bar + 1, inside.end) if bar < inside.end else None)
    if kind is tokens.TagOpenOpen:
        return Tag(token.get("wiki_markup") or "", inside)
    if kind is tokens.HTMLEntityStart:
        return Entity(_character(inside))
    if kind is tokens.ExternalLinkOpen:
        gap = inside.first_break(tokens.ExternalLinkSeparator)
        return External(inside.part(inside.start, gap), inside.part(gap + 1, inside.end) if gap < inside.end else None)
    if kind is tokens.HeadingStart:
        return Heading(token["level"], inside)
    return Hidden(inside)


def _character(inside: Code) -> str:
    kinds = [type(token) for token in inside.tokens[inside.start : inside.end]]
    written = inside.source_text()
    try:
        if tokens.HTMLEntityHex in kinds:
            return chr(int(written, 16))
        if tokens.HTMLEntityNumeric in kinds:
            return chr(int(written))
        return chr(name2codepoint[written])
    except (ValueError, OverflowError, KeyError):
        return ""
