"""What the documents of a corpus hold, counted in one pass in memory that does not grow with their number.

In: documents, as corpus shards hold them, one by one. Out: a `CorpusCounts`. Whole numbers (words of a document,
mentions of an entity) go into a `Distribution`; what is named by few ids (relations, types) into a Counter; what is
named by millions (entities, spellings) into `Frequencies`, which holds 16 bytes each and the names of the most
frequent only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_tools.sentences import sentence_of, sentence_spans

NO_TYPE = "(no type)"


@dataclass
class Distribution:
    """How often each whole number occurred. `limit`: larger numbers are kept apart in `total` and `largest` only."""

    limit: int = 20_000
    counts: Counter[int] = field(default_factory=Counter)
    number: int = 0
    total: int = 0
    largest: int = 0

    def add(self, value: int) -> None:
        self.counts[min(value, self.limit)] += 1
        self.number += 1
        self.total += value
        self.largest = max(self.largest, value)

    @property
    def mean(self) -> float:
        return self.total / max(self.number, 1)

    def quantile(self, share: float) -> int:
        """The smallest number up to which at least this share of all lies; 0 where there are none."""
        below = 0
        for value in sorted(self.counts):
            below += self.counts[value]
            if below >= share * self.number:
                return value
        return 0


class Frequencies:
    """Exact counts of very many distinct things, and the names of the `kept` most frequent.

    A thing among the most frequent at the end was so too when it was last added, because the counts of others only
    rise: so it is enough to keep, at each merge, the names of those that lead then.
    """

    def __init__(self, kept: int = 1000, pending: int = 100_000):
        self._kept = kept
        self._limit = pending
        self._keys = np.zeros(0, np.uint64)  # sorted
        self._counts = np.zeros(0, np.int64)
        self._names: dict[int, tuple[str, ...]] = {}
        self._pending: Counter[tuple[str, ...]] = Counter()

    def add(self, *name: str) -> None:
        """One more of the thing that these words name."""
        self._pending[name] += 1
        if len(self._pending) >= self._limit:
            self._merge()

    @property
    def counts(self) -> np.ndarray:
        """How often each distinct thing was added, the most frequent first."""
        self._merge()
        return np.sort(self._counts)[::-1]

    def most_frequent(self, number: int) -> list[tuple[tuple[str, ...], int]]:
        """The names and counts of the (at most `kept`) most frequent; of equal counts by name."""
        self._merge()
        places = self._leading()[: min(number, self._kept)]
        found = [(self._names[int(self._keys[place])], int(self._counts[place])) for place in places]
        return sorted(found, key=lambda entry: (-entry[1], entry[0]))

    def _leading(self) -> np.ndarray:
        """Places of the most frequent; of equal counts by key, so that who leads does not depend on the merges."""
        places = np.arange(len(self._keys))
        if len(places) > self._kept:
            least = np.partition(self._counts, -self._kept)[-self._kept]
            above, equal = np.flatnonzero(self._counts > least), np.flatnonzero(self._counts == least)
            places = np.concatenate([above, equal[: self._kept - len(above)]])
        return places[np.lexsort((self._keys[places], -self._counts[places]))]

    def _merge(self) -> None:
        if not self._pending:
            return
        named = {_key(name): name for name in self._pending}
        keys = np.array(sorted(named), np.uint64)
        counts = np.array([self._pending[named[key]] for key in keys.tolist()], np.int64)
        places = np.searchsorted(self._keys, keys)
        old = np.zeros(len(keys), bool)
        inside = places < len(self._keys)
        old[inside] = self._keys[places[inside]] == keys[inside]
        self._counts[places[old]] += counts[old]
        self._keys = np.insert(self._keys, places[~old], keys[~old])
        self._counts = np.insert(self._counts, places[~old], counts[~old])
        self._names |= named
        self._names = {key: self._names[key] for key in self._keys[self._leading()].tolist()}
        self._pending.clear()


def _key(name: tuple[str, ...]) -> int:
    digest = hashlib.blake2b("\0".join(name).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass
class CorpusCounts:
    """Everything the audit says of the documents."""

    words: Distribution = field(default_factory=Distribution)
    entities: Distribution = field(default_factory=Distribution)
    mentions: Distribution = field(default_factory=Distribution)
    mentions_of_entity: Distribution = field(default_factory=Distribution)
    labels: Distribution = field(default_factory=Distribution)
    pairs: Distribution = field(default_factory=Distribution)
    kinds_of_relation: Distribution = field(default_factory=Distribution)
    barred: Distribution = field(default_factory=Distribution)
    relations: Counter[str] = field(default_factory=Counter)  # labels by relation id
    relation_documents: Counter[str] = field(default_factory=Counter)  # documents that hold the relation
    sources: Counter[str] = field(default_factory=Counter)  # mentions
    types: Counter[str] = field(default_factory=Counter)  # entities of documents
    reach: Counter[str] = field(default_factory=Counter)  # labelled pairs: single sentence, cross-sentence
    popularity: Frequencies = field(default_factory=Frequencies)  # (id, name) by documents
    spellings: Frequencies = field(default_factory=Frequencies)  # (surface, name, id) that differ, by mentions

    @property
    def documents(self) -> int:
        return self.words.number

    def add(self, document: Mapping[str, Any]) -> None:
        """Count one document of a corpus shard.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: a field is missing or of a wrong kind.
        """
        text, entities, relations = document["text"], document["entities"], document["relations"]
        self.words.add(len(text.split()))
        self.entities.add(len(entities))
        self.mentions.add(sum(len(entity["mentions"]) for entity in entities))
        self.labels.add(len(relations))
        self.kinds_of_relation.add(len({relation for _, _, relation in relations}))
        self.barred.add(len(document.get("barred", ())))
        self.relations.update(relation for _, _, relation in relations)
        self.relation_documents.update({relation for _, _, relation in relations})
        for entity in entities:
            identifier, name = entity["id"], entity["name"]
            if not isinstance(identifier, str):
                raise TypeError(f"the id {identifier!r} is no text")
            self.mentions_of_entity.add(len(entity["mentions"]))
            self.types[entity["type"] or NO_TYPE] += 1
            self.popularity.add(identifier, name)
            for start, end, source in entity["mentions"]:
                self.sources[source] += 1
                if text[start:end].casefold() != name.casefold():
                    self.spellings.add(text[start:end], name, identifier)
        reach = reach_of_pairs(document)
        self.pairs.add(len(reach))
        self.reach.update("single sentence" if single else "cross-sentence" for single in reach.values())


def reach_of_pairs(document: Mapping[str, Any]) -> dict[tuple[int, int], bool]:
    """For each labelled pair (head, tail) whether one sentence mentions both."""
    spans = sentence_spans(document["text"])
    sentences = [{sentence_of(spans, start) for start, _, _ in entity["mentions"]} for entity in document["entities"]]
    return {(head, tail): bool(sentences[head] & sentences[tail]) for head, tail, _ in document["relations"]}
