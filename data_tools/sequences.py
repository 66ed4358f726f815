"""Pages of text -> ELECTRA's training examples: sentences packed to a target length, in one or two segments.

In: the sentences of one page as word pieces. Out: examples of at most `max_length` pieces, special tokens included;
an example never crosses the end of a page. Packing as in ELECTRA's published example builder: sentences are collected
until they reach the target length; in 10 % of the cases they make one segment, else the first segment takes sentences
up to about the middle (one that crosses it goes either way) and the second the rest; what is too long is cut off.
After each example, 5 % of the next targets are a random shorter length.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

ONE_SEGMENT_SHARE = 0.1
SHORT_SHARE = 0.05
SHORTEST_TARGET = 5
SPECIAL_ONE, SPECIAL_TWO = 2, 3  # [CLS] A [SEP], and [CLS] A [SEP] B [SEP]


@dataclass(frozen=True)
class Example:
    """Pieces without special tokens; the first `split` are segment A, 0: there is one segment only."""

    pieces: list[int]
    split: int


def page_random(seed: int, page_key: int) -> np.random.Generator:
    """The random numbers of one page, whoever works on it."""
    key = hashlib.blake2b(f"sequences {seed} {page_key}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def examples_of(
    sentences: Iterable[Sequence[int]], max_length: int, random: np.random.Generator, counts: Counter[str]
) -> Iterator[Example]:
    """The examples of one page; `counts` gets the pieces that were cut off."""
    target = max_length
    collected: list[Sequence[int]] = []
    length = 0
    for sentence in sentences:
        if not sentence:
            continue
        collected.append(sentence)
        length += len(sentence)
        if length >= target:
            yield _example(collected, target, max_length, random, counts)
            collected, length = [], 0
            short = random.random() < SHORT_SHARE
            target = int(random.integers(SHORTEST_TARGET, max_length, endpoint=True)) if short else max_length
    if collected:
        yield _example(collected, target, max_length, random, counts)


def _example(
    sentences: Sequence[Sequence[int]],
    target: int,
    max_length: int,
    random: np.random.Generator,
    counts: Counter[str],
) -> Example:
    one_segment = random.random() < ONE_SEGMENT_SHARE
    middle = (target - SPECIAL_TWO) // 2
    first: list[int] = []
    second: list[int] = []
    for sentence in sentences:
        fits = len(first) + len(sentence) < middle
        if (
            one_segment
            or not first
            or (not second and fits)
            or (not second and len(first) < middle and random.random() < 0.5)
        ):
            first.extend(sentence)
        else:
            second.extend(sentence)
    kept_first = first[: max_length - SPECIAL_ONE]
    kept_second = second[: max(0, max_length - len(kept_first) - SPECIAL_TWO)]
    counts["pieces cut off"] += len(first) + len(second) - len(kept_first) - len(kept_second)
    return Example(kept_first + kept_second, len(kept_first) if kept_second else 0)
