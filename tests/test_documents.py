"""Sentences and passages: where text is cut, and that nothing of it is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from data_tools.documents import PieceCounter, WordCounter, cut_page
from data_tools.pages import Link, Page, Paragraph
from data_tools.sentences import sentence_of, sentence_spans
from tests.corpora import make_tokenizer


def words(text: str) -> int:
    return len(text.split())


def page(*paragraphs: Paragraph) -> Page:
    return Page(1, "Title", paragraphs)


def test_sentences_end_where_they_should() -> None:
    text = 'Dr. A. B. Smith of the U.S. Navy came. He said "No!" and left… Then No. 5 won at 3 p.m. on 2 May.\nNew line'
    assert [text[start:end] for start, end in sentence_spans(text)] == [
        "Dr. A. B. Smith of the U.S. Navy came.",
        'He said "No!" and left…',
        "Then No. 5 won at 3 p.m. on 2 May.",
        "New line",
    ]
    spans = sentence_spans(text)
    assert sentence_of(spans, text.index("He said")) == 1
    assert sentence_of(spans, text.index("left")) == 1
    assert sentence_of(spans, 0) == 0
    assert sentence_spans(" \n ") == []


@given(st.text(st.sampled_from("aB1 .!?\n\"'()")))
def test_sentences_hold_every_visible_character_once(text: str) -> None:
    spans = sentence_spans(text)
    assert " ".join(text[start:end] for start, end in spans).split() == text.split()
    covered = {place for start, end in spans for place in range(start, end)}
    assert {place for place, character in enumerate(text) if not character.isspace()} <= covered
    assert sum(end - start for start, end in spans) == len(covered)


def test_paragraphs_of_a_section_are_merged_as_far_as_they_fit() -> None:
    source = page(
        Paragraph("one two three", (Link(4, 7, "Two"),), "A"),
        Paragraph("four five", (Link(0, 4, "Four"),), "A"),
        Paragraph("six seven", (), "A"),
        Paragraph("eight", (), "B"),
    )
    passages = cut_page(source, words, 5, 5, "section")
    assert [(passage.chunk, passage.text, passage.pieces) for passage in passages] == [
        (0, "one two three\nfour five", 5),
        (1, "six seven", 2),
        (2, "eight", 1),
    ]
    assert [passages[0].text[link.start : link.end] for link in passages[0].links] == ["two", "four"]
    single = cut_page(source, words, 5, 5, "paragraph")
    assert [passage.text for passage in single] == ["one two three", "four five", "six seven", "eight"]
    across = cut_page(source, words, 5, 5, "page")
    assert [passage.text for passage in across] == ["one two three\nfour five", "six seven\neight"]


def test_merging_ends_where_a_passage_is_long_enough_and_a_short_rest_joins_the_one_before() -> None:
    def texts(*lengths: int, limit: int = 10, enough: int = 4) -> list[int]:
        source = page(*(Paragraph(" ".join("w" * length)) for length in lengths))
        return [words(passage.text) for passage in cut_page(source, words, limit, enough, "section")]

    assert texts(2, 2, 4, 3, 1) == [4, 4, 4]
    assert texts(2, 3, 4, 3) == [5, 7]  # the rest of 3 joins the 4
    assert texts(2, 3, 8, 3) == [5, 8, 3]  # and does not fit on the 8
    assert texts(3, 9, 3) == [3, 9, 3]
    assert texts(1, 1) == [2]
    assert texts(2, 2, 4, 3, 1, enough=10) == [8, 4]
    # within a paragraph it goes on to the limit: three sentences of 4 words
    sentences = page(Paragraph("Aa b c dd. Ee f g hh. Ii j k ll."), Paragraph("m n"))
    assert [words(passage.text) for passage in cut_page(sentences, words, 10, 4, "section")] == [8, 6]


def test_words_may_be_counted_in_place_of_pieces() -> None:
    assert WordCounter()("Jean-Paul \t walked\n home.") == 3
    assert WordCounter().special_tokens == 0


def test_a_long_paragraph_is_cut_at_sentence_ends_and_never_within_a_link() -> None:
    text = "One two three. Four five six. Seven eight nine."
    assert [passage.text for passage in cut_page(page(Paragraph(text)), words, 6, 6, "section")] == [
        "One two three. Four five six.",
        "Seven eight nine.",
    ]
    start = text.index("six")
    linked = page(Paragraph(text, (Link(start, start + len("six. Seven"), "Six. Seven"),)))
    assert [passage.text for passage in cut_page(linked, words, 4, 4, "section")] == [
        "One two three. Four",
        "five six. Seven eight",
        "nine.",
    ]


def test_a_long_sentence_is_cut_beside_names_and_within_them_only_where_it_must() -> None:
    def cuts(text: str, limit: int) -> list[str]:
        return [passage.text for passage in cut_page(page(Paragraph(text)), words, limit, limit, "section")]

    assert cuts("he saw New York City and then New Orleans too", 4) == [
        "he saw",
        "New York City and",
        "then New Orleans too",
    ]
    assert cuts("One Two Three Four Five", 2) == ["One Two", "Three Four", "Five"]


def test_what_has_no_blank_stays_whole_and_cutting_ends() -> None:
    passages = cut_page(page(Paragraph("x" * 50 + " end")), len, 10, 10, "section")
    assert [passage.text for passage in passages] == ["x" * 50, "end"]
    assert passages[0].pieces == 50
    assert cut_page(page(Paragraph("  ")), words, 5, 5, "section") == []


@settings(max_examples=60)
@given(st.lists(st.text(st.sampled_from("ab .\nC"), max_size=60), max_size=5), st.integers(1, 12), st.integers(1, 12))
def test_cutting_keeps_every_word_in_order(texts: list[str], limit: int, enough: int) -> None:
    passages = cut_page(page(*(Paragraph(text) for text in texts)), words, limit, min(enough, limit), "section")
    assert " ".join(passage.text for passage in passages).split() == " ".join(texts).split()
    assert all(passage.pieces <= limit and passage.pieces == words(passage.text) for passage in passages)
    assert [passage.chunk for passage in passages] == list(range(len(passages)))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return PreTrainedTokenizerFast.from_pretrained(folder)


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("paris tHeÉ,.'\n\t\u00a0\x1c[SEP]中\u0301")))
def test_counting_by_chunks_equals_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    count = PieceCounter(tokenizer)
    assert count(text) == len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert count(text) == count(text)
