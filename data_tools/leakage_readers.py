"""A file of a downstream set -> what of it may not be learnt: titles of its articles and the name pairs of its facts.

Known by content, whatever the file is called, plain or packed by gzip, bzip2 or xz:

- JSON, a list of records, JSON lines, or an object of such lists (FewRel: one a relation; SQuAD: `data`). A record is
  known by its fields: DocRED (`title`, `vertexSet`, `labels`), SQuAD's article (`title`, `paragraphs`), FewRel (`h`,
  `t` as [name, id, tokens]), OpenNRE (`h`, `t` as {name, id, pos}), TACRED (`subj_start`, ...), and the one that
  `erica-dist finetune` reads (`text`, `head`, `tail` as [start, end]);
- SemEval-2010 Task 8 text;
- `head name <tab> tail name` lines;
- a title a line.

An example labelled as holding no relation is no fact. A fact counts with all names of its two ends, in either order,
and with their Wikidata ids where the file has them.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from data_tools.wikipedia.titles import normalise_title
from erica_dist.errors import UserError

NO_FACT = frozenset({"other", "no_relation", "na"})  # labels, lower case, that say that there is no relation
_PACKED = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7zXZ\x00": lzma.decompress}
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_ID = re.compile(r"Q[0-9]+\Z")
_AROUND_PUNCTUATION = re.compile(r"\s*([^\w\s])\s*")
_SEMEVAL = re.compile(r"[0-9]+\t.*<e[12]>")
_ENTITY = re.compile(r"<e([12])>(.*?)</e\1>")
_FORMS = (
    "DocRED, SQuAD, FewRel, OpenNRE, TACRED, JSON lines with text, head and tail, SemEval-2010 Task 8 text, "
    "`head<TAB>tail` lines, and a title a line"
)


@dataclass
class Contents:
    """What a file holds. titles: normalised; pairs: two `name_key`s (or two ids) each, the smaller first."""

    titles: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    facts: int = 0
    not_facts: int = 0  # examples without a relation

    def add(self, heads: Iterable[str], tails: Iterable[str]) -> None:
        """A fact between any of these names."""
        self.facts += 1
        for head, tail in product(sorted(map(name_key, set(heads))), sorted(map(name_key, set(tails)))):
            if head and tail:
                self.pairs.add((min(head, tail), max(head, tail)))


def name_key(name: str) -> str:
    """`name` as pairs are compared: lower case, NFC, blanks collapsed, none beside punctuation, so that a name put
    together from tokens (`Jean - Luc`, `St . Louis`) is equal to the same name in running text."""
    text = " ".join(name.split()).lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    elif text.isalnum():
        return text
    return _AROUND_PUNCTUATION.sub(r"\1", text)


def read_contents(path: str | Path) -> Contents:
    """Titles and pairs of a file in any of the known forms.

    Raises:
        UserError: it cannot be read, holds neither a fact nor a title, or has a malformed record, which is named.
    """
    text = _text(Path(path))
    found = Contents()
    if text.lstrip()[:1] in ("[", "{"):
        for place, record in _records(text, path):
            _read_record(record, place, found)
    else:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if lines and _SEMEVAL.match(lines[0][1]):
            _read_semeval(lines, path, found)
        elif lines and "\t" in lines[0][1].strip():
            _read_pairs(lines, path, found)
        else:
            _read_titles(lines, path, found)
    if not found.titles and not found.facts and not found.not_facts:
        raise UserError(f"{path} holds no fact and no title. Known forms: {_FORMS}")
    return found


def _text(path: Path) -> str:
    raw = b""
    try:
        raw = path.read_bytes()
        unpack = next((unpack for magic, unpack in _PACKED.items() if raw.startswith(magic)), bytes)
        raw = unpack(raw)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: no UTF-8 (byte {error.start}); convert the file first") from error
    except (EOFError, ValueError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged: {error}; fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


# ------------------------------------------------------------------------------------------------ lines of text


def _read_titles(lines: Iterable[tuple[int, str]], path: str | Path, found: Contents) -> None:
    for number, line in lines:
        if "\t" in line.strip():
            raise UserError(f"{path}, line {number}: the lines before are titles, one a line; this has a tab: {line!r}")
        found.titles.add(normalise_title(line))


def _read_pairs(lines: Iterable[tuple[int, str]], path: str | Path, found: Contents) -> None:
    for number, line in lines:
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {number}: must be `head name<TAB>tail name`, got {line!r}")
        found.add([columns[0]], [columns[1]])


def _read_semeval(lines: Iterable[tuple[int, str]], path: str | Path, found: Contents) -> None:
    names: dict[str, str] = {}
    place = ""
    for number, line in lines:
        line = line.strip()
        if line.startswith("Comment:"):
            continue
        if names:
            if "\t" in line:
                raise UserError(f"{path}, line {number}: the label of the sentence before is due, got {line[:60]!r}")
            if line.lower() in NO_FACT:
                found.not_facts += 1
            else:
                found.add([names["1"]], [names["2"]])
            names = {}
            continue
        place = f"{path}, line {number}"
        names = dict(_ENTITY.findall(line))
        if not re.match(r"[0-9]+\t", line) or len(names) != 2:
            raise UserError(
                f"{place}: must be `number<TAB>sentence` with <e1>..</e1> and <e2>..</e2>, got {line[:60]!r}"
            )
    if names:
        raise UserError(f"{place}: the file ends before the label of this sentence")


# ------------------------------------------------------------------------------------------------ JSON


def _records(text: str, path: str | Path) -> Iterator[tuple[str, Any]]:
    """(place, record) of a JSON text: of a list, of an object of lists, or of lines."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not _is_json(lines[0][1]):
            raise UserError(f"{path} is no valid JSON: {error}") from None
        for number, line in lines:
            try:
                yield f"{path}, line {number}", json.loads(line)
            except (ValueError, RecursionError) as of_line:
                raise UserError(f"{path}, line {number} is no valid JSON: {of_line}") from None
        return
    lists = {f", {key}": value for key, value in whole.items() if _is_list(value)} if type(whole) is dict else {}
    if type(whole) is dict and (not lists or "paragraphs" in whole or "vertexSet" in whole):
        yield f"{path}, line 1", whole
        return
    for key, records in (lists or {"": whole}).items():
        for number, record in enumerate(records, 1):
            yield f"{path}{key}, record {number}", record


def _is_list(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(record) is dict for record in value)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _read_record(record: Any, place: str, found: Contents) -> None:
    if type(record) is not dict:
        raise UserError(f"{place}: must be an object, got {str(record)[:60]!r}. Known forms: {_FORMS}")
    try:
        if "vertexSet" in record:
            _read_docred(record, found)
        elif "paragraphs" in record:
            found.titles.add(normalise_title(_is(str, record["title"])))
        elif str(record.get("relation", record.get("label", ""))).lower() in NO_FACT:
            found.not_facts += 1
        elif "subj_start" in record:
            found.add(
                *(_tokens(record, *(record[f"{end}_{side}"] for side in ("start", "end"))) for end in ("subj", "obj"))
            )
        elif "h" in record:
            _read_ends(record, record["h"], record["t"], found)
        elif "head" in record:
            found.add(*([_cut(_is(str, record["text"]), *record[end])] for end in ("head", "tail")))
        else:
            raise UserError(f"{place}: fields {', '.join(record)} are of no known form ({_FORMS})")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        text = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{place}: malformed ({text}): {str(record)[:100]}") from None


def _read_docred(document: dict[str, Any], found: Contents) -> None:
    found.titles.add(normalise_title(_is(str, document["title"])))
    vertices = [{_is(str, mention["name"]) for mention in vertex} for vertex in document["vertexSet"]]
    for label in document.get("labels", ()):
        ends = [_is(int, label[end]) for end in ("h", "t")]
        if not all(0 <= end < len(vertices) for end in ends):
            raise ValueError(f"label {label} does not fit the {len(vertices)} entities of vertexSet")
        if str(label.get("r", "")).lower() in NO_FACT:
            found.not_facts += 1
        else:
            found.add(vertices[ends[0]], vertices[ends[1]])


def _read_ends(record: dict[str, Any], head: Any, tail: Any, found: Contents) -> None:
    names: list[list[str]] = []
    ids: list[str] = []
    for end in (head, tail):
        if type(end) is list:  # FewRel: name, id, positions of each mention's tokens
            name, identifier, places = end
            names.append([_is(str, name), *(_tokens(record, min(place), max(place))[0] for place in places)])
        else:  # OpenNRE: half-open, of characters or of tokens
            name, identifier, place = end.get("name", ""), end.get("id", ""), end.get("pos")
            names.append([_is(str, name)])
            if place:
                inside = [_cut(record["text"], *place)] if "text" in record else _tokens(record, place[0], place[1] - 1)
                names[-1] += inside
        ids.append(str(identifier))
        if not any(map(name_key, names[-1])):
            raise ValueError("an end without a name")
    found.add(*names)
    if all(map(_ID.match, ids)):
        found.pairs.add((min(ids), max(ids)))


def _tokens(record: dict[str, Any], first: Any, last: Any) -> list[str]:
    """The name made of the tokens from `first` to `last`, both included."""
    tokens = _is(list, record["token"] if "token" in record else record["tokens"])
    if not 0 <= _is(int, first) <= _is(int, last) < len(tokens):
        raise ValueError(f"tokens {first} to {last} of {len(tokens)}")
    return [" ".join(_BRACKETS.get(token, token) for token in map(str, tokens[first : last + 1]))]


def _cut(text: str, start: Any, end: Any) -> str:
    if not 0 <= _is(int, start) < _is(int, end) <= len(text):
        raise ValueError(f"characters {start} to {end} of {len(text)}")
    return text[start:end]


def _is(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value
