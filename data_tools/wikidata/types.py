"""Coarse types of entities: from their classes (instance-of) up the subclass-of facts to the nearest class in a table.

The names are those of spaCy's English pipelines where they have one for it, and a few for pages that are no articles.
Of classes equally near, the first in the table decides, so that the result depends on the facts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Wikidata classes, most specific meaning first
ROOTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("DISAMBIGUATION", (4167410, 22808320, 61996773)),  # disambiguation pages, of human names, of municipalities
    ("CATEGORY", (4167836,)),
    ("TEMPLATE", (11266439, 15184295)),  # template, module
    ("LIST", (13406463,)),  # list article
    ("PERSON", (5, 95074, 15632617, 215627)),  # human, fictional character, fictional human, person
    ("NORP", (41710, 231002, 9174, 33829, 2472587)),  # ethnic group, nationality, religion, human population, people
    ("LANGUAGE", (34770, 17376908)),  # language, languoid
    ("EVENT", (1656682, 1190554, 198, 178561)),  # event, occurrence, war, battle
    ("WORK_OF_ART", (838948, 17537576, 386724, 11424, 571, 7725634, 482994, 5398426, 2188189)),
    ("LAW", (7748, 820655)),  # law, statute
    ("FAC", (41176, 811979, 13226383, 2385804)),  # building, structure, facility, educational institution's site
    (
        "GPE",
        (6256, 7275, 515, 486972, 56061, 15284, 15642541),
    ),  # country, state, city, settlement, division, municipality
    ("LOC", (2221906, 271669, 618123, 27096213)),  # location, landform, geographical feature
    ("ORG", (43229, 4830453, 3918, 176799, 7278)),  # organization, business, university, military unit, party
    ("PRODUCT", (2424752, 28877, 15401930)),  # product, goods
)
NAMES = ("", *(name for name, _ in ROOTS))
_RANK = {root: rank for rank, (_, roots) in enumerate(ROOTS, 1) for root in roots}
_MAX_STEPS = 12  # subclass-of chains of Wikidata that are longer lead to the most general classes


def coarse_type(of_class: int, superclasses: Callable[[int], Iterable[int]]) -> int:
    """The place in `NAMES` for a class (number of its Q id); `superclasses` gives those of a class. 0: none found."""
    level, seen = {of_class}, {of_class}
    for _ in range(_MAX_STEPS):
        ranks = [_RANK[number] for number in level if number in _RANK]
        if ranks:
            return min(ranks)
        level = {above for number in level for above in superclasses(number)} - seen
        seen |= level
        if not level:
            break
    return 0
