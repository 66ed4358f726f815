"""A resumed training is the unbroken one, bit for bit; a checkpoint is there whole or not at all."""

import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from erica_dist import settings
from erica_dist.config import EricaJob
from erica_dist.errors import UserError
from erica_dist.training import checkpoint
from erica_dist.training import job as job_module
from tests.ranks import run_ranks
from tests.synthetic import write_documents_folder, write_sequences_folder

BASE = [
    "model.size=tiny",
    "model.max_length=128",
    "model.dropout=0.2",
    "train.global_batch=8",
    "train.micro_batch=2",
    "train.lr=1e-3",
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=40, seed=5))


@pytest.mark.distributed
def test_two_steps_a_checkpoint_and_two_more_equal_four(documents: Path, tmp_path: Path) -> None:
    combinations = [[*BASE, f"train.zero_stage={stage}", "data.workers=0"] for stage in (0, 1, 2, 3)]
    combinations.append([*BASE, "train.zero_stage=2", "train.precision=bf16", "data.workers=0"])
    drawn = ["erica.positives=one", "erica.negatives_per_anchor=3", "erica.relations_per_pair=one"]
    combinations.append([*BASE, "train.zero_stage=1", "data.workers=0", "erica.negatives=global", *drawn])
    arguments = {"folder": str(documents), "out": str(tmp_path), "combinations": combinations}
    for result in run_ranks("tests.rank_programs:resume", 2, arguments):
        for combination, row in zip(combinations, result, strict=True):
            assert row["resumed"] == row["straight"], combination
            assert row["apart"] == 0.0, combination
            assert row["tied"] == {
                "model.cls.predictions.decoder.weight": "model.bert.embeddings.word_embeddings.weight",
                "model.cls.predictions.decoder.bias": "model.cls.predictions.bias",
            }


@pytest.mark.distributed
def test_generator_and_discriminator_resume_as_one(tmp_path: Path) -> None:
    sequences = write_sequences_folder(tmp_path / "shards", sequences=40, seed=5)
    combinations = [[*BASE, f"train.zero_stage={stage}", "data.workers=0"] for stage in (0, 2, 3)]
    arguments = {"kind": "electra", "folder": str(sequences), "out": str(tmp_path), "combinations": combinations}
    for result in run_ranks("tests.rank_programs:resume", 2, arguments):
        for combination, row in zip(combinations, result, strict=True):
            assert row["resumed"] == row["straight"], combination
            assert row["apart"] == 0.0, combination
            shared = "discriminator.electra.embeddings.word_embeddings.weight"
            names = [name for name, owner in row["tied"].items() if owner == shared]
            assert names == [
                "generator.electra.embeddings.word_embeddings.weight",
                "generator.generator_lm_head.weight",
            ]


def complete(root: Path, step: int, **state: object) -> Path:
    folder = root / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"step": step, "complete": True, **state}))
    return folder


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        checkpoint.newest_checkpoint(tmp_path)
    complete(tmp_path, 9)
    newest = complete(tmp_path, 10)
    complete(tmp_path, 30, complete=False)
    (tmp_path / "checkpoints" / "step-00000040").mkdir()
    torn = complete(tmp_path, 50)
    (torn / "state.json").write_text('{"step": 50, "compl')
    (tmp_path / "checkpoints" / "incomplete-00000060").mkdir()
    assert checkpoint.newest(tmp_path) == newest


def test_a_checkpoint_of_another_job_or_number_of_ranks_is_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = complete(tmp_path, 9, ranks=2, shards="abc", **{"train.seed": 1})
    assert checkpoint.check(folder, {"shards": "abc", "train.seed": 1}, world_size=2) == 9
    with pytest.raises(UserError, match=r"shards abc there and xyz here\): keep these, or give another run.dir"):
        checkpoint.check(folder, {"shards": "xyz", "train.seed": 1}, world_size=2)
    with pytest.raises(UserError, match=r"written by 2 rank\(s\) and this job has 3: start it with 2, or begin"):
        checkpoint.check(folder, {"shards": "abc", "train.seed": 1}, world_size=3)


def test_a_checkpoint_of_another_form_is_refused_and_an_older_one_is_not_asked_what_it_does_not_say(
    tmp_path: Path,
) -> None:
    folder = complete(tmp_path, 9, ranks=1, parameters=12_000, **{"train.zero_stage": 0, "train.precision": "fp32"})
    form = {"train.zero_stage": 2, "train.precision": "bf16", "erica.entity_markers": True}
    with pytest.raises(
        UserError, match=r"\(train.zero_stage 0 there and 2 here, train.precision fp32 there and bf16 here"
    ):
        checkpoint.check(folder, form, world_size=1)
    with pytest.raises(UserError, match=r"a model of 12,000 parameters and this job's has 13,000: keep model\.\*"):
        checkpoint.check_weights(folder, 13_000)
    checkpoint.check_weights(folder, 12_000)
    older = complete(tmp_path, 10, ranks=1)
    assert checkpoint.check(older, form, world_size=1) == 10
    checkpoint.check_weights(older, 13_000)


def test_settings_that_changed_since_the_run_began_are_found(tmp_path: Path) -> None:
    job = settings.load(EricaJob, None, ["erica.temperature=0.1", "train.steps=5", f"run.dir={tmp_path}"])
    assert job_module._changed_settings(tmp_path, job) == {}, "nothing is known"
    (tmp_path / "config.yaml").write_text(settings.dump(job))
    assert job_module._changed_settings(tmp_path, job) == {}
    words = ["erica.temperature=0.2", "train.steps=9", "run.dir=elsewhere", "erica.weights.rd_parts=[1,1,1,0]"]
    changed = job_module._changed_settings(tmp_path, settings.load(EricaJob, None, words))
    assert changed == {
        "erica.temperature": "0.1 -> 0.2",
        "train.steps": "5 -> 9",
        "erica.weights.rd_parts": "[1.0, 1.0, 1.0, 1.0] -> [1.0, 1.0, 1.0, 0.0]",
    }


def test_too_little_disk_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000_000))
    checkpoint.check_disk(tmp_path / "new" / "run", parameters=100_000_000, keep=2)
    with pytest.raises(UserError, match=r"5.0 GB are free and checkpoints of this model take up to 6.4 GB"):
        checkpoint.check_disk(tmp_path / "new" / "run", parameters=100_000_000, keep=3)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "harmed"),)

    torch.save({"module": torch.zeros(2), "optimizer": Harm()}, tmp_path / "states.pt")
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load_tensors(str(tmp_path / "states.pt"))
    assert not (tmp_path / "harmed").exists()
