"""A set of strings numbered by row, as memory-mapped tries: each trie holds one range of the strings.

The tries of a table of any size are built one after the other, in bounded memory; a look-up goes to one of them, which
is mapped when it is first needed, so that opening a table takes no time to speak of.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import marisa_trie

from erica_dist.errors import UserError


@dataclass(frozen=True)
class NameTable:
    """firsts: no string of trie i comes before firsts[i], all of trie i - 1 do; bases: row of its first string."""

    files: list[str]
    firsts: list[str]
    bases: list[int]
    tries: list[marisa_trie.Trie | None]
    rows: int

    @classmethod
    def open(cls, parts: Iterable[tuple[str | Path, str, int]]) -> NameTable:
        """The table of some parts: file, first string, number of strings of each, in ascending order."""
        files, firsts, bases, rows = [], [], [], 0
        for path, first, count in parts:
            files.append(str(path))
            firsts.append(first)
            bases.append(rows)
            rows += count
        return cls(files, firsts, bases, [None] * len(files), rows)

    def __len__(self) -> int:
        return self.rows

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> int | None:
        """The row of `key`."""
        part = bisect_right(self.firsts, key) - 1
        if part < 0:
            return None
        row = self._trie(part).get(key)
        return None if row is None else self.bases[part] + row

    def __getitem__(self, row: int) -> str:
        """The string of a row.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.rows:
            raise IndexError(row)
        part = bisect_right(self.bases, row) - 1
        return str(self._trie(part).restore_key(row - self.bases[part]))

    def prefixes(self, text: str) -> list[str]:
        """All strings that `text` begins with, shortest first."""
        if len(self.files) == 1:
            return list(self._trie(0).prefixes(text))
        found: list[str] = []
        part = max(bisect_right(self.firsts, text[:1]) - 1, 0)
        last = bisect_right(self.firsts, text) - 1
        while part <= last:
            found += self._trie(part).prefixes(text)
            if part == last:
                break
            # The shortest prefix that lies in a later trie tells which one comes next.
            following = self.firsts[part + 1]
            shared = next((i for i, (a, b) in enumerate(zip(text, following, strict=False)) if a != b), len(following))
            prefix = text[: max(shared + (shared < len(following)), 1)]
            part = max(part + 1, bisect_right(self.firsts, prefix) - 1)
        return found

    def _trie(self, part: int) -> marisa_trie.Trie:
        trie = self.tries[part]
        if trie is None:
            end = self.bases[part + 1] if part + 1 < len(self.bases) else self.rows
            try:
                trie = marisa_trie.Trie().mmap(self.files[part])
                if len(trie) != end - self.bases[part]:
                    raise RuntimeError(f"{len(trie)} strings in place of {end - self.bases[part]}")
            except (OSError, RuntimeError) as error:
                raise UserError(f"{self.files[part]} is damaged ({error}); build the knowledge base again") from error
            self.tries[part] = trie
        return trie
