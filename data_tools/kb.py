"""The knowledge base as the corpus build reads it: a folder of memory-mapped arrays that all workers of a node share.

`data_tools.wikidata.builder` writes the folder, `KnowledgeBase.open` maps it. Entities and relations are numbered in
the order of their ids. In the folder:

    manifest.json                          counts, files with sha256, fingerprint
    {names,folded,titles}.marisa           tries from a string to its row number
    {names,folded}_{offsets,entities,priors}.npy    candidates of a name, best first: int32, float32
    titles_entities.npy                    int32 entity of a page title
    facts_keys.npy, facts_relations.npy    the facts: uint64 head << 32 | tail, and uint16 relation; sorted by both
    incoming_{offsets,heads}.npy           the heads of the facts that end in an entity, sorted
    {entity,relation}_{ids,names}_{offsets,bytes}.npy    UTF-8 strings, one after the other

A fact takes 10 bytes, and 4 for the way back.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import marisa_trie
import numpy as np
from numpy.typing import NDArray

from erica_dist.errors import UserError
from erica_dist.shards.manifest import read_manifest

FORMAT = "erica-dist/knowledge-base"
HEAD_SHIFT = np.uint64(32)


def normalise_name(name: str) -> str:
    """A name as it is stored and looked up: NFC, runs of white space as one blank, trimmed, case kept."""
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
        self._names = _Candidates(folder, "names")
        self._folded = _Candidates(folder, "folded")
        self._titles = _trie(folder / "titles.marisa")
        self._title_entities = _array(folder / "titles_entities.npy")
        self._keys = _array(folder / "facts_keys.npy")
        self._relations = _array(folder / "facts_relations.npy")
        self._incoming_offsets = _array(folder / "incoming_offsets.npy")
        self._incoming_heads = _array(folder / "incoming_heads.npy")
        self._entity_ids = _Strings(folder, "entity_ids")
        self._entity_names = _Strings(folder, "entity_names")
        self._relation_ids = _Strings(folder, "relation_ids")
        self._relation_names = _Strings(folder, "relation_names")

    @classmethod
    def open(cls, folder: str | Path) -> KnowledgeBase:
        """Map the folder.

        Raises:
            UserError: no knowledge base there, an unfinished one, or a file of it missing or damaged.
        """
        manifest = read_manifest(Path(folder), FORMAT)
        try:
            return cls(Path(folder), manifest)
        except (OSError, ValueError, EOFError, RuntimeError) as error:
            raise UserError(
                f"knowledge base {folder} is damaged ({error}); build it again with `erica-dist build-kb`"
            ) from error

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return KnowledgeBase.open, (self.folder,)

    def __len__(self) -> int:
        return len(self._entity_ids)

    @property
    def relation_count(self) -> int:
        return len(self._relation_ids)

    @property
    def name_trie(self) -> marisa_trie.Trie:
        """All names as stored; `prefixes(text)` gives the names that `text` starts with."""
        return self._names.trie

    @property
    def folded_trie(self) -> marisa_trie.Trie:
        """All names after `fold_name`."""
        return self._folded.trie

    def entity_of_title(self, title: str) -> int:
        """The entity of a normalised page title, -1 if there is none."""
        row = self._titles.get(title)
        return -1 if row is None else int(self._title_entities[row])

    def candidates(self, name: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Entities int32[k] that bear the normalised `name`, best first, and priors float32[k] (sum 1); k may be 0."""
        return self._names.rows(name)

    def candidates_folded(self, name: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """As `candidates`, case ignored: `name` is any spelling, an entity counts with its best matching name."""
        return self._folded.rows(fold_name(name))

    def relations_of_pairs(
        self, heads: NDArray[np.integer], tails: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All relations of n ordered pairs: those of pair i are `relations[offsets[i]:offsets[i + 1]]`, ascending.

        heads, tails: int[n] entity numbers. Returns offsets int64[n + 1] and relations int32[k].
        """
        keys = pair_keys(heads, tails)
        first = np.searchsorted(self._keys, keys, side="left")
        counts = np.searchsorted(self._keys, keys, side="right") - first
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        rows = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        return offsets, self._relations[rows].astype(np.int32)

    def neighbours(self, entity: int) -> NDArray[np.int32]:
        """Entities int32[k] that share a fact with `entity`, in either direction; ascending, unique."""
        borders = np.array([entity, entity + 1], np.uint64) << HEAD_SHIFT
        first, last = np.searchsorted(self._keys, borders)
        tails = (self._keys[first:last] & np.uint64(0xFFFFFFFF)).astype(np.int32)
        heads = self._incoming_heads[self._incoming_offsets[entity] : self._incoming_offsets[entity + 1]]
        return np.union1d(tails, heads).astype(np.int32)

    def entity_id(self, entity: int) -> str:
        return self._entity_ids[entity]

    def entity_name(self, entity: int) -> str:
        """The label: the first name in the table."""
        return self._entity_names[entity]

    def relation_id(self, relation: int) -> str:
        return self._relation_ids[relation]

    def relation_name(self, relation: int) -> str:
        """The label, "" where the table of relations has none."""
        return self._relation_names[relation]


def pair_keys(heads: NDArray[np.integer], tails: NDArray[np.integer]) -> NDArray[np.uint64]:
    """uint64[n]: head << 32 | tail."""
    return (np.asarray(heads).astype(np.uint64) << HEAD_SHIFT) | np.asarray(tails).astype(np.uint64)


class _Candidates:
    """A trie and the candidate rows of each of its strings."""

    def __init__(self, folder: Path, name: str):
        self.trie = _trie(folder / f"{name}.marisa")
        self._offsets = _array(folder / f"{name}_offsets.npy")
        self._entities = _array(folder / f"{name}_entities.npy")
        self._priors = _array(folder / f"{name}_priors.npy")

    def rows(self, key: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        row = self.trie.get(key)
        first, last = (0, 0) if row is None else (self._offsets[row], self._offsets[row + 1])
        return self._entities[first:last], self._priors[first:last]


class _Strings:
    """Strings by number, decoded when asked for."""

    def __init__(self, folder: Path, name: str):
        self._offsets = _array(folder / f"{name}_offsets.npy")
        self._bytes = _array(folder / f"{name}_bytes.npy")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._bytes[self._offsets[index] : self._offsets[index + 1]].tobytes().decode()


def _array(path: Path) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _trie(path: Path) -> marisa_trie.Trie:
    return marisa_trie.Trie().mmap(str(path))
