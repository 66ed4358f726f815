"""A resumed training is the unbroken one, bit for bit; a checkpoint is there whole or not at all."""

import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from erica_dist import settings
from erica_dist.config import EricaJob
from erica_dist.errors import UserError
from erica_dist.training import checkpoint
from erica_dist.training.run_folder import changed_settings
from erica_dist.training.tensor_files import load_tensors
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


@pytest.mark.distributed
def test_a_run_goes_on_under_other_ranks_and_another_zero_stage_as_if_nothing_had_happened(
    documents: Path, tmp_path: Path
) -> None:
    """Begun by 2 ranks, ended by 3 (padded partitions) and by 1; without dropout, whose masks follow micro-batches."""
    own = ["model.dropout=0", "train.global_batch=12", "erica.negatives=global", "data.workers=0"]

    def words(stage: int, precision: str = "fp32") -> list[str]:
        return [*BASE, *own, f"train.zero_stage={stage}", f"train.precision={precision}"]

    begun = [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (2, "bf16"), (3, "bf16"), (0, "bf16")]
    arguments = {"folder": str(documents), "out": str(tmp_path)}
    unbroken = run_ranks(
        "tests.rank_programs:cross", 2, {**arguments, "begin": [words(*one) for one in begun], "go_on": []}
    )[0]
    ends = {
        3: [(0, 0), (1, 1), (3, 3), (0, 3), (3, 0), (2, 3), (3, 2), (4, 3), (6, 0)],
        1: [(0, 2), (2, 0), (3, 3), (5, 1)],
    }
    for ranks, pairs in ends.items():
        go_on = [(number, words(stage, begun[number][1])) for number, stage in pairs]
        result = run_ranks("tests.rank_programs:cross", ranks, {**arguments, "begin": [], "go_on": go_on})[0]
        for (number, stage), row in zip(pairs, result, strict=True):
            case = f"stage {begun[number]} of 2 ranks, stage {stage} of {ranks}"
            expected = unbroken[number]
            assert row["counted"] == expected["counted"] == 4, case
            exact = begun[number][1] == "fp32"
            # bf16: gradients rounded in another order, so a norm of 8 bits
            bars = [2e-6, 2e-6] if exact else [1e-3, 1e-2]
            for values, wanted in zip(row["rows"], expected["rows"][2:], strict=True):
                assert [abs(a / b - 1) < bar for a, b, bar in zip(values, wanted, bars, strict=True)] == [True] * 2, (
                    case
                )
            if exact:
                found, wanted = load_file(row["weights"]), load_file(expected["weights"])
                # a step moves a weight by 1e-3: without the moments they would be as far apart
                assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < 1e-5, case


@pytest.mark.distributed
def test_generator_and_discriminator_go_on_under_other_ranks(tmp_path: Path) -> None:
    sequences = write_sequences_folder(tmp_path / "shards", sequences=40, seed=5)
    words = [*BASE, "model.dropout=0", "train.global_batch=12", "data.workers=0"]
    arguments = {"kind": "electra", "folder": str(sequences), "out": str(tmp_path)}
    begin = [[*words, "train.zero_stage=2"], [*words, "train.zero_stage=3"]]
    unbroken = run_ranks("tests.rank_programs:cross", 2, {**arguments, "begin": begin, "go_on": []})[0]
    go_on = [[0, begin[1]], [1, begin[0]]]
    result = run_ranks("tests.rank_programs:cross", 3, {**arguments, "begin": [], "go_on": go_on})[0]
    for expected, row in zip(unbroken, result, strict=True):
        for values, wanted in zip(row["rows"], expected["rows"][2:], strict=True):
            assert values == pytest.approx(wanted, rel=2e-6)
        found, weights = load_file(row["weights"]), load_file(expected["weights"])
        assert max(float((found[name] - weights[name]).abs().max()) for name in weights) < 1e-5


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


def test_a_checkpoint_of_another_job_is_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = complete(tmp_path, 9, ranks=2, shards="abc", **{"train.seed": 1})
    assert checkpoint.check(folder, {"shards": "abc", "train.seed": 1}) == 9
    with pytest.raises(UserError, match=r"shards abc there and xyz here\): keep these, or give another run.dir"):
        checkpoint.check(folder, {"shards": "xyz", "train.seed": 1})


def test_a_checkpoint_of_another_form_is_refused_and_an_older_one_is_not_asked_what_it_does_not_say(
    tmp_path: Path,
) -> None:
    folder = complete(tmp_path, 9, ranks=1, parameters=12_000, **{"model.size": "tiny", "train.precision": "fp32"})
    form = {"model.size": "base", "train.precision": "bf16", "erica.entity_markers": True}
    with pytest.raises(UserError, match=r"\(model.size tiny there and base here, train.precision fp32 there and bf16"):
        checkpoint.check(folder, form)
    with pytest.raises(UserError, match=r"a model of 12,000 parameters and this job's has 13,000: keep model\.\*"):
        checkpoint.check_weights(folder, 13_000)
    checkpoint.check_weights(folder, 12_000)
    older = complete(tmp_path, 10, ranks=1)
    assert checkpoint.check(older, form) == 10
    checkpoint.check_weights(older, 13_000)


def test_settings_that_changed_since_the_run_began_are_found(tmp_path: Path) -> None:
    job = settings.load(EricaJob, None, ["erica.temperature=0.1", "train.steps=5", f"run.dir={tmp_path}"])
    assert changed_settings(tmp_path, job) == {}, "nothing is known"
    (tmp_path / "config.yaml").write_text(settings.dump(job))
    assert changed_settings(tmp_path, job) == {}
    words = ["erica.temperature=0.2", "train.steps=9", "run.dir=elsewhere", "erica.weights.rd_parts=[1,1,1,0]"]
    changed = changed_settings(tmp_path, settings.load(EricaJob, None, words))
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
        load_tensors(str(tmp_path / "states.pt"))
    assert not (tmp_path / "harmed").exists()
