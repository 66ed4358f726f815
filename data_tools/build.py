"""`erica-dist build-corpus`: pages and a knowledge base -> a corpus folder.

    check everything --> scan the inputs --> build units (those not done yet) --> assemble shards --> manifest

Scan and units run on Ray; their results lie in OUT/.build until the manifest is written. A build that was stopped goes
on with what is left: a unit is recognised by the fingerprint of its range of input, of that input's content, and of all
that the steps depend on. What comes out does not depend on the number of workers, nor on what failed on the way.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import erica_dist
from data_tools.assembly import Statistics, gather, spread, write_shards
from data_tools.output_folder import WORK, check_folder, locked, remove_stale, standing
from data_tools.progress import StepProgress
from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.report import counts_table, seconds_text
from data_tools.steps import STEPS_VERSION, Counts, UnitTask, build_unit, load_tools, read_index
from data_tools.wikipedia.ranges import Range, plan
from data_tools.wikipedia.reader import Unit
from data_tools.wikipedia.sources import describe, sources
from data_tools.wikipedia.survey import report_incomplete, scan_ranges, survey
from erica_dist.config import CorpusJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import CORPUS, VERSION, fingerprint, shards_fingerprint, write_manifest
from erica_dist.shards.tarfiles import sha256_file, write_atomically
from erica_dist.shards.tokenizers import tokenizer_fingerprint

UNPACKED = {".bz2": 5.0, ".gz": 3.0, ".xz": 5.0}  # roughly how many times larger the text is
NEEDED = 2.5  # bytes on the disk for a byte of text: results of units and shards stand side by side
LISTED_FAILURES = 5


@dataclass(frozen=True)
class Inputs:
    """What a build depends on, checked and identified. `request`: fingerprint of all of it.

    parts: ranges to read; contents: sha256 of each file by its path.
    """

    parts: list[Range]
    contents: dict[str, str]
    files: list[dict[str, Any]]
    settings: dict[str, Any]
    kb: str
    tokenizer: str
    ner: dict[str, Any]
    relation_names: dict[str, str]
    tools: str
    request: str


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
        if (manifest := standing(out, inputs.request)) is not None:
            print(f"build-corpus: {out} is already built with these settings, nothing to do", flush=True)
            return manifest
        names, incomplete = _build_units(job, inputs, work)
        manifest = _assemble(job, inputs, out, names) | {"incomplete": incomplete}
        write_manifest(out, manifest)
        shutil.rmtree(work, ignore_errors=True)
    counts_table("build-corpus", manifest["counts"])
    print(
        f"build-corpus: {manifest['documents']:,} documents, {len(manifest['relations'])} relations, "
        f"{manifest['text_pages']:,} pages of text in {out}; {seconds_text(time.monotonic() - started)}",
        flush=True,
    )
    return manifest


# ------------------------------------------------------------------------------------------------ before the work


def check(job: CorpusJob) -> Inputs:
    """Load and identify all that `job` names.

    Raises:
        UserError: the first thing that is missing or wrong.
    """
    for key in ("inputs", "kb", "tokenizer", "out"):
        if not getattr(job, key):
            raise UserError(f"build-corpus needs --{'input' if key == 'inputs' else key} (setting {key!r})")
    filters, labelling = job.filters, job.labelling
    for key, value, least in (
        ("filters.max_tokens", filters.max_tokens, max(filters.min_tokens, 8)),
        ("documents_per_shard", job.documents_per_shard, 1),
        ("pages_per_task", job.pages_per_task, 1),
        ("labelling.max_entities", labelling.max_entities or filters.min_entities, filters.min_entities),
        ("labelling.max_labels", labelling.max_labels or filters.min_pairs, filters.min_pairs),
        ("ner.batch_size", job.ner.batch_size, 1),
    ):
        if value < least:
            raise UserError(f"{key}={value} leaves no document; it must be at least {least}")
    if len(set(job.inputs)) < len(job.inputs):
        raise UserError(f"an input is given twice: {', '.join(job.inputs)}")
    found = sources(job.inputs)
    paths = [Path(source.path) for source in found]
    text = sum(path.stat().st_size * UNPACKED.get(path.suffix, 1.0) for path in paths)
    check_folder(Path(job.out), NEEDED * text)
    tools = load_tools(job)
    parts = plan(found, allow_incomplete=job.allow_incomplete)
    files, contents = describe(job.inputs, found)
    settings = {
        key: value
        for key, value in dataclasses.asdict(job).items()
        if key not in ("inputs", "kb", "tokenizer", "out", "ray", "leakage", "allow_incomplete")
    }
    settings["leakage"] = {
        key: sha256_file(path) if path else "" for key, path in dataclasses.asdict(job.leakage).items()
    }
    kb, tokenizer = tools.kb.fingerprint, tokenizer_fingerprint(tools.count.tokenizer)
    ner = tools.recognise.identity() if tools.recognise else {"enabled": False}
    relation_names = {
        tools.kb.relation_id(number): tools.kb.relation_name(number) for number in range(tools.kb.relation_count)
    }
    of_units = {key: value for key, value in settings.items() if key not in ("seed", "documents_per_shard")}
    tools_fingerprint = fingerprint([STEPS_VERSION, erica_dist.__version__, of_units, kb, tokenizer, ner])
    request = fingerprint([tools_fingerprint, settings, files])
    return Inputs(parts, contents, files, settings, kb, tokenizer, ner, relation_names, tools_fingerprint, request)


# ------------------------------------------------------------------------------------------------ units


def _build_units(job: CorpusJob, inputs: Inputs, work: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Build the units that are not done; gives the names of all their results in the order of the input, and what of
    the input could not be read."""
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
        todo = [
            UnitTask(unit, job, inputs.tools, name, str(folder.absolute()))
            for unit, name in zip(found.units, names, strict=True)
            if read_index(folder, name) is None
        ]
        if stale := remove_stale(folder, set(names)):
            print(
                f"build-corpus: {stale} units of other settings, inputs or code were stale and are removed", flush=True
            )
        if len(todo) < len(names):
            print(f"build-corpus: {len(names) - len(todo)} of {len(names)} units were done before", flush=True)
        print(f"build-corpus: {found.pages:,} pages in {len(names)} units, {len(todo)} to build", flush=True)
        if todo:
            _run(job, todo, work, slots)
    return names, found.incomplete


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


def _run(job: CorpusJob, todo: Sequence[UnitTask], work: Path, slots: int) -> None:
    failures: list[dict[str, Any]] = []
    documents = words = dropped = 0
    with StepProgress("build-corpus: units", len(todo)) as progress:
        for finished in run_units(build_unit, todo, slots, job.ray.retries):
            unit = finished.task.unit
            if finished.error:
                place = f"{unit.path}, pages {unit.first_page} to {unit.first_page + unit.count - 1}"
                failures.append({"unit": place, "attempts": finished.attempts, "error": finished.error})
            else:
                counts = finished.value["counts"]
                documents += len(finished.value["documents"])
                words += counts.get("words", {}).get("read", 0)  # none where no page of the unit is an article
                of_passages = counts.get("passages", {})
                dropped += of_passages.get("cut", 0) - of_passages.get("passed", 0)
            text = (
                f"{documents:,} documents kept, {dropped:,} passages dropped, {words / progress.seconds:,.0f} words/s"
            )
            progress.advance(text=text + (f", {len(failures)} failed" if failures else ""))
    if failures:
        report = work / "failures.json"
        write_atomically(report, json.dumps(failures, ensure_ascii=False, indent=1).encode())
        listed = "\n".join(
            f"- {failure['unit']} ({failure['attempts']} attempt(s)): {failure['error'].strip()}"
            for failure in failures[:LISTED_FAILURES]
        )
        raise UserError(
            f"{len(failures)} of {len(todo)} units failed; all are listed in {report}. The others are kept: run the "
            f"same command again once the cause is removed.\n{listed}"
        )


# ------------------------------------------------------------------------------------------------ the corpus


def _assemble(job: CorpusJob, inputs: Inputs, out: Path, names: Sequence[str]) -> dict[str, Any]:
    folder = out / WORK / "units"
    gathered = gather(_indices(folder, names))
    _check_counts(gathered.counts)
    for path in [*out.glob("documents-*.tar"), *out.glob("text-*.tar")]:
        path.unlink()
    files = [folder / f"{name}.jsonl" for name in names]
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
        "shards": shards,
        "request": inputs.request,
        "fingerprint": shards_fingerprint(inputs.settings, shards),
        "complete": True,
    }


def _indices(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        index = read_index(folder, name)
        if index is None:
            raise UserError(f"{folder / name}.json has vanished or is damaged; run the same command again")
        yield index


def _check_counts(counts: Counts) -> None:
    """Stop where a stage gave nothing, and say why."""
    stages = (
        ("pages", "pages kept", "no page of the input is an article with text"),
        ("passages", "cut", "the pages hold no text, or leakage.titles names all of them"),
        ("passages", "passed", "no passage passed the filters; loosen filters.* or bring a knowledge base that fits"),
        ("documents", "kept", "no document is left"),
    )
    for stage, reason, text in stages:
        if not counts.get(stage, Counter())[reason]:
            raise UserError(f"build-corpus: nothing came out: {text}. Counts: {json.dumps(counts.get(stage, {}))}")
