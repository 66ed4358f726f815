"""Streaming reader of MediaWiki XML exports, whole or a range of one: places in the file -> raw pages in order.

    file --> pieces of XML bytes --> the first <page> tag that starts in the range --> expat --> RawPage

A dump is read as XML, so attributes, empty texts and entities are what they are. Memory is that of a piece and a page.
A page belongs to the range in whose pieces its `<page>` tag starts; its end may lie beyond. As `<` is escaped within
texts, these bytes are found without parsing what lies before. So the ranges of a file share its pages out, each once,
wherever they are cut and however the file is packed.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from data_tools.wikipedia.pieces import CHUNK, Piece, pieces
from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import DamagedInputError, UserError

_WIDE = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
_ROOT = b"<mediawiki>"  # opens a document whose real root element was skipped over
_PAGE_TAG = re.compile(rb"<page[\s>/]")
_TAG_BYTES = 5  # of a page's tag that may lie before the byte that ends it
_STEP = 1 << 16  # bytes parsed at a time beyond the range
_BLOCK = 2 << 20  # more than a bz2 block takes in its file
_REDIRECT = re.compile(r"\s*#redirect\s*:?\s*\[\[([^\[\]|#]+)", re.IGNORECASE)


class RawPage(NamedTuple):
    """One page as the dump has it: title normalised, `redirect` the normalised title it leads to or ""."""

    page_id: int
    namespace: int
    title: str
    redirect: str
    wikitext: str


class Placed(NamedTuple):
    """A page, and the last place in the file from which a range that starts there reaches it."""

    page: RawPage
    place: int


def read_pages(path: str | Path) -> Iterator[RawPage]:
    """All pages of the dump, in order, of every namespace.

    Raises:
        UserError: no such file, no MediaWiki export, or UTF-16.
        DamagedInputError: damaged or cut off (the text names file and byte); the pages before were given.
    """
    for placed in read_range(path):
        yield placed.page


def namespaces(path: str | Path) -> dict[str, int]:
    """Namespace number of each prefix that the dump's head declares, in lower case; {} where it declares none."""
    parser = _PageParser(path)
    for piece in pieces(path):
        for first in range(0, len(piece.data), _STEP):
            try:
                parser.feed(piece.data[first : first + _STEP])
            except _Damage:  # whoever reads the pages says where
                return parser.namespaces
            if not parser.in_head:
                return parser.namespaces
    return parser.namespaces


def read_range(
    path: str | Path, start: int = 0, stop: int | None = None, known: Mapping[str, int] | None = None
) -> Iterator[Placed]:
    """The pages whose tag starts in the pieces with start <= position < stop (None: to the end).

    known: the namespaces of the dump's head, for old exports, whose pages name none.
    """
    parser = _PageParser(path, dict(known or {}))
    size = os.path.getsize(path) if stop is not None else 0
    borders: deque[tuple[int, Piece]] = deque()  # byte of the unpacked text at which a piece starts; without its data
    offset, limit, tail, entered = 0, None, b"", start == 0
    for piece in pieces(path, start, stop):
        data = piece.data
        if limit is None and stop is not None and piece.position >= stop:
            limit = offset
            # Nothing that began here is left to read. Near the file's end we go on, to see that the end is there: the
            # next range may hold no page whose reading would tell.
            if parser.at_rest and stop + _BLOCK < size:
                return
        if not data:
            continue
        borders.append((offset, piece._replace(data=b"")))
        offset += len(data)
        if not entered:
            joined = tail + data
            tag = _PAGE_TAG.search(joined)
            entered = tag is not None and (limit is None or tag.start() < len(tail))
            if tag is None or not entered:
                if limit is not None:
                    return
                tail = joined[-_TAG_BYTES:]
                continue
            parser.enter(offset - len(joined) + tag.start())
            data = joined[tag.start() :]
        step = _STEP if limit is not None else len(data)
        for first in range(0, len(data), step):
            damage = _damage_of(parser, data[first : first + step], borders)
            for page, first_byte in parser.pages:
                if limit is not None and first_byte >= limit:
                    return
                yield Placed(page, _place(borders, first_byte))
            parser.pages.clear()
            if damage:
                raise damage
            if limit is not None and parser.last_page >= limit:
                return
    if entered and (damage := _damage_of(parser, None, borders)):
        raise damage


def _place(borders: deque[tuple[int, Piece]], byte: int) -> int:
    """The place of a byte of the unpacked text; forgets the pieces before it."""
    while len(borders) > 1 and borders[1][0] <= byte:
        borders.popleft()
    first, piece = borders[0]
    return piece.place(byte - first)


def _damage_of(parser: _PageParser, data: bytes | None, borders: deque[tuple[int, Piece]]) -> DamagedInputError | None:
    """Parse `data` (None: the end). An error is given back, so that the pages before it can be handed on first."""
    try:
        if data is None:
            parser.close()
        else:
            parser.feed(data)
    except _Damage as damage:
        first, piece = borders[-1]
        for before, other in reversed(borders):
            first, piece = before, other
            if before <= damage.byte:
                break
        place = (
            f"in the block at byte {piece.position}" if piece.whole else f"at byte {piece.place(damage.byte - first)}"
        )
        return DamagedInputError(f"{parser.path}: {damage.what} {place} ({damage.reason}); fetch the dump again")
    return None


class _Damage(Exception):
    """The XML breaks at `byte` of the unpacked text, counted as the parser was told."""

    def __init__(self, what: str, byte: int, reason: str):
        super().__init__(what)
        self.what, self.byte, self.reason = what, byte, reason


@dataclass
class _Fields:
    """What is known of the page being read."""

    first_byte: int
    title: str = ""
    namespace: str = ""
    page_id: str = ""
    redirect: str = ""
    wikitext: str = ""


@dataclass
class _PageParser:
    """expat's handlers: elements in, finished pages out into `pages`."""

    path: str | Path
    namespaces: dict[str, int] = field(default_factory=dict)
    pages: list[tuple[RawPage, int]] = field(default_factory=list)
    last_page: int = -1  # byte of the unpacked text at which the last page began that has begun
    in_head: bool = True
    _stack: list[str] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _key: int = 0
    _page: _Fields | None = None
    _shift: int = 0  # from expat's bytes to those of the unpacked text
    _started: bool = False
    _after_tag: bool = False

    def __post_init__(self) -> None:
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = True
        self._expat.buffer_size = CHUNK
        # With deferral a closing tag may be handled only after the next bytes.
        if hasattr(self._expat, "SetReparseDeferralEnabled"):
            self._expat.SetReparseDeferralEnabled(False)
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._text.append
        self._expat.StartDoctypeDeclHandler = self._refuse_doctype

    def enter(self, byte: int) -> None:
        """Begin at a page in the middle of the dump, which starts at `byte` of the unpacked text."""
        self._started = True
        self._expat.Parse(_ROOT, False)
        self._shift = byte - len(_ROOT)

    @property
    def at_rest(self) -> bool:
        """Between two pages, with no tag begun."""
        return len(self._stack) == 1 and self._after_tag

    def feed(self, data: bytes) -> None:
        if not self._started and data:
            self._started = True
            if data.startswith(_WIDE):
                raise UserError(
                    f"{self.path} is UTF-16 at byte 0; dumps are read as UTF-8: convert it, for instance with "
                    "`iconv -f UTF-16 -t UTF-8`"
                )
            if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
                raise self._no_dump(f"it starts with {data[:20]!r}")
        self._parse(data, False)
        if stripped := data[-100:].rstrip():
            self._after_tag = stripped.endswith(b">")

    def close(self) -> None:
        """Say that the text has ended."""
        if not self._started:
            raise self._no_dump("it is empty")
        self._parse(b"", True)

    def _parse(self, data: bytes, last: bool) -> None:
        try:
            self._expat.Parse(data, last)
        except expat.ExpatError as error:
            what = "the XML ends too early" if last else "the XML is damaged"
            raise _Damage(what, self._expat.ErrorByteIndex + self._shift, str(error)) from error

    def _no_dump(self, reason: str) -> UserError:
        return UserError(f"{self.path} is no MediaWiki XML export ({reason}); give a *-pages-articles.xml(.bz2) file")

    def _refuse_doctype(self, name: str, *_: Any) -> None:
        raise self._no_dump(f"it declares a document type {name!r}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._stack and name != "mediawiki":
            raise self._no_dump(f"its root element is <{name}>")
        self._stack.append(name)
        self._text.clear()
        if len(self._stack) == 2 and name == "page":
            self.in_head = False
            self.last_page = self._expat.CurrentByteIndex + self._shift
            self._page = _Fields(self.last_page)
        elif self._page is not None and len(self._stack) == 3 and name == "redirect":
            self._page.redirect = attributes.get("title", "")
        elif name == "namespace":
            self._key = _number(attributes.get("key", "0")) or 0

    def _end(self, name: str) -> None:
        self._stack.pop()
        depth, page = len(self._stack), self._page
        text = "".join(self._text)
        self._text.clear()
        if page is None:
            if name == "namespace" and text:
                self.namespaces[text.lower()] = self._key
        elif depth == 1:
            self._page = None
            self.pages.append((self._finish(page), page.first_byte))
        elif depth == 2:
            if name == "title":
                page.title = text
            elif name == "ns":
                page.namespace = text
            elif name == "id":
                page.page_id = text
        elif depth == 3 and name == "text":
            page.wikitext = text

    def _finish(self, page: _Fields) -> RawPage:
        page_id = _number(page.page_id)
        if page_id is None or page_id < 0 or not page.title.strip():
            reason = f"title {page.title!r}, id {page.page_id!r}"
            raise _Damage("a page lacks its title or a whole number as id", page.first_byte, reason)
        namespace = _number(page.namespace)
        if namespace is None:
            # exports before version 0.6 have no <ns>
            prefix, colon, _ = page.title.partition(":")
            namespace = self.namespaces.get(prefix.lower(), 0) if colon else 0
        redirect = page.redirect.partition("#")[0]
        if not redirect and (match := _REDIRECT.match(page.wikitext)):
            redirect = match.group(1)
        return RawPage(page_id, namespace, normalise_title(page.title), normalise_title(redirect), page.wikitext)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
