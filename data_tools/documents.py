"""Pages -> passages: the pieces of text that may become documents.

In: a page of paragraphs with links. Out: passages in page order, each at most `limit` word pieces where its text allows
it. A passage is one paragraph or consecutive paragraphs of one section (or of the page), joined by line breaks: as many
as it takes to be `enough` pieces; what is left at the end of a section and is not enough joins the passage before it,
where both fit together. A paragraph that is too long alone is cut at sentence ends, a sentence that is too long alone
at blanks, between two capitalised words only where that is not enough; never within a link. What has no blank stays
whole, so a passage can exceed the limit and is then left to the length filter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from data_tools.pages import Link, Page, Paragraph
from data_tools.sentences import sentence_spans

_WORD_START = re.compile(r"(?<!\S)\S")
_CACHED_CHUNKS = 400_000


@dataclass(frozen=True)
class Passage:
    """A piece of a page; `links` have offsets into `text`, `pieces` counts word pieces without special tokens."""

    page_id: int
    title: str
    chunk: int  # number within the page
    text: str
    links: tuple[Link, ...]
    pieces: int


@dataclass(frozen=True)
class _Atom:
    """What packing keeps together: a span of a section's text and its word pieces."""

    start: int
    end: int
    pieces: int
    closes: bool  # ends its paragraph


class WordCounter:
    """Counts words, in place of word pieces: what white space separates."""

    special_tokens = 0

    def __call__(self, text: str) -> int:
        return len(text.split())


class PieceCounter:
    """Counts the word pieces of texts with a fast tokenizer, special tokens left out.

    A tokenizer of BERT's kind never joins characters across a blank, so the counts of white-space separated chunks add
    up and are remembered; any other tokenizer is run on the whole text.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        definition = json.loads(self._backend.to_str())
        self._chunkwise = (definition.get("normalizer") or {}).get("type") == "BertNormalizer" and (
            definition.get("pre_tokenizer") or {}
        ).get("type") == "BertPreTokenizer"
        self._pieces: dict[str, int] = {"": 0}
        self.special_tokens: int = tokenizer.num_special_tokens_to_add(pair=False)

    def __call__(self, text: str) -> int:
        if not self._chunkwise:
            return len(self._backend.encode(text, add_special_tokens=False).ids)
        chunks = text.replace("\n", " ").split(" ")
        known = self._pieces
        try:
            return sum([known[chunk] for chunk in chunks])
        except KeyError:
            return self._count_new(chunks)

    def _count_new(self, chunks: list[str]) -> int:
        if len(self._pieces) > _CACHED_CHUNKS:
            self._pieces = {"": 0}
        new = sorted({chunk for chunk in chunks if chunk not in self._pieces})
        for chunk, encoding in zip(new, self._backend.encode_batch_fast(new, add_special_tokens=False), strict=True):
            self._pieces[chunk] = len(encoding.ids)
        return sum(self._pieces[chunk] for chunk in chunks)


def cut_page(page: Page, count: Callable[[str], int], limit: int, enough: int, unit: str) -> list[Passage]:
    """The passages of `page`. `limit`, `enough`: pieces without special tokens; `unit`: within what paragraphs are
    merged: section, page, or paragraph for not at all."""
    passages: list[Passage] = []
    for paragraphs in _groups(page.paragraphs, unit):
        text, links = _join(paragraphs)
        for atoms in _packs(_atoms(text, links, paragraphs, count, limit), limit, enough):
            start, end = atoms[0].start, atoms[-1].end
            inside = tuple(
                Link(link.start - start, link.end - start, link.target)
                for link in links
                if start <= link.start and link.end <= end
            )
            pieces = sum(atom.pieces for atom in atoms)
            passages.append(Passage(page.page_id, page.title, len(passages), text[start:end], inside, pieces))
    return passages


def _groups(paragraphs: Sequence[Paragraph], unit: str) -> Iterable[list[Paragraph]]:
    filled = [paragraph for paragraph in paragraphs if paragraph.text.strip()]
    if unit == "paragraph":
        return [[paragraph] for paragraph in filled]
    if unit == "page":
        return [filled] if filled else []
    return [list(group) for _, group in groupby(filled, key=lambda paragraph: paragraph.section)]


def _join(paragraphs: Sequence[Paragraph]) -> tuple[str, list[Link]]:
    links: list[Link] = []
    start = 0
    for paragraph in paragraphs:
        links += [Link(start + link.start, start + link.end, link.target) for link in paragraph.links]
        start += len(paragraph.text) + 1
    return "\n".join(paragraph.text for paragraph in paragraphs), links


def _atoms(
    text: str, links: Sequence[Link], paragraphs: Sequence[Paragraph], count: Callable[[str], int], limit: int
) -> Iterable[_Atom]:
    start = 0
    for paragraph in paragraphs:
        end = start + len(paragraph.text)
        atoms = [_trimmed(text, start, end, count, True)]
        # each finer way of cutting only where the one before leaves too much: sentences, words, words within names
        for starts in (_sentence_starts, _word_starts, _all_word_starts):
            if any(atom.pieces > limit for atom in atoms):
                atoms = [
                    part
                    for atom in atoms
                    for part in (_cut(text, atom, starts(text, atom), links, count) if atom.pieces > limit else [atom])
                ]
        yield from atoms
        start = end + 1


def _sentence_starts(text: str, atom: _Atom) -> list[int]:
    return [atom.start + first for first, _ in sentence_spans(text[atom.start : atom.end])]


def _all_word_starts(text: str, atom: _Atom) -> list[int]:
    return [match.start() for match in _WORD_START.finditer(text, atom.start, atom.end)]


def _word_starts(text: str, atom: _Atom) -> list[int]:
    """Starts of words but those between two capitalised ones, which may be parts of one name."""
    starts = _all_word_starts(text, atom)
    return [start for last, start in pairwise(starts) if not (text[last].isupper() and text[start].isupper())]


def _cut(
    text: str, whole: _Atom, starts: Iterable[int], links: Sequence[Link], count: Callable[[str], int]
) -> list[_Atom]:
    """`whole` cut before each of `starts` that lies within no link."""
    borders = [whole.start]
    for start in starts:
        if start > whole.start and not any(link.start < start < link.end for link in links):
            borders.append(start)
    borders.append(whole.end)
    return [_trimmed(text, first, last, count, whole.closes and last == whole.end) for first, last in pairwise(borders)]


def _trimmed(text: str, start: int, end: int, count: Callable[[str], int], closes: bool) -> _Atom:
    piece = text[start:end]
    first = start + len(piece) - len(piece.lstrip())
    last = start + len(piece.rstrip())
    return _Atom(first, last, count(text[first:last]), closes)


def _packs(atoms: Iterable[_Atom], limit: int, enough: int) -> list[list[_Atom]]:
    packs: list[list[_Atom]] = []
    sizes: list[int] = []
    full = True  # the last pack takes no more
    for atom in atoms:
        if full or sizes[-1] + atom.pieces > limit:
            packs.append([])
            sizes.append(0)
        packs[-1].append(atom)
        sizes[-1] += atom.pieces
        full = atom.closes and sizes[-1] >= enough
    if len(packs) > 1 and sizes[-1] < enough and sizes[-2] + sizes[-1] <= limit:
        rest = packs.pop()
        packs[-1] += rest
    return packs
