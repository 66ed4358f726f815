"""Encoders with a masked-language-model head: any BERT, RoBERTa or ELECTRA folder of Hugging Face, or from scratch.

In: a packed micro-batch (erica_dist.stream.collate.Packed). Out: last hidden states of the real tokens, and logits of
the masked positions only (the head over 15 % of the tokens costs a seventh of the head over all).

Legend: T packed tokens, K masked positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, PreTrainedConfig, PreTrainedModel

from erica_dist.config import ModelConfig
from erica_dist.errors import UserError
from erica_dist.models.attention import PACKED
from erica_dist.models.dropout import make_dropout_cheap
from erica_dist.stream.micro_batches import Packed

# layers, hidden, heads, feed-forward
SIZES: dict[str, tuple[int, int, int, int]] = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (6, 384, 12, 1536),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}
# the families whose masked-language-model head `mlm_logits` knows
FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "electra")


def build_encoder(settings: ModelConfig, tokenizer: dict[str, Any], seed: int) -> PreTrainedModel:
    """The encoder with its MLM head, the head's output tied to the token embeddings, in float32 and training mode.

    Args:
        settings: `init` (a local Hugging Face folder) or `size`; dropout; the longest sequence.
        tokenizer: the `tokenizer` entry of the shards' manifest (vocabulary size, ids of special tokens).
        seed: of whatever is newly initialised, so that all ranks start from the same weights.

    Raises:
        UserError: no such folder or size, an unsupported family, a vocabulary or position table that is too small.
    """
    config = _configuration(settings, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.init:
            model, found = AutoModelForMaskedLM.from_pretrained(
                settings.init, config=config, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
            _refuse_missing_encoder(settings.init, found["missing_keys"])
        else:
            model = AutoModelForMaskedLM.from_config(config)
    model.tie_weights()
    make_dropout_cheap(model)
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


def _refuse_missing_encoder(folder: str, missing: set[str]) -> None:
    """A new head is fine, new encoder weights are not: the folder then holds another model than its config says."""
    lost = sorted(name for name in missing if ".embeddings." in name or ".encoder." in name)
    if lost:
        raise UserError(f"model.init={folder} lacks {len(lost)} weights of the encoder, such as {lost[0]}")


def _configuration(settings: ModelConfig, tokenizer: dict[str, Any]) -> PreTrainedConfig:
    dropout: dict[str, Any] = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout)
    if settings.init:
        if not (Path(settings.init) / "config.json").is_file():
            raise UserError(f"model.init={settings.init} is no Hugging Face folder: it has no config.json")
        config = AutoConfig.from_pretrained(settings.init, local_files_only=True, **dropout)
        if config.model_type not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise UserError(f"model.init={settings.init} is of type {config.model_type!r}; supported: {known}")
        if config.vocab_size < tokenizer["vocab_size"]:
            raise UserError(
                f"model.init={settings.init} knows {config.vocab_size} word pieces, the shards' tokenizer "
                f"{tokenizer['vocab_size']}: tokenise the corpus again with this model's tokenizer"
            )
    else:
        layers, hidden, heads, feed_forward = model_size(settings, SIZES)
        config = BertConfig(
            vocab_size=tokenizer["vocab_size"],
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=feed_forward,
            max_position_embeddings=max(512, settings.max_length),
            pad_token_id=tokenizer["pad_id"],
            **dropout,
        )
    room = config.max_position_embeddings - position_offset(config)
    if settings.max_length > room:
        raise UserError(f"model.max_length={settings.max_length} is more than the {room} positions of the model")
    config.tie_word_embeddings = True
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


def position_offset(config: PreTrainedConfig) -> int:
    """RoBERTa's position table starts after its padding index."""
    return config.pad_token_id + 1 if "roberta" in config.model_type or config.model_type == "camembert" else 0


def hidden_states(model: PreTrainedModel, packed: Packed, input_ids_T: Tensor | None = None) -> Tensor:
    """Last hidden states [T, D] of a packed micro-batch; `input_ids_T` replaces the batch's own ids."""
    base, config = model.base_model, model.config
    types_T = (
        packed.token_type_ids_T
        if getattr(config, "type_vocab_size", 0) > 1
        else torch.zeros_like(packed.token_type_ids_T)
    )
    ids_T = packed.input_ids_T if input_ids_T is None else input_ids_T
    out = base(
        input_ids=ids_T[None],
        token_type_ids=types_T[None],
        position_ids=packed.position_ids_T[None] + position_offset(config),
        cu_seqlens=packed.cu_seqlens,
        bounds=packed.cu_seqlens.tolist(),
        longest=packed.max_seqlen,
    )
    return out[0][0]


def mlm_logits(model: PreTrainedModel, states_KD: Tensor) -> Tensor:
    """Vocabulary logits [K, V] of hidden states [K, D] by the model's own MLM head."""
    head: Any = model
    if model.config.model_type == "bert":
        return head.cls(states_KD)
    if model.config.model_type == "electra":
        return head.generator_lm_head(head.generator_predictions(states_KD))
    return head.lm_head(states_KD)
