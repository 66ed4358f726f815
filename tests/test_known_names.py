"""Known names in a text: the fast pass finds what a slow one over all spans of words finds."""

from __future__ import annotations

import re

import marisa_trie
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.known_names import MAX_NAME, fold_in_place, known_names
from data_tools.name_table import NameTable

NAMES = [
    "the beatles", "beatles", "iphone", "new york", "york", "new york city", "von neumann", "neumann", '"weird al"',
    "al", "c++", "u.s.", "u.s", "us", "1984 games", "of the west", "o'hara", "the", "ab ba", "a", "straße", "éa",
    "x" * MAX_NAME, "x" * (MAX_NAME + 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> NameTable:
    path = tmp_path_factory.mktemp("names") / "names.marisa"
    marisa_trie.Trie(NAMES).save(str(path))
    return NameTable.open([(path, min(NAMES), len(NAMES))])


def slow(text: str) -> list[tuple[int, int]]:
    """Every span from one word or sign to another whose first or second one is capitalised, as stated."""
    tokens = [match.span() for match in re.finditer(r"[\w\u0300-\u036f]+|[^\w\s\u0300-\u036f]", text)]
    folded = fold_in_place(text)

    def capitalised(token: int) -> bool:
        start, end = tokens[token]
        return text[start:end].lower() != text[start:end] or any(one.isdigit() for one in text[start:end])

    found = []
    for first, (start, _) in enumerate(tokens):
        for last in range(first, len(tokens)):
            end = tokens[last][1]
            gap = text[tokens[first][1] : tokens[first + 1][0]] if last > first else "?"
            begins = capitalised(first) or (gap in ("", " ") and capitalised(first + 1))
            cut = re.compile(r"(?<=[\w\u0300-\u036f])\.[\w\u0300-\u036f]").match(text, end)  # as after "U" in "U.S."
            if begins and not cut and end - start <= MAX_NAME and folded[start:end] in NAMES:
                found.append((start, end))
    return sorted(set(found))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles of New York City, the Beatles",
         ["The", "The Beatles", "Beatles", "New York", "New York City", "York", "the Beatles", "Beatles"]),
        ('my iPhone; von Neumann, "Weird Al" C++', ["iPhone", "von Neumann", "Neumann", '"Weird Al"', "Al", "C++"]),
        ("U.S. US 1984 Games of the West O'Hara\nBeatles", ["U.S", "U.S.", "US", "1984 Games", "O'Hara", "Beatles"]),
        ("Beatlesque von\nNeumann the beatles", ["Neumann"]),
        ("STRASSE Straße " + "X" * MAX_NAME, ["Straße", "X" * MAX_NAME]),
        ("X" * (MAX_NAME + 1), []),
        ("", []),
    ],
)  # fmt: skip
def test_spans(names: NameTable, text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in known_names(text, names)] == expected


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*NAMES[:22], *map(str.title, NAMES[:22]), " ", " ", " ", "\n", ".", "É", "\u0301", "b"]))
)
def test_as_the_slow_way(names: NameTable, parts: list[str]) -> None:
    text = "".join(parts)
    assert known_names(text, names) == slow(text)
