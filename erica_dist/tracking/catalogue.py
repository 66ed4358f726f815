"""What is known about each metric of a run: how it is called, its unit, which way is better, where it is drawn.

Metrics that are not listed are drawn too; name and direction then follow from their key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["heldout", "loss", "objective", "optimizer", "speed"]
Better = Literal["lower", "higher", ""]

GROUPS: dict[Group, str] = {
    "heldout": "Held-out scores",
    "loss": "Training loss and its terms",
    "objective": "Inside the objective",
    "optimizer": "Learning rate and gradient norm",
    "speed": "Speed",
}
HELD_OUT = "heldout/"


@dataclass(frozen=True)
class Metric:
    key: str
    label: str
    unit: str
    group: Group
    better: Better = ""
    main: bool = False  # stands in the table of results


_KNOWN = [
    Metric("heldout/ed_accuracy", "Entity discrimination accuracy", "share", "heldout", "higher", True),
    Metric("heldout/rd_map", "Relation retrieval, mean average precision", "MAP", "heldout", "higher", True),
    Metric("heldout/ed_loss", "Entity discrimination loss", "nats", "heldout", "lower"),
    Metric("heldout/mlm_loss", "Masked language model loss", "nats per masked piece", "heldout", "lower", True),
    Metric("heldout/mlm_perplexity", "Masked language model perplexity", "perplexity", "heldout", "lower"),
    Metric("heldout/generator_loss", "Generator loss", "nats per masked token", "heldout", "lower", True),
    Metric("heldout/generator_accuracy", "Generator accuracy", "share", "heldout", "higher", True),
    Metric("heldout/replaced_recall", "Recall of replaced tokens", "share", "heldout", "higher", True),
    Metric("heldout/replaced_precision", "Precision on replaced tokens", "share", "heldout", "higher", True),
    Metric("heldout/auc", "AUC on replaced tokens", "AUC", "heldout", "higher", True),
    Metric("heldout/discriminator_loss", "Discriminator loss", "nats per token", "heldout", "lower"),
    Metric("heldout/discriminator_accuracy", "Discriminator accuracy", "share of all tokens", "heldout", "higher"),
    Metric("heldout/sampled_accuracy", "Sampled token is the original", "share of masked tokens", "heldout"),
    Metric("heldout/replaced_share", "Replaced tokens", "share of all tokens", "heldout"),
    Metric("loss", "Total loss", "weighted sum", "loss", "lower", True),
    Metric("loss_rd", "Relation discrimination loss", "nats", "loss", "lower", True),
    Metric("loss_ed", "Entity discrimination loss", "nats", "loss", "lower", True),
    Metric("loss_mlm", "Masked language model loss", "nats per masked piece", "loss", "lower", True),
    Metric("loss_generator", "Generator loss", "nats per masked token", "loss", "lower", True),
    Metric("loss_discriminator", "Discriminator loss", "nats per token", "loss", "lower", True),
    Metric("rd_single_single", "RD, anchor and positive within a sentence", "nats", "loss", "lower"),
    Metric("rd_single_cross", "RD, anchor within, positive across sentences", "nats", "loss", "lower"),
    Metric("rd_cross_single", "RD, anchor across, positive within a sentence", "nats", "loss", "lower"),
    Metric("rd_cross_cross", "RD, anchor and positive across sentences", "nats", "loss", "lower"),
    Metric("ed_accuracy", "Entity discrimination accuracy", "share of queries", "objective", "higher"),
    Metric("mlm_accuracy", "Masked language model accuracy", "share of masked pieces", "objective", "higher"),
    Metric("generator_accuracy", "Generator accuracy", "share of masked tokens", "objective", "higher"),
    Metric("sampled_accuracy", "Sampled token is the original", "share of masked tokens", "objective"),
    Metric("replaced_share", "Replaced tokens", "share of all tokens", "objective"),
    Metric("discriminator_recall", "Recall of replaced tokens", "share", "objective", "higher"),
    Metric("discriminator_precision", "Precision on replaced tokens", "share", "objective", "higher"),
    Metric("discriminator_accuracy", "Discriminator accuracy", "share", "objective", "higher"),
    Metric("discriminator_auc", "AUC on replaced tokens", "AUC", "objective", "higher"),
    Metric("rd_anchors", "Anchors of relation discrimination", "pairs a step", "objective"),
    Metric("rd_pool", "Pool of relation discrimination", "pairs", "objective"),
    Metric("rd_positives", "Positives of an anchor", "pairs", "objective"),
    Metric("rd_left_out", "Labelled pairs that are no anchor", "share", "objective", "lower"),
    Metric("rd_alignment", "Alignment: squared distance of positives", "on the unit sphere", "objective", "lower"),
    Metric("rd_uniformity", "Uniformity of pairs on the sphere", "log of a mean potential", "objective", "lower"),
    Metric("ed_candidates", "Candidates of entity discrimination", "entities a query", "objective"),
    Metric("lr", "Learning rate", "learning rate", "optimizer"),
    Metric("grad_norm", "Gradient norm before clipping", "norm", "optimizer"),
    Metric("tokens_per_second", "Tokens a second, all ranks", "tokens/s", "speed", "higher"),
    Metric("documents_per_second", "Documents a second, all ranks", "documents/s", "speed", "higher"),
    Metric("seconds", "Time of a step", "seconds", "speed", "lower"),
    Metric("data_wait_share", "Waiting for data", "share of the step", "speed", "lower"),
    Metric("documents_left_out", "Damaged documents left out", "documents a step", "speed", "lower"),
]
_BY_KEY = {metric.key: metric for metric in _KNOWN}
_ORDER = {metric.key: place for place, metric in enumerate(_KNOWN)}
# sizes of a step or of the held-out set, which are no result in themselves
_SIZES = {"documents", "tokens", "epoch", "seed", "heldout/seed", "heldout/best_step"}
BOOKKEEPING = frozenset(_SIZES | {"heldout/queries", "heldout/anchors"})


def describe(key: str) -> Metric:
    """The entry of `key`; for an unlisted one, what its name says."""
    if key in _BY_KEY:
        return _BY_KEY[key]
    name = key.removeprefix(HELD_OUT)
    label = name.replace("_", " ").strip().capitalize()
    better: Better = "lower" if "loss" in name else ""
    if any(word in name for word in ("accuracy", "recall", "precision", "auc", "map", "f1")):
        better = "higher"
    if key.startswith(HELD_OUT):
        return Metric(key, label, name, "heldout", better)
    if name.startswith("loss"):
        return Metric(key, label, "loss", "loss", better)
    if name.endswith(("_per_second", "_seconds")):
        return Metric(key, label, name.replace("_", " "), "speed")
    return Metric(key, label, name.replace("_", " "), "objective", better)


def in_order(keys: set[str]) -> list[Metric]:
    """The entries of `keys` without bookkeeping, listed ones first and in the list's order."""
    return [describe(key) for key in sorted(keys - BOOKKEEPING, key=lambda key: (_ORDER.get(key, len(_ORDER)), key))]
