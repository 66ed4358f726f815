"""A global batch dealt to ranks and micro-steps: as many micro-batches on every rank, with tokens as even as can be.

In: tokens of the documents of one global batch. Out: for each rank and micro-step, positions in the global batch. Every
rank computes the whole deal and takes its part, so nothing is communicated and the numbers cannot differ.

Each round hands one document to every micro-batch: of the documents in descending length, the longest of the round goes
to the micro-batch that holds the fewest tokens so far. Under a token budget there are as few micro-steps as keep every
micro-batch within it.
"""

from __future__ import annotations

import numpy as np

Deal = list[list[np.ndarray]]  # [ranks][micro-steps], positions int64


def deal(tokens: np.ndarray, ranks: int, accumulation: int, parts: int = 1) -> Deal:
    """Positions in the global batch by rank and micro-step; each position occurs once.

    `parts` splits the global batch into that many equal stretches (ERICA: 2, RD then ED). Every micro-batch holds as
    many documents of each as the others, or one less where they do not divide; those of the first stretch come first.

    Raises:
        ValueError: fewer documents than micro-batches.
    """
    slots = ranks * accumulation
    if len(tokens) < slots:
        raise ValueError(f"{len(tokens)} documents cannot be dealt to {ranks} x {accumulation} micro-batches")
    owner, load = _slots_of(tokens, slots, parts)
    # ranks wait for each other at every micro-step, so those of one micro-step are as even as can be; turning every
    # second row around keeps the ranks' sums even, too
    by_load = np.argsort(load, kind="stable").reshape(accumulation, ranks)
    by_load[1::2] = by_load[1::2, ::-1]
    members = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=slots))[:-1])
    return [[members[by_load[micro, rank]] for micro in range(accumulation)] for rank in range(ranks)]


def deal_by_budget(tokens: np.ndarray, ranks: int, budget: int, parts: int = 1) -> Deal:
    """As `deal`, with as few micro-steps as keep every micro-batch within `budget` tokens.

    Raises:
        ValueError: a document is longer than the budget, or there are fewer documents than ranks.
    """
    if int(tokens.max(initial=0)) > budget:
        raise ValueError(f"a document of {int(tokens.max())} tokens is above the budget of {budget}")
    accumulation = max(1, -(-int(tokens.sum()) // (ranks * budget)))
    while ranks * accumulation < len(tokens) and int(_slots_of(tokens, ranks * accumulation, parts)[1].max()) > budget:
        accumulation += 1
    return deal(tokens, ranks, min(accumulation, max(1, len(tokens) // ranks)), parts)


def _slots_of(tokens: np.ndarray, slots: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """The micro-batch of each document, and the tokens of each micro-batch."""
    load = np.zeros(slots, np.int64)
    owner = np.empty(len(tokens), np.int64)
    for stretch in np.array_split(np.arange(len(tokens)), parts):
        longest_first = stretch[np.argsort(-tokens[stretch], kind="stable")]
        for first in range(0, len(stretch), slots):
            documents = longest_first[first : first + slots]
            lightest_first = np.argsort(load, kind="stable")[: len(documents)]
            owner[documents] = lightest_first
            load[lightest_first] += tokens[documents]
    return owner, load
