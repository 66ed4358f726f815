"""Counts of texts as sorted files, and their merging: an external sort whose memory does not grow with the counts.

A line is `text<TAB>count`, or `text<TAB>text<TAB>count`, UTF-8, sorted as bytes. No text holds a character below the
blank, so that whole lines are in the order of their texts, and lines of the same texts stand together after a merge.
"""

from __future__ import annotations

import contextlib
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import commit, temporary_name, write_atomically

FAN_IN = 64  # files merged at a time, and so open
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class MergeTask:
    inputs: tuple[str, ...]
    output: str


def is_storable(text: str) -> bool:
    """Whether the text may stand in a line: not empty, no control characters."""
    return bool(text) and not _CONTROL.search(text)


def write_counts(path: Path, counts: Mapping[tuple[str, ...], int]) -> None:
    """Write the counts, sorted, atomically."""
    lines = sorted("\t".join([*texts, f"{count}\n"]).encode() for texts, count in counts.items())
    write_atomically(path, b"".join(lines))


def merge(task: MergeTask) -> int:
    """Add up sorted files into one, written atomically; gives its lines. Runs on a worker or anywhere."""
    return write_lines(Path(task.output), (b"%b\t%d\n" % (texts, count) for texts, count in merged(task.inputs)))


def merged(paths: Sequence[str | Path]) -> Iterator[tuple[bytes, int]]:
    """(texts with their tab, sum) of sorted files, in order; few lines are held."""
    with contextlib.ExitStack() as stack:
        try:
            files = [stack.enter_context(open(path, "rb")) for path in paths]
            current, total = b"", 0
            for line in heapq.merge(*files):
                texts, _, count = line.rpartition(b"\t")
                if texts != current:
                    if total:
                        yield current, total
                    current, total = texts, 0
                total += int(count)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the counts {paths[0]} and others ({error}); run again") from error
        if total:
            yield current, total


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write lines to a file that appears under `path` when it is whole; gives their number."""
    temporary = temporary_name(path)
    number = 0
    try:
        with temporary.open("wb", buffering=1 << 20) as file:
            for line in lines:
                file.write(line)
                number += 1
            commit(file, temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)
    return number
