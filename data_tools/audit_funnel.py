"""What a build dropped where, from the counts of its manifest: pages, then passages, then documents.

In: `manifest["counts"]` (stage -> reason -> number). Out: steps that add up, each a number that went on or was dropped,
and for every counted reason the unit in which it is counted. Reasons that this file does not know are shown too: a drop
is told by its words, not by a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Counts = Mapping[str, Mapping[str, int]]
_BY_LENGTH = frozenset(["dropped: too short", "dropped: too long"])
_REFUSED = "pages that the wikitext parser refused"


@dataclass(frozen=True)
class Step:
    """`number` of the unit are here; or, where `dropped`, were lost here."""

    name: str
    number: int
    dropped: bool = False


def page_steps(counts: Counts) -> list[Step]:
    """Pages read, each reason for which some are no article or left out, and pages used."""
    pages = counts.get("pages", {})
    lost = {reason: number for reason, number in pages.items() if unit_of("pages", reason) == "pages"}
    for whole in ("pages read", "pages kept"):
        lost.pop(whole, None)
    if _REFUSED in lost:  # such a page is counted as one without text as well
        lost["pages without text"] = lost.get("pages without text", 0) - lost[_REFUSED]
    read = pages.get("pages read", 0)
    steps = [Step("pages read", read), *_largest_first(lost)]
    return [*steps, Step("articles used", read - sum(step.number for step in steps if step.dropped))]


def passage_steps(counts: Counts) -> list[Step]:
    """Passages cut, dropped by length, before NER and after it, as duplicates; documents."""
    passages, documents = counts.get("passages", {}), counts.get("documents", {})
    lost = {reason: number for reason, number in passages.items() if reason.startswith("dropped")}
    before_ner = {reason: number for reason, number in lost.items() if reason.startswith("dropped before NER")}
    by_length = {reason: number for reason, number in lost.items() if reason in _BY_LENGTH}
    labelled = {reason: number for reason, number in lost.items() if reason not in before_ner | by_length}
    cut = passages.get("cut", 0)
    steps = [Step("passages cut", cut)]
    for group, name in ((by_length, "of fitting length"), (before_ner, "may pass: go to NER"), (labelled, "labelled")):
        steps += _largest_first(group)
        steps.append(Step(name, cut - sum(step.number for step in steps if step.dropped)))
    of_documents = {reason: number for reason, number in documents.items() if reason.startswith("dropped")}
    return [*steps, *_largest_first(of_documents), Step("documents", documents.get("kept", 0))]


def word_steps(counts: Counts) -> list[Step]:
    """Words of the articles, those that NER saw (where it ran) and those in the documents."""
    words = counts.get("words", {})
    steps = [Step("words in articles", words.get("read", 0))]
    if words.get("seen by NER"):
        steps.append(Step("words seen by NER", words["seen by NER"]))
    return [*steps, Step("words in documents", counts.get("in the documents", {}).get("words", 0))]


def unit_of(stage: str, reason: str) -> str:
    """What the numbers of this reason count."""
    if stage == "pages":
        return "pages" if reason.startswith(("pages", "left out")) or reason.endswith(" pages") else "pieces"
    if stage == "labels":
        return "entities" if reason.startswith("entities") else "labels"
    if stage == "documents":
        return "pages" if reason.startswith("text pages") else "documents"
    if stage == "leakage":  # "<set>: <unit> ..."
        return reason.rpartition(": ")[2].partition(" ")[0]
    if stage == "in the documents":
        return reason.partition(":")[0]
    return {"words": "words", "passages": "passages", "mentions": "spans"}.get(stage, "")


def _largest_first(lost: Mapping[str, int]) -> list[Step]:
    ordered = sorted(lost.items(), key=lambda entry: (-entry[1], entry[0]))
    return [Step(reason, number, dropped=True) for reason, number in ordered if number]
