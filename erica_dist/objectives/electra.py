"""Replaced-token detection (Clark et al. 2020): draw replacements, tell replaced tokens from originals.

Legend: T packed tokens, K masked positions, V vocabulary, N blocks of the vocabulary, B tokens of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from erica_dist.stream.micro_batches import ElectraMicroBatch

AUC_BINS, AUC_RANGE = 4096, 16.0  # bins of the logit from -16 to 16, fine enough to rank a young discriminator
BLOCK = 256  # of the vocabulary, when replacements are drawn


def masked_input(batch: ElectraMicroBatch, mask_id: int) -> Tensor:
    """The generator's input ids [T]: chosen positions become the mask token, except those that keep theirs."""
    ids_T = batch.packed.input_ids_T.clone()
    ids_T[batch.masked_positions_K[~batch.keep_K]] = mask_id
    return ids_T


def sample_replacements(
    logits_KV: Tensor, uniform_K: Tensor, original_K: Tensor, temperature: float, disallow_correct: bool
) -> Tensor:
    """One token [K] a position from softmax(logits / temperature), without gradient.

    Drawn by inverting the cumulative distribution at the given uniforms in [0, 1): the distribution is that of the
    Gumbel trick with one random number a position instead of V, and the draw belongs to the document, not to a rank's
    state. The sum runs first over blocks of the vocabulary, then within the one block that the draw falls into, both in
    float64. A token of probability 0 is never drawn.
    """
    with torch.no_grad():
        wide_KV = logits_KV.float() / temperature
        if disallow_correct:
            wide_KV = wide_KV.scatter(1, original_K[:, None], float("-inf"))
        probability_KV = functional.pad(wide_KV.softmax(1), (0, -wide_KV.shape[1] % BLOCK))
        blocks_KNB = probability_KV.view(len(logits_KV), probability_KV.shape[1] // BLOCK, BLOCK)
        block_K, rest_K = _invert(blocks_KNB.sum(2, dtype=torch.float64), uniform_K, scaled=True)
        inside_KB = blocks_KNB[torch.arange(len(logits_KV), device=block_K.device), block_K].double()
        place_K, _ = _invert(inside_KB, rest_K, scaled=False)
        return block_K * BLOCK + place_K


def _invert(mass_KN: Tensor, target_K: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    """(first place whose cumulative mass exceeds the target, what is left of the target there).

    `scaled`: the target is a share of the row's whole mass, else a mass.
    """
    edges_KN = mass_KN.cumsum(1)
    whole_K = edges_KN[:, -1]
    target_K = target_K.to(whole_K) * whole_K if scaled else target_K
    target_K = target_K.clamp(max=whole_K * (1 - 1e-12))  # rounding must not lead beyond the end
    place_K = torch.searchsorted(edges_KN, target_K[:, None], right=True)
    below_K1 = edges_KN.gather(1, place_K) - mass_KN.gather(1, place_K)
    return place_K[:, 0], (target_K - below_K1[:, 0]).clamp(min=0)


def corrupt(batch: ElectraMicroBatch, replacement_K: Tensor) -> tuple[Tensor, Tensor]:
    """(the discriminator's input ids [T], bool [T]: replaced). A replacement equal to the original is an original."""
    original_T = batch.packed.input_ids_T
    corrupted_T = original_T.clone()
    corrupted_T[batch.masked_positions_K] = replacement_K
    return corrupted_T, corrupted_T != original_T


def detection_loss_sum(logits_T: Tensor, replaced_T: Tensor) -> Tensor:
    """Binary cross entropy summed over all real tokens, in float32 (special tokens included; there is no padding)."""
    return functional.binary_cross_entropy_with_logits(logits_T.float(), replaced_T.float(), reduction="sum")


def detection_counts(logits_T: Tensor, replaced_T: Tensor) -> Tensor:
    """What the scores need, as sums that add over micro-batches and ranks: float64 [3 + 2 x AUC_BINS].

    True positives, predicted positives, right decisions; then histograms of the logit, for replaced tokens and
    for originals.
    """
    wide_T = logits_T.detach().float()
    predicted_T = wide_T > 0
    bins_T = ((wide_T / AUC_RANGE + 1) * (AUC_BINS / 2)).long().clamp(0, AUC_BINS - 1)
    histogram = [torch.bincount(bins_T[mask], minlength=AUC_BINS) for mask in (replaced_T, ~replaced_T)]
    head = torch.stack([(predicted_T & replaced_T).sum(), predicted_T.sum(), (predicted_T == replaced_T).sum()])
    return torch.cat([head, *histogram]).double()


def detection_scores(counts: Tensor) -> dict[str, float]:
    """accuracy, precision, recall, replaced_share and AUC of summed `detection_counts`; ties in a bin count half."""
    hit, predicted, right = counts[:3].tolist()
    replaced_b, original_b = counts[3 : 3 + AUC_BINS], counts[3 + AUC_BINS :]
    replaced, original = float(replaced_b.sum()), float(original_b.sum())
    below_b = original_b.cumsum(0) - original_b / 2
    return {
        "accuracy": right / max(replaced + original, 1),
        "precision": hit / max(predicted, 1),
        "recall": hit / max(replaced, 1),
        "auc": float((replaced_b * below_b).sum()) / max(replaced * original, 1) if replaced and original else 0.5,
        "replaced_share": replaced / max(replaced + original, 1),
    }
