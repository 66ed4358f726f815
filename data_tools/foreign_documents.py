"""A record that another tool wrote -> a `Draft`: one document with code-point spans, not yet checked.

Two forms are known by their fields:

- ours (DESIGN.md, docs/formats.md): `text`; `entities` of `id`, `name`, `type` and `mentions` [start, end(, source)];
  `relations` [head, tail, relation]; `barred`; `title`, `page_id`, `chunk`. All but `text` may be absent.
- DocRED's, which the published ERICA code uses too: `vertexSet`, of each entity its mentions with `pos` [start, end) in
  words of the sentence `sent_id`, and optionally `type` and `id`; `labels` of `h`, `t`, `r`; `sents`, or in its place
  `tokenized_sents` with the word pieces of each word (BERT's: `##` marks what is not a word's start).

The text of the second is its words joined by single blanks, the sentences too: how it was spaced before is lost. White
space within a word counts as one blank; a word of nothing else leaves no trace, so that a mention of such words only is
empty. `na_triple`, where the published code's files have it, lists the pairs that may be drawn as holding no relation;
those that it does not list and that have no label (taken out against leakage) are barred here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SOURCES = ("link", "name", "ner")
_NO_TYPE = ("", "none", "null")


class MalformedError(ValueError):
    """A record of no known form; the text says what is wrong with it."""


@dataclass(frozen=True)
class Mention:
    """A span of the text; `fault`: why it is none, "" where it may be one."""

    start: int
    end: int
    source: str = "name"
    fault: str = ""


@dataclass
class Entity:
    """id, name: "" where the record has none; type: None where it has none."""

    id: str
    name: str
    type: str | None
    mentions: list[Mention]


@dataclass
class Draft:
    """A document as its record has it; labels, barred: by places in `entities`, which may lie outside."""

    title: str
    text: str
    page_id: int = 0
    chunk: int = 0
    entities: list[Entity] = field(default_factory=list)
    labels: list[tuple[int, int, str]] = field(default_factory=list)
    barred: list[tuple[int, int]] = field(default_factory=list)


def read_draft(record: Any, name: str) -> Draft:
    """The draft of one record; `name`: the title of one without.

    Raises:
        MalformedError: it is no object, of no known form, or a field is missing or of a wrong kind.
    """
    if type(record) is not dict:
        raise MalformedError(f"is no JSON object but {str(record)[:40]!r}")
    try:
        if "vertexSet" in record:
            return _of_docred(record, name)
        if "text" in record:
            return _of_ours(record, name)
    except MalformedError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        text = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise MalformedError(f"is malformed ({text})") from None
    fields = ", ".join(list(record)[:8]) or "none"
    raise MalformedError(f"has neither `text` nor `vertexSet` (its fields: {fields})")


def _of_ours(record: Mapping[str, Any], name: str) -> Draft:
    entities: list[Entity] = []
    for entity in record.get("entities") or ():
        mentions = []
        for mention in entity["mentions"]:
            start, end, *more = mention
            source = more[0] if more and more[0] in SOURCES else "name"
            mentions.append(Mention(_is(int, start), _is(int, end), source))
        kind = entity.get("type")
        entities.append(Entity(_id(entity), _text(entity.get("name")), _type(kind), mentions))
    return Draft(
        title=_text(record.get("title")) or name,
        text=_is(str, record["text"]),
        page_id=_is(int, record.get("page_id", 0)),
        chunk=_is(int, record.get("chunk", 0)),
        entities=entities,
        labels=[_label(*label) for label in record.get("relations") or ()],
        barred=[_pair(*pair) for pair in record.get("barred") or ()],
    )


def _of_docred(record: Mapping[str, Any], name: str) -> Draft:
    if "sents" in record:
        sentences = [_words(sentence) for sentence in record["sents"]]
    elif "tokenized_sents" in record:
        sentences = [[word_of_pieces(word) for word in sentence] for sentence in record["tokenized_sents"]]
    else:
        raise MalformedError("has `vertexSet`, but neither `sents` nor `tokenized_sents`")
    text, spans = join_words(sentences)
    entities = []
    for number, vertex in enumerate(record["vertexSet"]):
        mentions = [
            _mention_of_words(mention, spans, f"entity {number}, mention {m}") for m, mention in enumerate(vertex)
        ]
        types = [kind for mention in vertex if (kind := _type(mention.get("type")))]
        kind = max(types, key=types.count) if types else None  # of several as frequent the first
        identifier = next(filter(None, map(_id, vertex)), "")
        entities.append(Entity(identifier, "", kind, mentions))
    labels = [_label(label["h"], label["t"], label["r"]) for label in record.get("labels") or ()]
    barred: list[tuple[int, int]] = []
    if "na_triple" in record:
        drawn = {_pair(*pair) for pair in record["na_triple"]} | {(head, tail) for head, tail, _ in labels}
        every = range(len(entities))
        barred = [(head, tail) for head in every for tail in every if head != tail and (head, tail) not in drawn]
    return Draft(_text(record.get("title")) or name, text, entities=entities, labels=labels, barred=barred)


def join_words(sentences: list[list[str]]) -> tuple[str, list[list[tuple[int, int]]]]:
    """The text of all words, and of each sentence its words' half-open spans; that of a blank word is empty."""
    words: list[str] = []
    spans: list[list[tuple[int, int]]] = []
    at = 0  # where the next word starts
    for sentence in sentences:
        joined = " ".join(sentence)
        if not joined.isprintable() or "" in sentence or joined.count(" ") >= len(sentence):  # the rare case
            sentence = [" ".join(word.split()) for word in sentence]
        of_sentence = []
        for length in map(len, sentence):
            of_sentence.append((at, at + length))
            if length:
                at += length + 1
        words += filter(None, sentence)
        spans.append(of_sentence)
    return " ".join(words), spans


def word_of_pieces(word: Any) -> str:
    """The word that BERT's pieces make (`["Zan", "##ia"]`: Zania); a word that is no list is one already."""
    if type(word) is str:
        return word
    return "".join(_is(str, piece).removeprefix("##") if place else _is(str, piece) for place, piece in enumerate(word))


def _words(sentence: Any) -> list[str]:
    if type(sentence) is not list:
        raise TypeError(f"{str(sentence)[:40]!r} is no list of words")
    if set(map(type, sentence)) - {str}:
        raise TypeError(f"{next(str(word) for word in sentence if type(word) is not str)[:40]!r} is no str")
    return sentence


def _mention_of_words(mention: Mapping[str, Any], spans: list[list[tuple[int, int]]], what: str) -> Mention:
    sentence, pos = mention["sent_id"], mention["pos"]
    if type(sentence) is str and sentence.isdigit():
        sentence = int(sentence)
    if type(pos) not in (list, tuple) or len(pos) != 2:
        text = "files of the published code from before its sample_data.py list words here and cannot be read"
        raise MalformedError(f"{what}: `pos` must be [start, end), not {str(pos)[:40]}; {text}")
    start, end = _is(int, pos[0]), _is(int, pos[1])
    if not 0 <= _is(int, sentence) < len(spans):
        return Mention(0, 0, fault=f"is in sentence {sentence} of {len(spans)}")
    words = spans[sentence]
    if not 0 <= start <= end <= len(words):
        return Mention(0, 0, fault=f"words [{start}, {end}) of sentence {sentence}, which has {len(words)} words")
    filled = [span for span in words[start:end] if span[0] < span[1]]
    return Mention(filled[0][0], filled[-1][1]) if filled else Mention(0, 0)


def _label(head: Any, tail: Any, relation: Any) -> tuple[int, int, str]:
    # relations by number, as some preparations of DocRED have them
    return _is(int, head), _is(int, tail), str(relation) if type(relation) is int else _is(str, relation)


def _pair(head: Any, tail: Any) -> tuple[int, int]:
    return _is(int, head), _is(int, tail)


def _id(holder: Mapping[str, Any]) -> str:
    return _text(holder.get("id"))


def _type(value: Any) -> str | None:
    return None if value is None or _text(value).lower() in _NO_TYPE else _text(value)


def _text(value: Any) -> str:
    return "" if value is None else _is(str, value).strip()


def _is(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value
