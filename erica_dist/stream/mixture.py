"""Several corpora in one stream: which corpus each place of the stream is taken from, in fixed shares.

In: the weights. Out: for any place, a corpus and a place in that corpus's own order. The corpora are interleaved as
evenly as can be, the same way in each cycle of 65,536 places: any stretch of the stream holds each corpus in its share,
to within one document a corpus. Each corpus runs through its own epochs, every document once an epoch, however small.
"""

from __future__ import annotations

import numpy as np

from erica_dist.errors import UserError

CYCLE = 1 << 16  # places; shares are multiples of its inverse


class Mixture:
    """The corpora of the places of a stream, by weights (any positive numbers)."""

    def __init__(self, weights: list[float]):
        """
        Raises:
            UserError: a weight is not positive, or its share is too small to be kept.
        """
        if not weights or not all(np.isfinite(weight) and weight > 0 for weight in weights):
            raise UserError(f"the weights of data.mix must be positive numbers, got {weights}")
        self.quotas = _apportioned(weights)
        if min(self.quotas) < 1:
            raise UserError(f"a weight of data.mix is below 1/{CYCLE} of their sum: leave that corpus out")
        # corpus c comes at (j + 1/2) / quota of the cycle, j = 0, 1, ...: evenly
        corpus = np.repeat(np.arange(len(weights)), self.quotas)
        moments = np.concatenate([(np.arange(quota) + 0.5) / quota for quota in self.quotas])
        order = np.argsort(moments, kind="stable")
        self._corpus: np.ndarray = corpus[order]  # [CYCLE]
        self._turn: np.ndarray = np.concatenate([np.arange(quota) for quota in self.quotas])[order]  # [CYCLE]

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(corpora int64 [P], places in the corpora int64 [P]) of places of the stream, int64 [P]."""
        cycle, within = np.divmod(places, CYCLE)
        corpus = self._corpus[within]
        return corpus, cycle * np.array(self.quotas)[corpus] + self._turn[within]

    def share(self, corpus: int) -> float:
        """The share of the places that are of this corpus."""
        return self.quotas[corpus] / CYCLE


def _apportioned(weights: list[float]) -> list[int]:
    """Whole quotas in proportion to the weights that sum up to CYCLE: rounded down, the largest remainders up."""
    exact = np.array(weights) / sum(weights) * CYCLE
    quotas = np.floor(exact).astype(np.int64)
    quotas[np.argsort(quotas - exact, kind="stable")[: CYCLE - int(quotas.sum())]] += 1
    return quotas.tolist()
