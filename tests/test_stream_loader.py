"""The stream as trainers see it: equal on any shape of a run, on any number of workers, after any resume."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from erica_dist.config import ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import (
    ElectraStream,
    EricaStream,
    electra_validation,
    erica_validation,
)
from erica_dist.stream.prefetch import Prefetch
from tests.synthetic import write_documents_folder, write_sequences_folder

DOCUMENTS, SEQUENCES = 44, 50


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Path:
    return write_documents_folder(tmp_path_factory.mktemp("shards") / "documents", documents=DOCUMENTS, validation=21)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory) -> Path:
    return write_sequences_folder(tmp_path_factory.mktemp("shards") / "sequences", sequences=SEQUENCES, validation=21)


def erica_job(batch=16, micro=4, steps=6, workers=0, seed=42) -> EricaJob:
    job = EricaJob()
    job.model.max_length = 64
    job.train.global_batch, job.train.micro_batch, job.train.steps, job.train.seed = batch, micro, steps, seed
    job.data.workers = workers
    return job


def electra_job(batch=16, micro=4, steps=6, workers=0) -> ElectraJob:
    job = ElectraJob()
    job.model.max_length = 32
    job.train.global_batch, job.train.micro_batch, job.train.steps = batch, micro, steps
    job.data.workers = workers
    return job


def sequences_of(micro_batch) -> list[tuple]:
    """Each packed sequence with its masked positions: what a document brings, wherever it is dealt."""
    packed = micro_batch.packed
    found = []
    for first, last in zip(packed.cu_seqlens.tolist(), packed.cu_seqlens.tolist()[1:], strict=False):
        inside = (micro_batch.masked_positions_K >= first) & (micro_batch.masked_positions_K < last)
        ids = packed.input_ids_T[first:last].tolist()
        found.append((tuple(ids), tuple((micro_batch.masked_positions_K[inside] - first).tolist())))
    return found


def flat(value) -> list:
    """All tensors and numbers of a batch, in order."""
    if isinstance(value, torch.Tensor):
        return [value.dtype, value.tolist()]
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, list):
        return [item for part in value for item in flat(part)]
    return [item for part in vars(value).values() for item in flat(part)]


@pytest.mark.parametrize(("ranks", "micro"), [(1, 2), (1, 16), (2, 4), (4, 2), (2, 8), (8, 2)])
def test_the_same_global_batches_at_every_shape(documents, ranks, micro):
    folder = ShardFolder.open(documents)
    whole = EricaStream(folder, erica_job(micro=16))
    streams = [iter(EricaStream(folder, erica_job(micro=micro), rank, ranks)) for rank in range(ranks)]
    for expected in whole:
        (batch,) = expected.micro_batches
        parts = [next(stream) for stream in streams]
        micro_batches = [micro_batch for part in parts for micro_batch in part.micro_batches]
        assert {len(part.micro_batches) for part in parts} == {16 // (ranks * micro)}
        assert {micro_batch.documents for micro_batch in micro_batches} == {micro}
        assert sorted(s for m in micro_batches for s in sequences_of(m)) == sorted(sequences_of(batch))
        for part in parts:
            assert (part.step, part.epoch) == (expected.step, expected.epoch)
            assert part.documents == 16 // ranks
            assert part.tokens == sum(len(m.packed.input_ids_T) for m in part.micro_batches)
        labelled = [
            sorted(
                zip(
                    m.pair_document_P.tolist(),
                    m.pair_head_local_P.tolist(),
                    m.pair_tail_local_P.tolist(),
                    [tuple(r for r in labels if r >= 0) for labels in m.pair_labels_PL.tolist()],
                    m.pair_same_sentence_P.tolist(),
                    strict=True,
                )
            )
            for m in [*micro_batches, batch]
        ]
        assert sorted(pair for pairs in labelled[:-1] for pair in pairs) == labelled[-1]
        assert sum(len(m.query_head_Q) for m in micro_batches) == len(batch.query_head_Q)


@pytest.mark.parametrize(
    ("ranks", "micro", "workers"),
    [(1, 16, 0), (1, 4, 3), (2, 4, 0), (2, 8, 1), (2, 2, 2), (4, 1, 0), (4, 4, 2), (8, 2, 1)],
)
def test_each_sequence_exactly_once_an_epoch(sequences, ranks, micro, workers):
    """Two shards: also with more ranks and workers than shards."""
    folder = ShardFolder.open(sequences)
    job = electra_job(batch=16, micro=micro, steps=25, workers=workers)
    streams = [ElectraStream(folder, job, r, ranks) for r in range(ranks)]
    every = Counter(tuple(folder.document(number).tokens.tolist()) for number in range(SEQUENCES))
    seen: list[tuple] = []
    for parts in zip(*streams, strict=True):
        for part in parts:
            for micro_batch in part.micro_batches:
                for ids, _ in sequences_of(micro_batch):
                    seen.append(tuple(token for token in ids if token not in (2, 3)))
    # 25 steps x 16 = 8 epochs of 50, and epochs end inside of steps
    for epoch in range(8):
        beyond = 16 * -(-50 * (epoch + 1) // 16)  # the end of the step in which the epoch ends
        counts = Counter(seen[:beyond])
        assert all(counts[one] >= times * (epoch + 1) for one, times in every.items())
    assert Counter(seen) == Counter({one: 8 * times for one, times in every.items()})


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_do_not_change_the_batches(documents, sequences, workers):
    pairs = (
        (EricaStream, ShardFolder.open(documents), erica_job),
        (ElectraStream, ShardFolder.open(sequences), electra_job),
    )
    for kind, folder, job in pairs:
        alone = [flat(batch) for batch in kind(folder, job(), 1, 2)]
        with kind(folder, job(workers=workers), 1, 2) as stream:
            assert [flat(batch) for batch in stream] == alone
            assert len(alone) == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_stream_goes_on_where_the_unbroken_one_went(documents, workers):
    folder = ShardFolder.open(documents)
    unbroken = [flat(batch) for batch in EricaStream(folder, erica_job())]
    for start in (1, 4, 6):
        resumed = EricaStream(folder, erica_job(workers=workers), start_step=start)
        assert len(resumed) == 6 - start
        assert [flat(batch) for batch in resumed] == unbroken[start:]


def test_epochs_and_seeds_change_the_order(documents):
    folder = ShardFolder.open(documents)
    batches = list(EricaStream(folder, erica_job(batch=44, micro=44, steps=2)))
    first, second = (sequences_of(batch.micro_batches[0]) for batch in batches)
    assert [batch.epoch for batch in batches] == [1.0, 2.0]
    assert first != second
    (other,) = EricaStream(folder, erica_job(batch=44, micro=44, steps=1, seed=43))
    assert sequences_of(other.micro_batches[0]) != first


# ------------------------------------------------------------------------------------------------ held out


@pytest.mark.parametrize("ranks", [1, 2, 3, 12])
def test_validation_is_the_same_at_any_number_of_ranks(documents, sequences, ranks):
    for validation, folder, job, size in (
        (erica_validation, documents, erica_job(), 2),
        (electra_validation, sequences, electra_job(), 4),
    ):
        held_out = ShardFolder.open(folder, "validation")
        alone = validation(held_out, job)
        assert len(alone) == -(-21 // size)
        dealt = [validation(held_out, job, rank, ranks) for rank in range(ranks)]
        assert {len(part) for part in dealt} == {-(-len(alone) // ranks)}
        together = [batch for step in zip(*dealt, strict=True) for batch in step if batch is not None]
        assert [flat(batch) for batch in together] == [flat(batch) for batch in alone]


def test_each_held_out_document_is_once_in_each_half_whatever_the_seed(documents):
    held_out = ShardFolder.open(documents, "validation")
    batches = [batch for batch in erica_validation(held_out, erica_job(seed=1)) if batch is not None]
    assert [flat(b) for b in erica_validation(held_out, erica_job(seed=2))] == [flat(b) for b in batches]
    assert sum(batch.documents for batch in batches) == 42
    rd = [key for batch in batches for key in dict.fromkeys(batch.pair_document_P.tolist())]
    assert sorted(rd) == sorted(held_out.document(i).key for i in range(21))
    assert sum(len(batch.query_head_Q) for batch in batches) == 21
    job = erica_job()
    job.data.validation_documents = 5
    few = [batch for batch in erica_validation(held_out, job) if batch is not None]
    assert [batch.documents for batch in few] == [4, 4, 2]
    assert flat(few[0]) == flat(batches[0])
    job.data.validation_documents = 0
    assert erica_validation(held_out, job, 1, 2) == []


# ------------------------------------------------------------------------------------------------ refusals


def test_what_cannot_be_trained_on_is_refused_at_once(documents, sequences, tmp_path):
    folder = ShardFolder.open(documents)
    with pytest.raises(UserError, match="holds sequences, ERICA trains on documents"):
        EricaStream(ShardFolder.open(sequences), erica_job())
    with pytest.raises(UserError, match="holds documents, ELECTRA trains on sequences"):
        ElectraStream(folder, electra_job())
    with pytest.raises(UserError, match="holds sequences"):
        erica_validation(ShardFolder.open(sequences, "validation"), erica_job())
    only_held_out = write_documents_folder(tmp_path, documents=0, validation=4)
    with pytest.raises(UserError, match="no training samples"):
        EricaStream(ShardFolder.open(only_held_out), erica_job())
    with pytest.raises(UserError, match="does not divide into 3 rank"):
        EricaStream(folder, erica_job(), 0, 3)
    with pytest.raises(UserError, match="must be even"):
        EricaStream(folder, erica_job(micro=1))
    with pytest.raises(UserError, match=r"data\.workers"):
        EricaStream(folder, erica_job(workers=-1))


# ------------------------------------------------------------------------------------------------ workers


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition, seconds=20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def open_files() -> set[str]:
    """What this process's descriptors point to: pipes and files. Sockets are left out: trackers' threads open them."""
    targets = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the descriptor of the listing itself
            continue
    return {target for target in targets if target.startswith("pipe:") or "documents" in target}


def test_closing_ends_the_workers_and_leaves_nothing_behind(documents):
    shared = set(os.listdir("/dev/shm"))
    before = open_files()
    stream = EricaStream(ShardFolder.open(documents), erica_job(workers=2, steps=10_000))
    children = {process.pid for process in multiprocessing.active_children()}
    for batch in stream:
        if batch.step == 3:
            break
    mine = {process.pid for process in multiprocessing.active_children()} - children
    assert len(mine) == 2
    assert {name for name in set(os.listdir("/dev/shm")) - shared if not name.startswith("deepspeed")} == set()
    stream.close()
    assert not any(alive(process) for process in mine)
    assert open_files() <= before
    # it starts anew
    assert next(iter(stream)).step == 0
    stream.close()


def test_workers_do_not_hear_the_trainers_signals():
    with Prefetch(lambda step: step * step, range(50), 2) as ready:
        results = iter(ready)
        assert next(results) == 0
        for process in ready.process_ids:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
                os.kill(process, number)
        assert list(results) == [step * step for step in range(1, 50)]


def test_signals_reach_the_trainer_while_it_has_workers():
    heard = []
    former = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with Prefetch(lambda step: step, range(4), 1):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert wait_until(lambda: heard)
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_faults_of_workers_are_the_trainers():
    def fail(step: int) -> int:
        if step == 2:
            raise UserError("train-00000.tar is damaged")
        if step == 3:
            raise KeyError("odd")
        return step

    with Prefetch(fail, range(5), 1) as ready, pytest.raises(UserError, match=r"^train-00000.tar is damaged$"):
        assert list(ready) == [0, 1]
    with Prefetch(fail, range(3, 5), 1) as ready, pytest.raises(RuntimeError, match="KeyError: 'odd'"):
        next(iter(ready))


def test_a_killed_worker_is_noticed():
    with Prefetch(lambda step: time.sleep(step), range(0, 2000, 1000), 1) as ready:
        results = iter(ready)
        assert next(results) == None  # noqa: E711  # what time.sleep gives
        os.kill(ready.process_ids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"died \(exit code -9\)"):
            next(results)


PARENT = """
import os, sys, time
from erica_dist.stream.prefetch import Prefetch
ready = Prefetch(lambda step: bytes(10_000_000), range(1000), 2)  # more than a pipe holds: the workers block in sending
results = iter(ready)
next(results)
print(*ready.process_ids, flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end", ["time.sleep(60)", "os._exit(3)", "raise SystemExit(3)", "raise RuntimeError('fault')", ""]
)
def test_workers_end_with_their_trainer_however_it_ends(end):
    code = textwrap.dedent(PARENT.format(end=end))
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    workers: list[int] = []
    try:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        if end == "time.sleep(60)":
            assert all(alive(worker) for worker in workers)
            parent.kill()
        parent.wait(timeout=60)
        assert wait_until(lambda: not any(alive(worker) for worker in workers))
    finally:
        for process in [parent.pid, *filter(alive, workers)] if parent.poll() is None else filter(alive, workers):
            os.kill(process, signal.SIGKILL)
        parent.wait()
