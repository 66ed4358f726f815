"""The sample's knowledge base, second half: facts that the summaries' one-line descriptions state.

    description ("City in Isfahan province, Iran") --> the names in it that the gazetteer knows
        --> by the words around them, facts of the page's own entity (`P17` Iran, ...)

Only the description is read, never the text that the corpus is made from. The gazetteer is what `sample_kb` has laid
down, the pages themselves, and the adjectives of historical states.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from data_tools.sample_kb import Tables, plain

Summary = Mapping[str, str]  # title, extract, description, topic

_ADJECTIVES = {
    "English": "England", "Scottish": "Scotland", "Welsh": "Wales", "Roman": "Ancient Rome",
    "Ancient Greek": "Ancient Greece", "Ancient Egyptian": "Ancient Egypt", "Byzantine": "Byzantine Empire",
    "Ottoman": "Ottoman Empire", "Soviet": "Soviet Union", "Prussian": "Prussia", "Mughal": "Mughal Empire",
    "Babylonian": "Babylonia", "Assyrian": "Assyria", "Catalan": "Catalonia", "Tibetan": "Tibet", "Korean": "Korea",
    "Venetian": "Venice", "Florentine": "Florence", "Bavarian": "Bavaria", "Carthaginian": "Carthage",
    "Athenian": "Athens", "Spartan": "Sparta", "Aztec": "Aztec Empire", "Inca": "Inca Empire",
    "Mongol": "Mongol Empire", "Frankish": "Francia", "Sasanian": "Sasanian Empire", "Seljuk": "Seljuk Empire",
}  # fmt: skip
_PLACE_TOPICS = ("Geography", "History", "Uncategorized")
_SETTLEMENT = re.compile(r"\b(?:city|capital|town|village|municipality|metropolis|megacity|commune|port)\b", re.I)
_DIVISION = re.compile(
    r"\b(?:state|province|region|county|district|territory|department|prefecture|oblast|borough|island|archipelago)\b",
    re.I,
)
_COUNTRY = re.compile(r"\b(?:country|sovereign state|microstate|island nation)\b", re.I)
_POLITY = re.compile(
    r"\b(?:country|state|empire|kingdom|republic|dynasty|sultanate|khanate|caliphate|city-state|civilization|duchy|"
    r"commonwealth|realm|shogunate|principality|confederacy)\b",
    re.I,
)
_HEAD_OF_STATE = re.compile(
    r"\b(?:king|queen|emperor|empress|president|tsar|shah|sultan|pharaoh|monarch|ruler|caliph|grand duke|khagan)\b",
    re.I,
)
_HEAD_OF_GOVERNMENT = re.compile(r"\b(?:prime minister|chancellor|premier)\b", re.I)
_MAKERS = {
    "P50": "novel novella book play poem treatise essay story", "P57": "film", "P86": "opera symphony ballet",
    "P170": "painting fresco sculpture statue album song single",
}  # fmt: skip
_MADE_BY = {kind: relation for relation, kinds in _MAKERS.items() for kind in kinds.split()}
_WORK = re.compile(rf"\b({'|'.join(_MADE_BY)})(?: directed| written| composed)? by ([A-Z].*)$", re.I)
_PERSON = re.compile(r"[A-Z][\w.'’-]*(?: (?:[A-Z][\w.'’-]*|de|von|van|da|of|the|la|le))*")
_CONFLICT = re.compile(r"\b(?:wars?|conflict|battle|treaty|confrontation|conquest|invasion|attack|rebellion)\b", re.I)
_MOON = re.compile(r"\bmoon of ([A-Z]\w+)", re.I)
_CONSTELLATION = re.compile(r"\bconstellation (?:of )?([A-Z]\w+(?: [A-Z]\w+)?)")
_PLACE_BEFORE = re.compile(
    r"(?:^|\b|(?<=,))(?P<how>in|of|on|within|across|between|and|,)(?:\s+the)?"
    r"(?:\s+(?:(?:north|south|east|west|central)[a-z-]*|mainland|present-day|modern|ancient))*\s*$",
    re.I,
)
_DIRECTION = re.compile(
    r"\b(?:North|South|East|West|Northern|Southern|Eastern|Western|Central|New|Upper|Lower|Inner|Outer)\s$"
)
# what may follow the name of a place; after an adjective ("Spanish conquest") stands the noun that it belongs to
_END_OF_NAME = re.compile(
    r"$|[,;(]|\.|\s(?:and|or|in|on|from|to|since|during|with|between|by|under|after|c\.)\s|\s[\d(]"
)


@dataclass
class Gazetteer:
    """The entities that bear each name, and the pages among them that are states and places."""

    bearers: dict[str, set[str]]
    polities: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tables: Tables, pages: Mapping[str, Summary] | None = None) -> Gazetteer:
        """pages: the summary of each entity that has one."""
        bearers: dict[str, set[str]] = {}
        for key, names in tables.names.items():
            for name in names:
                bearers.setdefault(name, set()).add(key)
        located = {key: page for key, page in (pages or {}).items() if page["topic"] in _PLACE_TOPICS}
        # "Kingdom of photosynthetic eukaryotes" and "State of matter" name no place
        polities = {
            key
            for key, page in located.items()
            if _POLITY.search(page["description"]) and re.search(r"\W[A-Z\d]", page["description"])
        }
        polities |= {key for key, title in tables.titles.items() if title in _ADJECTIVES.values()}
        polities |= {key for key in tables.names if key.startswith("C:")}
        places = {
            key for key, page in located.items() if page["topic"] == "Geography" and tables.titles[key][0].isupper()
        }
        return cls(bearers, frozenset(polities), frozenset(places | polities))

    def one(self, name: str) -> str:
        """The entity of a name that a single one bears, else ""."""
        keys = self.bearers.get(name, set())
        return next(iter(keys)) if len(keys) == 1 else ""

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, entity) of the names in `text`: capitalised, at word borders, the longest from left to right."""
        words = [match.span() for match in re.finditer(r"\w+(?:\.\w+)*\.?(?=\W|$)|\w+", text)]
        found: list[tuple[int, int, str]] = []
        index = 0
        while index < len(words):
            start = words[index][0]
            for last in range(min(len(words), index + 6) - 1, index - 1, -1):
                end = words[last][1]
                key = self.one(text[start:end]) or self.one(text[start:end].rstrip("."))
                if key and text[start].isupper():
                    found.append((start, end, key))
                    index = last
                    break
            index += 1
        return found


def is_settlement(summary: Summary) -> bool:
    """The page is about a city or town."""
    return summary["topic"] in ("Geography", "Uncategorized") and bool(_SETTLEMENT.search(summary["description"]))


def words_of_people(summaries: Mapping[str, Summary]) -> frozenset[str]:
    """The words of the names of people among the pages; as names of cities they would be mistaken."""
    return frozenset(
        plain(word) for title, page in summaries.items() if page["topic"] == "People" for word in title.split()
    )


def add_summaries(tables: Tables, summaries: Mapping[str, Summary]) -> Counter[str]:
    """Add an entity for each page with a proper name, and the facts of its description; gives counts of both."""
    counts: Counter[str] = Counter()
    known = Gazetteer.of(tables)
    entity_of: dict[str, str] = {}
    for title, page in sorted(summaries.items()):
        key = _merged(tables, known, title, page)
        counts["pages about a place of the tables"] += bool(key)
        if key:
            tables.titles[key] = title
        entity_of[title] = key or tables.entity(f"W:{title}", [_bare(title)], title)
    for adjective, title in _ADJECTIVES.items():
        if title in entity_of:
            tables.entity(entity_of[title], [adjective])
            for key, names in tables.names.items():
                if key.startswith("V:"):  # "English" alone is of England, as "German" is of Germany
                    names.pop(adjective, None)
    gazetteer = Gazetteer.of(tables, {entity_of[title]: page for title, page in summaries.items()})
    before = len(tables.triples)
    for title, page in sorted(summaries.items()):
        if page["description"]:
            _facts(tables, gazetteer, entity_of[title], page)
    counts["facts of descriptions"] = len(tables.triples) - before
    used = {end for head, _, tail in tables.triples for end in (head, tail)}
    for title, page in summaries.items():
        key = entity_of[title]
        if key not in used and not _proper(title, page):
            del tables.names[key], tables.titles[key]
            counts["pages about no named thing"] += 1
    return counts


def _bare(title: str) -> str:
    """The title as it is written in text: without the bracket that tells it from others."""
    return re.sub(r"\s*\([^()]*\)$", "", title)


def _proper(title: str, page: Summary) -> bool:
    """A title that is a name: all its words but the small ones start with a capital, and there are several of them."""
    words = [word for word in _bare(title).split() if word not in ("of", "the", "and", "de", "in", "for", "von", "da")]
    return page["topic"] == "People" or (len(words) > 1 and all(word[0].isupper() for word in words))


def _merged(tables: Tables, known: Gazetteer, title: str, page: Summary) -> str:
    """The entity of the tables that the page is about, or ""."""
    description = page["description"]
    countries = {place for _, _, place in known.find(description) if place.startswith("C:")}
    fitting = []
    for key in known.bearers.get(re.sub(r",.*", "", _bare(title)), ()):
        if key in tables.titles:
            if tables.titles[key] == title:
                return key
        elif (
            (key.startswith("C:") and (_COUNTRY.search(description) or not description))
            or (key.startswith("S:") and "state" in f"{title} {description}".lower())
            or (key.startswith("G:") and is_settlement(page))
        ):
            own = {tail for head, relation, tail in tables.triples if head == key and relation == "P17"}
            if not key.startswith("G:") or not countries or own & countries:
                fitting.append(key)
    return fitting[0] if len(fitting) == 1 else ""


def _is_person(page: Summary) -> bool:
    description = page["description"]
    lived = re.search(r"\((?:born|died|c\.|fl\.)?[^()]*\d{2,4}[^()]*\)$", description)
    of_a_person = page["topic"] == "Uncategorized" and bool(lived) and not _POLITY.search(description)
    return page["topic"] == "People" or (of_a_person and not _CONFLICT.search(description))


def _facts(tables: Tables, gazetteer: Gazetteer, key: str, page: Summary) -> None:
    description = re.sub(r"\s*\([^()]*\)", "", page["description"])
    if match := _WORK.search(description):
        for maker in re.split(r",? and |, ", match[2]):
            if _PERSON.fullmatch(maker):
                tail = gazetteer.one(maker) or tables.entity(f"N:{maker}", [maker], maker)
                tables.fact(key, _MADE_BY[match[1].lower()], tail)
                tables.fact(tail, "P800", key)
        return
    for pattern, relation in ((_MOON, "P397"), (_CONSTELLATION, "P59")):
        if (match := pattern.search(description)) and (tail := gazetteer.one(match[1])):
            tables.fact(key, relation, tail)
            return
    found = gazetteer.find(description)
    if _is_person(page):
        _person(tables, gazetteer, key, description, found)
    elif page["topic"] != "Biology and health sciences":
        _thing(tables, gazetteer, key, page["topic"], description, found)


def _person(
    tables: Tables, gazetteer: Gazetteer, key: str, description: str, found: list[tuple[int, int, str]]
) -> None:
    """States of the leading adjectives are those of citizenship; who ruled a state was its head."""
    place = 0
    for start, end, tail in found:
        # "German-born American physicist": adjectives at the start, one after the other
        if not re.fullmatch(
            r"(?:(?:\d[\w–-]*[- ]century(?: BC| AD)?|born|and|later)?[\s/&–-]*)*", description[place:start]
        ):
            break
        if tail in gazetteer.polities:
            tables.fact(key, "P27", tail)
            if _HEAD_OF_STATE.match(description[end:].strip()):
                tables.fact(tail, "P35", key)
        place = end
    for start, end, tail in found:
        before = description[:start]
        if (
            tail not in gazetteer.polities
            or not _END_OF_NAME.match(description, end)
            or not re.search(r"\bof (?:the )?$", before)
        ):
            continue
        office = before.rpartition(",")[2]
        if re.search(r"\b(?:wife|mother|father|daughter|son|consort|vice|brother|sister)\b", before, re.I):
            continue
        if _HEAD_OF_GOVERNMENT.search(office):
            tables.fact(tail, "P6", key)
        elif _HEAD_OF_STATE.search(office):
            tables.fact(tail, "P35", key)
        else:
            continue
        tables.fact(key, "P27", tail)


def _thing(
    tables: Tables, gazetteer: Gazetteer, key: str, topic: str, description: str, found: list[tuple[int, int, str]]
) -> None:
    """A place, an organisation, an event, a work: where it is, whose it is, who took part."""
    kind = re.split(r"\b(?:in|of|on|between|within|at|off)\b", description)[0]
    settlement = topic in _PLACE_TOPICS and bool(_SETTLEMENT.search(kind))
    inside = settlement or (topic == "Geography" and bool(_DIVISION.search(kind)))
    for start, end, tail in found:
        before = description[:start]
        if re.fullmatch(r"(?:\d+[\d–s-]* )?", before) and re.match(r"\s[a-z]", description[end:]):
            made = key.startswith("W:") and topic != "Geography" and not _CONFLICT.search(description)
            if made and tail in gazetteer.polities:
                tables.fact(key, "P495", tail)
            continue
        match = _PLACE_BEFORE.search(before)
        if not match or not _END_OF_NAME.match(description, end):
            continue
        if _DIRECTION.search(before) and tail.startswith(("W:", "S:", "G:")):
            continue
        how = match["how"].lower()
        if how == "of" and re.search(r"\s[A-Z]\w+\s+of(?:\sthe)?\s*$", before):
            continue  # "Gulf of Oman" is not in Oman
        if how in ("between", "and") and _CONFLICT.search(before) and "between" in before:
            if tail in gazetteer.polities:
                tables.fact(key, "P710", tail)
        elif how == "of" and re.search(
            r"\bcapital(?: city)?(?: and (?:the )?(?:largest|most populous) city)? of", before, re.I
        ):
            if tail.startswith(("C:", "S:", "W:")) and tail in gazetteer.places | gazetteer.polities:
                tables.fact(tail, "P36", key)
        elif how == "between" or (tail not in gazetteer.places and not tail.startswith(("L:", "R:", "S:", "G:"))):
            continue
        elif topic != "Geography" and key.startswith("W:") and tail.startswith(("L:", "R:")):
            tables.fact(key, "P276", tail)
        elif how == "of" and tail.startswith("L:"):
            continue  # "landmass of Europe and Asia"
        elif tail.startswith("L:"):
            tables.fact(key, "P30", tail)
        elif tail.startswith("R:"):
            tables.fact(key, "P361", tail)
        elif tail.startswith("C:"):
            tables.fact(key, "P17", tail)
            if inside:
                tables.fact(tail, "P150", key)
        elif inside or tail.startswith(("S:", "G:")):
            tables.fact(key, "P131", tail, both=inside)
        else:
            tables.fact(key, "P276", tail)
