"""A local Hugging Face folder -> configuration and weights of an encoder with MLM head, or a refusal with its remedy.

No code of the folder runs: no custom modelling code (`auto_map`), no pickled objects beside tensors.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from erica_dist.errors import UserError
from erica_dist.models.attention import PACKED
from erica_dist.models.states import PACKED_TYPES

# folders that hold a model further in: where, and what they are
_INSIDE = {
    "discriminator": "it is an exported ELECTRA pair",
    "0_Transformer": "it is a sentence-transformers folder, whose encoder lies further in",
}
# parts of the names of dropouts in heads that are not used here
_OF_OTHER_HEADS = ("classif", "cls_", "qa_", "summary", "pooler", "lora")
# what transformers, torch and safetensors raise on a folder that does not fit its configuration or is damaged
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, AssertionError, AttributeError, SafetensorError)


def folder_configuration(folder: str, dropout: float, tokenizer: dict[str, Any]) -> PreTrainedConfig:
    """The configuration in `folder` with our dropout and form of attention.

    Args:
        tokenizer: the `tokenizer` entry of the shards' manifest.

    Raises:
        UserError: no configuration, no encoder with MLM head in transformers, or a vocabulary that is too small.
    """
    place = f"model.init={folder}"
    if not (Path(folder) / "config.json").is_file():
        raise UserError(f"{place} is no Hugging Face folder: {why_no_folder(folder)}")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of a damaged file transformers raises whatever its parsers do
        raise UserError(
            f"{place}: its config.json describes no model that transformers has without custom code "
            f"({str(error).strip().splitlines()[0]}): give the folder of a model whose type transformers knows"
        ) from error
    _refuse_other_models(place, config)
    if config.vocab_size < tokenizer["vocab_size"]:
        raise UserError(
            f"{place} knows {config.vocab_size} word pieces, the shards' tokenizer "
            f"{tokenizer['vocab_size']}: tokenise the corpus again with this model's tokenizer"
        )
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer["pad_id"]
    for name in dropout_fields(config):
        # Layers left out at random would have ranks wait for weights that others do not gather.
        setattr(config, name, 0.0 if name == "layerdrop" else dropout)
    if config.model_type in PACKED_TYPES:
        config.tie_word_embeddings = True
        config._attn_implementation = PACKED
    else:
        model_class: Any = MODEL_FOR_MASKED_LM_MAPPING[type(config)]
        config._attn_implementation = "sdpa" if model_class._supports_sdpa else "eager"
    return config


def why_no_folder(folder: str) -> str:
    """What is there in place of a Hugging Face folder, and the remedy."""
    path = Path(folder)
    if path.is_dir():
        for name, what in _INSIDE.items():
            if (path / name / "config.json").is_file():
                return f"it has no config.json; {what}: give {path / name}"
        return "it has no config.json"
    if path.exists():
        return f"it is a file; give the folder that it lies in ({path.parent}), if that has a config.json"
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", folder):  # may be a name on the hub
        return (
            "there is no such folder, and nothing is downloaded; a model of the Hugging Face hub is saved once where "
            f"there is a network (hf download {folder} --local-dir FOLDER), then give that folder"
        )
    return "there is no such folder"


def _refuse_other_models(place: str, config: PreTrainedConfig) -> None:
    kind = config.model_type
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(
            f"{place} is of type {kind!r}, which has no masked-language-model head in transformers: give an encoder, "
            "such as BERT, RoBERTa, ELECTRA, DeBERTa or ModernBERT"
        )
    if config.is_encoder_decoder or getattr(config, "is_decoder", False):
        raise UserError(
            f"{place} is a decoder (type {kind!r}), its tokens do not see all others: give an encoder, such as BERT"
        )
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise UserError(f"{place} (type {kind!r}) has no vocabulary of its own: give a text encoder, such as BERT")


def dropout_fields(config: PreTrainedConfig) -> list[str]:
    """The settings of `config` that are dropout in the encoder or its MLM head; their names differ between types."""
    return [
        name
        for name, value in config.to_dict().items()
        if ("dropout" in name or name.endswith("_pdrop") or name == "layerdrop")
        and type(value) in (int, float)
        and not any(part in name for part in _OF_OTHER_HEADS)
    ]


def load_folder(folder: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The model with the weights of `folder` in float32; an MLM head that is not there is newly drawn.

    Raises:
        UserError: no weights, weights that can only be read by running their pickle, that do not fit `config.json`, or
            that lack a part of the encoder.
    """
    place = f"model.init={folder}"
    try:
        model, found = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            weights_only=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{place}: its pytorch_model.bin holds more than tensors, or is damaged, and is not unpickled; where you "
            "trust it, load it with transformers and write it with save_pretrained (model.safetensors)"
        ) from error
    except _UNREADABLE as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{place}: cannot load its weights ({reason[0]}): give a whole folder with model.safetensors, as "
            "save_pretrained writes it"
        ) from error
    # A new head is fine, new encoder weights are not: the folder then holds another model than its config says.
    inside = f"{model.base_model_prefix}."
    lost = sorted(name for name in found["missing_keys"] if name.startswith(inside) and ".pooler." not in name)
    if lost:
        raise UserError(
            f"{place} lacks {len(lost)} weights of the encoder, such as {lost[0]}: its weights are of another model "
            "than its config.json describes, give the folder that save_pretrained wrote"
        )
    # Loading makes all parameters trainable, also tables of sines that the model's own code fixes.
    with torch.device("meta"):
        fresh = AutoModelForMaskedLM.from_config(config)
    for name, value in fresh.named_parameters():
        if not value.requires_grad:
            model.get_parameter(name).requires_grad_(False)
    return model
