"""Sets that may not be learnt of: every format told by its content, malformed records named, removal counted by set."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import lzma
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from data_tools.build import build_corpus
from data_tools.leakage import LeakedPairs, add_pairs, leakage_settings, load_leakage, set_names
from data_tools.leakage_readers import name_key, read_contents
from data_tools.wikidata.builder import build_kb
from erica_dist.config import FilterConfig, KnowledgeBaseJob, LeakageConfig
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from tests.corpora import corpus_job
from tests.shared_files import shared

DOCRED = {
    "title": "edmund_Burke",
    "vertexSet": [[{"name": 'Wilfried " Willi " Schneider'}, {"name": "Schneider"}], [{"name": "Köln"}],
                  [{"name": "X"}]],
    "labels": [{"h": 0, "t": 1, "r": "P19"}, {"h": 1, "t": 0, "r": "P1"}, {"h": 2, "t": 0, "r": "Na"}],
}  # fmt: skip
TOKENS = ["St", ".", "Louis", "lies", "in", "the", "U.S.", "-LRB-", "A", "-RRB-"]
TACRED = {"token": TOKENS, "subj_start": 0, "subj_end": 2, "obj_start": 6, "obj_end": 6, "relation": "org:city"}
NEGATIVE = TACRED | {"subj_start": 3, "subj_end": 3, "relation": "no_relation"}
FEWREL = {"tokens": TOKENS, "h": ["st. louis city", "Q38022", [[0, 1, 2]]], "t": ["u.s.", "Q30", [[6]]]}
OPENNRE_TOKENS = {"token": TOKENS, "h": {"name": "St. Louis", "id": "Q38022", "pos": [0, 3]},
                  "t": {"name": "U.S.", "id": "/m/1", "pos": [6, 7]}, "relation": "P17"}  # fmt: skip
OPENNRE_TEXT = {"text": "St. Louis lies in the U.S.", "h": {"name": "Saint Louis", "pos": [0, 9]},
                "t": {"id": "Q30", "name": "U.S.", "pos": [22, 26]}, "relation": "P17"}  # fmt: skip
FINETUNE = {"text": "St. Louis lies in the U.S.", "head": [0, 9], "tail": [22, 26], "label": "P17"}
SEMEVAL = (
    '8001\t"The <e1>St. Louis</e1> is in <e2>the U.S.</e2>"\r\nComponent-Whole(e2,e1)\r\nComment: a\tb\r\n\r\n'
    '8002\t"A <e1>master</e1> and a <e2>stick</e2>."\r\nOther\r\nComment:\r\n\r\n'
)
ST_LOUIS = ("st.louis", "u.s.")


def as_lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("text", "titles", "pairs", "facts", "not_facts"),
    [
        (json.dumps([DOCRED]), {"Edmund Burke"}, {('wilfried"willi"schneider', "köln"), ("köln", "schneider")}, 2, 1),
        (as_lines(DOCRED), {"Edmund Burke"}, {('wilfried"willi"schneider', "köln"), ("köln", "schneider")}, 2, 1),
        (json.dumps([{"title": "Fugue", "vertexSet": []}], indent=2), {"Fugue"}, set(), 0, 0),
        (json.dumps([TACRED, NEGATIVE]), set(), {ST_LOUIS}, 1, 1),
        (json.dumps([TACRED | {"obj_start": 7, "obj_end": 9}]), set(), {("(a)", "st.louis")}, 1, 0),
        (as_lines(NEGATIVE, TACRED), set(), {ST_LOUIS}, 1, 1),
        (json.dumps({"P17": [FEWREL], "P1": [FEWREL]}), set(),
         {ST_LOUIS, ("st.louis city", "u.s."), ("Q30", "Q38022")}, 2, 0),
        (as_lines(OPENNRE_TOKENS), set(), {ST_LOUIS}, 1, 0),
        (as_lines(OPENNRE_TEXT, OPENNRE_TEXT | {"relation": "NA"}), set(), {ST_LOUIS, ("saint louis", "u.s.")}, 1, 1),
        (as_lines(FINETUNE), set(), {ST_LOUIS}, 1, 0),
        (SEMEVAL, set(), {("st.louis", "the u.s.")}, 1, 1),
        ("\ufeffSt. Louis\tU.S.\n\nb\tA\n", set(), {ST_LOUIS, ("a", "b")}, 2, 0),
        ("edmund_Burke\n\n\tFugue \n", {"Edmund Burke", "Fugue"}, set(), 0, 0),
        (json.dumps({"version": "1.1", "data": [{"title": "Super_Bowl_50", "paragraphs": []}]}), {"Super Bowl 50"},
         set(), 0, 0),
    ],
)  # fmt: skip
def test_every_format_is_known_by_its_content(
    tmp_path: Path, text: str, titles: set[str], pairs: set[tuple[str, str]], facts: int, not_facts: int
) -> None:
    packs: list[Callable[[bytes], bytes]] = [bytes, gzip.compress, bz2.compress, lzma.compress]
    for pack in packs:
        path = tmp_path / "set"  # without any suffix
        path.write_bytes(pack(text.encode()))
        found = read_contents(path)
        assert found.titles == titles
        assert found.pairs == {(min(pair), max(pair)) for pair in pairs}
        assert (found.facts, found.not_facts) == (facts, not_facts)


def edited(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (record | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (None, "cannot read"),
        (b"", "holds no fact and no title"),
        (b"[]", "holds no fact and no title"),
        (b"{}", "of no known form"),
        (b"[1]", "record 1: must be an object"),
        (b"[{]", "no valid JSON"),
        (b'{"h": \n', "no valid JSON"),
        (as_lines(FINETUNE).encode() + b"{", "line 2 is no valid JSON"),
        (b"title\n\xff\xfe", "line 2: no UTF-8"),
        (gzip.compress(b"a\tb\n" * 99)[:-9], "is damaged"),
        (bz2.compress(b"a\tb\n")[:-3], "is damaged"),
        (lzma.compress(b"a\tb\n")[:-3], "is damaged"),
        (gzip.compress(b"x" * 99)[:12] + b"\0\xff\xff\xff", "is damaged"),
        (b"a\tb\nonly one\n", "line 2: must be `head name<TAB>tail name`"),
        (b"a\tb\tc\n", "line 1"),
        (b"a\tb\n \tc\n", "line 2"),
        (b"A title\na\tb\n", "line 2: the lines before are titles"),
        (SEMEVAL.encode() + b'8003\t"no <e1>second</e1>"\r\nOther\r\n', "line 9: must be `number<TAB>sentence`"),
        (SEMEVAL.replace("Other", "8002\tx").encode(), "line 6: the label of the sentence before is due"),
        (SEMEVAL.encode() + b'8003\t"<e1>a</e1> <e2>b</e2>"\r\n', "line 9: the file ends before the label"),
        (json.dumps([DOCRED, edited(DOCRED, title=None)]).encode(), "record 2: malformed .has no 'title'"),
        (json.dumps([edited(DOCRED, title=["x"])]).encode(), "record 1: malformed .* is no str"),
        (json.dumps([edited(DOCRED, labels=[{"h": 0, "t": 7}])]).encode(), "record 1: .*does not fit the 3 entities"),
        (json.dumps([edited(DOCRED, labels=[{"h": -1, "t": 0}])]).encode(), "record 1: .*does not fit the 3 entities"),
        (json.dumps([edited(DOCRED, labels=[{"h": "0", "t": 1}])]).encode(), "record 1: .*is no int"),
        (json.dumps([edited(DOCRED, vertexSet=[[{}]])]).encode(), "record 1: .*has no 'name'"),
        (json.dumps([edited(DOCRED, vertexSet={})]).encode(), "record 1: .*does not fit the 0"),
        (json.dumps([TACRED, edited(TACRED, obj_end=None)]).encode(), "record 2: .*has no 'obj_end'"),
        (json.dumps([edited(TACRED, obj_end=10)]).encode(), "record 1: .*tokens 6 to 10 of 10"),
        (json.dumps([edited(TACRED, subj_start=3)]).encode(), "record 1: .*tokens 3 to 2 of 10"),
        (json.dumps([edited(TACRED, token=None)]).encode(), "record 1: .*has no 'tokens'"),
        (json.dumps([edited(TACRED, token="a b")]).encode(), "record 1: .*is no list"),
        (json.dumps({"P17": [FEWREL, edited(FEWREL, t=["x", "Q1"])]}).encode(), "P17, record 2: malformed"),
        (json.dumps({"P17": [edited(FEWREL, t=["x", "Q1", [[99]]])]}).encode(), "P17, record 1: .*tokens 99"),
        (json.dumps({"P17": [edited(FEWREL, t=["x", "Q1", [[]]])]}).encode(), "P17, record 1: malformed"),
        (as_lines(OPENNRE_TEXT, edited(OPENNRE_TEXT, t=None)).encode(), "line 2: .*has no 't'"),
        (as_lines(OPENNRE_TEXT, edited(OPENNRE_TEXT, t={"id": "Q1"})).encode(), "line 2: .*without a name"),
        (as_lines(OPENNRE_TEXT, edited(OPENNRE_TEXT, t={"pos": [3]})).encode(), "line 2: malformed"),
        (as_lines(OPENNRE_TEXT, edited(OPENNRE_TEXT, t=7)).encode(), "line 2: malformed"),
        (as_lines(FINETUNE, edited(FINETUNE, tail=[20, 99])).encode(), "line 2: .*characters 20 to 99 of 26"),
        (as_lines(edited(FINETUNE, text=None)).encode(), "line 1: .*has no 'text'"),
        (as_lines({"tokens": ["a"], "relations": []}).encode(), "of no known form .*TACRED"),
        (b"[" * 100_000, "no valid JSON"),
    ],
)  # fmt: skip
def test_malformed_files_are_named(tmp_path: Path, content: bytes | None, place: str) -> None:
    path = tmp_path / "odd-file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=place) as caught:
        read_contents(path)
    assert "odd-file" in str(caught.value)


def test_names_are_equal_whatever_put_them_together() -> None:
    for one, other in (
        ("Jean - Luc  Godard", "jean-luc godard"),
        ("St . Louis", "St. Louis"),
        ("O 'Neil", "O'NEIL"),
        ("Zoe\u0308", "ZOË"),
        ("New\nYork", "new york"),
        ("“ A ”", "“A”"),
    ):
        assert name_key(one) == name_key(other)
    assert name_key("St Louis") != name_key("St. Louis")
    assert name_key("ab c") != name_key("a bc")
    assert name_key("New York") == "new york"


def test_pairs_between_entities_in_both_directions_with_their_sets() -> None:
    partners: dict[str, dict[str, int]] = {}
    add_pairs(partners, [("a", "b"), ("b", "c"), ("same", "same"), ("Q1", "Q2")], 1)
    add_pairs(partners, [("a", "b"), ("a", "d")], 2)
    leaked = LeakedPairs(partners)
    assert leaked.between([{"a", "x"}, {"b", "y"}, {"c"}]) == {(0, 1): 3, (1, 0): 3, (1, 2): 1, (2, 1): 1}
    assert leaked.between([{"b"}, {"z"}, {"b", "a"}]) == {(0, 2): 3, (2, 0): 3}
    assert leaked.between([{"a"}, {"b", "d"}]) == {(0, 1): 3, (1, 0): 3}
    assert leaked.between([{"same"}, {"same"}]) == {(0, 1): 1, (1, 0): 1}
    assert leaked.between([{"u", "Q2"}, {"v", "Q1"}]) == {(0, 1): 1, (1, 0): 1}
    assert leaked.between([{"a"}, {"c"}, {"x"}]) == {}
    assert leaked.between([]) == {}


def test_sets_titles_and_pairs_take_what_they_say(tmp_path: Path) -> None:
    paths = {}
    for folder, name, content in (
        ("one", "dev.json", json.dumps([DOCRED])),
        ("two", "dev.json", json.dumps([DOCRED | {"title": "Fugue"}])),
        ("two", "titles.txt", "fugue\n"),
        ("two", "pairs.tsv", "a\tb\n"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(content, encoding="utf-8")
        paths[f"{folder}/{name}"] = str(tmp_path / folder / name)
    one, two, titles, pairs = paths.values()
    assert list(set_names(LeakageConfig(sets=[one, two], pairs=[pairs])).values()) == [
        "one/dev.json", "two/dev.json", "pairs.tsv"
    ]  # fmt: skip
    leakage = load_leakage(LeakageConfig(sets=[one], titles=[two, titles], pairs=[pairs]))
    assert leakage.titles == {"Edmund Burke": 1, "Fugue": 6}
    assert leakage.pairs.partners["a"] == {"b": 8}
    assert leakage.pairs.partners["schneider"] == {"köln": 1}
    assert leakage.read_counts() == {
        "one/dev.json: titles read": 1,
        "one/dev.json: facts read": 2,
        "one/dev.json: examples without a relation": 1,
        "one/dev.json: pairs of names or ids": 2,
        "two/dev.json: titles read": 1,
        "titles.txt: titles read": 1,
        "pairs.tsv: facts read": 1,
        "pairs.tsv: pairs of names or ids": 1,
    }
    both = load_leakage(LeakageConfig(titles=[one], pairs=[one]))
    assert (both.titles, len(both.sets), both.pairs.partners["schneider"]) == ({"Edmund Burke": 1}, 1, {"köln": 1})
    with pytest.raises(UserError, match=r"leakage\.titles: .*pairs\.tsv holds no titles"):
        load_leakage(LeakageConfig(titles=[pairs]))
    with pytest.raises(UserError, match=r"leakage\.pairs: .*titles\.txt holds no pairs"):
        load_leakage(LeakageConfig(pairs=[titles]))
    assert not load_leakage(LeakageConfig()).pairs
    # only names and contents count, not where the files lie
    settings = leakage_settings(LeakageConfig(sets=[titles]))
    assert list(settings["sets"]) == ["titles.txt"]
    assert str(tmp_path) not in json.dumps(settings)


def test_titles_that_became_redirects_lead_to_their_page() -> None:
    leakage = dataclasses.replace(load_leakage(LeakageConfig()), titles={"Old": 1, "New": 2, "Loop": 1, "Stays": 1})
    pages = leakage.pages(lambda title: {"Old": "New", "Loop": ""}.get(title, title))
    assert pages == {"Old": 1, "New": 3, "Loop": 1, "Stays": 1}
    assert leakage.titles["New"] == 2


def test_counts_by_set_in_the_manifest(tmp_path: Path) -> None:
    job = corpus_job(tmp_path)
    first = json.loads(Path(job.inputs[0]).read_text().splitlines()[0])["title"]
    (tmp_path / "one.json").write_text(json.dumps([
        {"title": first, "vertexSet": [[{"name": "BERLIN"}], [{"name": "Germany"}]], "labels": [{"h": 0, "t": 1}]}
    ]))  # fmt: skip
    (tmp_path / "two.tsv").write_text("Germany\tBerlin\nFrance\tParis\n")
    sets = [str(tmp_path / "one.json"), str(tmp_path / "two.tsv")]
    manifest = build_corpus(dataclasses.replace(job, leakage=LeakageConfig(sets=sets)))
    counts = manifest["counts"]["leakage"]
    assert counts["one.json: pages left out"] == manifest["counts"]["pages"]["left out: leakage"] == 1
    assert counts["one.json: titles read"] == counts["one.json: facts read"] == 1
    assert counts["two.tsv: facts read"] == 2
    # each fact of `two` counts for it, those of Germany for `one` as well
    assert 0 < counts["one.json: labels removed"] < counts["two.tsv: labels removed"]
    assert counts["two.tsv: labels removed"] == manifest["counts"]["labels"]["removed: leakage"]


# ------------------------------------------------------------------------------------------------ the shared sets


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        (("re-docred", "dev_revised.json.gz"), {"titles read": 500, "facts read": 17_284}),
        (("re-docred", "test_revised.json.gz"), {"titles read": 500, "facts read": 17_448}),
        (("fewrel", "val_wiki.json.gz"), {"facts read": 11_200}),
        (("semeval2010", "test.txt.gz"), {"facts read": 2_263, "examples without a relation": 454}),
        (("xquad", "xquad.en.json.gz"), {"titles read": 48}),
    ],
)
def test_shared_sets_hold_what_their_readme_says(path: tuple[str, str], counts: dict[str, int]) -> None:
    file = shared("data", "downstream", *path)
    leakage = load_leakage(LeakageConfig(sets=[str(file)]))
    found = leakage.sets[0][1]
    assert {what: number for what, number in found.items() if what != "pairs of names or ids"} == counts
    for name, title in (("dev_revised", "Edmund Burke"), ("test_revised", "Fugue")):
        if path[1].startswith(name):
            assert title in leakage.titles


def pages_of(path: Path, first: int, titles: set[str]) -> list[dict[str, Any]]:
    """JSON-line pages of a file of WikiExtractor's: the `first` ones, and those of `titles`."""
    pages = []
    text = lzma.decompress(path.read_bytes()).decode()
    for number, (head, title, body) in enumerate(
        re.findall(r'<doc id="(\d+)"[^>]* title="([^"]*)">\n(.*?)</doc>', text, re.DOTALL)
    ):
        if number < first or title in titles:
            pages.append({"page_id": int(head), "title": title, "text": body})
    return pages


def test_a_build_from_shared_text_has_nothing_of_re_docred_left(tmp_path: Path) -> None:
    text, tables = shared("data", "wikipedia-text"), shared("data", "kb-wikidata")
    sets = [str(shared("data", "downstream", "re-docred", f"{name}_revised.json.gz")) for name in ("dev", "test")]
    parts = ((0, 8), (50, 0), (75, 0))
    pages = [
        page
        for first, count in parts
        for page in pages_of(text / f"wiki_AA_{first:02d}-{first + 24}.txt.xz", count, {"Edmund Burke", "Fugue"})
    ]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages), encoding="utf-8")
    kb = tmp_path / "wikidata"
    build_kb(
        KnowledgeBaseJob(
            entities=str(tables / "entities.tsv.gz"),
            triples=str(tables / "triples.tsv.gz"),
            relations=str(tables / "relations.json.gz"),
            out=str(kb),
        )
    )
    job = dataclasses.replace(
        corpus_job(tmp_path),
        inputs=[str(tmp_path / "pages.jsonl")],
        kb=str(kb),
        documents_per_shard=1000,
        filters=FilterConfig(min_tokens=200, max_tokens=2500),
    )
    # what is a leaked pair, by another way than the build's: pairs of sets of lower-cased names
    facts: set[tuple[str, str]] = set()
    for path in sets:
        for document in json.loads(gzip.decompress(Path(path).read_bytes())):
            names = [{mention["name"].lower() for mention in vertex} for vertex in document["vertexSet"]]
            for fact in document["labels"]:
                facts |= set(product(names[fact["h"]], names[fact["t"]]))

    def leaked_labels(folder: Path) -> int:
        found = 0
        for path in folder.glob("documents-*.tar"):
            for _, document in read_documents(path):
                text = document["text"]
                names = [
                    {one["name"].lower()} | {text[start:end].lower() for start, end, _ in one["mentions"]}
                    for one in document["entities"]
                ]
                for head, tail, _ in document["relations"]:
                    found += any(pair in facts or pair[::-1] in facts for pair in product(names[head], names[tail]))
        return found

    plain = build_corpus(dataclasses.replace(job, out=str(tmp_path / "plain")))
    clean = build_corpus(dataclasses.replace(job, out=str(tmp_path / "clean"), leakage=LeakageConfig(sets=sets)))
    assert leaked_labels(tmp_path / "plain") > 40
    assert leaked_labels(tmp_path / "clean") == 0
    counts = clean["counts"]["leakage"]
    assert counts["dev_revised.json.gz: pages left out"] == counts["test_revised.json.gz: pages left out"] == 1
    assert plain["text_pages"] - clean["text_pages"] == 2
    assert counts["dev_revised.json.gz: labels removed"] > 10
    assert counts["test_revised.json.gz: labels removed"] > 10
