"""Which pieces are masked, and what stands in their place: masked language modelling (ERICA) and ELECTRA.

In: the packed pieces of a micro-batch, which of them may be masked, the sequence each belongs to, and uniform numbers
that belong to the documents. Out: masked positions and what replaces them. Nothing random happens here.

T packed tokens, B sequences, K masked positions.
"""

from __future__ import annotations

import numpy as np

MASKED, RANDOM = 0.8, 0.1  # shares of the chosen pieces that become the mask token or a random piece; the rest stays
ELECTRA_MASKED = 0.85  # share of the chosen pieces that the generator sees as the mask token


def mask_counts(eligible: np.ndarray, probability: float, largest: int | None = None) -> np.ndarray:
    """How many pieces of each sequence are masked: `probability` of the eligible ones, halves rounded up.

    At least one where any is eligible (and the probability is not 0), at most `largest`.
    """
    counts = np.floor(probability * eligible + 0.5).astype(np.int64)
    if largest is not None:
        counts = np.minimum(counts, largest)
    return np.minimum(np.maximum(counts, int(probability > 0)), eligible)


def choose(eligible_T: np.ndarray, sequence_T: np.ndarray, score_T: np.ndarray, counts_B: np.ndarray) -> np.ndarray:
    """Rising positions in T of the `counts_B` eligible pieces with the smallest score of each sequence."""
    positions = np.flatnonzero(eligible_T)
    sequence = sequence_T[positions]
    order = np.lexsort((score_T[positions], sequence))
    available_B = np.bincount(sequence, minlength=len(counts_B))
    start_B = np.cumsum(available_B) - available_B
    sequence = sequence[order]
    rank = np.arange(len(order)) - start_B[sequence]
    return np.sort(positions[order[rank < counts_B[sequence]]])


def mlm_mask(
    ids_T: np.ndarray,
    eligible_T: np.ndarray,
    sequence_T: np.ndarray,
    uniform_3T: np.ndarray,
    sequences: int,
    probability: float,
    mask_id: int,
    ordinary_ids: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masked copy of `ids_T`, masked positions K (rising) and their original ids K.

    `uniform_3T` drives which pieces are chosen, what becomes of each, and the random piece, which is one of
    `ordinary_ids` (the vocabulary without special tokens).
    """
    available_B = np.bincount(sequence_T[eligible_T], minlength=sequences)
    counts_B = mask_counts(available_B, probability)
    positions_K = choose(eligible_T, sequence_T, uniform_3T[0], counts_B)
    labels_K = ids_T[positions_K]
    action_K = uniform_3T[1, positions_K]
    random_K = ordinary_ids[(uniform_3T[2, positions_K] * len(ordinary_ids)).astype(np.int64)]
    shown_K = np.where(action_K < MASKED, mask_id, np.where(action_K < MASKED + RANDOM, random_K, labels_K))
    masked_T = ids_T.copy()
    masked_T[positions_K] = shown_K
    return masked_T, positions_K, labels_K


def electra_mask(
    eligible_T: np.ndarray,
    sequence_T: np.ndarray,
    uniform_3T: np.ndarray,
    sequences: int,
    probability: float,
    max_length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masked positions K (rising, without repeats), which of them keep their token, and a uniform number for each.

    At most int((probability + 0.005) * max_length) of a sequence, at least one.
    """
    available_B = np.bincount(sequence_T[eligible_T], minlength=sequences)
    counts_B = mask_counts(available_B, probability, max(1, int((probability + 0.005) * max_length)))
    positions_K = choose(eligible_T, sequence_T, uniform_3T[0], counts_B)
    return positions_K, uniform_3T[1, positions_K] >= ELECTRA_MASKED, uniform_3T[2, positions_K]
