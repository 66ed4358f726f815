"""The whole way once on the real sample: what `make quickstart` runs after the environment stands.

Each stage is a command that a user types, printed before it runs, and each command reuses what already stands. At the
end one summary is made from the files that the stages wrote.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from erica_dist.errors import UserError
from erica_dist.tracking.journal import EVALUATION, METRICS, read_metrics

REPOSITORY = Path(__file__).resolve().parents[1]
RANKS = 2
# Beside the plain run of each job, one with a single setting changed, so that there is something to compare.
RUNS = {
    "erica-gather": ("erica", []),
    "erica-local": ("erica", ["erica.negatives=local"]),
    "electra-half": ("electra", []),
    "electra-quarter": ("electra", ["electra.generator_hidden_size=0.25"]),
}
EXPORTS = ("erica-gather", "electra-half")
Command = tuple[str, list[str]]


def quickstart(cache: str | Path, out: str | Path) -> None:
    """Sample, knowledge base, corpus, shards, four trainings, comparison, two exported models, summary.

    Raises:
        UserError: a stage failed (its own message stands above).
    """
    sample, out = Path(cache).absolute(), Path(out).absolute()
    if not (REPOSITORY / "launchers" / "erica.py").is_file():
        raise UserError("the quickstart needs a checkout of the repository (launchers/ is not part of the package)")
    out.mkdir(parents=True, exist_ok=True)
    # An end by SIGTERM must take the stages' processes along, as Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seconds: dict[str, float] = {}
    for number, (name, command) in enumerate(commands(sample, out), start=1):
        print(f"\n== {number}. {name}\n$ {shlex.join(_short(command))}", flush=True)
        began = time.perf_counter()
        _run(name, command)
        seconds[name] = round(time.perf_counter() - began, 1)
    (out / "seconds.json").write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")
    summary(sample, out, seconds)


def commands(sample: Path, out: Path) -> list[Command]:
    """(stage, command) in order; `sample` holds pages/, kb/ and encoder/."""
    erica_dist = [sys.executable, "-m", "erica_dist.cli"]
    tables = [word for t in ("entities", "triples", "relations") for word in (f"--{t}", f"{sample}/kb/{t}.tsv")]
    pages = [f"{sample}/pages/enwiki-shortened.xml.bz2", f"{sample}/pages/summaries.jsonl"]
    encoder = ["--tokenizer", f"{sample}/encoder"]
    corpus = [*(word for page in pages for word in ("--input", page)), "--kb", f"{out}/kb", *encoder]
    # The sample is small: shorter documents than a real corpus has, and small units so that both cores stay busy
    passages = ["filters.min_tokens=64", "pages_per_task=50"]
    # Shorter sequences keep a step at a few seconds on two cores; what the window cuts off is counted
    window = ["max_length=192", "validation_share=0.1"]
    tokenize = [*erica_dist, "tokenize", "--corpus", f"{out}/corpus", *encoder]
    stages: list[Command] = [
        ("sample", [*erica_dist, "sample", str(sample)]),
        ("knowledge base", [*erica_dist, "build-kb", *tables, "--out", f"{out}/kb"]),
        ("corpus", [*erica_dist, "build-corpus", *corpus, "--out", f"{out}/corpus", *passages]),
        ("documents", [*tokenize, "--kind", "documents", "--out", f"{out}/documents", *window]),
        ("sequences", [*tokenize, "--kind", "sequences", "--out", f"{out}/sequences", "max_length=128"]),
    ]
    for run, (kind, overrides) in RUNS.items():
        shards = "documents" if kind == "erica" else "sequences"
        start = [f"model.init={sample}/encoder"] if kind == "erica" else []
        words = [*start, f"data.shards={out}/{shards}", f"run.dir={out}/runs/{run}", *overrides]
        stages.append((run, [*_deepspeed(kind), *words]))
    store = f"sqlite:///{out}/runs/mlflow.db"
    report = ["--uri", store, "--experiment", "quickstart", "--out", f"{out}/report"]
    stages.append(("comparison", [*erica_dist, "compare", *report]))
    for run in EXPORTS:
        stages.append((f"export {run}", [*erica_dist, "export", f"{out}/runs/{run}", f"{out}/models/{run}"]))
    return stages


def _deepspeed(kind: str) -> list[str]:
    from erica_dist.training.cluster import free_port

    launcher = [
        str(Path(sys.executable).with_name("deepspeed")),
        "--num_accelerators",
        str(RANKS),
        "--log_level",
        "error",
    ]
    script = [str(REPOSITORY / "launchers" / f"{kind}.py"), "--config"]
    port = ["--master_port", str(free_port(purpose="quickstart"))]
    return [*launcher, *port, *script, str(REPOSITORY / "launchers" / "jobs" / f"quickstart_{kind}.yaml")]


def _short(command: list[str]) -> list[str]:
    """As a user would type it."""
    words = [word.replace(f"{REPOSITORY}/", "") for word in command]
    words[0] = Path(command[0]).name
    return ["erica-dist", *words[3:]] if words[1:3] == ["-m", "erica_dist.cli"] else words


def _run(name: str, command: list[str]) -> None:
    """Run one stage in a process group of its own and end all of it when we are interrupted: the DeepSpeed launcher
    does
    not pass signals on to its ranks."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or RANKS) // RANKS)),
        "PYTHONUNBUFFERED": "1",
        "DS_ACCELERATOR": os.environ.get("DS_ACCELERATOR", "cpu"),  # two processes on a CPU, whatever the machine has
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if status != 0:
        raise UserError(
            f"stage {name!r} ended with status {status}; its message stands above. Run the same command again"
        )


# ------------------------------------------------------------------------------------------------ summary


def summary(sample: Path, out: Path, seconds: dict[str, float]) -> None:
    """What came out, from the files of the stages."""
    console = Console(width=120 if not sys.stdout.isatty() else None)
    corpus = json.loads((out / "corpus" / "manifest.json").read_text(encoding="utf-8"))
    console.rule("[bold]Quickstart: what came out")
    console.print(
        f"[bold]{corpus['documents']:,}[/] documents of {corpus['text_pages']:,} pages, "
        f"[bold]{len(corpus['relations'])}[/] relations"
    )
    console.print(_counts(corpus["counts"]))
    console.print(_scores(out))
    console.print(_times(seconds))
    _where(console, sample, out)


def _counts(counts: dict[str, Any]) -> Table:
    table = Table("stage", "what", "count", title="Corpus: kept, and dropped why", title_justify="left")
    for stage, reasons in counts.items():
        for i, (reason, number) in enumerate(reasons.items()):
            table.add_row(stage if i == 0 else "", reason.replace("_", " "), f"{number:,}")
    table.columns[2].justify = "right"
    return table


SCORES = {
    "erica": {
        "ed_accuracy": "entity-discrimination accuracy",
        "rd_map": "relation retrieval (MAP)",
        "mlm_loss": "MLM loss",
    },
    "electra": {
        "generator_loss": "generator loss",
        "replaced_recall": "replaced-token recall",
        "auc": "replaced-token AUC",
    },
}


def _scores(out: Path) -> Table:
    table = Table("run", "held-out score", "before", "after", title="Held-out scores", title_justify="left")
    for run, (kind, _) in RUNS.items():
        records = read_metrics(out / "runs" / run / EVALUATION)
        for i, (name, text) in enumerate(SCORES[kind].items()):
            table.add_row(run if i == 0 else "", text, f"{records[0][name]:.4f}", f"{records[-1][name]:.4f}")
        steps = read_metrics(out / "runs" / run / METRICS)
        table.add_row("", "training loss", f"{steps[0]['loss']:.4f}", f"{steps[-1]['loss']:.4f}", end_section=True)
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def _times(seconds: dict[str, float]) -> Table:
    table = Table(
        "stage",
        "seconds",
        title="Wall time",
        caption="what already stood is quick",
        caption_justify="left",
        title_justify="left",
    )
    for name, value in seconds.items():
        table.add_row(name, f"{value:.1f}")
    table.add_row("[bold]together", f"[bold]{sum(seconds.values()):.1f}")
    table.columns[1].justify = "right"
    return table


def _where(console: Console, sample: Path, out: Path) -> None:
    def shown(path: Path) -> str:
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)

    mlflow = Path(sys.executable).with_name("mlflow")
    lines = {
        "sample, with licences": sample,
        "knowledge base": out / "kb",
        "corpus (document shards)": out / "corpus",
        "training shards": out / "documents",
        "runs (metrics, checkpoints)": out / "runs",
        "comparison page and curves": out / "report" / "index.html",
        "exported models": out / "models",
    }
    for text, path in lines.items():
        console.print(f"  {text:<30}{shown(path)}", soft_wrap=True, highlight=False)
    commands = {
        "Browse the runs": f"{shown(mlflow)} ui --host 127.0.0.1 --backend-store-uri sqlite:///{out}/runs/mlflow.db",
        "On a cluster, your own dumps": "sbatch slurm/build_corpus.sbatch --config corpus.yaml",
        "then": "sbatch --nodes 4 slurm/pretrain_erica.sbatch --config launchers/jobs/erica_paper.yaml "
        "model.init=... data.shards=... run.dir=...",
    }
    for text, command in commands.items():
        console.print(f"{text}:\n  {command}", soft_wrap=True, highlight=False)
