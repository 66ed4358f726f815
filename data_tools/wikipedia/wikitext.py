"""Wikitext of one article -> plain paragraphs with the spans of their links.

    wikitext --> comments and references out (`raw_text.py`) --> nodes (`nodes.py`) --> walked once, what a reader sees
             is written, of templates by `templates.py` --> paragraphs (`writer.py`)

Not written: templates but for the inline ones of `templates.py`, tables, references, formulas, galleries, files,
categories, links to other languages, comments, and the closing sections of references and links.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from data_tools.pages import Paragraph
from data_tools.wikipedia import nodes
from data_tools.wikipedia.nodes import Code
from data_tools.wikipedia.raw_text import prepared, shown_text
from data_tools.wikipedia.templates import visible_parts
from data_tools.wikipedia.titles import normalise_title
from data_tools.wikipedia.writer import HOLE, ParagraphWriter, has_markup

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
        "references", "external links", "see also", "further reading", "citations", "footnotes", "notes and references",
        "references and notes", "external link", "works cited", "general references", "related pages", "other websites",
    ]
)  # fmt: skip
# These are dropped only where nothing but such sections follows: "Literature" may be a country's.
_DROPPED_AT_THE_END = _DROPPED_SECTIONS | frozenset(
    ["notes", "bibliography", "sources", "gallery", "primary sources", "secondary sources", "literature"]
)
_HIDDEN_PREFIXES = frozenset(["file", "image", "media", "category"])
_OTHER_WORDS = """
    talk user wikipedia wp project mediawiki template help portal book draft module special mos timedtext commons wikt
    wiktionary wikisource wikiquote wikibooks wikinews wikiversity wikispecies wikidata meta mw species voy wikivoyage
    foundation phab doi s q b n v d m c
"""
_OTHER_PREFIXES = frozenset(_OTHER_WORDS.split())
_LANGUAGE_PREFIX = re.compile(r"(?:[a-z]{2,3}|simple|[a-z]{2,3}-[a-z-]+):(?=\S)")
_TRAIL = re.compile("[a-z\u00df-\u00f6\u00f8-\u00ff]+")
_WORD_BEFORE = re.compile(r"(?:^|[\w,’”\"]) $")
_SENTENCE_GOES_ON = re.compile(r" [a-z0-9(]|[,.;:)](?:\s|$)")
_NOTE = re.compile(
    r"""cit | cn$ | fact | refn? | rp$ | sfn | harv | efn | note | sic | dubious | clarify | who | when | where | by\  |
        which | according | vague | page | dead | verify | failed | better | unreliable | update | original | specify |
        explain | disputed | weasel | needs | not\ in | pov | opinion | in\ lang | .*icon | ipa | respell | pron |
        audio | listen | anchor | isbn | oclc | doi | clear | main | see | further | use\ """,
    re.VERBOSE,
)


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
    try:
        page = nodes.parse(prepared(wikitext, walker.writer.counts))
    except nodes.ParserError:
        return [], Counter({"pages that the wikitext parser refused": 1})
    walker.find_the_end(page)
    walker.walk(page)
    walker.writer.end_paragraph()
    return walker.writer.paragraphs, +walker.writer.counts


@dataclass
class _Walker:
    """Goes through the nodes and tells the writer what is visible."""

    prefixes: Prefixes
    writer: ParagraphWriter = field(default_factory=ParagraphWriter)
    _dropped_level: int = 0  # level of the closing section that is being passed over; 0: none
    _end: int = 0  # place of the first heading behind which nothing but closing sections follows

    def find_the_end(self, page: Code) -> None:
        headings = [node for node in page.nodes() if isinstance(node, nodes.Heading)]
        top = min((heading.level for heading in headings), default=0)
        self._end = page.end
        for heading in reversed(headings):
            if heading.level == top:
                if self.text_of(heading.title).lower() not in _DROPPED_AT_THE_END:
                    break
                self._end = heading.title.start

    def walk(self, code: Code) -> None:
        in_order = code.nodes()
        trail = 0
        for index, node in enumerate(in_order):
            if isinstance(node, nodes.Heading):
                self._heading(node)
            elif self._dropped_level:
                continue
            elif isinstance(node, str):
                self._text(node[trail:] if trail else node)
            elif isinstance(node, nodes.Wikilink):
                following = in_order[index + 1] if index + 1 < len(in_order) else None
                match = _TRAIL.match(following) if isinstance(following, str) else None
                trail = self._wikilink(node, match.group() if match else "")
                continue
            elif isinstance(node, nodes.Template):
                shown = self._template(node)
                if (
                    not shown
                    and index
                    and self._leaves_hole(node, in_order[index - 1], in_order[index + 1 : index + 2])
                ):
                    self.writer.write(HOLE)
            elif isinstance(node, nodes.Tag):
                self._tag(node)
            elif isinstance(node, nodes.External):
                if node.label is not None:
                    self.walk(node.label)
            elif isinstance(node, nodes.Entity):
                self._text(node.character)
                self.writer.counts["entities without a character"] += not node.character
            trail = 0

    def text_of(self, code: Code) -> str:
        """What a reader sees of a run of nodes, on one line."""
        if code.end - code.start == 1 and isinstance(text := code.nodes()[0], str) and "''" not in text:
            return text.strip()
        inner = _Walker(self.prefixes)
        inner.writer.one_paragraph = True
        inner.walk(code)
        return inner.writer.text()

    def _text(self, text: str) -> None:
        self.writer.write(shown_text(text))

    def _heading(self, node: nodes.Heading) -> None:
        self.writer.end_paragraph()
        title = self.text_of(node.title)
        if self._dropped_level and node.level > self._dropped_level:
            return
        dropped = _DROPPED_AT_THE_END if node.title.start >= self._end else _DROPPED_SECTIONS
        self._dropped_level = node.level if title.lower() in dropped else 0
        self.writer.counts["closing sections removed"] += bool(self._dropped_level)
        self.writer.section = title

    def _wikilink(self, node: nodes.Wikilink, trail: str) -> int:
        """Write the link's surface; returns how many characters of the following text belong to it."""
        written = self.text_of(node.title)
        if written.startswith(":"):
            title, shown_anyway = written[1:].strip(), True
        else:
            title, shown_anyway = written, False
        prefix = title.partition(":")[0].strip().replace("_", " ").lower() if ":" in title else ""
        hidden = prefix in self.prefixes.hidden
        elsewhere = bool(prefix) and (
            hidden or prefix in self.prefixes.other or _LANGUAGE_PREFIX.match(title) is not None
        )
        if not shown_anyway and (hidden or (elsewhere and _LANGUAGE_PREFIX.match(title))):
            self.writer.counts["files and categories removed"] += 1
            return 0
        self.writer.begin_link()
        if node.text is None:
            self.writer.write(title.replace("\n", " "))
        elif node.text.source_text().strip():
            self.walk(node.text)
        else:
            self.writer.write(re.sub(r"\s*\([^()]*\)$", "", title))
        self.writer.write(trail)
        self.writer.end_link("" if elsewhere else normalise_title(title.partition("#")[0]))
        return len(trail)

    def _leaves_hole(self, node: nodes.Template, before: nodes.Node, after: list[nodes.Node]) -> bool:
        """Whether a template that is not shown stands where a word would: notes are set without a blank before them."""
        if not (isinstance(before, str) and after and isinstance(after[0], str)):
            return False
        in_place_of_word = _WORD_BEFORE.search(before) and _SENTENCE_GOES_ON.match(after[0])
        return bool(in_place_of_word) and not _NOTE.match(node.name.source_text().strip().lower())

    def _template(self, node: nodes.Template) -> bool:
        parts = visible_parts(node, self.text_of)
        self.writer.counts["templates removed" if parts is None else "templates shown"] += 1
        for part in parts or ():
            if isinstance(part, Code):
                self.walk(part)
            else:
                self.writer.write(part)
        return parts is not None

    def _tag(self, node: nodes.Tag) -> None:
        name = node.name
        if name in _HIDDEN_TAGS:
            self.writer.counts[f"{_HIDDEN_TAGS[name]} removed"] += 1
            if _HIDDEN_TAGS[name] == "formulas":
                self.writer.write(HOLE)
        elif node.markup in ("*", "#", ":", ";"):
            self.writer.end_paragraph()
            self.writer.one_line = True
        elif name == "br":
            self.writer.write(" ")
        elif name == "nowiki":
            # What a page shows of markup is no text; it would also make the paragraph look badly read.
            shown = node.content().source_text()
            self._text("" if has_markup(shown) else shown)
            self.writer.counts["markup shown as text removed"] += has_markup(shown)
        elif "display:none" in node.attributes().source_text().replace(" ", ""):
            self.writer.counts["hidden texts removed"] += 1
        else:
            if name in _BLOCK_TAGS:
                self.writer.end_paragraph()
            self.walk(node.content())
            if name in _BLOCK_TAGS:
                self.writer.end_paragraph()
