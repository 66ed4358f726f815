"""Ranks, addresses, ports and identities from the environment of every launcher; node lists."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erica_dist.errors import UserError
from erica_dist.training import cluster
from erica_dist.training.cluster import PORTS, expand_hosts, free_port, job_ports, map_environment, stable_identity

STEP = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "localhost,node[2-3]",
    "SLURM_JOB_NODELIST": "node[1-9]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_CPUS_ON_NODE": "1",
}


def test_srun_sets_ranks_only_and_the_rest_is_derived():
    environ = dict(STEP)
    info = map_environment(environ)
    assert (info.rank, info.local_rank, info.world_size, info.launcher) == (3, 1, 4, "slurm")
    assert info.master_addr == environ["MASTER_ADDR"] == "localhost"
    assert environ["RANK"] == "3"
    assert environ["WORLD_SIZE"] == "4"
    assert environ["LOCAL_RANK"] == "1"
    assert info.master_port == int(environ["MASTER_PORT"])
    assert info.master_port in PORTS
    # Every rank of the step derives the same meeting point.
    other = map_environment({**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert (other.master_addr, other.master_port) == (info.master_addr, info.master_port)


def test_user_values_are_kept_under_srun():
    environ = {**STEP, "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "4711", "OMP_NUM_THREADS": "7"}
    info = map_environment(environ)
    assert (info.master_addr, info.master_port) == ("10.1.2.3", 4711)
    assert environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("extra", "launcher"), [({}, "deepspeed"), ({"TORCHELASTIC_RUN_ID": "none", "SLURM_STEP_ID": "0"}, "torchrun")]
)
def test_other_launchers_are_left_alone(extra, launcher):
    given_values = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    environ = {**given_values, **extra, "SLURM_PROCID": "0", "SLURM_JOB_ID": "5"}
    info = map_environment(environ)
    assert info == cluster.ClusterInfo(1, 1, 2, "127.0.0.1", 29500, launcher)
    assert {name: environ[name] for name in given_values} == given_values


def test_nothing_launched_is_one_rank_on_a_free_port():
    # A batch script has SLURM_PROCID as well, and is no rank.
    environ = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    info = map_environment(environ)
    assert (info.rank, info.world_size, info.master_addr, info.launcher) == (0, 1, "127.0.0.1", "single")
    with socket.socket() as server:
        server.bind(("127.0.0.1", info.master_port))


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "0"}, "LOCAL_RANK"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "two", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "WORLD_SIZE"),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=2"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "SLURM_JOB_NODELIST"),
    ],
)
def test_a_half_set_environment_is_refused(environ, named):
    with pytest.raises(UserError, match=named):
        map_environment(environ)


def test_an_unknown_first_host_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match=r"no-such-host\.invalid.*MASTER_ADDR"):
        cluster.reachable_name("no-such-host.invalid")


def test_threads_are_an_even_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(cluster.os, "sched_getaffinity", lambda _: set(range(16)))
    for extra, threads in [
        ({}, 16),
        ({"LOCAL_SIZE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "32"}, 1),
        ({**STEP, "SLURM_CPUS_PER_TASK": "5"}, 5),
        ({**STEP, "SLURM_CPUS_ON_NODE": "12"}, 6),  # two tasks on this node
        ({**STEP, "SLURM_CPUS_ON_NODE": "12", "SLURM_STEP_TASKS_PER_NODE": "2,3(x1)"}, 4),
        ({**STEP, "SLURM_CPUS_ON_NODE": "64"}, 16),  # bound to 16 of the node's 64
    ]:
        environ = dict(extra)
        map_environment(environ)
        assert environ["OMP_NUM_THREADS"] == str(threads), extra


# ------------------------------------------------------------------------------------------------ identity and ports


def test_identity_is_that_of_the_array_task_and_survives_a_requeue():
    assert stable_identity({"SLURM_JOB_ID": "17"}) == "17"
    task = {"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    assert stable_identity(task) == "17_2"
    assert stable_identity({**task, "SLURM_RESTART_COUNT": "1"}) == "17_2"
    assert stable_identity({}) == ""


def test_jobs_steps_and_array_tasks_get_ports_of_their_own():
    jobs = [{"SLURM_JOB_ID": str(i)} for i in range(100)]
    jobs += [{"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": str(i)} for i in range(100)]
    first = [job_ports(job, step)[0] for job in jobs for step in ("0", "1")]
    assert all(port in PORTS for port in first)
    # 400 draws out of 14,768: about 5 coincide by chance, a narrow hash would make hundreds.
    assert len(set(first)) > 380


def test_a_port_in_use_is_passed_over():
    job = {"SLURM_JOB_ID": "44"}
    wanted = job_ports(job, "")
    with socket.socket() as server:
        server.bind(("127.0.0.1", wanted[0]))
        server.listen()
        assert free_port(job) in wanted[1:]


def test_no_free_port_is_an_error(monkeypatch):
    monkeypatch.setattr(cluster, "is_free", lambda port: False)
    with pytest.raises(UserError, match="MASTER_PORT"):
        free_port({"SLURM_JOB_ID": "44"})


def test_the_module_prints_a_port_for_batch_scripts():
    printed = subprocess.run(
        [sys.executable, "-m", "erica_dist.training.cluster"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(cluster.__file__).parents[2],
    ).stdout
    assert int(printed) in PORTS


# ------------------------------------------------------------------------------------------------ node lists


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b-2.example.org", ["a", "b-2.example.org"]),
        ("node[1-3,07-09]", ["node1", "node2", "node3", "node07", "node08", "node09"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[099-101]x", ["n099x", "n100x", "n101x"]),
        ("gpu-a[01-02]b[1-2],m[5]", ["gpu-a01b1", "gpu-a01b2", "gpu-a02b1", "gpu-a02b2", "m5"]),
        ("[1-2]-rack", ["1-rack", "2-rack"]),
        ("a, b", ["a", "b"]),
    ],
)
def test_node_lists_expand_as_slurm_does(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", "a,,b", "a,", "n[1-3", "n1-3]", "n[[1]]", "n[]", "n[1,]", "n[3-1]", "n[a-b]", "n[1-2-3]", "n[-1]", "n]1["],
)
def test_malformed_node_lists_are_refused(text):
    with pytest.raises(UserError, match="node list"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[1-1000]m[1-1000]"])
def test_a_node_list_without_end_is_refused_before_it_fills_the_memory(text):
    with pytest.raises(UserError, match="100,000"):
        expand_hosts(text)


ranges = st.tuples(st.integers(0, 200), st.integers(0, 20), st.integers(1, 4))


@given(st.lists(ranges, min_size=1, max_size=5), st.sampled_from(["n", "gpu-a", "x1y"]), st.sampled_from(["", "s"]))
def test_one_bracket_gives_every_number_of_its_ranges_in_order(parts, prefix, suffix):
    text = ",".join(f"{low:0{width}d}-{low + count:0{width}d}" for low, count, width in parts)
    hosts = expand_hosts(f"{prefix}[{text}]{suffix}")
    assert [int(re.fullmatch(rf"{prefix}(\d+){suffix}", host)[1]) for host in hosts] == [
        number for low, count, _ in parts for number in range(low, low + count + 1)
    ]
