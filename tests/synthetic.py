"""Small training shard folders made from nothing, for the tests of every room.

A toy world of named entities and true facts is drawn from the seed; documents are filler words with entity names
between them, labelled with the facts that hold. The tokenizer is a real WordPiece tokenizer of a few hundred words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from erica_dist.shards.blocks import BlockColumns, write_training_shard
from erica_dist.shards.index import write_split_index
from erica_dist.shards.manifest import TRAINING_SHARDS, read_manifest, shards_fingerprint, write_manifest
from erica_dist.shards.tarfiles import sha256_file
from erica_dist.shards.tokenizers import tokenizer_record

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RELATIONS = [("P17", "country"), ("P19", "place of birth"), ("P36", "capital"), ("P50", "author"), ("P106", "work")]
FILLERS = [f"{a}{b}" for a in ("ba", "do", "fi", "ku", "le", "mo", "nu", "ra", "si", "ti") for b in "bdklmnprst"]
STEMS = [f"{a}{b}" for a in ("Zan", "Vor", "Quel", "Yst", "Hax") for b in ("ia", "on", "um", "eth")]
ENTITIES = 40


def tiny_tokenizer(max_length: int = 128) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer whose words are the fillers, the entities' stems and endings, and the relations' names."""
    words = sorted({word for _, name in RELATIONS for word in name.split()})
    pieces = [*SPECIAL, *FILLERS, *[stem.lower() for stem in STEMS], "##a", "##b", "##c", *words, ".", ","]
    tokenizer = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def write_documents_folder(
    path: str | Path,
    documents: int = 96,
    seed: int = 0,
    validation: int = 16,
    max_length: int = 64,
    block_documents: int = 16,
    blocks_per_shard: int = 2,
    bare: float = 0.0,
) -> Path:
    """A folder of kind "documents" with `documents` training and `validation` held-out documents.

    `bare` is the share of documents whose pairs all hold some relation that has no label: none takes part in anything.
    """
    random = np.random.default_rng(seed)
    tokenizer = tiny_tokenizer(max_length)
    names = [f"{STEMS[i % len(STEMS)]}{'abc'[i // len(STEMS) % 3]}" for i in range(ENTITIES)]
    pieces = [tokenizer.encode(name, add_special_tokens=False) for name in names]
    fillers = np.array(tokenizer.convert_tokens_to_ids(FILLERS))
    facts = _facts(random)
    views = [_document(random, key, pieces, fillers, facts, max_length - 2) for key in range(documents + validation)]
    for view in views:
        if bare and random.random() < bare:
            entities = range(len(view["entity_hash"]))
            view |= {"relations": [], "barred": [(h, t) for h in entities for t in entities if h != t]}
    relations = [
        {"id": number, "name": name, "pieces": tokenizer.encode(name, add_special_tokens=False)}
        for number, name in RELATIONS
    ]
    groups = {"train": views[:documents], "validation": views[documents:]}
    return _write_folder(
        Path(path), "documents", tokenizer, max_length, relations, groups, block_documents, blocks_per_shard
    )


def write_sequences_folder(
    path: str | Path,
    sequences: int = 96,
    seed: int = 0,
    validation: int = 16,
    max_length: int = 32,
    block_documents: int = 16,
    blocks_per_shard: int = 2,
) -> Path:
    """A folder of kind "sequences": words follow one another by a fixed rule with some noise, so they can be learnt."""
    random = np.random.default_rng(seed)
    tokenizer = tiny_tokenizer(max_length)
    fillers = np.array(tokenizer.convert_tokens_to_ids(FILLERS))
    samples = []
    for key in range(sequences + validation):
        two = bool(random.random() < 0.8)
        length = int(random.integers(max_length // 2, max_length - 3 + 1))
        steps = np.where(random.random(length) < 0.9, 7, random.integers(0, len(fillers), length))
        tokens = fillers[np.cumsum(steps) % len(fillers)]
        samples.append({"document_key": key, "tokens": tokens, "segment_split": length // 2 if two else 0})
    groups = {"train": samples[:sequences], "validation": samples[sequences:]}
    return _write_folder(Path(path), "sequences", tokenizer, max_length, [], groups, block_documents, blocks_per_shard)


def _facts(random: np.random.Generator) -> dict[tuple[int, int], list[int]]:
    """True facts of the toy world: relation r leads from entities of one class to entities of another."""
    facts: dict[tuple[int, int], list[int]] = {}
    for head in range(ENTITIES):
        for tail in range(ENTITIES):
            held = [r for r in range(len(RELATIONS)) if (head + r) % 3 == tail % 3 and random.random() < 0.5]
            if head != tail and held:
                facts[head, tail] = held
    return facts


def _document(
    random: np.random.Generator,
    key: int,
    pieces: list[list[int]],
    fillers: np.ndarray,
    facts: dict[tuple[int, int], list[int]],
    room: int,
) -> dict[str, Any]:
    while True:
        chosen = random.choice(ENTITIES, int(random.integers(3, 7)), replace=False).tolist()
        labels = [
            (h, t, r)
            for h, head in enumerate(chosen)
            for t, tail in enumerate(chosen)
            for r in facts.get((head, tail), [])
        ]
        if labels:
            break
    order = [*range(len(chosen)), *random.integers(0, len(chosen), int(random.integers(0, 4))).tolist()]
    tokens: list[int] = []
    spans, owners, sentences = [], [], []
    for sentence, entity in enumerate(order):
        name = pieces[chosen[entity]]
        gap = fillers[random.integers(0, len(fillers), int(random.integers(0, 4)))].tolist()
        start = len(tokens) + len(gap)
        if start + len(name) > room:
            break
        tokens += gap + name
        spans.append((start, start + len(name)))
        owners.append(entity)
        sentences.append(sentence // 3)
    return {
        "document_key": key,
        "tokens": tokens,
        "mention_spans": spans,
        "mention_entity": owners,
        "mention_sentence": sentences,
        "entity_hash": [
            int.from_bytes(hashlib.sha256(f"Q{number}".encode()).digest()[:8], "little") for number in chosen
        ],
        "entity_type": [number % 5 for number in chosen],
        "relations": sorted(labels),
        "barred": [],
    }


RAGGED = {
    "tokens": ("token_offsets", "<u2", 0),
    "mention_spans": ("mention_offsets", "<i4", 2),
    "mention_entity": ("mention_offsets", "<i4", 0),
    "mention_sentence": ("mention_offsets", "<i4", 0),
    "entity_hash": ("entity_offsets", "<u8", 0),
    "entity_type": ("entity_offsets", "|u1", 0),
    "relations": ("relation_offsets", "<i4", 3),
    "barred": ("barred_offsets", "<i4", 2),
}


def pack_block(samples: list[dict[str, Any]]) -> BlockColumns:
    """Documents (or sequences) as plain lists -> the columns of one block."""
    columns: BlockColumns = {"document_key": np.array([sample["document_key"] for sample in samples], "<u8")}
    for name, (offsets, dtype, width) in RAGGED.items():
        if name not in samples[0]:
            continue
        rows = [np.asarray(sample[name], dtype).reshape((-1, width) if width else (-1,)) for sample in samples]
        columns[name] = np.concatenate(rows)
        columns[offsets] = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype("<i8")
    if "segment_split" in samples[0]:
        columns["segment_split"] = np.array([sample["segment_split"] for sample in samples], "<i4")
    return columns


def _write_folder(
    path: Path,
    kind: str,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    relations: list[dict[str, Any]],
    groups: dict[str, list[dict[str, Any]]],
    block_documents: int,
    blocks_per_shard: int,
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(path / "tokenizer")
    shards = []
    for split, samples in groups.items():
        per_shard = block_documents * blocks_per_shard
        for number, first in enumerate(range(0, len(samples), per_shard)):
            blocks = _blocks(samples[first : first + per_shard], block_documents)
            shards.append(write_training_shard(path, f"{split}-{number:05d}", split, blocks))
    settings = {"block_documents": block_documents, "blocks_per_shard": blocks_per_shard, "max_length": max_length}
    write_manifest(
        path,
        {
            "format": TRAINING_SHARDS,
            "version": 1,
            "kind": kind,
            "tool_version": "0",
            "settings": settings,
            "corpus_fingerprint": "synthetic",
            "counts": {},
            "tokenizer": tokenizer_record(tokenizer, max_length),
            "relations": relations,
            "shards": shards,
            "fingerprint": shards_fingerprint(settings, shards),
            "complete": True,
        },
    )
    return path


def _blocks(samples: list[dict[str, Any]], size: int) -> Iterator[BlockColumns]:
    for first in range(0, len(samples), size):
        yield pack_block(samples[first : first + size])


def compile_indices(folder: Path) -> None:
    """What `erica-dist tokenize` adds: compiled indices, and the tokenizer's files with their hashes."""
    manifest = read_manifest(folder)
    for split in {shard["split"] for shard in manifest["shards"]}:
        shards = [shard for shard in manifest["shards"] if shard["split"] == split]
        manifest.setdefault("indices", {})[split] = write_split_index(folder, split, shards, manifest["kind"])
    files = sorted(path for path in (folder / "tokenizer").iterdir() if path.is_file())
    manifest["tokenizer_files"] = {
        path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size} for path in files
    }
    write_manifest(folder, manifest)
