"""The launchers as a user starts them: refusals, a stop by signal, a dead launcher, and what the journal says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from erica_dist.tracking.journal import read_metrics
from erica_dist.training.job import main
from erica_dist.training.preemption import REQUEUE_STATUS, StopFlag
from tests.http_shards import ShardServer
from tests.synthetic import compile_indices, write_documents_folder, write_sequences_folder

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = [
    "model.size=tiny",
    "model.max_length=128",
    "train.global_batch=8",
    "train.lr=1e-3",
    "train.warmup_steps=3",
    "data.validation_documents=8",
    "tracking.uri=none",
]
SAME_AT_ANY_SPLIT = ("loss", "loss_rd", "loss_ed", "loss_mlm", "grad_norm", "documents", "tokens", "lr")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=60, seed=2))


def start(script: str, port: int, *words: str, ranks: int = 2) -> subprocess.Popen[str]:
    """`deepspeed launchers/<script>` in a process group of its own."""
    deepspeed = [str(Path(sys.executable).with_name("deepspeed")), "--num_accelerators", str(ranks)]
    command = [*deepspeed, "--master_port", str(port), f"launchers/{script}", *SETTINGS, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **pipes)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        text, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, text


@pytest.fixture
def port() -> int:
    from erica_dist.training.cluster import free_port

    return free_port(purpose=f"test-{time.monotonic_ns()}")


def ranks_of(run_dir: Path) -> list[int]:
    """Process ids of the trainers that write to this run folder."""
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
            parent = int(entry.with_name("stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        is_rank = any(word.startswith(b"--local_rank") for word in words) and b"deepspeed.launcher.launch" not in words
        if is_rank and f"run.dir={run_dir}".encode() in words:
            found[int(entry.parent.name)] = parent
    return [pid for pid, parent in found.items() if parent not in found]  # not the ranks' loader processes


def wait_for(condition, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.distributed
def test_stopped_and_started_again_the_run_is_the_unbroken_one(
    documents: Path, tmp_path: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"data.shards={documents}", "train.micro_batch=2", "train.steps=30", "train.checkpoint_every=10"]
    status, text = finish(start("erica.py", port, *words, f"run.dir={tmp_path / 'whole'}"))
    assert status == 0, text[-3000:]

    broken = tmp_path / "broken"
    process = start("erica.py", port, *words, f"run.dir={broken}")
    wait_for(lambda: len(read_metrics(broken / "metrics.jsonl")) >= 2 or process.poll() is not None)
    os.kill(ranks_of(broken)[0], signal.SIGUSR1)  # one rank hears it, both leave at the same step
    status, text = finish(process)
    assert status == REQUEUE_STATUS, text[-3000:]
    stopped_at = len(read_metrics(broken / "metrics.jsonl"))
    assert 2 <= stopped_at < 30
    assert (broken / "checkpoints" / "latest").read_text().strip() == f"step-{stopped_at:08d}"

    status, text = finish(start("erica.py", port, *words, f"run.dir={broken}"))
    assert status == 0, text[-3000:]
    whole, resumed = read_metrics(tmp_path / "whole" / "metrics.jsonl"), read_metrics(broken / "metrics.jsonl")
    assert [row["step"] for row in resumed] == list(range(1, 31))
    for expected, row in zip(whole, resumed, strict=True):
        assert {k: row[k] for k in SAME_AT_ANY_SPLIT} == {k: expected[k] for k in SAME_AT_ANY_SPLIT}
    scores = [read_metrics(tmp_path / run / "evaluation.jsonl")[-1] for run in ("whole", "broken")]
    assert {**scores[0], "time": 0} == {**scores[1], "time": 0}

    # What can be known from the checkpoint is known before anything costly begins (no process group is joined here)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert main("erica", [*SETTINGS, *words, f"run.dir={broken}"]) == 0
    assert "already at step 30 of 30, nothing to do" in capsys.readouterr().out
    for change, text in (("train.seed=7", "train.seed 42 there and 7 here"), ("train.resume=false", "train.resume is")):
        assert main("erica", [*SETTINGS, *words, f"run.dir={broken}", change]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.distributed
def test_ranks_whose_launcher_died_save_and_leave(documents: Path, tmp_path: Path, port: int) -> None:
    run_dir = tmp_path / "run"
    words = [f"data.shards={documents}", "train.micro_batch=2", "train.steps=100000", f"run.dir={run_dir}"]
    process = start("erica.py", port, *words)
    wait_for(lambda: len(read_metrics(run_dir / "metrics.jsonl")) >= 2 or process.poll() is not None)
    ranks = ranks_of(run_dir)
    assert len(ranks) == 2
    process.terminate()  # the deepspeed command dies of it and tells nobody
    try:
        wait_for(lambda: not ranks_of(run_dir), seconds=120)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "stopped"
    assert (run_dir / "checkpoints" / f"step-{events[-1]['step']:08d}" / "state.json").exists()


@pytest.mark.distributed
def test_the_journal_is_the_same_at_any_split_of_the_global_batch(documents: Path, tmp_path: Path, port: int) -> None:
    words = [f"data.shards={documents}", "train.steps=4", "model.dropout=0", "erica.negatives=global"]
    words += ["train.checkpoint_every=2", "train.keep_checkpoints=2"]
    runs = []
    for ranks, split in (
        (1, ["train.micro_batch=8"]),
        (1, ["train.micro_batch=2"]),
        (2, ["train.micro_batch=2"]),
        (2, ["train.micro_tokens=150", "train.zero_stage=3"]),
        (2, ["train.micro_tokens=400"]),
    ):
        run_dir = tmp_path / str(len(runs))
        status, text = finish(start("erica.py", port, *words, *split, f"run.dir={run_dir}", ranks=ranks))
        assert status == 0, text[-3000:]
        runs.append(read_metrics(run_dir / "metrics.jsonl"))

    # and begun by two ranks, gone on with by one, at another ZeRO stage
    passed_on = tmp_path / "passed_on"
    shutil.copytree(tmp_path / "2", passed_on)
    shutil.rmtree(passed_on / "checkpoints" / "step-00000004")
    split = ["train.micro_batch=4", "train.zero_stage=3"]
    status, text = finish(start("erica.py", port, *words, *split, f"run.dir={passed_on}", ranks=1))
    assert status == 0, text[-3000:]
    assert "ZeRO 3, going on from step 2 of 2 rank(s)" in text
    events = [json.loads(line) for line in (passed_on / "events.jsonl").read_text().splitlines()]
    assert [(e["step"], e["before"], e["now"]) for e in events if e["event"] == "ranks_changed"] == [(2, 2, 1)]
    runs.append(read_metrics(passed_on / "metrics.jsonl"))

    for first, *others in zip(*runs, strict=True):
        for key in SAME_AT_ANY_SPLIT:
            assert [row[key] for row in others] == pytest.approx([first[key]] * 5, rel=1e-4), key


@pytest.mark.distributed
@pytest.mark.parametrize("script", ["erica.py", "electra.py"])
def test_a_damaged_shard_stops_all_ranks_together_or_is_left_out(tmp_path: Path, port: int, script: str) -> None:
    write = write_documents_folder if script == "erica.py" else write_sequences_folder
    shards = Path(write(tmp_path / "shards", 64, validation=8, seed=2))  # two shards, and one held out
    path = shards / "train-00001.tar"
    for damaged in (path, shards / "validation-00000.tar"):
        data = damaged.read_bytes()
        damaged.write_bytes(data[:2048] + bytes(len(data) - 2048))  # its arrays are zeros
    words = [f"data.shards={shards}", "train.micro_batch=2", "train.steps=8", "model.dropout=0", "data.workers=1"]
    strict = [*words, "data.validation_documents=0", f"run.dir={tmp_path / 'strict'}"]
    status, text = finish(start(script, port, *strict))
    assert status == 2, text[-3000:]
    assert len([line for line in text.splitlines() if f"launchers/{script}: error:" in line]) == 1
    assert f"{path}: document" in text
    assert "is damaged" in text
    assert "Traceback" not in text

    run_dir = tmp_path / "tolerant"
    status, text = finish(start(script, port, *words, "data.damaged=tolerant", f"run.dir={run_dir}"))
    assert status == 0, text[-3000:]
    rows = read_metrics(run_dir / "metrics.jsonl")
    # eight steps of eight are one epoch: half of its documents are gone, and some ranks had nothing at all in a step
    assert sum(row["documents"] for row in rows) == 32
    assert sum(row["documents_left_out"] for row in rows) == 32
    assert all(row["documents"] + row["documents_left_out"] == 8 for row in rows)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    damaged = [event for event in events if event["event"] == "damaged"]
    assert sum(event["documents"] for event in damaged) == 32
    assert all("train-00001.tar: document" in event["first"] for event in damaged)
    assert "damaged document(s) left out of step" in text
    # nothing whole is held out: no score is given, and it is said
    assert [event["documents"] for event in events if event["event"] == "damaged_held_out"] == [8]
    assert "8 damaged held-out document(s) are left out of all scores" in text
    assert read_metrics(run_dir / "evaluation.jsonl") == []


@pytest.mark.distributed
def test_a_remote_mixture_trains_as_the_local_one_does(documents: Path, tmp_path: Path, port: int) -> None:
    remote = Path(write_documents_folder(tmp_path / "remote", documents=70, validation=8, seed=5))
    compile_indices(remote)
    words = [
        "train.micro_batch=4",
        "train.steps=4",
        "model.dropout=0",
        "data.workers=1",
        f"data.cache={tmp_path / 'cache'}",
    ]
    words += ["data.shuffle=block", "data.window_shards=2"]
    local = f"data.mix={{{documents}: 2, {remote}: 1}}"
    status, text = finish(start("erica.py", port, *words, local, f"run.dir={tmp_path / 'local'}"))
    assert status == 0, text[-3000:]
    with ShardServer(remote) as server:
        server.faults["/train-00001.tar"].unavailable = 2
        mix = f"data.mix={{{documents}: 2, {server.url}: 1}}"
        status, text = finish(start("erica.py", port, *words, mix, f"run.dir={tmp_path / 'run'}"))
        assert status == 0, text[-3000:]
        shards = [name for name in server.requests if name.startswith("/train") and name.endswith(".tar")]
        assert shards
        assert sum(server.requests[name] for name in shards) <= len(shards) + 2  # two ranks, two loaders, one download
    expected, found = (read_metrics(tmp_path / run / "metrics.jsonl") for run in ("local", "run"))
    assert [{k: row[k] for k in SAME_AT_ANY_SPLIT} for row in found] == [
        {k: row[k] for k in SAME_AT_ANY_SPLIT} for row in expected
    ]
    names = {path.name for path in (documents / "tokenizer").iterdir()}
    assert {path.name for path in (tmp_path / "run" / "tokenizer").iterdir()} == names


@pytest.mark.distributed
def test_changed_shards_are_refused_unless_that_is_wanted(documents: Path, tmp_path: Path, port: int) -> None:
    words = ["train.micro_batch=4", "train.steps=2", f"run.dir={tmp_path / 'run'}"]
    assert finish(start("erica.py", port, *words, f"data.shards={documents}"))[0] == 0
    others = write_documents_folder(tmp_path / "others", documents=30, seed=9)
    words = [*words, f"data.shards={others}", "train.steps=4"]
    status, text = finish(start("erica.py", port, *words))
    assert status == 2, text[-3000:]
    assert "does not fit this job (shards" in text
    assert "data.allow_changed=true" in text
    status, text = finish(start("erica.py", port, *words, "data.allow_changed=true"))
    assert status == 0, text[-3000:]
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "shards_changed"] == [2]


def test_a_port_in_use_is_one_error(documents: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        port = str(taken.getsockname()[1])
        words = [*SETTINGS, "train.micro_batch=2", f"data.shards={documents}", f"run.dir={tmp_path / 'out'}"]
        command = [sys.executable, "launchers/erica.py", *words]
        environment = os.environ | place | {"MASTER_PORT": port}
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 2, done.stderr[-2000:]
    assert f"the ranks cannot meet at 127.0.0.1:{port}" in done.stderr
    assert "--master_port" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_stop_flag_remembers_the_first_signal_only() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
    try:
        stop = StopFlag()
        stop.install(watch_launcher=True)
        assert not stop
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert stop
        assert stop.reason == "SIGUSR1"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


RANK = """
import os, time
from erica_dist.training.preemption import StopFlag
stop, parent, began = StopFlag(), os.getppid(), time.monotonic()
stop.install(watch_launcher=True)
print("begins", bool(stop), flush=True)
while os.getppid() == parent and time.monotonic() < began + 120:
    time.sleep(0.02)
print("orphan", bool(stop), stop.reason, flush=True)
"""
PARENT = """
import subprocess, sys, time
command = [sys.executable, "-c", sys.argv[1]]
subprocess.run(["sh", "-c", '"$@"; true', "sh", *command] if "wrapped" in sys.argv else command)
"""


@pytest.mark.parametrize(
    ("script", "wrapped", "heard"),
    [
        ("deepspeed/launcher/launch.py", [], "orphan True the launcher is gone"),
        ("deepspeed/launcher/launch.py", ["wrapped"], "orphan True the launcher is gone"),
        ("by_hand.py", [], "orphan False "),
    ],
)
def test_only_deepspeeds_launcher_is_missed(script: str, wrapped: list[str], heard: str, tmp_path: Path) -> None:
    """Ranks that somebody started by hand, with RANK set, train on when the shell that started them is left."""
    path = tmp_path / script
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PARENT)
    command = [sys.executable, str(path), RANK, *wrapped]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "begins False\n"
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            parent.kill()
            if wrapped:
                os.kill(int(children[0]), signal.SIGKILL)
            assert parent.stdout.readline() == f"{heard}\n"
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, as plain python starts it."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["train.stepps=3"], "did you mean 'train.steps'"),
        ([], "run.dir is not set"),
        (["run.dir=OUT"], "give data.shards"),
        (["run.dir=OUT", "data.shards=NOWHERE"], "nowhere"),
        (["run.dir=OUT", "data.shards=SEQUENCES"], "holds sequences; erica trains on documents"),
        (["run.dir=OUT", "data.shards=DOCUMENTS", "train.global_batch=12", "train.micro_batch=8"], "nearest that does"),
        (["run.dir=OUT", "data.shards=DOCUMENTS", "train.zero_stage=4"], "must be 0, 1, 2 or 3"),
        (["run.dir=OUT", "data.shards=DOCUMENTS", "model.init=OTHER"], "is not the one that cut data.shards"),
        (
            ["run.dir=OUT", "model.init=/m", "model.size=tiny"],
            "model.size=tiny would have no effect: model.init=/m dec",
        ),
        (
            ["run.dir=OUT", "model.init=/m", "model.layers=3", "model.embedding_size=8"],
            "rs=3, model.embedding_size=8 would",
        ),
        (["run.dir=OUT", "model.embedding_size=8"], "model.embedding_size=8 would have no effect: only ELECTRA's"),
        (["run.dir=OUT", "model.init=/m", "model.size=base", "model.layers=0"], "give data.shards"),
        (["--config", "NOWHERE.yaml"], "cannot read the configuration"),
    ],
)
def test_bad_input_is_one_error_and_status_2(
    words: list[str], text: str, documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], alone: None
) -> None:
    other = tmp_path / "other"
    places = {"OUT": str(tmp_path / "out"), "DOCUMENTS": str(documents), "NOWHERE": str(tmp_path / "nowhere")}
    if "data.shards=SEQUENCES" in words:
        places["SEQUENCES"] = str(write_sequences_folder(tmp_path / "sequences", sequences=8))
    if "model.init=OTHER" in words:
        tokenizer = json.loads((documents / "tokenizer" / "tokenizer.json").read_text())
        tokenizer["model"]["unk_token"] = "."
        other.mkdir()
        for path in (documents / "tokenizer").iterdir():
            (other / path.name).write_bytes(path.read_bytes())
        (other / "tokenizer.json").write_text(json.dumps(tokenizer))
        (other / "config.json").write_text("{}")
        places["OTHER"] = str(other)
    for name, path in places.items():
        words = [word.replace(f"={name}", f"={path}") for word in words]
    assert main("erica", ["tracking.uri=none", *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("launchers/erica.py: error: ")
    assert not (tmp_path / "out").exists(), "nothing is written before the job is known to be good"
