"""Names and links -> entities of the knowledge base.

In: a link's target or a surface, with what the page says. Out: an entity number, or -1: the linker abstains.

A link leads to the entity of its target's title; a target that the knowledge base does not know as a title is looked
up as a name. A surface leads, in this order, to
1. the page's own entity, where that bears the name;
2. the one entity among its likely candidates that the page links to;
3. its best candidate by prior, where that leads the second by at least `min_margin`;
4. the likely candidate that shares facts with far more of the page's entities (its own and those that it links to) than
   any other does.
Likely are those whose prior is at least a tenth of the best's: a page that links to the European Union does not mean
it by "Europe", although that is one of its names.
Candidates are those of the exact name, else of the name with its case ignored. Nothing depends on the order in which
the knowledge base or the pages were read.

A page also says which surfaces stand for what from a place on: those that it linked, its own title, and the surnames of
persons that it linked by full name or is about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from data_tools.documents import Passage
from data_tools.kb import KnowledgeBase, normalise_name
from data_tools.surnames import surname_forms

NO_ENTITY = -1
BEGINNING = (0, -1)  # before all that stands on a page
_CACHED_NAMES = 200_000
_LIKELY = 0.1  # of the best candidate's prior
# Of so many candidates facts may decide for the one that shares them with this many times as many of the page's
# entities as the second does, and these more.
_MOST_CANDIDATES, _LEAD_FACTOR, _LEAD = 16, 3, 2

Place = tuple[int, int]  # chunk of the page, offset in it


@dataclass(frozen=True)
class NameEntry:
    """What the knowledge base knows of a surface: its candidates, best first, of which the first are likely, and
    whether it is a name in this very case."""

    entities: tuple[int, ...]
    likely: tuple[int, ...]
    by_prior: int  # NO_ENTITY: the margin is too small
    exact: bool


@dataclass(frozen=True)
class Surname:
    """Whom a surname stands for from a place on. `sure`: the knowledge base calls the entity a person and has the
    word as a name of nobody and nothing else; where it does not, somebody else must say that a person is meant."""

    entity: int
    since: Place
    sure: bool


@dataclass
class PageContext:
    """What a page says of its entities."""

    own: int = NO_ENTITY
    linked: frozenset[int] = frozenset()
    # surface -> (entity, place of the first link with it); from there on the surface stands for the entity
    surfaces: dict[str, tuple[int, Place]] = field(default_factory=dict)
    surnames: dict[str, Surname] = field(default_factory=dict)
    by_facts: dict[tuple[int, ...], int] = field(default_factory=dict)  # remembered: what rule 4 said of candidates


class Linker:
    """Look-ups in one knowledge base, remembered. `min_margin`: between the priors of best and second candidate."""

    def __init__(self, kb: KnowledgeBase, min_margin: float):
        self.kb = kb
        self.min_margin = min_margin
        self._names: dict[str, NameEntry] = {}
        self._targets: dict[str, int] = {}

    def name(self, surface: str) -> NameEntry:
        """The entry of `surface`; without entities where no spelling of it is a name."""
        entry = self._names.get(surface)
        if entry is None:
            if len(self._names) > _CACHED_NAMES:
                self._names.clear()
            entry = self._names[surface] = self._look_up(surface)
        return entry

    def _look_up(self, surface: str) -> NameEntry:
        entities, priors = self.kb.candidates(normalise_name(surface))
        exact = len(entities) > 0
        if not exact:
            entities, priors = self.kb.candidates_folded(surface)
        if not len(entities):
            return NameEntry((), (), NO_ENTITY, False)
        numbers = tuple(entities.tolist())
        likely = numbers[: int(np.count_nonzero(priors >= _LIKELY * priors[0]))]
        margin = float(priors[0]) - (float(priors[1]) if len(priors) > 1 else 0.0)
        return NameEntry(numbers, likely, numbers[0] if margin >= self.min_margin else NO_ENTITY, exact)

    def target(self, title: str) -> int:
        """The entity that a link to the normalised `title` stands for."""
        entity = self._targets.get(title)
        if entity is None:
            if len(self._targets) > _CACHED_NAMES:
                self._targets.clear()
            entity = self.kb.entity_of_title(title)
            if entity == NO_ENTITY:
                entry = self.name(title)
                entity = entry.by_prior if entry.exact else NO_ENTITY
            self._targets[title] = entity
        return entity

    def surface(self, surface: str, page: PageContext) -> int:
        """The entity that an unlinked `surface` stands for on `page`."""
        entry = self.name(surface)
        if page.own in entry.entities:
            return page.own
        on_page = page.linked.intersection(entry.likely)
        if len(on_page) == 1:
            return next(iter(on_page))
        if entry.by_prior == NO_ENTITY and len(entry.likely) > 1:
            return self._by_facts(entry.likely[:_MOST_CANDIDATES], page)
        return entry.by_prior

    def _by_facts(self, candidates: tuple[int, ...], page: PageContext) -> int:
        winner = page.by_facts.get(candidates)
        if winner is None:
            near = np.array(sorted(page.linked | {page.own} - {NO_ENTITY}), np.int64)
            shared = sorted(((int(self.kb.related(entity, near).sum()), entity) for entity in candidates), reverse=True)
            leads = shared[0][0] >= _LEAD_FACTOR * shared[1][0] + _LEAD
            winner = page.by_facts[candidates] = shared[0][1] if leads else NO_ENTITY
        return winner

    def page(self, title: str, passages: Iterable[Passage]) -> PageContext:
        """The context of a page. A surface that the page links to different entities says nothing."""
        own = self.target(title)
        surfaces: dict[str, tuple[int, Place]] = {}
        linked: set[int] = set()
        ambiguous: set[str] = set()
        for passage in passages:
            for link in passage.links:
                surface, entity = passage.text[link.start : link.end].strip(), self.target(link.target)
                if entity != NO_ENTITY:
                    linked.add(entity)
                if surfaces.setdefault(surface, (entity, (passage.chunk, link.start)))[0] != entity:
                    ambiguous.add(surface)
        surnames = self._surnames(title, own, surfaces, ambiguous)
        for surface in ambiguous:
            del surfaces[surface]
        surfaces = {surface: place for surface, place in surfaces.items() if place[0] != NO_ENTITY}
        if own != NO_ENTITY:
            for surface in {title, _without_qualifier(title)}:
                surfaces[surface] = (own, BEGINNING)
        return PageContext(own, frozenset(linked), surfaces, surnames)

    def _surnames(
        self, title: str, own: int, surfaces: dict[str, tuple[int, Place]], ambiguous: set[str]
    ) -> dict[str, Surname]:
        """Surnames of the persons linked by full name. One that several of them bear says nothing, whether or not the
        knowledge base knows them; one that the page links by itself is left to that link; that of the page's own
        entity stands for it, whoever else bears it."""
        bearers: dict[str, tuple[int, Place]] = {}
        several: set[str] = set()
        for surface, (entity, since) in surfaces.items():
            for form in surname_forms(surface) if " " in surface else ():
                place = bearers.setdefault(form, (entity, since))
                if place[0] != entity or entity == NO_ENTITY or surface in ambiguous:
                    several.add(form)
                elif since < place[1]:
                    bearers[form] = (entity, since)
        for form in several:
            del bearers[form]
        if own != NO_ENTITY:
            bearers.update((form, (own, BEGINNING)) for form in surname_forms(_without_qualifier(title)))
        found: dict[str, Surname] = {}
        for form, (entity, since) in bearers.items():
            kind = self.kb.entity_type(entity)
            if form not in surfaces and kind in ("", "PERSON"):
                known = self.name(form)
                others = known.exact and any(other != entity for other in known.entities)
                found[form] = Surname(entity, since, kind == "PERSON" and not others)
        return found


def _without_qualifier(title: str) -> str:
    """`Paris` of the title `Paris (mythology)`."""
    head, bracket, _ = title.rpartition(" (")
    return head if bracket and title.endswith(")") and head else title
