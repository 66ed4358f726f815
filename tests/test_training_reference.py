"""The published ERICA's options in training: k ranks x a micro-steps = one plain process; the preset; refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from erica_dist import settings
from erica_dist.config import PUBLISHED, EricaConfig, EricaJob, published_options
from erica_dist.training.job import main
from tests.synthetic import write_documents_folder
from tests.test_training_exact import COMMON, compare

PRESET = Path(__file__).resolve().parents[1] / "launchers" / "jobs" / "erica_reference.yaml"
BASE = [*COMMON, "model.dropout=0", "train.global_batch=8", "erica.temperature=0.3", "erica.no_relation_pairs=8"]
DRAWN = ["erica.positives=one", "erica.negatives_per_anchor=3"]
PUBLISHED_WORDS = [f"erica.{name}={str(value).lower()}" for name, value in PUBLISHED.items() if name != "negatives"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=40, seed=5))


@pytest.mark.distributed
def test_the_published_options_at_two_ranks_equal_one_plain_process(documents: Path, tmp_path: Path) -> None:
    """Where the pool is the whole global batch, the plain process is dealt all of it as one micro-batch: two ranks draw
    what one does."""
    local = [*BASE, "erica.negatives=local", "train.micro_batch=4", *PUBLISHED_WORDS, "erica.negatives_per_anchor=3"]
    gather = [*BASE, "erica.negatives=gather", "train.micro_batch=2", *DRAWN, "erica.sentences=cross"]
    gather.append("erica.rd_mean=micro_batch")
    whole = [*BASE, "erica.negatives=global", "train.micro_batch=8", *DRAWN, "erica.relations_per_pair=one"]
    split = [*whole, "train.micro_batch=2", "erica.tail_counted_twice=false"]
    combinations = [[*local, "train.zero_stage=1"], [*gather, "train.zero_stage=3"], [*split, "train.zero_stage=2"]]
    compare("erica", documents, tmp_path, 2, combinations, [local, gather, whole], plain_ranks=[2, 2, 1])


def test_the_preset_is_what_the_published_code_does() -> None:
    job = settings.load(EricaJob, PRESET)
    assert published_options(job.erica)[0] == "reference"
    default = EricaConfig()
    differing = {name for name in vars(default) if getattr(job.erica, name) != getattr(default, name)}
    assert differing == set(PUBLISHED), "nothing else is set otherwise than by default"
    assert published_options(default) == ("own", [])
    assert published_options(EricaConfig(negatives="local"))[0] == "own"
    assert published_options(EricaConfig(positives="one")) == ("mixed", ["positives=one"])


def test_a_run_of_the_preset_says_what_it_is(
    documents: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    words = ["model.size=tiny", "model.max_length=64", "train.global_batch=8", "train.micro_batch=8", "train.steps=2"]
    words += ["data.validation_documents=4", "data.workers=0", "train.precision=fp32", f"data.shards={documents}"]
    assert main("erica", ["--config", str(PRESET), *words, f"run.dir={run}"]) == 0
    said = capfd.readouterr().out
    assert "reference, as in the published code: negatives=local, positives=one, negatives_per_anchor=64" in said
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["loss_mlm"] > 6, "two halves' means, added up"
    assert settings.load(EricaJob, run / "config.yaml").erica == settings.load(EricaJob, PRESET).erica

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("erica-dist").experiment_id])
    assert found.data.tags["erica_options"] == "reference"


def test_a_negative_number_of_negatives_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("erica", ["erica.negatives_per_anchor=-1", "run.dir=x", "data.shards=y"]) == 2
    assert "erica.negatives_per_anchor=-1 must not be negative; 0 takes the whole pool" in capsys.readouterr().err


def test_means_by_micro_batch_of_one_problem_over_the_whole_batch_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["erica.rd_mean=micro_batch", "erica.negatives=global", "run.dir=x", "data.shards=y"]
    assert main("erica", words) == 2
    assert "set one of them otherwise (rd_mean=global, or negatives=local or gather)" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["positives=two", "relations_per_pair=none", "sentences=same", "mlm_mean=batch"])
def test_an_unknown_choice_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("erica", [f"erica.{word}", "run.dir=x", "data.shards=y"]) == 2
    assert "must be one of" in capsys.readouterr().err
