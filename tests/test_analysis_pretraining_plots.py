"""Figures of agentic pre-training show the numbers and the masks that they were given.

Run: python -m pytest tests/test_analysis_pretraining_plots.py
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

from drlib.analysis import pretraining_plots
from drlib.demonstrations.agentfounder import KEPT, CptRow, sample_of
from tests.agent_examples import tour_chat

chat = tour_chat
PARTS = (
    ("user", "What is the code?"),
    ("given", "Draft: Oslo.\n"),
    ("facts", "The code of Norway is NOK.\n"),
    ("own", "<think>There.</think><answer>NOK</answer><|im_end|>"),
)
ROW = CptRow("fas_reason", PARTS, (), (), KEPT)


def arm(after, ends):
    """Return an arm of the record with one cold start per loss in `ends`."""
    colds = [
        {"steps": 10 * n, "general_after": x, "held_out_curve": [[0, 4 * x], [10 * n, x]]}
        for n, x in enumerate(ends, 1)
    ]
    return {"general_after_cpt": after, "cold_starts": colds}


ROWS = [
    {
        "arms": {
            "none": arm(1, (2, 4)),
            "agentic": arm(1.1, (1, 3)),
            "equal_compute": arm(0.5, (2, 2)),
        }
    },
    {
        "arms": {
            "none": arm(2, (4, 8)),
            "agentic": arm(2.4, (4, 2)),
            "equal_compute": arm(1, (8, 8)),
        }
    },
]


def test_tokens_of_a_row_are_those_of_its_sample(chat):
    tokens = [*pretraining_plots.list_tokens(ROW, chat)]
    sample = sample_of(ROW, chat)
    assert [role == "own" for role, _ in tokens] == list(sample.loss)
    assert tokens[0] == ("user", "▶") and tokens[-1] == ("own", "■")
    assert "".join(text for role, text in tokens if role == "facts").endswith("NOK.⏎")


def test_mask_has_one_box_per_token_in_the_colour_of_its_role(chat):
    fig = pretraining_plots.plot_loss_mask([ROW, ROW._replace(judge="too long")], chat)
    (ax,) = fig.axes
    own = to_hex(pretraining_plots.TINTS["own"])
    drawn = [to_hex(patch.get_facecolor()) == own for patch in ax.patches]
    assert drawn == 2 * list(sample_of(ROW, chat).loss)
    ends = [patch.get_x() + patch.get_width() for patch in ax.patches]
    assert max(ends) <= pretraining_plots.LINE
    corners = {(patch.get_x(), patch.get_y()) for patch in ax.patches}
    assert len(corners) == len(ax.patches)  # no box covers another
    plt.close(fig)


def test_general_loss_is_relative_to_the_same_seed_without_the_stage():
    found = pretraining_plots.compare_general_loss(ROWS, "agentic")
    assert list(found) == ["after the stage", "after 10 steps", "after 20 steps"]
    np.testing.assert_allclose(list(found.values()), [[0.1, 0.2], [-0.5, 0], [-0.25, -0.75]])


def test_figures_show_means_and_seeds():
    fig, (left, right) = plt.subplots(1, 2)
    pretraining_plots.plot_cold_start(left, ROWS, 1)
    means = {line.get_label(): line.get_ydata() for line in left.get_lines()}
    assert left.get_title() == "Cold start of 20 steps"
    np.testing.assert_allclose(means["none"], [24, 6])
    np.testing.assert_allclose(means["equal compute"], [20, 5])
    pretraining_plots.plot_general_loss(right, ROWS, 0.05)
    heights = [patch.get_height() for patch in right.patches]
    assert heights == pytest.approx([15, -25, -50, -50, 50, -25])
    plt.close(fig)
