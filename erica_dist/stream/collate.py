"""Documents and sequences to packed tensors: one micro-batch of ERICA or of ELECTRA.

In: columns of documents, the epoch of each, and what model and job ask for. Out: an `EricaMicroBatch` or an
`ElectraMicroBatch`. All that is random is a function of (seed, epoch, document key). numpy works on the whole
micro-batch at once; nothing loops over documents.

T packed tokens, D documents, E entities, M mentions, P pairs, Q queries, K masked positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from erica_dist.config import EricaConfig, EricaJob
from erica_dist.errors import UserError
from erica_dist.shards import ragged
from erica_dist.shards.gathering import Columns
from erica_dist.stream import masking
from erica_dist.stream.discrimination import PairTest, query_candidates, relation_pairs, share_sentence
from erica_dist.stream.documents import (
    Documents,
    cut_before_mentions,
    draw_triples,
    first_words,
    lay_out,
    pair_places,
    surviving_entities,
    with_markers,
    with_one_relation_each,
)
from erica_dist.stream.micro_batches import ElectraMicroBatch, EricaMicroBatch, Packed
from erica_dist.stream.randomness import KeyedRandom

__all__ = ["ElectraMicroBatch", "EricaCollation", "EricaMicroBatch", "Packed", "collate_electra", "collate_erica"]


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that packing and masking need."""

    cls_id: int
    sep_id: int
    mask_id: int
    ordinary_ids: np.ndarray  # all but the special ones
    special_V: np.ndarray  # bool, by id
    marker_ids: tuple[int, int] | None = None  # start and end of a mention

    @classmethod
    def of(cls, tokenizer: dict[str, Any]) -> Vocabulary:
        """From the manifest's `tokenizer` object, or from that with markers (`stream.markers`)."""
        special_V = np.zeros(tokenizer["vocab_size"], bool)
        special_V[tokenizer["special_ids"]] = True
        return cls(
            cls_id=tokenizer["cls_id"],
            sep_id=tokenizer["sep_id"],
            mask_id=tokenizer["mask_id"],
            ordinary_ids=np.flatnonzero(~special_V),
            special_V=special_V,
            marker_ids=tuple(tokenizer["marker_ids"]) if "marker_ids" in tokenizer else None,
        )


# ------------------------------------------------------------------------------------------------ ERICA


@dataclass(frozen=True)
class EricaCollation:
    """What turns documents into micro-batches, fixed over a run."""

    vocabulary: Vocabulary
    name_pieces: np.ndarray  # int64, pieces of all relations' names
    name_start: np.ndarray  # int64 [relations + 1]
    max_length: int
    erica: EricaConfig

    @classmethod
    def of(cls, tokenizer: dict[str, Any], relations: Sequence[dict[str, Any]], job: EricaJob) -> EricaCollation:
        """For documents of the manifest's `tokenizer` and `relations` under the settings of `job`.

        Raises:
            UserError: a setting that leaves no sense.
        """
        if not 0 <= job.erica.mask_probability < 1:
            raise UserError(f"erica.mask_probability must be in [0, 1), got {job.erica.mask_probability}")
        if job.model.max_length < 8:
            raise UserError(f"model.max_length={job.model.max_length} leaves no room for a document; give at least 8")
        names = [relation["pieces"] for relation in relations]
        return cls(
            vocabulary=Vocabulary.of(tokenizer),
            name_pieces=np.array([piece for name in names for piece in name], np.int64),
            name_start=ragged.offsets(np.array([len(name) for name in names], np.int64)),
            max_length=job.model.max_length,
            erica=job.erica,
        )


def collate_erica(
    columns: Columns,
    epochs_D: np.ndarray,
    rd: int,
    collation: EricaCollation,
    random: KeyedRandom,
    ahead: float = 0.0,
) -> EricaMicroBatch:
    """One micro-batch of documents, of which the first `rd` serve relation discrimination and the others ED.

    An ED document without a drawable triple becomes `[CLS] document [SEP]`, has no query and serves MLM only. `ahead`
    is the share of the training that is still to come: whole mentions are masked with that much of
    `erica.entity_mask_probability`; 0 for held-out documents.
    """
    settings, name_start = collation.erica, collation.name_start
    documents = lay_out(columns)
    if settings.entity_markers:
        assert collation.vocabulary.marker_ids is not None, "the tokenizer record of `stream.markers` is needed"
        documents = with_markers(documents, *collation.vocabulary.marker_ids)
    size = len(documents)
    is_rd_D = np.arange(size) < rd
    labelled = documents
    if settings.relations_per_pair == "one":
        labelled = with_one_relation_each(documents, random.streams("relation", epochs_D, documents.keys))

    ask_D = random.uniform(random.streams("triple", epochs_D, documents.keys), 0)
    room = collation.max_length - 3
    name_lengths = np.diff(name_start)
    draw = draw_triples(labelled, name_lengths, room, ask_D, ~is_rd_D)
    head_at_Q, head_count_Q = first_words(documents, draw.head_Q)
    head_start_Q = documents.token_start[draw.document_Q] + head_at_Q
    prompt_D = np.zeros(size, np.int64)  # pieces between [CLS] and the first [SEP] of an asked document
    prompt_D[draw.document_Q] = name_lengths[draw.relation_Q] + head_count_Q
    asked_D = np.zeros(size, bool)
    asked_D[draw.document_Q] = True
    kept_D = np.minimum(np.diff(documents.token_start), room + ~asked_D - prompt_D)
    if settings.entity_markers:
        kept_D = cut_before_mentions(documents, kept_D)  # no start marker without its end
    alive_E = surviving_entities(documents, kept_D)
    alive_M = documents.mention_end <= kept_D[documents.mention_document]

    cu = ragged.offsets(kept_D + 2 + np.where(asked_D, prompt_D + 1, 0))
    text_start_D = cu[1:] - 1 - kept_D
    ids_T = np.empty(cu[-1], np.int64)
    ids_T[cu[:-1]] = collation.vocabulary.cls_id
    ids_T[cu[1:] - 1] = collation.vocabulary.sep_id
    ids_T[text_start_D[asked_D] - 1] = collation.vocabulary.sep_id
    text = ragged.spans(text_start_D, kept_D)
    ids_T[text] = documents.tokens[ragged.spans(documents.token_start[:-1], kept_D)]
    name_at_Q = cu[draw.document_Q] + 1
    names_Q = name_lengths[draw.relation_Q]
    ids_T[ragged.spans(name_at_Q, names_Q)] = collation.name_pieces[ragged.spans(name_start[draw.relation_Q], names_Q)]
    ids_T[ragged.spans(name_at_Q + names_Q, head_count_Q)] = documents.tokens[ragged.spans(head_start_Q, head_count_Q)]
    second_T = np.zeros(len(ids_T), np.int64)
    second_T[ragged.spans(text_start_D[asked_D], kept_D[asked_D] + 1)] = 1

    of_rd_E = alive_E & is_rd_D[documents.entity_document]
    unrelated_D = random.streams("no_relation", epochs_D, documents.keys)
    fits: PairTest | None = None
    if settings.sentences != "any":
        fits = partial(_are_single, documents, alive_M, settings.sentences == "single")
    pairs = relation_pairs(labelled, of_rd_E, settings.no_relation_pairs, unrelated_D, fits)
    pair_bits_P = random.bits(
        random.streams("pair", epochs_D, documents.keys)[pairs.document_P],
        pair_places(documents, pairs.head_P, pairs.tail_P),
    )
    # the dropped relations of a pair stay true: its tail is no candidate either way
    candidates = query_candidates(documents, alive_E, draw, settings.other_tails_as_negatives)

    margin = documents.margin
    mention_at_M = (text_start_D[documents.mention_document] + documents.mention_start)[alive_M]
    mention_count_M = (documents.mention_end - documents.mention_start)[alive_M] - 2 * margin
    words_N = ragged.spans(mention_at_M + margin, mention_count_M)
    taking_part_E = np.zeros(len(alive_E), bool)
    for entities in (pairs.head_P, pairs.tail_P, candidates.entity_C, draw.head_Q, draw.tail_Q):
        taking_part_E[entities] = True
    taking_part_M = taking_part_E[documents.mention_entity[alive_M]]
    ordinary_T = np.zeros(len(ids_T), bool)
    ordinary_T[text] = ~collation.vocabulary.special_V[ids_T[text]]
    may_mask_T = ordinary_T.copy()
    if not settings.mask_mentions:
        may_mask_T[words_N[np.repeat(taking_part_M, mention_count_M)]] = False
    hidden_N = np.zeros(0, np.int64)  # words of whole masked mentions
    if settings.entity_mask_probability * ahead > 0:
        stream_M = random.streams("entity mask", epochs_D, documents.keys)[documents.mention_document[alive_M]]
        uniform_M = random.uniform(stream_M, ragged.within(columns.counts["mention_offsets"])[alive_M])
        hidden_M = taking_part_M & (uniform_M < settings.entity_mask_probability * ahead)
        hidden_N = words_N[np.repeat(hidden_M, mention_count_M)]
        may_mask_T[hidden_N] = False
    masked_T, positions_K, labels_K = masking.mlm_mask(
        ids_T,
        text[may_mask_T[text]],
        np.repeat(np.arange(size), kept_D)[may_mask_T[text]],
        masking.Chance(random, epochs_D, documents.keys, text_start_D),
        settings.mask_probability,
        collation.vocabulary.mask_id,
        collation.vocabulary.ordinary_ids,
    )
    if len(hidden_N):
        masked_T[hidden_N] = collation.vocabulary.mask_id
        positions_K = np.union1d(positions_K, hidden_N[ordinary_T[hidden_N]])
        labels_K = ids_T[positions_K]
    # what stands for a mention: its words, or its start marker
    pooled_N, pooled_count_M = (mention_at_M, np.ones_like(mention_at_M)) if margin else (words_N, mention_count_M)

    number_E = np.cumsum(alive_E) - 1
    local_P = documents.entity_start[pairs.document_P]
    return EricaMicroBatch(
        packed=_packed(masked_T, second_T, cu, collation.vocabulary),
        masked_positions_K=_tensor(positions_K),
        masked_labels_K=_tensor(labels_K),
        piece_positions_N=_tensor(pooled_N),
        piece_mention_N=_tensor(ragged.row_of(pooled_count_M)),
        mention_entity_M=_tensor(number_E[documents.mention_entity[alive_M]]),
        entity_count=int(alive_E.sum()),
        mention_count=len(mention_count_M),
        pair_head_P=_tensor(number_E[pairs.head_P]),
        pair_tail_P=_tensor(number_E[pairs.tail_P]),
        pair_document_P=_tensor(documents.keys[pairs.document_P]),
        pair_head_local_P=_tensor(pairs.head_P - local_P),
        pair_tail_local_P=_tensor(pairs.tail_P - local_P),
        pair_labels_PL=_tensor(pairs.labels_PL),
        pair_same_sentence_P=_tensor(share_sentence(documents, alive_M, pairs.head_P, pairs.tail_P)),
        pair_draw_P=_tensor(pair_bits_P.view(np.int64)),
        query_head_Q=_tensor(number_E[draw.head_Q]),
        query_tail_Q=_tensor(number_E[draw.tail_Q]),
        candidate_entity_C=_tensor(number_E[candidates.entity_C]),
        candidate_query_C=_tensor(candidates.query_C),
        masked_of_rd=int((positions_K < cu[rd]).sum()),
        documents=size,
        tokens=len(ids_T),
    )


def _are_single(
    documents: Documents, alive_M: np.ndarray, wanted: bool, head_P: np.ndarray, tail_P: np.ndarray
) -> np.ndarray:
    return share_sentence(documents, alive_M, head_P, tail_P) == wanted


# ------------------------------------------------------------------------------------------------ ELECTRA


def collate_electra(
    columns: Columns,
    epochs_D: np.ndarray,
    vocabulary: Vocabulary,
    max_length: int,
    probability: float,
    random: KeyedRandom,
) -> ElectraMicroBatch:
    """One micro-batch of sequences.

    A sequence that is longer than `max_length` with its special tokens loses its end.
    """
    count_D = columns.counts["token_offsets"]
    split_D = columns.arrays["segment_split"].astype(np.int64)
    two_D = (split_D > 0) & (split_D < max_length - 3)
    kept_D = np.minimum(count_D, max_length - 2 - two_D)
    cu = ragged.offsets(kept_D + 2 + two_D)
    sequence_N = ragged.row_of(kept_D)
    # a piece behind the split moves one place on, for the [SEP] between the segments
    behind = ragged.within(kept_D) >= np.where(two_D, split_D, max_length)[sequence_N]
    text = ragged.spans(cu[:-1] + 1, kept_D) + behind
    tokens = columns.arrays["tokens"][ragged.spans(ragged.offsets(count_D)[:-1], kept_D)].astype(np.int64)
    ids_T = np.full(cu[-1], vocabulary.sep_id, np.int64)
    ids_T[cu[:-1]] = vocabulary.cls_id
    ids_T[text] = tokens
    second_T = np.zeros(len(ids_T), np.int64)
    second_T[ragged.spans((cu[:-1] + split_D + 2)[two_D], (kept_D - split_D + 1)[two_D])] = 1
    ordinary_N = ~vocabulary.special_V[tokens]
    positions_K, keep_K, uniform_K = masking.electra_mask(
        text[ordinary_N],
        sequence_N[ordinary_N],
        masking.Chance(random, epochs_D, columns.arrays["document_key"], cu[:-1] + 1),
        probability,
        max_length,
    )
    return ElectraMicroBatch(
        packed=_packed(ids_T, second_T, cu, vocabulary),
        masked_positions_K=_tensor(positions_K),
        keep_K=_tensor(keep_K),
        sample_uniform_K=_tensor(uniform_K),
        documents=len(columns),
        tokens=len(ids_T),
    )


# ------------------------------------------------------------------------------------------------ both


def _packed(ids_T: np.ndarray, second_T: np.ndarray, cu: np.ndarray, vocabulary: Vocabulary) -> Packed:
    if not len(ids_T):
        ids_T, second_T = np.array([vocabulary.cls_id, vocabulary.sep_id]), np.zeros(2, np.int64)
        cu = np.array([0, 2])
    lengths = np.diff(cu)
    return Packed(
        input_ids_T=_tensor(ids_T),
        position_ids_T=_tensor(ragged.within(lengths)),
        token_type_ids_T=_tensor(second_T),
        cu_seqlens=_tensor(cu.astype(np.int32)),
        max_seqlen=int(lengths.max()),
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
