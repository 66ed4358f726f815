"""Passage -> mentions: first every span that could be one, then, with what NER found, those that are.

`possible_mentions` gives each candidate span with the entity it would stand for; this needs no model, so a passage
whose candidates cannot make a document is dropped before NER runs. `select_mentions` then chooses among the
candidates only.

What counts as a mention:
- the surface of a link, whatever it looks like;
- else a span of whole words whose first or second word holds an upper-case letter or a digit, and that is a known name
  in this very case, or in another case where NER found the same span; or a surface that the page linked before, or the
  page's own title;
- the surname of a person whom the page linked before by full name, or is about, where NER calls it a person; also where
  it does not, if the knowledge base knows both the person as one and no other entity of this name, and it is no common
  word;
- not one that is a number, a single letter, or on the list of excluded names; a single common word of the language
  ("Union") counts only in capitals ("IT", "US"), and what the page linked before only if it is no function word; either
  may follow function words ("the First", "in 1965");
- not one with a leading article where the rest is a name too ("the United Kingdom" is no other than "United Kingdom");
- not a name within a longer one that stands alone, which is one of two words or more with a capital or digit,
  function words aside ("New York Times" is no place, but "The French" may be);
- where NER runs, a name that does not stand alone and that NER did not find there counts only where no word beside it
  could belong to a longer name ("Ford Hall Forum", "J. Ford") and it is no such surname, or for an entity that the page
  links or is about, or that NER found in the passage.

Spans from NER are compared after trimming white space and quotes; without a leading article or a possessive ending
where the longer span is no known name in its own case.

Overlaps: links come first, then the longest, then NER before names, then the first. A span of NER that is no candidate,
or is a date, a number or a quantity, keeps names from within it, and so does a link or name whose entity is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from data_tools.common_words import FUNCTION_WORDS
from data_tools.documents import Passage
from data_tools.known_names import known_names, whole_words
from data_tools.linking import NO_ENTITY, Linker, PageContext, Place
from data_tools.name_looks import (
    ARTICLES,
    DEFAULT_RULES,
    MentionRules,
    counts_as_name,
    is_by_itself,
    stands_alone,
    without_article,
)

VALUE_LABELS = frozenset(["DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"])
_QUOTES = frozenset('"“”„«» \n')  # which NER sometimes takes for a part of a name
_ARTICLE = re.compile(rf"(?:{'|'.join(sorted(ARTICLES))})\s+", re.IGNORECASE)
_POSSESSIVE = re.compile(r"(?:['’]s|(?<=s)['’])$")


@dataclass(frozen=True, slots=True)
class Possible:
    """A span that could be a mention; `exact`: it is a name in this case.

    source: link, page (linked before, own title), name, or surname, which counts only where NER calls it a person.
    entity: NO_ENTITY where the linker abstains.
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


def possible_mentions(
    passage: Passage, linker: Linker, page: PageContext, rules: MentionRules = DEFAULT_RULES
) -> list[Possible]:
    """All candidates of `passage` in order of their start; none overlaps a link, and a span has at most one beside a
    surname."""
    text = passage.text
    found: dict[tuple[int, int], Possible] = {}
    linked = bytearray(len(text))
    for link in passage.links:
        start, end = _trim(text, link.start, link.end)
        if start < end:
            found[start, end] = Possible(start, end, "link", linker.target(link.target))
            linked[start:end] = b"\1" * (end - start)
    for start, end, entity in _page_surfaces(passage, page):
        if linked.find(1, start, end) < 0:
            found[start, end] = Possible(start, end, "page", entity)
    for start, end in known_names(text, linker.kb.folded_trie):
        surface = text[start:end]
        if (start, end) in found or linked.find(1, start, end) >= 0:
            continue
        if not counts_as_name(surface, rules.common, rules.excluded):
            continue
        if (rest := without_article(surface)) and linker.name(rest).exact:
            continue
        entry = linker.name(surface)
        if entry.entities:
            found[start, end] = Possible(start, end, "name", linker.surface(surface, page), entry.exact)
    surnames: list[Possible] = []
    for form, surname in page.surnames.items():
        if form in rules.excluded:
            continue
        sure = surname.sure and counts_as_name(form, rules.common)
        for start, end in _occurrences(passage, form, surname.since):
            before = found.get((start, end))
            if linked.find(1, start, end) >= 0 or (before and before.source == "page"):
                continue
            if sure:
                found[start, end] = Possible(start, end, "page", surname.entity)
            else:
                surnames.append(Possible(start, end, "surname", surname.entity))
    return _longest(text, [*found.values(), *surnames])


def _page_surfaces(passage: Passage, page: PageContext) -> Iterator[tuple[int, int, int]]:
    """(start, end, entity) of what the page linked before, or of its own title."""
    for surface, (entity, since) in page.surfaces.items():
        if surface in passage.text and counts_as_name(surface, FUNCTION_WORDS):
            for start, end in _occurrences(passage, surface, since):
                yield start, end, entity


def _occurrences(passage: Passage, surface: str, since: Place) -> Iterator[tuple[int, int]]:
    """Where `surface` stands as whole words after a place on the page."""
    text = passage.text
    start = text.find(surface)
    while start >= 0:
        end = start + len(surface)
        if since < (passage.chunk, start) and whole_words(text, start, end):
            yield start, end
        start = text.find(surface, start + 1)


def _longest(text: str, candidates: Iterable[Possible]) -> list[Possible]:
    """`candidates` sorted, without those that lie within a longer one which needs no support."""
    kept: list[Possible] = []
    reach = 0
    for candidate in sorted(candidates, key=lambda possible: (possible.start, -possible.end)):
        if candidate.end > reach or candidate.source == "link":
            kept.append(candidate)
            if candidate.source in ("link", "page") or (candidate.source == "name" and _settled(text, candidate)):
                reach = max(reach, candidate.end)
    return kept


def _settled(text: str, candidate: Possible) -> bool:
    return candidate.exact and stands_alone(text[candidate.start : candidate.end])


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
    at = {(candidate.start, candidate.end): candidate for candidate in possible if candidate.source != "surname"}
    surnames = {(candidate.start, candidate.end): candidate for candidate in possible if candidate.source == "surname"}
    of_persons = {**at, **surnames}  # what a span is that NER calls a person
    labels: dict[tuple[int, int], str] = {}
    confirmed: dict[tuple[int, int], int] = {}  # span -> entity
    # (rank, -length, second rank, start, end, source, entity)
    ranked: list[tuple[int, int, int, int, int, str, int]] = []
    for span in spans or ():
        places = list(_places(text, span))
        choice = of_persons if span.label == "PERSON" else at
        known = [place for place in places if place in choice]
        place = next((place for place in known if choice[place].exact), known[0] if known else None)
        for alternative in places:
            labels.setdefault(alternative, span.label)
        if span.label in VALUE_LABELS or place is None:
            counts["ner: date, number or quantity" if span.label in VALUE_LABELS else "ner: no known name"] += 1
            start, end = places[0] if places else (span.start, span.end)
            ranked.append((1, start - end, 0, start, end, "ner", NO_ENTITY))
        elif choice[place].source != "link":
            confirmed[place] = choice[place].entity
            start, end = place
            ranked.append((1, start - end, 0, start, end, "ner", choice[place].entity))
    supported = {page.own, *page.linked, *confirmed.values()}
    for candidate in possible:
        start, end = candidate.start, candidate.end
        if candidate.source == "link":
            ranked.append((0, start - end, 0, start, end, "link", candidate.entity))
        elif (start, end) in confirmed or not candidate.exact:
            continue
        elif candidate.source == "surname":
            counts["surname: not called a person"] += 1
        elif (
            spans is None
            or candidate.entity in supported
            or stands_alone(text[start:end])
            or (is_by_itself(text, start, end) and (start, end) not in surnames)
        ):
            ranked.append((1, start - end, 1, start, end, "name", candidate.entity))
        else:
            counts["name: without support"] += 1

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
    while start < end and text[start] in _QUOTES:
        start += 1
    while start < end and text[end - 1] in _QUOTES:
        end -= 1
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
