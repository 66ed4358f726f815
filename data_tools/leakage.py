"""What downstream dev and test sets hold must be no training label: whole articles, and facts by their names.

In: plain files (a title a line; `head <tab> tail` lines) or sets in DocRED's JSON format. Out: titles whose pages are
left out, and pairs of names, lower-cased and without direction, that no label may join.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from data_tools.wikipedia.titles import normalise_title
from erica_dist.config import LeakageConfig
from erica_dist.errors import UserError


@dataclass(frozen=True)
class LeakedPairs:
    """Lower-cased name -> the names it is paired with; symmetric."""

    partners: dict[str, frozenset[str]]

    def __bool__(self) -> bool:
        return bool(self.partners)

    def between(self, names: Sequence[set[str]]) -> Iterator[tuple[int, int]]:
        """Both directions of every two of the entities, given by their lower-cased names, that are such a pair."""
        known = [place for place, of_entity in enumerate(names) if not self.partners.keys().isdisjoint(of_entity)]
        for one, other in combinations(known, 2):
            if any(self.partners.get(name, frozenset()) & names[other] for name in names[one]):
                yield one, other
                yield other, one


def leaked_pairs(pairs: Iterable[tuple[str, str]]) -> LeakedPairs:
    """`pairs` for look-ups."""
    partners: dict[str, set[str]] = {}
    for head, tail in pairs:
        one, other = _key(head), _key(tail)
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    return LeakedPairs({name: frozenset(others) for name, others in partners.items()})


def load_leakage(config: LeakageConfig) -> tuple[frozenset[str], LeakedPairs]:
    """Titles to leave out, normalised, and the pairs that may not be labels.

    Raises:
        UserError: a file cannot be read, or a line or document in it is malformed (named).
    """
    titles = frozenset(read_titles(config.titles)) if config.titles else frozenset[str]()
    return titles, leaked_pairs(read_pairs(config.pairs) if config.pairs else ())


def read_titles(path: str | Path) -> Iterator[str]:
    """Normalised titles: one a line, or the `title` of each document of a DocRED JSON file (*.json)."""
    if str(path).endswith(".json"):
        for number, document in enumerate(_docred(path)):
            yield normalise_title(_field(document, "title", str, path, number))
    else:
        for _, line in _lines(path):
            yield normalise_title(line)


def read_pairs(path: str | Path) -> Iterator[tuple[str, str]]:
    """(head name, tail name): the tab-separated columns of each line, or all names of the two ends of each label of a
    DocRED JSON file (*.json)."""
    if str(path).endswith(".json"):
        for number, document in enumerate(_docred(path)):
            yield from _docred_pairs(document, path, number)
        return
    for number, line in _lines(path):
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {number}: must be `head name<TAB>tail name`, got {line!r}")
        yield columns[0], columns[1]


def _docred_pairs(document: dict[str, Any], path: str | Path, number: int) -> Iterator[tuple[str, str]]:
    vertices = _field(document, "vertexSet", list, path, number)
    for fact in document.get("labels", []):
        try:
            heads = {mention["name"] for mention in vertices[fact["h"]]}
            tails = {mention["name"] for mention in vertices[fact["t"]]}
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(
                f"{path}, document {number}: label {fact!r} does not fit its vertexSet ({error!r})"
            ) from None
        yield from ((head, tail) for head in sorted(heads) for tail in sorted(tails))


def _docred(path: str | Path) -> list[dict[str, Any]]:
    try:
        documents = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no valid JSON: {error}") from error
    if not isinstance(documents, list):
        raise UserError(f"{path} must hold a list of documents as DocRED's files do")
    return documents


def _field(document: Any, name: str, kind: type, path: str | Path, number: int) -> Any:
    if not isinstance(document, dict) or not isinstance(document.get(name), kind):
        raise UserError(f"{path}, document {number}: has no {name!r}; DocRED's documents have title, vertexSet, labels")
    return document[name]


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error}") from error


def _key(name: str) -> str:
    return " ".join(name.split()).lower()
