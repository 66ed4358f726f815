"""Names and page titles of all runs, one range of strings at a time -> tries with what stands behind each string.

    runs --> rows of one range --> names, once each --> candidates and weights --> trie, run `names-N`
    runs `names-N` --> names without their case, one range --> trie, run `folded-N`: the names behind each
    runs --> rows of one range --> the entity of each title --> trie, run `titles-N`

A string's row is the number that the trie gives it, after the rows of the tries before; what the runs hold is in the
order of rows.

Weight of a candidate, whose share among the candidates of a name is its prior: what is known of the entity,
`facts + 1`, counting `LABEL_WEIGHT` times where the name is its label. With statistics of links it is the number of
links with this surface, plus the former as a share of the name's, so that what is guessed decides only where links do
not; names that are never linked keep the former, made so small that it yields to any link of another spelling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from data_tools.kb import fold_name
from data_tools.name_table import NameTable
from data_tools.wikidata.arrays import mapped, numbers_of
from data_tools.wikidata.link_priors import LinkStatistics, Surface
from data_tools.wikidata.runs import runs_of, string_columns, string_range, unpacked, write_run
from erica_dist.shards.tarfiles import write_atomically

LABEL_WEIGHT = 4.0
UNLINKED = 1e-6


@dataclass(frozen=True)
class Links:
    """Statistics of links to use. A surface with `min_links` links that is linked in a share of at least `min_share`
    of its occurrences becomes a name of its targets."""

    folder: str = ""
    min_links: int = 3
    min_share: float = 0.1


@dataclass(frozen=True)
class StringsTask:
    """The rows of `runs` (a file that lists them) with first <= string < last; writes `run` and `run`.marisa."""

    runs: str
    first: bytes
    last: bytes | None
    run: str
    folder: str  # where ids.npy and the offsets of facts are
    links: Links = Links()
    titles: tuple[tuple[str, str, int], ...] = ()  # parts of the table of titles, for the targets of links


def merge_names(task: StringsTask) -> dict[str, Any]:
    """Write trie and run of a range of names; gives the run's index."""
    keys, entities, labels = _rows(task, "names.", "labels")
    ordered = sorted(zip(keys, entities.tolist(), (1 - labels).tolist(), strict=True))
    surfaces = _surfaces(task)
    names = sorted({key for key, _, _ in ordered} | {key for key, surface in surfaces.items() if surface.is_name})
    place = {name: number for number, name in enumerate(names)}
    rows = [(place[key], entity, label) for key, entity, label in ordered]
    # A surface that became a name of an entity that did not bear it
    rows += [(place[key], entity, 1) for key in surfaces if key in place for entity in surfaces[key].links]
    table = np.array(sorted(rows), np.int64).reshape(-1, 3)
    fresh = np.ones(len(table), bool)
    fresh[1:] = (table[1:, :2] != table[:-1, :2]).any(1)  # the row that says "label" comes first
    of_name, entity, no_label = table[fresh].T
    weights = _known(task.folder, entity) * np.where(no_label, 1.0, LABEL_WEIGHT)
    shares = weights / np.maximum(np.bincount(of_name, weights, len(names))[of_name], 1)
    weights = weights * UNLINKED if task.links.folder else weights
    linked = np.full(len(names), np.nan, np.float16)
    for key, surface in surfaces.items():
        if key in place:
            linked[place[key]] = surface.share
            rows_of = slice(*np.searchsorted(of_name, [place[key], place[key] + 1]).tolist())
            counted = [surface.links.get(number, 0) for number in entity[rows_of].tolist()]
            if any(counted):
                weights[rows_of] = shares[rows_of] + counted

    row = _save_trie(task.run, names)
    order = np.lexsort((entity, -weights, row[of_name]))
    columns: dict[str, NDArray[Any]] = {
        "counts": _by_row(row, np.bincount(of_name, minlength=len(names)).astype(np.uint32)),
        "entities": entity[order].astype(np.uint32),
        "weights": weights[order].astype(np.float32),
    }
    if task.links.folder:
        columns["linked"] = _by_row(row, linked)
    is_label = no_label == 0
    columns |= _first_row(entity[is_label], row[of_name[is_label]])
    folded = string_columns(
        ((fold_name(name.decode()).encode(), int(at)) for name, at in zip(names, row, strict=True)), "names"
    )
    columns |= {f"folded.{name}": column for name, column in folded.items()}
    counts = {"names": len(names), "names from links": len(names) - len({key for key, _, _ in ordered})}
    return write_run(Path(task.run), columns, rows=len(names), counts=counts)


def merge_folded(task: StringsTask) -> dict[str, Any]:
    """Write trie and run of a range of names without their case; gives the run's index."""
    found: list[tuple[bytes, int]] = []
    base = 0
    for run in runs_of(task.runs):
        rows = string_range(run, task.first, task.last, "folded.")
        keys = unpacked(run["folded.bytes"], run["folded.offsets"], rows)
        found += zip(keys, (run["folded.names"][rows].astype(np.int64) + base).tolist(), strict=True)
        base += run.said["rows"]
    found.sort()
    names = sorted({key for key, _ in found})
    place = {name: number for number, name in enumerate(names)}
    of_name = np.array([place[key] for key, _ in found], np.int64)
    row = _save_trie(task.run, names)
    order = np.argsort(row[of_name], kind="stable") if len(found) else of_name
    columns = {
        "counts": _by_row(row, np.bincount(of_name, minlength=len(names)).astype(np.uint32)),
        "names": np.array([number for _, number in found], np.uint32)[order],
    }
    return write_run(Path(task.run), columns, rows=len(names), counts={"names without case": len(names)})


def merge_titles(task: StringsTask) -> dict[str, Any]:
    """Write trie and run of a range of titles; gives the run's index.

    A given title names the entity of most facts, should several claim it; a guessed one names an entity only where no
    title is given and no other entity has a claim on it.
    """
    keys, entities, given = _rows(task, "titles.", "given")
    known = _known(task.folder, entities)
    rows = sorted(zip(keys, (1 - given).tolist(), (-known).tolist(), entities.tolist(), strict=True))
    counts: Counter[str] = Counter()
    titles: dict[bytes, int] = {}
    ambiguous: set[bytes] = set()
    given_titles: set[bytes] = set()
    for title, guessed, _, entity in rows:
        if title not in titles:
            titles[title] = entity
            if not guessed:
                given_titles.add(title)
        elif not guessed:
            counts["titles claimed twice"] += entity != titles[title]
        elif title not in given_titles and entity != titles[title]:
            ambiguous.add(title)
    guesses = {title for title, guessed, _, _ in rows if guessed}
    counts["labels too ambiguous to be a title"] = len(ambiguous | (guesses & given_titles))
    for title in ambiguous:
        del titles[title]
    names = sorted(titles)
    row = _save_trie(task.run, names)
    owners = np.array([titles[name] for name in names], np.uint32)
    counts["titles"] = len(names)
    columns = {"entities": _by_row(row, owners), **_first_row(owners.astype(np.int64), row)}
    return write_run(Path(task.run), columns, rows=len(names), counts=dict(counts))


# ------------------------------------------------------------------------------------------------ pieces


def _rows(task: StringsTask, part: str, flag: str) -> tuple[list[bytes], NDArray[np.int64], NDArray[np.int64]]:
    """Strings, entity numbers and flags of the range in all runs."""
    ids = mapped(Path(task.folder) / "ids.npy")
    keys: list[bytes] = []
    entities: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    flags: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for run in runs_of(task.runs):
        rows = string_range(run, task.first, task.last, part)
        keys += unpacked(run[part + "bytes"], run[part + "offsets"], rows)
        entities.append(numbers_of(ids, run[part + "entities"][rows]))
        flags.append(run[part + flag][rows].astype(np.int64))
    return keys, np.concatenate(entities), np.concatenate(flags)


def _known(folder: str, entities: NDArray[np.integer]) -> NDArray[np.float64]:
    """Facts and neighbours-by-incoming-facts of each entity, plus 1."""
    total = np.ones(len(entities))
    for name in ("facts_offsets.npy", "incoming_offsets.npy"):
        offsets = mapped(Path(folder) / name)
        total += offsets[entities + 1].astype(np.int64) - offsets[entities]
    return total


def _surfaces(task: StringsTask) -> dict[bytes, Surface]:
    if not task.links.folder:
        return {}
    titles = NameTable.open(task.titles)
    owners = mapped(Path(task.folder) / "titles_entities.npy")

    def entity_of(title: str) -> int:
        row = titles.get(title)
        return -1 if row is None else int(owners[row])

    statistics = LinkStatistics(task.links.folder, task.links.min_links, task.links.min_share)
    return statistics.between(task.first, task.last, entity_of)


def _save_trie(run: str, names: Sequence[bytes]) -> NDArray[np.int64]:
    """Write the trie beside the run; gives the row of each name."""
    strings = [name.decode() for name in names]
    trie = marisa_trie.Trie(strings)
    write_atomically(run + ".marisa", trie.tobytes())  # its own `save` does not see a disk that is full at the end
    return np.fromiter((trie[string] for string in strings), np.int64, len(strings))


def _by_row(row: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    """`values` of names in the order of their rows."""
    placed = np.empty_like(values)
    placed[row] = values
    return placed


def _first_row(entities: NDArray[np.int64], rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The first of the rows of each entity, by entity."""
    owners, first = np.unique(entities, return_index=True)
    return {"owners": owners.astype(np.uint32), "owner_rows": rows[first].astype(np.uint32)}
