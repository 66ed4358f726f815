"""Encoders with a masked-language-model head: a Hugging Face folder of nearly any encoder type, or BERT from scratch.

From a folder: reading and refusing it is models/folder.py, trying out a type that runs padded is models/fitness.py,
running it is models/states.py. Casing, word pieces and special tokens are the tokenizer's matter, not the encoder's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, BertConfig, PreTrainedModel

from erica_dist.config import ModelConfig
from erica_dist.errors import UserError
from erica_dist.models.arithmetic import use_fast_products
from erica_dist.models.attention import PACKED
from erica_dist.models.dropout import make_dropout_cheap
from erica_dist.models.fitness import refuse_short_positions, refuse_unfit
from erica_dist.models.folder import folder_configuration, load_folder
from erica_dist.models.states import hidden_states, mlm_logits

__all__ = ["SIZES", "build_encoder", "grow_vocabulary", "hidden_states", "mlm_logits", "model_size"]

# layers, hidden, heads, feed-forward
SIZES: dict[str, tuple[int, int, int, int]] = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (6, 384, 12, 1536),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}


def build_encoder(settings: ModelConfig, tokenizer: dict[str, Any], seed: int) -> PreTrainedModel:
    """The encoder with its MLM head, in float32 and training mode; parameters that nothing depends on are frozen.

    Args:
        settings: `init` (a local Hugging Face folder) or `size`; dropout; the longest sequence.
        tokenizer: the `tokenizer` entry of the shards' manifest (vocabulary size, ids of special tokens).
        seed: of whatever is newly initialised, so that all ranks start from the same weights.

    Raises:
        UserError: no such folder or size, a model that is no encoder or not exact here, weights that are missing or
            cannot be read safely, a vocabulary or position table that is too small.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not settings.init:
            model = AutoModelForMaskedLM.from_config(_own_configuration(settings, tokenizer))
            model.tie_weights()
            return _made_fast(model)
        config = folder_configuration(settings.init, settings.dropout, tokenizer)
        model = load_folder(settings.init, config)
        model.tie_weights()
        refuse_short_positions(model, settings.init, settings.max_length)
        if config._attn_implementation != PACKED:
            refuse_unfit(model, settings.init, settings.max_length, settings.dropout)
    return _made_fast(model)


def _made_fast(model: PreTrainedModel) -> PreTrainedModel:
    make_dropout_cheap(model)
    use_fast_products(model)
    return model.train()


def grow_vocabulary(model: PreTrainedModel, size: int, seed: int) -> None:
    """Room for `size` word pieces in the token embeddings and the head tied to them, where there is less.

    The rows that are there stay as they are; the new ones follow from `seed`, so that all ranks start alike.
    """
    if model.config.vocab_size < size:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model.resize_token_embeddings(size, mean_resizing=False)
        model.tie_weights()


def _own_configuration(settings: ModelConfig, tokenizer: dict[str, Any]) -> BertConfig:
    layers, hidden, heads, feed_forward = model_size(settings, SIZES)
    config = BertConfig(
        vocab_size=tokenizer["vocab_size"],
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=feed_forward,
        max_position_embeddings=max(512, settings.max_length),
        pad_token_id=tokenizer["pad_id"],
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        tie_word_embeddings=True,
    )
    config._attn_implementation = PACKED
    return config


def model_size(settings: ModelConfig, sizes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The numbers of `model.size`, each replaced by its own setting where that is not 0.

    Raises:
        UserError: no such size, or a hidden size that does not divide into its heads.
    """
    if settings.size not in sizes:
        raise UserError(f"model.size={settings.size!r} is not one of {', '.join(sizes)}")
    named = sizes[settings.size]
    own = (settings.layers, settings.hidden_size, settings.heads, settings.feed_forward, settings.embedding_size)
    numbers = tuple(mine or usual for mine, usual in zip(own, named, strict=False))
    if numbers[1] % numbers[2]:
        raise UserError(f"a hidden size of {numbers[1]} does not divide into {numbers[2]} heads: set model.heads")
    return numbers
