"""A Ray cluster over the nodes of a SLURM job, for the time of one command.

`python slurm/ray_cluster.py COMMAND ARGUMENT...` in a batch script starts a head on the first node and a worker on each
other one (one srun step), waits until every node has run a task, runs the command with `ray.address=HOST:PORT` added,
ends Ray, and leaves with the command's status. Nothing of it is seen by other jobs on the same nodes: the ports follow
from the job's identity and are tested, a token of this job alone opens the cluster, files lie in a private folder that
is removed at the end, and Ray is ended by the process that started it (`ray stop` ends everybody's).
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from erica_dist.errors import UserError
from erica_dist.training.cluster import PORTS, expand_hosts, is_free, job_ports, reachable_name

BLOCK = 256  # ports of one node: Ray's services first, its workers in the rest
SERVICES = (
    "port",  # these two: of the head, unused on the others
    "ray-client-server-port",
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
READY = b"ready"
START_SECONDS = 180.0

ENVIRONMENT = {
    # Ray reports usage, and says so even where reporting is off, unless the address leads nowhere.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/",
    "RAY_AUTH_MODE": "token",
    # For the workers: one core a task, and no model hub.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


def run(command: Sequence[str]) -> int:
    """Start the cluster, run `command` on it, end the cluster; gives the command's exit status."""
    addresses = node_addresses()
    first_port = free_block(0)
    head = f"{addresses[0]}:{first_port}"
    os.environ.update(
        ENVIRONMENT,
        RAY_AUTH_TOKEN=secrets.token_hex(32),
        ERICA_DIST_NODE_IPS=",".join(addresses),
        ERICA_DIST_RAY_HEAD=head,
    )
    _say(f"starting Ray on {len(addresses)} nodes, head {head}")
    nodes = [f"--nodes={len(addresses)}", f"--ntasks={len(addresses)}", "--ntasks-per-node=1"]
    # srun hands its standard input to all tasks: when it closes, whatever the reason, every node ends its Ray. A node
    # that fails ends the step at once, but only until "ready" is said: a build survives the loss of a worker.
    srun = ["srun", "--kill-on-bad-exit=1", *nodes]
    step = subprocess.Popen([*srun, sys.executable, __file__, "--node"], stdin=subprocess.PIPE)
    assert step.stdin is not None
    try:
        wait_until_ready(head, len(addresses), step)
        step.stdin.write(READY)
        step.stdin.flush()
        _say(f"Ray is ready on {len(addresses)} nodes")
        return subprocess.run([*command, f"ray.address={head}"], check=False).returncode
    finally:
        step.stdin.close()
        try:
            step.wait(timeout=60)
        except subprocess.TimeoutExpired:
            step.kill()
        _say("Ray has ended")


def node_addresses() -> list[str]:
    """IP address of each node of the job, head first: ERICA_DIST_NODE_IPS, or what SLURM calls the nodes, resolved.

    Raises:
        UserError: no SLURM job, a name that does not resolve, or not one address of its own for every node.
    """
    if "SLURM_JOB_NODELIST" not in os.environ:
        raise UserError("this runs inside a SLURM job: sbatch slurm/build_corpus.sbatch ...")
    hosts = expand_hosts(os.environ["SLURM_JOB_NODELIST"])
    given = os.environ.get("ERICA_DIST_NODE_IPS", "")
    addresses = given.split(",") if given else [socket.gethostbyname(reachable_name(host)) for host in hosts]
    if len(addresses) != len(hosts) or len(set(addresses)) != len(hosts):
        raise UserError(
            f"the nodes {', '.join(hosts)} need one address each, got {', '.join(addresses)}: set ERICA_DIST_NODE_IPS"
        )
    return addresses


def free_block(node: int) -> int:
    """First of `BLOCK` ports in a row that are free on this host; nodes of one job get different blocks.

    Raises:
        UserError: eight tries found none.
    """
    blocks = len(PORTS) // BLOCK
    for wide in job_ports(os.environ, "ray"):
        first = PORTS[(wide + node) % blocks * BLOCK]
        if all(is_free(port) for port in range(first, first + BLOCK)):
            return first
    raise UserError(f"no {BLOCK} free ports in a row on {socket.gethostname()} for Ray: too many jobs on this node")


def wait_until_ready(head: str, nodes: int, step: subprocess.Popen[bytes]) -> None:
    """Until every node has run a task.

    Raises:
        UserError: the step ended, or not all nodes answered in time.
    """
    deadline = time.monotonic() + START_SECONDS
    wait_for_port(head, deadline, lambda: step.poll() is None)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR)
    try:
        while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
            if step.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"only {alive} of {nodes} Ray nodes came up; their messages stand above")
            time.sleep(0.5)
        answer = ray.remote(num_cpus=0)(lambda: True)
        pinned = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
        ray.get([answer.options(scheduling_strategy=one).remote() for one in pinned], timeout=START_SECONDS)
    finally:
        ray.shutdown()


def wait_for_port(address: str, deadline: float, alive: Callable[[], bool] = lambda: True) -> None:
    host, port = address.rsplit(":", 1)
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError as error:
            if not alive() or time.monotonic() > deadline:
                raise UserError(f"Ray's head does not answer at {address}: {error}") from error
            time.sleep(0.5)


# ------------------------------------------------------------------------------------------------ on each node


def run_node() -> int:
    """This node's part of the cluster, until standard input closes or SLURM ends the step."""
    node = int(os.environ["SLURM_NODEID"])
    head = os.environ["ERICA_DIST_RAY_HEAD"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Ray's sockets lie below and their paths must stay under 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="er-", dir=os.environ.get("ERICA_DIST_RAY_TMP", "/tmp")))
    process = None
    try:
        # Where Ray finds this file in the home folder it does not ask the clouds' metadata servers where it runs.
        (folder / "ray_bootstrap_config.yaml").write_text("provider: {type: local}\n", encoding="utf-8")
        if node > 0:
            wait_for_port(head, time.monotonic() + START_SECONDS)
        environment = {**os.environ, "HOME": str(folder)}
        # Its standard output is advice for people, such as to end it by `ray stop`; errors come on the other one.
        process = subprocess.Popen(ray_start(node, head, folder), env=environment, stdout=subprocess.DEVNULL)
        ready = threading.Event()
        threading.Thread(target=_follow_input, args=[process, ready], daemon=True).start()
        status = process.wait()
        return 0 if ready.is_set() else status
    finally:
        if process is not None and process.poll() is None:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def ray_start(node: int, head: str, folder: Path) -> list[str]:
    store = int(os.environ.get("ERICA_DIST_RAY_STORE_MB", "200")) * 2**20
    free = shutil.disk_usage("/dev/shm").free
    if free < store:
        raise UserError(
            f"/dev/shm of {socket.gethostname()} has {free // 2**20} MB free, Ray's object store wants "
            f"{store // 2**20}: set ERICA_DIST_RAY_STORE_MB"
        )
    first = int(head.rsplit(":", 1)[1]) if node == 0 else free_block(node)
    ports = {name: first + i for i, name in enumerate(SERVICES)}
    if node == 0:
        place = ["--head", "--include-dashboard=false"]
    else:
        place = [f"--address={head}"]
        del ports["port"], ports["ray-client-server-port"]
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *place,
        f"--node-ip-address={os.environ['ERICA_DIST_NODE_IPS'].split(',')[node]}",
        f"--num-cpus={os.environ.get('SLURM_CPUS_ON_NODE', '1')}",
        f"--object-store-memory={store}",
        f"--temp-dir={folder}",
        *(f"--{name}={port}" for name, port in ports.items()),
        f"--min-worker-port={first + len(SERVICES)}",
        f"--max-worker-port={first + BLOCK - 1}",
    ]


def _follow_input(process: subprocess.Popen[bytes], ready: threading.Event) -> None:
    # The descriptor itself: a thread that waits in sys.stdin makes Python abort when it leaves.
    while os.read(0, len(READY)):
        ready.set()
    process.terminate()


def _say(text: str) -> None:
    print(f"ray cluster: {text}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(run_node() if sys.argv[1:] == ["--node"] else run(sys.argv[1:]))
    except UserError as error:
        print(f"ray cluster: error: {error}", file=sys.stderr)
        sys.exit(2)
