"""A set of strings numbered by row, as memory-mapped tries: each trie holds one range of the strings.

The tries of a table of any size are built one after the other, in bounded memory; a look-up goes to one of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import marisa_trie


@dataclass(frozen=True)
class NameTable:
    """firsts: no string of trie i comes before firsts[i], all of trie i - 1 do; bases: row of its first string."""

    firsts: list[str]
    bases: list[int]
    tries: list[marisa_trie.Trie]

    @classmethod
    def open(cls, parts: Iterable[tuple[str | Path, str, int]]) -> NameTable:
        """Map the parts: file, first string, number of strings of each, in ascending order.

        Raises:
            OSError, RuntimeError: a file is missing or damaged.
        """
        table, rows = cls([], [], []), 0
        for path, first, count in parts:
            trie = marisa_trie.Trie().mmap(str(path))
            if len(trie) != count:
                raise RuntimeError(f"{path} holds {len(trie)} strings in place of {count}")
            table.firsts.append(first)
            table.bases.append(rows)
            table.tries.append(trie)
            rows += count
        return table

    def __len__(self) -> int:
        return self.bases[-1] + len(self.tries[-1]) if self.bases else 0

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> int | None:
        """The row of `key`."""
        part = bisect_right(self.firsts, key) - 1
        if part < 0:
            return None
        row = self.tries[part].get(key)
        return None if row is None else self.bases[part] + row

    def __getitem__(self, row: int) -> str:
        """The string of a row.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise IndexError(row)
        part = bisect_right(self.bases, row) - 1
        return str(self.tries[part].restore_key(row - self.bases[part]))

    def prefixes(self, text: str) -> list[str]:
        """All strings that `text` begins with, shortest first."""
        if len(self.tries) == 1:
            return list(self.tries[0].prefixes(text))
        found: list[str] = []
        part = max(bisect_right(self.firsts, text[:1]) - 1, 0)
        last = bisect_right(self.firsts, text) - 1
        while part <= last:
            found += self.tries[part].prefixes(text)
            if part == last:
                break
            # The shortest prefix that lies in a later trie tells which one comes next.
            following = self.firsts[part + 1]
            shared = next((i for i, (a, b) in enumerate(zip(text, following, strict=False)) if a != b), len(following))
            prefix = text[: max(shared + (shared < len(following)), 1)]
            part = max(part + 1, bisect_right(self.firsts, prefix) - 1)
        return found
