"""Feeds MLflow from the run's journal, off the training thread, and never at the run's expense.

A background thread of rank 0 follows the journal files and sends what is new every few seconds. When the store is
away that is said once, the run goes on with its journal, and the thread tries again from time to time. `close` waits a
bounded time for the rest; what did not arrive by then is sent by `erica-dist track RUN_DIR` (`resend`).
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from erica_dist.config import TrackingConfig
from erica_dist.errors import UserError
from erica_dist.tracking import store
from erica_dist.tracking.journal import EVALUATION, METRICS, iterate
from erica_dist.tracking.owner import Owner
from erica_dist.tracking.sending import RECORD, RunRecord, RunSender, Status

INTERVAL = 5.0  # seconds between two sendings
LONGEST_PAUSE = 60.0  # seconds between two attempts at a store that is away
SILENT_AFTER = 600.0  # seconds without a sign after which another host's trainer counts as gone

_log = logging.getLogger("erica_dist.tracking")


class MLflowSink:
    """The running feed of one training. Make it with `start`; without a store every method does nothing."""

    def __init__(self, sender: RunSender | None, interval: float = INTERVAL) -> None:
        self._sender = sender
        self._interval = interval
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if sender is not None:
            self._thread = threading.Thread(target=self._follow, name="mlflow-sink", daemon=True)
            self._thread.start()

    @classmethod
    def start(
        cls,
        tracking: TrackingConfig,
        run_dir: str | Path,
        run_name: str,
        settings: dict[str, Any],
        tags: dict[str, str],
        interval: float = INTERVAL,
    ) -> MLflowSink:
        """Begin or continue the MLflow run of `run_dir`. Call it on rank 0 only, after `Journal.open` and before loader
        workers are started. Returns at once and never raises because of MLflow.

        Args:
            tracking: where to (`uri` empty: SQLite beside the run's folder; `none`: nowhere) and which experiment.
            settings: the resolved job, flat (`settings.flatten`): the run's parameters.
            tags: such as {"job": "erica"} and `environment.environment_tags(...)`.
            interval: seconds between two sendings.
        """
        folder = Path(run_dir)
        uri = store.resolve_uri(tracking, folder)
        if uri is None:
            return cls(None)
        try:
            values = {key: str(value) for key, value in settings.items()}
            if "tracking.uri" in values:
                values["tracking.uri"] = store.shown(values["tracking.uri"])
            record = RunRecord(
                path=folder / RECORD,
                uri=uri,
                experiment=tracking.experiment,
                run_name=run_name or folder.resolve().name,
                settings=values,
                tags=tags,
                owner=Owner.of_this_process(),
            )
            former = RunRecord.load(folder)
            record = former.continued(record) if former else record
            record.save()
            store.load_mlflow()
        except Exception as error:  # tracking must not end a training, whatever is wrong with it
            _log.warning("no MLflow for this run (%s); its journal in %s has everything", error, folder)
            return cls(None)
        return cls(RunSender(record), interval)

    def close(self, status: Status, artifacts: list[Path], wait: float = 60.0) -> None:
        """Send the rest and end the run with `status`, in at most `wait` seconds. Never raises because of MLflow.

        Args:
            status: FINISHED, FAILED or KILLED.
            artifacts: files to keep with the run, beside its configuration, environment and journal.
        """
        if self._sender is None or self._thread is None or self._closing.is_set():
            return
        record = self._sender.record
        record.closed = (status, time.time())
        record.artifacts = [str(Path(path).resolve()) for path in artifacts]
        try:
            record.save()
        except OSError as error:
            _log.warning("cannot write %s: %s", record.path, error)
        self._closing.set()
        self._thread.join(wait)
        if not record.delivered:
            _log.warning(
                "MLflow at %s did not get everything of this run; send the rest with: erica-dist track %s",
                store.shown(record.uri),
                record.path.parent,
            )

    def _follow(self) -> None:
        assert self._sender is not None
        pause, away = 0.0, False
        while True:
            closing = self._closing.wait(pause)
            try:
                self._sender.connect(running=True)
                self._sender.send_new()
                if closing:
                    self._sender.finish()
                    return
                self._sender.record.heartbeat()
                if away:
                    _log.warning("MLflow at %s is back", store.shown(self._sender.record.uri))
                pause, away = self._interval, False
            except Exception as error:  # errors never reach the trainer
                if not away:
                    _log.warning(
                        "MLflow at %s does not answer (%s); training goes on, the journal keeps everything",
                        store.shown(self._sender.record.uri),
                        _first_line(error),
                    )
                pause, away = min(max(2 * pause, self._interval), LONGEST_PAUSE), True
                if closing:
                    return


def resend(run_dir: str | Path) -> None:
    """Send to MLflow what a run recorded while the store was away, and end it there as it ended (KILLED when its
    process is gone without a word). This is `erica-dist track RUN_DIR`.

    Raises:
        UserError: no run in the folder, a run that is not tracked or still trains, or a store that does not answer.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}")
    record = RunRecord.load(folder)
    if record is None:
        raise UserError(
            f"{folder} holds no {RECORD}: it is no run's folder, or the run was started with tracking.uri=none"
        )
    if record.closed is None:
        _refuse_if_training(record)
        last = [line["time"] for name in (METRICS, EVALUATION) for line in iterate(folder / name)]
        closed: tuple[Status, float] = ("KILLED", max(last, default=record.started))
        record.closed, record.delivered = closed, False
    status, where = record.closed[0], store.shown(record.uri)
    if record.delivered:
        print(f"{folder}: MLflow at {where} has everything (run {record.run_id}, {status})")
        return
    sender = RunSender(record)
    try:
        sender.connect(running=False)
        count = sender.send_new()
        sender.finish()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"MLflow at {where} does not answer: {_first_line(error)}; try again when it does") from error
    print(f"{folder}: sent {count} records to MLflow at {where}, run {record.run_id} is {status}")


def _refuse_if_training(record: RunRecord) -> None:
    alive = record.owner.alive()
    if alive is None:
        alive = time.time() - record.path.stat().st_mtime < SILENT_AFTER
    if alive:
        raise UserError(
            f"{record.path.parent} is still trained by process {record.owner.pid} on {record.owner.host}, "
            "which sends what is new itself"
        )


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
