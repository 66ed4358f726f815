"""A global batch dealt to ranks and micro-steps: equal numbers of documents, and tokens as even as that allows.

In: lengths of the documents of one global batch. Out: for each rank and micro-step, positions in the global batch.
Every rank computes the whole deal and takes its part, so nothing is communicated and the numbers cannot differ.

Each round hands one document to every micro-batch: of the documents in descending length, the longest of the round goes
to the micro-batch that holds the fewest tokens so far.
"""

from __future__ import annotations

import numpy as np


def deal(lengths: np.ndarray, ranks: int, accumulation: int, parts: int = 1) -> np.ndarray:
    """Positions int64 [ranks, accumulation, micro_batch] in the global batch; each position occurs once.

    `parts` splits the global batch into that many equal stretches (ERICA: 2, RD then ED), and every micro-batch holds
    as many documents of each, those of the first stretch first.

    Raises:
        ValueError: the batch does not divide into ranks x accumulation x parts.
    """
    slots = ranks * accumulation
    if len(lengths) == 0 or len(lengths) % (slots * parts):
        raise ValueError(f"{len(lengths)} documents do not divide into {ranks} x {accumulation} x {parts}")
    size = len(lengths) // parts
    load = np.zeros(slots, np.int64)
    rounds = []
    for part in range(parts):
        first = part * size
        longest_first = first + np.argsort(-lengths[first : first + size], kind="stable")
        for documents in longest_first.reshape(-1, slots):
            lightest_first = np.argsort(load, kind="stable")
            dealt = np.empty(slots, np.int64)
            dealt[lightest_first] = documents
            load += lengths[dealt]
            rounds.append(dealt)
    micro_batches = np.stack(rounds, axis=1)
    # ranks wait for each other at every micro-step, so those of one micro-step are as even as can be; turning every
    # second row around keeps the ranks' sums even, too
    by_load = np.argsort(load, kind="stable").reshape(accumulation, ranks)
    by_load[1::2] = by_load[1::2, ::-1]
    return micro_batches[by_load.T]
