"""A small world to build corpora from: a knowledge base of countries, a tokenizer, and pages that speak of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import PreTrainedTokenizerFast

from data_tools.kb import KnowledgeBase
from data_tools.wikidata.builder import build_kb
from erica_dist.config import CorpusJob, FilterConfig, KnowledgeBaseJob, NerConfig, RayConfig

COUNTRIES = [
    ("France", "Paris", "French"),
    ("Germany", "Berlin", "German"),
    ("Italy", "Rome", "Italian"),
    ("Spain", "Madrid", "Spanish"),
    ("Portugal", "Lisbon", "Portuguese"),
    ("Poland", "Warsaw", "Polish"),
    ("Austria", "Vienna", "Austrian"),
    ("Greece", "Athens", "Greek"),
]
# more names in the knowledge base than the countries give: ambiguous ones, common words, a possessive
EXTRA = [
    ("Q901", "Georgia", [("P361", "Q900")]),
    ("Q902", "Georgia", [("P361", "Q900")]),
    ("Q903", "It", []),
    ("Q904", "May", []),
    ("Q905", "McDonald's", []),
    ("Q906", "IT|Information Technology", []),
    ("Q907", "1984", []),
]
EUROPE = "Q900"
RELATIONS = [("P30", "continent"), ("P36", "capital"), ("P47", "shares border with"), ("P361", "part of")]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,'()-"]


def country(number: int) -> str:
    return f"Q{number + 1}"


def capital(number: int) -> str:
    return f"Q{number + 101}"


def make_kb(folder: Path) -> Path:
    """The knowledge base in `folder / "kb"`: each country has its capital, continent and two neighbours in a ring."""
    entities = [f"{EUROPE}\tEurope"]
    triples: list[str] = []
    for number, (name, city, people) in enumerate(COUNTRIES):
        entities += [f"{country(number)}\t{name}|{people}", f"{capital(number)}\t{city}"]
        triples += [f"{country(number)}\tP36\t{capital(number)}", f"{country(number)}\tP30\t{EUROPE}"]
        for other in ((number + 1) % len(COUNTRIES), (number - 1) % len(COUNTRIES)):
            triples.append(f"{country(number)}\tP47\t{country(other)}")
    for identifier, names, facts in EXTRA:
        entities.append(f"{identifier}\t{names}")
        triples += [f"{identifier}\t{relation}\t{tail}" for relation, tail in facts]
    tables = {
        "entities": entities,
        "triples": triples,
        "relations": [f"{relation}\t{name}" for relation, name in RELATIONS],
    }
    for name, lines in tables.items():
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = {name: str(folder / f"{name}.tsv") for name in tables}
    build_kb(KnowledgeBaseJob(**paths, out=str(folder / "kb")))
    return folder / "kb"


def entity(kb: KnowledgeBase, identifier: str) -> int:
    """The number of the entity with this id."""
    return next(number for number in range(len(kb)) if kb.entity_id(number) == identifier)


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer whose pieces are single characters and some words, in `folder / "tokenizer"`."""
    words = ["the", "and", "of", "is", "borders", "capital", *(name.lower() for row in COUNTRIES for name in row)]
    pieces = [*PIECES, *(f"##{piece}" for piece in PIECES[5:]), *words]
    tokenizer = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / "tokenizer")
    return folder / "tokenizer"


def make_pages(path: Path, count: int, seed: int = 0) -> Path:
    """`count` JSON lines: pages of one to three paragraphs on countries; every tenth repeats the text of another."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        if number % 10 == 9:
            rows.append(rows[-1] | {"title": f"Copy {number}", "page_id": 1000 + number})
            continue
        paragraphs = []
        for _ in range(draw.randint(1, 3)):
            first = draw.randrange(len(COUNTRIES))
            sentences = []
            for step in range(draw.randint(1, 3)):
                name, city, people = COUNTRIES[(first + step) % len(COUNTRIES)]
                neighbour = COUNTRIES[(first + step + 1) % len(COUNTRIES)][0]
                sentences += [
                    f"{name} is a country in Europe, and {city} is the capital of {name}.",
                    f"{name} borders {neighbour}, and in {draw.randint(1800, 2000)} the {people} army went there.",
                ]
            paragraphs.append(" ".join(sentences))
        title = f"{COUNTRIES[first][0]} in year {number}"
        rows.append({"title": title, "page_id": 1000 + number, "text": "\n".join(paragraphs)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def corpus_job(folder: Path, out: str = "corpus", pages: int = 40, workers: int = 0, ner: bool = False) -> CorpusJob:
    """A job over `pages` pages, its inputs made in `folder` where they are not there yet; workers 0: without Ray."""
    if not (folder / "kb").is_dir():
        make_kb(folder)
        make_tokenizer(folder)
    source = folder / f"pages-{pages}.jsonl"
    return CorpusJob(
        inputs=[str(source if source.is_file() else make_pages(source, pages))],
        kb=str(folder / "kb"),
        tokenizer=str(folder / "tokenizer"),
        out=str(folder / out),
        documents_per_shard=7,
        pages_per_task=5,
        filters=FilterConfig(min_tokens=20, max_tokens=300),
        ner=NerConfig(enabled=ner),
        ray=RayConfig(disabled=not workers, workers=workers),
    )


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
