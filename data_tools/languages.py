"""Is a passage in the language of the corpus? Judged by its words that are no names, with py3langid's model.

    passage --> words that begin with no capital, 40 of them at even steps --> model --> is the language improbable?

English passages are full of foreign names, and names are what a detector stumbles over: so only words without a capital
are judged (of scripts without capitals all). A passage is of another language where the corpus' has a probability
below 1 in 100; one of too few such words, a list of names, is not judged. Forty words decide as surely as all, and the
steps reach through the whole passage, so that a quotation within it does not decide alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from erica_dist.errors import UserError

WORDS = 40
LEAST_LETTERS = 50
IMPROBABLE = 0.01
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def language_test(language: str) -> Callable[[str], bool]:
    """A function that tells whether a text is of another language than `language`, an ISO 639 code; of no text where
    `language` is empty. Loads the model: 0.6 s, 80 MB.

    Raises:
        UserError: the model does not know the language.
    """
    if not language:
        return lambda text: False
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if language not in identifier.labels:
        known = ", ".join(sorted(identifier.labels))
        raise UserError(f"filters.language={language} is not known; known are {known}, and '' to judge no passage")

    def is_other(text: str) -> bool:
        words = judged_words(text)
        if len(words) < LEAST_LETTERS or identifier.classify(words)[0] == language:
            return False
        return dict(identifier.rank(words))[language] < IMPROBABLE

    return is_other


def judged_words(text: str) -> str:
    """The words of `text` by which its language is judged."""
    words = [word for word in _WORD.findall(text) if not word[0].isupper()]
    return " ".join(words[:: max(1, -(-len(words) // WORDS))])


def language_identity(language: str) -> str:
    """What the judgement depends on besides the text."""
    return f"{language}, py3langid {version('py3langid')}" if language else ""
