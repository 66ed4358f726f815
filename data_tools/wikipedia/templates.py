"""What a reader of the page sees of an inline template, for the common families whose value is part of the sentence.

A template is either shown, as a list of parts (plain strings, and wikicode of its arguments that the caller walks on),
or not at all: infoboxes, notes, citations, navigation and everything unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mwparserfromhell.nodes import Template
from mwparserfromhell.wikicode import Wikicode

Part = str | Wikicode

_MONTH_NAMES = "January February March April May June July August September October November December"
_MONTHS = _MONTH_NAMES.split()
_FIXED = {
    "ndash": "–", "en dash": "–", "endash": "–", "mdash": "—", "em dash": "—", "emdash": "—",
    "spaced ndash": " – ", "spaced en dash": " – ", "snd": " – ", "spnd": " – ", "spaced mdash": " — ",
    "nbsp": " ", "space": " ", "thin space": " ", "thinsp": " ", "hairsp": " ", "zwsp": "", "shy": "",
    "'": "'", "`": "ʻ", "okina": "ʻ", "hamza": "ʼ", "ayin": "ʿ", "=": "=", "!": "|", "·": " · ", "dot": " · ",
    "•": " • ", "bullet": " • ", "times": "×", "minus": "−", "pi": "π", "degree": "°", "sharp": "♯", "music sharp": "♯",
    "flat": "♭", "music flat": "♭", "ad": "AD", "bc": "BC", "ce": "CE", "bce": "BCE", "number sign": "#",
    "indian rupee": "₹",
}  # fmt: skip
_FIRST_WORDS = """
    nowrap nobr nobreak small smaller big larger nobold noitalic sic typo abbr abbrlink tooltip sc sc2 smallcaps smcaps
    sub sup em strong bold italic code mono tt key keypress kbd var samp mvar linktext quote blockquote cquote quotation
    bq poemquote unicode vanchor center centre flag flagcountry flagu ill illm iw2 formatnum val num polytonic nihongo
    nihongo2 krt angbr xt notatypo allcaps script iast
"""
_FIRST_PHRASES = [
    "as written", "not a typo", "small caps", "visible anchor", "interlanguage link", "interlanguage link multi",
    "link-interwiki", "proper name", "angle bracket", "large text", "country flag",
]  # fmt: skip
# shown is the first argument
_FIRST = frozenset([*_FIRST_WORDS.split(), *_FIRST_PHRASES])
_LAST = frozenset(["lang", "transl", "transliteration", "script/hebrew", "script/arabic", "tlit", "wikt-lang", "sort"])
_PREFIXED = {
    "circa": "c. ", "c.": "c. ", "ca.": "c. ", "ca": "c. ", "circ": "c. ", "c": "c. ", "floruit": "fl. ",
    "fl.": "fl. ", "fl": "fl. ", "us$": "US$", "usd": "US$", "$": "$", "£": "£", "gbp": "£", "pound sterling": "£",
    "€": "€", "euro": "€", "eur": "€", "¥": "¥", "jpy": "¥", "cny": "CN¥", "₹": "₹", "inr": "₹", "a$": "A$",
    "aud": "A$", "ca$": "CA$", "cad": "CA$", "sclass-": "",
}  # fmt: skip
_SHIPS = {
    "uss": "USS", "hms": "HMS", "ss": "SS", "hmas": "HMAS", "hmcs": "HMCS", "rms": "RMS", "ms": "MS", "mv": "MV",
    "sms": "SMS", "usns": "USNS", "uscgc": "USCGC", "gts": "GTS", "ins": "INS", "hnlms": "HNLMS", "hmnzs": "HMNZS",
}  # fmt: skip
_DATES = frozenset(
    [
        "start date", "end date", "start date and age", "end date and age", "birth date", "death date",
        "birth date and age", "death date and age", "date", "dts", "film date", "birth-date", "death-date", "bda",
        "dda", "release date", "launch date", "birth year and age", "death year and age",
    ]
)  # fmt: skip
_UNITS = {
    "sqmi": "square miles", "sqkm": "km²", "km2": "km²", "m2": "m²", "sqft": "square feet", "cuft": "cubic feet",
    "m3": "m³", "km3": "km³", "cumi": "cubic miles", "ft": "feet", "mi": "miles", "in": "inches", "yd": "yards",
    "lb": "pounds", "acre": "acres", "C": "°C", "F": "°F", "c": "°C", "f": "°F", "ha": "hectares",
    "nmi": "nautical miles", "kn": "knots", "usgal": "US gallons",
}  # fmt: skip
_RANGES = {
    "-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "x": " × ", "by": " by ", "to(-)": " to ",
    "+/-": " ± ", "±": " ± ", "and(-)": " and ",
}  # fmt: skip


def visible_parts(template: Template) -> list[Part] | None:
    """The parts that are seen, in order; None for a template that shows nothing in running text."""
    name = re.sub(r"^template:\s*", "", str(template.name).strip().replace("_", " ").lower())
    positional = [param.value for param in template.params if not param.showkey]
    numbered = {str(p.name).strip(): p.value for p in template.params if p.showkey and str(p.name).strip().isdigit()}
    arguments: list[Wikicode] = positional or [numbered[key] for key in sorted(numbered, key=int)]
    if name in _FIXED and not arguments:
        return [_FIXED[name]]
    function, colon, _ = name.partition(":")
    if colon and function in ("formatnum", "lc", "uc", "lcfirst", "ucfirst", "nowrap"):
        original = str(template.name).partition(":")[2].strip()
        return [{"lc": original.lower(), "uc": original.upper()}.get(function, original)]
    if not arguments:
        return None
    if name in _FIRST:
        return _japanese(arguments) if name in ("nihongo", "krt") else [arguments[0]]
    if name in _LAST:
        return [arguments[0] if name == "sort" and len(arguments) == 1 else arguments[1 if len(arguments) > 1 else 0]]
    if re.fullmatch(r"(lang|script|transl)[-/][a-z-]+", name):
        return [arguments[0]]
    if name in _PREFIXED:
        return [_PREFIXED[name], arguments[0]]
    if name in _SHIPS:
        return [f"{_SHIPS[name]} ", arguments[0]]
    if name in _DATES:
        return _date(arguments, template)
    shown = _FORMS.get(name)
    return shown(arguments) if shown else None


def _text(argument: Wikicode) -> str:
    return str(argument.strip_code()).strip()


def _convert(arguments: list[Wikicode]) -> list[Part] | None:
    """`10|km|mi` -> "10 km"; `3|to|5|km` -> "3 to 5 km"; the conversion itself is left out."""
    words = [_text(argument) for argument in arguments]
    shown = words[0]
    rest = words[1:]
    while len(rest) >= 2 and rest[0] in _RANGES:
        shown += _RANGES[rest[0]] + rest[1]
        rest = rest[2:]
    unit = _UNITS.get(rest[0], rest[0]) if rest else ""
    return [f"{shown} {unit}".strip()] if re.match(r"[\d.,−+-]", shown) else None


def _japanese(arguments: list[Wikicode]) -> list[Part]:
    """`English|kanji|romaji` -> "English (kanji, romaji)"."""
    rest = [argument for argument in arguments[1:3] if _text(argument)]
    first: list[Part] = [arguments[0]] if _text(arguments[0]) else []
    if not rest:
        return first
    shown: list[Part] = [*first, " (" if first else "", rest[0]]
    for argument in rest[1:]:
        shown += [", ", argument]
    return [*shown, ")" if first else ""]


def _date(arguments: list[Wikicode], template: Template) -> list[Part] | None:
    numbers = [_text(argument) for argument in arguments[:3]]
    year = numbers[0]
    if not re.fullmatch(r"\d{1,4}", year):
        return [arguments[0]]
    if len(numbers) < 2 or not numbers[1].isdigit() or not 1 <= int(numbers[1]) <= 12:
        return [year]
    month = _MONTHS[int(numbers[1]) - 1]
    if len(numbers) < 3 or not numbers[2].isdigit():
        return [f"{month} {year}"]
    day = int(numbers[2])
    day_first = template.has("df") and _text(template.get("df").value) not in ("", "no", "n")
    return [f"{day} {month} {year}" if day_first else f"{month} {day}, {year}"]


def _fraction(arguments: list[Wikicode]) -> list[Part]:
    words = [_text(argument) for argument in arguments[:3]]
    if len(words) == 3:
        return [f"{words[0]} {words[1]}/{words[2]}"]
    return ["/".join(words if len(words) == 2 else ["1", words[0]])]


def _pair(before: str, between: str) -> Callable[[list[Wikicode]], list[Part]]:
    def shown(arguments: list[Wikicode]) -> list[Part]:
        parts: list[Part] = [before, arguments[0]]
        return [*parts, between, arguments[1]] if len(arguments) > 1 else parts

    return shown


def _as_of(arguments: list[Wikicode]) -> list[Part]:
    words = [_text(argument) for argument in arguments[:2]]
    if len(words) > 1 and words[1].isdigit() and 1 <= int(words[1]) <= 12:
        return [f"As of {_MONTHS[int(words[1]) - 1]} {words[0]}"]
    return [f"As of {words[0]}"]


_FORMS: dict[str, Callable[[list[Wikicode]], list[Part] | None]] = {
    "convert": _convert,
    "cvt": _convert,
    "height": _convert,
    "frac": _fraction,
    "fraction": _fraction,
    "sfrac": _fraction,
    "reign": _pair("r. ", "–"),
    "r.": _pair("r. ", "–"),
    "sortname": _pair("", " "),
    "ship": lambda arguments: [arguments[0], " ", arguments[1]] if len(arguments) > 1 else [arguments[0]],
    "as of": _as_of,
    "asof": _as_of,
    "nihongo3": lambda arguments: [arguments[-1 if len(arguments) < 3 else 2]],
    "e": lambda arguments: ["×10^", arguments[0]],
}
