"""What a reader of the page sees of an inline template, for the common families whose value is part of the sentence.

    template --> its name and arguments --> parts: plain strings, and arguments (nodes) that the caller walks on

or None, for what shows nothing in running text: infoboxes, notes, citations, navigation and everything unknown. What
the page computes (a conversion, an age, a price of today) is left out, and the value that it was given stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from data_tools.wikipedia import values
from data_tools.wikipedia.nodes import Code, Template

Part = str | Code

_FIXED = {
    "ndash": "–", "en dash": "–", "endash": "–", "mdash": "—", "em dash": "—", "emdash": "—", "mdashb": "—",
    "spaced ndash": " – ", "spaced en dash": " – ", "snd": " – ", "spnd": " – ", "spaced mdash": " — ", "dash": " – ",
    "nbsp": " ", "space": " ", "spaces": " ", "thin space": " ", "thinsp": " ", "hairsp": " ", "zwsp": "", "shy": "",
    "'": "'", "`": "ʻ", "'s": "'s", "' \"": "'\"", "\" '": "\"'", "-\"": "\"", "'-": "'", "okina": "ʻ", "hamza": "ʼ",
    "ayin": "ʿ", "=": "=", "!": "|", "·": " · ", "dot": " · ", "•": " • ", "bullet": " • ", "times": "×", "minus": "−",
    "pi": "π", "degree": "°", "sharp": "♯", "music sharp": "♯", "flat": "♭", "music flat": "♭", "ad": "AD", "bc": "BC",
    "ce": "CE", "bce": "BCE", "number sign": "#", "indian rupee": "₹", "pm": "±", "ell": "ℓ", "euro": "€", "pound": "£",
}  # fmt: skip
_FIRST_WORDS = """
    nowrap nobr nobreak small smaller big larger nobold noitalic sic typo abbr abbrlink tooltip sc sc2 smallcaps smcaps
    sub sup em strong bold italic code mono tt key keypress kbd var samp mvar linktext quote blockquote cquote quotation
    bq poemquote unicode vanchor center centre flag flagcountry flagu ill illm iw2 num polytonic nihongo2 angbr xt
    notatypo allcaps iast midsize resize overline underline strikethrough nom native ruby-ja langnf lcfirst
    ucfirst lc uc gloss mention nq math
"""
_FIRST_PHRASES = [
    "as written", "not a typo", "small caps", "visible anchor", "interlanguage link", "interlanguage link multi",
    "link-interwiki", "proper name", "angle bracket", "large text", "country flag", "quote inline", "flag country",
]  # fmt: skip
_LAST_WORDS = """
    lang rtl-lang transl transliteration script script/hebrew script/arabic tlit wikt-lang sort color colour nastaliq
"""
_FIRST = frozenset([*_FIRST_WORDS.split(), *_FIRST_PHRASES])  # shown is the first argument,
_LAST = frozenset(_LAST_WORDS.split())  # or the second, where there are two
_PREFIXED = {
    **dict.fromkeys(["circa", "c.", "ca.", "ca", "circ", "c"], "c. "),
    **dict.fromkeys(["floruit", "fl.", "fl"], "fl. "),
    **dict.fromkeys(["us$", "usd", "usdcy"], "US$"), **dict.fromkeys(["£", "gbp", "pound sterling"], "£"),
    **dict.fromkeys(["€", "euro", "eur"], "€"), **dict.fromkeys(["¥", "jpy"], "¥"), **dict.fromkeys(["₹", "inr"], "₹"),
    **dict.fromkeys(["a$", "aud"], "A$"), **dict.fromkeys(["ca$", "cad"], "CA$"), "$": "$", "cny": "CN¥", "nz$": "NZ$",
    "sclass-": "", "us patent": "U.S. Patent ",
}  # fmt: skip
_SHIP_WORDS = "uss hms ss hmas hmcs rms ms mv sms usns uscgc gts ins hmnzs ps rfa mt hmt hmhs rv"
_SHIPS = frozenset(_SHIP_WORDS.split())
_DATES = frozenset(
    [
        "start date", "end date", "start date and age", "end date and age", "birth date", "death date",
        "birth date and age", "death date and age", "date", "dts", "film date", "birth-date", "death-date", "bda",
        "dda", "release date", "launch date", "birth year and age", "death year and age", "birth based on age",
        "start-date", "end-date", "startdate", "birth date and age2", "death-date and age", "birth-date and age",
    ]
)  # fmt: skip
_NOTES = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}


@dataclass(frozen=True)
class _Call:
    """A template as it is used: its positional arguments (numbered ones count) and the named ones."""

    positional: list[Code]
    named: dict[str, Code]
    text_of: Callable[[Code], str]
    words: list[str] = field(default_factory=list)  # the positional ones as text

    def word(self, name: str) -> str:
        """The named argument as text, "" where it is not given."""
        return self.text_of(self.named[name]) if name in self.named else ""

    def yes(self, name: str) -> bool:
        return self.word(name) not in ("", "no", "n", "off")


def visible_parts(template: Template, text_of: Callable[[Code], str]) -> list[Part] | None:
    """The parts that are seen, in order; None for a template that shows nothing in running text.

    text_of: gives what is seen of an argument as plain text.
    """
    called = template.name.source_text().strip()
    name = re.sub(r"^template:\s*", "", re.sub(r"[_\s]+", " ", called).lower())
    if colon := _function(called, name):
        return colon
    known = name in _SIMPLE or name in _FORMS or _LANGUAGE.fullmatch(name)
    if not known and name not in _FIXED:
        return None
    positional: list[Code] = []
    named: dict[str, Code] = {}
    for key, value in template.parameters():
        if key is None:
            positional.append(value)
        else:
            named[key.source_text().strip()] = value
    numbered = sorted((int(key), value) for key, value in named.items() if re.fullmatch(r"[1-9]\d?", key))
    arguments = positional or [value for _, value in numbered]
    if name in _FIXED and (not arguments or not known):
        return [_FIXED[name]]
    if name in _FORMS:
        call = _Call(arguments, named, text_of, [text_of(argument) for argument in arguments])
        return _FORMS[name](call) if arguments or name in _NAMED else None
    if not arguments:
        return None
    if name in _FIRST or _LANGUAGE.fullmatch(name):
        return [arguments[0]]
    if name in _LAST:
        return [arguments[1 if len(arguments) > 1 else 0]]
    if name in _PREFIXED:
        return [_PREFIXED[name], arguments[0]]
    return [f"{name.upper()} ", arguments[0]]


def _function(called: str, name: str) -> list[Part] | None:
    """`formatnum:1234` and its like, which are functions of the page and not templates."""
    function, colon, _ = name.partition(":")
    if not colon or function not in ("formatnum", "lc", "uc", "lcfirst", "ucfirst", "nowrap"):
        return None
    value = called.partition(":")[2].strip()
    changed = {"lc": value.lower(), "uc": value.upper(), "formatnum": values.with_commas(value)}
    return [changed.get(function, value)]


def _convert(call: _Call) -> list[Part] | None:
    shown = values.measure(call.words, before_noun=call.word("adj") in ("on", "mid"))
    return [shown] if shown else None


def _height(call: _Call) -> list[Part] | None:
    """`m=1.8` -> "1.8 m"; `ft=5|in=11` -> "5 feet 11 inches"."""
    given = [values.measure([value, unit]) for unit in ("m", "cm", "ft", "in") if (value := call.word(unit))]
    return [" ".join(filter(None, given))] if given else None


def _date(call: _Call) -> list[Part]:
    return [values.day(call.words[:3], call.yes("df")) if values.is_year(call.words[0]) else call.positional[0]]


def _value(call: _Call) -> list[Part]:
    unit = call.word("u") or call.word("ul")
    return [values.quantity(call.words, call.word("e"), unit)]


def _coordinates(call: _Call) -> list[Part] | None:
    """What stands beside the page's title only is not seen in the text."""
    in_text = (call.word("display") or "inline").startswith("i")
    shown = values.coordinates(call.words) if in_text else ""
    return [shown] if shown else None


def _japanese(call: _Call) -> list[Part]:
    """`English|kanji|romaji` -> "English (kanji, romaji)"."""
    parts = call.positional
    rest = [argument for argument, word in zip(parts[1:3], call.words[1:3], strict=True) if word]
    first: list[Part] = [parts[0]] if call.words[0] else []
    if not rest:
        return first
    shown: list[Part] = [*first, " (" if first else "", rest[0]]
    for argument in rest[1:]:
        shown += [", ", argument]
    return [*shown, ")" if first else ""]


def _japanese_in_front(call: _Call) -> list[Part]:
    """`English|kanji|romaji` -> "romaji (kanji, English)"."""
    if len(call.positional) < 3 or not call.words[2]:
        return _japanese(call)
    swapped = [2, 1, 0]
    positional, words = [call.positional[i] for i in swapped], [call.words[i] for i in swapped]
    return _japanese(_Call(positional, call.named, call.text_of, words))


def _chinese(call: _Call) -> list[Part] | None:
    """`s=..|t=..|p=..`: what is written, then how it is read."""
    shown = dict.fromkeys(call.word(key) for key in ("c", "s", "t", "p", "w", "j", "l"))
    return ["; ".join(filter(None, shown))]


def _as_of(call: _Call) -> list[Part]:
    if "alt" in call.named:
        return [call.named["alt"]]
    if not call.words:
        return []
    said = "since" if call.yes("since") else "as of"
    return [f"{said if call.yes('lc') else said.capitalize()} {values.day(call.words[:3], True)}"]


def _old_style(call: _Call) -> list[Part]:
    """`day|year|old day` -> "day [O.S. old day] year"."""
    day, year, old = (*call.words, "", "")[:3]
    return [f"{day} [O.S. {old}] {year}" if old else f"{day} {year}"]


def _sounds(call: _Call) -> list[Part] | None:
    """Sounds are spoken of where they stand between strokes or brackets; how the title is pronounced is left out."""
    return [call.positional[-1]] if re.match(r"[/\[⟨]", call.words[-1]) else None


def _pair(before: str, between: str) -> Callable[[_Call], list[Part]]:
    def shown(call: _Call) -> list[Part]:
        parts: list[Part] = [before, call.positional[0]]
        return [*parts, between, call.positional[1]] if len(call.positional) > 1 else parts

    return shown


def _joined(call: _Call) -> list[Part]:
    return ["".join(call.words)]


_FORMS: dict[str, Callable[[_Call], list[Part] | None]] = {
    **dict.fromkeys(["convert", "cvt", "conv"], _convert),
    **dict.fromkeys(["nihongo", "krt", "nihongo krt", "nihongo4"], _japanese),
    **dict.fromkeys(["frac", "fraction", "sfrac", "tfrac"], lambda call: [values.fraction(call.words)]),
    **dict.fromkeys(["chem", "chem2"], _joined),
    **dict.fromkeys(["as of", "asof"], _as_of),
    **dict.fromkeys(["reign", "r."], _pair("r. ", "–")),
    **dict.fromkeys(_DATES, _date),
    **dict.fromkeys(["bibleref", "bibleverse", "bibleref2"], _pair("", " ")),
    "height": _height,
    "nihongo3": _japanese_in_front,
    "zh": _chinese,
    "oldstyledate": _old_style,
    "val": _value,
    "coord": _coordinates,
    "ipa": _sounds,
    "music": lambda call: [_NOTES.get(call.words[0], call.positional[0])],
    "sortname": _pair("", " "),
    "ship": _pair("", " "),
    "formatnum": lambda call: [values.with_commas(call.words[0])],
    "currency": lambda call: [values.currency(call.words)],
    "e": lambda call: ["×10^", call.positional[0]],
    "railgauge": lambda call: [re.sub(r"(?<=\d)(?=[a-z])", " ", call.words[0])],
}
_NAMED = frozenset(["height", "zh", "as of", "asof"])  # they show something without positional arguments
_SIMPLE = _FIRST | _LAST | _SHIPS | frozenset(_PREFIXED)
_LANGUAGE = re.compile(r"(?:lang|script|transl)[-/][a-z-]+")
