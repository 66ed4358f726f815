"""What the engine wraps: one module a job, a micro-batch in, states and sums out.

Sums, not means: only the trainer knows how many anchors, queries, masked pieces or tokens the whole global batch has.
Every head runs on every rank and every micro-batch, on an empty index if need be, so that each parameter has a gradient
everywhere (ZeRO's collectives would wait forever for a missing one).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from erica_dist.config import ElectraConfig
from erica_dist.models.electra import ElectraPair
from erica_dist.models.encoder import hidden_states, mlm_logits
from erica_dist.objectives import electra
from erica_dist.objectives.mlm import masked_loss_sum
from erica_dist.objectives.pooling import entity_states
from erica_dist.stream.micro_batches import ElectraMicroBatch, EricaMicroBatch


class EricaModule(nn.Module):
    """Encoder with MLM head -> entity states."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, batch: EricaMicroBatch, states_only: bool = False, by_half: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(entity states [E, D] in float32, MLM loss sum, number of masked pieces that were right).

        `states_only` leaves the MLM head out; its two results are then 0. `by_half` gives the loss sums of the RD
        documents and of the ED documents [2].
        """
        states_TD = hidden_states(self.model, batch.packed)
        entity_ED = entity_states(states_TD, batch)
        if states_only:
            return entity_ED, entity_ED.new_zeros(()), entity_ED.new_zeros(())
        logits_KV = mlm_logits(self.model, states_TD[batch.masked_positions_K])
        if not by_half:
            return entity_ED, *masked_loss_sum(logits_KV, batch.masked_labels_K)
        sizes = [batch.masked_of_rd, len(logits_KV) - batch.masked_of_rd]
        halves = zip(logits_KV.split(sizes), batch.masked_labels_K.split(sizes), strict=True)
        sums, right = zip(*(masked_loss_sum(logits, labels) for logits, labels in halves), strict=True)
        return entity_ED, torch.stack(sums), right[0] + right[1]


class ElectraModule(nn.Module):
    """Generator and discriminator -> the two loss sums and the counts their scores are made of."""

    def __init__(self, pair: ElectraPair, settings: ElectraConfig, mask_id: int, vocab_size: int) -> None:
        super().__init__()
        self.discriminator, self.generator = pair.discriminator, pair.generator
        self._pair = [pair]  # in a list: its parameters are already registered above, under their exported names
        self.settings, self.mask_id, self.vocab_size = settings, mask_id, vocab_size

    def forward(self, batch: ElectraMicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(generator loss sum over masked positions, discriminator loss sum over tokens, counts).

        Counts, float64: generator's best piece right, sampled piece right, then `electra.detection_counts`.
        """
        pair = self._pair[0]
        original_K = batch.packed.input_ids_T[batch.masked_positions_K]
        if pair.generator is not None:
            masked_T = electra.masked_input(batch, self.mask_id)
            logits_KV = pair.generator_logits(batch.packed, masked_T, batch.masked_positions_K)
            generator_sum, right = masked_loss_sum(logits_KV, original_K)
        else:
            logits_KV = torch.zeros(len(original_K), self.vocab_size, device=original_K.device)
            generator_sum, right = masked_loss_sum(logits_KV, original_K)
        if pair.discriminator is None:
            zero = generator_sum.new_zeros(())
            return generator_sum, zero, torch.zeros(2 + 3 + 2 * electra.AUC_BINS, dtype=torch.float64) + right
        replacement_K = electra.sample_replacements(
            logits_KV, batch.sample_uniform_K, original_K, self.settings.temperature, self.settings.disallow_correct
        )
        corrupted_T, replaced_T = electra.corrupt(batch, replacement_K)
        logits_T = pair.discriminator_logits(batch.packed, corrupted_T)
        # a micro-batch whose documents were all left out has a sequence, which does not count
        logits_T, replaced_T = logits_T[: batch.tokens], replaced_T[: batch.tokens]
        sampled_right = (replacement_K == original_K).sum()
        counts = torch.cat(
            [torch.stack([right, sampled_right]).double(), electra.detection_counts(logits_T, replaced_T)]
        )
        return generator_sum, electra.detection_loss_sum(logits_T, replaced_T), counts
