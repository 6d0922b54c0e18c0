"""The world `cldr`: what the Unicode CLDR says about places, money, languages, scripts and time.

Everyone who has babel has these facts offline, and they are true: about 1,500 pages, relations with
several values, years and numbers as values, and names in other languages. A fact is one "according
to Unicode CLDR": a language is *widely spoken* where at least 5% of the population use it, a
*regional* one is official in a part of a territory, and a *likely* territory is the one that CLDR
assumes for a language when nothing else is known. The tour has a smaller world (`tour`).

Titles are English names, qualified where two kinds share one: "Nauru (language)". Two-letter codes
are values and not aliases: "is", "no" and "to" are words. Left out: codes that are no place (EU,
UN, private use), money that is no legal tender or has no date, languages that nowhere are official
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
from drlib.worlds.tour import NOT_COUNTRIES, TODAY

SPOKEN_PERCENT = 5.0
OTHER_NAMES = ("ar", "de", "es", "fr", "ru", "zh")  # locales whose names are aliases
STATUS = {
    "official": "official language",
    "de_facto_official": "official language",
    "official_regional": "regional language",
}
NAMED = {
    "territory": "territories",
    "currency": "currencies",
    "language": "languages",
    "script": "scripts",
}
ENGLISH = Locale("en")
PLACES = sorted(c for c in ENGLISH.territories if len(c) == 2 and c not in NOT_COUNTRIES)
# CLDR names the clocks of zones by names that some zones no longer have
CLOCKS = {get_global("zone_aliases").get(z, z): c for z, c in get_global("meta_zones").items()}
Thing = tuple[str, str | int]  # a kind, and CLDR's code
Told = tuple[Thing, str, Thing | str]  # a fact


def load(rest: str = "", index_path: Path | None = None) -> Library:
    """The world, its index kept at `index_path` or in memory; `rest` is empty."""
    store, made_by = Store(index_path, "cldr"), sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    store.update({"cldr": f"babel {babel.__version__}, {made_by}"}, lambda _: read())
    return Library("cldr", store, "cldr")


def read() -> Part:
    """All of it."""
    facts = [*_money(), *_languages(), *_times()]
    things = {thing for s, _, v in facts for thing in (s, v) if isinstance(thing, tuple)}
    facts += [(thing, "code", thing[1]) for thing in things if thing[0] in NAMED]
    titles, nodes = {}, {}
    for thing in sorted(things, key=lambda thing: (thing[0] != "territory", str(thing))):
        kind, title = thing[0], _name(ENGLISH, *thing)
        title = f"{title} ({kind})" if title in nodes else title
        titles[thing], nodes[title] = title, Node(title, kind, _aliases(*thing, title))
    told = [(titles[s], relation, titles.get(v, v)) for s, relation, v in facts]
    documents = [Document(node.title, _text(node)) for node in nodes.values()]
    return Part(documents, nodes.values(), told)


def _money() -> Iterator[Told]:
    spans, digits = defaultdict(list), get_global("currency_fractions")
    for code in PLACES:
        place, rows = ("territory", code), get_global("territory_currencies").get(code, ())
        rows = [row for row in rows if row[3] and row[1] and row[1] <= TODAY]  # legal tender
        now = {money for money, _, end, _ in rows if not end or end >= TODAY}
        for money, begin, end, _ in rows:
            lasts = not end or end >= TODAY
            spans[money].append((begin[0], 9999 if lasts else end[0]))
            if lasts:
                yield place, "currency", ("currency", money)
                yield place, "currency start year", str(begin[0])
            elif money not in now:
                yield place, "former currency", ("currency", money)
                yield place, "currency end year", str(end[0])
    for money, years in spans.items():
        (begin, _), (_, end) = min(years), max(years, key=lambda span: span[1])
        yield ("currency", money), "introduction year", str(begin)
        decimals, symbol = digits.get(money, digits["DEFAULT"])[0], ENGLISH.currency_symbols
        yield ("currency", money), "number of decimals", str(decimals)
        if end < 9999:
            yield ("currency", money), "withdrawal year", str(end)
        if symbol.get(money, money) != money:
            yield ("currency", money), "symbol", symbol[money]


def _languages() -> Iterator[Told]:
    scripts, spoken = defaultdict(set), set()
    for code in PLACES:
        for tag, row in get_global("territory_languages").get(code, {}).items():
            language, _, script = tag.partition("_")
            scripts[language].add(script)
            relations = [STATUS.get(row["official_status"])]
            relations += ["widely spoken language"] * (row["population_percent"] >= SPOKEN_PERCENT)
            for relation in relations:
                if relation and language in ENGLISH.languages:
                    spoken.add(language)
                    yield ("territory", code), relation, ("language", language)
    for language in sorted(spoken):
        _, script, home = get_global("likely_subtags").get(language, "__").split("_")[:3]
        if home in PLACES:
            yield ("language", language), "likely territory", ("territory", home)
        for code in sorted({script, *scripts[language]} & ENGLISH.scripts.keys()):
            yield ("language", language), "script", ("script", code)


def _times() -> Iterator[Told]:
    for code in PLACES:
        for zone in get_global("territory_zones").get(code, ()):
            yield ("territory", code), "time zone", ("time zone", zone)
            if _clock(ENGLISH, CLOCKS.get(zone)):
                yield ("time zone", zone), "clock time", ("clock time", CLOCKS[zone])
        try:
            week = Locale.parse(f"und_{code}")
        except UnknownLocaleError:  # nobody lives there
            continue
        yield ("territory", code), "first weekday", ("weekday", week.first_week_day)
        yield ("territory", code), "first weekend day", ("weekday", week.weekend_start)


def _clock(locale: Locale, zone: str | None) -> str | None:
    names = locale.meta_zones.get(zone, {}).get("long", {})
    return names.get("generic") or names.get("standard")


def _name(locale: Locale, kind: str, code: str | int) -> str | None:
    """What `locale` calls a thing; in English, its title."""
    if kind in NAMED:
        name = getattr(locale, NAMED[kind]).get(code)
        return f"{name} script" if kind == "script" and locale is ENGLISH else name
    if kind == "weekday":
        return locale.days["format"]["wide"][code]
    if kind == "clock time":
        return _clock(locale, code)
    return code if locale is ENGLISH else locale.time_zones.get(code, {}).get("city")


def _aliases(kind: str, code: str | int, title: str) -> tuple[str, ...]:
    names = [_name(Locale(other), kind, code) for other in OTHER_NAMES]
    names += [code] if kind == "currency" else []
    names += [code.split("/")[-1].replace("_", " ")] if kind == "time zone" else []
    return tuple(dict.fromkeys(name for name in names if name and name != title))


def _text(node: Node) -> str:
    names = f" Other names: {', '.join(node.aliases)}." if node.aliases else ""
    return f"{node.title} is a {node.kind}, according to Unicode CLDR.{names}"
