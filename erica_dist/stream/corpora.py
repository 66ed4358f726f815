"""The corpora of a job as one: which document stands at each place of the stream, and its columns.

In: the job's data settings. Out: a `Corpora`. One folder of training shards or several with weights (`data.mix`),
local or remote. Each corpus has its own order and its own epochs. Relations are numbered through all corpora by their
ids, and documents of several corpora never share a key, so nothing behind this file knows how many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.config import DataConfig
from erica_dist.errors import UserError
from erica_dist.shards.cache import ReadAhead, ShardCache, default_folder
from erica_dist.shards.gathering import Columns, ShardReader
from erica_dist.shards.manifest import fingerprint
from erica_dist.shards.reader import ShardFolder
from erica_dist.shards.remote import is_remote, shown
from erica_dist.stream.mixture import Mixture
from erica_dist.stream.order import CorpusOrder
from erica_dist.stream.randomness import hashed, mixed


class Corpora:
    """One split of one or more training shard folders, read as one."""

    def __init__(self, folders: Sequence[ShardFolder], weights: Sequence[float] = (), window_shards: int = 0):
        """
        Args:
            weights: of the folders; needed for more than one.
            window_shards: shards of a window of the block shuffle; 0: full shuffle.

        Raises:
            UserError: folders of different kinds or tokenizers, or a weight that is not positive.
        """
        # a corpus may have no held-out documents
        filled = [number for number, folder in enumerate(folders) if len(folder)] or [0]
        self.folders = [folders[number] for number in filled]
        self.weights = [weights[number] for number in filled] if weights else [1.0] * len(self.folders)
        self.window_shards = window_shards
        first = folders[0]
        self.kind = first.kind
        self.tokenizer: dict[str, Any] = first.tokenizer
        self.place = first.place if len(folders) == 1 else " + ".join(folder.place for folder in folders)
        for folder in folders[1:]:
            if folder.kind != first.kind or folder.tokenizer["fingerprint"] != first.tokenizer["fingerprint"]:
                raise UserError(
                    f"{first.place} and {folder.place} cannot be mixed: they were made with different tokenizers or "
                    "are of different kinds; run `erica-dist tokenize` alike for both"
                )
        self.fingerprint: str = first.fingerprint
        if len({folder.fingerprint for folder in folders}) < len(folders):
            raise UserError(f"{self.place} name the same shards twice: give them once, with the sum of the weights")
        if len(folders) > 1:
            self.fingerprint = fingerprint([[f.fingerprint, w] for f, w in zip(folders, weights, strict=True)])
        self.relations, self._relation_maps = _numbered_through([folder.relations for folder in self.folders])
        self._salts = np.array([hashed(1, folder.fingerprint)[0] for folder in self.folders])
        self._reader = ShardReader(self.folders)
        self._mixture = Mixture(self.weights) if len(self.folders) > 1 else None
        self._read_ahead: ReadAhead | None = None  # made where it is used: in a worker, after the fork

    def __len__(self) -> int:
        """Documents of all corpora, each once."""
        return len(self._reader)

    def orders(self, seed: int) -> Orders:
        """What stands where in the stream, by the seed of a run."""
        return Orders(self, seed, self._mixture)

    def lengths(self, documents: np.ndarray) -> np.ndarray:
        """int64 [D]: word pieces of each document."""
        return self._reader.lengths(documents)

    def read(self, documents: np.ndarray) -> Columns:
        """The columns of the given documents.

        Raises:
            UserError: a damaged document under data.damaged=strict, or a remote shard that cannot be fetched.
        """
        columns = self._reader.read(documents)
        if len(self.folders) == 1:
            return columns
        keys = columns.arrays["document_key"].astype(np.uint64)
        # below 2^63: keys travel as int64
        columns.arrays["document_key"] = mixed(keys ^ self._salts[columns.folder]) >> np.uint64(1)
        if self.kind == "documents":
            of_row = np.repeat(columns.folder, columns.counts["relation_offsets"])
            relations = columns.arrays["relations"]
            relations[:, 2] = self._relation_maps[of_row, relations[:, 2]]
        return columns

    def fetch_ahead(self, documents: np.ndarray) -> None:
        """Begin to fetch the shards of documents that will be read later; only remote ones, in the background."""
        wanted = []
        for shard in self._reader.shards_of(documents):
            folder, record = self._reader.file_of(shard)
            if folder.cache is not None:
                wanted.append((f"{folder.place}/{record['file']}", record["sha256"], record["bytes"]))
                cache = folder.cache
        if wanted:
            if self._read_ahead is None:
                self._read_ahead = ReadAhead(cache)
            self._read_ahead.want(wanted)

    @property
    def remote(self) -> bool:
        """Whether any shard has to be fetched."""
        return any(folder.cache is not None for folder in self.folders)

    def tokenizer_folder(self) -> Path:
        """A local folder with the tokenizer's files."""
        return self.folders[0].tokenizer_folder()


class Orders:
    """Epoch and document of every place of the stream, for one seed."""

    def __init__(self, corpora: Corpora, seed: int, mixture: Mixture | None):
        self._mixture = mixture
        self._orders = [
            CorpusOrder(seed, np.array([shard["documents"] for shard in folder.shards]), corpora.window_shards)
            for folder in corpora.folders
        ]
        self._start = np.cumsum([0, *(order.documents for order in self._orders)])
        self.window_documents = max(order.window_documents for order in self._orders)

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(epochs int64 [P] of each document's corpus, documents int64 [P] numbered over all corpora)."""
        if self._mixture is None:
            return self._orders[0].at(places)
        corpus, inner = self._mixture.at(places)
        epochs, documents = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for number, order in enumerate(self._orders):
            here = corpus == number
            epochs[here], found = order.at(inner[here])
            documents[here] = found + self._start[number]
        return epochs, documents

    def epochs_done(self, places: int) -> float:
        """Passes that are complete when `places` places of the stream are read; of several corpora the first's."""
        if self._mixture is None:
            return places / self._orders[0].documents
        return places * self._mixture.share(0) / self._orders[0].documents


def open_corpora(data: DataConfig, split: str) -> Corpora:
    """The corpora that the settings name.

    Raises:
        UserError: none or both of data.shards and data.mix, a folder that cannot be read, or a cache that is too small
            for the shuffle.
    """
    if bool(data.shards) == bool(data.mix):
        raise UserError(
            "give data.shards, the folder that `erica-dist tokenize` wrote, or data.mix, several such folders with "
            f"weights{', not both' if data.shards else ''}"
        )
    for key in ("window_shards", "cache_gb"):
        if getattr(data, key) <= 0:
            raise UserError(f"data.{key}={getattr(data, key)} must be positive")
    places = list(data.mix) or [data.shards]
    for place in places:
        if is_remote(place) and shown(place) != place:  # settings are saved with the run and sent to MLflow
            raise UserError(
                f"{shown(place)} is given with a password or a query: leave it out and give credentials where the "
                "protocol's package looks for them (~/.netrc, AWS_*, GOOGLE_APPLICATION_CREDENTIALS)"
            )
    cache = None
    if any(is_remote(place) for place in places):
        cache = ShardCache(Path(data.cache) if data.cache else default_folder(), int(data.cache_gb * 1e9))
    folders = [ShardFolder.open(place, split, cache, data.damaged == "tolerant") for place in places]
    window = data.window_shards if data.shuffle == "block" else 0
    corpora = Corpora(folders, list(data.mix.values()), window)
    if cache is not None and split == "train":
        _check_cache(corpora, cache.limit_bytes)
    return corpora


def _check_cache(corpora: Corpora, limit: int) -> None:
    """Shards that are evicted before they are done with would be fetched again and again."""
    needed = 0
    for folder in corpora.folders:
        sizes = sorted((shard["bytes"] for shard in folder.shards if folder.cache is not None), reverse=True)
        needed += sum(sizes[: 2 * corpora.window_shards] if corpora.window_shards else sizes)
    if needed > limit:
        what, remedy = "its shards", "raise data.cache_gb, or set data.shuffle=block"
        if corpora.window_shards:
            what = f"two windows of {corpora.window_shards} shards"
            remedy = "raise data.cache_gb, or lower data.window_shards"
        raise UserError(
            f"a cache of {limit / 1e9:.3g} GB is too small for {corpora.place}: {what} take {needed / 1e9:.3g} GB; "
            f"{remedy}"
        )


def _numbered_through(tables: Sequence[Sequence[dict[str, Any]]]) -> tuple[list[dict[str, Any]], np.ndarray]:
    """One table of all relations by id, and for each table the new number of each of its relations.

    Raises:
        UserError: a relation has different names in two corpora.
    """
    together: dict[str, dict[str, Any]] = {}
    for relation in itertools.chain.from_iterable(tables):
        known = together.setdefault(relation["id"], relation)
        if known["name"] != relation["name"]:
            raise UserError(
                f"relation {relation['id']} is called {known['name']!r} in one corpus of data.mix and "
                f"{relation['name']!r} in another: build them with the same knowledge base, or the same table of names"
            )
    number = {name: place for place, name in enumerate(together)}
    maps = np.full((len(tables), max((len(table) for table in tables), default=0)), -1, np.int32)
    for row, table in enumerate(tables):
        maps[row, : len(table)] = [number[relation["id"]] for relation in table]
    return list(together.values()), maps
