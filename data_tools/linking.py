"""Names and links -> entities of the knowledge base.

In: a link's target or a surface, with what the page says. Out: an entity number, or -1: the linker abstains.

A link leads to the entity of its target's title; a target that the knowledge base does not know as a title is looked
up as a name. A surface leads, in this order, to
1. the page's own entity, where that bears the name;
2. the one entity among its candidates that the page links to;
3. its best candidate by prior, where that leads the second by at least `min_margin`.
Candidates are those of the exact name, else of the name with its case ignored. Nothing depends on the order in which
the knowledge base or the pages were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from data_tools.documents import Passage
from data_tools.kb import KnowledgeBase, normalise_name

NO_ENTITY = -1
_CACHED_NAMES = 200_000


@dataclass(frozen=True)
class NameEntry:
    """What the knowledge base knows of a surface: its candidates, and whether it is a name in this very case."""

    entities: tuple[int, ...]
    by_prior: int  # NO_ENTITY: the margin is too small
    exact: bool


@dataclass
class PageContext:
    """What a page says of its entities."""

    own: int = NO_ENTITY
    linked: frozenset[int] = frozenset()
    # surface -> (entity, (chunk, offset) of the first link with it); from there on the surface stands for the entity
    surfaces: dict[str, tuple[int, tuple[int, int]]] = field(default_factory=dict)


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
            return NameEntry((), NO_ENTITY, False)
        margin = float(priors[0]) - (float(priors[1]) if len(priors) > 1 else 0.0)
        return NameEntry(tuple(entities.tolist()), int(entities[0]) if margin >= self.min_margin else NO_ENTITY, exact)

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
        on_page = [entity for entity in entry.entities if entity in page.linked]
        return on_page[0] if len(on_page) == 1 else entry.by_prior

    def page(self, title: str, passages: Iterable[Passage]) -> PageContext:
        """The context of a page. A surface that the page links to different entities says nothing."""
        own = self.target(title)
        surfaces: dict[str, tuple[int, tuple[int, int]]] = {}
        linked: set[int] = set()
        ambiguous: set[str] = set()
        for passage in passages:
            for link in passage.links:
                surface, entity = passage.text[link.start : link.end].strip(), self.target(link.target)
                if entity != NO_ENTITY:
                    linked.add(entity)
                if surfaces.setdefault(surface, (entity, (passage.chunk, link.start)))[0] != entity:
                    ambiguous.add(surface)
        for surface in ambiguous:
            del surfaces[surface]
        surfaces = {surface: place for surface, place in surfaces.items() if place[0] != NO_ENTITY}
        if own != NO_ENTITY:
            for surface in {title, _without_qualifier(title)}:
                surfaces[surface] = (own, (0, -1))
        return PageContext(own, frozenset(linked), surfaces)


def _without_qualifier(title: str) -> str:
    """`Paris` of the title `Paris (mythology)`."""
    head, bracket, _ = title.rpartition(" (")
    return head if bracket and title.endswith(")") and head else title
