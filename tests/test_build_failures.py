"""What goes wrong in a corpus build: failed units, nothing that comes out, a full disk, samples that got lost."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import data_tools.build
from data_tools.build import build_corpus
from data_tools.count_checks import check_shards, check_sums, check_unit, empty_stage
from data_tools.steps import UnitTask, build_unit
from erica_dist.cli import main
from erica_dist.config import CorpusJob, FilterConfig
from erica_dist.errors import UserError
from erica_dist.settings import dump
from erica_dist.shards import tarfiles
from erica_dist.shards.verify import verify
from tests.corpora import corpus_job, folder_bytes

UNITS = 8


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    build_corpus(corpus_job(folder))
    return folder


def failing(at: set[int], error: Callable[[], Exception]) -> Callable[[UnitTask], dict[str, Any]]:
    """`build_unit`, but for the units whose first page is in `at`."""

    def build(task: UnitTask) -> dict[str, Any]:
        if task.unit.first_page in at:
            raise error()
        return build_unit(task)

    return build


def keys(folder: Path) -> list[str]:
    manifest = json.loads((folder / "manifest.json").read_text())
    return [shard["file"] for shard in manifest["shards"]]


def test_a_share_of_failed_units_is_let_go_and_said(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = world / "job.yaml"
    settings.write_text(dump(corpus_job(world, "partly")))
    command = ["build-corpus", "--config", str(settings)]
    out = world / "partly"
    monkeypatch.setattr(data_tools.build, "build_unit", failing({10, 30}, lambda: RuntimeError("no luck")))

    # more than is allowed: an error, nothing lost
    assert main([*command, "--max-failed-share", "0.2"]) == 2
    assert "2 of 8 units failed" in (error := capsys.readouterr().err)
    assert "--max-failed-share 0.25" in error
    assert not (out / "manifest.json").exists()

    # as many as are allowed: a corpus without them that says so
    assert main([*command, "--max-failed-share", "0.25"]) == 0
    printed = capsys.readouterr().out
    assert "6 of 8 units were done before" in printed
    assert "warning: the corpus is incomplete: 2 units failed and are missing, 25.00% of the pages" in printed
    verify(out)
    manifest = json.loads((out / "manifest.json").read_text())
    source = corpus_job(world).inputs[0]
    assert manifest["failed_units"] == [
        {"file": source, "place": f"pages {first} to {first + 4}", "pages": 5, "attempts": 1, "error": error}
        for first, error in ((10, "RuntimeError: no luck"), (30, "RuntimeError: no luck"))
    ]
    assert manifest["failed_share"] == {"units": 0.25, "pages": 0.25}
    assert [entry["place"] for entry in manifest["incomplete"]] == ["pages 10 to 14", "pages 30 to 34"]
    assert manifest["counts"]["pages"]["pages read"] == 30

    # the same failures again: the same corpus
    before = folder_bytes(out)
    assert main([*command, "--max-failed-share", "0.25"]) == 0
    assert "the same units failed again" in capsys.readouterr().out
    assert folder_bytes(out) == before
    # without leave an error, but the corpus stands
    assert main(command) == 2
    assert {name: data for name, data in folder_bytes(out).items() if name[0] != "."} == {
        name: data for name, data in before.items() if name[0] != "."
    }
    capsys.readouterr()

    # fewer: made anew without the one that is left
    monkeypatch.setattr(data_tools.build, "build_unit", failing({30}, lambda: RuntimeError("no luck")))
    assert main([*command, "--max-failed-share", "0.25"]) == 0
    assert "7 of 8 units were done before" not in (printed := capsys.readouterr().out)
    assert "6 of 8 units were done before" in printed
    assert json.loads((out / "manifest.json").read_text())["failed_share"]["units"] == 0.125

    # the cause is gone: the corpus of an undisturbed build, and no work folder
    monkeypatch.setattr(data_tools.build, "build_unit", build_unit)
    assert main(command) == 0
    assert "7 of 8 units were done before" in capsys.readouterr().out
    assert folder_bytes(out) == folder_bytes(world / "corpus")


def test_an_incomplete_corpus_whose_work_folder_was_removed_is_taken_as_it_is(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = dataclasses.replace(corpus_job(world, "accepted"), max_failed_share=0.5)
    monkeypatch.setattr(data_tools.build, "build_unit", failing({10}, lambda: RuntimeError("no luck")))
    build_corpus(job)
    shutil.rmtree(world / "accepted" / ".build")
    monkeypatch.setattr(data_tools.build, "build_unit", build_unit)
    capsys.readouterr()
    manifest = build_corpus(job)
    assert len(manifest["failed_units"]) == 1
    assert "nothing to do" in (printed := capsys.readouterr().out)
    assert "incomplete" in printed
    # a job that allows none makes it whole
    build_corpus(corpus_job(world, "accepted"))
    assert folder_bytes(world / "accepted") == folder_bytes(world / "corpus")


def test_shares_are_from_0_to_1(world: Path) -> None:
    with pytest.raises(UserError, match=r"max_failed_share=1\.5"):
        build_corpus(dataclasses.replace(corpus_job(world, "none"), max_failed_share=1.5))
    with pytest.raises(UserError, match=r"max_empty_share=-0\.1"):
        build_corpus(dataclasses.replace(corpus_job(world, "none"), max_empty_share=-0.1))


def many_units(world: Path, out: str, **more: Any) -> CorpusJob:
    """60 units of four pages."""
    return dataclasses.replace(corpus_job(world, out, pages=240), pages_per_task=4, **more)


def test_a_build_without_documents_stops_early(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict = FilterConfig(20, 300, min_entities=50)
    with pytest.raises(UserError, match="nothing came out of the first 20 of 60 units: no passage passed"):
        build_corpus(many_units(world, "empty", filters=strict))
    assert "warning: no document yet: no passage passed the filters" in capsys.readouterr().out
    units = world / "empty" / ".build" / "units"
    assert len(list(units.glob("*.json"))) == 20
    # units done before count too; the share of all units is what matters for many
    with pytest.raises(UserError, match="nothing came out of the first 30 of 60 units"):
        build_corpus(many_units(world, "empty", filters=strict, max_empty_share=0.5))
    assert "20 of 60 units were done before" in capsys.readouterr().out
    with pytest.raises(UserError, match="nothing came out: no passage passed"):
        build_corpus(many_units(world, "empty", filters=strict, max_empty_share=0.0))
    assert len(list(units.glob("*.json"))) == 60


def test_a_build_whose_first_units_all_fail_stops_early(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tools.build, "build_unit", failing(set(range(0, 240, 4)), lambda: RuntimeError("no luck")))
    with pytest.raises(UserError, match=r"(?s)first 20 of 60 units: all failed.*pages 76 to 79: .*no luck"):
        build_corpus(many_units(world, "failing"))


def test_pages_that_are_no_articles_stop_the_build_early(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps({"title": f"Page {n}", "text": ""}) + "\n" for n in range(60)))
    with pytest.raises(UserError, match="first 20 of 60 units: no page of the input is an article with text"):
        build_corpus(dataclasses.replace(corpus_job(world, "lists"), inputs=[str(path)], pages_per_task=1))


def test_a_disk_that_fills_up_ends_the_build_and_keeps_what_is_done(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the units, then in the shards; each time with one message, and the next build goes on."""
    out = world / "full"
    fsync = os.fsync

    def full_at(name: str, number: int) -> Callable[[int], None]:
        """No room for the `number`th file whose path holds `name`."""
        met: list[int] = []

        def sync(file: int) -> None:
            met.extend([file] * (name in os.readlink(f"/proc/self/fd/{file}")))
            if len(met) >= number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(file)

        return sync

    monkeypatch.setattr(tarfiles.os, "fsync", full_at(".jsonl", 4))
    with pytest.raises(UserError, match=r"(?s)cannot write .*No space left on device.*make room") as caught:
        build_corpus(corpus_job(world, "full"))
    assert "units failed" not in str(caught.value)
    assert len(list((out / ".build" / "units").glob("*.json"))) == 3
    monkeypatch.setattr(tarfiles.os, "fsync", full_at("/.documents-", 2))
    with pytest.raises(UserError, match=r"cannot write .*documents-00001\.tar: No space left on device"):
        build_corpus(corpus_job(world, "full"))
    assert len(list((out / ".build" / "units").glob("*.json"))) == UNITS
    assert not (out / "manifest.json").exists()
    assert [path.name for path in out.iterdir() if path.name.endswith(".tmp")] == []
    monkeypatch.setattr(tarfiles.os, "fsync", fsync)
    build_corpus(corpus_job(world, "full"))
    assert folder_bytes(out) == folder_bytes(world / "corpus")


def test_a_folder_that_cannot_be_written_is_said_first(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = world / "closed"
    closed.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and access(path, mode))
    with pytest.raises(UserError, match=f"cannot write into {closed}"):
        build_corpus(dataclasses.replace(corpus_job(world), out=str(closed / "corpus")))
    assert list(closed.iterdir()) == []
    (world / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write into .*file/corpus"):
        build_corpus(dataclasses.replace(corpus_job(world), out=str(world / "file" / "corpus")))


def test_build_anew_takes_nothing_over(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_corpus(corpus_job(world, "anew"))
    # other settings would be refused, but everything is built anew
    job = dataclasses.replace(corpus_job(world, "anew"), documents_per_shard=1000, resume=False)
    capsys.readouterr()
    build_corpus(job)
    assert "8 units, 8 to build" in capsys.readouterr().out
    assert keys(world / "anew") == ["documents-00000.tar", "text-00000.tar"]
    with pytest.raises(UserError, match="knowledge-base"):
        build_corpus(dataclasses.replace(job, out=str(world / "kb")))
    assert (world / "kb" / "manifest.json").exists()


# ------------------------------------------------------------------------------------------------ lost samples


def interrupted(world: Path, out: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the units of a build that ended before its shards."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data_tools.build, "_assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(corpus_job(world, out))
    return world / out / ".build" / "units"


@pytest.mark.parametrize(
    ("lose", "text"),
    [
        (lambda index: index["documents"].pop(0), r"\d+ documents, but \d+ passages passed"),
        (lambda index: index["texts"].pop(0), r"4 texts, but 5 pages kept"),
        (lambda index: index["counts"]["pages"].update({"pages read": 4}), r"4 pages read, but 5 pages of its range"),
        (lambda index: index["counts"]["passages"].update(cut=99), r"passages passed or dropped, but \d+ passages cut"),
    ],
)
def test_a_unit_that_lost_something_is_found(
    world: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[dict], object], text: str
) -> None:
    units = interrupted(world, "tampered", monkeypatch)
    path = next(path for path in sorted(units.glob("*.json")) if len(json.loads(path.read_bytes())["documents"]) > 1)
    whole = path.read_bytes()
    index = json.loads(whole)
    lose(index)
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match=text):
        build_corpus(corpus_job(world, "tampered"))
    assert not (world / "tampered" / "manifest.json").exists()
    path.write_bytes(whole)
    build_corpus(corpus_job(world, "tampered"))
    assert folder_bytes(world / "tampered") == folder_bytes(world / "corpus")
    for file in (world / "tampered").iterdir():
        file.unlink()


def test_a_lost_unit_or_shard_is_found(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards = data_tools.build.write_shards

    def losing(*args: Any, **more: Any) -> Any:
        for record in write_shards(*args, **more):
            if record["file"] != "documents-00001.tar":
                yield record

    with monkeypatch.context() as patch:
        patch.setattr(data_tools.build, "write_shards", losing)
        with pytest.raises(UserError, match="samples of document shards, but"):
            build_corpus(corpus_job(world, "shards"))
    assert not (world / "shards" / "manifest.json").exists()
    build_corpus(corpus_job(world, "shards"))
    manifest = json.loads((world / "shards" / "manifest.json").read_text())
    check_shards(world / "shards", manifest)
    (world / "shards" / "text-00001.tar").unlink()
    with pytest.raises(UserError, match=r"text-00001\.tar: something was lost"):
        check_shards(world / "shards", manifest)


def test_numbers_that_do_not_add_up_name_both() -> None:
    folder = Path("units")
    counts = {
        "pages": {"pages kept": 5, "left out: leakage": 1},
        "passages": {"cut": 10, "dropped: too short": 4, "dropped before NER: too few possible pairs": 1, "passed": 5},
        "documents": {"kept": 3, "dropped: duplicates": 2, "text pages kept": 3, "text pages dropped: duplicates": 1},
    }
    check_sums(folder, counts, documents=3, texts=3)
    with pytest.raises(UserError, match="units: 4 documents kept or dropped, but 5 passages passed"):
        check_sums(folder, counts, documents=2, texts=3)
    with pytest.raises(UserError, match="units: 4 text pages kept or dropped, but 5 pages kept"):
        check_sums(folder, counts, documents=3, texts=2)
    check_unit(folder, {"documents": [], "texts": [], "counts": {"pages": {"pages read": 2, "pages kept": 0}}}, 2)
    assert empty_stage(counts) == ""
    assert empty_stage({"pages": {"pages kept": 1}}).startswith("the pages hold no text")
    assert empty_stage(counts | {"documents": {"kept": 0}}).startswith("no document is left")
