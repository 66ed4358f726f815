"""Which pieces are masked, and what stands in their place: masked language modelling (ERICA) and ELECTRA.

In: the packed pieces of a micro-batch, which of them may be masked, the sequence each belongs to, and a `Chance`: the
streams of random numbers of the documents. Out: masked positions and what replaces them. A piece's numbers depend on
its place in the document, wherever that was cut.

T packed tokens, B sequences, N pieces that may be masked, K masked positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from erica_dist.stream.randomness import KeyedRandom, smallest

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


@dataclass(frozen=True)
class Chance:
    """Random numbers of the pieces of a micro-batch."""

    random: KeyedRandom
    epochs: np.ndarray  # int64 [B]
    keys: np.ndarray  # int64 [B], of the documents
    start: np.ndarray  # int64 [B], position in T of each document's first piece

    def bits(self, purpose: str, sequence_N: np.ndarray, position_N: np.ndarray) -> np.ndarray:
        """uint64 [N] for the pieces at `position_N`, each of sequence `sequence_N`."""
        streams = self.random.streams(purpose, self.epochs, self.keys)
        return self.random.bits(streams[sequence_N], position_N - self.start[sequence_N])

    def uniform(self, purpose: str, sequence_N: np.ndarray, position_N: np.ndarray) -> np.ndarray:
        """float64 [N] in [0, 1); as `bits`."""
        streams = self.random.streams(purpose, self.epochs, self.keys)
        return self.random.uniform(streams[sequence_N], position_N - self.start[sequence_N])


def mlm_mask(
    ids_T: np.ndarray,
    positions_N: np.ndarray,
    sequence_N: np.ndarray,
    chance: Chance,
    probability: float,
    mask_id: int,
    ordinary_ids: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masked copy of `ids_T`, masked positions K (rising) and their original ids K.

    `positions_N` (rising) are the pieces that may be masked, `sequence_N` the sequence of each. A random piece is one
    of `ordinary_ids` (the vocabulary without special tokens).
    """
    available_B = np.bincount(sequence_N, minlength=len(chance.keys))
    score_N = chance.bits("mlm choice", sequence_N, positions_N)
    chosen = smallest(sequence_N, score_N, mask_counts(available_B, probability))
    positions_K, sequence_K = positions_N[chosen], sequence_N[chosen]
    labels_K = ids_T[positions_K]
    action_K = chance.uniform("mlm action", sequence_K, positions_K)
    random_K = ordinary_ids[(chance.uniform("mlm piece", sequence_K, positions_K) * len(ordinary_ids)).astype(np.int64)]
    shown_K = np.where(action_K < MASKED, mask_id, np.where(action_K < MASKED + RANDOM, random_K, labels_K))
    masked_T = ids_T.copy()
    masked_T[positions_K] = shown_K
    return masked_T, positions_K, labels_K


def electra_mask(
    positions_N: np.ndarray, sequence_N: np.ndarray, chance: Chance, probability: float, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masked positions K (rising, without repeats), which of them keep their token, and a uniform number for each.

    At most int((probability + 0.005) * max_length) of a sequence, at least one. Arguments as of `mlm_mask`.
    """
    available_B = np.bincount(sequence_N, minlength=len(chance.keys))
    counts_B = mask_counts(available_B, probability, max(1, int((probability + 0.005) * max_length)))
    chosen = smallest(sequence_N, chance.bits("electra choice", sequence_N, positions_N), counts_B)
    positions_K, sequence_K = positions_N[chosen], sequence_N[chosen]
    keep_K = chance.uniform("electra keep", sequence_K, positions_K) >= ELECTRA_MASKED
    return positions_K, keep_K, chance.uniform("electra sample", sequence_K, positions_K)
