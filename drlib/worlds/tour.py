"""The real world of the tour: single-valued facts of the Unicode CLDR, read through babel.

Territories, languages, scripts, currencies (with the dates at which they were legal tender) and
the cities that name time zones: about a thousand pages that everyone who installed the package
has offline, and that are true. Only facts with exactly one value are kept: the one current legal
tender, the most spoken official language, the territory of a currency or language that has one.

Left out: regions (babel carries no containment data), populations, and cities of territories with
more than six time zones, which would make "United States" a good guess for any city.
"""

from functools import lru_cache

from babel import Locale
from babel.core import get_global

from drlib.worlds.world import Entity, entities_of, only

TODAY = (2026, 1, 1)  # fixed: the world must not change with the calendar
MAX_ZONES = 6
NOT_COUNTRIES = {"EU", "EZ", "UN", "ZZ", "QO", "XA", "XB"}


@lru_cache(maxsize=1)
def entities() -> tuple[Entity, ...]:
    """The territories, languages, scripts, currencies and cities, with their facts."""
    locale = Locale("en")
    names = {c: n for c, n in locale.territories.items() if len(c) == 2 and c not in NOT_COUNTRIES}
    tender, former, since = _currencies(locale, names)
    language = _languages(locale, names)
    script, rows = _scripts(locale, set(language.values())), []
    for code, name in sorted(names.items()):
        notes = (f"Its currency dates from {since[code]}.",) if code in since else ()
        facts = {"currency": tender.get(code), "former currency": former.get(code)}
        rows.append((name, "territory", facts | {"language": language.get(code)}, notes))
    iso = {name: code for code, name in locale.currencies.items()}
    for name in sorted({*tender.values(), *former.values()}):
        home = only(tender if name in tender.values() else former, name)
        rows.append((name, "currency", {"code": iso[name], "territory": names.get(home)}, ()))
    for name in sorted(set(language.values())):
        home = names.get(only(language, name))
        rows.append((name, "language", {"script": script.get(name), "territory": home}, ()))
    for written in sorted(set(script.values())):
        rows.append((written, "script", {"language": only(script, written)}, ()))
    return tuple(entities_of([*rows, *_cities(locale, names)]))


def _currencies(locale: Locale, names: dict[str, str]):
    """Current tender and former tender by territory code, and the year the current one came."""
    tender, former, since = {}, {}, {}
    for code in names.keys() & get_global("territory_currencies").keys():
        # "Brazilian Cruzeiro (1967–1986)" carries its dates in its name: a question could leak
        legal = [
            (locale.currencies[money], begin, end)
            for money, begin, end, valid in get_global("territory_currencies")[code]
            if valid and begin and "(" not in locale.currencies.get(money, "(")
        ]
        now = [row for row in legal if row[2] is None or row[2] >= TODAY]
        if len(now) == 1:
            tender[code], since[code] = now[0][0], now[0][1][0]
        past = [row for row in legal if row not in now and row[0] != tender.get(code)]
        latest = {name for name, _, end in past if end == max(row[2] for row in past)}
        if len(latest) == 1:
            former[code] = latest.pop()
    return tender, former, since


def _languages(locale: Locale, names: dict[str, str]) -> dict[str, str]:
    """Most spoken official language by territory code."""
    language, ranks = {}, ("official", "de_facto_official")
    for code, spoken in get_global("territory_languages").items():
        official = {
            tag: row["population_percent"]
            for tag, row in spoken.items()
            if row["official_status"] in ranks and tag in locale.languages
        }
        if code in names and official:
            language[code] = locale.languages[max(sorted(official), key=official.get)]
    return language


def _scripts(locale: Locale, languages: set[str]) -> dict[str, str]:
    """The likely script of each language, as `Cyrillic script`."""
    tags, scripts = {name: tag for tag, name in locale.languages.items() if name in languages}, {}
    for name, tag in tags.items():
        _, code, *_ = *tag.split("_"), *get_global("likely_subtags").get(tag, "").split("_")[1:], ""
        if code in locale.scripts:
            scripts[name] = f"{locale.scripts[code]} script"
    return scripts


def _cities(locale: Locale, names: dict[str, str]):
    """A row for every zone of a territory with few zones."""
    meta = get_global("meta_zones")
    for code, zones in sorted(get_global("territory_zones").items()):
        if code not in names or len(zones) > MAX_ZONES:
            continue
        for zone in sorted(zones):
            city = locale.time_zones.get(zone, {}).get("city") or zone.split("/")[-1]
            long = locale.meta_zones.get(meta.get(zone), {}).get("long", {})
            clocks = long.get("generic") or long.get("standard")
            notes = (f"Its clocks follow {clocks}.",) if clocks else ()
            yield str(city).replace("_", " "), "city", {"territory": names[code]}, notes
