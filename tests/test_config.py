"""Job configuration: defaults, file, overrides, refusals with a remedy, resolved dump, accumulation."""

import signal
from pathlib import Path

import pytest

from erica_dist import config, settings
from erica_dist.cli import main as cli
from erica_dist.config import CorpusJob, ElectraJob, EricaJob, FinetuneJob, RayConfig, TrainConfig
from erica_dist.errors import UserError


def test_overrides_lie_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train: {lr: 1e-4, steps: 7}\nerica: {weights: {rd: 2}}\n")
    job = settings.load(EricaJob, path, ["train.steps=9", "erica.negatives=global", "run.name=012"])
    assert (job.train.lr, job.train.steps, job.train.seed) == (1e-4, 9, 42)
    assert (job.erica.weights.rd, job.erica.weights.ed, job.erica.negatives) == (2.0, 1.0, "global")
    assert settings.load(EricaJob).train.lr == 3e-5, "a loaded job does not touch the defaults of the next"


def test_the_resolved_job_is_itself_a_configuration(tmp_path: Path) -> None:
    job = settings.load(ElectraJob, None, ["electra.temperature=0.5", "model.size=base"])
    path = tmp_path / "resolved.yaml"
    path.write_text(settings.dump(job))
    assert settings.load(ElectraJob, path) == job
    assert settings.flatten(job)["electra.temperature"] == 0.5


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("train.learning_rate=1", r"unknown setting 'train.learning_rate'.*did you mean 'train\.\w+'"),
        ("train.lrr=1", r"did you mean 'train\.lr'"),
        ("trian.lr=1", r"unknown setting 'trian'; did you mean 'train'"),
        ("erica.weights.rdd=1", r"did you mean 'erica\.weights\.rd'"),
        ("train.steps=many", "'train.steps' must be a whole number, got 'many'"),
        ("train.steps=1.5", "'train.steps' must be a whole number, got 1.5"),
        ("train.lr=true", "'train.lr' must be a number, got True"),
        ("train.resume=1", "'train.resume' must be true or false"),
        ("erica.negatives=all", "must be one of local, gather, global, got 'all'"),
        ("train=3", "'train' is a section with keys steps, global_batch"),
        ("train.lr", "is not of the form section.key=value"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(override: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        settings.load(EricaJob, None, [override])


@pytest.mark.parametrize(
    ("content", "text"), [("train: [", "no valid YAML"), ("- a\n", "must hold a mapping"), (None, "cannot read")]
)
def test_a_wrong_file_is_one_clear_error(content: str | None, text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=text):
        settings.load(EricaJob, path)


@pytest.mark.parametrize("value", ["1e-4", "1.0e-4", "0.0001"])
def test_numbers_are_read_in_every_spelling(value: str) -> None:
    assert settings.load(EricaJob, None, [f"train.lr={value}"]).train.lr == 1e-4
    assert settings.load(EricaJob, None, ["train.steps=1e3"]).train.steps == 1000


def test_lists_and_one_word_lists() -> None:
    assert settings.load(CorpusJob, None, ["inputs=[a, b]"]).inputs == ["a", "b"]
    assert settings.load(CorpusJob, None, ["inputs=a"]).inputs == ["a"]


def test_accumulation_follows_from_the_batches() -> None:
    assert config.accumulation(TrainConfig(global_batch=2048, micro_batch=16), ranks=8) == 16
    assert config.accumulation(TrainConfig(global_batch=4, micro_batch=4), ranks=1) == 1


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "ranks", "text"),
    [
        (20, 4, 2, r"nearest that does is train.global_batch=16, or keep the global batch with train.micro_batch=5"),
        (2, 4, 2, r"nearest that does is train.global_batch=8, or keep the global batch with train.micro_batch=1"),
        (3, 1, 2, r"nearest that does is train.global_batch=4$"),
        (0, 4, 2, r"train.global_batch must be at least 1"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest(global_batch, micro_batch, ranks, text) -> None:
    with pytest.raises(UserError, match=text):
        config.accumulation(TrainConfig(global_batch=global_batch, micro_batch=micro_batch), ranks)


def test_erica_needs_an_even_micro_batch() -> None:
    with pytest.raises(UserError, match=r"must be even.*train.micro_batch=4"):
        config.accumulation(TrainConfig(global_batch=12, micro_batch=3), 2, even_micro_batch=True)
    with pytest.raises(UserError, match=r"keep the global batch with train.micro_batch=2"):
        config.accumulation(TrainConfig(global_batch=12, micro_batch=4), 2, even_micro_batch=True)


def test_the_job_files_in_the_repository_are_valid() -> None:
    jobs = Path(__file__).resolve().parents[1] / "launchers" / "jobs"
    found = sorted(jobs.glob("*.yaml"))
    assert len(found) >= 4
    for path in found:
        kind = FinetuneJob if "finetune" in path.name else ElectraJob if "electra" in path.name else EricaJob
        settings.load(kind, path)


def test_flags_of_ray_are_shorthands_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[CorpusJob] = []
    monkeypatch.setattr("data_tools.build.build_corpus", given.append)
    assert cli(["build-corpus", "--ray-address", "head:6379", "--workers", "3", "ray.retries=1", "--no-resume"]) == 0
    assert cli(["build-corpus", "--no-ray", "--max-failed-share", "0.1"]) == 0
    assert given[0].ray == RayConfig(address="head:6379", workers=3, retries=1)
    assert given[1].ray == RayConfig(disabled=True)
    assert (given[0].resume, given[1].resume, given[1].max_failed_share) == (False, True, 0.1)


def test_settings_stand_anywhere_among_the_flags_of_a_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    words = ["build-kb", "unit_mb=0", "--dump", "none", "ray.disabled=true", "--out", str(tmp_path / "kb")]
    assert cli([*words, "task_mb=7"]) == 2
    assert "unit_mb=0 must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli([*words, "--unknown"])
    assert "unrecognized arguments: --unknown" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
