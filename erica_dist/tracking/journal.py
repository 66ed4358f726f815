"""The local record of a run: the one source that MLflow, the comparison and the model card are fed from.

In flow plain dictionaries from the training loop on rank 0; out come three JSON-lines files in the run's folder:
`metrics.jsonl` (one object an optimizer step), `evaluation.jsonl` (one object a held-out scoring) and `events.jsonl`
(resumed_from, stopped, skipped steps, non-finite values...). Each line is flushed as it is written, so that a run that
is killed has everything but perhaps a torn last line. A resumed run cuts what lies beyond its checkpoint and goes on:
the step axis never runs backwards. Every record also gets `time`, seconds since 1970, for those who read it later.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from erica_dist.errors import UserError

METRICS = "metrics.jsonl"
EVALUATION = "evaluation.jsonl"
EVENTS = "events.jsonl"

Record = dict[str, Any]


class Journal:
    """The open journal of one run. For one thread of one process (rank 0's training loop)."""

    def __init__(self, metrics: TextIO, evaluation: TextIO, events: TextIO) -> None:
        self._metrics, self._evaluation, self._events = metrics, evaluation, events
        self.scored = -1  # step of the last held-out scores

    @classmethod
    def open(cls, path: str | Path, last_step: int = 0) -> Journal:
        """Open `RUN_DIR/metrics.jsonl` at `path`, and its two sister files beside it, for appending.

        Records of steps after `last_step` (the checkpoint's; 0: a run from the start) are cut off, and so is a torn
        last line. With `last_step` > 0 the event `resumed_from` is recorded.

        Raises:
            UserError: the folder cannot be written, or a line other than the last one is no JSON object.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cut = _cut_after(path, last_step)
            _cut_after(path.with_name(EVALUATION), last_step)
            _cut_after(path.with_name(EVENTS), None)
            # They stay open as long as the journal does.
            files = [open(path.with_name(name), "a", encoding="utf-8") for name in (path.name, EVALUATION, EVENTS)]  # noqa: SIM115
        except OSError as error:
            raise UserError(f"cannot write the run's journal in {path.parent}: {error.strerror or error}") from error
        journal = cls(*files)
        journal.scored = max((row["step"] for row in read_metrics(path.with_name(EVALUATION))), default=-1)
        if last_step > 0:
            journal.event("resumed_from", step=last_step, cut_records=cut)
        return journal

    def write(self, record: Record) -> None:
        """Append the metrics of one optimizer step. `record` must hold `step`; non-finite numbers become null and an
        event `non_finite` that names them."""
        self._append(self._metrics, record)

    def write_evaluation(self, record: Record) -> None:
        """Append the held-out scores of one scoring; `record` must hold `step` (0: before training)."""
        self._append(self._evaluation, record)
        self.scored = int(record["step"])

    def event(self, name: str, **fields: Any) -> None:
        """Append one event; give `step=` where there is one."""
        self._line(self._events, {"event": name, **_finite(fields)[0]})

    def close(self) -> None:
        for file in (self._metrics, self._evaluation, self._events):
            file.close()

    def _append(self, file: TextIO, record: Record) -> None:
        step = int(record["step"])
        clean, non_finite = _finite(record)
        self._line(file, clean)
        if non_finite:
            self.event("non_finite", step=step, values={name: str(record[name]) for name in non_finite})

    @staticmethod
    def _line(file: TextIO, record: Record) -> None:
        file.write(json.dumps({**record, "time": round(time.time(), 3)}, allow_nan=False, ensure_ascii=False) + "\n")
        file.flush()


def read_metrics(path: str | Path) -> list[Record]:
    """All records of one journal file, in order of writing; empty when the file is missing.

    Raises:
        UserError: a line other than a torn last one is no JSON object.
    """
    return list(iterate(path))


def iterate(path: str | Path) -> Iterator[Record]:
    """The records of one journal file, read line by line. See `read_metrics`."""
    path = Path(path)
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            record = _parse(line)
            if record is not None:
                yield record
            else:
                _complain_unless_torn(path, number, line, file)


class Tail:
    """Reads what was appended to a journal file since the last call; leaves an unfinished last line for the next."""

    def __init__(self, path: Path) -> None:
        self._path, self.offset = path, 0  # bytes read

    def read(self, limit: int) -> list[Record]:
        """At most `limit` new records. Lines that are no JSON objects are passed over: the journal's own reader
        complains about them, a follower only sends what can be sent."""
        records: list[Record] = []
        try:
            with open(self._path, "rb") as file:
                file.seek(self.offset)
                while len(records) < limit:
                    line = file.readline()
                    if not line.endswith(b"\n"):
                        break
                    self.offset += len(line)
                    record = _parse(line)
                    if record is not None:
                        records.append(record)
        except FileNotFoundError:
            pass
        return records


def _cut_after(path: Path, last_step: int | None) -> int:
    """Cut the file before its first record beyond `last_step` (None: cut a torn last line only).

    Steps rise within a file, so one truncation, which is atomic, does it. Gives the number of records cut.
    """
    if not path.exists():
        return 0
    keep, cut, ends_with_newline = 0, 0, True
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            record = _parse(line)
            if record is None:
                _complain_unless_torn(path, number, line, file)
            elif cut or (last_step is not None and int(record.get("step", 0)) > last_step):
                cut += 1
            else:
                keep, ends_with_newline = keep + len(line), line.endswith(b"\n")
    if keep < path.stat().st_size:
        os.truncate(path, keep)
    if not ends_with_newline:
        with open(path, "ab") as appended:
            appended.write(b"\n")
    return cut


def _complain_unless_torn(path: Path, number: int, line: bytes, file: BinaryIO) -> None:
    if line.endswith(b"\n") or file.readline():
        raise UserError(f"{path}, line {number} is no JSON object: the journal is damaged; repair or remove that line")


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _finite(record: Record) -> tuple[Record, list[str]]:
    """`record` with non-finite floats as None, and the names of those."""
    bad = [name for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)]
    return {name: None if name in bad else value for name, value in record.items()}, bad
