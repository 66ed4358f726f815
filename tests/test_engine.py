"""The DeepSpeed configuration that a job makes, and what seeds dropout."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from erica_dist.config import ElectraConfig, ModelConfig, TrainConfig
from erica_dist.errors import UserError
from erica_dist.models.electra import build_electra
from erica_dist.training.engine import CONFIGS, _parameter_groups, engine_config, seed_dropout, slow_precision
from erica_dist.training.modules import ElectraModule


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_job_decides_batches_clipping_and_precision(stage: int) -> None:
    train = TrainConfig(global_batch=96, micro_batch=4, clip_norm=0.7, precision="bf16", zero_stage=stage)
    config = engine_config(train, accumulation=12)
    assert config["zero_optimization"]["stage"] == stage
    batches = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [config[name] for name in batches] == [96, 4, 12]
    assert config["gradient_clipping"] == 0.7
    assert config["bf16"] == {"enabled": True}
    assert "fp16" not in config


def test_every_file_of_the_folder_is_a_usable_configuration() -> None:
    files = sorted(CONFIGS.glob("*.json"))
    assert {path.stem for path in files} >= {"zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"}
    for path in files:
        assert engine_config(TrainConfig(deepspeed_config=str(path)), 1)["train_batch_size"] == 2048


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"bf16": {"enabled": True}}, "sets bf16: leave that to the job's train"),
        ({"train_batch_size": 3, "optimizer": {}}, "sets optimizer, train_batch_size"),
        ("{", "no valid JSON"),
        (None, "cannot read the DeepSpeed configuration"),
    ],
)
def test_a_file_that_decides_what_the_job_decides_is_refused(content: object, text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=text):
        engine_config(TrainConfig(deepspeed_config=str(path)), 1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_without_arithmetic_on_this_cpu_is_said(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erica_dist.training.engine.device", lambda: torch.device("cpu"))
    monkeypatch.setattr("erica_dist.training.engine.lacks", lambda dtype: True)
    assert slow_precision(precision).startswith(f"this CPU has no {precision} arithmetic: products are taken in fp32")
    assert slow_precision("fp32") == ""
    monkeypatch.setattr("erica_dist.training.engine.lacks", lambda dtype: False)
    assert slow_precision(precision) == ""


def test_dropout_differs_by_seed_step_and_micro_batch_and_by_nothing_else() -> None:
    draws = {}
    for seed, step, cell in itertools.product((1, 2), (1, 2), (0, 1, 2)):
        torch.rand(step + cell)  # whatever was drawn before does not matter
        seed_dropout(seed, step, cell)
        draws[seed, step, cell] = float(torch.rand(()))
        seed_dropout(seed, step, cell)
        assert float(torch.rand(())) == draws[seed, step, cell]
    assert len(set(draws.values())) == len(draws)


def test_the_optimizer_has_each_shared_weight_once() -> None:
    tokenizer = {"vocab_size": 60, "pad_id": 0}
    settings = ElectraConfig(generator_hidden_size=0.5)
    pair = build_electra(ModelConfig(size="tiny"), settings, tokenizer, seed=1)
    groups = _parameter_groups(ElectraModule(pair, settings, mask_id=4, vocab_size=60), weight_decay=0.1)
    found = [id(parameter) for group in groups for parameter in group["params"]]
    models = [*pair.generator.parameters(), *pair.discriminator.parameters()]
    assert len(found) == len(set(found))
    assert set(found) == {id(parameter) for parameter in models}
    assert len(found) < len(models), "embeddings are shared"
    assert [(group["weight_decay"], {p.ndim > 1 for p in group["params"]}) for group in groups] == [
        (0.1, {True}),
        (0.0, {False}),
    ]
