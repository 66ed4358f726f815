"""What a fine-tuning comes to: mean and deviation over the seeds, the table, result.json and predictions.jsonl."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import sha256_file, write_atomically

RESULT = "result.json"
PREDICTIONS = "predictions.jsonl"
FORMAT = "erica-dist/finetune-result"


@dataclass(frozen=True)
class SeedResult:
    """One training and its scores, shares between 0 and 1."""

    seed: int
    train_examples: int
    train_labels: int  # different labels among them; the rest cannot be learnt
    steps: int
    best_step: int
    dev: dict[str, float]  # at `best_step`; empty without dev examples
    test: dict[str, float]


def mean_and_std(runs: Sequence[SeedResult]) -> dict[str, dict[str, float | None]]:
    """Test score -> {"mean", "std"} over the seeds; std is the sample's (n - 1), None for a single seed."""
    columns = {name: [run.test[name] for run in runs] for name in runs[0].test}
    return {
        name: {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}
        for name, values in columns.items()
    }


def prediction_lines(
    seed: int, gold: Sequence[str], predicted: Sequence[str], probabilities: Sequence[float]
) -> list[str]:
    """One JSON line a test example, in the order of the test file; `index` is its place there, from 0."""
    return [
        json.dumps({"seed": seed, "index": i, "gold": g, "predicted": p, "probability": round(float(q), 6)})
        for i, (g, p, q) in enumerate(zip(gold, predicted, probabilities, strict=True))
    ]


def file_records(files: dict[str, str | Path]) -> dict[str, dict[str, str]]:
    """Name and sha256 of each file, by what it is used for; those that are not given are left out."""
    return {use: {"name": Path(path).name, "sha256": sha256_file(path)} for use, path in files.items() if path}


def write_result(run_dir: Path, result: dict[str, Any], predictions: Sequence[str]) -> None:
    """RUN_DIR/predictions.jsonl, then RUN_DIR/result.json, whose presence says that the run is complete."""
    write_atomically(run_dir / PREDICTIONS, "".join(f"{line}\n" for line in predictions).encode())
    write_atomically(run_dir / RESULT, json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")


def read_result(run_dir: Path) -> dict[str, Any] | None:
    """The result of a complete run, None when there is none.

    Raises:
        UserError: the file is damaged or not of this program.
    """
    path = run_dir / RESULT
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; give another run.dir") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise UserError(f"{path} is no result of a fine-tuning: give another run.dir")
    return result


def table(result: dict[str, Any]) -> str:
    """The seeds' dev and test scores in percent, then mean and standard deviation."""
    names = list(result["scores"])
    chosen = result["selection"]["by"]
    rows = [["seed", "examples", "best step", *([f"dev {chosen}"] if chosen else []), *(f"test {n}" for n in names)]]
    for run in result["runs"]:
        dev = [f"{100 * run['dev'][chosen]:.2f}"] if chosen else []
        steps = f"{run['best_step']}/{run['steps']}"
        test = [f"{100 * run['test'][name]:.2f}" for name in names]
        rows.append([str(run["seed"]), f"{run['train_examples']:,}", steps, *dev, *test])
    blank = ["", "", *([""] if chosen else [])]
    spread = [result["scores"][name] for name in names]
    rows.append(["mean", *blank, *(f"{100 * score['mean']:.2f}" for score in spread)])
    if len(result["runs"]) > 1:
        rows.append(["std", *blank, *(f"{100 * score['std']:.2f}" for score in spread)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.insert(2 + len(result["runs"]), lines[1])
    return "\n".join([*lines, "scores in percent"])
