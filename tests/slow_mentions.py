"""Entity markers and whole masked mentions once more, document by document and piece by piece.

Nothing of the collation is used: of erica_dist only the random numbers (`tests.columns.numbers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from erica_dist.shards.reader import DocumentView
from erica_dist.stream.randomness import KeyedRandom
from tests.columns import numbers

PAD, UNK, CLS, SEP, MASK = range(5)
ORDINARY = list(range(5, 60))
START, END = 60, 61
NAMES = [[50], [51, 52], [], [53, 54, 55]]  # of the relations; the third has none


@dataclass
class SlowMention:
    start: int  # in the text, its marker included
    end: int
    words: list[int]  # places in the text
    entity: int
    number: int  # in the stored order


@dataclass
class SlowDocument:
    ids: list[int]
    types: list[int]
    query: tuple[int, int, int] | None
    mentions: list[SlowMention]  # that survive, in the stored order; places in the whole sequence
    masked: dict[int, int]  # place in the sequence -> original piece
    hidden: list[int]  # numbers of the mentions that are masked as a whole
    taking_part: set[int] = field(default_factory=set)


def text_of(view: DocumentView, markers: bool) -> tuple[list[int], list[SlowMention]]:
    """The document's pieces, with markers written in, and where its mentions lie in them."""
    spans = [tuple(span) for span in view.mention_spans.tolist()]
    text: list[int] = []
    mentions = [SlowMention(-1, -1, [], entity, i) for i, entity in enumerate(view.mention_entity.tolist())]
    tokens = view.tokens.tolist()
    for place in range(len(tokens) + 1):
        for mention, (_, end) in zip(mentions, spans, strict=True):
            if end == place:
                text += [END] * markers
                mention.end = len(text)
        for mention, (start, _) in zip(mentions, spans, strict=True):
            if start == place:
                mention.start = len(text)
                text += [START] * markers
        if place < len(tokens):
            for mention, (start, end) in zip(mentions, spans, strict=True):
                if start <= place < end:
                    mention.words.append(len(text))
            text.append(tokens[place])
    return text, mentions


def first_of(mentions: list[SlowMention], entity: int) -> SlowMention:
    return min((m for m in mentions if m.entity == entity), key=lambda m: m.start)


def query_of(view: DocumentView, epoch: int, max_length: int, random: KeyedRandom, text: Any, mentions: Any) -> Any:
    triples = [tuple(t) for t in view.relations.tolist() if NAMES[t[2]]]
    if not triples:
        return None
    longest = max(len(NAMES[r]) + len(first_of(mentions, h).words) for h, _, r in triples)
    there = {m.entity for m in mentions if m.end <= max_length - 3 - longest}
    drawable = [t for t in triples if t[0] in there and t[1] in there]
    if not drawable:
        return None
    return drawable[int(numbers(random, "triple", epoch, view.key, 1)[0] * len(drawable))]


def slow_document(
    view: DocumentView, epoch: int, is_rd: bool, max_length: int, settings: Any, random: KeyedRandom, ahead: float = 0.0
) -> SlowDocument:
    text, mentions = text_of(view, settings.entity_markers)
    query = None if is_rd else query_of(view, epoch, max_length, random, text, mentions)
    front = [CLS]
    if query:
        head = first_of(mentions, query[0])
        front = [CLS, *NAMES[query[2]], *(text[i] for i in head.words), SEP]
    kept = min(len(text), max_length - len(front) - 1)
    if settings.entity_markers:
        kept = min([kept, *(m.start for m in mentions if m.start < kept < m.end)])
    alive = [m for m in mentions if m.end <= kept]
    entities = {m.entity for m in alive}
    relations = {tuple(t) for t in view.relations.tolist()}
    barred = {tuple(p) for p in view.barred.tolist()}
    taking_part: set[int] = set()
    if is_rd:
        labelled = {(h, t) for h, t, _ in relations if {h, t} <= entities}
        count = len(view.entity_hash)
        score = numbers(random, "no_relation", epoch, view.key, count * count)
        known = barred | {(h, t) for h, t, _ in relations}
        free = [(h, t) for h in entities for t in entities if h != t and (h, t) not in known]
        free = sorted(free, key=lambda pair: score[pair[0] * count + pair[1]])[: settings.no_relation_pairs]
        taking_part = {entity for pair in [*labelled, *free] for entity in pair}
    if query:
        head_entity, tail, relation = query
        others = {t for h, t, r in relations if (h, r) == (head_entity, relation)}
        others |= {t for h, t in barred if h == head_entity}
        taking_part = (entities - others) | {head_entity, tail}
    mine = [m for m in alive if m.entity in taking_part]
    hidden = []
    if settings.entity_mask_probability * ahead > 0:
        chance = numbers(random, "entity mask", epoch, view.key, len(mentions))
        hidden = [m for m in mine if chance[m.number] < settings.entity_mask_probability * ahead]
    protected = {i for m in mine for i in m.words} if not settings.mask_mentions else set()
    protected |= {i for m in hidden for i in m.words}
    eligible = [i for i in range(kept) if ORDINARY[0] <= text[i] <= ORDINARY[-1] and i not in protected]
    choice, action, piece = (
        numbers(random, name, epoch, view.key, len(text)) for name in ("mlm choice", "mlm action", "mlm piece")
    )
    wanted = max(int(settings.mask_probability > 0), math.floor(settings.mask_probability * len(eligible) + 0.5))
    shown, masked = text[:kept], {}
    for i in sorted(eligible, key=lambda i: choice[i])[:wanted]:
        masked[i] = text[i]
        if action[i] < 0.9:
            shown[i] = MASK if action[i] < 0.8 else ORDINARY[int(piece[i] * len(ORDINARY))]
    for mention in hidden:
        for i in mention.words:
            shown[i] = MASK
            if text[i] >= ORDINARY[0]:
                masked[i] = text[i]
    shift = len(front)
    for mention in alive:
        mention.start, mention.end = mention.start + shift, mention.end + shift
        mention.words = [i + shift for i in mention.words]
    return SlowDocument(
        ids=[*front, *shown, SEP],
        types=[0] * shift + [int(bool(query))] * (kept + 1),
        query=query,
        mentions=alive,
        masked={i + shift: masked[i] for i in sorted(masked)},
        hidden=[m.number for m in hidden],
        taking_part=taking_part,
    )


def slow_batch(
    rd: list, ed: list, max_length: int, settings: Any, random: KeyedRandom, ahead: float = 0.0
) -> dict[str, list[int]]:
    """What the collation must give, as plain lists; `rd` and `ed` are pairs (view, epoch)."""
    names = ("ids", "position", "type", "cu", "pooled", "pooled_mention", "mention_entity", "masked", "labels")
    out: dict[str, list[int]] = {name: [] for name in (*names, "query_head", "query_tail", "hidden")}
    out["cu"] = [0]
    entities = mentions = 0
    for place, (view, epoch) in enumerate([*rd, *ed]):
        document = slow_document(view, epoch, place < len(rd), max_length, settings, random, ahead)
        base = len(out["ids"])
        number = {e: entities + i for i, e in enumerate(sorted({m.entity for m in document.mentions}))}
        for mention in document.mentions:
            pooled = [mention.start] if settings.entity_markers else mention.words
            out["pooled"] += [base + i for i in pooled]
            out["pooled_mention"] += [mentions] * len(pooled)
            out["mention_entity"].append(number[mention.entity])
            mentions += 1
        if document.query:
            out["query_head"].append(number[document.query[0]])
            out["query_tail"].append(number[document.query[1]])
        out["masked"] += [base + i for i in document.masked]
        out["labels"] += document.masked.values()
        out["ids"] += document.ids
        out["position"] += range(len(document.ids))
        out["type"] += document.types
        out["cu"].append(len(out["ids"]))
        out["hidden"] += document.hidden
        entities += len(number)
    out["entities"] = [entities]
    return out
