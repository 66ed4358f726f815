"""Readers of the three tables that a knowledge base is made from; plain or gzip, UTF-8, tab-separated.

    entities.tsv    id <tab> name|name|... [<tab> Wikipedia page title]     the first name is the label
    triples.tsv     head id <tab> property id <tab> tail id
    relations.tsv   property id <tab> label      (or *.json(.gz): an object {property id: {"label": ...}})

Empty lines and lines that start with `#` are skipped; a malformed line is an error that names file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data_tools.kb import normalise_name
from data_tools.lines import read_lines
from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import UserError


class Entity(NamedTuple):
    """One line of entities.tsv: names normalised, without repetition, label first; title "" where none is given."""

    id: str
    names: tuple[str, ...]
    title: str


def read_entities(path: str | Path) -> Iterator[Entity]:
    for line, fields in _rows(path, (2, 3), "id<TAB>name|name|...[<TAB>page title]"):
        if len(fields) == 3 and "|" in fields[2]:
            raise UserError(
                f"{path}:{line}: column 3 is a page title and cannot hold '|'; the columns are id, names, page title"
            )
        names = tuple(dict.fromkeys(filter(None, map(normalise_name, fields[1].split("|")))))
        if not names:
            raise UserError(f"{path}:{line}: entity {fields[0]!r} has no name; give it one or remove the line")
        yield Entity(fields[0], names, normalise_title(fields[2]) if len(fields) == 3 else "")


def read_triples(path: str | Path) -> Iterator[tuple[str, str, str]]:
    for line, fields in _rows(path, (3,), "head<TAB>property<TAB>tail"):
        if not (fields[1] and fields[2]):
            raise UserError(f"{path}:{line}: an empty column; a triple is head<TAB>property<TAB>tail")
        yield fields[0], fields[1], fields[2]


def read_relations(path: str | Path) -> Iterator[tuple[str, str]]:
    if ".json" in Path(path).suffixes[-2:]:
        yield from _relations_of_json(path)
        return
    for _, fields in _rows(path, (2, 3), "property<TAB>label"):
        yield fields[0], normalise_name(fields[1])


def _relations_of_json(path: str | Path) -> Iterator[tuple[str, str]]:
    text = b"".join(line.content for line in read_lines(path))
    try:
        table = json.loads(text)
        for relation, entry in table.items():
            yield str(relation), normalise_name(str(entry["label"]))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f'{path} must be a JSON object {{"P17": {{"label": "country"}}, ...}}: {error!r}') from error


def _rows(path: str | Path, columns: tuple[int, ...], form: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and columns of each row that is neither empty nor a comment."""
    for number, _, raw in read_lines(path):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number}: not UTF-8 ({error.reason}); convert the file to UTF-8") from error
        if text.startswith("#"):
            continue
        fields = [field.strip(" ") for field in text.rstrip("\r\n").split("\t")]
        if len(fields) not in columns or not fields[0]:
            raise UserError(f"{path}:{number}: expected {form}, found {len(fields)} column(s): {text[:80]!r}")
        yield number, fields
