"""Passage -> mentions: first every span that could be one, then, with what NER found, those that are.

`possible_mentions` gives each candidate span with the entity it would stand for; this needs no model, so a passage
whose candidates cannot make a document is dropped before NER runs. `select_mentions` then chooses among the
candidates only.

What counts as a mention:
- the surface of a link, whatever it looks like;
- else a span of whole words that holds an upper-case letter or a digit, is not made of digits alone, and is a known
  name in this very case, or in another case where NER found the same span; or a surface that the page linked before,
  or the page's own title;
- a name that is a function word, the name of a month or a day, or a single letter counts only where it is linked or
  is written in capitals ("IT", "US"; "It" and "Us" are no mentions);
- where NER runs, a name of one word that it did not find there counts only for an entity that the page links or is
  about, or that NER found in the passage ("Law" and "Prince" are names of something, and seldom meant as such).

Spans from NER are compared after trimming white space, a leading article and a possessive ending, each only where the
longer span is no candidate itself.

Overlaps: links come first, then the longest, then NER before names, then the first. A span of NER that is no candidate,
or is a date, a number or a quantity, keeps names from within it, and so does a link or name whose entity is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from data_tools.common_words import COMMON_WORDS
from data_tools.documents import Passage
from data_tools.linking import NO_ENTITY, Linker, PageContext

MAX_NAME = 100  # characters of the longest name looked for
VALUE_LABELS = frozenset(["DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"])
_TOKEN = re.compile(r"[\w\u0300-\u036f]+|[^\w\s]")
_ARTICLE = re.compile(r"(?:the|a|an)\s+", re.IGNORECASE)
_POSSESSIVE = re.compile(r"(?:['’]s|(?<=s)['’])$")


@dataclass(frozen=True, slots=True)
class Possible:
    """A span that could be a mention; `source`: link, page (linked before, own title) or name; `exact`: in this case.

    `entity` is NO_ENTITY where the linker abstains.
    """

    start: int
    end: int
    source: str
    entity: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class NerSpan:
    """A span of a text that NER found, with its label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Mention:
    """A chosen span; `source`: link, name or ner; `label`: of the NER span at the same place, "" if none."""

    start: int
    end: int
    source: str
    entity: int
    label: str


def counts_as_name(surface: str) -> bool:
    """Whether an unlinked `surface` can be a mention by its looks."""
    low = surface.lower()
    if surface == low and not any(character.isdigit() for character in surface):
        return False
    if surface.isdigit():
        return False
    if low in COMMON_WORDS or len(surface) == 1:
        return len(surface) > 1 and surface.isupper()
    return True


def fold_in_place(text: str) -> str:
    """`text` without case and of the same length: the few characters that fold to several stay as they are."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    return "".join(low if len(low := character.casefold()) == 1 else character for character in text)


def possible_mentions(passage: Passage, linker: Linker, page: PageContext) -> list[Possible]:
    """All candidates of `passage` in order of their start; at most one a span, and none that overlaps a link."""
    text = passage.text
    found: dict[tuple[int, int], Possible] = {}
    linked = bytearray(len(text))
    for link in passage.links:
        start, end = _trim(text, link.start, link.end)
        if start < end:
            found[start, end] = Possible(start, end, "link", linker.target(link.target))
            linked[start:end] = b"\1" * (end - start)
    tokens = [match.span() for match in _TOKEN.finditer(text)]
    ends = {end for _, end in tokens}
    by_first_word = _surfaces_by_first_word(page)
    folded, trie = fold_in_place(text), linker.kb.folded_trie
    for start, end in tokens:
        for surface in by_first_word.get(text[start:end], ()):
            last = start + len(surface)
            entity, since = page.surfaces[surface]
            here = last in ends and text.startswith(surface, start) and since < (passage.chunk, start)
            if here and not any(linked[start:last]):
                found[start, last] = Possible(start, last, "page", entity)
        for key in trie.prefixes(folded[start : start + MAX_NAME]):
            last = start + len(key)
            if last not in ends or (start, last) in found or any(linked[start:last]):
                continue
            surface = text[start:last]
            if not counts_as_name(surface):
                continue
            entry = linker.name(surface)
            if entry.entities:
                found[start, last] = Possible(start, last, "name", linker.surface(surface, page), entry.exact)
    return sorted(found.values(), key=lambda possible: (possible.start, possible.end))


def _surfaces_by_first_word(page: PageContext) -> dict[str, list[str]]:
    words: dict[str, list[str]] = {}
    for surface in page.surfaces:
        first = _TOKEN.match(surface)
        if first and counts_as_name(surface):
            words.setdefault(first.group(), []).append(surface)
    return words


def select_mentions(
    passage: Passage,
    possible: Sequence[Possible],
    page: PageContext,
    spans: Sequence[NerSpan] | None,
    counts: Counter[str],
) -> list[Mention]:
    """The mentions of `passage`, sorted and free of overlaps; what was left out is added to `counts` by reason.

    spans: what NER found; None: it did not run.
    """
    text = passage.text
    at = {(candidate.start, candidate.end): candidate for candidate in possible}
    labels: dict[tuple[int, int], str] = {}
    confirmed: set[tuple[int, int]] = set()
    # (rank, -length, second rank, start, end, source, entity)
    ranked: list[tuple[int, int, int, int, int, str, int]] = []
    for span in spans or ():
        places = list(_places(text, span))
        place = next((place for place in places if place in at), None)
        for alternative in places:
            labels.setdefault(alternative, span.label)
        if span.label in VALUE_LABELS or place is None:
            counts["ner: date, number or quantity" if span.label in VALUE_LABELS else "ner: no known name"] += 1
            start, end = places[0] if places else (span.start, span.end)
            ranked.append((1, start - end, 0, start, end, "ner", NO_ENTITY))
        elif at[place].source != "link":
            confirmed.add(place)
            start, end = place
            ranked.append((1, start - end, 0, start, end, "ner", at[place].entity))
    supported = {page.own, *page.linked, *(at[place].entity for place in confirmed)}
    for candidate in possible:
        start, end = candidate.start, candidate.end
        if candidate.source == "link":
            ranked.append((0, start - end, 0, start, end, "link", candidate.entity))
        elif (start, end) in confirmed or not candidate.exact:
            continue
        elif spans is None or candidate.entity in supported or " " in text[start:end]:
            ranked.append((1, start - end, 1, start, end, "name", candidate.entity))
        else:
            counts["name: one word, unsupported"] += 1

    taken = bytearray(len(text))
    mentions: list[Mention] = []
    for _, _, _, start, end, source, entity in sorted(ranked):
        if any(taken[start:end]):
            counts["overlapped"] += 1
            continue
        taken[start:end] = b"\1" * (end - start)
        if entity != NO_ENTITY:
            mentions.append(Mention(start, end, source, entity, _type(labels.get((start, end), ""))))
            counts[f"kept: {source}"] += 1
        elif source == "link":
            counts["link: not in the knowledge base"] += 1
        elif (start, end) in at:
            counts["name: ambiguous"] += 1
    return sorted(mentions, key=lambda mention: mention.start)


def _places(text: str, span: NerSpan) -> Iterable[tuple[int, int]]:
    """The trimmed span, then without a leading article, without a possessive ending, and without both."""
    start, end = _trim(text, span.start, span.end)
    if start >= end:
        return
    yield start, end
    article = _ARTICLE.match(text, start, end)
    possessive = _POSSESSIVE.search(text[start:end])
    if article and article.end() < end:
        yield article.end(), end
    if possessive and possessive.start():
        yield start, start + possessive.start()
        if article and article.end() < start + possessive.start():
            yield article.end(), start + possessive.start()


def _type(label: str) -> str:
    """Values are no types of entities: the year in "the 1992 Olympics" does not make a linked event a date."""
    return "" if label in VALUE_LABELS else label


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    first = start + len(piece) - len(piece.lstrip())
    return first, max(first, start + len(piece.rstrip()))
