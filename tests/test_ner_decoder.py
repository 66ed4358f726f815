"""Our decoder gives what spaCy gives, and leaves to spaCy all that it does not know."""

from __future__ import annotations

import dataclasses
import json
import lzma
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokenizer import Tokenizer
from spacy.training import Example

import data_tools.ner
import data_tools.ner_decoder
from data_tools.build_inputs import check
from data_tools.mentions import NerSpan
from data_tools.ner import PACKAGED_MODEL, Recogniser, fitting_decoder, load_recogniser
from data_tools.ner_layers import NoDecoder, decoder_of
from data_tools.ner_vectors import Embeddings
from erica_dist.config import NerConfig
from tests.corpora import corpus_job
from tests.shared_files import shared

TEXT = """the The of Of and in IN on Washington D.C. New York U.S. Mr. John Smith's Microsoft Corp. 1984 $5 3,000 km
may May Monday 10:30 a.m. first World War II Française Zürich 東京都 Путин İstanbul 🎉 e.g. http://a.org/b?c x@y.z don't
O'Neill ( ) [ ] , . ; : - — ... " ' « »"""
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def ours() -> Recogniser:
    recogniser = load_recogniser(NerConfig(model=PACKAGED_MODEL))
    assert recogniser.decoder is not None
    return recogniser


@pytest.fixture(scope="module")
def stock() -> Recogniser:
    recogniser = load_recogniser(NerConfig(model=PACKAGED_MODEL, decoder="stock"))
    assert recogniser.decoder is None
    return recogniser


@pytest.fixture
def pipeline() -> Any:
    """A pipeline to spoil, with `ner` only."""
    return spacy.load(
        PACKAGED_MODEL, exclude=["tok2vec", "tagger", "parser", "attribute_ruler", "lemmatizer", "senter"]
    )


def real_paragraphs(name: str, pages: int) -> Iterator[list[str]]:
    with lzma.open(shared("data", "wikipedia-text", name), "rt", encoding="utf-8") as file:
        for page in islice(file.read().split("</doc>"), pages):
            yield [line for line in page.split("\n") if line and not line.startswith("<doc ")][1:]


def test_real_text_gives_the_same_entities(ours: Recogniser, stock: Recogniser) -> None:
    texts = []
    for name in ("wiki_AA_00-24.txt.xz", "wiki_AA_75-99.txt.xz"):
        for paragraphs in real_paragraphs(name, 4):
            texts += paragraphs[:30]
            texts += ["\n".join(paragraphs[start : start + 6]) for start in range(0, min(len(paragraphs), 60), 6)]
    assert len(texts) > 200
    ours.left_to_spacy = 0
    assert list(ours(texts)) == list(stock(texts))
    assert ours.left_to_spacy < len(texts) / 20


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.sampled_from(WORDS), st.sampled_from([" ", " ", " ", "  ", "\n", "\t", "", "\xa0"])),
                max_size=60,
            ).map(lambda pairs: "".join(word + blank for word, blank in pairs)),
            st.text(max_size=60),
        ),
        max_size=6,
    )
)
def test_any_text_gives_the_same_entities(ours: Recogniser, stock: Recogniser, texts: list[str]) -> None:
    assert list(ours(texts)) == list(stock(texts))


def test_texts_of_nothing_one_token_and_blanks(ours: Recogniser, stock: Recogniser) -> None:
    texts = ["", " ", "\n\n", "London", "", "London ", " London", "\nLondon\n", "a", "1", "London " * 300, ""]
    found = list(ours(texts))
    assert found == list(stock(texts))
    assert found[0] == found[1] == []
    assert found[3] == [NerSpan(0, 6, "GPE")]
    assert list(ours([])) == []


def test_texts_longer_than_a_batch(ours: Recogniser, stock: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Anna Smith of the United Nations flew to Geneva, Switzerland on 3 May 1999. "
    expected = list(stock([text * 20, text, text * 3]))
    monkeypatch.setattr(data_tools.ner, "_BATCH_TOKENS", 10)
    assert list(ours([text * 20, text, text * 3])) == expected
    monkeypatch.setattr(data_tools.ner, "_BATCH_TEXTS", 1)
    assert list(ours([text * 20, text, text * 3])) == expected


def test_what_is_not_sure_goes_to_spacy(ours: Recogniser, stock: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["Berlin is in Germany.", "", "The European Commission met Tony Blair."]
    expected = list(stock(texts))
    ours.left_to_spacy = 0
    monkeypatch.setattr(data_tools.ner_decoder, "MARGIN", 1e6)
    assert ours.decoder is not None
    assert ours.decoder([ours.pipeline.make_doc(text) for text in texts]) == [None, [], None]
    assert list(ours(texts)) == expected
    assert ours.left_to_spacy == 2


def test_a_tie_inside_of_an_entity_is_not_sure(ours: Recogniser) -> None:
    """In and Last of equal score: undecided where an entity could go on; decided where the text ends."""
    assert ours.decoder is not None
    actions = ours.decoder.actions
    tied = dataclasses.replace(
        actions, inside=np.zeros_like(actions.inside), inside_bias=np.zeros_like(actions.inside_bias)
    )
    decoder = dataclasses.replace(ours.decoder, actions=tied)
    texts = ["We flew to New York City with him.", "We flew to Paris with him.", "We flew to New York"]
    undecided, unit, last = decoder([ours.pipeline.make_doc(text) for text in texts])
    assert undecided is None
    assert unit == [NerSpan(11, 16, "GPE")]
    assert last == [NerSpan(11, 19, "GPE")]


def test_scores_are_spacys_to_a_fraction_of_the_margin(ours: Recogniser) -> None:
    assert ours.decoder is not None
    texts = [" ".join(WORDS[start:] + WORDS[:start]) for start in range(0, len(WORDS), 3)]
    documents = [ours.pipeline.make_doc(text) for text in texts]
    model = ours.pipeline.get_pipe("ner").model
    vectors = ours.decoder.vectors(documents)[0] @ ours.decoder.reduce + ours.decoder.reduce_bias
    assert np.abs(vectors - model.layers[0].predict(documents)).max() < data_tools.ner_decoder.MARGIN / 20


def test_embeddings_kept_are_bounded(ours: Recogniser, stock: Recogniser) -> None:
    assert ours.decoder is not None
    kept = ours.decoder.vectors.embeddings
    small = Embeddings(kept._looked_up, kept._mixed, kept._columns[:-1], limit=20)
    vectors = dataclasses.replace(ours.decoder.vectors, embeddings=small)
    recogniser = dataclasses.replace(ours, decoder=dataclasses.replace(ours.decoder, vectors=vectors))
    for start in range(0, len(WORDS), 5):
        text = " ".join(WORDS[start : start + 15])
        assert list(recogniser([text])) == list(stock([text]))
        assert len(small) <= 20 + 30
        assert small.table.shape[0] <= 2 * (20 + 30)


def test_a_pipeline_that_knows_too_many_words_is_loaded_again(
    stock: Recogniser, monkeypatch: pytest.MonkeyPatch
) -> None:
    recogniser = load_recogniser(NerConfig(model=PACKAGED_MODEL))
    first = recogniser.pipeline
    text = "Angela Merkel visited Madrid."
    assert list(recogniser([text])) == list(stock([text]))
    assert recogniser.pipeline is first
    monkeypatch.setattr(data_tools.ner, "_VOCABULARY", 10)
    assert list(recogniser([text])) == list(stock([text]))
    assert recogniser.pipeline is not first
    assert len(recogniser.pipeline.vocab) < len(first.vocab)


def with_ruler(pipeline: Any) -> None:
    pipeline.add_pipe("entity_ruler", before="ner").add_patterns([{"label": "ORG", "pattern": "Paris"}])


def with_sentences(pipeline: Any) -> None:
    pipeline.add_pipe("sentencizer", before="ner")


def with_a_beam(pipeline: Any) -> None:
    pipeline.get_pipe("ner").cfg["beam_width"] = 4


def with_a_label(pipeline: Any) -> None:
    pipeline.get_pipe("ner").add_label("NEW")


def with_a_wider_window(pipeline: Any) -> None:
    next(node for node in pipeline.get_pipe("ner").model.walk() if node.name == "expand_window").attrs[
        "window_size"
    ] = 2


def with_other_padding(pipeline: Any) -> None:
    pipeline.get_pipe("ner").model.layers[0].layers[0].get_ref("encode").attrs["pad"] = 1


def with_an_activation(pipeline: Any) -> None:
    from thinc.api import Relu, chain

    model = pipeline.get_pipe("ner").model
    model.layers[0].layers[2] = chain(model.layers[0].layers[2], Relu(64, 64).initialize())


def with_a_tokenizer(pipeline: Any) -> None:
    class Presetting(Tokenizer):
        pass

    pipeline.tokenizer = Presetting(pipeline.vocab)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (with_ruler, "the pipes entity_ruler, ner"),
        (with_sentences, "the pipes sentencizer, ner"),
        (with_a_beam, "a beam"),
        (with_a_label, "unseen actions"),
        (with_a_wider_window, "another window"),
        (with_other_padding, "another padding"),
        (with_an_activation, "other layers between"),
        (with_a_tokenizer, "a tokenizer of its own"),
    ],
)
def test_a_pipeline_that_was_changed_is_left_to_spacy(
    pipeline: Any, spoil: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder_of(pipeline)
    spoil(pipeline)
    with pytest.raises(NoDecoder, match=reason):
        decoder_of(pipeline)
    assert fitting_decoder(pipeline, 32) is None
    assert reason in capsys.readouterr().err


def test_an_untrained_recogniser_and_another_architecture_are_left_to_spacy() -> None:
    blank = spacy.blank("en")
    blank.add_pipe("ner")
    with pytest.raises(NoDecoder):
        decoder_of(blank)
    without_upper = made_pipeline({"use_upper": False}, own_layers(["NORM"]))
    with pytest.raises(NoDecoder, match="no upper layer"):
        decoder_of(without_upper)
    more_features = made_pipeline({"extra_state_tokens": True}, own_layers(["NORM"]))
    with pytest.raises(NoDecoder, match="other features"):
        decoder_of(more_features)


def test_a_result_that_differs_in_the_trial_is_left_to_spacy(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shifted(_: Any) -> Any:
        decoder = decoder_of(pipeline)
        return dataclasses.replace(decoder, reduce_bias=decoder.reduce_bias + 1)

    assert fitting_decoder(pipeline, 32) is not None
    monkeypatch.setattr(data_tools.ner, "decoder_of", shifted)
    assert fitting_decoder(pipeline, 32) is None
    assert "another result in a trial" in capsys.readouterr().err


def test_layers_that_cannot_even_be_read_are_left_to_spacy(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data_tools.ner, "decoder_of", lambda _: {}["no such layer"])
    assert fitting_decoder(pipeline, 32) is None
    assert "no such layer" in capsys.readouterr().err


def own_layers(attributes: list[str]) -> dict[str, Any]:
    return {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 16,
            "attrs": attributes,
            "rows": [50] * len(attributes),
            "include_static_vectors": False,
        },
        "encode": {
            "@architectures": "spacy.MaxoutWindowEncoder.v2",
            "width": 16,
            "window_size": 1,
            "maxout_pieces": 2,
            "depth": 2,
        },
    }


def made_pipeline(states: dict[str, Any], layers: dict[str, Any], shared_layers: dict[str, Any] | None = None) -> Any:
    """A small pipeline with random weights."""
    made = spacy.blank("en")
    if shared_layers:
        made.add_pipe("tok2vec", config={"model": shared_layers})
    model = {
        "@architectures": "spacy.TransitionBasedParser.v2",
        "state_type": "ner",
        "extra_state_tokens": False,
        "hidden_width": 8,
        "maxout_pieces": 3,
        "use_upper": True,
        "tok2vec": layers,
    }
    made.add_pipe("ner", config={"model": model | states})
    example = Example.from_dict(
        made.make_doc("Anna saw New York today"), {"entities": [(0, 4, "PERSON"), (9, 17, "GPE")]}
    )
    made.initialize(lambda: [example])
    draw = np.random.default_rng(5)
    for node in made.get_pipe("ner").model.walk():
        for name in node.param_names:
            if name in ("W", "b", "pad") and node.has_param(name):
                node.set_param(name, draw.normal(0, 0.5, node.get_param(name).shape).astype(np.float32))
    return made


@pytest.mark.parametrize("attributes", [["NORM"], ["NORM", "PREFIX", "SHAPE", "SPACY"]])
@pytest.mark.parametrize("listens", [False, True])
def test_other_widths_and_a_shared_embedding(listens: bool, attributes: list[str]) -> None:
    """Random weights, so entities in all places; `ner` with layers of its own, or listening to the `tok2vec` pipe."""
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
    made = made_pipeline({}, listener, own_layers(attributes)) if listens else made_pipeline({}, own_layers(attributes))
    decoder = fitting_decoder(made, 8)
    assert decoder is not None
    texts = [" ".join(WORDS[start:] + WORDS[:start]) + "\n" * (start % 3) for start in range(0, len(WORDS), 2)]
    found = decoder([made.make_doc(text) for text in texts])
    expected = list(Recogniser(made, "made", 8)(texts))
    decided = [(mine, theirs) for mine, theirs in zip(found, expected, strict=True) if mine is not None]
    assert len(decided) > len(texts) / 2
    assert [mine for mine, _ in decided] == [theirs for _, theirs in decided]
    lengths = [
        len(text[span.start : span.end].split()) for text, spans in zip(texts, expected, strict=True) for span in spans
    ]
    assert max(lengths) > 1


def test_only_the_pipes_that_ner_needs_are_kept(stock: Recogniser) -> None:
    assert stock.pipeline.pipe_names == ["ner"]


def test_the_decoder_changes_neither_identity_nor_fingerprint(
    ours: Recogniser, stock: Recogniser, tmp_path: Path
) -> None:
    assert ours.identity() == stock.identity()
    job = corpus_job(tmp_path, ner=True)
    other = dataclasses.replace(job, ner=dataclasses.replace(job.ner, decoder="stock"))
    with_ours, with_spacys = check(job), check(other)
    assert with_ours.request == with_spacys.request
    assert "decoder" not in json.dumps(with_ours.settings)
