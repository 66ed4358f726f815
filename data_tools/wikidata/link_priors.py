"""Statistics of link use (`erica-dist count-links`), one range of surfaces at a time.

The two tables are sorted by surface, so a range is a piece of each file, found by bisection over its bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from erica_dist.errors import UserError
from erica_dist.shards.manifest import LINK_STATISTICS, read_manifest
from erica_dist.shards.tarfiles import sha256_file


@dataclass
class Surface:
    """links: how often the surface leads to each entity; share: of its occurrences that are links."""

    share: float
    is_name: bool
    links: dict[int, int] = field(default_factory=dict)


class LinkStatistics:
    """The folder that `count-links` wrote.

    Raises:
        UserError: there is none, or a line of it is damaged.
    """

    def __init__(self, folder: str | Path, min_links: int, min_share: float):
        self.folder = Path(folder)
        self.min_links = min_links
        self.min_share = min_share

    @staticmethod
    def check(folder: str | Path) -> tuple[str, list[dict[str, str]]]:
        """Fingerprint of the statistics, and what was missing of the pages that were counted.

        Raises:
            UserError: there are none, or a file of them is not what was written.
        """
        manifest = read_manifest(folder, LINK_STATISTICS)
        for file in manifest["files"]:
            path = Path(folder) / file["file"]
            if not path.is_file() or sha256_file(path) != file["sha256"]:
                raise UserError(f"{path} is missing or damaged; count again with `erica-dist count-links`")
        return manifest["fingerprint"], manifest.get("incomplete", [])

    def between(self, first: bytes, last: bytes | None, entity_of: Callable[[str], int]) -> dict[bytes, Surface]:
        """The surfaces in [first, last) that are linked; targets that are no entity's title are left out."""
        found: dict[bytes, Surface] = {}
        for surface, linked, unlinked in self._lines("surfaces.tsv", 2, first, last):
            links, occurrences = int(linked), int(linked) + int(unlinked)
            share = links / max(occurrences, 1)
            found[surface] = Surface(share, links >= self.min_links and share >= self.min_share)
        for surface, target, count in self._lines("links.tsv", 1, first, last):
            entity = entity_of(target.decode())
            if entity >= 0 and surface in found:
                links_of = found[surface].links
                links_of[entity] = links_of.get(entity, 0) + int(count)
        for entry in found.values():
            entry.is_name = entry.is_name and bool(entry.links)
        return found

    def _lines(self, name: str, numbers: int, first: bytes, last: bytes | None) -> Iterator[list[bytes]]:
        """The columns of the lines in [first, last); the last `numbers` of three are numbers."""
        path = self.folder / name
        try:
            with path.open("rb") as file:
                if not path.stat().st_size:
                    return
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                    start = _place_of(text, first)
                file.seek(start)
                for line in file:
                    columns = line.rstrip(b"\n").split(b"\t")
                    if last is not None and columns[0] >= last:
                        return
                    if len(columns) != 3 or not all(map(bytes.isdigit, columns[-numbers:])):
                        raise UserError(
                            f"{path}: the line at byte {start} has not 3 columns, {numbers} of numbers; count again"
                        )
                    start += len(line)
                    yield columns
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error


def _place_of(text: mmap.mmap, key: bytes) -> int:
    """The byte at which the first line begins whose first column is `key` or comes after it."""
    low, high = 0, len(text)  # the line looked for begins in [low, high]
    while low < high:
        middle = (low + high) // 2
        begin = text.rfind(b"\n", 0, middle) + 1
        end = text.find(b"\t", begin)
        if text[begin:end] < key:
            newline = text.find(b"\n", begin)
            low = newline + 1 if newline >= 0 else len(text)
        else:
            high = begin
    return low
