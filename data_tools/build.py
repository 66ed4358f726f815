"""`erica-dist build-corpus`: pages and a knowledge base -> a corpus folder.

    check everything --> scan the inputs --> build units (those not done yet) --> assemble shards --> manifest

Scan and units run on Ray; their results lie in OUT/.build until the manifest is written. A build that was stopped goes
on with what is left: a unit is recognised by the fingerprint of its range of input, of that input's content, and of all
that the steps depend on. What comes out does not depend on the number of workers, nor on what failed on the way; only
units that failed for good and are let go (`max_failed_share`) are missing, and the same command tries them again.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.assembly import Statistics, gather, spread, write_shards
from data_tools.build_inputs import Inputs, check
from data_tools.count_checks import check_shards, check_sums, check_unit, empty_stage
from data_tools.output_folder import WORK, cleared, locked, remove_stale, standing
from data_tools.progress import StepProgress
from data_tools.ray_jobs import local_or_remote
from data_tools.report import counts_table, seconds_text
from data_tools.steps import UnitTask, build_unit, read_index
from data_tools.unit_runs import Failure, Tally, judge_failures, run_watched
from data_tools.wikipedia.reader import Unit
from data_tools.wikipedia.survey import report_incomplete, scan_ranges, survey
from erica_dist.config import CorpusJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import CORPUS, MANIFEST, VERSION, fingerprint, shards_fingerprint, write_manifest
from erica_dist.shards.tarfiles import sha256_file


@dataclass(frozen=True)
class Built:
    """The units of a build.

    names: of the results in the order of the input. units: what each was built from. failed: those without a result.
    incomplete: what of the input could not be read.
    """

    names: list[str]
    units: list[Unit]
    failed: list[Failure]
    incomplete: list[dict[str, str]]


def build_corpus(job: CorpusJob) -> dict[str, Any]:
    """Build (or go on building) the corpus folder `job.out` and give its manifest.

    Raises:
        UserError: a setting, input, tool or folder is wrong (said before the work begins), a unit failed, or a stage
            gave nothing.
    """
    started = time.monotonic()
    inputs = check(job)
    out = Path(job.out)
    with locked(out) as work:
        if not job.resume:
            cleared(out, CORPUS)
        before = standing(out, inputs.request)
        if before is not None and not _to_be_mended(before, job, work):
            print(f"build-corpus: {out} is already built with these settings, nothing to do", flush=True)
            _warn_of_failures(before, out)
            return before
        built = _build_units(job, inputs, work)
        if before is not None and _places(before) == [(one.file, one.place) for one in built.failed]:
            print("build-corpus: the same units failed again; the corpus stays as it is", flush=True)
            _warn_of_failures(before, out)
            return before
        manifest = _assemble(job, inputs, out, built)
        check_shards(out, manifest)
        write_manifest(out, manifest)
        if not built.failed:
            shutil.rmtree(work, ignore_errors=True)
    counts_table("build-corpus", manifest["counts"])
    print(
        f"build-corpus: {manifest['documents']:,} documents, {len(manifest['relations'])} relations, "
        f"{manifest['text_pages']:,} pages of text in {out}; {seconds_text(time.monotonic() - started)}",
        flush=True,
    )
    _warn_of_failures(manifest, out)
    return manifest


def _to_be_mended(before: dict[str, Any], job: CorpusJob, work: Path) -> bool:
    """Whether failed units are to be tried again: the others still stand, or more failed than this job allows."""
    return bool(before["failed_units"]) and (
        (work / "units").is_dir() or before["failed_share"]["units"] > job.max_failed_share
    )


def _places(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["file"], one["place"]) for one in manifest["failed_units"]]


def _warn_of_failures(manifest: dict[str, Any], out: Path) -> None:
    if failed := manifest["failed_units"]:
        print(
            f"build-corpus: warning: the corpus is incomplete: {len(failed)} units failed and are missing, "
            f"{manifest['failed_share']['pages']:.2%} of the pages; the manifest lists them. As long as {out / WORK} "
            "stands, the same command tries only them again.",
            flush=True,
        )


# ------------------------------------------------------------------------------------------------ units


def _build_units(job: CorpusJob, inputs: Inputs, work: Path) -> Built:
    """Build the units that are not done.

    Raises:
        UserError: more of them failed than `job.max_failed_share` allows, or nothing comes out.
    """
    scans, folder = work / "scan", work / "units"
    scans.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    redirects = (work / "redirects.marisa").absolute()
    print(f"build-corpus: reading {', '.join(file['path'] for file in inputs.files)}", flush=True)
    with local_or_remote(job.ray) as slots:
        scanned = scan_ranges("build-corpus", inputs.parts, inputs.contents, scans, slots, job.ray.retries)
        remove_stale(scans, set(scanned))
        found = survey(inputs.parts, scanned, scans, job.pages_per_task, redirects, job.allow_incomplete)
        report_incomplete("build-corpus", found)
        names = _names(found.units, inputs, sha256_file(redirects))
        tally = Tally()
        todo: list[UnitTask] = []
        for unit, name in zip(found.units, names, strict=True):
            if (index := read_index(folder, name)) is None:
                todo.append(UnitTask(unit, job, inputs.tools, name, str(folder.absolute())))
            else:
                tally.add(index)
        if stale := remove_stale(folder, set(names)):
            print(
                f"build-corpus: {stale} units of other settings, inputs or code were stale and are removed", flush=True
            )
        if tally.units:
            print(f"build-corpus: {tally.units} of {len(names)} units were done before", flush=True)
        print(f"build-corpus: {found.pages:,} pages in {len(names)} units, {len(todo)} to build", flush=True)
        failed = run_watched(build_unit, todo, tally, job, slots)
    judge_failures(failed, len(names), job.max_failed_share, work / "failures.json")
    if reason := empty_stage(tally.counts):
        raise UserError(f"build-corpus: nothing came out: {reason}")
    if pace := tally.pace_text():
        print(f"build-corpus: {pace}", flush=True)
    place = {name: number for number, name in enumerate(names)}
    return Built(names, found.units, sorted(failed, key=lambda one: place[one.name]), found.incomplete)


def _names(units: Sequence[Unit], inputs: Inputs, redirects: str) -> list[str]:
    return [
        fingerprint(
            [
                inputs.tools,
                inputs.contents[unit.path],
                redirects,
                [unit.kind, unit.first_page, unit.count, unit.start, unit.skip, unit.first_line],
                [unit.repeated, unit.namespaces],
            ]
        )
        for unit in units
    ]


# ------------------------------------------------------------------------------------------------ the corpus


def _assemble(job: CorpusJob, inputs: Inputs, out: Path, built: Built) -> dict[str, Any]:
    folder = out / WORK / "units"
    failed = {one.name for one in built.failed}
    done = [(name, unit) for name, unit in zip(built.names, built.units, strict=True) if name not in failed]
    sketches = [folder / f"{name}.npy" for name, _ in done]
    gathered = gather(_indices(folder, done), job.filters, sketches)
    if reason := empty_stage(gathered.counts):
        raise UserError(f"build-corpus: nothing came out: {reason}")
    check_sums(folder, gathered.counts, len(gathered.documents), len(gathered.texts))
    # Of an incomplete corpus that is made anew: from here on the folder is unfinished
    (out / MANIFEST).unlink(missing_ok=True)
    for path in [*out.glob("documents-*.tar"), *out.glob("text-*.tar")]:
        path.unlink()
    files = [folder / f"{name}.jsonl" for name, _ in done]
    statistics = Statistics(Counter(), Counter())
    total = len(gathered.documents) + len(gathered.texts)
    shards: list[dict[str, Any]] = []
    with StepProgress("build-corpus: shards", total) as progress:
        for record in write_shards(
            out, "documents", spread(gathered.documents, job.seed), files, job.documents_per_shard, statistics
        ):
            shards.append(record)
            progress.advance(record["samples"], f"{record['file']} written")
        for record in write_shards(out, "text", gathered.texts, files, job.documents_per_shard):
            shards.append(record)
            progress.advance(record["samples"], f"{record['file']} written")
    gathered.counts["in the documents"] = statistics.counts
    if inputs.leakage:
        gathered.counts.setdefault("leakage", Counter()).update(inputs.leakage)
    return {
        "format": CORPUS,
        "version": VERSION,
        "tool_version": erica_dist.__version__,
        "settings": inputs.settings,
        "inputs": inputs.files,
        "kb_fingerprint": inputs.kb,
        "tokenizer_fingerprint": inputs.tokenizer,
        "ner": inputs.ner,
        "counts": {stage: dict(sorted(of_stage.items())) for stage, of_stage in gathered.counts.items()},
        "relations": [
            {"id": relation, "name": inputs.relation_names[relation], "facts": statistics.relations[relation]}
            for relation in sorted(statistics.relations)
        ],
        "documents": len(gathered.documents),
        "text_pages": len(gathered.texts),
        "incomplete": built.incomplete + [_missing(one) for one in built.failed],
        "failed_units": [
            {"file": one.file, "place": one.place, "pages": one.pages, "attempts": one.attempts, "error": one.last_line}
            for one in built.failed
        ],
        "failed_share": {
            "units": len(failed) / len(built.names),
            "pages": sum(one.pages for one in built.failed) / sum(unit.count for unit in built.units),
        },
        "shards": shards,
        "request": inputs.request,
        "fingerprint": shards_fingerprint(inputs.settings, shards),
        "complete": True,
    }


def _missing(failure: Failure) -> dict[str, str]:
    text = f"{failure.file}, {failure.place}: the unit failed: {failure.last_line}"
    return {"file": Path(failure.file).name, "place": failure.place, "text": text}


def _indices(folder: Path, done: Sequence[tuple[str, Unit]]) -> Iterator[dict[str, Any]]:
    for name, unit in done:
        index = read_index(folder, name)
        if index is None:
            raise UserError(f"{folder / name}.json has vanished or is damaged; run the same command again")
        check_unit(folder / f"{name}.json", index, unit.count)
        yield index
