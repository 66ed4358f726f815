"""Mentions that are written like a name of their entity, and most likely mean another: reasons to take them away.

In: the chosen mentions of a passage. Out: those without doubt, and a count of each reason. An entity is vouched for on
a page that links it or is about it, and in a passage that names it by a link or by several words. Else a single word is
in doubt
- that NER calls a person, where it is not the whole name of the entity ("Henry" is no king in particular);
- that is a word of the page's title, where the title looks like a person's name ("Thomas" on the page of Dylan Thomas);
- that a hyphen joins with a capitalised word ("Mason" in "Mason-Dixon line");
- that is two capital letters, but for four well-known ones (country codes, eras and units are names of something).
And what NER calls a people or a nationality is no language, whoever vouches for it ("German troops").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from data_tools.kb import KnowledgeBase
from data_tools.linking import NO_ENTITY, PageContext
from data_tools.mentions import Mention
from data_tools.name_looks import is_compound
from data_tools.surnames import surname_forms

WELL_KNOWN_CODES = frozenset(["EU", "UK", "UN", "US"])
# Relations whose tails are languages: official, native, original, of the work, spoken, used
_LANGUAGE_RELATIONS = frozenset(["P37", "P103", "P364", "P407", "P1412", "P2936"])
_HEADS_ASKED = 64
_CACHED = 200_000


@dataclass
class Doubts:
    """The rules above over one knowledge base; what they ask of it is remembered."""

    kb: KnowledgeBase
    _languages: dict[int, bool] = field(default_factory=dict)

    def without(
        self, text: str, title: str, mentions: Sequence[Mention], page: PageContext, counts: Counter[str]
    ) -> list[Mention]:
        """`mentions` of `text` on the page `title` that are in no doubt; the others are counted by reason."""
        vouched = {page.own, *page.linked} - {NO_ENTITY}
        vouched |= {
            mention.entity
            for mention in mentions
            if mention.source == "link" or " " in text[mention.start : mention.end]
        }
        title_words = frozenset(title.split()) if surname_forms(title) else frozenset[str]()
        kept: list[Mention] = []
        for mention in mentions:
            reason = self._reason(text, mention, mention.entity in vouched, title_words)
            if reason:
                counts[f"in doubt: {reason}"] += 1
            else:
                kept.append(mention)
        return kept

    def _reason(self, text: str, mention: Mention, vouched: bool, title_words: frozenset[str]) -> str:
        surface = text[mention.start : mention.end]
        if mention.source == "link":
            return ""
        if mention.label == "NORP" and self._is_language(mention.entity):
            return "a people, not its language"
        if vouched or " " in surface:
            return ""
        if surface in title_words:
            return "a word of the page's title"
        if is_compound(text, mention.start, mention.end):
            return "a part of a compound"
        if len(surface) == 2 and surface.isupper() and surface not in WELL_KNOWN_CODES:
            return "two capital letters"
        if mention.label == "PERSON" and surface != self.kb.entity_name(mention.entity):
            return "a part of a person's name"
        return ""

    def _is_language(self, entity: int) -> bool:
        known = self._languages.get(entity)
        if known is None:
            if len(self._languages) > _CACHED:
                self._languages.clear()
            known = self._languages[entity] = self._look_up_language(entity)
        return known

    def _look_up_language(self, entity: int) -> bool:
        kind = self.kb.entity_type(entity)
        if kind:
            return kind == "LANGUAGE"
        heads = self.kb.heads_of(entity)[:_HEADS_ASKED]
        _, relations = self.kb.relations_of_pairs(heads, np.full(len(heads), entity))
        return any(self.kb.relation_id(relation) in _LANGUAGE_RELATIONS for relation in set(relations.tolist()))
