"""Addresses, ports and the exit status of the Ray cluster of a SLURM job, without SLURM."""

import importlib.util
import socket
import sys
from pathlib import Path

import pytest

from erica_dist.errors import UserError
from erica_dist.training.cluster import PORTS


@pytest.fixture(scope="module")
def ray_cluster():
    path = Path(__file__).parents[1] / "slurm" / "ray_cluster.py"
    specification = importlib.util.spec_from_file_location("ray_cluster", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "31")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost,node2")
    monkeypatch.setenv("ERICA_DIST_NODE_IPS", "127.0.0.2,127.0.0.3")


def test_addresses_are_the_given_ones_or_those_that_slurm_knows(ray_cluster, monkeypatch):
    assert ray_cluster.node_addresses() == ["127.0.0.2", "127.0.0.3"]
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost")
    monkeypatch.delenv("ERICA_DIST_NODE_IPS")
    assert ray_cluster.node_addresses() == ["127.0.0.1"]


@pytest.mark.parametrize("addresses", ["127.0.0.2", "127.0.0.2,127.0.0.2", "127.0.0.2,127.0.0.3,127.0.0.4"])
def test_every_node_needs_an_address_of_its_own(ray_cluster, monkeypatch, addresses):
    monkeypatch.setenv("ERICA_DIST_NODE_IPS", addresses)
    with pytest.raises(UserError, match="ERICA_DIST_NODE_IPS"):
        ray_cluster.node_addresses()


def test_outside_of_a_job_it_says_how_to_submit(ray_cluster, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    with pytest.raises(UserError, match=r"sbatch slurm/build_corpus\.sbatch"):
        ray_cluster.node_addresses()


def test_blocks_of_ports_do_not_overlap_and_pass_over_one_in_use(ray_cluster, monkeypatch):
    firsts = [ray_cluster.free_block(node) for node in range(20)]
    assert all(first in PORTS and first + ray_cluster.BLOCK - 1 in PORTS for first in firsts)
    gaps = [abs(a - b) for i, a in enumerate(firsts) for b in firsts[:i]]
    assert min(gaps) >= ray_cluster.BLOCK
    with socket.socket() as server:
        server.bind(("127.0.0.3", firsts[1] + 100))
        server.listen()
        assert ray_cluster.free_block(1) != firsts[1]
    monkeypatch.setattr(ray_cluster, "is_free", lambda port: False)
    with pytest.raises(UserError, match="free ports"):
        ray_cluster.free_block(0)


def test_the_command_gets_the_address_and_its_status_is_kept(ray_cluster, monkeypatch, tmp_path):
    # A step that, like the real one, lives until its standard input closes.
    (tmp_path / "srun").write_text(f"#!/bin/bash\ncat\ntouch {tmp_path}/ended\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(ray_cluster, "wait_until_ready", lambda head, nodes, step: None)
    monkeypatch.setattr(ray_cluster.os, "environ", dict(ray_cluster.os.environ))
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:])); sys.exit(5)"
    assert ray_cluster.run([sys.executable, "-c", program, str(tmp_path / "words"), "a=1"]) == 5
    head = f"127.0.0.2:{ray_cluster.free_block(0)}"
    assert (tmp_path / "words").read_text() == f"a=1 ray.address={head}"
    assert (tmp_path / "ended").exists()
