"""ELECTRA's pair: a generator with a masked-language-model head and a discriminator with one logit a token.

They live in one module, so that one engine and one optimizer serve both. What is shared (Clark et al. 2020, and the
published implementation's switches):

- by default the embeddings (tokens, positions, types and their norm);
- with `untied_generator_embeddings` nothing;
- without `untied_generator` the whole encoder: generator and discriminator are then one full-size model with two heads;
- without `electra_objective` there is no discriminator: plain masked language modelling on the full-size model;
- with `uniform_generator` replacements are drawn uniformly and no generator is trained.

Legend: T packed tokens, K masked positions, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ElectraConfig as ElectraModelConfig
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from erica_dist.config import ElectraConfig, ModelConfig
from erica_dist.errors import UserError
from erica_dist.models.arithmetic import use_fast_products
from erica_dist.models.attention import PACKED
from erica_dist.models.dropout import make_dropout_cheap
from erica_dist.models.encoder import hidden_states, mlm_logits, model_size
from erica_dist.stream.micro_batches import Packed

# layers, hidden, heads, feed-forward, embedding
SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "tiny": (2, 128, 2, 512, 64),
    "small": (12, 256, 4, 1024, 128),
    "base": (12, 768, 12, 3072, 768),
    "large": (24, 1024, 16, 4096, 1024),
}
WIDTH_OF_A_HEAD = 64  # the generator's heads follow from its width, as in the published implementation


class ElectraPair(nn.Module):
    """Generator and discriminator; either may be None (see the head of the file)."""

    def __init__(self, generator: ElectraForMaskedLM | None, discriminator: ElectraForPreTraining | None) -> None:
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator

    def generator_logits(self, packed: Packed, masked_ids_T: Tensor, masked_positions_K: Tensor) -> Tensor:
        """Vocabulary logits [K, V] of the generator at the masked positions."""
        assert self.generator is not None
        states_TD = hidden_states(self.generator, packed, masked_ids_T)
        return mlm_logits(self.generator, states_TD[masked_positions_K])

    def discriminator_logits(self, packed: Packed, corrupted_ids_T: Tensor) -> Tensor:
        """One logit a token [T]; positive: this token was replaced."""
        assert self.discriminator is not None
        return self.discriminator.discriminator_predictions(hidden_states(self.discriminator, packed, corrupted_ids_T))


def build_electra(model: ModelConfig, settings: ElectraConfig, tokenizer: dict[str, Any], seed: int) -> ElectraPair:
    """The pair from scratch by `model.size`, or from an export's `discriminator/` and `generator/` at `model.init`.

    Raises:
        UserError: unknown size, a generator size that does not fit, or an `init` that is no exported pair.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        full = _discriminator_config(model, tokenizer)
        discriminator = ElectraForPreTraining(full) if settings.electra_objective else None
        if not settings.electra_objective or not settings.untied_generator:
            generator = ElectraForMaskedLM(full)
        elif settings.uniform_generator:
            generator = None
        else:
            generator = ElectraForMaskedLM(_generator_config(full, settings))
    if model.init:
        _load(discriminator, generator, model.init)
    if discriminator is not None and generator is not None:
        if not settings.untied_generator:
            generator.electra = discriminator.electra
        elif not settings.untied_generator_embeddings:
            generator.electra.embeddings = discriminator.electra.embeddings
    if generator is not None:
        # The output layer of the generator is its token embedding, whichever module owns that now.
        generator.generator_lm_head.weight = generator.electra.embeddings.word_embeddings.weight
    pair = ElectraPair(generator, discriminator)
    make_dropout_cheap(pair)
    use_fast_products(pair)
    return pair.train()


def _discriminator_config(model: ModelConfig, tokenizer: dict[str, Any]) -> ElectraModelConfig:
    layers, hidden, heads, feed_forward, embedding = model_size(model, SIZES)
    config = ElectraModelConfig(
        vocab_size=tokenizer["vocab_size"],
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=feed_forward,
        embedding_size=embedding,
        max_position_embeddings=max(512, model.max_length),
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.dropout,
        pad_token_id=tokenizer["pad_id"],
        tie_word_embeddings=True,
    )
    config._attn_implementation = PACKED
    return config


def _generator_config(full: ElectraModelConfig, settings: ElectraConfig) -> ElectraModelConfig:
    hidden = int(full.hidden_size * settings.generator_hidden_size)
    layers = int(full.num_hidden_layers * settings.generator_layers)
    heads = max(1, hidden // WIDTH_OF_A_HEAD)
    if layers < 1 or hidden < 1 or hidden % heads:
        raise UserError(
            f"electra.generator_hidden_size={settings.generator_hidden_size} and electra.generator_layers="
            f"{settings.generator_layers} give a generator of {layers} layers x {hidden} with {heads} head(s): "
            "the width must be at least 1 and divide into its heads, the layers at least 1"
        )
    values = full.to_dict()
    values.pop("model_type", None)
    values.update(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden)
    config = ElectraModelConfig(**values)
    config._attn_implementation = PACKED
    return config


def _load(discriminator: ElectraForPreTraining | None, generator: ElectraForMaskedLM | None, folder: str) -> None:
    """Weights of an exported pair into freshly built models of the same sizes."""
    for name, module in (("discriminator", discriminator), ("generator", generator)):
        if module is None:
            continue
        if not Path(folder, name, "config.json").is_file():
            lack = f"it has no {name}/config.json" if Path(folder).is_dir() else "there is no such folder"
            raise UserError(
                f"model.init={folder} is no exported ELECTRA pair: {lack}, and nothing is downloaded; give the folder "
                "that `erica-dist export` writes of an ELECTRA run"
            )
        try:
            source = type(module).from_pretrained(f"{folder}/{name}", local_files_only=True)
            module.load_state_dict(source.state_dict())
        except (OSError, RuntimeError) as error:
            raise UserError(f"model.init={folder}: cannot start the {name} from {folder}/{name}: {error}") from error
