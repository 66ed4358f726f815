"""Encoders of many types from local folders: packed or padded, each equal to the plain model document by document.

What BERT, RoBERTa and ELECTRA do beyond that (both forms of packed attention, gradients) is in tests/test_models.py.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedModel

from erica_dist.config import ElectraConfig, ModelConfig
from erica_dist.errors import UserError
from erica_dist.evaluation.plan import model_folder
from erica_dist.evaluation.relation_classification import build_classifier
from erica_dist.export import export_run
from erica_dist.models import fitness
from erica_dist.models.attention import PACKED
from erica_dist.models.electra import build_electra
from erica_dist.models.encoder import build_encoder, hidden_states, mlm_logits
from erica_dist.models.states import PACKED_TYPES
from tests.synthetic import tiny_tokenizer, write_documents_folder
from tests.test_export import VOCABULARY, write_checkpoint, write_run
from tests.test_models import TOKENIZER, packed
from tests.test_training_exact import compare

SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
SHORT = {"dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 60, "max_position_embeddings": 40}
MODERN = {"pad_token_id": 0, "cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "type_vocab_size": 0}
# type -> its own settings. The windows and buckets are narrower than the sequences of the tests.
PACKED_SETTINGS: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "roberta": SMALL,
    "xlm-roberta": SMALL,
    "camembert": SMALL,
    "electra": SMALL | {"embedding_size": 8},
    "distilbert": SHORT | {"hidden_dim": 24},
    "albert": SMALL | {"embedding_size": 8},
    "data2vec-text": SMALL,
    "ernie": SMALL,
    "roberta-prelayernorm": SMALL,
    "xlm-roberta-xl": SMALL,
    "nomic_bert": SMALL,
    "gte": SMALL,
}
PADDED_SETTINGS: dict[str, dict[str, Any]] = {
    "mpnet": SMALL,
    "deberta": SMALL,
    "deberta-v2": SMALL | DEBERTA,
    "modernbert": SMALL | MODERN | {"local_attention": 4, "global_attn_every_n_layers": 2},
    "roformer": SMALL,
    "rembert": SMALL | {"input_embedding_size": 8, "output_embedding_size": 12},
    "mobilebert": SMALL | {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 60, "max_position_embeddings": 40},
    "longformer": SMALL | {"attention_window": [4, 4]},
}
ALL = PACKED_SETTINGS | PADDED_SETTINGS


def write_folder(kind: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """A random model of type `kind`, saved to `folder`; weights large enough for tokens to matter to one another."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **(ALL.get(kind, SMALL) | changes))
    model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.mul_(5)
    model.save_pretrained(folder)
    return model.eval()


def build(folder: Path, dropout: float = 0.0, max_length: int = 32) -> PreTrainedModel:
    return build_encoder(ModelConfig(init=str(folder), dropout=dropout, max_length=max_length), TOKENIZER, seed=0)


def alone(model: PreTrainedModel, part: str = "states", types: bool = False) -> torch.Tensor:
    """What transformers gives for each sequence of `packed()`, one at a time, without padding."""
    batch, rows = packed(types=types), []
    for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        inputs = {"input_ids": batch.input_ids_T[None, start:end]}
        if types:
            inputs["token_type_ids"] = batch.token_type_ids_T[None, start:end]
        rows.append(model(**inputs).logits[0] if part == "logits" else model.base_model(**inputs)[0][0])
    return torch.cat(rows)


@pytest.mark.parametrize("kind", ALL)
def test_states_logits_and_gradients_equal_the_plain_model_document_by_document(kind: str, tmp_path: Path) -> None:
    theirs = write_folder(kind, tmp_path)
    ours = build(tmp_path)
    assert (ours.config._attn_implementation == PACKED) == (kind in PACKED_SETTINGS)
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    segments = (getattr(theirs.config, "type_vocab_size", None) or 0) > 1
    states_TD = hidden_states(ours, packed(types=segments))
    expected_TD = alone(theirs, types=segments)
    torch.testing.assert_close(states_TD, expected_TD, rtol=1e-5, atol=1e-5)
    picked_K = torch.tensor([17, 0, 5, 9])  # of several sequences, not in order
    logits_KV, expected_KV = mlm_logits(ours, states_TD[picked_K]), alone(theirs, "logits", segments)[picked_K]
    torch.testing.assert_close(logits_KV, expected_KV, rtol=1e-5, atol=1e-5)

    weight_KV = torch.randn(logits_KV.shape, generator=torch.Generator().manual_seed(2))
    weight_TD = torch.randn(states_TD.shape, generator=torch.Generator().manual_seed(3))
    ((logits_KV * weight_KV).sum() + (states_TD * weight_TD).sum()).backward()
    ((expected_KV * weight_KV).sum() + (expected_TD * weight_TD).sum()).backward()
    frozen = {name for name, value in ours.named_parameters() if not value.requires_grad}
    named = {
        "roformer": {"roformer.encoder.embed_positions.weight"},  # sines, fixed in the published model
        "longformer": {name for name, _ in theirs.named_parameters() if "_global." in name},  # no token is global here
    }
    assert frozen == named.get(kind, set())
    others = dict(theirs.named_parameters())
    for name, mine in ours.named_parameters():
        if name in frozen:
            continue
        assert mine.grad is not None, name
        torch.testing.assert_close(
            mine.grad, others[name].grad, rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_every_type_that_runs_packed_is_tested_here() -> None:
    assert set(PACKED_SETTINGS) == set(PACKED_TYPES)


@pytest.mark.parametrize("kind", ["roformer", "mpnet", "deberta-v2", "modernbert"])
def test_a_type_that_is_not_listed_would_be_wrong_packed(kind: str, tmp_path: Path) -> None:
    """Why the list of packed types is one of tested names: nothing stops these from running, and wrongly."""
    theirs = write_folder(kind, tmp_path)
    ours = build(tmp_path)
    ours.config._attn_implementation = PACKED
    assert not torch.allclose(hidden_states(ours, packed()), alone(theirs), rtol=1e-2, atol=1e-2)


def test_a_head_that_fails_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    write_folder("mpnet", tmp_path)
    model = build(tmp_path)
    modules = dict(model.named_modules())
    states_TD = hidden_states(model, packed())
    before = mlm_logits(model, states_TD[:3])
    with pytest.raises(RuntimeError):
        mlm_logits(model, states_TD[:3, :5])
    assert dict(model.named_modules()) == modules
    assert torch.equal(hidden_states(model, packed()), states_TD)
    assert torch.equal(mlm_logits(model, states_TD[:3]), before)
    assert mlm_logits(model, states_TD[:0]).shape == (0, 60)


def test_a_head_that_uses_the_embeddings_of_the_encoder(tmp_path: Path) -> None:
    theirs = write_folder("deberta-v2", tmp_path, legacy=False)
    ours = build(tmp_path)
    logits = mlm_logits(ours, hidden_states(ours, packed()))
    torch.testing.assert_close(logits, alone(theirs, "logits"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ALL)
def test_dropout_is_what_the_job_says(kind: str, tmp_path: Path) -> None:
    write_folder(kind, tmp_path)
    for dropout in (0.0, 0.5):
        model = build(tmp_path, dropout)
        torch.manual_seed(3)
        first, again = hidden_states(model, packed()), hidden_states(model, packed())
        torch.manual_seed(3)
        repeated = hidden_states(model, packed())
        assert torch.equal(first, repeated)
        assert torch.equal(first, again) == (dropout == 0.0)
        probabilities = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
        assert probabilities <= {dropout}


# --------------------------------------------------------------------------------------------- what folders may hold


def test_an_electra_discriminator_gives_the_encoder_and_a_new_head_is_drawn(tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = transformers.ElectraConfig(**ALL["electra"], pad_token_id=0)
    discriminator = transformers.ElectraForPreTraining(config).eval()
    discriminator.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]
    first, second = build(tmp_path), build(tmp_path)
    torch.testing.assert_close(hidden_states(first, packed(types=False)), alone(discriminator), rtol=1e-5, atol=1e-6)
    assert isinstance(first, transformers.ElectraForMaskedLM)
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, other)  # the new head too: all ranks start alike
    assert first.generator_lm_head.weight is first.electra.embeddings.word_embeddings.weight
    assert float(first.generator_predictions.dense.weight.std()) > 0


@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet", "modernbert"])
def test_a_folder_without_any_head_gives_a_whole_encoder(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    plain = AutoModel.from_config(AutoConfig.for_model(kind, **ALL[kind])).eval()
    plain.save_pretrained(tmp_path)
    model = build(tmp_path)
    torch.testing.assert_close(hidden_states(model, packed(types=False)), alone(plain), rtol=1e-5, atol=1e-6)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_old_weight_files_are_read_as_tensors_and_never_unpickled(tmp_path: Path) -> None:
    theirs = write_folder("bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    states_TD = hidden_states(build(tmp_path), packed(types=False))
    torch.testing.assert_close(states_TD, alone(theirs), rtol=1e-5, atol=1e-5)

    touched = tmp_path / "touched"

    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (touched,)

    torch.save({**theirs.state_dict(), "more": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin holds more than tensors.*save_pretrained"):
        build(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"more": Harmful()}))
    with pytest.raises(UserError, match=r"pytorch_model.bin holds more than tensors.*save_pretrained"):
        build(tmp_path)
    assert not touched.exists()


def test_a_folder_that_names_no_padding_piece_takes_the_tokenizers(tmp_path: Path) -> None:
    theirs = write_folder("deberta-v2", tmp_path)
    _edit_config(tmp_path, pad_token_id=None)
    model = build(tmp_path)
    assert model.config.pad_token_id == TOKENIZER["pad_id"]
    torch.testing.assert_close(hidden_states(model, packed()), alone(theirs), rtol=1e-5, atol=1e-5)


def _edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("fnet", {}, r"\(type 'fnet'\) cannot be trained here: the states of a sequence depend on how far it is pad"),
        ("convbert", {"embedding_size": 16}, "the states of a sequence depend on how far it is padded"),
        ("reformer", {"axial_pos_embds": False, "attention_head_size": 8}, "not one of width 16 a token"),
        ("bart", {"d_model": 16}, "is a decoder"),
        ("bert", {"is_decoder": True}, "is a decoder"),
        ("mpnet", {"max_position_embeddings": 33}, r"max_length=32 is more than the 31 positions of .*set it to 31"),
        ("roberta", {"max_position_embeddings": 33}, "max_length=32 is more than the 31 positions"),
        ("deberta-v2", {"max_position_embeddings": 31}, "max_length=32 is more than the 31 positions"),
        ("mpnet", {"vocab_size": 59}, "knows 59 word pieces, the shards' tokenizer 60: tokenise the corpus again"),
    ],
)
def test_an_encoder_that_cannot_be_exact_is_refused(kind: str, changes: dict, text: str, tmp_path: Path) -> None:
    write_folder(kind, tmp_path, **changes)
    with pytest.raises(UserError, match=text) as caught:
        build(tmp_path)
    assert f"model.init={tmp_path}" in str(caught.value)


def test_models_that_are_no_encoders_are_refused(tmp_path: Path) -> None:
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"is of type 'gpt2', which has no masked-language-model head.*give an encoder"):
        build(tmp_path)


def test_a_head_that_needs_more_than_states_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder("mpnet", tmp_path)
    usual = transformers.MPNetForMaskedLM.forward

    def by_position(self: Any, input_ids: Any = None, **options: Any) -> Any:
        out = usual(self, input_ids, **options)
        out.logits = out.logits + torch.arange(out.logits.shape[1])[None, :, None]
        return out

    monkeypatch.setattr(transformers.MPNetForMaskedLM, "forward", by_position)
    with pytest.raises(UserError, match="head needs more than the states of the masked positions"):
        build(tmp_path)


@pytest.mark.parametrize("broken", ["causal", "absent"])
def test_a_model_whose_tokens_do_not_see_each_other_is_refused(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder("mpnet", tmp_path)
    usual = transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention.forward

    def attention(self: Any, states: torch.Tensor, mask: Any, *others: Any, **options: Any) -> Any:
        if broken == "absent":
            return (torch.zeros_like(states),)
        later = torch.full((states.shape[1],) * 2, -1e9).triu(1)
        return usual(self, states, later if mask is None else mask + later, *others, **options)

    monkeypatch.setattr(transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention, "forward", attention)
    with pytest.raises(UserError, match="its tokens do not see each other"):
        build(tmp_path)


def test_dropout_that_would_do_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder("mpnet", tmp_path)
    monkeypatch.setattr("erica_dist.models.folder.dropout_fields", lambda config: [])
    _edit_config(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with pytest.raises(UserError, match=r"model.dropout=0.3 has no effect on it \(set it to 0\)"):
        build(tmp_path, dropout=0.3)
    assert build(tmp_path, dropout=0.0).training
    _edit_config(tmp_path, hidden_dropout_prob=0.1)
    with pytest.raises(UserError, match=r"model.dropout=0.0 has no effect on it"):
        build(tmp_path, dropout=0.0)


def test_damaged_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_folder("bert", folder)
    weights = (folder / "model.safetensors").read_bytes()

    (folder / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(UserError, match=r"cannot load its weights .*: give a whole folder with model.safetensors"):
        build(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot load its weights"):
        build(folder)
    (folder / "model.safetensors").write_bytes(weights)
    _edit_config(folder, num_hidden_layers=3)
    with pytest.raises(UserError, match=r"lacks 16 weights of the encoder, such as bert.encoder.layer.2"):
        build(folder)
    _edit_config(folder, num_hidden_layers=2, intermediate_size=25)
    with pytest.raises(UserError, match="cannot load its weights"):
        build(folder)
    _edit_config(folder, model_type="own", auto_map={"AutoConfig": "own.Config"})
    (folder / "own.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(UserError, match="describes no model that transformers has without custom code"):
        build(folder)
    assert not (tmp_path / "touched").exists()
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="describes no model"):
        build(folder)


@pytest.mark.parametrize(
    ("inner", "what"),
    [("discriminator", "an exported ELECTRA pair"), ("0_Transformer", "a sentence-transformers folder, whose encoder")],
)
def test_a_model_further_in_is_named(inner: str, what: str, tmp_path: Path) -> None:
    write_folder("bert", tmp_path / inner)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"it has no config.json; it is {what}.*: give {tmp_path / inner}$"):
        build(tmp_path)
    assert build(tmp_path / inner).config.model_type == "bert"


@pytest.mark.parametrize(
    ("init", "text"),
    [
        (
            "bert-base-uncased",
            r".*, and nothing is downloaded; .*\(hf download bert-base-uncased --local-dir FOLDER\), ",
        ),
        ("google/electra-small", r".*, and nothing is downloaded; .*\(hf download google/electra-small --local-dir FO"),
        ("/models/bert", r"there is no such folder$"),
        ("./bert", r"there is no such folder$"),
        ("FILE", r"it is a file; give the folder that it lies in \(.*\), if that has a config.json$"),
    ],
)
def test_what_is_no_folder_gets_its_remedy(
    init: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    init = init.replace("FILE", str(tmp_path / "model.safetensors"))
    settings = ModelConfig(init=init, size="tiny", max_length=32)
    lack = "there is no such folder, and nothing is downloaded; give the folder that `erica-dist export` writes"
    with pytest.raises(UserError, match=f"^model.init={init} is no Hugging Face folder: {text}"):
        build_encoder(settings, TOKENIZER, seed=0)
    with pytest.raises(UserError, match=f"^model.init={init} is no exported ELECTRA pair: {lack}"):
        build_electra(settings, ElectraConfig(), TOKENIZER, seed=0)
    with pytest.raises(UserError, match=f"^finetune.model={init} is no Hugging Face folder: {text}"):
        model_folder(init)


def test_an_encoder_alone_is_no_pair(tmp_path: Path) -> None:
    write_folder("electra", tmp_path)
    settings = ModelConfig(init=str(tmp_path), size="tiny", max_length=32)
    with pytest.raises(UserError, match=r"no exported ELECTRA pair: it has no discriminator/config.json, .*; give "):
        build_electra(settings, ElectraConfig(), TOKENIZER, seed=0)


def test_the_trial_before_a_run_leaves_no_gradient_and_no_random_state(tmp_path: Path) -> None:
    write_folder("squeezebert", tmp_path, embedding_size=16, **dict.fromkeys(GROUPS, 1))
    before = torch.get_rng_state()
    model = build(tmp_path, dropout=0.2)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(value.grad is None for value in model.parameters())
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert frozen == {"transformer.pooler.dense.weight", "transformer.pooler.dense.bias"}
    assert fitness.refuse_unfit(model, str(tmp_path), 32, 0.2) == []  # what is frozen is not found again


GROUPS = ("q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups", "output_groups")


# ------------------------------------------------------------------------------------ where the encoder goes from here


@pytest.mark.parametrize("kind", ["distilbert", "albert", "mpnet", "deberta-v2", "modernbert", "camembert"])
def test_an_export_loads_in_transformers_with_the_same_states(kind: str, tmp_path: Path) -> None:
    write_folder(kind, tmp_path / "start", vocab_size=VOCABULARY)
    model = build_encoder(ModelConfig(init=str(tmp_path / "start"), dropout=0.1, max_length=32), TOKENIZER, seed=0)
    run = tmp_path / "run"
    write_run(run, "erica", {"encoder": model.config.to_dict()})
    write_checkpoint(run, 1, {"model": model}, "erica")
    export_run(run, tmp_path / "out")
    encoder = AutoModel.from_pretrained(tmp_path / "out", local_files_only=True).eval()
    expected_TD = hidden_states(model.eval(), packed(types=False))
    torch.testing.assert_close(alone(encoder), expected_TD, rtol=1e-5, atol=1e-5)
    language_model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", local_files_only=True).eval()
    torch.testing.assert_close(alone(language_model, "logits"), mlm_logits(model, expected_TD), rtol=1e-5, atol=1e-5)


def test_fine_tuning_takes_a_padded_encoder_and_names_its_own_settings(tmp_path: Path) -> None:
    theirs = write_folder("modernbert", tmp_path)
    module = build_classifier(tmp_path, 0.0, 32, TOKENIZER, labels=3, seed=0)
    torch.testing.assert_close(hidden_states(module.encoder, packed()), alone(theirs), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match=r"^finetune.max_length=41 is more than the 40 positions of finetune.model="):
        build_classifier(tmp_path, 0.0, 41, TOKENIZER, labels=3, seed=0)


@pytest.mark.distributed
def test_a_padded_encoder_under_zero_3_on_two_ranks_equals_one_plain_process(tmp_path: Path) -> None:
    """DeBERTa's newer head reads the embeddings of its encoder: they must be gathered for it."""
    documents = Path(write_documents_folder(tmp_path / "shards", documents=24, seed=5))
    # With positions in the queries alone no bias is there that attention does not depend on.
    kind = {"legacy": False, "pos_att_type": ["p2c"], "max_position_embeddings": 128}
    write_folder("deberta-v2", tmp_path / "model", vocab_size=len(tiny_tokenizer()), **kind)
    job = [f"model.init={tmp_path / 'model'}", "model.max_length=128", "model.dropout=0", "data.workers=0"]
    job += ["train.lr=1e-3", "train.clip_norm=0.5", "train.global_batch=8", "train.micro_batch=2"]
    job += ["erica.negatives=gather", "erica.temperature=0.3"]
    (tmp_path / "out").mkdir()
    compare("erica", documents, tmp_path / "out", 2, [[*job, "train.zero_stage=3"]], [job])
