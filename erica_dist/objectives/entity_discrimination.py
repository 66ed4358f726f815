"""ED: given a head and a relation, the true tail among the document's entities (Qin et al. 2021, section 3.2).

Loss of a query: -log( e^cos(h,t)/tau / sum over candidates l of e^cos(h,l)/tau ). The candidates come with the batch:
every entity of the document but the head and, unless asked for, other true tails. The published code counts the tail
twice in the denominator, which keeps the loss above log 2; that can be asked for. The loss is a sum over queries.

Legend: Q queries, C candidates of all queries, E entities, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from erica_dist.objectives.pooling import inverse_norms


def entity_loss_sum(
    entity_ED: Tensor,
    head_Q: Tensor,
    tail_Q: Tensor,
    candidate_entity_C: Tensor,
    candidate_query_C: Tensor,
    temperature: float,
    tail_counted_twice: bool = False,
) -> tuple[Tensor, Tensor]:
    """(sum of the loss over queries, number of queries whose best candidate is the tail); float32, float64 stays.

    0 with a gradient path where there is no query.
    """
    entity_ED = entity_ED if entity_ED.dtype == torch.float64 else entity_ED.float()
    entity_ED = entity_ED * inverse_norms(entity_ED)[:, None]
    cosine_C = (entity_ED[head_Q[candidate_query_C]] * entity_ED[candidate_entity_C]).sum(1)
    logit_C = cosine_C / temperature
    # log-sum-exp over ragged groups: the largest logit of each query is taken out first
    largest_Q = torch.full((len(head_Q),), float("-inf"), dtype=logit_C.dtype, device=logit_C.device)
    largest_Q = largest_Q.scatter_reduce(0, candidate_query_C, logit_C.detach(), "amax")
    shifted_C = (logit_C - largest_Q[candidate_query_C]).exp()
    log_sum_Q = torch.zeros_like(largest_Q).index_add(0, candidate_query_C, shifted_C).log() + largest_Q
    tail_logit_Q = (entity_ED[head_Q] * entity_ED[tail_Q]).sum(1) / temperature
    if tail_counted_twice:
        log_sum_Q = torch.logaddexp(log_sum_Q, tail_logit_Q)
    is_tail_C = candidate_entity_C == tail_Q[candidate_query_C]
    best_other_Q = torch.full_like(largest_Q, float("-inf")).scatter_reduce(
        0, candidate_query_C, logit_C.detach().masked_fill(is_tail_C, float("-inf")), "amax"
    )
    correct = (tail_logit_Q.detach() > best_other_Q).sum()
    return (log_sum_Q - tail_logit_Q).sum() + entity_ED.sum() * 0, correct
