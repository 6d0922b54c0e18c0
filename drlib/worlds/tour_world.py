"""The tour's world: single-valued facts of the Unicode CLDR, read through babel.

Territories, languages, scripts, currencies (with their dates as legal tender) and the cities that
name time zones: about a thousand pages, available offline. Only facts with exactly one value are
kept: the one current legal tender, the most spoken official language, the only territory of a
currency or language.

Not included: regions (babel has no containment), populations, and cities of territories with more
than six time zones, which would make "United States" a good guess for any city.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from babel import Locale
from babel.core import get_global

from drlib.worlds.small import Entity, build_entities, unique_key

TODAY = (2026, 1, 1)  # fixed, so that the world does not change over time
MAX_ZONES = 6
NOT_COUNTRIES = {"EU", "EZ", "UN", "ZZ", "QO", "XA", "XB"}
OFFICIAL = ("official", "de_facto_official")
EntityRow = tuple[str, str, Mapping[str, str | None], tuple[str, ...]]  # title, kind, facts, notes


@lru_cache(maxsize=1)
def entities() -> tuple[Entity, ...]:
    """Return the territories, languages, scripts, currencies and cities with their facts."""
    locale = Locale("en")
    names = {
        code: name
        for code, name in locale.territories.items()
        if len(code) == 2 and code not in NOT_COUNTRIES
    }
    money = _money(locale, names)
    language = _languages(locale, names)
    script = _scripts(locale, set(language.values()))
    rows = [
        *_territories(names, money, language),
        *_currencies(locale, names, money),
        *_language_rows(names, language, script),
        *_script_rows(script),
        *_cities(locale, names),
    ]
    return tuple(build_entities(rows))


# ------------------------------------------------------------------------------------ CLDR data


class _Money(NamedTuple):
    """Currencies by territory code.

    Args:
        tender: the only current legal tender.
        former: the only tender before it.
        since: year in which the current one was introduced.
    """

    tender: dict[str, str]
    former: dict[str, str]
    since: dict[str, int]


def _money(locale: Locale, names: Mapping[str, str]) -> _Money:
    found = _Money({}, {}, {})
    for code in names.keys() & get_global("territory_currencies").keys():
        # skips names with dates, "Brazilian Cruzeiro (1967–1986)", which could leak an answer
        legal = [
            (locale.currencies[money], begin, end)
            for money, begin, end, is_tender in get_global("territory_currencies")[code]
            if is_tender and begin and "(" not in locale.currencies.get(money, "(")
        ]
        now = [row for row in legal if row[2] is None or row[2] >= TODAY]
        if len(now) == 1:
            name, begin, _ = now[0]
            found.tender[code] = name
            found.since[code] = begin[0]
        past = [row for row in legal if row not in now and row[0] != found.tender.get(code)]
        last_day = max((end for _, _, end in past), default=None)
        latest = {name for name, _, end in past if end == last_day}
        if len(latest) == 1:
            found.former[code] = latest.pop()
    return found


def _languages(locale: Locale, names: Mapping[str, str]) -> dict[str, str]:
    """Return the most spoken official language by territory code."""
    language = {}
    for code, spoken in get_global("territory_languages").items():
        official = {
            tag: row["population_percent"]
            for tag, row in spoken.items()
            if row["official_status"] in OFFICIAL and tag in locale.languages
        }
        if code in names and official:
            most_spoken = max(sorted(official), key=official.get)
            language[code] = locale.languages[most_spoken]
    return language


def _scripts(locale: Locale, languages: set[str]) -> dict[str, str]:
    """Return the likely script of each language, such as `Cyrillic script`."""
    tags = {name: tag for tag, name in locale.languages.items() if name in languages}
    scripts = {}
    for name, tag in tags.items():
        likely = get_global("likely_subtags").get(tag, "")  # "sr" -> "sr_Cyrl_RS"
        subtags = [*tag.split("_")[1:], *likely.split("_")[1:]]
        if subtags and subtags[0] in locale.scripts:
            scripts[name] = f"{locale.scripts[subtags[0]]} script"
    return scripts


# ------------------------------------------------------------------------------------------- rows


def _territories(
    names: Mapping[str, str], money: _Money, language: Mapping[str, str]
) -> Iterator[EntityRow]:
    for code, name in sorted(names.items()):
        facts = {
            "currency": money.tender.get(code),
            "former currency": money.former.get(code),
            "language": language.get(code),
        }
        since = money.since.get(code)
        notes = (f"Its currency dates from {since}.",) if since is not None else ()
        yield name, "territory", facts, notes


def _currencies(locale: Locale, names: Mapping[str, str], money: _Money) -> Iterator[EntityRow]:
    iso = {name: code for code, name in locale.currencies.items()}
    for name in sorted({*money.tender.values(), *money.former.values()}):
        is_current = name in money.tender.values()
        home = unique_key(money.tender if is_current else money.former, name)
        yield name, "currency", {"code": iso[name], "territory": names.get(home)}, ()


def _language_rows(
    names: Mapping[str, str], language: Mapping[str, str], script: Mapping[str, str]
) -> Iterator[EntityRow]:
    for name in sorted(set(language.values())):
        home = names.get(unique_key(language, name))
        yield name, "language", {"script": script.get(name), "territory": home}, ()


def _script_rows(script: Mapping[str, str]) -> Iterator[EntityRow]:
    for written in sorted(set(script.values())):
        yield written, "script", {"language": unique_key(script, written)}, ()


def _cities(locale: Locale, names: Mapping[str, str]) -> Iterator[EntityRow]:
    """Yield a row for each time zone of a territory with few zones."""
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
