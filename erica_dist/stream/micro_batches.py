"""What the stream hands to training: packed tensors of one micro-batch, sequences one after the other without padding.

A micro-batch whose documents were all left out as damaged holds one sequence without a document, `[CLS] [SEP]`, so that
the model has something to run on; its `documents` and `tokens` are 0.

Shape letters: T packed tokens, B sequences, K masked positions, M mentions, N pieces of mentions, E entities, P pairs,
L labels of a pair, Q queries, C candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass
class Packed:
    """Sequences laid one after the other."""

    input_ids_T: Tensor  # int64; ERICA: after MLM masking; ELECTRA: original ids
    position_ids_T: Tensor  # int64, from 0 within each sequence
    token_type_ids_T: Tensor  # int64; 1 from behind the first [SEP] of a sequence in two parts
    cu_seqlens: Tensor  # int32 [B + 1], from 0
    max_seqlen: int  # of the longest sequence

    def to(self, device: torch.device | str) -> Packed:
        """The same on another device."""
        return _to(self, device)


@dataclass
class EricaMicroBatch:
    """The RD documents (`[CLS] document [SEP]`), then the ED documents (`[CLS] relation head [SEP] document [SEP]`)."""

    packed: Packed
    masked_positions_K: Tensor  # int64, positions in T
    masked_labels_K: Tensor  # int64, original ids
    # int64, positions in T: the pieces of all mentions, or the start marker of each with erica.entity_markers
    piece_positions_N: Tensor
    piece_mention_N: Tensor  # int64, the mention of each piece, 0..M-1, rising
    mention_entity_M: Tensor  # int64, the entity of each mention, 0..E-1, numbered over the micro-batch
    entity_count: int  # E
    mention_count: int  # M
    # RD: labelled pairs of all RD documents, then the drawn pairs that hold no relation
    pair_head_P: Tensor  # int64, entity numbers
    pair_tail_P: Tensor  # int64
    pair_document_P: Tensor  # int64, document key: the same on every rank
    pair_head_local_P: Tensor  # int64, entity index inside its document
    pair_tail_local_P: Tensor  # int64
    pair_labels_PL: Tensor  # int64, relation indices, padded with -1; all -1: holds no relation
    pair_same_sentence_P: Tensor  # bool: some sentence holds a mention of both
    pair_draw_P: Tensor  # int64, 64 random bits of (seed, epoch, document, pair), for what is drawn among a pool
    # ED: one query a document that has a drawable triple
    query_head_Q: Tensor  # int64, entity numbers
    query_tail_Q: Tensor  # int64, the positive
    candidate_entity_C: Tensor  # int64, entity numbers; the positive tail is among them
    candidate_query_C: Tensor  # int64, the query of each candidate, 0..Q-1, rising
    masked_of_rd: int  # the first so many of K are of the RD documents
    documents: int
    tokens: int  # T; 0 without documents

    def to(self, device: torch.device | str) -> EricaMicroBatch:
        """The same on another device."""
        return _to(self, device)


@dataclass
class ElectraMicroBatch:
    """Sequences `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`, with what masking and sampling need of chance."""

    packed: Packed
    masked_positions_K: Tensor  # int64, positions in T
    keep_K: Tensor  # bool: the generator sees the token itself; False: it sees the mask token
    sample_uniform_K: Tensor  # float64 in [0, 1): drives the sampling of the replacement
    documents: int  # sequences
    tokens: int  # T; 0 without documents

    def to(self, device: torch.device | str) -> ElectraMicroBatch:
        """The same on another device."""
        return _to(self, device)


_Batch = TypeVar("_Batch", Packed, EricaMicroBatch, ElectraMicroBatch)


def mapped(batch: _Batch, function: Callable[[Any], Any]) -> _Batch:
    """A copy of `batch` with `function` applied to each of its tensors."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Packed):
            fields[field.name] = mapped(value, function)
        else:
            fields[field.name] = value if isinstance(value, int) else function(value)
    return type(batch)(**fields)


def _to(batch: _Batch, device: torch.device | str) -> _Batch:
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))
