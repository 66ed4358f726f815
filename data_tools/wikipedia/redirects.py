"""Redirects: from the titles of redirect pages to the titles that links to them end at, kept as one small mapped file.

    {title: target of its redirect page} --> chains followed to the end --> marisa trie on disk --> RedirectMap

A chain that runs in a loop leads nowhere: its titles resolve to "".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import marisa_trie

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import write_atomically


def follow(redirects: Mapping[str, str]) -> dict[str, str]:
    """The end of each chain; "" for a title whose chain runs into a loop."""
    ends: dict[str, str] = {}
    for title in redirects:
        seen: dict[str, None] = {}
        end = title
        while end in redirects and end not in seen and end not in ends:
            seen[end] = None
            end = redirects[end]
        end = "" if end in seen else ends.get(end, end)
        ends.update(dict.fromkeys(seen, end))
    return ends


def write_redirects(path: str | Path, redirects: Mapping[str, str]) -> None:
    """Write the ends of all chains, atomically; the bytes depend on the mapping only, not on its order."""
    rows = sorted((title, end.encode()) for title, end in follow(redirects).items())
    write_atomically(path, marisa_trie.BytesTrie(rows).tobytes())


class RedirectMap:
    """The file that `write_redirects` wrote, memory-mapped; without a path, a map that knows no redirect."""

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
