"""Redirects: from the titles of redirect pages to the titles that links to them end at, kept as one small mapped file.

    (title, target) of all redirect pages --> chains followed to the end --> marisa trie on disk --> RedirectMap

Of two redirects of one title the first counts. A chain that runs in a loop leads nowhere: its titles resolve to "".
Titles are told apart by 64-bit hashes: among 11 million redirects, the English Wikipedia's, two are equal with a chance
of 1 in 100,000. While they are gathered, a redirect takes its two titles in UTF-8 and 24 bytes; while they are written,
40 bytes and the trie's copy of the titles on top: about 2 GB for the English Wikipedia.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import write_atomically

LOOP = -1


def follow(titles: NDArray[np.uint64], targets: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each redirect, by the hashes of its title (each once) and its target, the number of the last redirect of its
    chain, whose target is the end; `LOOP` for a chain that ends nowhere."""
    order = np.argsort(titles)
    place = np.searchsorted(titles, targets, sorter=order)
    hit = order[np.minimum(place, len(order) - 1)] if len(order) else order
    goes_on = titles[hit] == targets
    # A last redirect leads to itself; each round doubles the length of the steps
    end = np.where(goes_on, hit, np.arange(len(titles)))
    arrived, before = ~goes_on[end], -1
    while (now := int(arrived.sum())) > before:
        end, before = end[end], now
        arrived = ~goes_on[end]
    return np.where(arrived, end, LOOP)


@dataclass
class Redirects:
    """Gathers redirects in the order of the input."""

    _titles: list[bytes] = field(default_factory=list)  # of many redirects, a line each
    _targets: list[bytes] = field(default_factory=list)
    _hashes: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = field(default_factory=list)

    def add(
        self,
        titles: Sequence[str],
        targets: Sequence[str],
        title_hashes: NDArray[np.uint64],
        target_hashes: NDArray[np.uint64],
    ) -> None:
        if titles:
            self._titles.append("\n".join(titles).encode())
            self._targets.append("\n".join(targets).encode())
            self._hashes.append((title_hashes, target_hashes))

    def write(self, path: str | Path) -> None:
        """Write the ends of all chains, atomically; the bytes do not depend on the order, but for repeated titles."""
        empty = np.zeros(0, np.uint64)
        titles = np.concatenate([empty, *(of_titles for of_titles, _ in self._hashes)])
        targets = np.concatenate([empty, *(of_targets for _, of_targets in self._hashes)])
        first = np.sort(np.unique(titles, return_index=True)[1])
        ends = np.full(len(titles), LOOP)
        last = follow(titles[first], targets[first])
        ends[first] = np.where(last == LOOP, LOOP, first[last] if len(first) else last)
        kept = np.zeros(len(titles), bool)
        kept[first] = True
        write_atomically(path, marisa_trie.BytesTrie(self._rows(ends, kept)).tobytes())

    def _rows(self, ends: NDArray[np.int64], kept: NDArray[np.bool_]) -> Iterator[tuple[str, bytes]]:
        targets = b"\n".join(self._targets) + b"\n"
        borders = np.flatnonzero(np.frombuffer(targets, np.uint8) == ord("\n"))
        number = 0
        for packed in self._titles:
            for title in packed.split(b"\n"):
                if kept[number]:
                    end = int(ends[number])
                    first = int(borders[end - 1]) + 1 if end > 0 else 0
                    yield title.decode(), b"" if end == LOOP else targets[first : int(borders[end])]
                number += 1


class RedirectMap:
    """The file that `Redirects` wrote, memory-mapped; without a path, a map that knows no redirect."""

    def __init__(self, path: str | Path = ""):
        self._trie = marisa_trie.BytesTrie()
        if path:
            try:
                self._trie.mmap(str(path))
            except (OSError, RuntimeError) as error:
                raise UserError(f"cannot read the redirects {path} ({error}); start the build again") from error

    def resolve(self, title: str) -> str:
        """The title that a link to `title` ends at: itself where it is no redirect, "" for a loop."""
        ends = self._trie.get(title)
        return ends[0].decode() if ends else title
