"""Examples -> word pieces with the pieces of both mentions -> packed batches.

A sentence is `[CLS] pieces [SEP]`, without markers around the mentions: the encoder sees text as in its pre-training.
One that is longer than the model takes is cut to a window around both mentions.

Legend: T packed tokens, B sentences, N pieces of mentions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from erica_dist.errors import UserError
from erica_dist.evaluation.readers import Example, Span
from erica_dist.stream.micro_batches import Packed


@dataclass(frozen=True)
class Sentence:
    pieces: np.ndarray  # int64, [CLS] and [SEP] included
    head: np.ndarray  # int64, positions of the head's pieces
    tail: np.ndarray
    label: int


@dataclass
class SentenceBatch:
    packed: Packed
    piece_positions_N: Tensor  # int64, pieces of all mentions: positions in T
    piece_mention_N: Tensor  # int64, rising: 2b for the head of sentence b, 2b + 1 for its tail
    labels_B: Tensor  # int64

    def to(self, device: torch.device | str) -> SentenceBatch:
        """The same on another device."""
        return SentenceBatch(
            self.packed.to(device),
            self.piece_positions_N.to(device),
            self.piece_mention_N.to(device),
            self.labels_B.to(device),
        )


def cut_sentences(
    examples: Sequence[Example], tokenizer: Any, labels: Sequence[str], max_length: int
) -> list[Sentence]:
    """Word pieces of `examples` by a fast tokenizer of transformers, labels by their place in `labels`.

    Args:
        max_length: longest sentence in pieces, special tokens included.

    Raises:
        UserError: a mention of which the tokenizer keeps nothing, or two that lie further apart than `max_length`.
    """
    number = {label: place for place, label in enumerate(labels)}
    # Truncation is ours, and so the tokenizer's warning about long texts says nothing.
    encoded = tokenizer(
        [example.text for example in examples],
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    sentences = []
    for example, ids, offsets in zip(examples, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        offsets_T2 = np.asarray(offsets, np.int64).reshape(-1, 2)
        head, tail = (_pieces_of(span, offsets_T2, example) for span in (example.head, example.tail))
        start, end = _window(len(ids), head, tail, max_length - 2, example)
        pieces = np.array([tokenizer.cls_token_id, *ids[start:end], tokenizer.sep_token_id], np.int64)
        sentences.append(Sentence(pieces, head - start + 1, tail - start + 1, number[example.label]))
    return sentences


def _pieces_of(span: Span, offsets_T2: np.ndarray, example: Example) -> np.ndarray:
    touched = (offsets_T2[:, 0] < span[1]) & (offsets_T2[:, 1] > span[0])
    if not touched.any():
        mention = example.text[slice(*span)]
        raise UserError(f"{example.place}: the tokenizer keeps nothing of the mention {mention!r}; remove the example")
    return np.flatnonzero(touched)


def _window(pieces: int, head: np.ndarray, tail: np.ndarray, room: int, example: Example) -> tuple[int, int]:
    """Piece positions [start, end) of at most `room` pieces with both mentions in the middle."""
    if pieces <= room:
        return 0, pieces
    first, last = min(head[0], tail[0]), max(head[-1], tail[-1]) + 1
    spare = room - (last - first)
    if spare < 0:
        raise UserError(
            f"{example.place}: head and tail lie {last - first} word pieces apart, the model sees {room}: "
            f"raise finetune.max_length, or remove the example"
        )
    start = int(np.clip(first - spare // 2, 0, pieces - room))
    return start, start + room


def pack(sentences: Sequence[Sentence]) -> SentenceBatch:
    """At least one sentence -> one packed batch, without padding."""
    lengths = np.array([len(sentence.pieces) for sentence in sentences])
    ends = np.cumsum(lengths)
    mentions = [
        mention + start
        for sentence, start in zip(sentences, ends - lengths, strict=True)
        for mention in (sentence.head, sentence.tail)
    ]
    ids_T = torch.from_numpy(np.concatenate([sentence.pieces for sentence in sentences]))
    packed = Packed(
        input_ids_T=ids_T,
        position_ids_T=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        token_type_ids_T=torch.zeros_like(ids_T),
        cu_seqlens=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        max_seqlen=int(lengths.max()),
    )
    return SentenceBatch(
        packed=packed,
        piece_positions_N=torch.from_numpy(np.concatenate(mentions)),
        piece_mention_N=torch.from_numpy(np.repeat(np.arange(len(mentions)), [len(m) for m in mentions])),
        labels_B=torch.tensor([sentence.label for sentence in sentences], dtype=torch.int64),
    )
