"""Streaming reader of MediaWiki XML exports, plain or bz2 (of one or many streams): bytes -> raw pages in order.

    file --> chunks of XML bytes, each with the place where its bz2 stream starts --> expat --> RawPage

A dump is read as XML, so attributes, empty texts and entities are what they are. Memory is that of a chunk and a page.
Each page comes with the place from which reading can begin anew to reach it: its own first byte in a plain file; in a
bz2 file the last stream that starts between two pages, and how many pages of it to skip. So a multistream dump, or a
plain one, is read in parts at no extra cost, and a dump of a single bz2 stream at the cost of unpacking what is
skipped.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import UserError

_CHUNK = 1 << 20
_BZ2_MAGIC = b"BZh"
_WIDE = (b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")
_ROOT = b"<mediawiki>"  # opens a document whose real root element was skipped over
_REDIRECT = re.compile(r"\s*#redirect\s*:?\s*\[\[([^\[\]|#]+)", re.IGNORECASE)


class RawPage(NamedTuple):
    """One page as the dump has it: title normalised, `redirect` the normalised title it leads to or ""."""

    page_id: int
    namespace: int
    title: str
    redirect: str
    wikitext: str


class Restart(NamedTuple):
    """Where to begin reading to reach a page: a byte offset in the file, and the pages to skip from there."""

    offset: int
    skip: int


def read_pages(path: str | Path) -> Iterator[RawPage]:
    """All pages of the dump, in order, of every namespace.

    Raises:
        UserError: no such file, no MediaWiki export, UTF-16, or damaged or cut off (the text names file and byte).
    """
    for page, _ in scan(path):
        yield page


def scan(path: str | Path) -> Iterator[tuple[RawPage, Restart]]:
    """All pages and, for each, the place to restart from."""
    yield from _read(path, 0)


def read_range(path: str | Path, restart: Restart, count: int) -> Iterator[RawPage]:
    """The `count` pages from `restart` on."""
    if count < 1:
        return
    for number, (page, _) in enumerate(_read(path, restart.offset)):
        if number >= restart.skip:
            yield page
        if number + 1 == restart.skip + count:
            return


def namespaces(path: str | Path) -> dict[str, int]:
    """Namespace number of each prefix that the dump's head declares, in lower case; {} where it declares none."""
    parser = _PageParser(path, 0)
    for chunk in _chunks(path, 0):
        parser.feed(chunk.data)
        if parser.pages or not parser.in_head:
            break
    return parser.namespaces


def _read(path: str | Path, offset: int) -> Iterator[tuple[RawPage, Restart]]:
    parser = _PageParser(path, offset)
    packed = _head(path).startswith(_BZ2_MAGIC)
    stream, since, after_tag = offset, 0, False
    for chunk in _chunks(path, offset):
        # A stream may also start within a page or a tag; from there no reading can begin.
        at_page = after_tag and parser.between_pages and chunk.data.lstrip().startswith((b"<page>", b"<page "))
        if chunk.stream_start is not None and at_page:
            stream, since = chunk.stream_start, 0
        after_tag = chunk.data.rstrip().endswith(b">")
        parser.feed(chunk.data)
        for page, first_byte in parser.pages:
            yield page, Restart(stream, since) if packed else Restart(first_byte, 0)
            since += 1
        parser.pages.clear()
    parser.close()


# ---------------------------------------------------------------------------------------------------------- bytes


class _Chunk(NamedTuple):
    data: bytes  # never empty
    stream_start: int | None  # byte offset in the file of the stream whose first bytes these are


def _head(path: str | Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4)
    except OSError as error:
        raise UserError(f"cannot read the dump {path}: {error.strerror}") from error


def _chunks(path: str | Path, offset: int) -> Iterator[_Chunk]:
    if not _head(path):
        raise UserError(f"the dump {path} is empty; fetch it again")
    if not _head(path).startswith(_BZ2_MAGIC):
        with open(path, "rb") as file:
            file.seek(offset)
            while data := file.read(_CHUNK):
                yield _Chunk(data, None)
        return
    with open(path, "rb") as file:
        file.seek(offset)
        unpacker, start = bz2.BZ2Decompressor(), offset
        fresh, whole = True, False
        packed = file.read(_CHUNK)
        while packed:
            try:
                data = unpacker.decompress(packed)
            except OSError as error:
                raise UserError(
                    f"{path}: damaged bz2 data between bytes {start} and {file.tell()} ({error}); fetch the dump again"
                ) from error
            if data:
                yield _Chunk(data, start if fresh else None)
                fresh = False
            whole = unpacker.eof
            if whole:
                fresh = True
                start = file.tell() - len(unpacker.unused_data)
                packed = unpacker.unused_data or file.read(_CHUNK)
                unpacker = bz2.BZ2Decompressor()
            else:
                packed = file.read(_CHUNK)
        if not whole:
            raise UserError(
                f"{path}: the bz2 file is cut off at byte {file.tell()} (its last stream starts at byte {start}); "
                "compare its size with the source and fetch the dump again"
            )


# ------------------------------------------------------------------------------------------------------------ XML


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
    offset: int  # of the first byte fed, in the file
    pages: list[tuple[RawPage, int]] = field(default_factory=list)
    namespaces: dict[str, int] = field(default_factory=dict)
    in_head: bool = True
    _stack: list[str] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _key: int = 0
    _page: _Fields | None = None
    _started: bool = False

    def __post_init__(self) -> None:
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = True
        self._expat.buffer_size = _CHUNK
        # With deferral a closing tag at the end of a stream may be handled only after the next stream's first bytes.
        if hasattr(self._expat, "SetReparseDeferralEnabled"):
            self._expat.SetReparseDeferralEnabled(False)
        self._expat.StartElementHandler = self._start
        self._expat.EndElementHandler = self._end
        self._expat.CharacterDataHandler = self._text.append
        self._expat.StartDoctypeDeclHandler = self._refuse_doctype
        self._shift = self.offset
        if self.offset:
            self._expat.Parse(_ROOT, False)
            self._shift -= len(_ROOT)

    @property
    def between_pages(self) -> bool:
        return len(self._stack) == 1

    def feed(self, data: bytes) -> None:
        if not self._started and data:
            self._started = True
            if data.startswith(_WIDE):
                raise UserError(
                    f"{self.path} is UTF-16 at byte {self.offset}; dumps are read as UTF-8: convert it, for instance "
                    "with `iconv -f UTF-16 -t UTF-8`"
                )
            if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
                raise self._no_dump(f"it starts with {data[:20]!r}")
        self._parse(data, False)

    def close(self) -> None:
        self._parse(b"", True)

    def _parse(self, data: bytes, last: bool) -> None:
        try:
            self._expat.Parse(data, last)
        except expat.ExpatError as error:
            place = self._expat.ErrorByteIndex + self._shift
            what = "ends too early" if last else "is damaged"
            raise UserError(
                f"{self.path}: the XML {what} at byte {place} of the unpacked text ({error}); fetch the dump again"
            ) from error

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
            self._page = _Fields(self._expat.CurrentByteIndex + self._shift)
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
            raise UserError(
                f"{self.path}: the page at byte {page.first_byte} of the unpacked text lacks a title or a whole number "
                f"as id (title {page.title!r}, id {page.page_id!r}); fetch the dump again"
            )
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
