"""Scores of relation classification from gold and predicted labels. All are shares between 0 and 1."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

SEMEVAL_RELATIONS = (
    "Cause-Effect",
    "Component-Whole",
    "Content-Container",
    "Entity-Destination",
    "Entity-Origin",
    "Instrument-Agency",
    "Member-Collection",
    "Message-Topic",
    "Product-Producer",
)
_SEMEVAL_LABEL = re.compile(rf"(?:{'|'.join(SEMEVAL_RELATIONS)})\(e[12],e[12]\)|Other")


def accuracy(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Share of examples with the right label; 0 for no examples."""
    return _ratio(sum(g == p for g, p in zip(gold, predicted, strict=True)), len(gold))


def micro_f1(gold: Sequence[str], predicted: Sequence[str], no_relation: Collection[str]) -> float:
    """F1 over all examples whose gold or predicted label is a relation, as TACRED counts it: `no_relation` labels are
    neither to be found nor, when right, a success."""
    right = sum(g == p and g not in no_relation for g, p in zip(gold, predicted, strict=True))
    return _f1(right, sum(p not in no_relation for p in predicted), sum(g not in no_relation for g in gold))


def is_semeval(labels: Collection[str]) -> bool:
    """Whether all labels are of SemEval-2010 Task 8, so that its official score is defined."""
    return bool(labels) and all(_SEMEVAL_LABEL.fullmatch(label) for label in labels)


def semeval_macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """The official score of SemEval-2010 Task 8 (the official scorer prints 100 times this).

    Mean of the F1 of the nine relations, Other left out. Both directions of a relation are pooled, and a prediction of
    the right relation with the wrong direction is wrong: it counts in both denominators and in no numerator.
    """
    total = 0.0
    for relation in SEMEVAL_RELATIONS:
        in_gold = [label.startswith(relation) for label in gold]
        in_predicted = [label.startswith(relation) for label in predicted]
        right = sum(g == p and of_relation for g, p, of_relation in zip(gold, predicted, in_gold, strict=True))
        total += _f1(right, sum(in_predicted), sum(in_gold))
    return total / len(SEMEVAL_RELATIONS)


def all_scores(
    gold: Sequence[str], predicted: Sequence[str], no_relation: Collection[str], semeval: bool
) -> dict[str, float]:
    """accuracy, micro_f1 and, with `semeval`, semeval_f1."""
    scores = {"accuracy": accuracy(gold, predicted), "micro_f1": micro_f1(gold, predicted, no_relation)}
    return scores | ({"semeval_f1": semeval_macro_f1(gold, predicted)} if semeval else {})


def _f1(right: int, predicted: int, gold: int) -> float:
    """2PR / (P + R) without dividing by what may be 0."""
    return _ratio(2 * right, predicted + gold)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
