"""Documents of training shards, any of them at once: their rows gathered into one array a column.

In: opened folders (`reader.ShardFolder`) and document numbers. Out: `Columns`. Nothing loops over documents or shards:
all shards lie in one range of addresses (`address_space`), and a document's rows are found by the tables of `index`. A
shard is mapped, and fetched if it is remote, at first use.

Every document that is read is checked: offsets, spans, entities, relations and pieces in range. One that fails is
damaged: by default an error that names shard, place and key; a `tolerant` reader leaves it out and says so. What is
left out depends on the document's bytes alone, so it is the same on whichever rank reads it.

D documents, C columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from erica_dist.errors import DamagedFile, UserError
from erica_dist.shards.address_space import AddressSpace
from erica_dist.shards.blocks import COLUMNS
from erica_dist.shards.ragged import offsets, row_of, spans

if TYPE_CHECKING:
    from erica_dist.shards.reader import ShardFolder

MAPPED_SHARDS = 20_000  # at a time: the kernel allows a process some 65,000 mappings
MOST_SENTENCES = 1 << 16  # of a document; collation makes a table of entities by sentences
_CUT_OFF = "the shard ends before it (cut off)"
_PAIR = np.array([0, 1])
# each offsets column with a column that it divides
_DIVIDED = {
    kind: {column.rows: column.name for column in columns if column.rows not in ("", "+1")}
    for kind, columns in COLUMNS.items()
}


@dataclass(frozen=True)
class Fault:
    """A document that cannot be read, and why."""

    document: int  # number over all folders of the reader
    text: str  # shard, place in it, key, and what is wrong


@dataclass(frozen=True)
class Columns:
    """D documents as columns, in the order in which they were asked for; damaged ones are missing and in `faults`."""

    taken: np.ndarray  # int64 [D], places in what was asked for, rising
    folder: np.ndarray  # int64 [D], which of the reader's folders
    counts: dict[str, np.ndarray]  # int64 [D] by offsets column: the rows of each document
    arrays: dict[str, np.ndarray]  # the rows of all documents, by column of `blocks.COLUMNS`
    faults: tuple[Fault, ...] = ()

    def __len__(self) -> int:
        return len(self.taken)

    def split(self, asked: Sequence[int]) -> list[Columns]:
        """The documents in parts of so many asked-for documents each; views, and without `faults`."""
        edges = offsets(np.asarray(asked, np.int64))
        at = np.searchsorted(self.taken, edges)
        rows = {name: offsets(count)[at] for name, count in self.counts.items()} | {"": at}
        owner = {column.name: column.rows for columns in COLUMNS.values() for column in columns}
        parts = []
        for part, (first, last) in enumerate(itertools.pairwise(at.tolist())):
            arrays = {
                name: array[rows[owner[name]][part] : rows[owner[name]][part + 1]]
                for name, array in self.arrays.items()
            }
            counts = {name: count[first:last] for name, count in self.counts.items()}
            parts.append(Columns(self.taken[first:last] - edges[part], self.folder[first:last], counts, arrays))
        return parts


@dataclass
class _Places:
    """Where the documents asked for lie, and which of them turned out to be damaged."""

    documents: np.ndarray  # [D]
    block: np.ndarray  # [D]
    place: np.ndarray  # [D] in the block
    shard: np.ndarray  # [D]
    begin_DC: np.ndarray  # address of each column's array
    rows_DC: np.ndarray  # rows of each column in the block
    limit: np.ndarray  # [D] end of the shard's mapped bytes
    wrong: dict[int, str] = field(default_factory=dict)  # place in `documents` -> what is wrong with it, the first only

    def blame(self, bad_D: np.ndarray, text: str) -> None:
        for i in np.flatnonzero(bad_D).tolist():
            self.wrong.setdefault(i, text)


class ShardReader:
    """Reads documents of several folders of one kind, numbered through: those of the first folder, then the next."""

    def __init__(self, folders: Sequence[ShardFolder]):
        """
        Raises:
            UserError: folders of several kinds, or that hold a column in different types.
        """
        indices = [folder.index for folder in folders]
        types = {tuple(index.dtypes.items()) for index in indices if index.dtypes}
        if len({folder.kind for folder in folders}) > 1 or len(types) > 1:
            raise UserError(
                f"{', '.join(folder.place for folder in folders)} hold shards of different kinds or column types and "
                "cannot be mixed: tokenize them alike"
            )
        self.folders = list(folders)
        self.kind = folders[0].kind
        self.tolerant = any(folder.tolerant for folder in folders)
        self.start: np.ndarray = offsets(np.array([len(index.lengths) for index in indices], np.int64))  # by folder
        shards = np.array([len(folder.shards) for folder in folders], np.int64)
        self._dtypes = dict(next(iter(types), ()))
        self._columns = {column.name: place for place, column in enumerate(COLUMNS[self.kind])}
        self._shard_start = offsets(shards)
        self._shard_folder = row_of(shards)
        self._lengths = [index.lengths for index in indices]
        self._block_shard = np.concatenate(
            [i.block_shard + s for i, s in zip(indices, self._shard_start, strict=False)]
        )
        first = [index.block_start[:-1] + start for index, start in zip(indices, self.start, strict=False)]
        self._block_start = np.concatenate([*first, self.start[-1:]])
        # one folder's tables stay the memory maps that they are
        self._offset_BC = _stacked([index.offset_BC for index in indices])
        self._rows_BC = _stacked([index.rows_BC for index in indices])
        self._vocabulary = min(folder.tokenizer["vocab_size"] for folder in folders)
        self._relations = np.array([len(folder.relations) for folder in folders], np.int64)
        caches = [folder.cache.limit_bytes for folder in folders if folder.cache is not None]
        self._bound = min(caches) if caches else None  # bytes of mapped shards
        self._mapped: dict[int, None] = {}  # shards, the least recently needed first
        self._mapped_bytes = 0
        self._lost: dict[int, str] = {}  # shards that cannot be had, and why
        self._looked_at: set[int] = set()  # remote shards whose copy was compared with its hash
        self._space: AddressSpace | None = None

    def __len__(self) -> int:
        return int(self.start[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_space": None, "_mapped": {}, "_mapped_bytes": 0}

    def lengths(self, documents: np.ndarray) -> np.ndarray:
        """int64 [D]: word pieces of each document, from the index."""
        if len(self._lengths) == 1:
            return self._lengths[0][documents].astype(np.int64)
        found, folder = np.empty(len(documents), np.int64), self.folder_of(documents)
        for number, lengths in enumerate(self._lengths):
            here = folder == number
            found[here] = lengths[documents[here] - self.start[number]]
        return found

    def folder_of(self, documents: np.ndarray) -> np.ndarray:
        """int64 [D]: the folder of each document."""
        return np.searchsorted(self.start, documents, side="right") - 1

    def shards_of(self, documents: np.ndarray) -> list[int]:
        """The shards (numbered through all folders) that hold the documents, in the order in which they are needed."""
        return list(dict.fromkeys(self._block_shard[self._block_of(documents)].tolist()))

    def file_of(self, shard: int) -> tuple[ShardFolder, dict[str, Any]]:
        """Folder and manifest record of a shard numbered through all folders."""
        folder = int(self._shard_folder[shard])
        return self.folders[folder], self.folders[folder].shards[shard - int(self._shard_start[folder])]

    def read(self, documents: np.ndarray) -> Columns:
        """The given documents (int64 [D]) as copies.

        Raises:
            UserError: a document is damaged and the reader is not tolerant, or a remote shard cannot be fetched.
        """
        block = self._block_of(documents)
        shard = self._block_shard[block]
        space = self._map(shard)
        places = _Places(
            documents=documents,
            block=block,
            place=documents - self._block_start[block],
            shard=shard,
            begin_DC=self._offset_BC[block] + space.starts[shard][:, None],
            rows_DC=self._rows_BC[block],
            limit=(space.starts + space.available)[shard],
        )
        firsts, counts = self._extents(space, places)
        arrays = self._rows(space, places, firsts, counts)
        self._check(places, arrays, counts)
        if places.wrong and self._renewed({int(shard[i]) for i in places.wrong}):
            return self.read(documents)
        if not places.wrong:
            return Columns(np.arange(len(documents)), self._shard_folder[shard], counts, arrays)
        faults = tuple(
            Fault(int(documents[i]), self._text(places, i, arrays, text)) for i, text in places.wrong.items()
        )
        if not self.tolerant:
            raise UserError(
                f"{faults[0].text}; check the folder with `erica-dist verify`, copy the shard again, or leave damaged "
                "documents out with data.damaged=tolerant"
            )
        kept = np.setdiff1d(np.arange(len(documents)), list(places.wrong))
        whole = self.read(documents[kept])
        return Columns(kept[whole.taken], whole.folder, whole.counts, whole.arrays, faults + whole.faults)

    def _block_of(self, documents: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._block_start, documents, side="right") - 1

    # -------------------------------------------------------------------------------------------- rows

    def _extents(self, space: AddressSpace, places: _Places) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """First row and number of rows of each document, by offsets column; 0 rows where the offsets make no sense."""
        firsts, counts = {}, {}
        items = space.bytes.view(np.int64)
        for name, divided in _DIVIDED[self.kind].items():
            begin = places.begin_DC[:, self._columns[name]] + 8 * places.place
            readable = begin + 16 <= places.limit
            # what cannot be read is read as the zeros at byte 0
            first, last = items[np.where(readable, begin >> 3, 0)[:, None] + _PAIR].T
            sound = (first >= 0) & (first <= last) & (last <= places.rows_DC[:, self._columns[divided]])
            if not (readable.all() and sound.all()):
                self._blame_cut_off(places, ~readable)
                places.blame(~sound, f"its {name} do not fit the column")
                first, last = np.where(sound, first, 0), np.where(sound, last, 0)
            firsts[name], counts[name] = first, last - first
        places.blame(counts["token_offsets"] != self.lengths(places.documents), "its length is not that of the index")
        return firsts, counts

    def _rows(
        self, space: AddressSpace, places: _Places, firsts: dict[str, np.ndarray], counts: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The rows of all documents, by column. `counts` of what lies behind a shard's end become 0."""
        arrays = {}
        one = np.ones(len(places.documents), np.int64)
        memory = memoryview(space.bytes)  # type: ignore[arg-type]  # an array is a buffer
        # documents that lie one behind the other are one piece of every column
        behind = (np.diff(places.block) == 0) & (np.diff(places.place) == 1)
        runs = np.concatenate([[0], np.flatnonzero(~behind) + 1, [len(places.documents)]])
        few_runs = not places.wrong and len(runs) * 4 < len(places.documents)
        for column in COLUMNS[self.kind]:
            if column.rows == "+1":
                continue
            dtype, width = self._dtypes[column.name], max(column.width, 1)
            begin = places.begin_DC[:, self._columns[column.name]]
            first, count = (firsts[column.rows], counts[column.rows]) if column.rows else (places.place, one)
            readable = begin + (first + count) * width * dtype.itemsize <= places.limit
            if not readable.all():
                few_runs = False
                self._blame_cut_off(places, ~readable)
                begin, first = np.where(readable, begin, 0), np.where(readable, first, 0)
                if column.rows:
                    counts[column.rows] = count = np.where(readable, count, 0)
            size = width * dtype.itemsize
            start, end = begin + first * size, begin + (first + count) * size
            if few_runs:
                pieces = start[runs[:-1]], end[runs[1:] - 1]
            elif column.rows == "token_offsets":
                pieces = start, end  # long rows: copied a piece at a time, they take a fraction of number by number
            else:
                arrays[column.name] = _taken(space.bytes, dtype, width, start, count if column.rows else None)
                continue
            data = bytearray().join(map(memory.__getitem__, map(slice, pieces[0].tolist(), pieces[1].tolist())))
            array = np.frombuffer(data, dtype)
            arrays[column.name] = array.reshape(-1, width) if column.width else array
        return arrays

    def _check(self, places: _Places, arrays: dict[str, np.ndarray], counts: dict[str, np.ndarray]) -> None:
        """What training relies on; `blocks.check_block` holds every rule."""
        length_D = counts["token_offsets"]

        def blame(bad: np.ndarray, rows: str, text: str) -> None:
            if bad.any():
                places.blame(np.bincount(row_of(counts[rows])[bad], minlength=len(length_D)) > 0, text)

        tokens = arrays["tokens"]
        if len(tokens) and int(tokens.max()) >= self._vocabulary:
            blame(tokens >= self._vocabulary, "token_offsets", f"a piece is outside the vocabulary {self._vocabulary}")
        if self.kind == "sequences":
            split = arrays["segment_split"]
            places.blame((split < 0) | (split >= np.maximum(length_D, 1)), "the segment split is outside it")
            return
        start, end = arrays["mention_spans"].T
        bad = (start < 0) | (start >= end) | (end > np.repeat(length_D, counts["mention_offsets"]))
        blame(bad, "mention_offsets", "a mention is empty or lies outside the pieces")
        entities = counts["entity_offsets"]
        entity = arrays["mention_entity"]
        bad = (entity < 0) | (entity >= np.repeat(entities, counts["mention_offsets"]))
        blame(bad, "mention_offsets", "a mention belongs to no entity")
        sentence = arrays["mention_sentence"]
        bad = (sentence < 0) | (sentence >= MOST_SENTENCES)
        blame(bad, "mention_offsets", f"a mention's sentence number is not in 0 to {MOST_SENTENCES}")
        for name, rows in (("relations", "relation_offsets"), ("barred", "barred_offsets")):
            head, tail = arrays[name].T[:2]
            limit = np.repeat(entities, counts[rows])
            bad = (head < 0) | (head >= limit) | (tail < 0) | (tail >= limit) | (head == tail)
            blame(bad, rows, f"a pair in {name} is not of two entities of the document")
        relation = arrays["relations"][:, 2]
        limit = np.repeat(self._relations[self._shard_folder[places.shard]], counts["relation_offsets"])
        blame((relation < 0) | (relation >= limit), "relation_offsets", "a relation is not in the manifest's table")

    # -------------------------------------------------------------------------------------------- damage

    def _blame_cut_off(self, places: _Places, bad_D: np.ndarray) -> None:
        for i in np.flatnonzero(bad_D).tolist():
            lost = self._lost.get(int(places.shard[i]))
            places.wrong.setdefault(i, lost or _CUT_OFF)

    def _text(self, places: _Places, i: int, arrays: dict[str, np.ndarray], text: str) -> str:
        folder, record = self.file_of(int(places.shard[i]))
        block = int(places.block[i]) - int(np.searchsorted(self._block_shard, places.shard[i]))
        place, key = int(places.place[i]), int(arrays["document_key"][i])
        named = "" if text == _CUT_OFF or int(places.shard[i]) in self._lost else f" (key {key})"
        return f"{folder.place}/{record['file']}: document {place} of block {block}{named} is damaged: {text}"

    # -------------------------------------------------------------------------------------------- shards

    def _map(self, shard_D: np.ndarray) -> AddressSpace:
        """The address space, with the given shards mapped."""
        if self._space is None:
            self._space = AddressSpace(np.array([shard["bytes"] for f in self.folders for shard in f.shards], np.int64))
        for shard in dict.fromkeys(shard_D[self._space.available[shard_D] == 0].tolist()):
            if shard in self._lost:
                continue
            folder, record = self.file_of(shard)
            try:
                with folder.open_file(record["file"], record["sha256"], record["bytes"]) as file:
                    self._space.place(shard, file)
            except (OSError, DamagedFile) as error:
                text = str(error) if isinstance(error, DamagedFile) else f"cannot read the shard: {error.strerror}"
                if not self.tolerant:
                    raise UserError(
                        text if record["file"] in text else f"{folder.place}/{record['file']}: {text}"
                    ) from error
                self._lost[shard] = text
                continue
            self._mapped[shard] = None
            self._mapped_bytes += int(self._space.available[shard])
        if self._bound is not None or len(self._mapped) > MAPPED_SHARDS:
            self._forget_oldest(self._space, dict.fromkeys(shard_D.tolist()))
        return self._space

    def _renewed(self, shards: set[int]) -> bool:
        """Whether copies of remote shards turned out to be damaged and were dropped; each is looked at once."""
        renewed = False
        for shard in shards - self._looked_at:
            folder, record = self.file_of(shard)
            self._looked_at.add(shard)
            if folder.cache is not None and folder.cache.drop_if_damaged(record["sha256"]):
                renewed = True
                if self._space is not None and shard in self._mapped:
                    del self._mapped[shard]
                    self._mapped_bytes -= int(self._space.available[shard])
                    self._space.forget(shard)
        return renewed

    def _forget_oldest(self, space: AddressSpace, needed: dict[int, None]) -> None:
        """Unmap what is above the bounds: a file that the cache has deleted takes disk as long as it is mapped."""
        for shard in needed:
            if self._mapped.pop(shard, 0) is None:
                self._mapped[shard] = None
        bound = self._bound if self._bound is not None else self._mapped_bytes
        while len(self._mapped) > MAPPED_SHARDS or self._mapped_bytes > bound:
            shard = next(iter(self._mapped))
            if shard in needed:
                break
            del self._mapped[shard]
            self._mapped_bytes -= int(space.available[shard])
            space.forget(shard)


def _taken(memory: np.ndarray, dtype: np.dtype, width: int, start: np.ndarray, count: np.ndarray | None) -> np.ndarray:
    """Rows of `width` items from the byte addresses `start` on, `count` of each (None: one item of each)."""
    items = memory.view(dtype)
    if count is None:
        return items[start // dtype.itemsize]
    if width == 1:
        return items[spans(start // dtype.itemsize, count)]
    if width * dtype.itemsize == 8 and not (start & 7).any():  # two numbers of four bytes at once
        return memory.view(np.int64)[spans(start >> 3, count)].view(dtype).reshape(-1, width)
    return items[spans(start // dtype.itemsize, count * width)].reshape(-1, width)


def _stacked(tables: list[np.ndarray]) -> np.ndarray:
    return tables[0] if len(tables) == 1 else np.concatenate(tables)
