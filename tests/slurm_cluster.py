"""A real SLURM of two nodes on this machine, for tests: munged, slurmctld and two slurmd, all private to one folder.

`two_node_slurm` (a session fixture; import it in the test module) gives a `SlurmCluster` or skips with the reason.
Keys, sockets, state and logs lie in a temporary folder, ports are free ones, and the daemons are ended by the pids in
their own pid files, so that a SLURM of the machine itself is neither needed nor touched. The nodes have addresses of
their own (127.0.0.2 and 127.0.0.3) and names that do not resolve, as on clusters without DNS for the nodes.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
NODES = {"node1": "127.0.0.2", "node2": "127.0.0.3"}
# Daemons live in sbin folders, which are not on every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits for its old credential to run out: 5 seconds instead of two minutes.
AuthInfo=cred_expire=5,socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# Process groups and no cgroups: needs no system daemon, and finds what a dead launcher leaves behind.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=1
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
MinJobAge=600
PropagateResourceLimits=NONE
JobRequeue=1
{nodes}
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Job:
    """What became of one batch job: `state` as SLURM names it, exit code of the batch script, its log."""

    id: str
    state: str
    exit_code: int
    restarts: int
    log: str


@dataclass(frozen=True)
class SlurmCluster:
    folder: Path

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment without any rank or SLURM variable, pointed at the test cluster."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
            and name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        }
        return {**clean, "PATH": SEARCH_PATH, "SLURM_CONF": str(self.folder / "slurm.conf"), **(extra or {})}

    def run(self, *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Standard output of a SLURM command; AssertionError with its messages when it fails."""
        done = subprocess.run(command, env=self.environment(env), cwd=cwd, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """`sbatch arguments` from `cwd`; gives the job id."""
        return self.run("sbatch", "--parsable", *map(str, arguments), cwd=cwd, env=env).strip().partition(";")[0]

    def fields(self, job: str) -> dict[str, str]:
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_line(self, job: str, text: str, seconds: float = 120) -> None:
        """Until the job's log holds `text`."""
        self._poll(job, lambda fields: text in _read(fields.get("StdOut")), seconds, f"a line with {text!r}")

    def wait(self, job: str, seconds: float = 240) -> Job:
        """Until the job has ended; requeued jobs go on."""
        fields = self._poll(
            job,
            lambda fields: fields["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
            seconds,
            "an end",
        )
        return Job(
            id=job,
            state=fields["JobState"],
            exit_code=int(fields["ExitCode"].partition(":")[0]),
            restarts=int(fields["Restarts"]),
            log=_read(fields["StdOut"]),
        )

    def _poll(self, job: str, reached: Callable[[dict[str, str]], bool], seconds: float, what: str) -> dict[str, str]:
        end = time.monotonic() + seconds
        while True:
            fields = self.fields(job)
            if reached(fields):
                return fields
            if time.monotonic() > end:
                subprocess.run(["scancel", job], env=self.environment(), check=False)
                pytest.fail(f"job {job} did not reach {what} in {seconds} s: {fields}\n{_read(fields.get('StdOut'))}")
            time.sleep(0.3)


def _read(path: str | None) -> str:
    try:
        return Path(path or "").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def _start(folder: Path) -> None:
    host = socket.gethostname().partition(".")[0]
    controller_port, *node_ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeAddr={address} NodeHostname={host} Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"
        for (name, address), port in zip(NODES.items(), node_ports, strict=True)
    )
    text = CONFIGURATION.format(
        host=host, user=getpass.getuser(), folder=folder, controller_port=controller_port, nodes=nodes
    )
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    (folder / "state").mkdir()
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)

    environment = {**os.environ, "PATH": SEARCH_PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")]
    commands = [["munged", "--force", *munge, f"--seed-file={folder}/munge.seed"], ["slurmctld"]]
    commands += [["slurmd", "-N", name] for name in NODES]
    for command in commands:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command} failed: {done.stdout}{done.stderr}"
    end = time.monotonic() + 60
    while True:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"], env=environment, capture_output=True, text=True
        )
        if done.stdout.split() == ["idle"] * len(NODES):
            return
        assert time.monotonic() < end, f"the nodes did not come up: {done.stdout}{done.stderr}"
        time.sleep(0.2)


def _stop(folder: Path) -> None:
    """End the daemons by the pids they wrote, jobs first, and wait until they are gone."""
    environment = {**os.environ, "PATH": SEARCH_PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["scancel", f"--user={getpass.getuser()}"], env=environment, capture_output=True, timeout=20)
    names = [*(f"slurmd-{node}.pid" for node in NODES), "slurmctld.pid", "munge.pid"]
    for path in (folder / name for name in names):
        try:
            pid = int(path.read_text())
        except (OSError, ValueError):
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            for _ in range(100):
                os.kill(pid, 0)
                time.sleep(0.1)
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def two_node_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    missing = [name for name in NEEDED if not shutil.which(name, path=SEARCH_PATH)]
    if missing:
        pytest.skip(f"SLURM is not installed here (no {', '.join(missing)}): apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    try:
        _start(folder)
        yield SlurmCluster(folder)
    finally:
        _stop(folder)
