"""Tars and JSON of other tools, read in one run: members, pieces of any size, damage, memory."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_tools import foreign_json
from data_tools.foreign_json import values_of_json
from data_tools.foreign_tars import documents_of_tar
from erica_dist.errors import DamagedInputError
from tests.foreign_sets import ours, write_tar


def test_another_member_name_and_a_long_sample(tmp_path: Path) -> None:
    members: list[tuple[str, Any]] = [(f"all.{i:03d}.json", {"text": str(i)}) for i in range(200)]
    path = write_tar(tmp_path / "a.tar", members)
    left_out: Any = Counter()
    assert [key for key, _ in documents_of_tar(str(path), "json", left_out)] == [f"all.{i:03d}" for i in range(200)]
    path = write_tar(tmp_path / "b.tar", [("x.doc.json", ours()), ("x.json", {"meta": 1})])
    assert [key for key, _ in documents_of_tar(str(path), "doc.json", left_out)] == ["x"]
    assert left_out == {"left out: *.json": 1}


# ------------------------------------------------------------------------------------------------ JSON in one run


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=4), max_size=6), data=st.data())
def test_json_is_read_in_pieces_as_it_is_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[Any], data: st.DataObject
) -> None:
    monkeypatch.setattr(foreign_json, "_CHUNK", data.draw(st.integers(1, 200)))
    indent = data.draw(st.sampled_from([None, 1]))
    path = tmp_path / "a.json"
    path.write_text("\ufeff " + json.dumps(records, indent=indent, ensure_ascii=data.draw(st.booleans())) + "\n")
    assert [value.content for value in values_of_json(str(path))] == records
    path.write_text("\n\n".join(json.dumps(record, indent=indent) for record in records))
    assert [value.content for value in values_of_json(str(path))] == records


def test_damaged_json_says_where_and_gives_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, given_before, place in (
        ('[{"a": 1},\n {"b": ', 1, "record 2 (line 2)"),
        ('[{"a": 1}, {"b": x}]', 1, "record 2 (line 1)"),
        ('[{"a": 1} {"b": 2}]', 1, "record 1 (line 1): '{' stands"),
        ('[{"a": 1}', 1, "record 1 (line 1): the file ends"),
        ('[{"a": "1', 0, "record 1"),
        ("[]\n]", 0, "line 2: the list of records has ended"),
        ("[" * 100_000, 0, "nested too deep"),
    ):
        path.write_text(text)
        values = []
        with pytest.raises(DamagedInputError) as error:  # noqa: PT012
            for value in values_of_json(str(path)):
                values.append(value)
        assert len(values) == given_before
        assert str(path) in str(error.value)
        assert place in str(error.value)
    path.write_text('{"a": 1}\n{"b": \n\n{"c": 3}\n{"d": "4\n{"e": 5')
    values = list(values_of_json(str(path)))
    assert [value.content for value in values] == [{"a": 1}, None, {"c": 3}, None, None]
    assert [value.place for value in values] == [f"{path}, line {line}" for line in (1, 2, 4, 5, 6)]
    assert [bool(value.fault) for value in values] == [False, True, False, True, True]
    path.write_bytes(b'{"a": 1}\n{"b": "\xff"}')
    with pytest.raises(DamagedInputError, match="no UTF-8"):
        list(values_of_json(str(path)))


@pytest.mark.parametrize("form", ["list", "lines", "tar"])
def test_memory_does_not_grow_with_the_number_of_documents(tmp_path: Path, form: str) -> None:
    record = json.dumps({"text": "word " * 2000})
    path = tmp_path / f"a.{form}"
    if form == "tar":
        write_tar(path, [(f"{i}.json", record.encode()) for i in range(3000)])
    else:
        path.write_text(f"[{', '.join([record] * 3000)}]" if form == "list" else f"{record}\n" * 3000)
    assert path.stat().st_size > 30e6
    tracemalloc.start()
    read = documents_of_tar(str(path), "json", Counter()) if form == "tar" else values_of_json(str(path))
    assert sum(1 for _ in read) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6
