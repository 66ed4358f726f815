"""The journal: cut at resume, torn lines, non-finite values, following."""

import json
from pathlib import Path

import pytest

from erica_dist.errors import UserError
from erica_dist.tracking.journal import Journal, Tail, read_metrics


def steps(path: Path) -> list[int]:
    return [record["step"] for record in read_metrics(path)]


def write(path: Path, first: int, last: int, resumed: int = 0) -> None:
    journal = Journal.open(path, last_step=resumed)
    for step in range(first, last + 1):
        journal.write({"step": step, "loss": 1 / step})
    journal.close()


def test_each_record_is_there_at_once_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    journal = Journal.open(path)
    journal.write({"step": 1, "loss": 0.1, "documents": 32})
    (record,) = read_metrics(path)
    assert record.pop("time") > 1.6e9
    assert record == {"step": 1, "loss": 0.1, "documents": 32}


def test_resume_cuts_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 7)
    journal = Journal.open(path, last_step=4)
    for step in (0, 4, 6):
        journal.write_evaluation({"step": step, "ed_accuracy": step / 10})
    journal.close()
    write(path, 5, 6, resumed=4)
    assert steps(path) == [1, 2, 3, 4, 5, 6]
    assert steps(tmp_path / "evaluation.jsonl") == [0, 4]
    events = [(e["event"], e["step"], e["cut_records"]) for e in read_metrics(tmp_path / "events.jsonl")]
    assert events == [("resumed_from", 4, 3), ("resumed_from", 4, 0)]


def test_a_run_from_the_start_begins_an_empty_journal_but_keeps_the_events(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 3)
    Journal.open(path, last_step=3).close()
    Journal.open(path).close()
    assert steps(path) == []
    assert [e["event"] for e in read_metrics(tmp_path / "events.jsonl")] == ["resumed_from"]


@pytest.mark.parametrize("torn", ['{"step": 4, "lo', "\x00\x00\x00", '{"step": 4', "4"])
def test_a_torn_last_line_is_passed_over_and_cut(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 3)
    with path.open("a") as file:
        file.write(torn)
    assert steps(path) == [1, 2, 3]
    write(path, 4, 5, resumed=3)
    assert steps(path) == [1, 2, 3, 4, 5]


def test_a_whole_record_that_only_lacks_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    write(path, 3, 3, resumed=2)
    assert steps(path) == [1, 2, 3]


def test_damage_in_the_middle_is_named_and_nothing_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    before = path.read_bytes()
    for read in (lambda: read_metrics(path), lambda: Journal.open(path, last_step=1)):
        with pytest.raises(UserError, match="line 2 is no JSON object"):
            read()
    assert path.read_bytes() == before


def test_non_finite_values_are_null_and_an_event(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    journal = Journal.open(path)
    journal.write({"step": 3, "loss": float("nan"), "grad_norm": float("inf"), "lr": 0.5})
    journal.event("skipped", step=3, scale=float("inf"))

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    line = json.loads(path.read_text(), parse_constant=no_constants)
    assert (line["loss"], line["grad_norm"], line["lr"]) == (None, None, 0.5)
    first, second = read_metrics(tmp_path / "events.jsonl")
    assert (first["event"], first["step"]) == ("non_finite", 3)
    assert first["values"] == {"loss": "nan", "grad_norm": "inf"}
    assert (second["event"], second["scale"]) == ("skipped", None)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write the run's journal in .*run"):
        Journal.open(tmp_path / "run" / "metrics.jsonl")


def test_a_follower_leaves_the_unfinished_line_for_later(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read(10) == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [r["step"] for r in tail.read(1)] == [1]
    assert [r["step"] for r in tail.read(10)] == [2]
    with path.open("a") as file:
        file.write('ep": 3}\n')
    assert [r["step"] for r in tail.read(10)] == [3]
    assert tail.read(10) == []
