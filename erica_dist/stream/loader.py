"""The stream that trainers iterate over: for each optimizer step, this rank's micro-batches, made ahead by workers.

In: the corpora and a job. Out: one `StepBatch` a step. The global batch of a step is a pure function of the seed and
the step; every rank computes it, deals it, and reads its own part only. The state is the number of steps consumed:
starting at step k costs the same as starting at 0, and gives what the unbroken run would have got.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from erica_dist.config import ElectraJob, EricaConfig, EricaJob, accumulation
from erica_dist.errors import UserError
from erica_dist.shards.gathering import Columns
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.batches import Deal, deal, deal_by_budget
from erica_dist.stream.collate import EricaCollation, Vocabulary, collate_electra, collate_erica
from erica_dist.stream.corpora import Corpora
from erica_dist.stream.markers import find_markers
from erica_dist.stream.micro_batches import ElectraMicroBatch, EricaMicroBatch, mapped
from erica_dist.stream.prefetch import Prefetch
from erica_dist.stream.randomness import KeyedRandom

VALIDATION_SEED = 0  # held-out scores of two runs compare only on the same documents, masks and draws
HEAD_PIECES = 8  # that an ED document's prompt is taken to have for its head, when tokens are counted before reading

MicroBatch = TypeVar("MicroBatch", EricaMicroBatch, ElectraMicroBatch)
# (columns, the epoch of each document, how many of them are of the batch's first half, the share of the training that
# is still to come, 0 for held-out documents) -> micro-batch
Collate = Callable[[Columns, np.ndarray, int, float], MicroBatch]


@dataclass(frozen=True)
class Plan:
    """The global batch of one step before anything of it is read; the same on every rank."""

    epochs: np.ndarray  # int64 [batch]
    documents: np.ndarray  # int64 [batch]
    tokens: np.ndarray  # int64 [batch], with special tokens and prompt as far as they are known
    dealt: Deal  # positions in the batch by rank and micro-step


@dataclass
class StepBatch(Generic[MicroBatch]):
    """What one rank computes on in one optimizer step."""

    step: int  # from 0
    micro_batches: list[MicroBatch]  # as many on every rank
    documents: int  # of this rank
    tokens: int  # of this rank
    epoch: float  # passes over the split that are complete after this step, over all ranks
    faults: list[str]  # documents of this rank that were left out as damaged, and why


class _Stream(Generic[MicroBatch]):
    """Iterates from `start_step` to the job's last step; close it, or leave its `with` block, to end the workers."""

    def __init__(
        self,
        corpora: Corpora,
        job: EricaJob | ElectraJob,
        rank: int,
        ranks: int,
        start_step: int,
        parts: int,
        prompt: int,
        collate: Collate[MicroBatch],
    ):
        if len(corpora) == 0:
            raise UserError(f"no training samples: the training split of {corpora.place} is empty")
        for key in ("workers", "validation_documents"):
            if getattr(job.data, key) < 0:
                raise UserError(f"data.{key} must not be negative, got {getattr(job.data, key)}")
        self.steps = range(start_step, job.train.steps)
        self._all_steps = job.train.steps
        self.accumulation = accumulation(job.train, ranks, even_micro_batch=parts == 2)  # 0: by the token budget
        self._budget = job.train.micro_tokens
        self._longest = job.model.max_length
        if 0 < self._budget < self._longest:
            raise UserError(
                f"train.micro_tokens={self._budget} is below model.max_length={self._longest}: a document may not fit"
            )
        self._corpora = corpora
        self._orders = corpora.orders(job.train.seed)
        self._batch = job.train.global_batch
        self._rank = rank
        self._ranks = ranks
        self._parts = parts
        # [CLS] and [SEP], and what each part of the global batch puts before its documents
        self._extra = np.repeat([2, 2 + prompt][:parts], -(-self._batch // parts))[: self._batch]
        self._workers = job.data.workers
        self._collate: Collate[MicroBatch] = collate
        self._running: Generator[StepBatch[MicroBatch]] | None = None

    def step(self, step: int) -> StepBatch[MicroBatch]:
        """The batch of one step, made in this process.

        Raises:
            UserError: a document is damaged (data.damaged=strict), or a shard cannot be had.
        """
        if self._corpora.remote:
            self._look_ahead(step)
        plan = self.plan(step)
        mine = plan.dealt[self._rank]
        # all micro-batches are read at once: a reading has a fixed cost that is that of a hundred documents
        columns = self._corpora.read(plan.documents[np.concatenate(mine)])
        half = -(-self._batch // self._parts)
        micro_batches = []
        for at, part in zip(mine, columns.split([len(at) for at in mine]), strict=True):
            at = at[part.taken]  # without damaged documents
            micro_batches.append(
                self._collate(part, plan.epochs[at], int((at < half).sum()), 1 - step / self._all_steps)
            )
        return StepBatch(
            step=step,
            micro_batches=micro_batches,
            documents=sum(micro_batch.documents for micro_batch in micro_batches),
            tokens=sum(micro_batch.tokens for micro_batch in micro_batches),
            epoch=self._orders.epochs_done((step + 1) * self._batch),
            faults=[fault.text for fault in columns.faults],
        )

    def plan(self, step: int) -> Plan:
        """Which documents make a step, and which rank and micro-step computes on which; reads nothing."""
        epochs, documents = self._orders.at(self._places(step))
        tokens = np.minimum(self._corpora.lengths(documents) + self._extra, self._longest)
        if self._budget:
            dealt = deal_by_budget(tokens, self._ranks, self._budget, self._parts)
        else:
            dealt = deal(tokens, self._ranks, self.accumulation, self._parts)
        return Plan(epochs, documents, tokens, dealt)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[StepBatch[MicroBatch]]:
        self.close()
        self._running = self._run()
        return self._running

    def _places(self, step: int) -> np.ndarray:
        return np.arange(step * self._batch, (step + 1) * self._batch, dtype=np.int64)

    def _look_ahead(self, step: int) -> None:
        """Name the shards of a later step, so that they are there when it comes: a quarter of a window ahead."""
        later = step + max(1, self._orders.window_documents // 4 // self._batch)
        self._corpora.fetch_ahead(self._orders.at(self._places(later))[1])

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
        return replace(batch, micro_batches=arrays)

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

    def __init__(
        self, corpora: Corpora | ShardFolder, job: EricaJob, rank: int = 0, ranks: int = 1, start_step: int = 0
    ):
        """The stream of `rank` out of `ranks`, from `start_step` on. A folder stands for the corpus in it.

        Raises:
            UserError: a folder of sequences, an empty split, a global batch that does not divide, or entity markers
                under a token budget.
        """
        corpora = _checked(corpora, "documents", "ERICA")
        if job.erica.entity_markers and job.train.micro_tokens:
            raise UserError(
                f"train.micro_tokens={job.train.micro_tokens} cannot be combined with erica.entity_markers: how many "
                "pieces the markers add to a document is not known before it is read. Give train.micro_batch in place "
                "of it"
            )
        collation = _erica_collation(corpora, job)
        prompt = int(np.diff(collation.name_start).max(initial=0)) + HEAD_PIECES + 1
        collate = _erica_collate(collation, job.train.seed)
        super().__init__(corpora, job, rank, ranks, start_step, 2, prompt, collate)


class ElectraStream(_Stream[ElectraMicroBatch]):
    """Training sequences for ELECTRA."""

    def __init__(
        self, corpora: Corpora | ShardFolder, job: ElectraJob, rank: int = 0, ranks: int = 1, start_step: int = 0
    ):
        """The stream of `rank` out of `ranks`, from `start_step` on. A folder stands for the corpus in it.

        Raises:
            UserError: a folder of documents, an empty split, or a global batch that does not divide.
        """
        corpora = _checked(corpora, "sequences", "ELECTRA")
        collate = _electra_collate(corpora, job, job.train.seed)
        super().__init__(corpora, job, rank, ranks, start_step, 1, 0, collate)


# ------------------------------------------------------------------------------------------------ held-out documents


def erica_validation(
    corpora: Corpora | ShardFolder, job: EricaJob, rank: int = 0, ranks: int = 1, faults: list[str] | None = None
) -> list[EricaMicroBatch | None]:
    """This rank's micro-batches of held-out documents; as many entries on every rank, None where a rank has one less.

    The micro-batches are the same at any number of ranks, in every run. Each holds half a micro-batch of documents,
    once for RD and once for ED; at most `data.validation_documents` documents in all. Whatever is left out of training,
    all relations, pairs and true tails count here: runs of different options are asked the same. Entity markers are
    part of the model's input and stand here, too; no mention is masked as a whole. What is left out as damaged is added
    to `faults`.
    """
    corpora = _checked(corpora, "documents", "ERICA")
    asked = ["relations_per_pair", "sentences", "no_relation_pairs", "other_tails_as_negatives"]
    asked += ["mask_probability", "mask_mentions"]
    erica = replace(job.erica, **{name: getattr(EricaConfig(), name) for name in asked})
    collation = _erica_collation(corpora, replace(job, erica=erica))
    collate = _erica_collate(collation, VALIDATION_SEED)
    chunks = _held_out(corpora, job, max(1, job.train.micro_batch // 2))
    return _deal_chunks(corpora, [np.tile(chunk, 2) for chunk in chunks], rank, ranks, collate, 2, faults)


def electra_validation(
    corpora: Corpora | ShardFolder, job: ElectraJob, rank: int = 0, ranks: int = 1, faults: list[str] | None = None
) -> list[ElectraMicroBatch | None]:
    """This rank's micro-batches of held-out sequences; see `erica_validation`."""
    corpora = _checked(corpora, "sequences", "ELECTRA")
    chunks = _held_out(corpora, job, max(1, job.train.micro_batch))
    return _deal_chunks(corpora, chunks, rank, ranks, _electra_collate(corpora, job, VALIDATION_SEED), 1, faults)


def _held_out(corpora: Corpora, job: EricaJob | ElectraJob, size: int) -> list[np.ndarray]:
    limit = min(job.data.validation_documents, len(corpora))
    if limit <= 0:
        return []
    epochs, documents = corpora.orders(VALIDATION_SEED).at(np.arange(limit))
    chosen = documents[epochs == 0]  # of several corpora a small one may be through before
    return [chosen[first : first + size] for first in range(0, len(chosen), size)]


def _deal_chunks(
    corpora: Corpora,
    chunks: list[np.ndarray],
    rank: int,
    ranks: int,
    collate: Collate[MicroBatch],
    parts: int,
    faults: list[str] | None,
) -> list[MicroBatch | None]:
    mine: list[MicroBatch | None] = []
    for chunk in chunks[rank::ranks]:
        columns = corpora.read(chunk)
        if faults is not None:
            faults += sorted({fault.text for fault in columns.faults})
        first_half = int((columns.taken < len(chunk) // parts).sum())
        mine.append(collate(columns, np.zeros(len(columns), np.int64), first_half, 0.0))
    return mine + [None] * (-(-len(chunks) // ranks) - len(mine))


# ------------------------------------------------------------------------------------------------ shared


def _checked(corpora: Corpora | ShardFolder, kind: str, model: str) -> Corpora:
    if corpora.kind != kind:
        raise UserError(
            f"{corpora.place} holds {corpora.kind}, {model} trains on {kind}: run `erica-dist tokenize --kind {kind}` "
            "and give its folder as data.shards"
        )
    return Corpora([corpora]) if isinstance(corpora, ShardFolder) else corpora


def _erica_collation(corpora: Corpora, job: EricaJob) -> EricaCollation:
    tokenizer = corpora.tokenizer
    if job.erica.entity_markers:
        tokenizer = find_markers(corpora.tokenizer_folder()).added_to(tokenizer)
    return EricaCollation.of(tokenizer, corpora.relations, job)


def _erica_collate(collation: EricaCollation, seed: int) -> Collate[EricaMicroBatch]:
    random = KeyedRandom(seed)
    return lambda columns, epochs, rd, ahead: collate_erica(columns, epochs, rd, collation, random, ahead)


def _electra_collate(corpora: Corpora, job: ElectraJob, seed: int) -> Collate[ElectraMicroBatch]:
    probability, max_length = job.electra.mask_prob, job.model.max_length
    if not 0 < probability < 1:
        raise UserError(f"electra.mask_prob must be between 0 and 1, got {probability}")
    vocabulary, random = Vocabulary.of(corpora.tokenizer), KeyedRandom(seed)
    return lambda columns, epochs, *_: collate_electra(columns, epochs, vocabulary, max_length, probability, random)
