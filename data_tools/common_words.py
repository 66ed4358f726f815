"""Words that are no names by themselves, although knowledge bases have them as names (country codes, titles of songs,
calendar entries): function words, numerals, months and days, here, and the common words of the language, in a file.
Lower case.

`common_words_en.txt`: words that English encyclopedic text writes in lower case at least once in twenty times within a
sentence (names all but never are), and often; measured on 14 million words of Wikipedia.
"""

from __future__ import annotations

from pathlib import Path

from erica_dist.errors import UserError

_FUNCTION_WORDS = """
a about above across after afterwards again against all almost alone along already also although always am among an
and another any anyhow anyone anything anyway anywhere are around as at away back be became because become becomes
been before behind being below beside besides between beyond both but by can cannot could did do does doing done
down due during each either else elsewhere enough etc even ever every everyone everything everywhere except few for
former from further go had has have he hence her here hers herself him himself his how however i if in indeed
instead into is it its itself just last latter least less like made make many may me meanwhile might mine more
moreover most mostly much must my myself namely neither never nevertheless next no nobody none nor not nothing now
nowhere of off often oh on once one only onto or other others otherwise our ours ourselves out over own per perhaps
please quite rather re really regarding same say see seem seemed seems several shall she should show side since so
some somehow someone something sometimes somewhere still such than that the their theirs them themselves then thence
there thereafter thereby therefore these they this those though through throughout thus to together too top toward
towards under unless until up upon us used various very via was we well were what whatever when where whereas
wherever whether which while who whole whom whose why will with within without would yes yet you your yours yourself
yourselves
"""
_NUMERALS = """
zero two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty
ninety hundred thousand million billion first second third fourth fifth sixth seventh eighth ninth tenth half
"""
_CALENDAR = """
january february march april june july august september october november december monday tuesday wednesday thursday
friday saturday sunday spring summer autumn winter today tomorrow yesterday
"""

FUNCTION_WORDS = frozenset(f"{_FUNCTION_WORDS} {_NUMERALS} {_CALENDAR}".split())
PACKAGED = Path(__file__).with_name("common_words_en.txt")


def read_common_words(path: str | Path = "") -> frozenset[str]:
    """The common words of the language in the file `path`, one or more a line, `#` begins a remark; "": of English.

    The function words above are among them in any case.

    Raises:
        UserError: the file cannot be read, is not UTF-8, or holds no word.
    """
    try:
        lines = Path(path or PACKAGED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"mentions.common_words: cannot read {path} ({error}); give a text file of words") from error
    words = frozenset(word.lower() for line in lines for word in line.partition("#")[0].split())
    if not words:
        raise UserError(f"mentions.common_words: {path} holds no word; give one a line")
    return words | FUNCTION_WORDS
