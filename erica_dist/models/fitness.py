"""Whether an encoder that runs padded can be trained here: tried on two made-up sequences before the run begins.

ERICA pools the last hidden states of each token, batches are cut by budget, and the MLM head sees masked positions
only. So the states must be one a token and depend on the other tokens, not on the padding; the head must need nothing
but states; dropout must be what the job says. Types differ in this in ways that no list of names tells (condensed
states, Fourier mixing, convolutions over the padding, approximations that begin at some length, kernels that are
absent), so each model is asked itself.

Legend: N tokens of a sequence, T packed tokens, K positions, D width, V vocabulary.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from transformers import PreTrainedModel

from erica_dist.errors import UserError
from erica_dist.models.states import encoder_of, hidden_states, mlm_logits, position_offset
from erica_dist.stream.micro_batches import Packed

LONGEST = 1024  # tokens of the longest sequence tried; approximate attention begins below it
# Largest relative difference of a row. Rounding was 3e-7 at most; with random weights, where tokens hardly matter to
# one another, padding that was seen made 6e-4 (BigBird's blocks) and more.
TOLERANCE = 1e-4


def refuse_short_positions(model: PreTrainedModel, folder: str, max_length: int) -> None:
    """Refuse a model whose positions end before `max_length` tokens, or beyond which it was never trained.

    Raises:
        UserError: so it is.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return
    room = positions - position_offset(encoder_of(model))
    if max_length > room:
        raise UserError(
            f"model.max_length={max_length} is more than the {room} positions of model.init={folder}: set it to {room} "
            "or less and tokenise the corpus to that length"
        )


def refuse_unfit(model: PreTrainedModel, folder: str, max_length: int, dropout: float) -> list[str]:
    """Refuse a model that is not exact here, and freeze the parameters that no token's state or logit depends on.

    Args:
        model: on the CPU, float32; left in training mode.
        dropout: what it was built with.

    Returns:
        Names of the frozen parameters, such as a pooler's: an optimizer under ZeRO waits for their gradient.

    Raises:
        UserError: the states or the head are not as the file's head says.
    """
    place = f"model.init={folder} (type {model.config.model_type!r})"
    longest = min(max_length, LONGEST)
    try:
        complaint = _complaint(model.eval(), longest) or _dropout_complaint(model.train(), longest, dropout)
        if not complaint:
            return _freeze_unused(model)
    except Exception as error:  # whatever the code of a type that was never seen may raise
        complaint = f"sequences of 2 to {max_length} word pieces fail ({type(error).__name__}: {_first_line(error)})"
    raise UserError(
        f"{place} cannot be trained here: {complaint}; give another encoder, such as BERT, RoBERTa, DeBERTa or "
        "ModernBERT"
    )


def _complaint(model: PreTrainedModel, longest: int) -> str:
    """What is wrong with the model, or nothing."""
    sequences = _sequences(model, [longest, min(8, longest)])
    with torch.no_grad():
        alone = [_states(model, ids_N) for ids_N in sequences]
        width = model.config.hidden_size
        if any(states.shape != (len(ids_N), width) for states, ids_N in zip(alone, sequences, strict=True)):
            return f"its last hidden states are not one of width {width} a token"
        if _difference(hidden_states(model, _packed(sequences)), torch.cat(alone)) > TOLERANCE:
            return "the states of a sequence depend on how far it is padded, so on the batch it happens to be in"
        for changed, watched in ((0, 1), (1, 0)):  # neighbours: attention may have a window
            ids_N = sequences[1].clone()
            ids_N[changed] = next(piece for piece in sequences[0] if piece != ids_N[changed])
            if torch.equal(_states(model, ids_N)[watched], alone[1][watched]):
                return "its tokens do not see each other (a decoder, or attention whose kernel is not installed)"
        # of the short sequence: all its logits are made, over the whole vocabulary
        order_K = torch.arange(len(sequences[1])).flip(0)
        logits_NV = model(input_ids=sequences[1][None], return_dict=True).logits[0]
        if _difference(mlm_logits(model, alone[1][order_K]), logits_NV[order_K]) > TOLERANCE:
            return "its masked-language-model head needs more than the states of the masked positions"
    return ""


def _dropout_complaint(model: PreTrainedModel, longest: int, dropout: float) -> str:
    packed = _packed(_sequences(model, [min(64, longest), 2]))
    with torch.no_grad():
        differs = not torch.equal(hidden_states(model, packed), hidden_states(model, packed))
    if differs == (dropout > 0):
        return ""
    return f"model.dropout={dropout} has no effect on it" + ("" if differs else " (set it to 0)")


def _freeze_unused(model: PreTrainedModel) -> list[str]:
    sequences = _sequences(model, [4, 2])
    states_TD = hidden_states(model, _packed(sequences))
    (states_TD.sum() + mlm_logits(model, states_TD[:2]).sum()).backward()
    frozen = [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    for name, value in model.named_parameters():
        value.grad = None
        if name in frozen:
            value.requires_grad_(False)
    return frozen


def _sequences(model: PreTrainedModel, lengths: list[int]) -> list[Tensor]:
    """Word pieces without special ones, of which some models count positions or borders."""
    special = {value for name, value in model.config.to_dict().items() if name.endswith("_token_id")}
    ordinary = torch.tensor([number for number in range(model.config.vocab_size) if number not in special])
    random = torch.Generator().manual_seed(0)
    return [ordinary[torch.randint(len(ordinary), (length,), generator=random)] for length in lengths]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _states(model: PreTrainedModel, ids_N: Tensor) -> Tensor:
    """What the plain model gives for one sequence alone [N, D]."""
    return encoder_of(model)(input_ids=ids_N[None])[0][0]


def _packed(sequences: list[Tensor]) -> Packed:
    lengths = [len(ids_N) for ids_N in sequences]
    return Packed(
        input_ids_T=torch.cat(sequences),
        position_ids_T=torch.cat([torch.arange(length) for length in lengths]),
        token_type_ids_T=torch.zeros(sum(lengths), dtype=torch.int64),
        cu_seqlens=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
        max_seqlen=max(lengths),
    )


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest relative difference of a row; infinite where it is no number."""
    rows = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-6)
    return float(rows.nan_to_num(nan=torch.inf).max())
