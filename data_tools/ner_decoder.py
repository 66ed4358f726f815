"""Named entities as spaCy's transition-based recogniser gives them, several times as fast.

In: tokenized texts. Out: the spans of each text, or None where a text must be left to spaCy. The recogniser goes
through a text once and takes the best valid action for each token: Out, Unit or Begin outside of an entity, In or Last
inside. The scores depend on three vectors: of this token and, inside of an entity, of the entity's first token and of
the one before. So the actions outside are scored for all tokens of many texts in one product; from each token where an
entity may begin, the entity is followed to its end, all of them in step; then the tokens are walked once and an entity
is taken unless it begins within another.

Products are summed in another order than in spaCy, so scores differ in the last digits. A text in which any decision
on the way was closer than `MARGIN` is not decided here.

Shapes: N tokens of all texts, C tokens where an entity may begin, A actions outside, L labels, W and D width, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.mentions import NerSpan
from data_tools.ner_vectors import Floats, Maxout, TokenVectors

MARGIN = 5e-4  # of scores up to 20; the greatest difference from spaCy's on real text was a twentieth of this


@dataclass(frozen=True)
class Actions:
    """Output weights of the actions, by label. Outside: Begin of each label, Unit of each label, Out."""

    labels: tuple[str, ...]
    outside: Floats  # (H, 2 L + 1)
    outside_bias: Floats
    inside: Floats  # (L, H): In minus Last of the same label
    inside_bias: Floats


@dataclass(frozen=True)
class Decoder:
    """The layers of a recogniser. `first`, `second`, `third`: token, entity's first token, token before -> hidden."""

    vectors: TokenVectors
    reduce: Floats  # (W, D)
    reduce_bias: Floats
    first: Maxout  # its bias holds the layer's and what stands for the other two outside of an entity
    second: Floats
    third: Floats
    inside_bias: Floats  # to add inside of an entity, where the other two are there: takes that back
    actions: Actions

    def __call__(self, documents: Sequence[Any]) -> list[list[NerSpan] | None]:
        """The spans of each text (spaCy's `Doc` of an untouched tokenizer); None: too close to decide here."""
        found: list[list[NerSpan] | None] = [[] for _ in documents]
        filled = [number for number, document in enumerate(documents) if len(document)]
        if not filled:
            return found
        texts = [documents[number] for number in filled]
        lengths = np.array([len(document) for document in texts])
        ends = np.cumsum(lengths)
        vectors_ND, is_space_N = self._reduced(texts)
        is_last_N = np.zeros(len(vectors_ND), bool)
        is_last_N[ends - 1] = True
        entities, close_N = self._entities(vectors_ND, is_space_N, is_last_N)
        text_N = np.repeat(np.arange(len(texts)), lengths)
        starts = ends - lengths
        for first, last, label in entities:
            text = text_N[first]
            document, offset = texts[text], starts[text]
            token, final = document[int(first - offset)], document[int(last - offset)]
            spans = found[filled[text]]
            assert spans is not None
            spans.append(NerSpan(token.idx, final.idx + len(final), self.actions.labels[label]))
        for text in set(text_N[close_N].tolist()):
            found[filled[text]] = None
        return found

    def _reduced(self, texts: Sequence[Any]) -> tuple[Floats, NDArray[np.bool_]]:
        vectors_NW, is_space_N = self.vectors(texts)
        return vectors_NW @ self.reduce + self.reduce_bias, is_space_N

    def _entities(
        self, vectors_ND: Floats, is_space_N: NDArray[np.bool_], is_last_N: NDArray[np.bool_]
    ) -> tuple[list[tuple[int, int, int]], NDArray[np.bool_]]:
        """Entities as (first token, last token, label), in order, and the tokens whose decision was close."""
        sums_NH = vectors_ND @ self.first.weight
        sums_NH += self.first.bias
        best_N, margin_N = self._outside(sums_NH, is_space_N, is_last_N)
        labels = len(self.actions.labels)
        starts_C = np.flatnonzero(best_N < 2 * labels)
        labels_C = best_N[starts_C] % labels
        lasts_C, margin_C = starts_C.copy(), np.full(len(starts_C), np.inf, np.float32)
        longer = np.flatnonzero(best_N[starts_C] < labels)
        lasts_C[longer], margin_C[longer] = self._followed(
            starts_C[longer], labels_C[longer], vectors_ND, sums_NH, is_last_N
        )
        entities = []
        inside_N = np.zeros(len(vectors_ND), bool)
        close_N = margin_N < MARGIN
        free = 0
        for start, last, label, margin in zip(
            starts_C.tolist(), lasts_C.tolist(), labels_C.tolist(), margin_C.tolist(), strict=True
        ):
            if start < free:
                continue
            free = last + 1
            entities.append((start, last, label))
            inside_N[start + 1 : free] = True
            if margin < MARGIN:
                close_N[start] = True
        return entities, close_N & ~inside_N

    def _outside(
        self, sums_NH: Floats, is_space_N: NDArray[np.bool_], is_last_N: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], Floats]:
        """For each token, as if it were outside of an entity: the best valid action and its lead over the next."""
        scores_NA = self.first.greatest(sums_NH) @ self.actions.outside
        scores_NA += self.actions.outside_bias
        scores_NA[is_last_N, : len(self.actions.labels)] = -np.inf  # no entity begins that could not go on
        scores_NA[is_space_N, :-1] = -np.inf  # nor begins one with white space
        best_N = scores_NA.argmax(axis=1)
        all_N = np.arange(len(best_N))
        lead_N = scores_NA[all_N, best_N]
        scores_NA[all_N, best_N] = -np.inf
        lead_N -= scores_NA.max(axis=1)
        return best_N, lead_N

    def _followed(
        self,
        starts: NDArray[np.intp],
        labels: NDArray[np.intp],
        vectors_ND: Floats,
        sums_NH: Floats,
        is_last_N: NDArray[np.bool_],
    ) -> tuple[NDArray[np.intp], Floats]:
        """The last tokens of entities that begin at `starts`, and the closest decision on the way."""
        lasts = starts.copy()
        margins = np.full(len(starts), np.inf, np.float32)
        of_start = vectors_ND[starts] @ self.second + self.inside_bias
        going = np.arange(len(starts))
        while len(going):
            before = lasts[going]
            tokens = before + 1
            sums = sums_NH[tokens] + of_start[going] + vectors_ND[before] @ self.third
            weights = self.actions.inside[labels[going]]
            leads = np.einsum("ch,ch->c", self.first.greatest(sums), weights) + self.actions.inside_bias[labels[going]]
            must_end = is_last_N[tokens]
            margins[going] = np.minimum(margins[going], np.where(must_end, np.inf, np.abs(leads)))
            lasts[going] = tokens
            going = going[~must_end & (leads > 0)]
        return lasts, margins
