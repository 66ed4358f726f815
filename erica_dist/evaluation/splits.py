"""Low-resource subsets of a training file: which examples train and which choose the model.

Either a splits file that fixes the lists (so that everybody's numbers are of the same examples), or a draw that is a
pure function of (seed, number of examples): the subset of p % is the start of one permutation, so 1 % lies within 10 %.

The splits file: `{"train_file", "dev_file", "dev": [...], "train": {"1": {"13": [...], "42": [...]}, "10": {...}}}`,
`train[percent][seed]` being 0-based indices into the training file. `dev` counts when `dev_file` is the training file.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.errors import UserError
from erica_dist.stream.randomness import hashed


@dataclass(frozen=True)
class Split:
    """Sorted, disjoint indices into the training file."""

    train: list[int]
    dev: list[int]  # taken out of the training file to choose the model; empty: nothing is taken out


def draw(examples: int, percent: float, seed: int, dev_percent: float) -> Split:
    """`percent` % of the examples (rounded up) beside `dev_percent` % for choosing the model.

    The dev part is the same for every seed and every percentage; 100 % is everything but it.

    Raises:
        UserError: a percentage out of range, or nothing is left to train on.
    """
    if not 0 < percent <= 100:
        raise UserError(f"finetune.percent={percent:g} must be above 0 and at most 100")
    if not 0 <= dev_percent < 100:
        raise UserError(f"finetune.dev_percent={dev_percent:g} must be at least 0 and below 100")
    dev = set(_permutation(0, "dev", examples)[: math.ceil(examples * dev_percent / 100)])
    rest = [i for i in _permutation(seed, "low-resource", examples) if i not in dev]
    train = rest[: math.ceil(examples * percent / 100)]
    if not train:
        raise UserError(f"no example of {examples} is left to train on: lower finetune.dev_percent={dev_percent:g}")
    return Split(sorted(train), sorted(dev))


def _permutation(seed: int, purpose: str, n: int) -> list[int]:
    return np.random.Generator(np.random.Philox(key=hashed(2, seed, purpose, 0, 0))).permutation(n).tolist()


def from_file(path: str | Path, train_file: str | Path, examples: int, percent: float, seed: int, dev: bool) -> Split:
    """The subset that the splits file `path` fixes for `percent` and `seed`; with `dev` its dev list is taken out.

    Args:
        train_file: the training file in use; its name must be the one that the splits were made for.
        examples: how many it holds.

    Raises:
        UserError: no such file, not of this shape, no list for this percentage or seed, or indices beyond the file.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the splits {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("train"), dict) or "train_file" not in content:
        raise UserError(f'{path} is no splits file: it needs "train_file" and "train": {{percent: {{seed: [...]}}}}')
    if _stem(content["train_file"]) != _stem(train_file):
        raise UserError(f"{path} splits {content['train_file']}, not finetune.train={train_file}")
    lists = _entry(content["train"], f"{percent:g}", path, "finetune.percent")
    train = set(_indices(_entry(lists, str(seed), path, "finetune.seeds"), path, examples))
    held: set[int] = set()
    if dev and content.get("dev_file") == content["train_file"]:
        held = set(_indices(content.get("dev", []), path, examples))
    if not train - held:
        raise UserError(f"{path}: the list of {percent:g} %, seed {seed} leaves nothing to train on")
    return Split(sorted(train - held), sorted(held))


def _stem(name: str | Path) -> str:
    return Path(name).name.removesuffix(".gz")


def _entry(table: Any, key: str, path: Path, setting: str) -> Any:
    if not isinstance(table, dict) or key not in table:
        known = ", ".join(table) if isinstance(table, dict) else "none"
        raise UserError(f"{path} has no list for {setting}={key}; it has {known}")
    return table[key]


def _indices(values: Any, path: Path, examples: int) -> list[int]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise UserError(f"{path}: a list of whole numbers is expected where {str(values)[:60]!r} stands")
    wrong = [value for value in values if not 0 <= value < examples]
    if wrong:
        raise UserError(f"{path}: index {wrong[0]} is beyond the {examples} examples of the training file")
    return values
