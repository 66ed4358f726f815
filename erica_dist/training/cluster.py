"""Who this process is in its job: rank, world size and where the ranks meet, whatever started it.

In flows the environment that a launcher left; out flows a `ClusterInfo`, and the environment holds RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS as torch and DeepSpeed read them. `deepspeed` and `torchrun`
set those themselves and are left alone. `srun` sets only SLURM_*: every rank derives the same values from them, without
talking to the others and without ssh. A process that nothing launched is a job of one rank.

Imports neither torch nor DeepSpeed: torch reads OMP_NUM_THREADS once, when it is imported, so `map_environment` must
run before that. `python -m erica_dist.training.cluster` prints a port that is free on this host, for batch scripts.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Literal

from erica_dist.errors import UserError

Launcher = Literal["deepspeed", "torchrun", "slurm", "single"]

# Below the ports that Linux hands out for outgoing connections (32768 and up) and above most services' own.
PORTS = range(18_000, 32_768)
MAX_HOSTS = 100_000  # a node list that names more is a typing error, and must not fill the memory


@dataclass(frozen=True)
class ClusterInfo:
    rank: int
    local_rank: int
    world_size: int
    master_addr: str
    master_port: int
    launcher: Launcher


def map_environment(environ: MutableMapping[str, str] = os.environ) -> ClusterInfo:
    """Fill in what torch and DeepSpeed need to meet, and say who this rank is. Values that are set already are kept.

    Raises:
        UserError: the launcher left a variable out or no number in it, or the first host's address is not to be found.
    """
    if "RANK" in environ or "WORLD_SIZE" in environ:
        launcher: Launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "deepspeed"
        found = {}
    elif "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ:
        # A batch script or `salloc` shell has SLURM_PROCID too, but only srun's tasks belong to a step.
        launcher = "slurm"
        found = _from_slurm(environ)
    else:
        launcher = "single"
        found = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        environ.setdefault("MASTER_ADDR", "127.0.0.1")
        if "MASTER_PORT" not in environ:
            environ["MASTER_PORT"] = str(_any_free_port())
    environ.update(found)
    environ.setdefault("OMP_NUM_THREADS", str(_threads(environ)))
    info = ClusterInfo(
        rank=_number(environ, "RANK"),
        local_rank=_number(environ, "LOCAL_RANK"),
        world_size=_number(environ, "WORLD_SIZE"),
        master_addr=_text(environ, "MASTER_ADDR"),
        master_port=_number(environ, "MASTER_PORT"),
        launcher=launcher,
    )
    if info.rank >= info.world_size:
        raise UserError(f"RANK={info.rank} does not fit WORLD_SIZE={info.world_size}: ranks count from 0")
    return info


def stable_identity(environ: Mapping[str, str] = os.environ) -> str:
    """Name of the SLURM job, the same after a requeue: `<array job>_<task>` or the job id; empty outside of SLURM."""
    if "SLURM_ARRAY_JOB_ID" in environ and "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID", "")


def _from_slurm(environ: MutableMapping[str, str]) -> dict[str, str]:
    nodes = environ.get("SLURM_STEP_NODELIST") or _text(environ, "SLURM_JOB_NODELIST")
    if "MASTER_ADDR" not in environ:
        # The name, not the address it has here: Debian hosts know their own name as 127.0.1.1.
        environ["MASTER_ADDR"] = reachable_name(expand_hosts(nodes)[0])
    if "MASTER_PORT" not in environ:
        environ["MASTER_PORT"] = str(job_ports(environ, environ.get("SLURM_STEP_ID", ""))[0])
    # The step's own number of tasks: SLURM_NTASKS may still be that of the whole allocation.
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or _text(environ, "SLURM_NTASKS")
    return {"RANK": _text(environ, "SLURM_PROCID"), "LOCAL_RANK": _text(environ, "SLURM_LOCALID"), "WORLD_SIZE": tasks}


# ------------------------------------------------------------------------------------------------ hosts


def expand_hosts(text: str) -> list[str]:
    """Host names of a SLURM node list such as `login,node[1-3,07-09],gpu-a[01-02]b[1-2]`, in SLURM's order.

    Several brackets multiply, the last one fastest; a number written with leading zeros sets the width of its range.

    Raises:
        UserError: brackets that do not match, an empty name or range, a range that falls, or more than 100,000 hosts.
    """
    hosts: list[str] = []
    for item in _split_outside_brackets(text):
        pieces = re.split(r"\[([^\[\]]*)\]", item)
        if not item or any("[" in piece or "]" in piece for piece in pieces):
            raise UserError(f"node list {text!r}: {item!r} is no host name or range such as node[1-3,07]")
        # re.split alternates between plain text and what stood in brackets.
        choices = [_numbers(piece, text) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        for parts in itertools.product(*choices):
            hosts.append("".join(parts))
            if len(hosts) > MAX_HOSTS:
                raise UserError(f"node list {text[:80]!r} names more than {MAX_HOSTS:,} hosts")
    return hosts


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth = start = 0
    for i, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise UserError(f"node list {text!r}: bracket at character {i + 1} does not match")
        if character == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if depth:
        raise UserError(f"node list {text!r}: a bracket is not closed")
    yield text[start:].strip()


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part)
        if not match:
            raise UserError(f"node list {text!r}: {part!r} in [{ranges}] is no number or range such as 07-09")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise UserError(f"node list {text!r}: range {part!r} falls")
        if int(high) - int(low) >= MAX_HOSTS:
            raise UserError(f"node list {text!r} names more than {MAX_HOSTS:,} hosts")
        numbers.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return numbers


def reachable_name(host: str) -> str:
    """`host` when it resolves, else the address that SLURM itself uses for the node (its NodeAddr).

    Raises:
        UserError: neither resolves, with the setting that helps.
    """
    if _resolves(host):
        return host
    try:
        shown = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", host], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    match = re.search(r"\bNodeAddr=(\S+)", shown)
    if match and _resolves(match[1]):
        return match[1]
    raise UserError(
        f"the job's first host {host!r} does not resolve, and `scontrol show node {host}` gives no NodeAddr that does: "
        "export MASTER_ADDR with an address that all nodes reach"
    )


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


# ------------------------------------------------------------------------------------------------ ports and threads


def job_ports(environ: Mapping[str, str], purpose: str) -> list[int]:
    """Ports to try for `purpose`, best first: a wide hash of the job's identity, the same on every rank.

    Two jobs that share a node, the tasks of an array and the steps of a job get different ones.
    """
    identity = f"{environ.get('SLURM_CLUSTER_NAME', '')}/{stable_identity(environ)}/{purpose}"
    digest = hashlib.blake2b(identity.encode(), digest_size=32).digest()
    return [PORTS[int.from_bytes(digest[i : i + 4], "little") % len(PORTS)] for i in range(0, len(digest), 4)]


def free_port(environ: Mapping[str, str] = os.environ, purpose: str = "") -> int:
    """The first of `job_ports` that nothing on this host listens on.

    Raises:
        UserError: all of them are taken.
    """
    candidates = job_ports(environ, purpose)
    for port in candidates:
        if is_free(port):
            return port
    raise UserError(f"no free port on {socket.gethostname()}: tried {candidates}; export MASTER_PORT with a free one")


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of this host now, on all its addresses."""
    with socket.socket() as probe:
        # As the real server does: a port in TIME_WAIT after a requeue is fine, one that somebody listens on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _threads(environ: Mapping[str, str]) -> int:
    """Cores of this rank: what SLURM gave it, else an even share of the cores that this process may use."""
    given = environ.get("SLURM_CPUS_PER_TASK", "") if "SLURM_STEP_ID" in environ else ""
    if given.isdigit():
        return max(1, int(given))
    allowed = len(os.sched_getaffinity(0))
    on_node = int(environ.get("SLURM_CPUS_ON_NODE") or allowed)
    if allowed < on_node:  # SLURM bound this task to its own cores
        return allowed
    ranks = environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE") or _tasks_on_this_node(environ)
    return max(1, on_node // int(ranks))


def _tasks_on_this_node(environ: Mapping[str, str]) -> int:
    """This node's entry of SLURM_STEP_TASKS_PER_NODE, a run-length list such as `4(x2),1`; 1 outside of SLURM."""
    counts: list[int] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = int(environ.get("SLURM_NODEID") or 0)
    return max(1, counts[node]) if node < len(counts) else 1


# ------------------------------------------------------------------------------------------------ reading variables


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise UserError(
            f"{name} is not set: start with deepspeed, torchrun or srun, or set all of RANK, LOCAL_RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of RANK and WORLD_SIZE"
        )
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _text(environ, name)
    if not text.isdigit():
        raise UserError(f"{name}={text!r} is no whole number from 0")
    return int(text)


if __name__ == "__main__":
    print(free_port())
