"""Passages in another language are dropped; English ones full of foreign names are not."""

from __future__ import annotations

import dataclasses
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from data_tools.build import build_corpus
from data_tools.languages import judged_words, language_identity, language_test
from data_tools.wikipedia.reader import read_unit
from data_tools.wikipedia.survey import plan_ranges
from erica_dist.errors import UserError
from tests.corpora import corpus_job
from tests.shared_files import shared

FOREIGN = {
    "German": "Die Stadt liegt am Ufer des Flusses und wurde im zwölften Jahrhundert gegründet. Nach dem Ende des "
    "Krieges wurde sie von den Siegern besetzt und erst einige Jahre später wieder aufgebaut.",
    "French": "La ville est située au bord du fleuve et fut fondée au douzième siècle par des marchands venus du nord. "
    "Après la guerre, elle a été reconstruite selon les plans d'un architecte célèbre.",
    "Spanish": "La ciudad está situada a orillas del río y fue fundada en el siglo doce por comerciantes que venían "
    "del norte. El museo posee una colección de cuadros que muchos visitantes quieren ver.",
    "Dutch": "De stad ligt aan de oever van de rivier en werd in de twaalfde eeuw gesticht door kooplieden. Het museum "
    "heeft een verzameling schilderijen die veel bezoekers elke zomer komen bekijken.",
    "Frisian": "De stêd leit oan de râne fan de rivier en waard yn de tolfde iuw stifte troch keaplju dy't út it "
    "noarden kamen. Nei de oarloch is se wer opboud neffens de plannen fan in arsjitekt.",
    "Danish": "Byen ligger ved flodens bred og blev grundlagt i det tolvte århundrede af købmænd, der kom fra nord. "
    "Museet har en samling malerier, som mange gæster kommer for at se hver sommer.",
    "Finnish": "Kaupunki sijaitsee joen rannalla ja sen perustivat pohjoisesta tulleet kauppiaat kahdennellatoista "
    "vuosisadalla. Nykyään siellä asuu yli kaksisataatuhatta ihmistä.",
    "Polish": "Miasto leży nad brzegiem rzeki i zostało założone w dwunastym wieku przez kupców, którzy przybyli z "
    "północy. Muzeum posiada zbiór obrazów, które wielu gości ogląda każdego lata.",
    "Turkish": "Şehir nehrin kıyısında yer alır ve on ikinci yüzyılda kuzeyden gelen tüccarlar tarafından "
    "kurulmuştur. Savaştan sonra ünlü bir mimarın planlarına göre yeniden inşa edilmiştir.",
    "Latin": "Urbs ad ripam fluminis sita est et saeculo duodecimo a mercatoribus condita, qui e septentrionibus "
    "venerant. In museo multae picturae servantur, quas hospites omni aestate videre cupiunt.",
    "Indonesian": "Kota ini terletak di tepi sungai dan didirikan pada abad kedua belas oleh para pedagang yang datang "
    "dari utara. Sekarang lebih dari dua ratus ribu orang tinggal di sana.",
    "Russian": "Город расположен на берегу реки и был основан в двенадцатом веке купцами, пришедшими с севера. В музее "
    "хранится собрание картин, которые многие гости приходят посмотреть каждое лето.",
    "Greek": "Η πόλη βρίσκεται στην όχθη του ποταμού και ιδρύθηκε τον δωδέκατο αιώνα από εμπόρους που ήρθαν από τον "
    "βορρά. Το μουσείο έχει μια συλλογή έργων που βλέπουν πολλοί επισκέπτες.",
    "Arabic": "تقع المدينة على ضفة النهر وقد أسسها في القرن الثاني عشر تجار جاؤوا من الشمال. ويملك المتحف مجموعة من "
    "اللوحات التي يأتي كثير من الزوار لمشاهدتها كل صيف.",
    "Chinese": "这座城市位于河岸边，十二世纪由来自北方的商人建立。战后，它按照一位著名建筑师的设计重建，如今有"
    "二十多万人居住在那里。博物馆收藏了许多画作，每年夏天都有很多游客前来参观。",
}
ENGLISH = {
    "French names": "Among the members of the Académie des Beaux-Arts were Jean-Baptiste Greuze, Élisabeth Vigée Le "
    "Brun, Jacques-Louis David, Anne-Louis Girodet de Roussy-Trioson, Pierre-Paul Prud'hon, Antoine-Jean Gros and "
    "Théodore Géricault; most of them had studied at the École nationale supérieure des Beaux-Arts.",
    "Czech names": "The novels of Jaroslav Hašek, Karel Čapek, Vladislav Vančura, Bohumil Hrabal, Josef Škvorecký and "
    "Ludvík Vaculík were read in Plzeň, Hradec Králové, České Budějovice and Ústí nad Labem when they had appeared.",
    "Welsh names": "From Llanfairpwllgwyngyll the road leads to Caernarfon, Pwllheli, Blaenau Ffestiniog, Dolgellau, "
    "Machynlleth and Aberystwyth, where the Llyfrgell Genedlaethol Cymru holds the papers of Gruffydd ap Cynan.",
    "French quotation": 'The song "Non, je ne regrette rien" was sung by Édith Piaf, and she is said to have told its '
    "author that it was the best of all that she had ever been given, and that she would keep it for the Olympia.",
    "foreign titles": 'Among the songs are "La donna che vale", "Faccio finta di dormire", "Non son degno di te", "Se '
    'telefonando" and "Quattro vestiti", all of which were sung by Mina.',
    "foreign words": 'The word is "noche" in Spanish, "notte" in Italian, "nuit" in French, "nacht" in Dutch, "natt" '
    'in Swedish, "noc" in Czech and "noite" in Portuguese.',
    "list of names": "Afghanistan, Albania, Algeria, Andorra, Angola, Argentina, Armenia, Azerbaijan, Bahrain, "
    "Barbados, Belarus, Belize, Bolivia, Brunei Darussalam, Burundi, Cambodia, Canada, Chile, Cyprus, Côte d'Ivoire",
    "capitals": "THE CITY LIES ON THE BANK OF THE RIVER AND WAS FOUNDED BY MERCHANTS WHO CAME FROM THE NORTH.",
    "no word": "1984, 1985 (12.5%); 1986 (13.7%) -- 1987: 14 / 15",
}


@pytest.fixture(scope="module")
def no_english() -> Callable[[str], bool]:
    return language_test("en")


def test_foreign_text_is_found_and_english_is_kept(no_english: Callable[[str], bool]) -> None:
    assert [name for name, text in FOREIGN.items() if not no_english(text)] == []
    assert [name for name, text in ENGLISH.items() if no_english(text)] == []


def test_another_language_of_the_corpus() -> None:
    no_german, anything = language_test("de"), language_test("")
    assert [name for name, text in FOREIGN.items() if not no_german(text)] == ["German"]
    assert no_german(ENGLISH["French names"])
    assert not any(map(anything, FOREIGN.values()))
    assert language_identity("") == ""
    assert language_identity("en") != language_identity("de")
    with pytest.raises(UserError, match=r"filters\.language=english is not known; known are .*, en, "):
        language_test("english")


def test_words_without_a_capital_are_judged_all_over_the_passage() -> None:
    assert (
        judged_words("In Köln, d'Artagnan's 12 \"friends\" don't say: l’été (so)!")
        == "d'Artagnan's friends don't say l’été so"
    )
    words = [f"w{letter}{other}" for letter in "abcdefghij" for other in "abcdefghij"]
    chosen = judged_words(" ".join(words)).split()
    assert chosen == words[::3]
    assert judged_words("") == ""


def test_they_are_dropped_last_and_counted(tmp_path: Path) -> None:
    job = corpus_job(tmp_path)
    pages = [json.loads(line) for line in Path(job.inputs[0]).read_text().splitlines()[:9]]
    names = "Frankreich und France, Italy und Rome, Spain und Madrid, Germany und Berlin, Portugal und Lisbon. "
    pages.append({"title": "Fremd", "page_id": 99, "text": names + FOREIGN["German"]})
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(page) + "\n" for page in pages))
    built = {}
    for language in ("en", ""):
        filters = dataclasses.replace(job.filters, language=language)
        out = tmp_path / f"corpus-{language}"
        built[language] = build_corpus(dataclasses.replace(job, inputs=[str(path)], out=str(out), filters=filters))
    assert built["en"]["counts"]["passages"]["dropped: in another language"] == 1
    assert "dropped: in another language" not in built[""]["counts"]["passages"]
    assert built[""]["documents"] - built["en"]["documents"] == 1


# ------------------------------------------------------------------------------------------------ shared text


def test_of_real_english_text_only_what_is_foreign_goes(no_english: Callable[[str], bool]) -> None:
    text = lzma.decompress(shared("data", "wikipedia-text", "wiki_AA_00-24.txt.xz").read_bytes()).decode()
    passages = [line for line in text.split("\n") if line.count(" ") >= 100][:8000]
    dropped = [re.sub(r"\s.*", "", passage) for passage in passages if no_english(passage)]
    assert len(passages) == 8000
    assert dropped == ["يجب", "Ego"]  # quotations of Avicenna and of Ulfila's creed


def test_a_real_dump_of_another_language_is_found(no_english: Callable[[str], bool]) -> None:
    """Latgalian; of its paragraphs, four are in English or program text."""
    units = plan_ranges([str(shared("data", "dumps", "smallwiki-ltgwiki-pages-articles.xml.bz2"))], 5000)
    texts = [part.text for unit in units for page in read_unit(unit)[0] for part in page.paragraphs]
    long = [text for text in texts if len(text.split()) >= 40]
    assert len(long) > 500
    assert sum(not no_english(text) for text in long) == 4
