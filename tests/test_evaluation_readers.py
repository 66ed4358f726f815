"""Files of relation classification, low-resource subsets, and the scores by hand."""

import gzip
import json
from pathlib import Path

import pytest

from erica_dist.errors import UserError
from erica_dist.evaluation.readers import read_examples
from erica_dist.evaluation.scores import accuracy, all_scores, is_semeval, micro_f1, semeval_macro_f1
from erica_dist.evaluation.splits import draw, from_file
from tests.shared_files import shared

SEMEVAL = (
    '1\t"The <e1>child</e1> said "hi" to the <e2>big cradle </e2>."\r\nOther\r\nComment: a <e1>\r\n\r\n'
    '2\t"<e2>Oil</e2> of <e1>trees</e1>"\r\nEntity-Origin(e2,e1)\r\nComment:\r\n'
)


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_semeval_text_gives_clean_sentences_and_spans(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(SEMEVAL.encode()) if name.endswith(".gz") else SEMEVAL.encode())
    first, second = read_examples(path)
    assert first.text == 'The child said "hi" to the big cradle .'
    assert (first.head, first.tail, first.label) == ((4, 9), (27, 37), "Other")
    assert first.text[slice(*first.tail)] == "big cradle"
    assert (second.text, second.head, second.tail) == ("Oil of trees", (7, 12), (0, 3))
    assert (second.label, second.place) == ("Entity-Origin(e2,e1)", f"{path}:5")


def test_json_lines_and_tacred(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        '{"text": "Zoë met\u2028 Al", "head": [0, 3], "tail": [9, 11], "label": "met"}\n\n', encoding="utf-8"
    )
    (example,) = read_examples(lines)
    assert (example.text[slice(*example.head)], example.text[slice(*example.tail)]) == ("Zoë", "Al")
    tacred = tmp_path / "a.json"
    tokens = ["-LRB-", "New", "York", "-RRB-", "hosts", "Al"]
    record = {"token": tokens, "subj_start": 1, "subj_end": 2, "obj_start": 5, "obj_end": 5, "relation": "r"}
    tacred.write_text(json.dumps([record]))
    (example,) = read_examples(tacred)
    assert example.text == "( New York ) hosts Al"
    assert (example.head, example.tail, example.label) == ((2, 10), (19, 21), "r")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('1\t"a <e1>b</e1> <e2>c</e2>"\n\n', r"f:2: the label of the sentence of line 1 is due"),
        ('1\t"a <e1>b</e1> <e2>c</e2>"\n2\t"d"\n', r"f:2: the label of the sentence of line 1"),
        ('1\t"a <e1>b</e1> <e2>c</e2>"', r"f:1: the file ends before the label"),
        ('\n1\t"a <e1>b</e1> <e2>c"\nOther\n', r"f:2: </e2> is missing"),
        ('1\t"<e1>b</e1> <e1>c</e1>"\nOther\n', r"f:1: <e1> occurs twice"),
        ('1\t"<e1> </e1> <e2>c</e2>"\nOther\n', r"f:1: the mention at \[0, 1\] is empty"),
        ("what is this\n", r"f:1: expected `number <tab> sentence`, found 'what is this'"),
        ('{"text": "ab", "head": [0, 1], "tail": [1, 3], "label": "x"}', r"f:1: tail=\[1, 3\] is no \[start, end\]"),
        ('{"text": "ab", "head": [0, 1], "tail": [1, 2]}', r"f:1: 'label' must be a text, found 'None'"),
        ('{"text": "ab", "head": [0, 1], "tail": [1, 2], "label": ""}', r"f:1: 'label' is empty"),
        ('{"text": "ab"\n', r"f:1: no JSON"),
        ("[1]", r"f, example 1: 'token' must be a list"),
        (
            '[{"token": ["a"], "subj_start": 0, "subj_end": 1, "obj_start": 0, "obj_end": 0, "relation": "r"}]',
            r"example 1: subj_start=0, subj_end=1 do not lie in 1 tokens",
        ),
        ("\n\n", "holds no example"),
        (b"1\tok\n\xff", r"f:2: no UTF-8"),
    ],
)
def test_a_bad_line_is_named(content: str | bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=text):
        read_examples(path)


def test_a_missing_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*absent"):
        read_examples(tmp_path / "absent")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(SEMEVAL.encode())[:-20])
    with pytest.raises(UserError, match="no whole gzip file"):
        read_examples(tmp_path / "cut.gz")


def test_the_real_semeval_files_whole() -> None:
    labels = set(shared("data", "downstream", "semeval2010", "labels.txt").read_text().split())
    train = read_examples(shared("data", "downstream", "semeval2010", "train.txt.gz"))
    test = read_examples(shared("data", "downstream", "semeval2010", "test.txt.gz"))
    assert (len(train), len(test)) == (8000, 2717)
    assert {example.label for example in train} == labels
    assert len(labels) == 19
    assert is_semeval(labels)
    assert sum(example.label == "Entity-Destination(e2,e1)" for example in train) == 1
    assert sum(example.label == "Other" for example in test) == 454
    first = train[0]
    assert (
        first.text
        == "The system as described above has its greatest application in an arrayed configuration of antenna elements."
    )
    assert (first.text[slice(*first.head)], first.text[slice(*first.tail)]) == ("configuration", "elements")
    assert not any("<e" in example.text for example in train + test)


# ------------------------------------------------------------------------------------------------ subsets


def test_drawn_subsets_are_nested_and_leave_the_dev_part_alone() -> None:
    parts = {percent: draw(1000, percent, 13, 10) for percent in (1, 10, 100)}
    assert [len(parts[percent].train) for percent in (1, 10, 100)] == [10, 100, 900]
    assert set(parts[1].train) < set(parts[10].train) < set(parts[100].train)
    assert parts[1].dev == parts[100].dev == draw(1000, 1, 87, 10).dev
    assert sorted(parts[100].train + parts[100].dev) == list(range(1000))
    assert parts[1] == draw(1000, 1, 13, 10)
    assert parts[1].train != draw(1000, 1, 42, 10).train
    assert draw(7, 1, 0, 0).train == draw(7, 14, 0, 0).train, "at least one example"


@pytest.mark.parametrize(("percent", "dev", "text"), [(0, 10, "percent=0"), (101, 10, "percent=101"), (1, 100, "dev_")])
def test_a_wrong_percentage_is_refused(percent: float, dev: float, text: str) -> None:
    with pytest.raises(UserError, match=text):
        draw(100, percent, 1, dev)


def _splits(tmp_path: Path) -> Path:
    path = tmp_path / "splits.json"
    content = {"train_file": "x/t.txt.gz", "dev_file": "x/t.txt.gz", "dev": [3, 1]}
    path.write_text(json.dumps(content | {"train": {"10": {"13": [2, 0]}, "100": {"13": [0, 1, 2, 3, 4]}}}))
    return path


def test_a_splits_file_fixes_the_lists(tmp_path: Path) -> None:
    path = _splits(tmp_path)
    split = from_file(path, "t.txt", 5, 10, 13, dev=True)
    assert (split.train, split.dev) == ([0, 2], [1, 3])
    assert from_file(path, "t.txt", 5, 100, 13, dev=True).train == [0, 2, 4], "dev is taken out of the 100 % list"
    whole = from_file(path, "t.txt", 5, 100, 13, dev=False)
    assert (whole.train, whole.dev) == ([0, 1, 2, 3, 4], [])


@pytest.mark.parametrize(
    ("train", "examples", "percent", "seed", "text"),
    [
        ("other.txt", 5, 10, 13, "splits x/t.txt.gz, not finetune.train=other.txt"),
        ("t.txt", 5, 1, 13, r"no list for finetune.percent=1; it has 10, 100"),
        ("t.txt", 5, 10, 14, r"no list for finetune.seeds=14; it has 13"),
        ("t.txt", 2, 10, 13, "index 2 is beyond the 2 examples"),
    ],
)
def test_splits_that_do_not_fit_are_refused(train, examples, percent, seed, text, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=text):
        from_file(_splits(tmp_path), train, examples, percent, seed, dev=True)


def test_the_shared_splits_of_semeval() -> None:
    path = shared("data", "downstream", "splits", "semeval2010.json")
    sizes = [
        [len(from_file(path, "train.txt.gz", 8000, percent, seed, dev=True).train) for percent in (1, 10, 100)]
        for seed in (13, 42, 87)
    ]
    assert sizes == [[80, 800, 7200]] * 3
    assert len(from_file(path, "train.txt.gz", 8000, 1, 13, dev=True).dev) == 800


# ------------------------------------------------------------------------------------------------ scores


def test_the_official_score_by_hand() -> None:
    cause, turned, whole = "Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Component-Whole(e1,e2)"
    gold = [cause, cause, cause, turned, whole, whole, "Other", "Other"]
    predicted = [cause, turned, "Other", turned, whole, cause, whole, "Other"]
    # Cause-Effect: 2 right, 4 predicted, 4 gold: P = R = F1 = 1/2 (the turned one is in both denominators).
    # Component-Whole: 1 right, 2 predicted (one on a gold Other), 2 gold: F1 = 1/2. The other seven: 0.
    assert semeval_macro_f1(gold, predicted) == pytest.approx((0.5 + 0.5) / 9, abs=1e-12)
    assert accuracy(gold, predicted) == 4 / 8
    # Micro: 3 right relations, 6 predicted, 6 gold.
    assert micro_f1(gold, predicted, {"Other"}) == pytest.approx(0.5)
    assert micro_f1(gold, predicted, set()) == accuracy(gold, predicted)


def test_scores_at_their_ends() -> None:
    gold = [f"{name}(e1,e2)" for name in ("Cause-Effect", "Message-Topic", "Entity-Origin")]
    assert semeval_macro_f1(gold, gold) == pytest.approx(3 / 9)
    assert semeval_macro_f1(gold, ["Other"] * 3) == 0.0
    assert micro_f1(["Other"], ["Other"], {"Other"}) == 0.0
    assert set(all_scores(gold, gold, ["Other"], semeval=True)) == {"accuracy", "micro_f1", "semeval_f1"}
    assert set(all_scores(gold, gold, ["Other"], semeval=False)) == {"accuracy", "micro_f1"}
    assert not is_semeval(["Cause-Effect(e1,e2)", "per:title"])
