"""The knowledge base as the corpus build reads it: a folder of memory-mapped arrays that all workers of a node share.

`data_tools.wikidata.builder` writes the folder, `KnowledgeBase.open` maps it. Entities are numbered in the order of
their ids, relations too. In the folder:

    manifest.json                               counts, parts of the tries, files with sha256, fingerprint
    {names,folded,titles}-NNNNN.marisa          tries from a string to its row, each of one range of strings
    names_{offsets,entities,weights}.npy        candidates of a name, best first: uint32, float32
    names_linked.npy                            share of a name's occurrences that are links, float16; not always there
    folded_{offsets,names}.npy                  the names behind a name without its case: their rows, uint32
    titles_entities.npy                         entity of a page title, uint32
    facts_{offsets,tails,relations}.npy         the facts of each entity as head, by tail: uint32, uint16
    incoming_{offsets,heads}.npy                the heads of the facts that end in an entity, once each
    types_{offsets,classes}.npy, entity_types.npy    instance-of: classes as ids' numbers; coarse type, uint8
    entity_{numbers,labels,titles}.npy          number of the Q id, row of its label, of its title: uint32
    entity_ids_{offsets,bytes}.npy              in place of the numbers where ids are no Q ids
    relation_{ids,names}_{offsets,bytes}.npy    UTF-8 strings, one after the other

A fact takes 6 bytes, and at most 4 for the way back.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.name_table import NameTable
from erica_dist.errors import UserError
from erica_dist.shards.manifest import KNOWLEDGE_BASE, read_manifest

FORMAT = KNOWLEDGE_BASE
NONE = 2**32 - 1  # no row, no entity
_PAIRS = 1 << 14  # looked up at a time


def normalise_name(name: str) -> str:
    """A name as it is stored and looked up: NFC, runs of white space as one blank, trimmed, case kept."""
    if "\0" in name:  # which tries take for the end of a string
        name = name.replace("\0", " ")
    if name.isascii():
        return " ".join(name.split())
    return unicodedata.normalize("NFC", " ".join(name.split()))


def fold_name(name: str) -> str:
    """The key of `candidates_folded`: the normalised name without its case."""
    return unicodedata.normalize("NFC", normalise_name(name).casefold())


class KnowledgeBase:
    """Read-only look-ups; picklable (a worker maps the same folder again)."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest
        self.fingerprint: str = manifest["fingerprint"]
        tables = manifest["tables"]
        self.name_trie = _table(folder, "names", tables)
        self.folded_trie = _table(folder, "folded", tables)
        self.title_trie = _table(folder, "titles", tables)
        self._name_offsets = _array(folder, "names_offsets")
        self._name_entities = _array(folder, "names_entities")
        self._name_weights = _array(folder, "names_weights")
        self._name_linked = _array(folder, "names_linked") if manifest["links"] else None
        self._folded_offsets = _array(folder, "folded_offsets")
        self._folded_names = _array(folder, "folded_names")
        self._title_entities = _array(folder, "titles_entities")
        self._offsets = _array(folder, "facts_offsets")
        self._tails = _array(folder, "facts_tails")
        self._relations = _array(folder, "facts_relations")
        self._incoming_offsets = _array(folder, "incoming_offsets")
        self._incoming_heads = _array(folder, "incoming_heads")
        self._type_offsets = _array(folder, "types_offsets")
        self._type_classes = _array(folder, "types_classes")
        self._entity_types = _array(folder, "entity_types")
        self._entity_labels = _array(folder, "entity_labels")
        self._entity_titles = _array(folder, "entity_titles")
        self._numbers = _array(folder, "entity_numbers") if manifest["q_ids"] else None
        self._ids = None if manifest["q_ids"] else Strings(folder, "entity_ids")
        self._relation_ids = Strings(folder, "relation_ids")
        self._relation_names = Strings(folder, "relation_names")
        self._type_names: list[str] = manifest["types"]

    @classmethod
    def open(cls, folder: str | Path) -> KnowledgeBase:
        """Map the folder.

        Raises:
            UserError: no knowledge base there, an unfinished one, or a file of it missing or damaged.
        """
        manifest = read_manifest(Path(folder), FORMAT)
        try:
            return cls(Path(folder), manifest)
        except (OSError, ValueError, EOFError, RuntimeError, KeyError) as error:
            raise UserError(
                f"knowledge base {folder} is damaged or of an older version ({error!r}); build it again with "
                "`erica-dist build-kb`"
            ) from error

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return KnowledgeBase.open, (self.folder,)

    def __len__(self) -> int:
        return len(self._entity_labels)

    # -------------------------------------------------------------------------------------------- names and titles

    def entity_of_title(self, title: str) -> int:
        """The entity of a normalised page title, -1 if there is none."""
        row = self.title_trie.get(title)
        return -1 if row is None else int(self._title_entities[row])

    def candidates(self, name: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Entities int32[k] that bear the normalised `name`, best first, and priors float32[k] (sum 1); k may be 0."""
        row = self.name_trie.get(name)
        if row is None:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        first, last = self._name_offsets[row], self._name_offsets[row + 1]
        weights = self._name_weights[first:last]
        return self._name_entities[first:last].astype(np.int32), weights / weights.sum()

    def candidates_folded(self, name: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """As `candidates`, case ignored: `name` is any spelling, an entity counts with its best matching name."""
        folded = self.folded_trie.get(fold_name(name))
        if folded is None:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        rows = self._folded_names[self._folded_offsets[folded] : self._folded_offsets[folded + 1]]
        places = [slice(self._name_offsets[row], self._name_offsets[row + 1]) for row in rows.astype(np.int64)]
        entities = np.concatenate([self._name_entities[place] for place in places]).astype(np.int32)
        weights = np.concatenate([self._name_weights[place] for place in places])
        order = np.lexsort((entities, -weights))
        entities, weights = entities[order], weights[order]
        first = np.sort(np.unique(entities, return_index=True)[1])
        return entities[first], weights[first] / weights[first].sum()

    def prior(self, name: str, entity: int) -> float:
        """The prior of `entity` among the candidates of the normalised `name`, 0 where it is none of them."""
        entities, priors = self.candidates(name)
        return float(priors[entities == entity].sum())

    def link_probability(self, name: str) -> float:
        """Share of the occurrences of `name` in the counted pages that are links; NaN where that is not known."""
        row = self.name_trie.get(name)
        return float("nan") if row is None or self._name_linked is None else float(self._name_linked[row])

    # -------------------------------------------------------------------------------------------- facts

    def relations_of(self, head: int, tail: int) -> list[int]:
        """All relations of one ordered pair, ascending."""
        first, last = int(self._offsets[head]), int(self._offsets[head + 1])
        tails = self._tails[first:last]
        begin = int(tails.searchsorted(tail))
        end = begin
        while end < len(tails) and tails[end] == tail:
            end += 1
        return self._relations[first + begin : first + end].tolist() if end > begin else []

    def relations_of_pairs(
        self, heads: NDArray[np.integer], tails: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All relations of n ordered pairs: those of pair i are `relations[offsets[i]:offsets[i + 1]]`, ascending.

        heads, tails: int[n] entity numbers. Returns offsets int64[n + 1] and relations int32[k].
        """
        heads, tails = np.asarray(heads, np.int64), np.asarray(tails, np.int64)
        offsets = np.zeros(len(heads) + 1, np.int64)
        relations: list[NDArray[np.int32]] = [np.zeros(0, np.int32)]
        for start in range(0, len(heads), _PAIRS):  # what a piece needs fits the processor's cache
            piece = slice(start, start + _PAIRS)
            first, counts = self._find(heads[piece], tails[piece])
            rows = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            relations.append(self._relations[rows].astype(np.int32))
            offsets[start + 1 : start + 1 + len(counts)] = counts
        return np.cumsum(offsets, out=offsets), np.concatenate(relations)

    def _find(
        self, heads: NDArray[np.integer], tails: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first fact of each pair and how many it has."""
        low, last = self._offsets[heads].astype(np.int64), self._offsets[heads + 1].astype(np.int64)
        # Bisection of all pairs at once, each among the facts of its head; pairs that have ended are left out.
        todo = np.flatnonzero(low < last)
        begin, end, wanted = low[todo], last[todo], tails[todo]
        while len(todo):
            middle = (begin + end) >> 1
            less = self._tails[middle] < wanted
            begin, end = np.where(less, middle + 1, begin), np.where(less, end, middle)
            going = begin < end
            low[todo] = begin
            if not going.all():
                todo, begin, end, wanted = todo[going], begin[going], end[going], wanted[going]
        counts = np.zeros(len(heads), np.int64)
        pairs = np.flatnonzero(low < last)
        while len(pairs):  # as often as a pair has relations
            pairs = pairs[self._tails[low[pairs] + counts[pairs]] == tails[pairs]]
            counts[pairs] += 1
            pairs = pairs[low[pairs] + counts[pairs] < last[pairs]]
        return low, counts

    def facts_among(self, entities: NDArray[np.integer]) -> NDArray[np.int64]:
        """All facts between n distinct entities: int64[k, 3] of place of the head, place of the tail, relation; sorted.

        One pass over the facts of the entities as heads: cheaper than to ask for each of the n * (n - 1) pairs.
        """
        numbers = np.asarray(entities, np.int64)
        order = np.argsort(numbers)
        ascending = numbers[order]
        first = self._offsets[numbers].astype(np.int64)
        counts = self._offsets[numbers + 1] - first
        before = np.cumsum(counts)
        total = int(before[-1]) if len(numbers) else 0
        if not total:
            return np.zeros((0, 3), np.int64)
        rows = np.arange(total) + np.repeat(first - before + counts, counts)
        tails = self._tails[rows]
        places = np.searchsorted(ascending, tails)
        places[places == len(numbers)] = 0
        hits = np.flatnonzero(ascending[places] == tails)
        heads = np.searchsorted(before, hits, side="right")
        found = np.empty((len(hits), 3), np.int64)
        found[:, 0], found[:, 1], found[:, 2] = heads, order[places[hits]], self._relations[rows[hits]]
        return found[np.lexsort((found[:, 2], found[:, 1], found[:, 0]))]

    def neighbours(self, entity: int) -> NDArray[np.int32]:
        """Entities int32[k] that share a fact with `entity`, in either direction; ascending, unique."""
        tails = self._tails[self._offsets[entity] : self._offsets[entity + 1]]
        return np.union1d(tails, self.heads_of(entity)).astype(np.int32)

    def heads_of(self, entity: int) -> NDArray[np.int32]:
        """Entities int32[k] with a fact whose tail is `entity`; ascending, unique."""
        first, last = self._incoming_offsets[entity], self._incoming_offsets[entity + 1]
        return self._incoming_heads[first:last].astype(np.int32)

    def related(self, entity: int, others: NDArray[np.integer]) -> NDArray[np.bool_]:
        """bool[n]: which of the n `others` share a fact with `entity`, in either direction; bisects its facts."""
        tails = self._tails[self._offsets[entity] : self._offsets[entity + 1]]
        heads = self._incoming_heads[self._incoming_offsets[entity] : self._incoming_offsets[entity + 1]]
        wanted = np.asarray(others).astype(np.uint32)  # of another type than the facts, all of these would be copied
        return _among(wanted, tails) | _among(wanted, heads)

    # -------------------------------------------------------------------------------------------- entities

    def entity_id(self, entity: int) -> str:
        if not 0 <= entity < len(self):
            raise IndexError(entity)
        return f"Q{self._numbers[entity]}" if self._numbers is not None else self._ids[entity]  # type: ignore[index]

    def entity_number(self, identifier: str) -> int:
        """The number of the entity with this id, -1 if there is none."""
        if self._ids is not None:
            return self._ids.find(identifier)
        digits = identifier[1:]
        if identifier[:1] != "Q" or not digits.isdecimal() or int(digits) >= 2**32:
            return -1
        assert self._numbers is not None
        place = int(np.searchsorted(self._numbers, np.uint32(digits)))
        return place if place < len(self) and self._numbers[place] == int(digits) else -1

    def entity_name(self, entity: int) -> str:
        """The label: the first name in the table, or that of the language in the dump."""
        return self.name_trie[int(self._entity_labels[entity])]

    def entity_title(self, entity: int) -> str:
        """The title of its page, "" where none is known."""
        row = int(self._entity_titles[entity])
        return "" if row == NONE else self.title_trie[row]

    def entity_type(self, entity: int) -> str:
        """Coarse type from instance-of (see `data_tools.wikidata.types`), "" where none is known."""
        return self._type_names[self._entity_types[entity]]

    def instance_of(self, entity: int) -> list[str]:
        """Ids of the classes that the entity is an instance of."""
        classes = self._type_classes[self._type_offsets[entity] : self._type_offsets[entity + 1]].tolist()
        return [f"Q{number}" if self._ids is None else self._ids[number] for number in classes]

    # -------------------------------------------------------------------------------------------- relations

    @property
    def relation_count(self) -> int:
        return len(self._relation_ids)

    def relation_id(self, relation: int) -> str:
        return self._relation_ids[relation]

    def relation_name(self, relation: int) -> str:
        """The label, "" where none is known."""
        return self._relation_names[relation]


class Strings:
    """Strings by number, decoded when asked for."""

    def __init__(self, folder: Path, name: str):
        self._offsets = _array(folder, f"{name}_offsets")
        self._bytes = _array(folder, f"{name}_bytes")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._bytes[self._offsets[index] : self._offsets[index + 1]].tobytes().decode()

    def find(self, string: str) -> int:
        """The number of `string` among sorted strings, -1 if it is not there."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self[middle] < string else (low, middle)
        return low if low < len(self) and self[low] == string else -1


def _among(wanted: NDArray[np.uint32], ascending: NDArray[np.uint32]) -> NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(wanted), bool)
    return ascending[np.minimum(ascending.searchsorted(wanted), len(ascending) - 1)] == wanted


def _array(folder: Path, name: str) -> NDArray[Any]:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))


def _table(folder: Path, name: str, tables: Mapping[str, Any]) -> NameTable:
    for file, _, _ in tables[name]:
        if not (folder / file).is_file():
            raise FileNotFoundError(folder / file)
    return NameTable.open((folder / file, first, rows) for file, first, rows in tables[name])
