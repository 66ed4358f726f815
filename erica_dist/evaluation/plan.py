"""What one fine-tuning trains on: all files read and cut into word pieces once, then for each seed its examples and its
schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erica_dist.config import FinetuneJob, TrainConfig
from erica_dist.errors import UserError
from erica_dist.evaluation import readers, scores, splits
from erica_dist.evaluation.readers import Example
from erica_dist.evaluation.sentences import Sentence, cut_sentences
from erica_dist.shards.tokenizers import read_tokenizer, tokenizer_record


@dataclass(frozen=True)
class Data:
    folder: Path  # of the model
    tokenizer: dict[str, Any]  # its record
    labels: list[str]  # all that occur in the files, sorted
    train: list[Sentence]  # the whole file
    dev: list[Sentence] | None  # of finetune.dev; None: taken out of `train`
    test: list[Sentence]
    semeval: bool  # the official score is defined


@dataclass(frozen=True)
class Plan:
    """One seed's training."""

    train: TrainConfig
    sentences: list[Sentence]
    dev: list[Sentence]


def load_data(job: FinetuneJob) -> Data:
    """Tokenizer and examples of all files.

    Raises:
        UserError: no model folder or tokenizer, or a bad file; see `readers.read_examples` and `cut_sentences`.
    """
    settings = job.finetune
    examples = {
        use: readers.read_examples(path)
        for use, path in (("train", settings.train), ("dev", settings.dev), ("test", settings.test))
        if path
    }
    folder = model_folder(settings.model)
    try:
        tokenizer = read_tokenizer(folder)
    except UserError as error:
        raise UserError(f"finetune.model={folder} has no tokenizer that can be loaded: {error}") from error
    record = tokenizer_record(tokenizer, settings.max_length)
    labels = sorted({example.label for part in examples.values() for example in part})
    if len(labels) < 2:
        raise UserError(f"all examples of {settings.train} and {settings.test} have the label {labels[0]!r}")

    def cut(part: list[Example]) -> list[Sentence]:
        return cut_sentences(part, tokenizer, labels, settings.max_length)

    dev = cut(examples["dev"]) if "dev" in examples else None
    return Data(folder, record, labels, cut(examples["train"]), dev, cut(examples["test"]), scores.is_semeval(labels))


def model_folder(name: str) -> Path:
    """The folder itself, or the discriminator within an exported ELECTRA pair."""
    for folder in (Path(name), Path(name) / "discriminator"):
        if (folder / "config.json").is_file():
            return folder
    from erica_dist.models.folder import why_no_folder

    raise UserError(f"finetune.model={name} is no Hugging Face folder: {why_no_folder(name)}")


def plan_seed(job: FinetuneJob, data: Data, seed: int) -> Plan:
    """The examples and the schedule of one seed.

    Raises:
        UserError: a percentage, seed or split that does not fit the training file.
    """
    settings, own_dev = job.finetune, data.dev is None
    if settings.splits:
        split = splits.from_file(settings.splits, settings.train, len(data.train), settings.percent, seed, dev=own_dev)
    else:
        split = splits.draw(len(data.train), settings.percent, seed, settings.dev_percent if own_dev else 0.0)
    sentences = [data.train[i] for i in split.train]
    dev = [data.train[i] for i in split.dev] if data.dev is None else data.dev
    steps = max(job.train.min_steps, math.ceil(job.train.epochs * len(sentences) / job.train.global_batch))
    train = TrainConfig(
        steps=steps,
        global_batch=job.train.global_batch,
        micro_batch=job.train.micro_batch,
        lr=job.train.lr,
        warmup_steps=round(steps * job.train.warmup_share),
        schedule="linear",
        weight_decay=job.train.weight_decay,
        clip_norm=job.train.clip_norm,
        seed=seed,
        precision=job.train.precision,
        zero_stage=0,  # the weights stay whole on each rank: they are copied when they are the best so far
    )
    return Plan(train, sentences, dev)
