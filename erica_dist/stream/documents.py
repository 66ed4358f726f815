"""Documents of one micro-batch laid one after the other, and what of them survives when their sequences are cut.

In: columns of documents as the shards give them, and how many leading pieces of each are kept. Out: flat arrays that
number documents, mentions and entities over the whole micro-batch. No loop runs over documents, mentions or pairs.

D documents, T0 pieces, M mentions, E entities, R labelled triples, X barred pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from erica_dist.shards import ragged
from erica_dist.shards.gathering import Columns
from erica_dist.stream.randomness import KeyedRandom

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Documents:
    """Flat arrays over all documents; entities are numbered over the micro-batch, mentions keep the stored order.

    With entity markers the pieces hold them, and all spans of mentions include them: `margin` pieces at either end.
    """

    keys: np.ndarray  # [D]
    tokens: np.ndarray  # int64 [T0]
    token_start: np.ndarray  # [D + 1]
    entity_start: np.ndarray  # [D + 1]
    entity_document: np.ndarray  # [E]
    mention_document: np.ndarray  # [M]
    mention_start: np.ndarray  # [M] pieces from the document's first
    mention_end: np.ndarray  # [M]
    mention_entity: np.ndarray  # [M]
    mention_sentence: np.ndarray  # [M]
    first_start: np.ndarray  # [E] span of each entity's first mention
    first_end: np.ndarray  # [E]
    triple_document: np.ndarray  # [R]
    triples: np.ndarray  # [R, 3] head entity, tail entity, relation; sorted by head, tail, relation
    barred_document: np.ndarray  # [X]
    barred: np.ndarray  # [X, 2]
    margin: int = 0  # pieces of a mention's span, at its start and at its end, that are no words: 1 with markers

    def __len__(self) -> int:
        return len(self.keys)


def lay_out(columns: Columns) -> Documents:
    """The columns as flat arrays."""
    counts, arrays = columns.counts, columns.arrays
    entity_start = ragged.offsets(counts["entity_offsets"])
    mention_document = ragged.row_of(counts["mention_offsets"])
    triple_document = ragged.row_of(counts["relation_offsets"])
    barred_document = ragged.row_of(counts["barred_offsets"])
    spans = arrays["mention_spans"].astype(np.int64)
    start, end = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
    entity = arrays["mention_entity"] + entity_start[mention_document]
    triples = arrays["relations"].astype(np.int64)
    triples[:, :2] += entity_start[triple_document][:, None]
    first_start, first_end = _first_spans(start, end, entity, int(entity_start[-1]))
    return Documents(
        keys=arrays["document_key"].astype(np.int64),
        tokens=arrays["tokens"].astype(np.int64),
        token_start=ragged.offsets(counts["token_offsets"]),
        entity_start=entity_start,
        entity_document=ragged.row_of(counts["entity_offsets"]),
        mention_document=mention_document,
        mention_start=start,
        mention_end=end,
        mention_entity=entity,
        mention_sentence=arrays["mention_sentence"].astype(np.int64),
        first_start=first_start,
        first_end=first_end,
        triple_document=triple_document,
        triples=triples,
        barred_document=barred_document,
        barred=arrays["barred"] + entity_start[barred_document][:, None],
    )


def _first_spans(
    start: np.ndarray, end: np.ndarray, entity: np.ndarray, entities: int
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each entity's first mention."""
    # mentions do not overlap, so the mention that starts first also ends first
    first_start, first_end = np.full(entities, NEVER), np.full(entities, NEVER)
    np.minimum.at(first_start, entity, start)
    np.minimum.at(first_end, entity, end)
    return first_start, first_end


def with_markers(documents: Documents, start_id: int, end_id: int) -> Documents:
    """The same documents with a marker before and one behind each mention, as pieces of the document.

    Where one mention ends and the next begins, the end marker of the first comes first.
    """
    count = len(documents.mention_start)
    base_M = documents.token_start[documents.mention_document]
    # in front of which piece each marker stands, the start markers behind the end markers
    gap = np.concatenate([base_M + documents.mention_start, base_M + documents.mention_end])
    order = np.argsort(2 * gap + (np.arange(2 * count) < count), kind="stable")
    place = np.empty(2 * count, np.int64)
    place[order] = gap[order] + np.arange(2 * count)
    tokens = np.empty(len(documents.tokens) + 2 * count, np.int64)
    is_word = np.ones(len(tokens), bool)
    is_word[place] = False
    tokens[is_word] = documents.tokens
    tokens[place[:count]], tokens[place[count:]] = start_id, end_id
    mentions_D = np.bincount(documents.mention_document, minlength=len(documents))
    token_start = documents.token_start + 2 * ragged.offsets(mentions_D)
    base_M = token_start[documents.mention_document]
    start, end = place[:count] - base_M, place[count:] + 1 - base_M
    first_start, first_end = _first_spans(start, end, documents.mention_entity, int(documents.entity_start[-1]))
    return replace(
        documents,
        tokens=tokens,
        token_start=token_start,
        mention_start=start,
        mention_end=end,
        first_start=first_start,
        first_end=first_end,
        margin=1,
    )


def cut_before_mentions(documents: Documents, kept_D: np.ndarray) -> np.ndarray:
    """int64 [D]: `kept_D`, or fewer pieces where a mention would be cut through: the document then ends before it."""
    kept_M = kept_D[documents.mention_document]
    cut_M = (documents.mention_start < kept_M) & (kept_M < documents.mention_end)
    shorter_D = kept_D.copy()
    np.minimum.at(shorter_D, documents.mention_document[cut_M], documents.mention_start[cut_M])
    return shorter_D


def surviving_entities(documents: Documents, kept_D: np.ndarray) -> np.ndarray:
    """bool [E]: entities that still have a mention when only the first `kept_D` pieces of each document are kept."""
    return documents.first_end <= kept_D[documents.entity_document]


def pair_places(documents: Documents, head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """int64: the place of each ordered pair of entities in its document's square of them, row by row."""
    document = documents.entity_document[head]
    first, count = documents.entity_start[document], np.diff(documents.entity_start)[document]
    return (head - first) * count + tail - first


def with_one_relation_each(documents: Documents, stream_D: np.ndarray) -> Documents:
    """The same documents with one relation kept of each pair that holds several, all equally likely.

    The published data build keeps the last one that its knowledge base lists: whichever that is, it is one of them.
    """
    head, tail, _ = documents.triples.T
    is_new = np.ones(len(head), bool)
    is_new[1:] = (head[1:] != head[:-1]) | (tail[1:] != tail[:-1])
    first = np.flatnonzero(is_new)
    count = np.diff(np.append(first, len(head)))
    place = pair_places(documents, head[first], tail[first])
    uniform = KeyedRandom.uniform(stream_D[documents.triple_document[first]], place)
    kept = first + (uniform * count).astype(np.int64)
    return replace(documents, triples=documents.triples[kept], triple_document=documents.triple_document[kept])


# ------------------------------------------------------------------------------------------------ entity discrimination


def first_words(documents: Documents, entity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the words of each entity's first mention, without markers: first piece in its document, and how many."""
    start = documents.first_start[entity] + documents.margin
    return start, documents.first_end[entity] - documents.margin - start


@dataclass(frozen=True)
class Draw:
    """The query of each document that has one. Q queries."""

    document_Q: np.ndarray  # rising
    head_Q: np.ndarray  # entity
    tail_Q: np.ndarray
    relation_Q: np.ndarray


def draw_triples(
    documents: Documents, name_lengths: np.ndarray, room: int, uniform_D: np.ndarray, wanted_D: np.ndarray
) -> Draw:
    """One triple for each document of `wanted_D`, uniformly over its drawable ones: `uniform_D` in [0, 1) picks it.

    `room` pieces are there for relation name, head mention and document together. A triple is drawable when its
    relation has a name (`name_lengths` of each relation) and both its entities survive beside the longest prompt that
    any named triple of the document could bring; so the choice depends on nothing but the document.
    """
    head, tail, relation = documents.triples.T
    named_R = (name_lengths[relation] > 0) & wanted_D[documents.triple_document]
    prompt_R = name_lengths[relation] + first_words(documents, head)[1]
    longest_D = np.zeros(len(documents), np.int64)
    np.maximum.at(longest_D, documents.triple_document[named_R], prompt_R[named_R])
    survives_E = surviving_entities(documents, room - longest_D)
    rows = np.flatnonzero(named_R & survives_E[head] & survives_E[tail])
    counts_D = np.bincount(documents.triple_document[rows], minlength=len(documents))
    document_Q = np.flatnonzero(counts_D)
    picked_Q = rows[ragged.offsets(counts_D)[document_Q] + (uniform_D * counts_D).astype(np.int64)[document_Q]]
    return Draw(document_Q, head[picked_Q], tail[picked_Q], relation[picked_Q])
