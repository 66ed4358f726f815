"""Running an encoder: a packed micro-batch -> hidden states of its real tokens; hidden states -> vocabulary logits.

Two forms, chosen when the encoder is built:

- packed: one row of real tokens, borders given to attention (models/attention.py). For the model types in
  `PACKED_TYPES` alone, each tested against the plain model: a type that lets tokens meet elsewhere (relative positions,
  windows, convolutions) would see its neighbours in the pack, and nothing would tell.
- padded: [B, longest] with a mask, as transformers runs any encoder, and the real tokens taken out. For all others.

The logits are those of the model's own head. Its forward runs on a shallow copy of the model in which the encoder is
replaced by one that gives the states at hand, so the head of any type costs the masked positions only, the model itself
is never changed, and each submodule is called, as ZeRO 3 needs it to gather weights.

Legend: T packed tokens, B sequences, S longest sequence, K masked positions, D width, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from erica_dist.models.attention import PACKED
from erica_dist.stream.micro_batches import Packed

PACKED_TYPES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "electra",
    "distilbert",
    "albert",
    "data2vec-text",
    "ernie",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
    "nomic_bert",
    "gte",
)


def hidden_states(model: PreTrainedModel, packed: Packed, input_ids_T: Tensor | None = None) -> Tensor:
    """Last hidden states [T, D] of a packed micro-batch; `input_ids_T` replaces the batch's own ids."""
    base = encoder_of(model)
    ids_T = packed.input_ids_T if input_ids_T is None else input_ids_T
    types_T = packed.token_type_ids_T if _tells_segments(base) else None
    if base.config._attn_implementation != PACKED:
        return _padded_states(base, packed, ids_T, types_T)
    out = base(
        input_ids=ids_T[None],
        position_ids=packed.position_ids_T[None] + position_offset(base),
        cu_seqlens=packed.cu_seqlens,
        bounds=packed.cu_seqlens.tolist(),
        longest=packed.max_seqlen,
        **({} if types_T is None else {"token_type_ids": types_T[None]}),
    )
    return out[0][0]


def encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head; of a model that has none, itself."""
    return cast(PreTrainedModel, model.base_model)


def _padded_states(base: PreTrainedModel, packed: Packed, ids_T: Tensor, types_T: Tensor | None) -> Tensor:
    starts_B, lengths_B = packed.cu_seqlens[:-1].long(), packed.cu_seqlens.diff().long()
    # The number of tokens is given so that a GPU need not be asked for it.
    row_T = torch.repeat_interleave(lengths_B, output_size=len(ids_T))
    column_T = torch.arange(len(ids_T), device=ids_T.device) - starts_B[row_T]

    def pad(value_T: Tensor, filler: int) -> Tensor:
        padded_BS = value_T.new_full((len(lengths_B), packed.max_seqlen), filler)
        padded_BS[row_T, column_T] = value_T
        return padded_BS

    # Positions are left to the model: some count them from the padding piece, some have none.
    inputs = {"input_ids": pad(ids_T, base.config.pad_token_id), "attention_mask": pad(torch.ones_like(ids_T), 0)}
    if types_T is not None:
        inputs["token_type_ids"] = pad(types_T, 0)
    return base(**inputs)[0][row_T, column_T]


def _tells_segments(base: PreTrainedModel) -> bool:
    """Whether the model has embeddings for the two parts of a sequence; the [SEP] between them is there either way."""
    known = getattr(base.config, "type_vocab_size", None) or 0
    return known > 1 and "token_type_ids" in inspect.signature(base.forward).parameters


def position_offset(base: PreTrainedModel) -> int:
    """The position table of RoBERTa and its kin starts after their padding index."""
    table = getattr(getattr(base, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1


class _GivenOutput(BaseModelOutput):
    """Whatever else a head's forward passes on (attentions, states of entities) is absent."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenStates(nn.Module):
    """Stands in for `base` and gives states that are known; some heads ask the encoder for its embeddings."""

    def __init__(self, base: PreTrainedModel, states_KD: Tensor) -> None:
        super().__init__()
        # in a tuple: `base` is no submodule of this
        self._given = (base, states_KD)

    def forward(self, *_: Any, **__: Any) -> _GivenOutput:
        return _GivenOutput(last_hidden_state=self._given[1][None])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_given"][0], name)


def mlm_logits(model: PreTrainedModel, states_KD: Tensor) -> Tensor:
    """Vocabulary logits [K, V] of hidden states [K, D] by the model's own MLM head."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _GivenStates(encoder_of(model), states_KD)}
    return type(model).forward(head, return_dict=True).logits[0]
