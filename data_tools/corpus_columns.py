"""One corpus shard -> columns of word pieces, as a worker of `erica-dist tokenize` makes them.

In: a `ShardTask`, paths and numbers only. Out: `<name>.<split>.npz` (the columns of the documents or sequences of a
split, in the order of the corpus) and `<name>.json` (counts). The counts are written last: where they stand, the
shard is done.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.alignment import Aligned, Vocabulary, align
from data_tools.columns import document_columns, sequence_columns, token_type
from data_tools.sentences import sentence_spans
from data_tools.sequences import Example, examples_of, page_random
from data_tools.tokenizer_files import load_tokenizer
from erica_dist.config import TokenizeJob
from erica_dist.errors import UserError
from erica_dist.shards.blocks import BlockColumns
from erica_dist.shards.documents import read_documents
from erica_dist.shards.tarfiles import commit, temporary_name, write_atomically

SPLITS = ("train", "validation")
BATCH = 128  # texts encoded at a time
EXAMPLES_OF_PAGE = 1_000_000  # a sequence's key is its page's key times this, plus its number


@dataclass(frozen=True)
class ShardTask:
    """One corpus shard to turn into columns: `<name>.<split>.npz` and, last, `<name>.json` with the counts."""

    shard: str
    name: str
    folder: str
    job: TokenizeJob
    vocabulary: Vocabulary


def is_validation(seed: int, title: str, share: float) -> bool:
    """Whether the page `title` is held out."""
    digest = hashlib.blake2b(f"validation {seed} {title}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


def tokenize_shard(task: ShardTask) -> dict[str, int]:
    """Write the columns of one corpus shard, a file a split, and give the counts."""
    tokenizer = load_tokenizer(task.job.tokenizer)
    backend = tokenizer.backend_tokenizer
    counts: Counter[str] = Counter({f"{task.job.kind} kept": 0})
    of_split: dict[str, list[tuple[int, Any]]] = {split: [] for split in SPLITS}
    make = _examples if task.job.kind == "sequences" else _documents
    for title, key, made in make(task, backend, tokenizer.num_special_tokens_to_add(pair=False), counts):
        held_out = is_validation(task.job.seed, title, task.job.validation_share)
        of_split["validation" if held_out else "train"].append((key, made))
        counts[f"{task.job.kind} kept"] += 1
    columns_of = sequence_columns if task.job.kind == "sequences" else document_columns
    for split, rows in of_split.items():
        if rows:
            _save(Path(task.folder, f"{task.name}.{split}.npz"), columns_of(rows, token_type(len(tokenizer))))
    write_atomically(Path(task.folder, f"{task.name}.json"), json.dumps(counts).encode())
    return dict(counts)


def _documents(task: ShardTask, backend: Any, special: int, counts: Counter[str]) -> Iterator[tuple[str, int, Aligned]]:
    samples = read_documents(task.shard)
    while batch := list(itertools.islice(samples, BATCH)):
        encodings = backend.encode_batch([document["text"] for _, document in batch], add_special_tokens=False)
        for (key, document), encoding in zip(batch, encodings, strict=True):
            counts["documents read"] += 1
            window = task.job.max_length - special
            aligned = align(document, encoding.ids, encoding.offsets, window, task.vocabulary, counts)
            if aligned:
                counts["mentions kept"] += len(aligned.mention_spans)
                counts["labels kept"] += len(aligned.relations)
                yield document["title"], key, aligned


def _examples(task: ShardTask, backend: Any, special: int, counts: Counter[str]) -> Iterator[tuple[str, int, Example]]:
    for key, page in read_documents(task.shard):
        counts["pages read"] += 1
        sentences = [
            paragraph[start:end] for paragraph in page["paragraphs"] for start, end in sentence_spans(paragraph)
        ]
        pieces = (encoding.ids for encoding in backend.encode_batch(sentences, add_special_tokens=False))
        random = page_random(task.job.seed, key)
        for number, example in enumerate(examples_of(pieces, task.job.max_length, random, counts)):
            yield page["title"], key * EXAMPLES_OF_PAGE + number, example


def _save(path: Path, columns: BlockColumns) -> None:
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            np.savez(file, **columns)  # type: ignore[arg-type]  # its stub takes the columns for its flag
            commit(file, temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_counts(part: Path) -> dict[str, int] | None:
    """The counts of a finished shard, `part` being its folder and name; None where it is not done."""
    try:
        counts: dict[str, int] = json.loads(part.with_name(f"{part.name}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return counts


def load_columns(parts: Sequence[Path], split: str) -> Iterator[BlockColumns]:
    """The columns of all finished shards that have documents in `split`, in order."""
    for part in parts:
        path = part.with_name(f"{part.name}.{split}.npz")
        if path.is_file():
            with np.load(path, allow_pickle=False) as columns:
                yield {name: columns[name] for name in columns.files}
