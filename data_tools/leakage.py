"""What downstream dev and test sets hold must be no training label: whole articles, and facts by their names.

In: files of the sets (`leakage_readers.py`). Out: titles whose pages are left out, and pairs of names, without
direction, that no label may join; each knows the sets it is from, so that what is removed is counted by set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_tools.leakage_readers import Contents, read_contents
from erica_dist.config import LeakageConfig
from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import sha256_file

Bits = int  # bit n: the n-th set


@dataclass(frozen=True)
class LeakedPairs:
    """Key of a name, or an entity's id -> what it is paired with, by which sets; symmetric."""

    partners: dict[str, dict[str, Bits]]

    def __bool__(self) -> bool:
        return bool(self.partners)

    def between(self, names: Sequence[Iterable[str]]) -> dict[tuple[int, int], Bits]:
        """Both directions of every two of the entities, given by the keys of their names, that are such a pair.

        The time grows with the known names of the entities, not with the number of pairs that a set has of them.
        """
        bearers: dict[str, list[int]] = {}
        for place, of_entity in enumerate(names):
            for name in of_entity:
                if name in self.partners:
                    bearers.setdefault(name, []).append(place)
        found: dict[tuple[int, int], Bits] = {}
        for name, ones in bearers.items():
            partners = self.partners[name]
            for partner in bearers:
                if partner in partners:
                    for one in ones:
                        for other in bearers[partner]:
                            if one != other:
                                found[one, other] = found.get((one, other), 0) | partners[partner]
        return found


@dataclass(frozen=True)
class Leakage:
    """The sets together. sets: (name, what it holds) of each; titles: normalised title -> the sets that have it."""

    sets: tuple[tuple[str, Counter[str]], ...] = ()
    titles: dict[str, Bits] = field(default_factory=dict)
    pairs: LeakedPairs = field(default_factory=lambda: LeakedPairs({}))

    def pages(self, resolve: Callable[[str], str]) -> dict[str, Bits]:
        """The titles, and those that they are redirects to by now (`resolve`: title to the end of its redirects)."""
        pages = dict(self.titles)
        for title, bits in self.titles.items():
            if (end := resolve(title)) and end != title:
                pages[end] = pages.get(end, 0) | bits
        return pages

    def read_counts(self) -> dict[str, int]:
        """What was read of each set, as `count` names it."""
        return {f"{name}: {what}": number for name, counts in self.sets for what, number in counts.items()}

    def count(self, counts: Counter[str], reason: str, bits: Bits) -> None:
        """Count one that was removed for `reason`, by the sets it is from."""
        for number, (name, _) in enumerate(self.sets):
            if bits >> number & 1:
                counts[f"{name}: {reason}"] += 1


def load_leakage(config: LeakageConfig) -> Leakage:
    """The sets that `config` names: of `sets` titles and pairs, of `titles` and `pairs` those alone.

    Raises:
        UserError: a file cannot be read, a record in it is malformed (named), or it does not hold what it is named for.
    """
    names = set_names(config)
    sets: list[tuple[str, Counter[str]]] = []
    titles: dict[str, Bits] = {}
    partners: dict[str, dict[str, Bits]] = {}
    for number, path in enumerate(names):
        contents = read_contents(path)
        if path not in {*config.sets, *config.titles}:
            contents.titles = set()
        if path not in {*config.sets, *config.pairs}:
            contents = Contents(titles=contents.titles)
        for key, what in (("titles", contents.titles), ("pairs", contents.pairs)):
            if path in getattr(config, key) and not what:
                raise UserError(f"leakage.{key}: {path} holds no {key}")
        for title in contents.titles:
            titles[title] = titles.get(title, 0) | 1 << number
        add_pairs(partners, contents.pairs, 1 << number)
        sets.append((names[path], _counts(contents)))
    return Leakage(tuple(sets), titles, LeakedPairs(partners))


def add_pairs(partners: dict[str, dict[str, Bits]], pairs: Iterable[tuple[str, str]], bits: Bits) -> None:
    """Enter `pairs` of keys, in both directions, as those of the sets `bits`."""
    for one, other in pairs:
        for name, partner in ((one, other), (other, one)):
            of_name = partners.setdefault(name, {})
            of_name[partner] = of_name.get(partner, 0) | bits


def set_names(config: LeakageConfig) -> dict[str, str]:
    """Each file that `config` names, once, and what it is called in counts: as much of its path's end as tells it from
    the others."""
    paths = list(dict.fromkeys([*config.sets, *config.titles, *config.pairs]))
    names: dict[str, str] = {}
    for path in paths:
        parts = Path(path).absolute().parts
        others = [Path(other).absolute().parts for other in paths if other != path]
        length = next(
            (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others)), len(parts)
        )
        names[path] = "/".join(parts[-length:])
    return names


def leakage_settings(config: LeakageConfig) -> dict[str, dict[str, str]]:
    """What a corpus depends on: name and sha256 of each file, by what is taken of it."""
    names = set_names(config)
    return {
        key: {names[path]: sha256_file(path) for path in getattr(config, key)} for key in ("sets", "titles", "pairs")
    }


def _counts(contents: Contents) -> Counter[str]:
    counts = {
        "titles read": len(contents.titles),
        "facts read": contents.facts,
        "examples without a relation": contents.not_facts,
        "pairs of names or ids": len(contents.pairs),
    }
    return Counter({what: number for what, number in counts.items() if number})
