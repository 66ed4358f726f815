"""A full name -> the forms in which its bearer's surname can stand alone.

In: the surface of a link or the title of a page, such as "Vincent van Gogh". Out: "van Gogh", "Van Gogh", "Gogh";
nothing where the surface does not look like the full name of a person. Whether it is one is for others to say.
"""

from __future__ import annotations

from functools import lru_cache

# Lower-case words that belong to the surname. "of" and "the" are not among them: after them comes a place or a by-name.
_LOWER = "af al av bin da de del della den der di do dos du el ibn la le los ten ter van von zu zum zur"
_AFTER = "jr sr esq phd md i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi"
_PARTICLES, _SUFFIXES = frozenset(_LOWER.split()), frozenset(_AFTER.split())
_OFTEN_LEFT_OUT = frozenset(["van", "von", "zu"])  # the rest stands alone too: "Beethoven", "Bismarck"
_MOST_NAMES = 4  # capitalised words of a full name


@lru_cache(maxsize=100_000)
def surname_forms(full_name: str) -> tuple[str, ...]:
    """The forms of the surname in `full_name`, longest first; () where it is no full name of 2 to 4 words."""
    words = full_name.split()
    while words and words[-1].replace(".", "").lower() in _SUFFIXES:
        del words[-1]
        if words:
            words[-1] = words[-1].rstrip(",")
    names = [word for word in words if word not in _PARTICLES]
    if not 2 <= len(names) <= _MOST_NAMES or words[0] in _PARTICLES or not all(map(_is_name, names)):
        return ()
    surname = words[-1]
    if surname in _PARTICLES or surname.endswith(".") or len(surname) < 3:  # an initial, or no name at all
        return ()
    first = len(words) - 1
    while words[first - 1] in _PARTICLES:
        first -= 1
    if first == len(words) - 1:
        return (surname,)
    whole = " ".join(words[first:])
    forms = (whole, whole[0].upper() + whole[1:])
    return (*forms, surname) if words[first] in _OFTEN_LEFT_OUT else forms


def _is_name(word: str) -> bool:
    shouted = word[1:].isupper() and "." not in word
    return word[0].isupper() and not shouted and not any(character in ",:" or character.isdigit() for character in word)
