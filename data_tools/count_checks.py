"""Nothing came out, or something got lost on the way: both end the build with the reason.

In: the counts of units, their indices, the records of the shards. What one stage gives is what the next one takes:

    pages of the survey = kept + left out          pages read, of each unit        = the pages of its range
    passages cut        = passed + dropped         documents in a unit's index     = passages passed
    passed              = documents kept + dropped     documents kept              = samples of the shards
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError

Counts = Mapping[str, Mapping[str, int]]
AGAIN = "something was lost on the way: remove it and run the same command again"
STAGES = (
    ("pages", "pages kept", "no page of the input is an article with text"),
    ("passages", "cut", "the pages hold no text, or leakage.titles names all of them"),
    ("passages", "passed", "no passage passed the filters; loosen filters.* or bring a knowledge base that fits"),
    ("documents", "kept", "no document is left"),
)


def empty_stage(counts: Counts) -> str:
    """What the first stage that gave nothing says of it, "" where each gave something; a stage without counts is not
    reached yet."""
    for stage, reason, text in STAGES:
        of_stage = counts.get(stage, {})
        if not of_stage.get(reason) and (stage != "documents" or stage in counts):
            return f"{text}. Counts: {json.dumps(of_stage)}"
    return ""


def check_unit(file: Path, index: Mapping[str, Any], pages: int) -> None:
    """See that a unit's index (of `file`) holds what its counts say, for the `pages` pages of its range.

    Raises:
        UserError: it does not.
    """
    counts = index["counts"]
    of_pages, passages = counts.get("pages", {}), counts.get("passages", {})
    left_out = _with_prefix(of_pages, "left out")
    _agree(file, "pages read", of_pages.get("pages read", 0), "pages of its range", pages)
    _agree(file, "texts", len(index["texts"]) + left_out, "pages kept", of_pages.get("pages kept", 0))
    _agree(file, "documents", len(index["documents"]), "passages passed", passages.get("passed", 0))


def check_sums(folder: Path, counts: Counts, documents: int, texts: int) -> None:
    """See that the counts of all units of `folder` account for everything, down to the places to be written.

    Raises:
        UserError: they do not.
    """
    pages, passages, last = counts["pages"], counts["passages"], counts["documents"]
    dropped = _with_prefix(passages, "dropped")
    _agree(folder, "passages passed or dropped", passages["passed"] + dropped, "passages cut", passages["cut"])
    dropped = _with_prefix(last, "dropped")
    _agree(folder, "documents kept or dropped", documents + dropped, "passages passed", passages["passed"])
    gone = _with_prefix(pages, "left out") + _with_prefix(last, "text pages dropped")
    _agree(folder, "text pages kept or dropped", texts + gone, "pages kept", pages["pages kept"])


def check_shards(folder: Path, manifest: Mapping[str, Any]) -> None:
    """See that the shards hold as many samples as the manifest says, and lie there with their bytes.

    Raises:
        UserError: a shard is missing or of another size, or the numbers differ.
    """
    shards: Sequence[Mapping[str, Any]] = manifest["shards"]
    samples: Counter[str] = Counter()
    for shard in shards:
        samples[shard["kind"]] += shard["samples"]
    _agree(folder, "samples of document shards", samples["documents"], "documents kept", manifest["documents"])
    _agree(folder, "samples of text shards", samples["text"], "text pages kept", manifest["text_pages"])
    found = {path.name: path.stat().st_size for path in folder.glob("*.tar")}
    if missing := {shard["file"]: shard["bytes"] for shard in shards}.items() ^ found.items():
        raise UserError(f"{folder}: {', '.join(sorted({name for name, _ in missing}))}: {AGAIN}")


def _with_prefix(counts: Mapping[str, int], prefix: str) -> int:
    return sum(number for reason, number in counts.items() if reason.startswith(prefix))


def _agree(where: Path, what: str, number: int, other: str, expected: int) -> None:
    if number != expected:
        raise UserError(f"{where}: {number:,} {what}, but {expected:,} {other}: {AGAIN}")
