"""Documents of one micro-batch laid one after the other, and what of them survives when their sequences are cut.

In: document views and how many leading pieces of each are kept. Out: flat arrays that number documents, mentions and
entities over the whole micro-batch. No loop runs over mentions, entities or pairs.

D documents, T0 pieces, M mentions, E entities, R labelled triples, X barred pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from erica_dist.shards.reader import DocumentView
from erica_dist.stream import ragged

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Documents:
    """Flat arrays over all documents; entities are numbered over the micro-batch, mentions keep the stored order."""

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

    def __len__(self) -> int:
        return len(self.keys)


def lay_out(views: Sequence[DocumentView]) -> Documents:
    """The views as flat arrays."""
    token_start = ragged.offsets(ragged.lengths([view.tokens for view in views]))
    entity_counts = ragged.lengths([view.entity_hash for view in views])
    entity_start = ragged.offsets(entity_counts)
    mention_document = ragged.row_of(ragged.lengths([view.mention_entity for view in views]))
    triple_document = ragged.row_of(ragged.lengths([view.relations for view in views]))
    barred_document = ragged.row_of(ragged.lengths([view.barred for view in views]))
    spans = _joined([view.mention_spans for view in views], 2)
    entity = _joined([view.mention_entity for view in views]) + entity_start[mention_document]
    triples = _joined([view.relations for view in views], 3)
    triples[:, :2] += entity_start[triple_document][:, None]
    # mentions do not overlap, so the mention that starts first also ends first
    first_start = np.full(entity_start[-1], NEVER)
    first_end = np.full(entity_start[-1], NEVER)
    np.minimum.at(first_start, entity, spans[:, 0])
    np.minimum.at(first_end, entity, spans[:, 1])
    return Documents(
        keys=np.array([view.key for view in views], np.int64),
        tokens=_joined([view.tokens for view in views]),
        token_start=token_start,
        entity_start=entity_start,
        entity_document=ragged.row_of(entity_counts),
        mention_document=mention_document,
        mention_start=np.ascontiguousarray(spans[:, 0]),
        mention_end=np.ascontiguousarray(spans[:, 1]),
        mention_entity=entity,
        mention_sentence=_joined([view.mention_sentence for view in views]),
        first_start=first_start,
        first_end=first_end,
        triple_document=triple_document,
        triples=triples,
        barred_document=barred_document,
        barred=_joined([view.barred for view in views], 2) + entity_start[barred_document][:, None],
    )


def _joined(arrays: Sequence[np.ndarray], width: int = 0) -> np.ndarray:
    if not arrays:
        return np.zeros((0, width) if width else 0, np.int64)
    return np.concatenate(arrays).astype(np.int64)


def surviving_entities(documents: Documents, kept_D: np.ndarray) -> np.ndarray:
    """bool [E]: entities that still have a mention when only the first `kept_D` pieces of each document are kept."""
    return documents.first_end <= kept_D[documents.entity_document]


# ------------------------------------------------------------------------------------------------ entity discrimination


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
    prompt_R = name_lengths[relation] + documents.first_end[head] - documents.first_start[head]
    longest_D = np.zeros(len(documents), np.int64)
    np.maximum.at(longest_D, documents.triple_document[named_R], prompt_R[named_R])
    survives_E = surviving_entities(documents, room - longest_D)
    rows = np.flatnonzero(named_R & survives_E[head] & survives_E[tail])
    counts_D = np.bincount(documents.triple_document[rows], minlength=len(documents))
    document_Q = np.flatnonzero(counts_D)
    picked_Q = rows[ragged.offsets(counts_D)[document_Q] + (uniform_D * counts_D).astype(np.int64)[document_Q]]
    return Draw(document_Q, head[picked_Q], tail[picked_Q], relation[picked_Q])
