"""The words of an inline template's arguments -> the measure, date or number that a reader sees.

Only what was given is written: no conversion, no age, nothing that the page would compute.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MONTH_NAMES = "January February March April May June July August September October November December"
_MONTHS = _MONTH_NAMES.split()
_UNITS = {
    "sqmi": "square miles", "sqkm": "km²", "km2": "km²", "m2": "m²", "sqm": "m²", "cm2": "cm²", "sqft": "square feet",
    "cuft": "cubic feet", "m3": "m³", "km3": "km³", "cm3": "cm³", "cumi": "cubic miles", "cuin": "cubic inches",
    "ft": "feet", "foot": "feet", "mi": "miles", "mile": "miles", "metre": "metres", "meter": "meters", "in": "inches",
    "inch": "inches", "yd": "yards", "lb": "pounds", "pound": "pounds", "oz": "ounces", "acre": "acres",
    "C": "°C", "F": "°F", "c": "°C", "f": "°F", "ha": "hectares", "hectare": "hectares", "nmi": "nautical miles",
    "kn": "knots", "usgal": "US gallons", "impgal": "imperial gallons", "LT": "long tons", "ST": "short tons",
    "t": "tonnes", "tonne": "tonnes", "kilometre": "kilometres", "kilometer": "kilometers", "oilbbl": "barrels",
    "Moilbbl": "million barrels", "e6sqmi": "million square miles", "e6km2": "million km²", "e6acre": "million acres",
}  # fmt: skip
_RANGES = {
    "-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "x": " × ", "×": " × ", "xx": " × ", "by": " by ",
    "to(-)": " to ", "and(-)": " and ", "to about": " to about ", "+/-": " ± ", "±": " ± ", "+": " + ", "/": "/",
}  # fmt: skip
_CURRENCIES = {"USD": "US$", "GBP": "£", "EUR": "€", "JPY": "¥", "INR": "₹", "AUD": "A$", "CAD": "CA$"}


def with_commas(number: str) -> str:
    """1300 -> 1,300 as the templates write it; anything that is no plain number stays."""
    return re.sub(r"^([−+-]?)(\d{4,})(?=$|\.\d)", lambda match: f"{match[1]}{int(match[2]):,}", number)


def measure(words: Sequence[str], before_noun: bool = False) -> str:
    """`1300|km|mi` -> "1,300 km"; `3|to|5|km` -> "3 to 5 km"; `5|ft|6|in` -> "5 feet 6 inches"; "" for no number.

    before_noun: "300-foot", as in "a 300-foot wall".
    """
    shown, *rest = map(with_commas, words)
    while len(rest) >= 2 and rest[0] in _RANGES:
        shown += _RANGES[rest[0]] + rest[1]
        rest = rest[2:]
    if not re.match(r"[\d.,−+-]", shown) or not rest:
        return shown if re.match(r"[\d.,−+-]", shown) else ""
    unit = _UNITS.get(rest[0], rest[0])
    if before_noun and unit.replace(" ", "").isalpha() and rest[0] in _UNITS:
        return f"{shown}-{_singular(unit).replace(' ', '-')}"
    shown += f" {unit}"
    if len(rest) > 2 and re.match(r"\d", rest[1]) and rest[2] in ("in", "oz", "lb", "ft"):
        shown += f" {rest[1]} {_UNITS[rest[2]]}"
    return shown


def _singular(unit: str) -> str:
    return unit.replace("feet", "foot").replace("inches", "inch").removesuffix("s")


def is_year(word: str) -> bool:
    return re.fullmatch(r"[0-9]{1,4}", word) is not None


def day(numbers: Sequence[str], day_first: bool) -> str:
    """Year, month and day, as many of the three as there are and make sense."""
    year = numbers[0]
    if len(numbers) < 2 or not _is_number(numbers[1], 12):
        return year
    month = _MONTHS[int(numbers[1]) - 1]
    if len(numbers) < 3 or not _is_number(numbers[2], 31):
        return f"{month} {year}"
    number = int(numbers[2])
    return f"{number} {month} {year}" if day_first else f"{month} {number}, {year}"


def _is_number(word: str, largest: int) -> bool:
    return re.fullmatch(r"[0-9]{1,2}", word) is not None and 1 <= int(word) <= largest


def fraction(words: Sequence[str]) -> str:
    """`3` -> "1/3"; `2|3` -> "2/3"; `1|2|3` -> "1 2/3"."""
    given = [word for word in words[:3] if word]
    if len(given) == 3:
        return f"{given[0]} {given[1]}/{given[2]}"
    return "/".join(given if len(given) == 2 else ["1", *given])


def quantity(words: Sequence[str], exponent: str, unit: str) -> str:
    """6.241, exponent 18, unit C -> "6.241×10^18 C"; a second word is the uncertainty."""
    shown = with_commas(words[0])
    if len(words) > 1 and words[1]:
        shown += f"±{words[1]}"
    if exponent:
        shown += f"×10^{exponent}"
    return f"{shown} {unit}".strip()


def currency(words: Sequence[str]) -> str:
    """`13 billion|USD` -> "US$13 billion"."""
    code = words[1] if len(words) > 1 else ""
    return f"{_CURRENCIES[code]}{words[0]}" if code in _CURRENCIES else f"{code} {words[0]}".strip()


def coordinates(words: Sequence[str]) -> str:
    """`13|19|N|169|9|W` -> "13°19′N 169°9′W"; "" for what is not written in degrees and directions."""
    shown = ""
    marks = iter("°′″")
    for word in words:
        if re.fullmatch(r"-?[\d.]+", word) and (mark := next(marks, "")):
            shown += word + mark
        elif word in ("N", "S", "E", "W"):
            shown += f"{word} "
            marks = iter("°′″")
        else:
            break
    return shown.strip() if shown.endswith(" ") else ""
