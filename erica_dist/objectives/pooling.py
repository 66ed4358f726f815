"""Mentions, entities and pairs from hidden states, by means over flat ragged indices.

A mention is the mean over its word pieces, an entity the mean over its mentions (each weighs the same, however long), a
pair is `[head ; tail]` (Qin et al. 2021, section 3.1). No parameters.

Legend: T packed tokens, N pieces of mentions, M mentions, E entities, P pairs, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from erica_dist.stream.micro_batches import EricaMicroBatch

TINY = 1e-12  # lengths up to this are taken for 0


def segment_mean(values_ND: Tensor, segment_N: Tensor, segments: int) -> Tensor:
    """Mean of the rows of each segment -> [segments, D]; a segment without rows is 0."""
    total = values_ND.new_zeros(segments, values_ND.shape[1]).index_add(0, segment_N, values_ND)
    count = values_ND.new_zeros(segments).index_add(0, segment_N, values_ND.new_ones(len(segment_N)))
    return total / count.clamp(min=1)[:, None]


def inverse_norms(states_ND: Tensor) -> Tensor:
    """1 / length of each row [N]; 0 for a row of zeros, whose cosine with all is 0 and which gets no gradient."""
    norm_N = torch.linalg.vector_norm(states_ND, dim=1)
    return torch.where(norm_N > TINY, 1 / norm_N.clamp(min=TINY), 0)


def pool_entities(
    states_TD: Tensor,
    piece_positions_N: Tensor,
    piece_mention_N: Tensor,
    mention_entity_M: Tensor,
    entities: int,
) -> Tensor:
    """Entity states [E, D] in float32 (float64 stays)."""
    pieces_ND = states_TD[piece_positions_N]
    pieces_ND = pieces_ND if pieces_ND.dtype == torch.float64 else pieces_ND.float()
    mentions_MD = segment_mean(pieces_ND, piece_mention_N, len(mention_entity_M))
    return segment_mean(mentions_MD, mention_entity_M, entities)


def entity_states(states_TD: Tensor, batch: EricaMicroBatch) -> Tensor:
    """Entity states [E, D] of a micro-batch."""
    return pool_entities(
        states_TD, batch.piece_positions_N, batch.piece_mention_N, batch.mention_entity_M, batch.entity_count
    )


def pair_states(entity_ED: Tensor, head_P: Tensor, tail_P: Tensor) -> Tensor:
    """Pair states [P, 2D]: head and tail side by side."""
    return torch.cat([entity_ED[head_P], entity_ED[tail_P]], dim=1)
