"""A loaded spaCy pipeline -> the `Decoder` that computes the same, or the reason why there is none.

Only what was compared with spaCy is taken: an `ner` pipe of the architecture TransitionBasedParser with an upper layer
and three state features, over MultiHashEmbed and MaxoutWindowEncoder with a window of one token (its own, or those of
the `tok2vec` pipe that it listens to), spaCy's own tokenizer and nothing else in the pipeline. Each layer's kind, order
and shape is checked; a wrapped, another or an added layer is a reason to leave everything to spaCy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from data_tools.ner_decoder import Actions, Decoder
from data_tools.ner_vectors import Embeddings, Maxout, NormedMaxout, TokenVectors

SPACY = "3.8."  # versions whose layers and actions were read
_MAXOUT = ["chain", "chain", "maxout", "layernorm", "dropout"]
_CONVOLUTION = ["residual", "chain", "expand_window", *_MAXOUT]
_LISTENER = "tok2vec-listener"


class NoDecoder(Exception):
    """Why the pipeline is left to spaCy."""


def decoder_of(pipeline: Any) -> Decoder:
    """The decoder with the weights of `pipeline`, which holds `ner` and, where `ner` listens to it, `tok2vec`.

    Raises:
        NoDecoder: something is not as it was when the decoder was compared with spaCy.
    """
    import spacy
    from spacy.language import Language
    from spacy.pipeline import EntityRecognizer
    from spacy.tokenizer import Tokenizer

    _require(spacy.__version__.startswith(SPACY), f"spaCy {spacy.__version__}")
    _require(type(pipeline.tokenizer) is Tokenizer, "a tokenizer of its own")
    _require(type(pipeline).make_doc is Language.make_doc, "another way to make documents")
    recogniser = pipeline.get_pipe("ner")
    _require(type(recogniser) is EntityRecognizer, f"an `ner` of the kind {type(recogniser).__name__}")
    _require(recogniser.cfg.get("beam_width") == 1, "a beam")
    _require(not recogniser.postprocesses, "steps after `ner`")
    model = recogniser.model
    _require(model.name == "parser_model" and _kind(model) == "tb_framework", "another model")
    _require(_has_weights(model), "a model without weights")
    _require(model.attrs["has_upper"] is True and not model.attrs["unseen_classes"], "no upper layer or unseen actions")
    token_vectors, lower, upper = model.layers
    _require(_kind(token_vectors) == "chain" and len(token_vectors.layers) == 3, "other layers under `ner`")
    embedding, to_array, reduce = token_vectors.layers
    _require([_kind(to_array), _kind(reduce)] == ["list2array", "linear"], "other layers between vectors and `ner`")
    _require([_kind(lower), _kind(upper)] == ["_precomputable_affine", "linear"], "other layers of states")
    _require(lower.get_dim("nF") == 3 and lower.get_dim("nP") >= 2, "other features of states")
    if embedding.name == _LISTENER:
        embedding = _listened_to(pipeline, embedding)
    else:
        _require(pipeline.pipe_names == ["ner"], f"the pipes {', '.join(pipeline.pipe_names)}")
    vectors = _token_vectors(embedding)
    return _decoder(vectors, reduce, lower, upper, _moves(recogniser))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NoDecoder(otherwise)


def _kind(layer: Any) -> str:
    """The file of thinc or spaCy that computes this layer; "" for any other."""
    module = layer._func.__module__
    return module.rsplit(".", 1)[1] if module.startswith(("thinc.layers.", "spacy.ml.")) else ""


def _has_weights(model: Any) -> bool:
    return all(node.has_param(name) for node in model.walk() for name in node.param_names)


def _kinds(layer: Any) -> list[str]:
    return [_kind(node) for node in layer.walk(order="dfs_pre")]


def _listened_to(pipeline: Any, listener: Any) -> Any:
    _require(pipeline.pipe_names == ["tok2vec", "ner"], f"the pipes {', '.join(pipeline.pipe_names)}")
    tok2vec = pipeline.get_pipe("tok2vec")
    _require(any(listener is other for other in tok2vec.listener_map.get("ner", ())), "a listener to nothing")
    _require(_has_weights(tok2vec.model), "a `tok2vec` without weights")
    return tok2vec.model


def _token_vectors(model: Any) -> TokenVectors:
    _require(_kind(model) == "chain" and len(model.layers) == 2, "another architecture of token vectors")
    embed, encode = model.layers
    layers = embed.layers
    attributes = layers[0].attrs.get("columns", [])
    kinds = [_kinds(layer) for layer in layers]
    table = ["chain", "array_getitem", "hashembed"]
    tables = ["concatenate", *table * len(attributes)] if len(attributes) > 1 else table
    expected = [
        ["featureextractor"],
        ["list2ragged"],
        ["with_array", *tables],
        ["with_array", *_MAXOUT],
        ["ragged2list"],
    ]
    _require(_kind(embed) == "chain" and kinds == expected, "another embedding")
    _require(all(type(attribute) is str for attribute in attributes), "attributes without names")
    depth = len(encode.layers[0].layers) if encode.layers else 0
    _require(_kinds(encode) == ["with_array", "chain", *_CONVOLUTION * depth] and depth > 1, "another encoder")
    padding = encode.attrs["pad"]
    _require(padding >= depth and not layers[2].attrs["pad"] and not layers[3].attrs["pad"], "another padding")
    _require(type(model.ops).__name__ == "NumpyOps", "not on a CPU")
    width = encode.get_dim("nO")
    return TokenVectors(
        Embeddings(layers[2].layers[0].predict, _normed(layers[3]), attributes),
        tuple(_convolution(layer, width) for layer in encode.layers[0].layers),
        padding,
    )


def _convolution(residual: Any, width: int) -> NormedMaxout:
    window, maxout = (next(node for node in residual.walk() if _kind(node) == kind) for kind in _CONVOLUTION[2::3])
    _require(window.attrs["window_size"] == 1 and maxout.get_dim("nI") == 3 * width, "another window")
    return _normed(residual)


def _normed(layer: Any) -> NormedMaxout:
    maxout, norm = (next(node for node in layer.walk() if _kind(node) == kind) for kind in ("maxout", "layernorm"))
    return NormedMaxout(
        Maxout.of(maxout.get_param("W"), maxout.get_param("b")), norm.get_param("G"), norm.get_param("b")
    )


def _moves(recogniser: Any) -> list[str]:
    """The names of the actions in the order of their scores, `U-` (blocked tokens, never valid here) left in."""
    from spacy.pipeline._parser_internals.ner import BiluoPushDown

    moves = recogniser.moves
    _require(type(moves) is BiluoPushDown, "other actions")
    return [moves.get_class_name(number) for number in range(moves.n_moves)]


def _decoder(vectors: TokenVectors, reduce: Any, lower: Any, upper: Any, moves: list[str]) -> Decoder:
    weight, bias = upper.get_param("W"), upper.get_param("b")
    labels = tuple(move[2:] for move in moves if move.startswith("B-"))
    expected = {f"{kind}-{label}" for label in labels for kind in "BILU"} | {"O", "U-"}
    _require(bool(labels) and set(moves) == expected and len(moves) == len(expected) == len(weight), "other actions")

    def numbers(kind: str) -> list[int]:
        return [moves.index(f"{kind}-{label}") for label in labels]

    outside = [*numbers("B"), *numbers("U"), moves.index("O")]
    actions = Actions(
        labels=labels,
        outside=np.ascontiguousarray(weight[outside].T),
        outside_bias=bias[outside],
        inside=weight[numbers("I")] - weight[numbers("L")],
        inside_bias=bias[numbers("I")] - bias[numbers("L")],
    )
    states = lower.get_param("W")
    absent = lower.get_param("pad")[0, 1:].sum(axis=0)
    _, second, third = (Maxout.of(states[feature], absent) for feature in range(3))
    return Decoder(
        vectors=vectors,
        reduce=np.ascontiguousarray(reduce.get_param("W").T),
        reduce_bias=reduce.get_param("b"),
        first=Maxout.of(states[0], lower.get_param("b") + absent),
        second=second.weight,
        third=third.weight,
        inside_bias=-second.bias,
        actions=actions,
    )
