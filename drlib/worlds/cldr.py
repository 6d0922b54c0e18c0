"""World `cldr`: facts of the Unicode CLDR on places, currencies, languages, scripts and time.

The data comes with babel, so it is available offline: about 1,500 pages, relations with several
values, years and numbers as values, and names in other languages. Definitions: a language is
*widely spoken* if at least 5% of the population use it; a *regional* language is official in part
of a territory; the *likely* territory is CLDR's default for a language. `tour` is a smaller world.

Titles are English names, qualified if two kinds share one: "Nauru (language)". Two-letter codes are
values, not aliases, because "is", "no" and "to" are words. Not included: codes that are no place
(EU, UN, private use), currencies without legal tender or date, languages that are nowhere official
or widely spoken, populations (babel has only shares), and regions (babel has no containment).
"""

from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import babel
from babel import Locale, UnknownLocaleError
from babel.core import get_global

from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store
from drlib.worlds.tour_world import NOT_COUNTRIES, TODAY

SPOKEN_PERCENT = 5.0
OTHER_NAMES = ("ar", "de", "es", "fr", "ru", "zh")  # locales whose names are aliases
STATUS = {
    "official": "official language",
    "de_facto_official": "official language",
    "official_regional": "regional language",
}
TABLES_OF_NAMES = {  # kind -> attribute of a locale with the names
    "territory": "territories",
    "currency": "currencies",
    "language": "languages",
    "script": "scripts",
}
ENGLISH = Locale("en")
PLACES = sorted(c for c in ENGLISH.territories if len(c) == 2 and c not in NOT_COUNTRIES)
# CLDR's clock names use outdated names of some zones
CLOCKS = {
    get_global("zone_aliases").get(zone, zone): clock
    for zone, clock in get_global("meta_zones").items()
}
NO_END_YEAR = 9999  # end year of a currency in use
Thing = tuple[str, str | int]  # kind and CLDR code
CldrFact = tuple[Thing, str, Thing | str]  # a fact


def load(rest: str = "", index_path: Path | None = None) -> Library:
    """Load the world; its index is kept at `index_path` or in memory. `rest` is empty."""
    store = Store(index_path, "cldr")
    made_by = sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    store.update({"cldr": f"babel {babel.__version__}, {made_by}"}, lambda _: read_locale_data())
    return Library("cldr", store, "cldr")


def read_locale_data() -> Part:
    """Read all documents, nodes and facts from babel."""
    facts: list[CldrFact] = [*_currency_facts(), *_language_facts(), *_time_facts()]
    things = {end for start, _, value in facts for end in (start, value) if isinstance(end, tuple)}
    facts += [(thing, "code", str(thing[1])) for thing in things if thing[0] in TABLES_OF_NAMES]
    titles: dict[Thing, str] = {}
    nodes: dict[str, Node] = {}
    # if two kinds share a name, the territory keeps it unqualified
    for thing in sorted(things, key=lambda thing: (thing[0] != "territory", str(thing))):
        kind, code = thing
        title = _name(ENGLISH, kind, code)
        if title in nodes:
            title = f"{title} ({kind})"
        titles[thing] = title
        nodes[title] = Node(title, kind, _aliases(kind, code, title))
    named_facts = [
        (titles[start], relation, titles[value] if isinstance(value, tuple) else value)
        for start, relation, value in facts
    ]
    documents = [Document(node.title, _text(node)) for node in nodes.values()]
    return Part(documents, nodes.values(), named_facts)


def _currency_facts() -> Iterator[CldrFact]:
    """Yield current and former currencies of territories, then facts on each currency."""
    spans = defaultdict(list)  # currency -> (first year, last year) in each territory
    for code in PLACES:
        place = ("territory", code)
        rows = [
            (money, begin, end)
            for money, begin, end, is_tender in get_global("territory_currencies").get(code, ())
            if is_tender and begin and begin <= TODAY
        ]
        current = {money for money, _, end in rows if _is_current(end)}
        for money, begin, end in rows:
            last = NO_END_YEAR if _is_current(end) else end[0]
            spans[money].append((begin[0], last))
            if last == NO_END_YEAR:
                yield place, "currency", ("currency", money)
                yield place, "currency start year", str(begin[0])
            elif money not in current:
                yield place, "former currency", ("currency", money)
                yield place, "currency end year", str(end[0])
    for money, years in spans.items():
        yield from _describe_currency(
            money, min(begin for begin, _ in years), max(e for _, e in years)
        )


def _is_current(end: tuple[int, int, int] | None) -> bool:
    """Return True if a currency with this end date (None: unknown) is in use today."""
    return not end or end >= TODAY


def _describe_currency(money: str, begin: int, end: int) -> Iterator[CldrFact]:
    digits = get_global("currency_fractions")
    decimals = digits.get(money, digits["DEFAULT"])[0]
    symbol = ENGLISH.currency_symbols.get(money, money)
    yield ("currency", money), "introduction year", str(begin)
    yield ("currency", money), "number of decimals", str(decimals)
    if end < NO_END_YEAR:
        yield ("currency", money), "withdrawal year", str(end)
    if symbol != money:
        yield ("currency", money), "symbol", symbol


def _language_facts() -> Iterator[CldrFact]:
    """Yield the languages of territories, then territory and scripts of each language."""
    scripts = defaultdict(set)
    spoken = set()
    for code in PLACES:
        for tag, row in get_global("territory_languages").get(code, {}).items():
            language, _, script = tag.partition("_")
            scripts[language].add(script)
            relations = [STATUS.get(row["official_status"])]
            if row["population_percent"] >= SPOKEN_PERCENT:
                relations.append("widely spoken language")
            for relation in relations:
                if relation and language in ENGLISH.languages:
                    spoken.add(language)
                    yield ("territory", code), relation, ("language", language)
    for language in sorted(spoken):
        likely = get_global("likely_subtags").get(language, "__")
        _, script, home = likely.split("_")[:3]
        if home in PLACES:
            yield ("language", language), "likely territory", ("territory", home)
        for code in sorted({script, *scripts[language]} & ENGLISH.scripts.keys()):
            yield ("language", language), "script", ("script", code)


def _time_facts() -> Iterator[CldrFact]:
    """Yield time zones and weekdays of territories, and clock times of time zones."""
    for code in PLACES:
        for zone in get_global("territory_zones").get(code, ()):
            yield ("territory", code), "time zone", ("time zone", zone)
            clock = CLOCKS.get(zone)
            if _clock_name(ENGLISH, clock):
                yield ("time zone", zone), "clock time", ("clock time", clock)
        try:
            week = Locale.parse(f"und_{code}")
        except UnknownLocaleError:  # uninhabited
            continue
        yield ("territory", code), "first weekday", ("weekday", week.first_week_day)
        yield ("territory", code), "first weekend day", ("weekday", week.weekend_start)


def _clock_name(locale: Locale, zone: str | None) -> str | None:
    names = locale.meta_zones.get(zone, {}).get("long", {})
    return names.get("generic") or names.get("standard")


def _name(locale: Locale, kind: str, code: str | int) -> str | None:
    """Return the name of a thing in `locale`; in English it is the title."""
    if kind in TABLES_OF_NAMES:
        name = getattr(locale, TABLES_OF_NAMES[kind]).get(code)
        return f"{name} script" if kind == "script" and locale is ENGLISH else name
    if kind == "weekday":
        return locale.days["format"]["wide"][code]
    if kind == "clock time":
        return _clock_name(locale, str(code))
    return str(code) if locale is ENGLISH else locale.time_zones.get(code, {}).get("city")


def _aliases(kind: str, code: str | int, title: str) -> tuple[str, ...]:
    names = [_name(Locale(other), kind, code) for other in OTHER_NAMES]
    if kind == "currency":
        names.append(str(code))
    if kind == "time zone":
        names.append(str(code).split("/")[-1].replace("_", " "))
    return tuple(dict.fromkeys(name for name in names if name and name != title))


def _text(node: Node) -> str:
    names = f" Other names: {', '.join(node.aliases)}." if node.aliases else ""
    return f"{node.title} is a {node.kind}, according to Unicode CLDR.{names}"
