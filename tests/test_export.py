"""Exports: what `from_pretrained` gives equals what was trained; nothing half-written; bad runs are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    RobertaConfig,
    RobertaForMaskedLM,
)

from erica_dist.errors import UserError
from erica_dist.export import export_run
from erica_dist.shards.manifest import read_manifest
from tests.synthetic import tiny_tokenizer, write_documents_folder

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VOCABULARY = len(tiny_tokenizer())


def bert() -> BertForMaskedLM:
    torch.manual_seed(1)
    return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **SMALL)).eval()


def electra_pair() -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
    """A generator of half the width that shares its embeddings with the discriminator."""
    torch.manual_seed(2)
    common = {"vocab_size": VOCABULARY, "embedding_size": 8, "max_position_embeddings": 64}
    discriminator = ElectraForPreTraining(ElectraConfig(**common, **SMALL)).eval()
    generator = ElectraForMaskedLM(
        ElectraConfig(**common, **SMALL | {"hidden_size": 8, "num_attention_heads": 1})
    ).eval()
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = generator.electra.embeddings.word_embeddings.weight
    return generator, discriminator


def write_checkpoint(run: Path, step: int, modules: dict[str, torch.nn.Module], job: str, shards: str = "") -> Path:
    """A checkpoint as the trainer leaves it: every weight once, the names of tied ones in state.json."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    (folder / "weights").mkdir(parents=True)
    stored: dict[str, torch.Tensor] = {}
    tied, names = {}, {}
    for name, parameter in torch.nn.ModuleDict(modules).named_parameters(remove_duplicate=False):
        if id(parameter) in names:
            tied[name] = names[id(parameter)]
        else:
            names[id(parameter)] = name
            stored[name] = parameter.detach().clone()
    save_file(stored, folder / "weights" / "model.safetensors")
    state = {"step": step, "job": job, "shards": shards, "tied": tied, "complete": True}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def write_run(run: Path, job: str, models: dict[str, Any], settings: dict[str, Any] | None = None) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "model_config.json").write_text(json.dumps({"job": job, **models}))
    (run / "config.yaml").write_text(yaml.safe_dump(settings or {"train": {"lr": 1e-4}}))
    tiny_tokenizer().save_pretrained(run / "tokenizer")
    # A tokenizer's folder may hold the configuration of the model that it came with: it must not become the export's
    (run / "tokenizer" / "config.json").write_text('{"model_type": "bert", "hidden_size": 999}')


@pytest.fixture
def erica_run(tmp_path: Path) -> Path:
    run = tmp_path / "my-run"
    model = bert()
    write_run(run, "erica", {"encoder": model.config.to_dict()})
    write_checkpoint(run, 60, {"model": model}, "erica")
    return run


@pytest.fixture
def electra_run(tmp_path: Path) -> Path:
    run = tmp_path / "pair"
    generator, discriminator = electra_pair()
    configs = {"generator": generator.config.to_dict(), "discriminator": discriminator.config.to_dict()}
    write_run(run, "electra", configs)
    write_checkpoint(run, 7, {"generator": generator, "discriminator": discriminator}, "electra")
    return run


def inputs() -> torch.Tensor:
    return torch.tensor([[2, 10, 11, 12, 13, 3]])


def test_erica_loads_as_encoder_and_as_language_model(erica_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    export_run(erica_run, out)
    trained = bert()
    again = AutoModelForMaskedLM.from_pretrained(out, local_files_only=True)
    assert isinstance(again, BertForMaskedLM)
    assert torch.equal(again(inputs()).logits, trained(inputs()).logits)
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight
    encoder = AutoModel.from_pretrained(out, local_files_only=True).eval()
    assert torch.equal(encoder(inputs()).last_hidden_state, trained.bert(inputs()).last_hidden_state)
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert tokenizer("bab dom.").input_ids == tiny_tokenizer()("bab dom.").input_ids
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert json.loads((out / "export.json").read_text())["step"] == 60


def test_another_family_exports_alike(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = RobertaForMaskedLM(RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=66, **SMALL)).eval()
    run = tmp_path / "run"
    write_run(run, "erica", {"encoder": model.config.to_dict()})
    write_checkpoint(run, 1, {"model": model}, "erica")
    export_run(run, tmp_path / "out")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", local_files_only=True)
    assert isinstance(again, RobertaForMaskedLM)
    assert torch.equal(again(inputs()).logits, model(inputs()).logits)


def test_electra_parts_are_whole_in_themselves(electra_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_run(electra_run, out)
    generator, discriminator = electra_pair()
    (out / "generator").rename(tmp_path / "alone")  # without its sister
    found_generator = ElectraForMaskedLM.from_pretrained(tmp_path / "alone", local_files_only=True)
    found = ElectraForPreTraining.from_pretrained(out / "discriminator", local_files_only=True)
    assert torch.equal(found_generator(inputs()).logits, generator(inputs()).logits)
    assert torch.equal(found(inputs()).logits, discriminator(inputs()).logits)
    embeddings = found_generator.electra.embeddings.word_embeddings.weight
    assert found_generator.generator_lm_head.weight is embeddings
    assert torch.equal(embeddings, found.electra.embeddings.word_embeddings.weight)
    for folder in (tmp_path / "alone", out / "discriminator"):
        assert len(AutoTokenizer.from_pretrained(folder, local_files_only=True)) == VOCABULARY


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_a_pair_with_one_part_only(tmp_path: Path, part: str) -> None:
    model = dict(zip(("generator", "discriminator"), electra_pair(), strict=True))[part]
    write_run(tmp_path / "run", "electra", {part: model.config.to_dict()})
    write_checkpoint(tmp_path / "run", 1, {part: model}, "electra")
    export_run(tmp_path / "run", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "export.json", part}


def test_the_newest_complete_checkpoint_counts_and_an_export_is_replaced(erica_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is as good as none
    export_run(erica_run, out)
    newer = bert()
    with torch.no_grad():
        newer.bert.embeddings.word_embeddings.weight.add_(1)
    write_checkpoint(erica_run, 80, {"model": newer}, "erica")
    unfinished = erica_run / "checkpoints" / "step-00000090"
    unfinished.mkdir()
    (unfinished / "state.json").write_text('{"step": 90, "complete": false}')
    (out / "of-the-first-export").write_text("")
    export_run(erica_run, out)
    again = AutoModelForMaskedLM.from_pretrained(out, local_files_only=True)
    assert torch.equal(again(inputs()).logits, newer(inputs()).logits)
    assert not (out / "of-the-first-export").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_card_tells_data_settings_and_scores(tmp_path: Path) -> None:
    write_documents_folder(tmp_path / "secret" / "shards", documents=24, validation=8)
    manifest = read_manifest(tmp_path / "secret" / "shards")
    run = tmp_path / "my-run"
    model = bert()
    settings = {
        "data": {"shards": str(tmp_path / "secret" / "shards")},
        "train": {"lr": 0.000123},
        "run": {"dir": str(run)},
        "tracking": {"uri": "postgresql://me:pass@db"},
    }
    write_run(run, "erica", {"encoder": model.config.to_dict()}, settings)
    write_checkpoint(run, 60, {"model": model}, "erica", shards=manifest["fingerprint"])
    (run / "metrics.jsonl").write_text('{"step": 60, "loss": 1.25, "lr": 0}\n{"step": 61, "loss": 9.75}\n')
    (run / "evaluation.jsonl").write_text('{"step": 0, "ed_accuracy": 0.125}\n{"step": 60, "ed_accuracy": 0.625}\n')
    (run / "environment.json").write_text('{"packages": {"torch": "1.2.3"}, "git": {"commit": "abc", "dirty": true}}')
    export_run(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers"
    assert manifest["fingerprint"] in card
    assert "| `ed_accuracy` | 0.125 | 0.625 |" in card
    assert "| `loss` | 1.25 |" in card
    assert "9.75" not in card
    assert "lr: 0.000123" in card
    assert "| torch | 1.2.3 |" in card
    assert "commit `abc` with changes" in card
    assert "secret" not in card
    assert "pass@" not in card


def break_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def drop_weight(run: Path) -> None:
    model = bert()
    path = write_checkpoint(run, 70, {"model": model.bert}, "erica")
    assert path.exists()


def other_width(run: Path) -> None:
    config = bert().config.to_dict() | {"intermediate_size": 64}
    (run / "model_config.json").write_text(json.dumps({"job": "erica", "encoder": config}))


DAMAGES = {
    "no checkpoint": (lambda run: (run / "checkpoints").rename(run / "gone"), "no complete checkpoint"),
    "torn weights": (
        lambda run: break_file(run / "checkpoints" / "step-00000060" / "weights" / "model.safetensors"),
        "model.safetensors is damaged",
    ),
    "no weights": (
        lambda run: (run / "checkpoints" / "step-00000060" / "weights" / "model.safetensors").unlink(),
        "model.safetensors is missing",
    ),
    "no model config": (lambda run: (run / "model_config.json").unlink(), r"model_config\.json is missing"),
    "torn model config": (lambda run: break_file(run / "model_config.json"), r"cannot read .*model_config\.json"),
    "no tokenizer": (lambda run: (run / "tokenizer").rename(run / "gone"), "tokenizer is missing"),
    "other weights": (drop_weight, "do not belong together"),
    "other shapes": (other_width, "do not belong together"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_and_leaves_nothing(erica_run: Path, tmp_path: Path, damage: str) -> None:
    harm, message = DAMAGES[damage]
    harm(erica_run)
    with pytest.raises(UserError, match=message):
        export_run(erica_run, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my-run"]


def test_a_folder_that_is_no_export_is_left_alone(erica_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.tex").write_text("precious")
    with pytest.raises(UserError, match="is no export of this program"):
        export_run(erica_run, out)
    with pytest.raises(UserError, match="is no export of this program"):
        export_run(erica_run, out / "chapter1.tex")
    assert (out / "chapter1.tex").read_text() == "precious"
    with pytest.raises(UserError, match="there is no run folder"):
        export_run(tmp_path / "nothing", tmp_path / "out")


def test_too_little_disk_is_said_before_the_work(
    erica_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match="GB free"):
        export_run(erica_run, tmp_path / "out")
