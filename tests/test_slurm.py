"""The batch scripts on a real SLURM of two nodes: ranks that meet, failures, requeue, Ray over the nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_tools.build import build_corpus
from data_tools.wikidata.builder import build_kb
from erica_dist import config, settings
from tests.corpora import corpus_job
from tests.slurm_cluster import SlurmCluster, two_node_slurm  # noqa: F401 (a fixture)
from tests.synthetic import write_documents_folder, write_sequences_folder

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[1]
ONE_CORE = "--cpus-per-task=1"

# A stand-in for a trainer, started by the real batch scripts: `launcher(tmp_path, PROGRAM)`.
PRELUDE = """\
import json, os, pathlib, signal, sys, time
from erica_dist.training.cluster import map_environment, stable_identity
info = map_environment()
out = pathlib.Path(sys.argv[1])
start = int(os.environ.get("SLURM_RESTART_COUNT", 0))
def note(name, **values):
    (out / f"{stable_identity()}-{name}-{start}-{info.rank}.json").write_text(json.dumps(values))
"""
MEET = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([info.rank + 1.0])
dist.all_reduce(total)
note("met", node=os.environ["SLURMD_NODENAME"], total=total.item(), world=info.world_size, launcher=info.launcher,
     addr=info.master_addr, port=info.master_port, threads=os.environ["OMP_NUM_THREADS"], words=sys.argv[2:])
dist.destroy_process_group()
"""
FAIL = """
if info.rank == 1:
    print("rank 1 gives up", flush=True)
    sys.exit(7)
time.sleep(600)
"""
STOP = """
if start > 0 or os.environ.get("SLURM_ARRAY_TASK_ID") == "0":
    note("done")
    sys.exit(0)
signal.signal(signal.SIGUSR1, lambda *_: globals().__setitem__("asked", True))
asked = False
print(f"rank {info.rank} is training", flush=True)
while not asked:
    time.sleep(0.1)
time.sleep(2 * info.rank)  # the other rank has long left with the status by now
note("saved")
sys.exit(85)
"""


def launcher(folder: Path, program: str) -> Path:
    """A repository in which launchers/erica.py is `program`, to submit from."""
    (folder / "launchers").mkdir()
    (folder / "out").mkdir()
    (folder / "launchers" / "erica.py").write_text(PRELUDE + program, encoding="utf-8")
    for name in ("slurm", "erica_dist"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def notes(folder: Path, name: str) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "out").glob(f"*-{name}-*.json"))}


@pytest.fixture
def slurm(two_node_slurm: SlurmCluster, monkeypatch) -> SlurmCluster:  # noqa: F811
    monkeypatch.setenv("ERICA_DIST_PYTHON", sys.executable)
    monkeypatch.delenv("ERICA_DIST_HOME", raising=False)
    return two_node_slurm


def test_two_ranks_on_two_nodes_meet_without_names_that_resolve(slurm, tmp_path):
    folder = launcher(tmp_path, MEET)
    job = slurm.submit(ONE_CORE, "slurm/pretrain_erica.sbatch", "out", "--config", "a b.yaml", "x=1", cwd=folder)
    end = slurm.wait(job)
    assert (end.state, end.exit_code) == ("COMPLETED", 0), end.log
    first, second = notes(folder, "met").values()
    assert (first.pop("node"), second.pop("node")) == ("node1", "node2")
    assert first == second
    assert first["total"] == 3.0
    assert (first["world"], first["launcher"], first["threads"]) == (2, "slurm", "1")
    assert first["addr"] == "127.0.0.2", "the NodeAddr of node1"
    assert first["words"] == ["--config", "a b.yaml", "x=1"], "arguments go through unchanged"


def test_a_rank_that_fails_ends_the_job_at_once(slurm, tmp_path):
    folder = launcher(tmp_path, FAIL)
    end = slurm.wait(slurm.submit(ONE_CORE, "slurm/pretrain_erica.sbatch", "out", cwd=folder), seconds=90)
    assert end.state == "FAILED"
    assert end.exit_code != 0
    assert "rank 1 gives up" in end.log
    assert end.restarts == 0


@pytest.mark.parametrize("recipient", ["--batch", "--quiet"], ids=["batch script", "ranks"])
def test_a_stop_signal_saves_on_all_ranks_and_the_job_goes_on_after_requeue(slurm, tmp_path, recipient):
    folder = launcher(tmp_path, STOP)
    job = slurm.submit(ONE_CORE, "slurm/pretrain_erica.sbatch", "out", cwd=folder)
    for rank in (0, 1):
        slurm.wait_for_line(job, f"rank {rank} is training")
    slurm.run("scancel", "--signal=USR1", recipient, job)
    end = slurm.wait(job)
    assert (end.state, end.exit_code, end.restarts) == ("COMPLETED", 0, 1), end.log
    assert list(notes(folder, "saved")) == [f"{job}-saved-0-0", f"{job}-saved-0-1"]
    assert list(notes(folder, "done")) == [f"{job}-done-1-0", f"{job}-done-1-1"]
    assert "start 1, on node[1-2]" in end.log, "the log of the first start is kept"
    assert "start 2, on node[1-2]" in end.log


def test_only_the_stopped_task_of_an_array_is_requeued(slurm, tmp_path):
    folder = launcher(tmp_path, STOP)
    # One task at a time, so that the second keeps an id of its own; the last one gets the array's.
    script = ["--array=0-1%1", "--nodes=1", ONE_CORE, "slurm/pretrain_erica.sbatch", "out"]
    array = slurm.submit(*script, cwd=folder)
    slurm.wait_for_line(f"{array}_1", "rank 0 is training")
    slurm.run("scancel", "--signal=USR1", "--batch", f"{array}_1")
    assert slurm.wait(f"{array}_1").restarts == 1
    assert slurm.wait(f"{array}_0").restarts == 0
    assert list(notes(folder, "saved")) == [f"{array}_1-saved-0-0"]
    assert list(notes(folder, "done")) == [f"{array}_0-done-0-0", f"{array}_1-done-1-0"]


def test_a_cancelled_job_does_not_come_back(slurm, tmp_path):
    folder = launcher(tmp_path, STOP.replace("SIGUSR1", "SIGTERM"))
    job = slurm.submit(ONE_CORE, "slurm/pretrain_erica.sbatch", "out", cwd=folder)
    slurm.wait_for_line(job, "rank 1 is training")
    slurm.run("scancel", job)
    end = slurm.wait(job)
    assert (end.state, end.restarts) == ("CANCELLED", 0)


def test_a_submission_from_elsewhere_says_what_to_set(slurm, tmp_path):
    end = slurm.wait(slurm.submit(ONE_CORE, ROOT / "slurm" / "pretrain_erica.sbatch", cwd=tmp_path))
    assert end.state == "FAILED"
    assert f"{tmp_path}/slurm/lib.sh" in end.log
    environment = {"ERICA_DIST_HOME": str(ROOT), "ERICA_DIST_PYTHON": str(tmp_path / "python")}
    script = [ONE_CORE, ROOT / "slurm" / "pretrain_erica.sbatch"]
    end = slurm.wait(slurm.submit(*script, cwd=tmp_path, env=environment))
    assert end.exit_code == 2
    assert "ERICA_DIST_PYTHON" in end.log


# ------------------------------------------------------------------------------------------------ the real programs


def submit_training(slurm: SlurmCluster, kind: str, folder: Path, shards: Path, steps: int) -> str:
    settings = [f"data.shards={shards}", "data.validation_documents=8", "model.size=tiny", "run.dir=run"]
    settings += ["train.global_batch=16", "train.micro_batch=4", "train.log_every=1", "tracking.uri=none"]
    return slurm.submit(
        *(ONE_CORE, ROOT / "slurm" / f"pretrain_{kind}.sbatch", *settings, f"train.steps={steps}"),
        cwd=folder,
        env={"ERICA_DIST_HOME": str(ROOT)},
    )


def check_metrics(folder: Path, steps: int) -> None:
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert {row["documents"] for row in rows} == {16}
    assert all(0 < row["loss"] < 100 for row in rows)


def test_electra_on_two_nodes(slurm, tmp_path):
    job = submit_training(slurm, "electra", tmp_path, write_sequences_folder(tmp_path / "shards"), steps=3)
    end = slurm.wait(job)
    assert (end.state, end.exit_code, end.restarts) == ("COMPLETED", 0, 0), end.log
    assert "2 rank(s)" in end.log
    check_metrics(tmp_path, steps=3)


def test_erica_on_two_nodes_stopped_and_requeued_on_its_way(slurm, tmp_path):
    steps = 80
    job = submit_training(slurm, "erica", tmp_path, write_documents_folder(tmp_path / "shards"), steps)
    slurm.wait_for_line(job, "2 rank(s)")
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    end = slurm.wait(job)
    assert (end.state, end.exit_code, end.restarts) == ("COMPLETED", 0, 1), end.log
    assert "going on from step" in end.log
    check_metrics(tmp_path, steps)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray's sockets lie below: pytest's own folders have too long a path."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.ray
def test_a_corpus_built_over_two_nodes_is_that_of_one_process(slurm, tmp_path, short_folder):
    reference = corpus_job(tmp_path, out="reference")
    build_corpus(reference)
    job_file = settings.dump(dataclasses.replace(reference, inputs=[], out="corpus", ray=config.RayConfig()))
    (tmp_path / "corpus.yaml").write_text(job_file, encoding="utf-8")
    job = slurm.submit(
        *(ONE_CORE, ROOT / "slurm" / "build_corpus.sbatch", "--config", "corpus.yaml", "--input", reference.inputs[0]),
        cwd=tmp_path,
        env={"ERICA_DIST_HOME": str(ROOT), "ERICA_DIST_RAY_TMP": str(short_folder)},
    )
    end = slurm.wait(job)
    assert (end.state, end.exit_code) == ("COMPLETED", 0), end.log
    assert "Ray is ready on 2 nodes" in end.log
    shards = {path.name: path.read_bytes() for path in (tmp_path / "reference").glob("*.tar")}
    assert len(shards) >= 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "corpus").glob("*.tar")} == shards
    assert list(short_folder.iterdir()) == [], "Ray's folders are gone"
    assert processes_with(head_of(end.log)) == [], "and its processes"


@pytest.mark.ray
def test_a_knowledge_base_built_over_two_nodes_is_that_of_one_process(slurm, tmp_path, short_folder):
    def item(number: int) -> dict:
        value = {"entity-type": "item", "numeric-id": number + 1, "id": f"Q{number + 1}"}
        snak = {"snaktype": "value", "datavalue": {"value": value}, "datatype": "wikibase-item"}
        labels = {"en": {"language": "en", "value": f"Name {number}"}, "xx": {"language": "xx", "value": "-" * 9_000}}
        claims = {"P1": [{"mainsnak": snak, "rank": "normal"}]}
        return {"type": "item", "id": f"Q{number}", "labels": labels, "claims": claims}

    dump = tmp_path / "dump.json"
    dump.write_text("".join(json.dumps(item(number)) + "\n" for number in range(1, 401)))  # 3.7 MB
    build_kb(
        config.KnowledgeBaseJob(
            dump=str(dump), out=str(tmp_path / "one"), unit_mb=1, ray=config.RayConfig(disabled=True)
        )
    )
    words = ("--dump", "dump.json", "--out", "two", "unit_mb=1")
    job = slurm.submit(
        *(ONE_CORE, ROOT / "slurm" / "build_kb.sbatch", *words),
        cwd=tmp_path,
        env={"ERICA_DIST_HOME": str(ROOT), "ERICA_DIST_RAY_TMP": str(short_folder)},
    )
    end = slurm.wait(job)
    assert (end.state, end.exit_code) == ("COMPLETED", 0), end.log
    assert "Ray is ready on 2 nodes" in end.log
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert two == one
    assert json.loads(one["manifest.json"])["counts"]["facts"] == 399


@pytest.mark.ray
def test_a_node_with_too_little_shared_memory_is_named_and_nothing_is_left_running(slurm, tmp_path):
    environment = {"ERICA_DIST_HOME": str(ROOT), "ERICA_DIST_RAY_STORE_MB": "99999999"}
    end = slurm.wait(slurm.submit(ONE_CORE, ROOT / "slurm" / "build_corpus.sbatch", cwd=tmp_path, env=environment))
    assert (end.state, end.exit_code) == ("FAILED", 2), end.log
    assert "99999999: set ERICA_DIST_RAY_STORE_MB" in end.log
    assert processes_with(head_of(end.log)) == []


def head_of(log: str) -> str:
    return re.search(r"head (127\.0\.0\.2:\d+)", log)[1]


def processes_with(text: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in words and str(os.getpid()) != path.parent.name:
            found.append(words)
    return found
