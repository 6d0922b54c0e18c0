"""The figure of an experiment plan on hand-made results: numbers and overlapping texts.

Run: python -m pytest tests/test_experiments_figures.py
"""

import copy
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis.figure_style import CONTROL
from drlib.experiments import figures as experiment_figures
from drlib.experiments.findings_page import EFFECTS, committed_experiments
from drlib.experiments.tables import curves, summary
from tests.experiment_examples import HALF, RIGHT, make_outcomes, make_records, rows, toy_plan


def make_summary_and_figure(tmp_path, number):
    """Return the summary and figure of a control and other arms with long names, three seeds each.

    If number > 3, the runs of one arm have failed.
    """
    arms = {"ppo": {}}
    arms |= {f"a_rather_long_name_{n}": {"rl.lr": n * 1e-5} for n in range(1, number)}
    runs = {}
    for place, arm in enumerate(arms):
        for seed in (0, 1, 2):
            outcomes = make_outcomes(RIGHT, [True, seed == 0], [place % 2 == 0, False])
            runs[arm, seed] = outcomes, rows(4, generated=10.0 + place)
    failed = {at: "fell" for at in runs if number > 3 and at[0] == list(arms)[3]}
    plan = toy_plan(tmp_path, arms=arms, seeds=[0, 1, 2])
    finished = {at: run for at, run in runs.items() if at not in failed}
    records = make_records(plan, finished, failed)
    found = summary(plan, records)
    return found, experiment_figures.experiment_figure(found, curves(found, records))


@pytest.mark.parametrize("number", [2, 8])
def test_texts_of_the_figure_do_not_overlap(tmp_path, number):
    _, figure = make_summary_and_figure(tmp_path, number)
    figure.canvas.draw()
    texts = [*figure.texts]
    for ax in figure.axes:
        texts += [ax._left_title, ax.xaxis.label, ax.yaxis.label]
        (left, right), (low, high) = ax.get_xlim(), sorted(ax.get_ylim())
        texts += [t for t in ax.get_xticklabels() if left <= t.get_position()[0] <= right]
        texts += [t for t in ax.get_yticklabels() if low <= t.get_position()[1] <= high]
        texts += ax.get_legend().get_texts() if ax.get_legend() else []
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text()]
    assert len(boxes) > 20 + number
    over = [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]
    assert over == []


def test_figure_shows_the_numbers_of_the_summary(tmp_path):
    found, figure = make_summary_and_figure(tmp_path, 4)
    left, middle, right = figure.axes

    def lines(ax):
        return {tuple(line.get_ydata()): list(line.get_xdata()) for line in ax.get_lines()}

    for place, arm in enumerate(found["arms"]):
        if arm["state"] == "failed":
            continue
        first = arm["asked"][0]
        assert lines(left)[(place, place)] == pytest.approx([100 * x for x in first["interval"]])
        assert lines(left)[(place,)] == [100 * first["accuracy"]]
        if arm["arm"] != "ppo":
            difference = first["difference"]
            ends = [100 * x for x in difference["interval"]]
            assert lines(middle)[(place, place)] == pytest.approx(ends)
            assert lines(middle)[(place,)] == [100 * difference["effect"]]
    assert [label.get_text() for label in left.get_yticklabels()][3].endswith("\nfailed")
    drawn = {line.get_label(): line for line in right.get_lines()}
    assert list(drawn) == [arm["arm"] for arm in found["arms"][:3]]
    # four steps of 32 rollouts of 10 tokens, in thousands; the mean of the accuracies so far
    ppo = drawn["ppo"]
    assert list(ppo.get_xdata()) == pytest.approx([0.32, 0.64, 0.96, 1.28])
    assert list(ppo.get_ydata()) == pytest.approx([25, 37.5, 50, 62.5])


def test_supervised_arms_are_drawn_by_their_loss(tmp_path):
    losses = [{"step": s, "seconds": 1.0, "loss": 5.0 - s} for s in (1, 2)]
    arms = {"all": {"sft.loss_on": "all"}, "own": {}}
    plan = toy_plan(tmp_path, stage="sft", arms=arms, control="own")
    runs = {(arm, seed): (make_outcomes(HALF, HALF), losses) for arm in arms for seed in (0, 1)}
    records = make_records(plan, runs)
    found = summary(plan, records)
    ax = experiment_figures.experiment_figure(found, curves(found, records)).axes[2]
    assert ax.get_ylabel() == "loss, nats a token" and ax.get_xlabel() == "step"
    assert list(ax.get_lines()[0].get_ydata()) == pytest.approx([4, 3.5])


def test_effects_figure_shows_every_sweep(tmp_path):
    """Each arm's interval appears once, in order; intervals that exclude 0 are coloured."""
    sweeps = []
    for number in (2, 3):
        (tmp_path / str(number)).mkdir()
        sweeps.append(make_summary_and_figure(tmp_path / str(number), number)[0])
    significant = copy.deepcopy(sweeps[0]) | {"name": "sure"}
    for arm, (low, high) in zip(significant["arms"][1:], ((0.1, 0.3), (-0.1, 0.3))):
        arm["asked"][0]["difference"] |= {"effect": 0.2, "interval": [low, high]}
    expected = []
    for found in (*sweeps, significant):
        expected.append((f"{found['name']}, less {found['control']}", None))
        arms = [(arm["arm"], arm["asked"][0].get("difference")) for arm in found["arms"]]
        expected += [(name, [100 * x for x in less["interval"]]) for name, less in arms if less]
    figure = experiment_figures.effects_figure([*sweeps, significant])
    drawn_rows, colors = [], {}
    for ax in figure.axes:
        bars = {line.get_ydata()[0]: line for line in ax.get_lines() if line.get_ls() == "-"}
        for y, label in enumerate(ax.get_yticklabels()):
            interval = list(bars[y].get_xdata()) if y in bars else None
            drawn_rows.append((label.get_text(), interval))
            colors[len(drawn_rows) - 1] = bars[y].get_color() if y in bars else None
        assert -ax.get_xlim()[0] == ax.get_xlim()[1] == figure.axes[0].get_xlim()[1]
    assert drawn_rows == expected
    excludes = [i for i, (_, ends) in enumerate(expected) if ends and not ends[0] <= 0 <= ends[1]]
    assert [i for i, color in colors.items() if color not in (None, CONTROL)] == excludes


def test_committed_effects_figure_is_current(tmp_path):
    again = tmp_path / "effects.png"
    again.write_bytes(
        experiment_figures.drawn(experiment_figures.effects_figure(committed_experiments()))
    )
    kept, rendered = plt.imread(EFFECTS), plt.imread(again)
    assert kept.shape == rendered.shape, "run drlib experiment pages"
    assert (np.abs(kept - rendered) > 0.1).sum() < 10, "run drlib experiment pages"
