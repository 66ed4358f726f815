"""The MLflow store: which one a run is tracked in, how it is opened, and the runs in it whose trainer is gone.

MLflow is imported when it is first needed (it takes seconds) and told not to phone home. Calls over HTTP are bounded by
MLflow's own time-out and retry settings, shortened here unless the user has set them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from erica_dist.config import TrackingConfig
from erica_dist.errors import UserError
from erica_dist.offline import stay_offline
from erica_dist.tracking.owner import Owner

if TYPE_CHECKING:
    from mlflow import MlflowClient

_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}
_SQLITE = "sqlite:///"


def load_mlflow() -> None:
    """Import MLflow. Done on the training thread before loader workers are forked: a fork in the middle of an import
    would leave the child with a lock that nobody releases."""
    stay_offline()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401

    # Creating the tables of a new store is no news for whoever trains
    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def resolve_uri(tracking: TrackingConfig, run_dir: Path) -> str | None:
    """The tracking URI of a run: the configured one, else one SQLite store beside the run's folder, shared by all runs
    there; None for `none`."""
    if tracking.uri.lower() == "none":
        return None
    return tracking.uri or f"{_SQLITE}{run_dir.resolve().parent / 'mlflow.db'}"


def sqlite_path(uri: str) -> Path | None:
    """The database file of an SQLite URI, None for any other URI."""
    return Path(uri[len(_SQLITE) :]).absolute() if uri.startswith(_SQLITE) else None


def shown(uri: str) -> str:
    """`uri` without user name and password, for messages and for what is logged."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def connect(uri: str, create: bool = True) -> MlflowClient:
    """A client of the store at `uri`. An SQLite store that does not exist is made, by one process at a time.

    Raises:
        UserError: `create` is false and there is no such SQLite file.
        Exception: whatever MLflow raises for a store that it cannot open.
    """
    load_mlflow()
    from mlflow import MlflowClient

    database = sqlite_path(uri)
    if database is None:
        return MlflowClient(tracking_uri=uri)
    if create:
        database.parent.mkdir(parents=True, exist_ok=True)
    elif not database.is_file():
        raise UserError(f"there is no MLflow store {database}; training writes mlflow.db beside its run folders")
    with _locked(database.with_name(f"{database.name}.lock")):
        return MlflowClient(tracking_uri=uri)


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """The id of the experiment `name`, made when it is missing.

    Artifacts of an SQLite store lie in `mlartifacts` beside the database; a server decides for itself.

    Raises:
        UserError: an experiment of this name was deleted in MLflow.
    """
    from mlflow.exceptions import MlflowException

    database = sqlite_path(uri)
    location = (database.parent / "mlartifacts").as_uri() if database else None
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=location)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            # Another run made it between our two calls.
            experiment = client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage == "deleted":
        raise UserError(
            f"the experiment {name!r} was deleted in MLflow at {shown(uri)}: restore it there "
            "(`mlflow experiments restore`) or choose another tracking.experiment"
        )
    return str(experiment.experiment_id)


def close_dead_runs(client: MlflowClient, experiment: str) -> list[str]:
    """Mark as KILLED the runs that are RUNNING in the store but whose recorded process on this host is gone.

    Gives their names. The end is put at the last metric that arrived.
    """
    closed = []
    for run in client.search_runs([experiment], filter_string="attributes.status = 'RUNNING'", max_results=1000):
        owner = Owner.from_tags(run.data.tags)
        if owner is None or owner.alive() is not False:
            continue
        history = client.get_metric_history(run.info.run_id, "loss") if "loss" in run.data.metrics else []
        end = max((metric.timestamp for metric in history), default=run.info.start_time)
        client.set_terminated(run.info.run_id, "KILLED", end_time=end)
        closed.append(run.info.run_name)
    return closed


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` (left in place: removing a lock file is a race of its own).

    A file system without locks, or a folder that may only be read, is used without.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
