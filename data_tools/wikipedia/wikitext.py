"""Wikitext of one article -> plain paragraphs with the spans of their links.

    wikitext --> mwparserfromhell's tree --> walked once, visible text written to a paragraph, a link's span noted as
    its surface is written --> paragraph tidied (spans moved along) --> kept, or dropped and counted

Spans are never searched for: they are the places where the writer stood. White space is collapsed as it is written.
Not written: templates but for the inline ones of `templates.py`, tables, references, formulas, galleries, files,
categories, links to other languages, comments, and the closing sections of references and links.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Node, Tag, Template, Text, Wikilink
from mwparserfromhell.parser import ParserError
from mwparserfromhell.wikicode import Wikicode

from data_tools.pages import Link, Paragraph
from data_tools.wikipedia.templates import visible_parts
from data_tools.wikipedia.titles import normalise_title

_HIDDEN_TAGS = {
    **dict.fromkeys(["ref", "references"], "references"),
    **dict.fromkeys(["table", "timeline"], "tables"),
    **dict.fromkeys(["math", "chem", "ce", "score", "hiero"], "formulas"),
    **dict.fromkeys(["gallery", "imagemap"], "files and categories"),
    **dict.fromkeys(["syntaxhighlight", "source", "pre"], "code blocks"),
    **dict.fromkeys(["templatestyles", "style", "script", "includeonly", "graph", "mapframe", "maplink"], "templates"),
    **dict.fromkeys(["inputbox", "section", "templatedata", "indicator", "categorytree"], "templates"),
}
_BLOCK_WORDS = "p div blockquote center li ul ol dl dd dt hr tr td th caption poem h1 h2 h3 h4 h5 h6"
_BLOCK_TAGS = frozenset(_BLOCK_WORDS.split())
_DROPPED_SECTIONS = frozenset(
    [
        "references", "external links", "see also", "further reading", "notes", "bibliography", "sources", "citations",
        "footnotes", "notes and references", "references and notes", "external link", "works cited", "gallery",
        "general references", "primary sources", "secondary sources", "related pages", "other websites", "literature",
    ]
)  # fmt: skip
_HIDDEN_PREFIXES = frozenset(["file", "image", "media", "category"])
_OTHER_WORDS = """
    talk user wikipedia wp project mediawiki template help portal book draft module special mos timedtext commons wikt
    wiktionary wikisource wikiquote wikibooks wikinews wikiversity wikispecies wikidata meta mw species voy wikivoyage
    foundation phab doi s q b n v d m c
"""
_OTHER_PREFIXES = frozenset(_OTHER_WORDS.split())
_LANGUAGE_PREFIX = re.compile(r"(?:[a-z]{2,3}|simple|[a-z]{2,3}-[a-z-]+):(?=\S)")
_TRAIL = re.compile("[a-z\u00df-\u00f6\u00f8-\u00ff]+")
_NOT_TEXT = re.compile(r"'{2,}|__[A-Z]+__|[\u200b\ufeff\u200e\u200f\u2060\u00ad]")
_TIDY = re.compile(
    r"""\s+[(\[]\s*(?:[;,:–-]\s*)*[)\]]   # brackets that a removed template has emptied
      | (?<=[(])(?:\s|[;,:](?=\s|\)))+    # what it has left after an opening bracket,
      | (?:\s|(?<=\s)[;,:]|[;,](?=\s*\)))+(?=[)])   # before a closing one,
      | \s+(?=[,.;](?:\s|$))              # or before a comma
      | (?<=[,;])\s*,(?=\s)""",
    re.VERBOSE,
)
_LEFTOVER = re.compile(
    r"""\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||\|-|''|^==|==$|\[https?:
      | </?(?:ref|br|div|span|small|sup|sub|table|tr|td|th|blockquote|center|font
                |nowiki|gallery|math|code|p|b|i|u)\b""",
    re.VERBOSE | re.IGNORECASE,
)
# MediaWiki takes comments and references out before it reads the markup, and so does this: they are most of the bytes.
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_REFERENCE = re.compile(
    r"""<ref(?:\s(?:[^<>"]|"[^"<>]*")*?)?(?:/>|>(?:(?!<ref[\s>/]).)*?</ref\s*>)""", re.DOTALL | re.IGNORECASE
)
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Prefixes:
    """What stands before the colon of a link that is no link to an article, in lower case."""

    hidden: frozenset[str] = _HIDDEN_PREFIXES  # the page shows no text for it: files, categories
    other: frozenset[str] = _OTHER_PREFIXES

    @classmethod
    def of(cls, namespaces: Mapping[str, int]) -> Prefixes:
        """The English ones and those that a dump's head declares (lower-case name -> number)."""
        hidden = frozenset(name for name, number in namespaces.items() if number in (-2, 6, 14))
        other = frozenset(name for name, number in namespaces.items() if number != 0) - hidden
        return cls(_HIDDEN_PREFIXES | hidden, (_OTHER_PREFIXES | other) - hidden)


def to_paragraphs(wikitext: str, prefixes: Prefixes | None = None) -> tuple[list[Paragraph], Counter[str]]:
    """The paragraphs of an article, and the counts of what was removed; link targets are normalised, not resolved."""
    walker = _Walker(prefixes or Prefixes())
    if "<nowiki" not in wikitext:
        wikitext, walker.writer.counts["references removed"] = _REFERENCE.subn("", _COMMENT.sub("", wikitext))
    try:
        tree = mwparserfromhell.parse(wikitext)
    except (ParserError, RecursionError):
        return [], Counter({"pages that the wikitext parser refused": 1})
    walker.walk(tree.nodes)
    walker.writer.end_paragraph()
    return walker.writer.paragraphs, +walker.writer.counts


@dataclass
class _Writer:
    """Collapses white space, notes where links stand, and ends paragraphs at blank lines."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    section: str = ""
    one_line: bool = False  # in a list item, which ends with its line
    _pieces: list[str] = field(default_factory=list)
    _length: int = 0
    _blank: bool = False  # white space is due before the next visible character
    _newlines: int = 0
    _links: list[Link] = field(default_factory=list)
    _link_start: int | None = None
    _in_link: bool = False

    def write(self, text: str) -> None:
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

    def end_paragraph(self) -> None:
        text, links = _tidied("".join(self._pieces), self._links)
        self._pieces, self._links, self._length = [], [], 0
        self._blank, self._newlines, self.one_line = False, 0, False
        self._link_start = None
        if not text:
            return
        if _LEFTOVER.search(text):
            self.counts["paragraphs with leftover markup"] += 1
        elif not _LETTER.search(text):
            self.counts["paragraphs without a letter"] += 1
        else:
            self.paragraphs.append(Paragraph(text, tuple(links), self.section))


@dataclass
class _Walker:
    """Goes through the tree and tells the writer what is visible."""

    prefixes: Prefixes
    writer: _Writer = field(default_factory=_Writer)
    _dropped_level: int = 0  # level of the closing section that is being passed over; 0: none

    def walk(self, nodes: Sequence[Node]) -> None:
        trail = 0
        for index, node in enumerate(nodes):
            if isinstance(node, Heading):
                self._heading(node)
            elif self._dropped_level:
                continue
            elif isinstance(node, Text):
                self.writer.write(_NOT_TEXT.sub("", str(node.value)[trail:]))
            elif isinstance(node, Wikilink):
                following = nodes[index + 1] if index + 1 < len(nodes) else None
                match = _TRAIL.match(str(following.value)) if isinstance(following, Text) else None
                trail = self._wikilink(node, match.group() if match else "")
                continue
            elif isinstance(node, Template):
                self._template(node)
            elif isinstance(node, Tag):
                self._tag(node)
            elif isinstance(node, ExternalLink):
                if node.title is not None:
                    self.walk(node.title.nodes)
            elif isinstance(node, HTMLEntity):
                self._entity(node)
            trail = 0

    def _heading(self, node: Heading) -> None:
        self.writer.end_paragraph()
        title = " ".join(_NOT_TEXT.sub("", str(node.title.strip_code())).split())
        if self._dropped_level and node.level > self._dropped_level:
            return
        self._dropped_level = node.level if title.lower() in _DROPPED_SECTIONS else 0
        self.writer.counts["closing sections removed"] += bool(self._dropped_level)
        self.writer.section = title

    def _wikilink(self, node: Wikilink, trail: str) -> int:
        """Write the link's surface; returns how many characters of the following text belong to it."""
        written = str(node.title.strip_code()).strip()
        if written.startswith(":"):
            title, shown_anyway = written[1:].strip(), True
        else:
            title, shown_anyway = written, False
        prefix = title.partition(":")[0].strip().replace("_", " ").lower() if ":" in title else ""
        if not shown_anyway and (prefix in self.prefixes.hidden or _LANGUAGE_PREFIX.match(title)):
            self.writer.counts["files and categories removed"] += 1
            return 0
        elsewhere = (
            prefix in self.prefixes.hidden or prefix in self.prefixes.other or bool(_LANGUAGE_PREFIX.match(title))
        )
        target = "" if elsewhere else normalise_title(title.partition("#")[0])
        self.writer.begin_link()
        if node.text is None:
            self.writer.write(title.replace("\n", " "))
        elif str(node.text).strip():
            self.walk(node.text.nodes)
        else:
            self.writer.write(re.sub(r"\s*\([^()]*\)$", "", title))
        self.writer.write(trail)
        self.writer.end_link(target)
        return len(trail)

    def _template(self, node: Template) -> None:
        parts = visible_parts(node)
        self.writer.counts["templates removed" if parts is None else "templates shown"] += 1
        for part in parts or ():
            if isinstance(part, Wikicode):
                self.walk(part.nodes)
            else:
                self.writer.write(part)

    def _tag(self, node: Tag) -> None:
        name = str(node.tag).strip().lower()
        if name in _HIDDEN_TAGS:
            self.writer.counts[f"{_HIDDEN_TAGS[name]} removed"] += 1
        elif node.wiki_markup in ("*", "#", ":", ";"):
            self.writer.end_paragraph()
            self.writer.one_line = True
        elif name == "br":
            self.writer.write(" ")
        elif any("display:none" in str(attribute).replace(" ", "") for attribute in node.attributes):
            self.writer.counts["hidden texts removed"] += 1
        else:
            if name in _BLOCK_TAGS:
                self.writer.end_paragraph()
            if node.contents is not None:
                self.walk(node.contents.nodes)
            if name in _BLOCK_TAGS:
                self.writer.end_paragraph()

    def _entity(self, node: HTMLEntity) -> None:
        try:
            self.writer.write(_NOT_TEXT.sub("", node.normalize()))
        except (ValueError, OverflowError):
            self.writer.counts["entities without a character"] += 1


def _tidied(text: str, links: list[Link]) -> tuple[str, list[Link]]:
    """Punctuation that removed templates have left hanging is deleted until none is left."""
    while spans := [match.span() for match in _TIDY.finditer(text) if match.end() > match.start()]:
        text, links = _deleted(text, links, spans)
    return text, links


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

    shifted = [Link(moved(link.start), moved(link.end), link.target) for link in links]
    return "".join(kept), [link for link in shifted if link.end > link.start]
