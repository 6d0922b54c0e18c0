"""Scripted replies with known faults: every fault ends at the check that can see it.

Run: python -m pytest tests/test_analysis_scripted_crafting.py
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import scripted_crafting
from drlib.analysis.scripted_crafting import Draft
from drlib.questions import crafting
from drlib.questions.entity_memory import EntityMemory

STATEMENTS = """\
1. The Ottermaid cost 1,250 crowns.
2. The captain of Ottermaid is Silvan Pookley.
3. The instrument of Silvan Pookley is tin whistle.
4. The birth year of Silvan Pookley is 1839."""


def make_memory():
    memory = EntityMemory()
    memory.add_fact("Ottermaid", "captain", "Silvan Pookley", "f")
    memory.add_fact("Ottermaid", "launch year", "1871", "f")
    memory.add_fact("Silvan Pookley", "instrument", "tin whistle", "p")
    return memory


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("right", ("What is the instrument of Silvan Pookley?", "tin whistle", 3)),
        (
            "answer in the question",
            ("What is the instrument of Silvan Pookley, tin whistle?", "tin whistle", 3),
        ),
        ("no subject", ("What is the instrument of it?", "tin whistle", 3)),
        ("other answer", ("What is the instrument of Silvan Pookley?", "Silvan Pookley", 3)),
        (
            "other answer and proof",
            ("What is the instrument of Silvan Pookley?", "Silvan Pookley", 2),
        ),
    ],
)
def test_each_kind_has_its_fault(kind, expected):
    found = scripted_crafting.write_fact(kind, "Silvan Pookley", STATEMENTS)
    assert found == (*expected, "tin whistle")


def test_no_question_without_two_facts():
    assert scripted_crafting.write_fact("right", "Honest Weight", STATEMENTS) is None
    memory = EntityMemory()
    memory.add("Ottermaid", "The Ottermaid cost 1,250 crowns.", "f")
    assert scripted_crafting.verify_fact(memory, "right", "Ottermaid", "independent") == ""


def test_ends_of_each_kind():
    def ends(reader, **options):
        return [
            scripted_crafting.verify_fact(make_memory(), kind, "Ottermaid", reader, **options)
            for kind in scripted_crafting.KINDS
        ]

    seen = ["kept", "execution", "execution", "execution"]
    assert ends("independent") == [*seen, "reader"]
    assert ends("same mistakes") == [*seen, "kept"]
    wrong = {ends("independent", accuracy=0.0, seed=seed)[0] for seed in range(9)}
    assert wrong == {"kept", "reader"}  # a random value is sometimes the right one


def test_drafts_are_kept_and_a_changed_one_is_rejected():
    drafts = {
        "fact": Draft("Who is the captain of the Ottermaid?", "Silvan Pookley", ("captain",)),
        "multi-hop": Draft(
            "What does the captain of the Ottermaid play?", "tin whistle", ("captain", "instrument")
        ),
    }

    def reasons(drafts):
        model = scripted_crafting.script_drafts(drafts, "Ottermaid")
        wishes = [("Ottermaid", style) for style in drafts]
        return [one.reason for one in crafting.craft(make_memory(), wishes, model)]

    assert reasons(drafts) == ["", ""]
    changed = {**drafts, "multi-hop": drafts["multi-hop"]._replace(proof=("instrument",))}
    assert reasons(changed) == ["", "nothing links its statements"]


def test_precision_by_hand():
    """70 right, 30 wrong: execution leaves 10, the reader 1 of them."""
    assert scripted_crafting.precision(0.3, 2 / 3, 0.1) == pytest.approx(70 / 71)
    assert scripted_crafting.precision(0.3, 2 / 3, 1, f=0.1) == pytest.approx(63 / 73)


def test_figures_show_shares_and_precision():
    shares = {
        (kind, reader): np.array([0.25, 0.5, 0.25])
        for kind in scripted_crafting.KINDS
        for reader in scripted_crafting.READERS
    }
    numbers = {"d": 0.5, "c": 0.5, "f": 0.0}
    measured = dict.fromkeys(scripted_crafting.READERS, numbers)
    fig = scripted_crafting.plot_verification(shares, measured)
    widths = [patch.get_width() for patch in fig.axes[0].patches]
    assert widths == 5 * [25] + 5 * [50] + 5 * [25]
    assert [patch.get_x() for patch in fig.axes[0].patches][-1] == 75
    line = fig.axes[2].get_lines()[0]
    e = line.get_xdata() / 100
    np.testing.assert_allclose(line.get_ydata(), 100 * scripted_crafting.precision(e, 0.5, 0.5))
    plt.close(fig)
    plt.close(scripted_crafting.plot_checks(0.5, 0.1))
