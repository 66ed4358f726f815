"""Entities of a Wikidata dump as small as a test wants them, and what `extract` makes of them, as rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from data_tools.wikidata.dump import Unit
from data_tools.wikidata.extract import ExtractTask, Selection, extract
from data_tools.wikidata.items import Decoder, Language
from data_tools.wikidata.runs import Run, unpacked


def label(value: str, code: str = "en") -> dict[str, str]:
    return {"language": code, "value": value}


def item_value(number: int, **more: Any) -> dict[str, Any]:
    return {"entity-type": "item", "numeric-id": number, "id": f"Q{number}", **more}


def snak(value: Any, datatype: str | None = "wikibase-item", kind: str = "value") -> dict[str, Any]:
    content = {"snaktype": kind, "property": "P1", "hash": "0"}
    if value is not None:
        content["datavalue"] = {"value": value, "type": "wikibase-entityid"}
    return content | ({"datatype": datatype} if datatype is not None else {})


def statement(value: Any, rank: str = "normal", **more: Any) -> dict[str, Any]:
    qualifiers = {"P1365": [snak(item_value(99))]}
    return {"mainsnak": snak(value, **more), "type": "statement", "rank": rank, "qualifiers": qualifiers}


def entity(identifier: str = "Q1", **parts: Any) -> dict[str, Any]:
    return {"type": "item", "id": identifier, "labels": {"en": label("One")}, "lastrevid": 7, **parts}


def line(content: Any) -> bytes:
    return json.dumps(content).replace("/", "\\/").encode()


def decoded(content: Any, language: Language | None = None) -> tuple[Decoder, Any]:
    decoder = Decoder(language or Language())
    return decoder, decoder(line(content))


def read(tmp_path: Path, contents: list[Any], **selection: Any) -> dict[str, Any]:
    """The run of a dump of JSON lines as sets of rows, with its counts and damages."""
    path = tmp_path / "dump.json"
    path.write_bytes(b"\n".join(content if isinstance(content, bytes) else line(content) for content in contents))
    unit = Unit(str(path), "plain", 0, path.stat().st_size)
    extract(ExtractTask(unit, Selection(**selection), str(tmp_path / "run")))
    run = Run.open(tmp_path / "run")
    rows: dict[str, Any] = {"counts": Counter(run.said["counts"]), "damages": run.said["damages"]}
    rows["ids"] = run["ids.keys"].tolist()
    for part, flag in (("names", "labels"), ("titles", "given")):
        strings = unpacked(run[f"{part}.bytes"], run[f"{part}.offsets"])
        columns = run[f"{part}.entities"].tolist(), run[f"{part}.{flag}"].tolist()
        rows[part] = [(string.decode(), *row) for string, *row in zip(strings, *columns, strict=True)]
    relations = run.said["relations"]
    rows["facts"] = sorted(
        (key >> 32, relations[relation], key & 0xFFFFFFFF)
        for key, relation in zip(run["facts.keys"].tolist(), run["facts.relations"].tolist(), strict=True)
    )
    rows["types"] = [(key >> 32, key & 0xFFFFFFFF) for key in run["types.keys"].tolist()]
    rows["labels"] = run.said["relation_labels"]
    return rows
