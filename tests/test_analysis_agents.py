"""Plots of agents: page positions, site walks, outlines and words read.

Run: python -m pytest tests/test_analysis_agents.py
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import agent_plots

LINKS = {"root": ["a", "b"], "a": ["c", "root"], "b": ["root"], "c": ["root"], "lost": ["root"]}


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    fig.canvas.draw()
    plt.close(fig)


def test_ring_radius_equals_the_number_of_clicks():
    places = agent_plots.place_on_rings(LINKS, "root")
    assert places.keys() == {"root", "a", "b", "c"}, "what no click reaches is left out"
    far = {page: round(float(np.hypot(*place)), 6) for page, place in places.items()}
    assert far == {"root": 0, "a": 1, "b": 1, "c": 2}
    assert np.allclose(np.add(places["a"], places["b"]), 0), "opposite each other"
    assert places == agent_plots.place_on_rings(LINKS, "root")
    many = {"root": [str(n) for n in range(20)]}
    gap = {
        wide: np.hypot(
            *np.subtract(*map(agent_plots.place_on_rings(many, "root", wide).get, ("3", "4")))
        )
        for wide in ((), ("3", "4"))
    }
    assert gap[("3", "4")] > 3 * gap[()]
    with pytest.raises(ValueError, match="nowhere is not a page"):
        agent_plots.place_on_rings(LINKS, "nowhere")


def test_answered_share_is_drawn_per_click(ax):
    agent_plots.plot_answered_within(ax, {"oracle": [2, 2], "other": [1, None]}, 3)
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0, 0, 100, 100], [0, 50, 50, 50]]


def test_site_walk_numbers_each_click(ax):
    walk = ["root", "a", "c", "root", "b"]
    agent_plots.plot_site_walk(ax, LINKS, walk, {"c"}, {"c": "See"})
    texts = [text.get_text() for text in ax.texts]
    assert [text for text in texts if text.isdigit()] == ["1", "2", "3", "4"] and "See" in texts
    assert len(ax.lines) == 3, "root-a, root-b and a-c; no link back to the root"
    with pytest.raises(ValueError, match="step 2: no link leads from a to b"):
        agent_plots.plot_site_walk(ax, LINKS, ["root", "a", "b"])


def test_outline_versions_show_their_citations(ax):
    versions = [{"West": ["id_1"]}, {"West": ["id_1", "id_2"], "East": []}]
    agent_plots.plot_outline_versions(ax, versions)
    assert [text.get_text() for text in ax.texts] == ["1", "1 2", ""]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["West", "East"]
    assert len(ax.patches) == 3


def test_words_read_has_one_bar_per_turn(ax):
    agent_plots.plot_words_read(ax, [("planner", 10), ("planner", 30), ("writer", 20)], 90)
    assert [bar.get_height() for bar in ax.patches] == [10, 30, 20]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(labels) == ["all found sources", "planner", "writer"]
