"""`erica-dist convert`: documents that other tools wrote -> training shards.

    check everything --> each file to documents, on Ray --> corpus folder --> `tokenize` --> training shards

The corpus between is one like `build-corpus` writes: documents and pages of text, in the order of the input, under
keys of that order. It is kept where `corpus_out` says, or stands beside `out` until the shards are written, so that a
run that was stopped goes on. Its manifest (what was read, left out and why) is laid into `out` as
`corpus_manifest.json`. What comes out depends on the inputs and settings only, not on the number of workers.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

import erica_dist
from data_tools.assembly import CHUNKS_OF_PAGE, Gathered, Statistics, first_of_equal, gather, write_shards
from data_tools.convert_inputs import CONVERT_VERSION, Inputs, check
from data_tools.convert_units import FileTask, convert_file, read_index
from data_tools.count_checks import check_shards, check_sums, check_unit
from data_tools.foreign_cleaning import NO_TYPE, Rules
from data_tools.output_folder import WORK, check_folder, cleared, locked, remove_stale, standing
from data_tools.progress import StepProgress
from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.report import counts_table, seconds_text
from data_tools.tokenization import tokenize
from erica_dist.config import ConvertJob, FilterConfig, TokenizeJob
from erica_dist.errors import UserError
from erica_dist.shards.documents import KEY_DIGITS
from erica_dist.shards.manifest import (
    CORPUS,
    MANIFEST,
    TRAINING_SHARDS,
    VERSION,
    fingerprint,
    read_manifest,
    shards_fingerprint,
    write_manifest,
)
from erica_dist.shards.tarfiles import write_atomically

CORPUS_MANIFEST = "corpus_manifest.json"
OF_THE_SHARDS = ("kind", "max_length", "validation_share", "block_documents", "blocks_per_shard", "seed")
LISTED = 20  # failed files in an error text


def convert(job: ConvertJob) -> dict[str, Any]:
    """Write the training shard folder `job.out` (or go on writing it) and give its manifest.

    Raises:
        UserError: a setting, input or tokenizer is wrong, a document is (unless `job.tolerant`), or none is left.
    """
    started = time.monotonic()
    inputs = check(job)
    out = Path(job.out)
    beside = out.absolute()
    corpus = Path(job.corpus_out) if job.corpus_out else beside.with_name(f".{beside.name}.corpus")
    settings = {key: getattr(job, key) for key in OF_THE_SHARDS}
    if (done := _done(job, inputs, settings)) is not None:
        print(f"convert: {out} is already written with these settings, nothing to do", flush=True)
        return done
    if inputs.relations is None:
        print("convert: no table of relations is given (--relations): each is named by its id", flush=True)
    of_corpus = _corpus(job, inputs, corpus)
    tokenizing = TokenizeJob(corpus=str(corpus), tokenizer=job.tokenizer, out=job.out, ray=job.ray, **settings)
    manifest = tokenize(tokenizing)
    text = json.dumps(of_corpus, ensure_ascii=False, indent=1) + "\n"
    write_atomically(out / CORPUS_MANIFEST, text.encode())
    if not job.corpus_out:
        shutil.rmtree(corpus, ignore_errors=True)
    print(f"convert: all done in {seconds_text(time.monotonic() - started)}", flush=True)
    return manifest


def _done(job: ConvertJob, inputs: Inputs, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of `job.out` where a conversion of the same stands there; None where there is none yet.

    Raises:
        UserError: it holds the result of something else.
    """
    out = Path(job.out)
    try:
        of_corpus = json.loads((out / CORPUS_MANIFEST).read_bytes())
        manifest = read_manifest(out, TRAINING_SHARDS)
        same = of_corpus["request"] == inputs.request and of_corpus["fingerprint"] == manifest["corpus_fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    kept = not job.corpus_out or (Path(job.corpus_out) / MANIFEST).is_file()
    same &= all(manifest["settings"].get(key) == value for key, value in settings.items())
    if not same or manifest["tokenizer"] != inputs.tokenizer:
        raise UserError(f"{out} holds the result of other inputs or settings; give another --out or remove the folder")
    return standing(out, manifest["request"]) if kept else None


# ------------------------------------------------------------------------------------------------ the corpus between


def _corpus(job: ConvertJob, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Write the corpus folder (or go on writing it) and give its manifest."""
    check_folder(folder, 0)
    with locked(folder) as work:
        if not job.corpus_out and (folder / MANIFEST).is_file():
            before = read_manifest(folder, CORPUS)
            if before["request"] != inputs.request:
                cleared(folder, CORPUS)  # of a run with other inputs or settings that did not get to its end
        if (manifest := standing(folder, inputs.request)) is not None:
            print(f"convert: {folder} is already written with these settings", flush=True)
            return manifest
        names, incomplete = _convert_files(job, inputs, work)
        manifest = _assemble(job, inputs, folder, names, incomplete)
        check_shards(folder, manifest)
        write_manifest(folder, manifest)
        shutil.rmtree(work, ignore_errors=True)
    counts_table("convert", manifest["counts"])
    text = f"{manifest['documents']:,} documents, {len(manifest['relations'])} relations"
    print(f"convert: {text}, {manifest['text_pages']:,} pages of text", flush=True)
    for one in incomplete:
        print(f"convert: warning: {one['file']} was used only in part, {one['place']}: {one['text']}", flush=True)
    return manifest


def _convert_files(job: ConvertJob, inputs: Inputs, work: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Convert the files that are not done; gives the names of all results, in order, and what could not be read."""
    folder = work / "units"
    folder.mkdir(exist_ok=True)
    known = None if inputs.relations is None else frozenset(inputs.relations)
    rules = Rules(job.filters.min_entities, job.filters.min_pairs, job.tolerant, known)
    of_all = [CONVERT_VERSION, erica_dist.__version__, dataclasses.asdict(job.filters), job.tolerant, job.member]
    of_all.append(inputs.settings["relations"])
    tasks = [
        FileTask(
            file=dataclasses.replace(file, path=str(Path(file.path).absolute())),
            rules=rules,
            member=job.member,
            name=fingerprint([of_all, number, Path(file.path).name, inputs.contents[file.path]]),
            folder=str(folder.absolute()),
        )
        for number, file in enumerate(inputs.files)
    ]
    remove_stale(folder, {task.name for task in tasks})
    todo = [task for task in tasks if read_index(folder, task.name) is None]
    print(f"convert: {len(tasks)} file(s), {len(todo)} to do", flush=True)
    failures: list[str] = []
    kept = 0
    if todo:
        with local_or_remote(job.ray) as slots, StepProgress("convert: files", len(todo)) as progress:
            for finished in run_units(convert_file, todo, slots, job.ray.retries):
                if finished.error:
                    failures.append(finished.error.strip())
                else:
                    kept += finished.value
                progress.advance(text=f"{kept:,} documents kept, {len(failures)} files failed")
    if failures:
        rest = [f"... and {len(failures) - LISTED} more"] if len(failures) > LISTED else []
        raise UserError("\n".join([*sorted(failures)[:LISTED], *rest]))
    indices = _indices(folder, [task.name for task in tasks])
    return [task.name for task in tasks], [one for index in indices for one in index["incomplete"]]


def _indices(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        index = read_index(folder, name)
        if index is None:
            raise UserError(f"{folder / name}.json has vanished or is damaged; run the same command again")
        check_unit(folder / f"{name}.json", index, index["pages"])
        yield index


def _assemble(
    job: ConvertJob, inputs: Inputs, out: Path, names: Sequence[str], incomplete: list[dict[str, str]]
) -> dict[str, Any]:
    folder = out / WORK / "units"
    gathered = _without_repeated(
        job, inputs, gather(_indices(folder, names), FilterConfig(duplicates="keep")), folder, names
    )
    check_sums(folder, gathered.counts, len(gathered.documents), len(gathered.texts))
    wanted = gathered.texts if job.kind == "sequences" else gathered.documents
    if not len(wanted):
        counts = json.dumps(
            {stage: gathered.counts[stage] for stage in ("members", "pages", "passages") if stage in gathered.counts}
        )
        hint = "see filters.*"
        if any(name.startswith("left out: *.npy") for name in gathered.counts.get("members", {})):
            hint = "its tars hold arrays: training shards need no conversion"
        elif "members" in gathered.counts and not gathered.counts["pages"]["pages read"]:
            hint = f"no sample has a member *.{job.member}: set member="
        raise UserError(f"no document came out of {', '.join(job.inputs)}; {hint}. Counts: {counts}")
    if gathered.counts["pages"]["pages read"] > 10**KEY_DIGITS // CHUNKS_OF_PAGE:
        raise UserError(f"more records than keys of {KEY_DIGITS} digits can number; convert the inputs in parts")
    for path in [*out.glob("documents-*.tar"), *out.glob("text-*.tar")]:
        path.unlink()
    files = [folder / f"{name}.jsonl" for name in names]
    statistics = Statistics(Counter(), Counter())
    shards: list[dict[str, Any]] = []
    with StepProgress("convert: corpus", len(gathered.documents) + len(gathered.texts)) as progress:
        for record in write_shards(out, "documents", gathered.documents, files, job.documents_per_shard, statistics):
            shards.append(record)
            progress.advance(record["samples"], f"{record['file']} written")
        for record in write_shards(out, "text", gathered.texts, files, job.documents_per_shard):
            shards.append(record)
            progress.advance(record["samples"], f"{record['file']} written")
    gathered.counts["in the documents"] = statistics.counts
    table = inputs.relations or {}
    types = sorted(set(gathered.counts.get("entity types", ())) - {NO_TYPE})
    return {
        "format": CORPUS,
        "version": VERSION,
        "tool_version": erica_dist.__version__,
        "settings": inputs.settings,
        "inputs": inputs.records,
        "kb_fingerprint": "",
        "tokenizer_fingerprint": "",
        "ner": {"enabled": False, "corpus": "converted: entities as the inputs have them", "labels": types},
        "counts": {stage: dict(sorted(of_stage.items())) for stage, of_stage in gathered.counts.items()},
        "relations": [
            {"id": relation, "name": table.get(relation, relation), "facts": statistics.relations[relation]}
            for relation in sorted(statistics.relations)
        ],
        "documents": len(gathered.documents),
        "text_pages": len(gathered.texts),
        "incomplete": incomplete,
        "shards": shards,
        "request": inputs.request,
        "fingerprint": shards_fingerprint(inputs.settings, shards),
        "complete": True,
    }


def _without_repeated(
    job: ConvertJob, inputs: Inputs, gathered: Gathered, folder: Path, names: Sequence[str]
) -> Gathered:
    """`gathered` without the samples whose key an earlier sample of the input has.

    Raises:
        UserError: there is one, and the job is not tolerant.
    """
    if job.keys == "any" or all(file.kind == "json" for file in inputs.files):
        return gathered
    digests = bytearray()
    for unit, index in enumerate(_indices(folder, names)):
        keys = index["keys"] or [f"\0{unit} {place}" for place in range(len(index["texts"]))]
        digests += b"".join(blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest() for key in keys)
    kept = first_of_equal(digests)
    if kept.all():
        return gathered
    if not job.tolerant:
        raise UserError(_repeated_text(inputs, gathered, int(np.argmin(kept)), bytes(digests), folder, names))
    again = gathered.texts.rows[~kept, 0]
    of_documents = ~np.isin(gathered.documents.rows[:, 0], again)
    last = gathered.counts["documents"]
    last["dropped: key twice"] = int((~of_documents).sum())
    last["text pages dropped: key twice"] = len(again)
    gathered.documents, gathered.texts = gathered.documents[of_documents], gathered.texts[kept]
    last["kept"], last["text pages kept"] = len(gathered.documents), len(gathered.texts)
    return gathered


def _repeated_text(
    inputs: Inputs, gathered: Gathered, later: int, digests: bytes, folder: Path, names: Sequence[str]
) -> str:
    """Which sample (by its number among all) has the key of which other one."""
    places = np.frombuffer(digests, "V16")
    first = int(np.flatnonzero(places == places[later])[0])
    units = [int(gathered.texts.rows[place, 1]) for place in (first, later)]
    index = read_index(folder, names[units[1]])
    before = int((gathered.texts.units < units[1]).sum())
    key = index["keys"][later - before] if index else "?"
    one, other = (inputs.files[unit].path for unit in units)
    where = f"{one} and {other}" if one != other else f"{one}, twice"
    return f"sample {key!r} is in {where}; rename one, or keep only the first with --tolerant, or all with keys=any"
