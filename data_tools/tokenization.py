"""`erica-dist tokenize`: a corpus -> training shards of one tokenizer, for ERICA (documents) or ELECTRA (sequences).

    check everything --> each corpus shard to columns, on Ray --> blocks across shards --> training shards --> manifest

Which split a document falls into is a function of the seed and its page's title, so no page is in both, and documents
and sequences of a corpus are split alike. Columns of corpus shards lie in OUT/.build until the manifest is written; a
run that was stopped goes on from them. What comes out does not depend on the number of workers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.alignment import Vocabulary
from data_tools.columns import blocks_of
from data_tools.corpus_columns import SPLITS, ShardTask, load_columns, read_counts, tokenize_shard
from data_tools.output_folder import check_folder, locked, remove_stale, standing
from data_tools.progress import StepProgress
from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.report import counts_table, seconds_text
from data_tools.tokenizer_files import copy_tokenizer, load_tokenizer
from erica_dist.config import ConvertJob, TokenizeJob
from erica_dist.errors import UserError
from erica_dist.shards.blocks import write_training_shard
from erica_dist.shards.index import write_split_index
from erica_dist.shards.manifest import (
    CORPUS,
    TRAINING_SHARDS,
    VERSION,
    fingerprint,
    read_manifest,
    shards_fingerprint,
    write_manifest,
)
from erica_dist.shards.tarfiles import sha256_file
from erica_dist.shards.tokenizers import tokenizer_record

TOKENIZATION_VERSION = 2  # raise it when other columns come out of the same corpus
SHORTEST_LENGTH = 16


@dataclass(frozen=True)
class Inputs:
    """What a run depends on, checked. `request`: fingerprint of all of it."""

    manifest: dict[str, Any]
    tokenizer: Any
    record: dict[str, Any]
    settings: dict[str, Any]
    request: str


def tokenize(job: TokenizeJob) -> dict[str, Any]:
    """Write the training shard folder `job.out` (or go on writing it) and give its manifest.

    Raises:
        UserError: a setting, the corpus or the tokenizer is wrong, a shard is damaged, or no document is left.
    """
    started = time.monotonic()
    inputs = check(job)
    out = Path(job.out)
    with locked(out) as work:
        if (manifest := standing(out, inputs.request)) is not None:
            print(f"tokenize: {out} is already written with these settings, nothing to do", flush=True)
            return manifest
        parts, counts = _columns(job, inputs, work)
        manifest = _write(job, inputs, out, parts, counts)
        write_manifest(out, manifest)
        shutil.rmtree(work, ignore_errors=True)
    counts_table("tokenize", manifest["counts"])
    for split in SPLITS:
        shards = [shard for shard in manifest["shards"] if shard["split"] == split]
        documents, tokens = (sum(shard[key] for shard in shards) for key in ("documents", "tokens"))
        print(f"tokenize: {split}: {documents:,} {job.kind}, {tokens:,} word pieces in {len(shards)} shard(s)")
    print(f"tokenize: written to {out}; {seconds_text(time.monotonic() - started)}", flush=True)
    return manifest


def check_settings(job: TokenizeJob | ConvertJob) -> None:
    """Refuse what makes no sense, before anything is read.

    Raises:
        UserError: with the setting and what it may be.
    """
    if not 0 <= job.validation_share < 1:
        raise UserError(f"validation_share={job.validation_share} must be at least 0 and below 1")
    for key, value, least in (
        ("max_length", job.max_length, SHORTEST_LENGTH),
        ("block_documents", job.block_documents, 1),
        ("blocks_per_shard", job.blocks_per_shard, 1),
    ):
        if value < least:
            raise UserError(f"{key}={value} must be at least {least}")


def check(job: TokenizeJob) -> Inputs:
    """Read the corpus manifest, load the tokenizer, identify the run.

    Raises:
        UserError: the first thing that is missing or wrong.
    """
    for key in ("corpus", "tokenizer", "out"):
        if not getattr(job, key):
            raise UserError(f"tokenize needs --{key} (setting {key!r})")
    check_settings(job)
    corpus = Path(job.corpus)
    manifest = read_manifest(corpus, CORPUS)
    for shard in manifest["shards"]:
        path = corpus / shard["file"]
        if not path.is_file() or path.stat().st_size != shard["bytes"]:
            raise UserError(f"{path} is missing or of another size than its manifest says; build or copy it again")
    check_folder(Path(job.out), sum(shard["bytes"] for shard in manifest["shards"]))
    tokenizer = load_tokenizer(job.tokenizer)
    record = tokenizer_record(tokenizer, job.max_length)
    settings = {
        key: value for key, value in dataclasses.asdict(job).items() if key not in ("corpus", "tokenizer", "out", "ray")
    }
    of_corpus = {"corpus": manifest["fingerprint"], "tokenizer": record}
    request = fingerprint([TOKENIZATION_VERSION, erica_dist.__version__, settings, of_corpus])
    return Inputs(manifest, tokenizer, record, settings, request)


# ------------------------------------------------------------------------------------------------ to columns


def _columns(job: TokenizeJob, inputs: Inputs, work: Path) -> tuple[list[Path], Counter[str]]:
    """Names of the column files of all corpus shards, in order, and their counts together."""
    folder = work / "columns"
    folder.mkdir(exist_ok=True)
    kind = "text" if job.kind == "sequences" else "documents"
    unknown = inputs.tokenizer.unk_token_id
    vocabulary = Vocabulary(
        relations={relation["id"]: place for place, relation in enumerate(inputs.manifest["relations"])},
        types={label: place for place, label in enumerate(entity_types(inputs.manifest))},
        unknown_piece=-1 if unknown is None else unknown,
    )
    shards = [shard for shard in inputs.manifest["shards"] if shard["kind"] == kind]
    if not shards:
        raise UserError(f"{job.corpus} has no shard of kind {kind!r}; build the corpus again")
    tasks = [
        ShardTask(
            shard=str(Path(job.corpus, shard["file"]).absolute()),
            name=fingerprint([inputs.request, shard["file"], shard["sha256"]]),
            folder=str(folder.absolute()),
            job=job,
            vocabulary=vocabulary,
        )
        for shard in shards
    ]
    remove_stale(folder, {task.name for task in tasks})
    todo = [task for task in tasks if read_counts(folder / task.name) is None]
    print(f"tokenize: {len(shards)} corpus shard(s), {len(todo)} to do, with {job.tokenizer}", flush=True)
    if todo:
        _run(job, todo)
    counts: Counter[str] = Counter()
    for task in tasks:
        counts.update(read_counts(folder / task.name) or {})
    return [folder / task.name for task in tasks], counts


def _run(job: TokenizeJob, todo: Sequence[ShardTask]) -> None:
    failures: list[str] = []
    kept = 0
    with local_or_remote(job.ray) as slots, StepProgress("tokenize: corpus shards", len(todo)) as progress:
        for finished in run_units(tokenize_shard, todo, slots, job.ray.retries):
            if finished.error:
                failures.append(f"- {finished.task.shard} ({finished.attempts} attempt(s)): {finished.error.strip()}")
            else:
                kept += finished.value[f"{job.kind} kept"]
            progress.advance(text=f"{kept:,} {job.kind} kept, {len(failures)} shards failed")
    if failures:
        raise UserError(
            f"{len(failures)} of {len(todo)} corpus shards failed; the others are kept: run the same command again "
            "once the cause is removed.\n" + "\n".join(failures)
        )


# ------------------------------------------------------------------------------------------------ columns to shards


def _write(job: TokenizeJob, inputs: Inputs, out: Path, parts: Sequence[Path], counts: Counter[str]) -> dict[str, Any]:
    if not counts[f"{job.kind} kept"]:
        raise UserError(f"tokenize: no {job.kind} came out of {job.corpus}. Counts: {json.dumps(counts)}")
    for path in [*out.glob("*.tar"), *out.glob("*.index.json"), *out.glob("*.npy")]:
        path.unlink()
    shards: list[dict[str, Any]] = []
    with StepProgress(f"tokenize: {job.kind} to shards", counts[f"{job.kind} kept"]) as progress:
        for split in SPLITS:
            blocks = blocks_of(load_columns(parts, split), job.block_documents)
            for number in itertools.count():
                first = next(blocks, None)
                if first is None:
                    break
                of_shard = itertools.chain([first], itertools.islice(blocks, job.blocks_per_shard - 1))
                shards.append(write_training_shard(out, f"{split}-{number:05d}", split, of_shard))
                progress.advance(shards[-1]["documents"], f"{shards[-1]['file']} written")
    if shards[0]["split"] != "train":
        raise UserError(f"tokenize: every page fell into validation; lower validation_share={job.validation_share}")
    by_split = {split: [shard for shard in shards if shard["split"] == split] for split in SPLITS}
    indices = {split: write_split_index(out, split, own, job.kind) for split, own in by_split.items() if own}
    copy_tokenizer(Path(job.tokenizer), out / "tokenizer", inputs.record["fingerprint"])
    files = sorted(path for path in (out / "tokenizer").iterdir() if path.is_file())
    of_kind: dict[str, Any] = {}
    if job.kind == "documents":
        encode = inputs.tokenizer.backend_tokenizer.encode
        of_kind["relations"] = [
            {
                "id": relation["id"],
                "name": relation["name"],
                "pieces": encode(relation["name"], add_special_tokens=False).ids if relation["name"] else [],
            }
            for relation in inputs.manifest["relations"]
        ]
        of_kind["entity_types"] = entity_types(inputs.manifest)
    return {
        "format": TRAINING_SHARDS,
        "version": VERSION,
        "kind": job.kind,
        "tool_version": erica_dist.__version__,
        "settings": inputs.settings,
        "corpus_fingerprint": inputs.manifest["fingerprint"],
        "counts": {job.kind: dict(sorted(counts.items()))},
        "tokenizer": inputs.record,
        "tokenizer_files": {path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size} for path in files},
        **of_kind,
        "shards": shards,
        "indices": indices,
        "request": inputs.request,
        "fingerprint": shards_fingerprint(inputs.settings | inputs.record, shards),
        "complete": True,
    }


def entity_types(manifest: dict[str, Any]) -> list[str]:
    """Names of the column `entity_type`'s numbers: 0 is no type, then the labels of the corpus's NER in order."""
    return ["", *sorted(manifest["ner"].get("labels", []))[:255]]
