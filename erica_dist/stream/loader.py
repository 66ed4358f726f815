"""The stream that trainers iterate over: for each optimizer step, this rank's micro-batches, made ahead by workers.

In: a shard folder and a job. Out: one `StepBatch` a step. The global batch of a step is a pure function of the seed and
the step; every rank computes it, deals it, and reads its own part only. The state is the number of steps consumed:
starting at step k costs the same as starting at 0, and gives what the unbroken run would have got.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from erica_dist.config import ElectraJob, EricaJob, accumulation
from erica_dist.errors import UserError
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.batches import deal
from erica_dist.stream.collate import EricaCollation, Vocabulary, collate_electra, collate_erica
from erica_dist.stream.micro_batches import ElectraMicroBatch, EricaMicroBatch, mapped
from erica_dist.stream.order import epoch_order, global_batch
from erica_dist.stream.prefetch import Prefetch
from erica_dist.stream.randomness import KeyedRandom

VALIDATION_SEED = 0  # held-out scores of two runs compare only on the same documents, masks and draws

MicroBatch = TypeVar("MicroBatch", EricaMicroBatch, ElectraMicroBatch)


@dataclass
class StepBatch(Generic[MicroBatch]):
    """What one rank computes on in one optimizer step."""

    step: int  # from 0
    micro_batches: list[MicroBatch]  # as many on every rank
    documents: int  # of this rank
    tokens: int  # of this rank
    epoch: float  # passes over the split that are complete after this step, over all ranks


class _Stream(Generic[MicroBatch]):
    """Iterates from `start_step` to the job's last step; close it, or leave its `with` block, to end the workers."""

    def __init__(
        self,
        folder: ShardFolder,
        job: EricaJob | ElectraJob,
        rank: int,
        ranks: int,
        start_step: int,
        parts: int,
        collate: Callable[[np.ndarray, np.ndarray], MicroBatch],
    ):
        if len(folder) == 0:
            raise UserError(f"no training samples: the split {folder.split!r} of {folder.folder} is empty")
        if job.data.workers < 0:
            raise UserError(f"data.workers must not be negative, got {job.data.workers}")
        self.steps = range(start_step, job.train.steps)
        self.accumulation = accumulation(job.train, ranks, even_micro_batch=parts == 2)
        self._folder = folder
        self._seed = job.train.seed
        self._batch = job.train.global_batch
        self._rank = rank
        self._ranks = ranks
        self._parts = parts
        self._workers = job.data.workers
        self._collate: Callable[[np.ndarray, np.ndarray], MicroBatch] = collate
        self._running: Generator[StepBatch[MicroBatch]] | None = None

    def step(self, step: int) -> StepBatch[MicroBatch]:
        """The batch of one step, made in this process."""
        epochs, indices = global_batch(self._seed, step, self._batch, len(self._folder))
        dealt = deal(self._folder.lengths[indices], self._ranks, self.accumulation, self._parts)[self._rank]
        micro_batches = [self._collate(indices[positions], epochs[positions]) for positions in dealt]
        return StepBatch(
            step=step,
            micro_batches=micro_batches,
            documents=sum(micro_batch.documents for micro_batch in micro_batches),
            tokens=sum(micro_batch.tokens for micro_batch in micro_batches),
            epoch=(step + 1) * self._batch / len(self._folder),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[StepBatch[MicroBatch]]:
        self.close()
        self._running = self._run()
        return self._running

    def _run(self) -> Generator[StepBatch[MicroBatch]]:
        if self._workers == 0:
            yield from map(self.step, self.steps)
            return
        with Prefetch(self._step_as_arrays, self.steps, self._workers) as ready:
            for batch in ready:
                batch.micro_batches = [mapped(micro_batch, torch.from_numpy) for micro_batch in batch.micro_batches]
                yield batch

    def _step_as_arrays(self, step: int) -> StepBatch[Any]:
        # arrays travel through the pipe by value; tensors would take shared memory and a descriptor each
        batch = self.step(step)
        arrays = [mapped(micro_batch, lambda tensor: tensor.numpy()) for micro_batch in batch.micro_batches]
        return StepBatch(batch.step, arrays, batch.documents, batch.tokens, batch.epoch)

    def close(self) -> None:
        """End the running iteration and its workers."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> _Stream[MicroBatch]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EricaStream(_Stream[EricaMicroBatch]):
    """Training documents for ERICA: the first half of each global batch is for RD, the second for ED."""

    def __init__(self, folder: ShardFolder, job: EricaJob, rank: int = 0, ranks: int = 1, start_step: int = 0):
        """The stream of `rank` out of `ranks`, from `start_step` on.

        Raises:
            UserError: a folder of sequences, an empty split, or a global batch that does not divide.
        """
        _check_kind(folder, "documents", "ERICA")
        collate = _erica_collate(folder, job, job.train.seed)

        def halves(indices: np.ndarray, epochs: np.ndarray) -> EricaMicroBatch:
            half = len(indices) // 2
            return collate(indices[:half], epochs[:half], indices[half:], epochs[half:])

        super().__init__(folder, job, rank, ranks, start_step, 2, halves)


class ElectraStream(_Stream[ElectraMicroBatch]):
    """Training sequences for ELECTRA."""

    def __init__(self, folder: ShardFolder, job: ElectraJob, rank: int = 0, ranks: int = 1, start_step: int = 0):
        """The stream of `rank` out of `ranks`, from `start_step` on.

        Raises:
            UserError: a folder of documents, an empty split, or a global batch that does not divide.
        """
        _check_kind(folder, "sequences", "ELECTRA")
        super().__init__(folder, job, rank, ranks, start_step, 1, _electra_collate(folder, job, job.train.seed))


# ------------------------------------------------------------------------------------------------ held-out documents


def erica_validation(folder: ShardFolder, job: EricaJob, rank: int = 0, ranks: int = 1) -> list[EricaMicroBatch | None]:
    """This rank's micro-batches of held-out documents; as many entries on every rank, None where a rank has one less.

    The micro-batches are the same at any number of ranks, in every run. Each holds half a micro-batch of documents,
    once for RD and once for ED; at most `data.validation_documents` documents in all.
    """
    _check_kind(folder, "documents", "ERICA")
    collate = _erica_collate(folder, job, VALIDATION_SEED)
    chunks = _held_out(folder, job, max(1, job.train.micro_batch // 2))
    return _deal_chunks(chunks, rank, ranks, lambda indices, epochs: collate(indices, epochs, indices, epochs))


def electra_validation(
    folder: ShardFolder, job: ElectraJob, rank: int = 0, ranks: int = 1
) -> list[ElectraMicroBatch | None]:
    """This rank's micro-batches of held-out sequences; see `erica_validation`."""
    _check_kind(folder, "sequences", "ELECTRA")
    chunks = _held_out(folder, job, max(1, job.train.micro_batch))
    return _deal_chunks(chunks, rank, ranks, _electra_collate(folder, job, VALIDATION_SEED))


def _held_out(folder: ShardFolder, job: EricaJob | ElectraJob, size: int) -> list[np.ndarray]:
    limit = min(job.data.validation_documents, len(folder))
    if limit <= 0:
        return []
    chosen = epoch_order(VALIDATION_SEED, 0, len(folder))[:limit]
    return [chosen[first : first + size] for first in range(0, limit, size)]


def _deal_chunks(
    chunks: list[np.ndarray], rank: int, ranks: int, collate: Callable[[np.ndarray, np.ndarray], MicroBatch]
) -> list[MicroBatch | None]:
    mine: list[MicroBatch | None] = [collate(chunk, np.zeros_like(chunk)) for chunk in chunks[rank::ranks]]
    return mine + [None] * (-(-len(chunks) // ranks) - len(mine))


# ------------------------------------------------------------------------------------------------ shared


def check_tokenizer(manifest: Mapping[str, Any], tokenizer_fingerprint: str) -> None:
    """Refuse shards that were made with another tokenizer than the model's.

    Raises:
        UserError: the fingerprints differ.
    """
    made_with = manifest["tokenizer"]["fingerprint"]
    if made_with != tokenizer_fingerprint:
        raise UserError(
            f"data.shards was made with another tokenizer than the model's (fingerprints {made_with[:12]} and "
            f"{tokenizer_fingerprint[:12]}): run `erica-dist tokenize` with the model's tokenizer, or start from the "
            "model that belongs to the shards"
        )


def _check_kind(folder: ShardFolder, kind: str, model: str) -> None:
    if folder.kind != kind:
        raise UserError(
            f"{folder.folder} holds {folder.kind}, {model} trains on {kind}: run `erica-dist tokenize --kind {kind}` "
            "and give its folder as data.shards"
        )


def _erica_collate(
    folder: ShardFolder, job: EricaJob, seed: int
) -> Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], EricaMicroBatch]:
    collation, random = EricaCollation.of(folder, job), KeyedRandom(seed)

    def collate(rd: np.ndarray, rd_epochs: np.ndarray, ed: np.ndarray, ed_epochs: np.ndarray) -> EricaMicroBatch:
        return collate_erica(_views(folder, rd, rd_epochs), _views(folder, ed, ed_epochs), collation, random)

    return collate


def _electra_collate(
    folder: ShardFolder, job: ElectraJob, seed: int
) -> Callable[[np.ndarray, np.ndarray], ElectraMicroBatch]:
    if not 0 < job.electra.mask_prob < 1:
        raise UserError(f"electra.mask_prob must be between 0 and 1, got {job.electra.mask_prob}")
    vocabulary, random = Vocabulary.of(folder.tokenizer), KeyedRandom(seed)

    def collate(indices: np.ndarray, epochs: np.ndarray) -> ElectraMicroBatch:
        views = _views(folder, indices, epochs)
        return collate_electra(views, vocabulary, job.model.max_length, job.electra.mask_prob, random)

    return collate


def _views(folder: ShardFolder, indices: np.ndarray, epochs: np.ndarray) -> list[tuple[Any, int]]:
    return [(folder.document(index), epoch) for index, epoch in zip(indices.tolist(), epochs.tolist(), strict=True)]
