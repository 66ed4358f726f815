"""Sends one run's journal to its MLflow run: the steps, in plain synchronous calls that may fail and be tried again.

What was sent is kept in `RUN_DIR/mlflow.json`: for each journal file the last step that arrived. Sending goes on
behind it, so nothing is sent twice, whoever sends: the training's own thread, a resumed training, or `erica-dist
track`. After a resume the steps that are computed again are not sent again: MLflow keeps their first values.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import write_atomically
from erica_dist.tracking import store
from erica_dist.tracking.journal import EVALUATION, EVENTS, METRICS, Record, Tail, iterate
from erica_dist.tracking.owner import Owner

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

Status = Literal["FINISHED", "FAILED", "KILLED"]

RECORD = "mlflow.json"
STANDARD_ARTIFACTS = ("config.yaml", "environment.json", METRICS, EVALUATION, EVENTS)
PREFIXES = {METRICS: "", EVALUATION: "heldout/"}
KEY_TAG = "journal.key"
_READ = 200  # records read at a time
_SHORTEST_LIMIT = 250  # of a parameter's value in any MLflow server still around


@dataclass
class RunRecord:
    """What `RUN_DIR/mlflow.json` holds: enough to make, continue and end the MLflow run without the trainer."""

    path: Path
    uri: str
    experiment: str
    run_name: str
    settings: dict[str, str]
    tags: dict[str, str]
    owner: Owner
    started: float = field(default_factory=time.time)  # seconds since 1970
    key: str = field(default_factory=lambda: uuid.uuid4().hex)  # finds the run when its id got lost on the way
    run_id: str = ""  # empty: not made yet
    sent: dict[str, int] = field(default_factory=dict)  # journal file -> last step that arrived
    closed: tuple[Status, float] | None = None  # how and when training ended
    artifacts: list[str] = field(default_factory=list)  # paths relative to the run's folder, or absolute
    delivered: bool = False  # everything arrived, the end too
    _saving: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @classmethod
    def load(cls, run_dir: Path) -> RunRecord | None:
        """The record of `run_dir`, None when there is none.

        Raises:
            UserError: the file is damaged.
        """
        path = run_dir / RECORD
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            closed = values.pop("closed")
            owner = Owner(**values.pop("owner"))
            return cls(path=path, owner=owner, closed=(closed[0], closed[1]) if closed else None, **values)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); remove it, then everything is sent to a new run") from error

    def save(self) -> None:
        """Write the file, atomically. From any thread."""
        with self._saving:
            values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_SAVED}
            text = json.dumps(values | {"owner": dataclasses.asdict(self.owner)}, indent=1, ensure_ascii=False)
            write_atomically(self.path, text.encode() + b"\n")

    def continued(self, newer: RunRecord) -> RunRecord:
        """The record for a training that starts in the folder of this one: the same MLflow run is continued when the
        journal goes on (and the store is the same), otherwise `newer` begins a run of its own."""
        started_over = self.sent.get(METRICS, 0) > 0 and next(iterate(self.path.parent / METRICS), None) is None
        if started_over or (self.uri, self.experiment) != (newer.uri, newer.experiment):
            return newer
        return dataclasses.replace(newer, key=self.key, run_id=self.run_id, sent=self.sent, started=self.started)

    def heartbeat(self) -> None:
        """Say to other hosts, by the file's time, that the sender is alive."""
        os.utime(self.path)


_NOT_SAVED = ("path", "_saving")


class RunSender:
    """One run's way to MLflow. Every method may raise what MLflow raises, and may then be called again."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.folder = record.path.parent
        self._client: MlflowClient | None = None
        self._tails = {name: Tail(self.folder / name) for name in (*PREFIXES, EVENTS)}
        self._events: dict[str, list[str]] = {}
        self._new_events = False

    def connect(self, running: bool) -> None:
        """Open the store and make or continue the run; `running`: this process is its trainer."""
        if self._client is not None:
            return
        record = self.record
        client = store.connect(record.uri)
        experiment = store.experiment_id(client, record.uri, record.experiment)
        run = self._find(client, experiment)
        tags = record.tags | record.owner.tags() | {KEY_TAG: record.key, "run_dir": str(self.folder)}
        if run is None:
            run = client.create_run(
                experiment, start_time=_milliseconds(record.started), tags=_tags(tags), run_name=record.run_name
            )
            record.sent = {}
        else:
            changed = _changes(run.data.tags, record.tags)
            _log_tags(client, run.info.run_id, tags | changed)
            if running:
                client.update_run(run.info.run_id, status="RUNNING")
        record.run_id = run.info.run_id
        record.save()
        self._log_settings(client, run)
        store.close_dead_runs(client, experiment)
        self._client = client

    def send_new(self) -> int:
        """Send what the journal has got since the last call; gives the number of records that arrived."""
        count = 0
        for name, prefix in PREFIXES.items():
            tail = self._tails[name]
            offset = tail.offset
            try:
                while records := tail.read(_READ):
                    count += self._send(name, prefix, records)
                    offset = tail.offset
            except BaseException:
                tail.offset = offset
                raise
        self._send_events()
        return count

    def finish(self) -> None:
        """Send the artifacts and end the run as `record.closed` says. The end is set even when artifacts fail."""
        assert self._client is not None
        assert self.record.closed is not None
        status, end = self.record.closed
        files = [self.folder / name for name in dict.fromkeys([*STANDARD_ARTIFACTS, *self.record.artifacts])]
        try:
            for file in files:
                if file.is_file():
                    self._client.log_artifact(self.record.run_id, str(file))
        finally:
            self._client.set_terminated(self.record.run_id, status, end_time=_milliseconds(end))
        self.record.delivered = True
        self.record.save()

    def _find(self, client: MlflowClient, experiment: str) -> Run | None:
        """The run that was begun for this record; None when there is none or it was deleted in the store."""
        from mlflow.exceptions import MlflowException

        if self.record.run_id:
            try:
                run = client.get_run(self.record.run_id)
                return run if run.info.lifecycle_stage == "active" else None
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise
        # A call that made the run may have failed after the store had made it.
        found = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{self.record.key}'", max_results=1)
        return found[0] if found else None

    def _log_settings(self, client: MlflowClient, run: Run) -> None:
        """Parameters of a new run; on a continued one those that are new, and a tag for each that changed: MLflow
        refuses to change a parameter."""
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        stored = run.data.params
        for limit in (MAX_PARAM_VAL_LENGTH, _SHORTEST_LIMIT):
            values = {key: _shortened(value, limit) for key, value in self.record.settings.items()}
            new = [Param(key, value) for key, value in values.items() if key not in stored]
            try:
                for start in range(0, len(new), MAX_PARAMS_TAGS_PER_BATCH):
                    client.log_batch(run.info.run_id, params=new[start : start + MAX_PARAMS_TAGS_PER_BATCH])
                break
            except MlflowException as error:
                # A server older than this client may allow less.
                if error.error_code != "INVALID_PARAMETER_VALUE" or limit == _SHORTEST_LIMIT:
                    raise
                stored = client.get_run(run.info.run_id).data.params
        _log_tags(client, run.info.run_id, _changes(run.data.params, values))

    def _send(self, name: str, prefix: str, records: list[Record]) -> int:
        """Send the records beyond the last step that arrived, in batches as large as MLflow takes."""
        from mlflow.utils.validation import MAX_METRICS_PER_BATCH

        batch: list[Metric] = []
        count = last = 0
        for record in records:
            if record["step"] <= self.record.sent.get(name, -1):
                continue
            metrics = _metrics(record, prefix)
            if len(batch) + len(metrics) > MAX_METRICS_PER_BATCH:
                self._send_batch(name, batch, last)
                batch = []
            batch, count, last = batch + metrics, count + 1, record["step"]
        if count:
            self._send_batch(name, batch, last)
        return count

    def _send_batch(self, name: str, batch: list[Metric], last_step: int) -> None:
        assert self._client is not None
        self._client.log_batch(self.record.run_id, metrics=batch)
        self.record.sent[name] = last_step
        self.record.save()

    def _send_events(self) -> None:
        """Each kind of event becomes one tag with its number and its latest steps."""
        assert self._client is not None
        while events := self._tails[EVENTS].read(_READ):
            self._new_events = True
            for event in events:
                self._events.setdefault(str(event.get("event")), []).append(str(event.get("step", "?")))
        if self._new_events:
            tags = {
                f"event.{n}": f"{len(steps)}x, at step {', '.join(steps[-10:])}" for n, steps in self._events.items()
            }
            _log_tags(self._client, self.record.run_id, tags)
            self._new_events = False


def _metrics(record: Record, prefix: str) -> list[Metric]:
    """The numbers of one record; null (a value that was not finite) is left out, its event tells of it."""
    from mlflow.entities import Metric

    timestamp = _milliseconds(record.get("time", time.time()))
    return [
        Metric(re.sub(r"[^\w/.\- ]", "_", prefix + name), float(value), timestamp, record["step"])
        for name, value in record.items()
        if name not in ("step", "time") and isinstance(value, int | float)
    ]


def _changes(stored: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Tags `changed.<key>` for the values that differ from the stored ones."""
    return {
        f"changed.{key}": f"{stored[key]} -> {value}"
        for key, value in now.items()
        if key in stored and stored[key] != value
    }


def _log_tags(client: MlflowClient, run_id: str, tags: dict[str, str]) -> None:
    from mlflow.entities import RunTag
    from mlflow.utils.validation import MAX_PARAMS_TAGS_PER_BATCH

    items = [RunTag(key, value) for key, value in _tags(tags).items()]
    for start in range(0, len(items), MAX_PARAMS_TAGS_PER_BATCH):
        client.log_batch(run_id, tags=items[start : start + MAX_PARAMS_TAGS_PER_BATCH])


def _tags(tags: dict[str, Any]) -> dict[str, str]:
    from mlflow.utils.validation import MAX_TAG_VAL_LENGTH

    return {key: _shortened(str(value), MAX_TAG_VAL_LENGTH) for key, value in tags.items()}


def _shortened(value: str, limit: int) -> str:
    mark = "... (cut; whole in config.yaml)"
    return value if len(value) <= limit else value[: limit - len(mark)] + mark


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
