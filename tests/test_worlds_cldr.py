"""World `cldr`: facts match babel, all can be read on pages, independent of the hash seed.

Run: python -m pytest tests/test_worlds_cldr.py
"""

import datetime
import os
import subprocess
import sys

import babel.languages
import babel.numbers
import pytest
from babel import Locale
from babel.core import get_global

import drlib.worlds.cldr as cldr
from drlib.tools import FaultInjector, Toolbox
from drlib.worlds import load_world, read_facts
from drlib.worlds.library import next_part

ENGLISH, TODAY = Locale("en"), datetime.date(*cldr.TODAY)
KINDS = {"territory", "currency", "language", "script", "time zone", "clock time", "weekday"}


@pytest.fixture(scope="module")
def world():
    return load_world("cldr")


@pytest.fixture(scope="module")
def graph(world):
    return world.graph


@pytest.fixture(scope="module")
def places(graph):
    """Return code -> title of each territory."""
    return {
        code: title for title in graph.kinds["territory"] for code in graph.values(title, "code")
    }


def titles(graph, kind):
    return {code: t for t in graph.kinds[kind] for code in graph.values(t, "code")}


def test_size_and_kinds(world, graph):
    kinds = {kind: len(found) for kind, found in graph.kinds.items() if kind != "value"}
    assert set(kinds) == KINDS and len(world) == sum(kinds.values())
    assert 1300 < len(world) < 1700 and 5000 < len(graph.facts) < 6000
    assert 250 < kinds["territory"] < 265 and kinds["currency"] > 250 and kinds["time zone"] > 400
    assert not {"European Union", "United Nations", "Eurozone"} & graph.nodes.keys()


def test_currencies_match_babel(graph, places):
    names = {title: code for code, title in titles(graph, "currency").items()}
    for code, place in places.items():
        now = babel.numbers.get_territory_currencies(code, TODAY, TODAY)
        ever = babel.numbers.get_territory_currencies(code, datetime.date(1, 1, 1), TODAY)
        assert {names[t] for t in graph.values(place, "currency")} == set(now) - {"XXX"}, place
        past = {names[t] for t in graph.values(place, "former currency")}
        assert past == set(ever) - set(now) - {"XXX"}, place
    assert all(ENGLISH.currencies[code] == title for title, code in names.items())


def test_years_match_the_currency_dates(graph, places):
    rows = [
        (code, *row)
        for code in places
        for row in get_global("territory_currencies").get(code, ())
        if row[3] and row[1]
    ]
    for code, title in titles(graph, "currency").items():
        begins = [begin[0] for _, money, begin, *_ in rows if money == code]
        assert graph.values(title, "introduction year") == {str(min(begins))}
        ends = [end for _, money, _, end, _ in rows if money == code]
        over = [end and end < cldr.TODAY and end[0] for end in ends]
        last = {str(max(over))} if all(over) else set()
        assert graph.values(title, "withdrawal year") == last
        digits = babel.numbers.get_currency_precision(code)
        assert graph.values(title, "number of decimals") == {str(digits)}
    assert graph.values("Norway", "currency start year") == {"1905"}
    assert graph.values("Germany", "currency end year") == {"2002"}


def test_languages_match_babel(graph, places):
    names = {title: code for code, title in titles(graph, "language").items()}

    def named(place, relation):
        return {names[title] for title in graph.values(place, relation)}

    def known(tags):
        return {base for tag in tags if (base := tag.split("_")[0]) in ENGLISH.languages}

    for code, place in places.items():
        every = babel.languages.get_official_languages(code, regional=True, de_facto=True)
        wide = babel.languages.get_official_languages(code, de_facto=True)
        assert named(place, "official language") == known(wide), place
        regional = named(place, "regional language")
        assert known(every) - known(wide) <= regional <= known(every), place
        shares = babel.languages.get_territory_language_info(code)
        spoken = {tag for tag, row in shares.items() if row["population_percent"] >= 5}
        assert named(place, "widely spoken language") == known(spoken), place
    for code, title in titles(graph, "language").items():
        assert title.removesuffix(" (language)") == ENGLISH.languages[code]


def test_scripts_weeks_and_zones_match_babel(graph, places):
    scripts = {title: code for code, title in titles(graph, "script").items()}
    for code, title in titles(graph, "language").items():
        likely = get_global("likely_subtags").get(code)
        if likely and likely.split("_")[1] in ENGLISH.scripts:
            assert likely.split("_")[1] in {scripts[s] for s in graph.values(title, "script")}
    assert graph.values("Serbian", "script") == {"Cyrillic script", "Latin script"}
    days = ENGLISH.days["format"]["wide"]
    for code, name in (("US", "en_US"), ("NO", "nb_NO"), ("IR", "fa_IR"), ("EG", "ar_EG")):
        locale, place = Locale.parse(name), places[code]
        assert graph.values(place, "first weekday") == {days[locale.first_week_day]}
        assert graph.values(place, "first weekend day") == {days[locale.weekend_start]}
    for code, place in places.items():
        zones = set(get_global("territory_zones").get(code, ()))
        assert graph.values(place, "time zone") == zones
    assert graph.values("Asia/Kolkata", "clock time") == {"India Standard Time"}
    assert graph.values("Europe/Oslo", "clock time") == {"Central European Time"}


def test_every_fact_is_parsed_back_from_the_pages(world, graph):
    for title in graph.nodes:
        if graph.is_value(title):
            assert world.find(title) != title
            continue
        found, url = {}, title
        while url:
            text = world.page(url).text
            for relation, values in read_facts(text).items():
                found.setdefault(relation, set()).update(values)
            url = next_part(text)
        assert found == {r: graph.values(title, r) for r in graph.relations[title]}, title


def test_titles_are_unique_and_have_foreign_aliases(world, graph):
    pages = [title for title in graph.nodes if not graph.is_value(title)]
    assert len({title.casefold() for title in pages}) == len(pages)
    assert graph.nodes["Nauru"].kind == "territory"
    assert graph.values("Nauru (language)", "official language of") == {"Nauru"}
    for name, title in {
        "Norwegen": "Norway",
        "Noruega": "Norway",
        "nok": "Norwegian Krone",
        "Kyrillisch": "Cyrillic script",
        "Oslo": "Europe/Oslo",
        "vendredi": "Friday",
    }.items():
        found = [hit.title for hit in world.search(name, 3)]
        assert title in found, (name, found)
        assert name.casefold() in {alias.casefold() for alias in graph.nodes[title].aliases}
    most = max(len(graph.nodes[title].aliases) for title in pages)
    assert most <= len(cldr.OTHER_NAMES) + 1
    assert not any(
        len(alias) == 2 and alias.isascii() and alias.isupper()
        for title in pages
        for alias in graph.nodes[title].aliases
    )


def test_title_is_first_hit_and_page_names_its_source(world, graph):
    for title in graph.kinds["territory"] + graph.kinds["language"][::9]:
        assert world.search(title, 1)[0].title == title
        assert "according to Unicode CLDR" in world.page(title).text
    assert world.search("currency Norwegian Krone official language Norwegian", 3)


def test_relation_names_end_in_a_noun():
    """Check that "the <relation> of X" is English and that no name is an inverse."""
    nouns = {
        "language",
        "currency",
        "year",
        "decimals",
        "zone",
        "time",
        "script",
        "territory",
        "weekday",
        "day",
        "code",
        "symbol",
    }
    relations = {relation for _, relation, _ in cldr.read_locale_data().facts}
    assert {relation.split()[-1] for relation in relations} == nouns


def test_any_hash_seed_gives_the_same_version(world):
    code = """from drlib.worlds import load_world
world = load_world("cldr")
print(world.version, world.graph.version)"""
    found = {f"{world.version} {world.graph.version}\n"}
    for seed in ("0", "1", "77"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", code]
        found.add(subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


def test_index_is_built_once(world, tmp_path, monkeypatch):
    reads, read = [], cldr.read_locale_data
    monkeypatch.setattr(cldr, "read_locale_data", lambda: reads.append(1) or read())
    path = tmp_path / "cldr.sqlite"
    first, again = load_world("cldr", path), load_world("cldr", path)
    assert len(reads) == 1 and first.changes.added == ["cldr"] and again.changes.added == []
    assert first.version == again.version == world.version
    assert again.page("Norway") == world.page("Norway")
    assert again.search("krone") == world.search("krone")
    faster = load_world("cldr", path, engine="bm25s")
    assert faster.search("Norwegen", 1) == world.search("Norwegen", 1)
    assert {h.title for h in faster.search("krone")} & {h.title for h in world.search("krone")}


def test_toolbox_with_and_without_faults(world):
    part = {"url": ["cldr:Latin script?part=2"], "goal": "languages"}
    with Toolbox(world, results=3) as toolbox, Toolbox(FaultInjector().world(world)) as other:
        text = toolbox.call("visit", part).text
        assert text == other.call("visit", part).text
        assert len(read_facts(text)["script of"]) == 60 and next_part(text).endswith("?part=3")
        assert toolbox.call("search", {"query": ["Norwegen"]}).text.startswith("1. [Norway](cldr:")
        missing = toolbox.call("visit", {"url": ["cldr:Norway?part=9"], "goal": "x"})
    assert not missing.ok and not missing.env_fault
