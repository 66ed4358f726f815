"""The two passes of the link counts over one unit of work, as a worker runs them.

    first   unit --> pages with links --> `NAME.links` (surface, target, count) and `NAME.text` (what is not linked)
    second  `NAME.text`, all surfaces in a trie --> `NAME.unlinked` (surface, count)

The unlinked text holds a mark in the place of each link, so that no surface is found across one. In the second pass the
text is read from left to right and at each word the longest surface is taken that ends at the end of a word.
"""

from __future__ import annotations

import json
import re
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import marisa_trie

from data_tools.kb import normalise_name
from data_tools.pages import Page
from data_tools.wikipedia.reader import Unit, read_unit
from data_tools.wikipedia.sorted_counts import is_storable, write_counts
from erica_dist.shards.tarfiles import write_atomically

LINK_MARK = "\ufffc"
LONGEST = 100  # characters of a surface that is looked for in unlinked text


@dataclass(frozen=True)
class LinksTask:
    unit: Unit
    name: str
    folder: str


@dataclass(frozen=True)
class UnlinkedTask:
    """text: file of the first pass. trie: file of all surfaces. opening: their first characters that are no letter or
    digit."""

    text: str
    output: str
    trie: str
    opening: str


def count_links_of(task: LinksTask) -> int:
    """First pass: write the unit's links and unlinked text, then `NAME.json`, the counts; gives the links."""
    pages, read = read_unit(task.unit)
    links: Counter[tuple[str, ...]] = Counter()
    texts: list[str] = []
    for page in pages:
        _add(page, links, texts)
    path = Path(task.folder) / task.name
    write_counts(path.with_suffix(".links"), links)
    write_atomically(path.with_suffix(".text"), zlib.compress("\n".join(texts).encode(), 1))
    counts = {**read, "links counted": links.total()}
    write_atomically(path.with_suffix(".json"), json.dumps(counts).encode())
    return links.total()


def _add(page: Page, links: Counter[tuple[str, ...]], texts: list[str]) -> None:
    for paragraph in page.paragraphs:
        last, pieces = 0, []
        for link in paragraph.links:
            surface = normalise_name(paragraph.text[link.start : link.end])
            if is_storable(surface) and is_storable(link.target):
                links[surface, link.target] += 1
            pieces += [paragraph.text[last : link.start], LINK_MARK]
            last = link.end
        texts.append(unicodedata.normalize("NFC", "".join([*pieces, paragraph.text[last:]])))


def count_unlinked(task: UnlinkedTask) -> int:
    """Second pass: write how often each surface occurs in the unit's unlinked text; gives the sum."""
    text = zlib.decompress(Path(task.text).read_bytes()).decode()
    counts = Counter(find_surfaces(text, _trie(task.trie), task.opening))
    write_counts(Path(task.output), {(surface,): count for surface, count in counts.items()})
    return counts.total()


def find_surfaces(text: str, trie: Any, opening: str) -> list[str]:
    """The surfaces in the text, leftmost and longest first, without overlaps, each from word border to word border."""
    starts = _starts(opening)
    found: list[str] = []
    for run in re.split(f"[\n{LINK_MARK}]", text):
        last = 0
        for start in starts.finditer(run):
            first = start.start()
            if first < last:
                continue
            for surface in reversed(trie.prefixes(run[first : first + LONGEST])):
                end = first + len(surface)
                if end == len(run) or not (run[end].isalnum() and run[end - 1].isalnum()):
                    found.append(surface)
                    last = end
                    break
    return found


@lru_cache(maxsize=4)
def _starts(opening: str) -> re.Pattern[str]:
    """Where a surface may start: at a letter or digit that none comes before, or at one of `opening`."""
    other = f"|[{re.escape(opening)}]" if opening else ""
    return re.compile(rf"(?<![^\W_])[^\W_]{other}")


@lru_cache(maxsize=1)
def _trie(path: str) -> Any:
    return marisa_trie.Trie().mmap(path)
