"""Packed encoders against transformers' own padded ones; ELECTRA's sharing; sizes and refusals."""

import dataclasses

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, ElectraForMaskedLM, RobertaConfig, RobertaForMaskedLM
from transformers import ElectraConfig as ElectraModelConfig

from erica_dist.config import ElectraConfig, ModelConfig
from erica_dist.errors import UserError
from erica_dist.models import attention
from erica_dist.models.electra import build_electra
from erica_dist.models.encoder import build_encoder, hidden_states, mlm_logits
from erica_dist.stream.micro_batches import Packed

TOKENIZER = {"vocab_size": 60, "pad_id": 0, "cls_id": 1, "sep_id": 2, "mask_id": 3}
LENGTHS = [5, 1, 9, 3]


def packed(lengths: list[int] = LENGTHS, types: bool = True) -> Packed:
    ids = [torch.randint(4, 60, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]
    half = [(torch.arange(n) >= n // 2).long() if types else torch.zeros(n).long() for n in lengths]
    return Packed(
        input_ids_T=torch.cat(ids),
        position_ids_T=torch.cat([torch.arange(n) for n in lengths]),
        token_type_ids_T=torch.cat(half),
        cu_seqlens=torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32),
        max_seqlen=max(lengths),
    )


def padded(batch: Packed, pad: int) -> dict[str, torch.Tensor]:
    rows = list(zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True))
    ids = torch.full((len(rows), batch.max_seqlen), pad)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, (start, end) in enumerate(rows):
        ids[i, : end - start] = batch.input_ids_T[start:end]
        types[i, : end - start] = batch.token_type_ids_T[start:end]
        mask[i, : end - start] = 1
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


SMALL = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
FAMILIES = {
    "bert": (BertForMaskedLM, BertConfig(**SMALL, pad_token_id=0, max_position_embeddings=32)),
    "roberta": (
        RobertaForMaskedLM,
        RobertaConfig(**SMALL, pad_token_id=1, type_vocab_size=1, max_position_embeddings=40),
    ),
    "electra": (ElectraForMaskedLM, ElectraModelConfig(**SMALL, embedding_size=8, max_position_embeddings=32)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["by_sequence", "padded"])
def test_packed_states_logits_and_gradients_equal_padded_ones(family, form, tmp_path, monkeypatch) -> None:
    if form == "padded":
        monkeypatch.setattr(
            attention,
            "attend_by_sequence",
            lambda q, k, v, bounds, scale, dropout: attention.attend_padded(
                q, k, v, torch.tensor(bounds), max(LENGTHS), scale, dropout
            ),
        )
    model_class, configuration = FAMILIES[family]
    torch.manual_seed(1)
    configuration.hidden_dropout_prob = configuration.attention_probs_dropout_prob = 0.0
    theirs = model_class(configuration)
    theirs.save_pretrained(tmp_path)
    ours = build_encoder(ModelConfig(init=str(tmp_path), dropout=0.0, max_length=32), TOKENIZER, seed=0)

    batch = packed(types=family != "roberta")
    inputs = padded(batch, pad=configuration.pad_token_id)
    if family == "roberta":
        inputs.pop("token_type_ids")
    real = inputs["attention_mask"].bool()
    expected = theirs.base_model(**inputs)[0][real]
    states = hidden_states(ours, batch)
    torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-6)
    logits = theirs(**inputs).logits[real]
    torch.testing.assert_close(mlm_logits(ours, states), logits, rtol=1e-5, atol=1e-5)

    weight = torch.randn_like(logits)
    (logits * weight).sum().backward()
    (mlm_logits(ours, states) * weight).sum().backward()
    for (name, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad, other.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_neighbours_in_the_pack_do_not_see_each_other() -> None:
    model = build_encoder(ModelConfig(size="tiny", dropout=0.0), TOKENIZER, seed=3)
    batch = packed()
    before = hidden_states(model, batch)
    changed = dataclasses.replace(batch, input_ids_T=batch.input_ids_T.clone())
    changed.input_ids_T[6:15] = 7  # the third sequence
    after = hidden_states(model, changed)
    assert torch.equal(before[:6], after[:6])
    assert torch.equal(before[15:], after[15:])
    assert not torch.allclose(before[6:15], after[6:15])


def test_dropout_drops_in_attention_and_repeats_with_the_seed() -> None:
    model = build_encoder(ModelConfig(size="tiny", dropout=0.3), TOKENIZER, seed=3)
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(hidden_states(model, packed()))
    assert torch.equal(runs[0], runs[1])
    assert not torch.allclose(runs[0], runs[2])
    query = torch.randn(1, 2, 4, 8)
    torch.manual_seed(0)
    plain = attention.attend_by_sequence(query, query, query, [0, 4], 0.3, 0.0)
    dropped = torch.stack([attention.attend_by_sequence(query, query, query, [0, 4], 0.3, 0.5) for _ in range(3000)])
    torch.testing.assert_close(dropped.mean(0), plain, rtol=0, atol=0.1)


def test_the_mlm_head_is_tied_and_all_ranks_start_alike() -> None:
    first, second = (build_encoder(ModelConfig(size="tiny"), TOKENIZER, seed=9) for _ in range(2))
    assert first.get_output_embeddings().weight is first.get_input_embeddings().weight
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (ModelConfig(size="huge"), "model.size='huge' is not one of tiny"),
        (ModelConfig(init="/nowhere"), "/nowhere is no Hugging Face folder"),
    ],
)
def test_what_cannot_be_built_is_refused(settings: ModelConfig, text: str) -> None:
    with pytest.raises(UserError, match=text):
        build_encoder(settings, TOKENIZER, seed=0)


def test_a_vocabulary_or_a_position_table_that_is_too_small_is_refused(tmp_path) -> None:
    BertForMaskedLM(FAMILIES["bert"][1]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="knows 60 word pieces"):
        build_encoder(ModelConfig(init=str(tmp_path), max_length=32), TOKENIZER | {"vocab_size": 61}, seed=0)
    with pytest.raises(UserError, match="more than the 32 positions"):
        build_encoder(ModelConfig(init=str(tmp_path), max_length=33), TOKENIZER, seed=0)


def test_each_number_of_a_size_can_be_set() -> None:
    settings = ModelConfig(size="tiny", layers=1, hidden_size=48, heads=3, feed_forward=50)
    config = build_encoder(settings, TOKENIZER, seed=0).config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size) == (
        1,
        48,
        3,
        50,
    )
    pair = build_electra(ModelConfig(size="tiny", embedding_size=24), ElectraConfig(), TOKENIZER, seed=0)
    assert pair.discriminator.config.embedding_size == 24
    assert pair.discriminator.config.hidden_size == 128
    with pytest.raises(UserError, match="hidden size of 51 does not divide into 2 heads"):
        build_encoder(ModelConfig(size="tiny", hidden_size=51), TOKENIZER, seed=0)


def electra(**switches) -> tuple:
    pair = build_electra(ModelConfig(size="tiny", dropout=0.0), ElectraConfig(**switches), TOKENIZER, seed=2)
    return pair.generator, pair.discriminator


def test_electra_shares_embeddings_by_default() -> None:
    generator, discriminator = electra(generator_hidden_size=0.5)
    assert generator.electra.embeddings is discriminator.electra.embeddings
    assert generator.generator_lm_head.weight is discriminator.electra.embeddings.word_embeddings.weight
    assert generator.config.hidden_size == 64
    assert generator.electra.encoder is not discriminator.electra.encoder


def test_electra_switches() -> None:
    generator, discriminator = electra(untied_generator_embeddings=True)
    assert (
        generator.electra.embeddings.word_embeddings.weight
        is not discriminator.electra.embeddings.word_embeddings.weight
    )
    assert generator.generator_lm_head.weight is generator.electra.embeddings.word_embeddings.weight
    generator, discriminator = electra(untied_generator=False)
    assert generator.electra is discriminator.electra
    assert electra(uniform_generator=True)[0] is None
    generator, discriminator = electra(electra_objective=False)
    assert discriminator is None
    assert generator.config.hidden_size == 128
    with pytest.raises(UserError, match="generator_layers"):
        electra(generator_layers=0.1)
