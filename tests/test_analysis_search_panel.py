"""The search box of notebook 06: hits, facts, and text that is shown as it is.

Run: python -m pytest tests/test_analysis_search_panel.py
"""

from drlib.analysis.widgets import SearchPanel
from drlib.worlds import Library
from drlib.worlds.store import Store
from tests.store_examples import library, place


def test_search_panel_shows_hits_and_facts_and_follows_its_controls():
    store = Store.of({"Krone": "Money <b>of</b> Norway.", "Krona": "Money of Sweden."})
    gabon = library({"a": place("Gabon", ("money", "Franc"), ("since", "1960"))})
    panel = SearchPanel({"one": gabon, "two": Library("two", store, "t")}, "Gabon", 1)
    assert panel.shown.value.count("<li>") == 1
    assert "<p><b>Gabon</b> has money: Franc; since: 1960</p>" in panel.shown.value
    panel.world.value, panel.box.value = "two", "norway"
    assert "Krone" in panel.shown.value and " has " not in panel.shown.value
    assert "&lt;b&gt;of&lt;/b&gt;" in panel.shown.value  # page text is no markup
    panel.box.value = "xylophone"
    assert panel.shown.value == "<i>No results.</i>"
