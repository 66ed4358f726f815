"""What every reader of pages hands on: pages of plain paragraphs with their links as spans.

Offsets are half-open, in Unicode code points (Python string indices) into the paragraph's own text, and
`text[start:end]` is the link's surface as a reader of the page sees it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One hyperlink: the span of its surface and the normalised title it leads to (redirects resolved where known)."""

    start: int
    end: int
    target: str


@dataclass(frozen=True)
class Paragraph:
    """One paragraph of clean text; `section` is the title of the section it stands in, "" for the lead."""

    text: str
    links: tuple[Link, ...] = ()
    section: str = ""


@dataclass(frozen=True)
class Page:
    """One article; `title` is normalised (see `data_tools.wikipedia.titles`)."""

    page_id: int
    title: str
    paragraphs: tuple[Paragraph, ...] = ()
