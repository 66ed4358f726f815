"""One line of a Wikidata JSON dump -> an entity with the parts that a knowledge base needs, and its facts.

    line --> typed decoder that skips all else --> Decoded --> names, page title, statements --> chosen by rank

Dumps hold shapes that no schema foresees (`[]` for an empty object, snaks without `datavalue` or `datatype`, values
of new types). A line that does not fit the decoder's types is decoded piece by piece; what fits no type is left out
and counted, the rest is kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Ranks = Literal["best", "nondeprecated"]
_QUALIFIER = re.compile(r"\s+\([^()]*\)$")
_NUMBER_LIMIT = 2**32


class Text(msgspec.Struct):
    """A label or an alias."""

    value: str


class Sitelink(msgspec.Struct):
    title: str


class EntityValue(msgspec.Struct):
    """The value of a statement, if it is an entity; other objects decode to one without id."""

    id: str = ""
    kind: str = msgspec.field(default="", name="entity-type")
    number: int | None = msgspec.field(default=None, name="numeric-id")


class DataValue(msgspec.Struct):
    value: EntityValue | str | int | float | None = None


class Snak(msgspec.Struct):
    snaktype: str = ""
    datavalue: DataValue | None = None
    datatype: str = ""


class Statement(msgspec.Struct):
    mainsnak: Snak
    rank: str = "normal"


class Decoded(msgspec.Struct):
    """An entity of the dump; labels and aliases in the order of the language and its fallbacks."""

    id: str
    type: str = ""
    labels: Any = None
    aliases: Any = None
    sitelinks: Any = None
    claims: dict[str, list[Statement]] | list[Any] | None = None


@dataclass(frozen=True)
class Language:
    """Which names and pages count."""

    code: str = "en"
    fallbacks: tuple[str, ...] = ("mul",)
    site: str = "enwiki"

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.code, *self.fallbacks)))


class Decoder:
    """Decodes lines for one language; what was left out is counted in `counts`."""

    def __init__(self, language: Language):
        self.language = language
        self.counts: Counter[str] = Counter()
        self._fields_of = [(f"f{number}", code) for number, code in enumerate(language.codes)]
        self._labels = _per_language("Labels", language.codes, Text)
        self._aliases = _per_language("Aliases", language.codes, list[Text])
        self._sitelinks = _per_language("Sitelinks", (language.site,), Sitelink)
        # `[]` is how an empty object may be written
        fields: list[tuple[str, Any, Any]] = [
            ("labels", self._labels | list[Any] | None, None),
            ("aliases", self._aliases | list[Any] | None, None),
            ("sitelinks", self._sitelinks | list[Any] | None, None),
        ]
        typed = msgspec.defstruct("Typed", fields, bases=(Decoded,))
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(typed).decode

    def __call__(self, line: bytes) -> Decoded | None:
        """The entity of the JSON object in `line`, None for an object that has no id.

        Raises:
            ValueError: the line is no JSON.
        """
        try:
            return self._decode(line)
        except (msgspec.DecodeError, RecursionError):
            return self._piece_by_piece(_any_json(line))

    def _piece_by_piece(self, content: Any) -> Decoded | None:
        self.counts["entities of unexpected shape"] += 1
        if not isinstance(content, dict) or not isinstance(content.get("id"), str):
            return None
        kind = content.get("type")
        claims: dict[str, list[Statement]] = {}
        written = content.get("claims")
        for relation, statements in written.items() if isinstance(written, dict) else ():
            if not isinstance(statements, list):
                self.counts["parts of unexpected shape"] += 1
                continue
            claims[relation] = [
                # its rank tells which of the others count, also where its value fits nothing
                self._fitting(statement, Statement) or Statement(Snak(), _rank(statement))
                for statement in statements
            ]
        return Decoded(
            content["id"],
            kind if isinstance(kind, str) else "",
            self._fields(content.get("labels"), self._labels),
            self._fields(content.get("aliases"), self._aliases),
            self._fields(content.get("sitelinks"), self._sitelinks),
            claims,
        )

    def _fields(self, content: Any, struct: Any) -> Any:
        """`struct` with those of its fields that fit."""
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(struct):
            if isinstance(content, dict) and field.encode_name in content:
                found[field.name] = self._fitting(content[field.encode_name], field.type)
        return struct(**found)

    def _fitting(self, content: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(content, kind)
        except msgspec.ValidationError:
            self.counts["parts of unexpected shape"] += 1
            return None

    # ---------------------------------------------------------------------------------------- what an entity says

    def label(self, entity: Decoded) -> tuple[str, str]:
        """The label and its language, ("", "") without one in the language or its fallbacks."""
        for field, code in self._fields_of:
            text = getattr(entity.labels, field, None)
            if text is not None and text.value.strip():
                return text.value, code
        return "", ""

    def aliases(self, entity: Decoded) -> list[tuple[str, str]]:
        """All aliases, each with its language."""
        found: list[tuple[str, str]] = []
        for field, code in self._fields_of:
            found += [(text.value, code) for text in getattr(entity.aliases, field, None) or ()]
        return found

    def title(self, entity: Decoded) -> str:
        """The title of its page in the language's Wikipedia as written, "" without one."""
        link = getattr(entity.sitelinks, "f0", None)
        return link.title if link is not None else ""


def _any_json(line: bytes) -> Any:
    """Also JSON that msgspec refuses: numbers out of range, half surrogate pairs (here `?`). None: nested too deeply.

    Raises:
        ValueError: the line is no JSON.
    """
    try:
        return json.loads(json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace"))
    except RecursionError:
        return None


def _rank(statement: Any) -> str:
    rank = statement.get("rank") if isinstance(statement, dict) else None
    return rank if isinstance(rank, str) else "normal"


def _per_language(name: str, codes: Sequence[str], kind: Any) -> Any:
    """A type with one field a language, None where the object lacks it; other languages are skipped when decoding."""
    fields = [(f"f{number}", kind | None, None) for number in range(len(codes))]
    return msgspec.defstruct(name, fields, rename={f"f{number}": code for number, code in enumerate(codes)})


def name_of_title(title: str) -> str:
    """`Paris` of the title `Paris (mythology)`."""
    return _QUALIFIER.sub("", title.replace("_", " ")) or title


def entity_number(identifier: str) -> int:
    """42 of `Q42`, -1 of what is no item."""
    digits = identifier[1:]
    # one number has one id: no Q07
    if identifier[:1] == "Q" and digits.isdecimal() and digits.isascii() and (digits[0] != "0" or len(digits) == 1):
        number = int(digits)
        return number if number < _NUMBER_LIMIT else -1
    return -1


def item_of(snak: Snak) -> int:
    """The number of the item that is the value of a statement, -1 where the value is none."""
    if snak.datatype != "wikibase-item" and snak.datatype != "":
        return -1
    if snak.snaktype != "value" or snak.datavalue is None:
        return -1
    value = snak.datavalue.value
    if value.__class__ is not EntityValue:
        return -1
    if value.kind == "item" and value.number is not None:  # type: ignore[union-attr]
        return value.number if 0 <= value.number < _NUMBER_LIMIT else -1  # type: ignore[union-attr]
    return entity_number(value.id)  # type: ignore[union-attr]


def facts(entity: Decoded, ranks: Ranks) -> Iterator[tuple[str, int, list[int]]]:
    """For each property: its number of statements, and the items among their values that count as facts.

    best: the values of the preferred statements, where there is one, else of the normal ones. nondeprecated: of both.
    """
    if not isinstance(entity.claims, dict):
        return
    for relation, statements in entity.claims.items():
        normal: list[int] = []
        preferred: list[int] = []
        any_preferred = False
        for statement in statements:
            if statement.rank == "preferred":
                any_preferred, into = True, preferred
            elif statement.rank == "deprecated":
                continue
            else:
                into = normal
            item = item_of(statement.mainsnak)
            if item >= 0:
                into.append(item)
        if ranks == "nondeprecated":
            yield relation, len(statements), normal + preferred
        else:
            yield relation, len(statements), preferred if any_preferred else normal
