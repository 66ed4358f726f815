"""A training step of ERICA: beside the published way of doing it, where its time goes, what larger pools cost.

    .venv/bin/python benchmarks/erica_step.py --work /tmp/erica_step --tables step equal
    .venv/bin/python benchmarks/erica_step.py --work /tmp/erica_step --tables step --precision bf16
    .venv/bin/python benchmarks/erica_step.py --work /tmp/erica_step --tables negatives

Real documents out of shared/data, the packaged 6-layer encoder (6 x 384) with a new MLM head, dropout 0.1.

step: one process. Theirs is `shared/tools/baseline_erica_step.py`, which does what the published implementation does in
a step; ours is what the launcher runs: stream, `training.erica.train_step`, DeepSpeed's engine (ZeRO 0 in fp32, 1 in
bf16) and AdamW, `erica.negatives=local`. Both go through the same documents, the same number a step, with the same
number of threads, by turns; medians of --repeats runs of --steps steps after one that warms up. Documents are tokenised
before the clock starts in both. Below it the parts of our step, and its rate: the operations of its matrix products by
formula (encoder, attention, head on masked positions; forward and twice that backward) over all its time, as a share of
what a product of 2,048 x 2,048 matrices reaches in the same process.

equal: one micro-batch without dropout through our packed encoder and through transformers' own padded one; relative
difference of the loss and of the gradient as a whole.

negatives: 2 ranks of one thread (gloo, ZeRO 1), micro-batches of 8, window of 128: documents a second (wall clock, both
ranks together) and a CPU second (of a rank), the largest resident set of a rank, at accumulation 1, 4 and 16, for
local, gather and global.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from split import Split

from erica_dist.training.cluster import free_port

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
ENCODER = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "erica-dist", "sample-v1", "encoder").expanduser()
PARTS = ("data", "forward", "loss", "backward", "optimizer")
ARTICLES = 60


# ------------------------------------------------------------------------------------------------ one process


class TimedEngine:
    """The engine, its forward passes and backward passes timed."""

    def __init__(self, engine: Any, split: Split) -> None:
        self._engine = engine
        self.module = split.timed("forward", engine.module)
        self.backward = split.timed("backward", engine.backward)
        self.forward = split.timed("forward", engine)

    def __call__(self, *words: Any, **named: Any) -> Any:
        return self.forward(*words, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def measure(overrides: list[str], steps: int) -> dict[str, Any]:
    """Train 1 + `steps` steps as the launcher does; figures of the last ones."""
    from erica_dist import config, settings
    from erica_dist.config import EricaJob
    from erica_dist.offline import stay_offline
    from erica_dist.stream.corpora import open_corpora
    from erica_dist.stream.loader import EricaStream
    from erica_dist.training import engine as engines
    from erica_dist.training import erica
    from erica_dist.training.cluster import map_environment
    from erica_dist.training.job import _build_module

    stay_offline()
    cluster = map_environment()
    threads = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(threads)
    job = settings.load(EricaJob, None, overrides)
    corpora = open_corpora(job.data, "train")
    engines.start_process_group()
    module, _ = _build_module("erica", job, corpora)
    engine = engines.build_engine(module, job.train, config.accumulation(job.train, cluster.world_size))
    stream = iter(EricaStream(corpora, job, cluster.rank, cluster.world_size, 0))
    documents = tokens = operations = 0.0
    for step in range(1 + steps):
        if step < 2:  # the first one warms up
            documents = tokens = operations = 0.0
            split = Split("loss", time.perf_counter)
            cpu = time.process_time()
        timed = TimedEngine(engine, split)
        batch = split.timed("data", next)(stream)
        scores = erica.train_step(timed, batch.micro_batches, job, step + 1)
        split.timed("optimizer", engines.optimizer_step)(engine, job.train.lr)
        documents += batch.documents
        tokens += batch.tokens
        operations += sum(operations_of(micro, module.model.config) for micro in batch.micro_batches)
    cpu, wall = time.process_time() - cpu, sum(split.seconds.values())
    found = {
        "documents": documents / wall,
        "tokens": tokens / wall,
        "documents_cpu": documents / cpu,
        "tokens_cpu": tokens / cpu,
        "step": wall / steps,
        "parts": {name: split.seconds[name] / steps for name in PARTS},
        "operations": operations / cpu,
        "product": rate_of_products(),
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "pool": scores["rd_pool"],
    }
    torch.distributed.destroy_process_group()
    return found


def operations_of(micro: Any, config: Any) -> float:
    """Floating-point operations of a micro-batch's matrix products, forward and backward (twice the forward)."""
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, masked = micro.tokens, len(micro.masked_positions_K)
    lengths = micro.packed.cu_seqlens.diff().double()
    linear = tokens * layers * (4 * width * width + 2 * width * inner)
    attention = layers * 2 * width * float((lengths**2).sum())
    head = masked * (width * width + width * config.vocab_size)
    return 3 * 2 * (linear + attention + head)


def rate_of_products(size: int = 2048, repeats: int = 5) -> float:
    """Operations a CPU second of a plain product of large matrices in float32."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(1 + repeats):
        began = time.process_time()
        left @ right
        seconds.append(time.process_time() - began)
    return 2 * size**3 / statistics.median(seconds[1:])


def difference(shards: str) -> dict[str, float]:
    """Our packed encoder against transformers' padded one: relative error of the loss and of the gradient."""
    import transformers

    from erica_dist import settings
    from erica_dist.config import EricaJob
    from erica_dist.models.encoder import build_encoder
    from erica_dist.objectives.entity_discrimination import entity_loss_sum
    from erica_dist.objectives.mlm import masked_loss_sum
    from erica_dist.objectives.pair_labels import PairLabels
    from erica_dist.objectives.pooling import entity_states, pair_states
    from erica_dist.objectives.relation_discrimination import relation_loss_sum
    from erica_dist.shards.reader import ShardFolder
    from erica_dist.stream.loader import EricaStream
    from erica_dist.training.modules import EricaModule

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    words = [f"model.init={ENCODER}", "model.dropout=0", "train.global_batch=16", "train.micro_batch=16"]
    job = settings.load(EricaJob, None, [*words, "data.workers=0", "train.steps=1"])
    folder = ShardFolder.open(shards, split="train")
    batch = next(iter(EricaStream(folder, job, 0, 1, 0))).micro_batches[0]
    model = build_encoder(job.model, folder.tokenizer, 1)
    theirs = transformers.AutoModelForMaskedLM.from_config(model.config, attn_implementation="eager")
    theirs.load_state_dict(model.state_dict())
    theirs.tie_weights()

    def loss_of(entity_ED: torch.Tensor, mlm: torch.Tensor) -> torch.Tensor:
        pairs_PD, labels = pair_states(entity_ED, batch.pair_head_P, batch.pair_tail_P), PairLabels.of(batch)
        ed, _ = entity_loss_sum(
            entity_ED,
            batch.query_head_Q,
            batch.query_tail_Q,
            batch.candidate_entity_C,
            batch.candidate_query_C,
            job.erica.temperature,
        )
        return relation_loss_sum(pairs_PD, labels, pairs_PD, labels, job.erica.temperature) + ed + mlm

    states, mlm, _ = EricaModule(model)(batch)
    ours = loss_of(states, mlm)
    ours.backward()
    packed = batch.packed
    lengths = packed.cu_seqlens.diff().tolist()
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    padded = [torch.zeros(real.shape, dtype=torch.int64) for _ in range(2)]
    for place, values in zip(padded, (packed.input_ids_T, packed.token_type_ids_T), strict=True):
        place[real] = values
    hidden = theirs.base_model(padded[0], attention_mask=real.long(), token_type_ids=padded[1])[0][real]
    logits = theirs.cls(hidden)[batch.masked_positions_K]
    other = loss_of(entity_states(hidden, batch), masked_loss_sum(logits, batch.masked_labels_K)[0])
    other.backward()
    gradients = [
        torch.cat([p.grad.flatten() for _, p in sorted(m.named_parameters()) if p.grad is not None])
        for m in (model, theirs)
    ]
    return {
        "loss": float(((ours - other).abs() / other).detach()),
        "gradient": float((gradients[0] - gradients[1]).norm() / gradients[1].norm()),
    }


# ------------------------------------------------------------------------------------------------ tables


def in_fresh_processes(words: list[str], ranks: int, threads: int) -> list[dict[str, Any]]:
    """`--measure` on so many ranks; what each found."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(purpose="erica-step"))}
    # says that no launcher is to be watched
    shared |= {"OMP_NUM_THREADS": str(threads), "TORCHELASTIC_RUN_ID": "none"}
    started = []
    for rank in range(ranks):
        environment = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(
            subprocess.Popen([sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True)
        )
    texts = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed, see above")
    return [json.loads(text.splitlines()[-1]) for text in texts]


def make_documents(work: Path, articles: int) -> tuple[Path, Path]:
    """(document shards, training shards of the same documents), made once."""
    documents, shards = work / f"documents-{articles}", work / f"shards-{articles}"
    if not (documents / "manifest.json").is_file():
        text = sorted((SHARED / "data" / "wikipedia-text").glob("*.xz"))
        tool = [sys.executable, str(SHARED / "tools" / "make_documents.py"), *map(str, text)]
        tool += ["--kb", str(SHARED / "data" / "kb-wikidata"), "--articles", str(articles), "--out", str(documents)]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
    if not (shards / "manifest.json").is_file():
        tool = [str(Path(sys.executable).with_name("erica-dist")), "convert", "--input", str(documents)]
        tool += ["--tokenizer", str(ENCODER), "--out", str(shards), "validation_share=0"]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
    return documents, shards


def yardstick(documents: Path, args: argparse.Namespace) -> dict[str, Any]:
    tool = [sys.executable, str(SHARED / "tools" / "baseline_erica_step.py"), str(documents)]
    tool += ["--batch", str(args.batch), "--steps", str(args.steps), "--threads", str(args.threads)]
    done = subprocess.run([*tool, "--precision", args.precision], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    step = found["step_seconds"]
    return {
        "documents": found["documents_per_second"],
        "tokens": found["useful_tokens_per_second"],
        "documents_cpu": found["documents_per_cpu_second"],
        "tokens_cpu": found["useful_tokens_per_cpu_second"],
        "step": step["total"],
        "mb": found["peak_rss_mb"],
    }


def show_step(work: Path, args: argparse.Namespace, console: Console) -> None:
    documents, shards = make_documents(work, args.articles)
    words = [f"model.init={ENCODER}", f"data.shards={shards}", "data.workers=0", "erica.negatives=local"]
    words += [f"train.global_batch={args.batch}", f"train.micro_batch={args.batch}", "train.steps=1000"]
    words += [f"train.precision={args.precision}", f"train.zero_stage={0 if args.precision == 'fp32' else 1}"]
    runs: dict[str, list[dict[str, Any]]] = {"published way": [], "ours": []}
    for _ in range(args.repeats):
        runs["published way"].append(yardstick(documents, args))
        runs["ours"] += in_fresh_processes(["--measure", str(args.steps), *words], 1, args.threads)
    middle = {
        way: {key: statistics.median(run[key] for run in found) for key in found[0] if key != "parts"}
        for way, found in runs.items()
    }
    title = (
        f"One step of {args.batch} documents, {args.precision}, dropout 0.1, {args.threads} thread(s), "
        f"medians of {args.repeats}; load {os.getloadavg()[0]:.1f}"
    )
    table = Table("", "published way", "ours", "times", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {"documents": "documents/s", "tokens": "useful pieces/s"}
    rows |= {"documents_cpu": "documents/CPU-s", "tokens_cpu": "useful pieces/CPU-s"}
    for key, name in rows.items():
        theirs, own = (middle[way][key] for way in runs)
        table.add_row(name, f"{theirs:,.2f}", f"{own:,.2f}", f"{own / theirs:.2f}")
    theirs, own = (middle[way]["mb"] for way in runs)
    table.add_row("largest resident set, MB", f"{theirs:,.0f}", f"{own:,.0f}", f"{own / theirs:.2f}")
    console.print(table)
    parts = {name: statistics.median(run["parts"][name] for run in runs["ours"]) for name in PARTS}
    whole = sum(parts.values())
    split = Table(*PARTS, title=f"Parts of our step ({whole:.2f} s)")
    split.add_row(*(f"{seconds:.3f} s, {seconds / whole:.0%}" for seconds in parts.values()))
    console.print(split)
    rate, product = middle["ours"]["operations"], middle["ours"]["product"]
    console.print(
        f"matrix products of our step: {rate / 1e9:.1f} GFLOP a CPU second, {rate / product:.0%} of the "
        f"{product / 1e9:.1f} of a plain float32 product of 2,048 x 2,048"
    )


def show_negatives(work: Path, args: argparse.Namespace, console: Console) -> None:
    _, shards = make_documents(work, args.articles)
    title = f"2 ranks, micro-batches of 8, window of 128, fp32, dropout 0.1; load {os.getloadavg()[0]:.1f}"
    names = ("accumulation", "negatives", "RD pool", "documents/s", "documents/CPU-s", "of local", "MB of a rank")
    table = Table(*names, title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for accumulation in (1, 4, 16):
        base = 0.0
        for negatives in ("local", "gather", "global"):
            words = [f"model.init={ENCODER}", f"data.shards={shards}", "data.workers=0", f"erica.negatives={negatives}"]
            words += [f"train.global_batch={16 * accumulation}", "train.micro_batch=8", "train.steps=1000"]
            words.append("model.max_length=128")
            steps = max(1, args.steps // accumulation)
            found = in_fresh_processes(["--measure", str(steps), *words, "train.zero_stage=1"], 2, 1)
            speed = sum(run["documents"] for run in found)
            per_cpu = statistics.fmean(run["documents_cpu"] for run in found)
            base = base or per_cpu
            pool, memory = found[0]["pool"], max(run["mb"] for run in found)
            speeds = f"{speed:.2f}", f"{per_cpu:.2f}", f"{per_cpu / base:.0%}"
            table.add_row(f"{accumulation}", negatives, f"{pool:,.0f}", *speeds, f"{memory:,.0f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/erica_step"))
    parser.add_argument("--tables", nargs="+", choices=("step", "equal", "negatives"), default=["step", "equal"])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=16, help="documents a step, half for RD and half for ED")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--articles", type=int, default=ARTICLES)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[1:], int(args.measure[0]))))
        return
    if not SHARED.is_dir() or not ENCODER.is_dir():
        raise SystemExit(f"needs {SHARED} and {ENCODER} (made by `make quickstart`)")
    args.work.mkdir(parents=True, exist_ok=True)
    console = Console(width=120)
    if "step" in args.tables:
        show_step(args.work, args, console)
    if "equal" in args.tables:
        _, shards = make_documents(args.work, args.articles)
        found = difference(str(shards))
        console.print(
            f"packed and padded, 16 documents: loss differs by {found['loss']:.1e}, gradient by {found['gradient']:.1e}"
        )
    if "negatives" in args.tables:
        show_negatives(args.work, args, console)


if __name__ == "__main__":
    main()
