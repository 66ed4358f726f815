"""Files of relation classification -> examples: a clean text, the spans of head and tail in it, a label.

Three formats, told apart by the first character of the (perhaps gzipped) file:

- SemEval-2010 Task 8 text: `id <tab> "sentence with <e1>..</e1> and <e2>..</e2>"`, the label, `Comment:`, a blank line;
- JSON lines: `{"text", "head": [start, end], "tail": [start, end], "label"}`, half-open code-point offsets;
- TACRED's JSON list: `token`, `subj_start`, `subj_end`, `obj_start`, `obj_end` (inclusive), `relation`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError

Span = tuple[int, int]

_MARKER = re.compile(r"</?e[12]>")
_MARKERS = ("<e1>", "</e1>", "<e2>", "</e2>")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


@dataclass(frozen=True)
class Example:
    text: str
    head: Span  # half-open code-point offsets into `text`
    tail: Span
    label: str
    place: str  # "file:line" (TACRED: "file, example n"), for messages


def read_examples(path: str | Path) -> list[Example]:
    """All examples of a file, in its order.

    Raises:
        UserError: no such file, not UTF-8, damaged gzip, no example in it, or a bad line; the text names file and line.
    """
    path = Path(path)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: no UTF-8; convert the file first") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path} is no whole gzip file: {error}; fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    first = text.lstrip()[:1]
    lines = text.split("\n")  # not splitlines: a text may hold other line separators of Unicode
    if first == "[":
        examples = list(_tacred(text, path))
    elif first == "{":
        examples = list(_json_lines(lines, path))
    else:
        examples = list(_semeval(lines, path))
    if not examples:
        raise UserError(f"{path} holds no example")
    return examples


def _semeval(lines: Iterable[str], path: Path) -> Iterator[Example]:
    sentence, place = "", ""
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not sentence:
            if line and not line.startswith("Comment:"):
                place = f"{path}:{number}"
                if not re.match(r"\d+\t", line):
                    raise UserError(
                        f"{place}: expected `number <tab> sentence`, found {line[:60]!r}. Known formats: SemEval-2010 "
                        "Task 8 text, JSON lines with text, head, tail and label, and TACRED's JSON"
                    )
                sentence = line.partition("\t")[2]
        else:
            if not line or line.startswith("Comment:") or "\t" in line:
                raise UserError(f"{path}:{number}: the label of the sentence of line {place.rpartition(':')[2]} is due")
            text, head, tail = _without_markers(sentence, place)
            yield Example(text, head, tail, line, place)
            sentence = ""
    if sentence:
        raise UserError(f"{place}: the file ends before the label of this sentence")


def _without_markers(sentence: str, place: str) -> tuple[str, Span, Span]:
    """(clean text, span of e1, span of e2); the quotes around the sentence go too."""
    if len(sentence) > 1 and sentence[0] == sentence[-1] == '"':
        sentence = sentence[1:-1]
    clean, at, offsets = "", 0, {}
    for marker in _MARKER.finditer(sentence):
        clean += sentence[at : marker.start()]
        if marker.group() in offsets:
            raise UserError(f"{place}: {marker.group()} occurs twice")
        offsets[marker.group()], at = len(clean), marker.end()
    clean += sentence[at:]
    missing = [marker for marker in _MARKERS if marker not in offsets]
    if missing:
        raise UserError(f"{place}: {missing[0]} is missing")
    head, tail = (_trimmed(clean, (offsets[f"<{e}>"], offsets[f"</{e}>"]), place) for e in ("e1", "e2"))
    return clean, head, tail


def _trimmed(text: str, span: Span, place: str) -> Span:
    """`span` without white space at its ends."""
    start, end = span
    inside = text[start:end] if start < end else ""
    if not inside.strip():
        raise UserError(f"{place}: the mention at [{start}, {end}] is empty")
    return start + len(inside) - len(inside.lstrip()), end - len(inside) + len(inside.rstrip())


def _json_lines(lines: Iterable[str], path: Path) -> Iterator[Example]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{place}: no JSON: {error}") from error
        text, label = _field(record, "text", str, place), _field(record, "label", str, place)
        spans = []
        for name in ("head", "tail"):
            span = _field(record, name, list, place)
            if len(span) != 2 or any(type(x) is not int for x in span) or not 0 <= span[0] < span[1] <= len(text):
                raise UserError(f"{place}: {name}={span} is no [start, end] within the {len(text)} characters of text")
            spans.append(_trimmed(text, (span[0], span[1]), place))
        yield Example(text, spans[0], spans[1], label, place)


def _tacred(content: str, path: Path) -> Iterator[Example]:
    try:
        records = json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: no JSON: {error}") from error
    for number, record in enumerate(records, start=1):
        place = f"{path}, example {number}"
        words = [str(word) for word in _field(record, "token", list, place)]
        words = [_BRACKETS.get(word, word) for word in words]
        starts = [0, *accumulate(len(word) + 1 for word in words)]
        spans = []
        for role in ("subj", "obj"):
            first, last = (_field(record, f"{role}_{end}", int, place) for end in ("start", "end"))
            if not 0 <= first <= last < len(words):
                raise UserError(f"{place}: {role}_start={first}, {role}_end={last} do not lie in {len(words)} tokens")
            spans.append(_trimmed(" ".join(words), (starts[first], starts[last + 1] - 1), place))
        yield Example(" ".join(words), spans[0], spans[1], _field(record, "relation", str, place), place)


def _field(record: Any, name: str, kind: type, place: str) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if type(value) is not kind:
        wanted = {str: "a text", list: "a list", int: "a whole number"}[kind]
        raise UserError(f"{place}: {name!r} must be {wanted}, found {str(value)[:60]!r}")
    if value == "" and name in ("label", "relation"):
        raise UserError(f"{place}: {name!r} is empty")
    return value
