"""Agreement of rankings: coefficients by hand, coverage of the interval, plan, table and figure.

Run: python -m pytest tests/test_experiments_ranking.py
"""

import json
import re

import numpy as np
import pytest
import yaml

from drlib import cli
from drlib.experiments.figures import ranking_figure
from drlib.experiments.findings_page import findings_block
from drlib.experiments.plan import load_plan
from drlib.experiments.rank_agreement import (
    chance_correlation,
    compare_single_runs,
    correlation_interval,
    kendall,
    leave_one_out_range,
    spearman,
)
from drlib.experiments.tables import findings_of, summary, table, write_summary
from tests.experiment_examples import (
    HALF,
    RIGHT,
    WRONG,
    make_records,
    outcome,
    rows,
    toy_plan,
    write_plan,
)

CLAIM = {"claim": "The rankings agree", "source": "us", "expected": "higher"}
RANKED = {
    "asked": ["search sample", "realistic sample"],
    "common": {"evaluation.shift.fault_share": 0.1},
    "ranking": CLAIM,
    "control": "a",
    "arms": {
        "a": {},
        "b": {"rl.loss.clip": "cispo"},
        "c": {"rl.loss.clip": "none"},
        "d": {"rl.lr": 0.1},
    },
}


def constant(*means, seeds=2, questions=3):
    """Return scores [A, S, Q] without noise."""
    return np.tile(np.array(means)[:, None, None], (1, seeds, questions))


def test_coefficients_by_hand():
    """Ranks 1 2 3 4 against 2 1 4 3: squared differences 4 x 1; two of six pairs are discordant."""
    first_A, second_A = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.1, 0.9, 0.8])
    assert spearman(first_A, second_A) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert kendall(first_A, second_A) == pytest.approx((4 - 2) / 6)
    assert spearman(first_A, -first_A) == kendall(first_A, -first_A) == -1
    # a tie: ranks 1 2.5 2.5 4; Pearson of the ranks 4.5 / sqrt(5 x 4.5); tau-b 5 / sqrt(6 x 5)
    tied_A = np.array([0.0, 0.5, 0.5, 1.0])
    assert spearman(first_A, tied_A) == pytest.approx(4.5 / np.sqrt(5 * 4.5))
    assert kendall(first_A, tied_A) == pytest.approx(5 / np.sqrt(30))
    assert np.isnan(spearman(first_A, np.ones(4)))


def test_scores_without_noise_have_an_interval_of_width_zero():
    first_ASQ, second_ASQ = constant(0.1, 0.2, 0.3, 0.4), constant(0.5, 0.1, 0.9, 0.8)
    assert correlation_interval(first_ASQ, second_ASQ) == pytest.approx((0.6, 0.6, 0.6))
    assert correlation_interval(first_ASQ, second_ASQ, kendall) == pytest.approx((1 / 3,) * 3)
    assert leave_one_out_range(first_ASQ, second_ASQ) == pytest.approx((0.5, 0.5))


def test_range_without_one_arm_by_hand():
    """Without the only bad arm, 1 2 3 against 3 2 1 is left: -1. Without another one, 0.5."""
    first_ASQ, second_ASQ = constant(0.0, 0.7, 0.8, 0.9), constant(0.0, 0.9, 0.8, 0.7)
    assert leave_one_out_range(first_ASQ, second_ASQ) == pytest.approx((-1.0, 0.5))


def test_unusable_scores_are_refused():
    good_ASQ = constant(0.1, 0.2, 0.3)
    with pytest.raises(ValueError, match="at least 3 arms"):
        correlation_interval(good_ASQ[:2], good_ASQ[:2])
    with pytest.raises(ValueError, match="equal shape"):
        correlation_interval(good_ASQ, good_ASQ[:, :1])
    with pytest.raises(ValueError, match="finite"):
        correlation_interval(good_ASQ, good_ASQ * np.nan)
    with pytest.raises(ValueError, match="no ranking"):
        correlation_interval(good_ASQ, constant(0.5, 0.5, 0.5))


def test_runs_are_paired_with_themselves_and_with_other_seeds():
    """The second side ranks each run as the first side did, so other seeds agree by the recipe."""
    first_ASQ = np.array([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]])[:, :, None]
    found = compare_single_runs(first_ASQ, first_ASQ)
    assert found.same_run == 1 and found.other_seeds == found.first_itself == -1
    second_ASQ = np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]])[:, :, None]
    found = compare_single_runs(first_ASQ, second_ASQ)
    assert (found.same_run, found.other_seeds, found.first_itself) == (0, 0, -1)
    single = compare_single_runs(first_ASQ[:, :1], first_ASQ[:, :1])
    assert single.same_run == 1 and single.other_seeds is single.first_itself is None


def test_bootstrap_pairs_questions_and_runs():
    """Noise that both sides share cannot change their agreement; independent noise can."""
    rng = np.random.default_rng(0)
    hard_Q, run_AS = rng.normal(0, 1, 40), rng.normal(0, 0.2, (5, 4))
    shared_ASQ = constant(*np.arange(5) / 10, seeds=4, questions=40) + hard_Q + run_AS[:, :, None]
    assert correlation_interval(shared_ASQ, 2 * shared_ASQ)[1] > 1 - 1e-9
    other_ASQ = shared_ASQ - run_AS[:, :, None] + rng.normal(0, 0.2, (5, 4))[:, :, None]
    assert correlation_interval(shared_ASQ, other_ASQ)[1] < 0.9
    # some questions are hard for some arms: the same questions must be drawn on both sides
    uneven_ASQ = constant(*np.arange(5) / 10, seeds=4, questions=40) + rng.normal(0, 1, (5, 1, 40))
    assert correlation_interval(uneven_ASQ, uneven_ASQ)[1] > 1 - 1e-9


def simulate(order, rng, seeds=3, questions=60):
    """Return scores of eight recipes whose true rankings are 0..7 and `order`.

    Neighbours differ by 4 points on the first side and 3 on the second; runs by 4 (70% of the
    variance shared by both sides); questions by 25; eight samples each.
    """
    truth_A = 0.04 * np.arange(8)
    shared_AS = rng.normal(0, 0.04 * np.sqrt(0.7), (8, seeds))
    hard_Q = rng.normal(0, 0.25, questions)
    sides = []
    for start, means_A in ((0.3, truth_A), (0.25, 0.75 * truth_A[order])):
        run_AS = shared_AS + rng.normal(0, 0.04 * np.sqrt(0.3), (8, seeds))
        share_ASQ = start + means_A[:, None, None] + run_AS[:, :, None] + hard_Q
        sides.append(rng.binomial(8, np.clip(share_ASQ, 0, 1)) / 8)
    return sides


@pytest.mark.parametrize("order", [[*range(8)], [3, 0, 5, 1, 6, 2, 7, 4], [*range(8)][::-1]])
def test_interval_covers_the_true_correlation(order):
    truth = spearman(np.arange(8), np.array(order))
    rng, runs = np.random.default_rng(5), 60
    found = [
        correlation_interval(*simulate(order, rng), seed=number, resamples=150)
        for number in range(runs)
    ]
    covered = sum(low - 1e-9 <= truth <= high + 1e-9 for _, low, high in found)
    assert covered >= 0.9 * runs
    widths = [high - low for _, low, high in found]
    assert np.mean(widths) < 0.9  # of 2: it excludes most of what is possible


def test_chance_level():
    """Tables of Spearman's rho give 0.738 for eight and 0.648 for ten, two-sided 5%."""
    assert chance_correlation(8) == pytest.approx(0.738, abs=0.04)
    assert chance_correlation(10) == pytest.approx(0.648, abs=0.02)
    assert chance_correlation(3) == 1.0


# --------------------------------------------------------------------------- plan, table, figure


def make_ranked(plan, seeds=(0, 1)):
    """Return records in which the realistic side swaps the two best arms; d is excluded once."""
    search = {"a": (RIGHT, RIGHT), "b": (RIGHT, HALF), "c": (HALF, WRONG), "d": (WRONG, WRONG)}
    realistic = {"a": (RIGHT, HALF), "b": (RIGHT, RIGHT), "c": (HALF, WRONG), "d": (WRONG, WRONG)}
    runs = {}
    for arm in search:
        asked = [outcome(q, s) for q, s in zip("xy", search[arm])]
        asked += [outcome("gone", RIGHT)]  # not asked in the realistic environment
        asked += [outcome(q, s, "realistic") for q, s in zip("xy", realistic[arm])]
        for seed in seeds:
            runs[arm, seed] = (asked, rows())
    return make_records(plan, runs)


def test_summary_compares_the_shared_questions(tmp_path):
    plan = toy_plan(tmp_path, **RANKED)
    found = summary(plan, make_ranked(plan))
    ranking = found["ranking"]
    assert ranking["effect"] == 0.8 and ranking["kendall"]["effect"] == pytest.approx(2 / 3, 1e-4)
    assert ranking["n"] == 2 and ranking["seeds"] == [0, 1] and ranking["pilot"]
    assert ranking["arms"]["b"][0]["effect"] == 0.75 and ranking["arms"]["b"][1]["effect"] == 1
    assert ranking["without_one_arm"] == [0.5, 1.0] and ranking["outcome"] == "open"
    text = table(found)
    assert "Spearman +0.80" in text and "Kendall +0.67" in text and "Without one arm: +0.50" in text
    assert "ranking" not in summary(plan, make_records(plan, {}))
    (name,) = findings = findings_of(found)
    assert name == "toy" and findings[name]["settings"]["d"] == {"rl.lr": 0.1}


def test_questions_of_both_environments_count_together(tmp_path):
    plan = toy_plan(tmp_path, **RANKED)
    results = make_ranked(plan).results["a"]
    assert results.scores("rl", None, "sample")[0].keys() == {
        "x search",
        "y search",
        "gone search",
        "x realistic",
        "y realistic",
    }
    _, made_SQ = results.calls("rl")
    assert made_SQ.shape == (2, 5)


def test_show_prints_it_and_the_files_have_it(tmp_path, capsys):
    plan = toy_plan(tmp_path, **RANKED)
    records = make_ranked(plan)
    write_summary(plan, records, tmp_path)
    records.save(tmp_path / "toy.parquet")
    assert cli.main(["experiment", "show", str(plan.file), "--out", str(tmp_path)]) == 0
    assert "Spearman +0.80" in capsys.readouterr().out
    assert (tmp_path / "toy_ranking.png").stat().st_size > 10_000
    finding = json.loads((tmp_path / "findings" / "toy.json").read_text())
    assert finding["claim"] == CLAIM["claim"] and finding["effect"] == 0.8
    block = findings_block(tmp_path / "findings")
    assert "4 arms (search, realistic, n=2, 2 seeds)" in block and "Spearman +0.80" in block


def test_figure_shows_the_numbers_of_the_summary(tmp_path):
    plan = toy_plan(tmp_path, **RANKED)
    found = summary(plan, make_ranked(plan))
    (axes,) = ranking_figure(found).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert (lines["b"].get_xdata()[0], lines["b"].get_ydata()[0]) == (75, 100)
    assert "0.80" in axes.get_title(loc="left")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"common": {}}, "unknown kind of question in asked: 'realistic'"),
        ({"asked": ["search sample"]}, "the first two of asked"),
        ({"asked": ["search sample", "python sample"]}, "must have the same questions"),
        ({"arms": {"a": {}, "b": {"rl.lr": 0.1}}}, "three arms and more"),
        ({"ranking": {"claim": "x"}}, "three texts"),
        ({"ranking": {**CLAIM, "expected": "more"}}, "expected='more'"),
        ({"ranking": {**CLAIM, "of": "a"}}, "unknown key in ranking: 'of'"),
    ],
)
def test_invalid_rankings_are_refused(changes, reason, tmp_path):
    with pytest.raises(ValueError, match=re.escape(reason)):
        toy_plan(tmp_path, **{**RANKED, **changes})


def test_shipped_plan_declares_all_differences():
    plan = load_plan("simulator")
    assert len(plan.arms) >= 6 and plan.ranking.expected == "higher"
    shift = plan.config(plan.control, 0).evaluation.shift
    assert all(value > 0 for value in vars(shift).values())


def test_documented_plan_is_valid(tmp_path):
    text = load_plan.__globals__["__doc__"]
    block = re.search(r"    asked: \[search sample, realistic.*?ranking: .*?\n", text, re.S)[0]
    given = yaml.safe_load(re.sub(r"^    ", "", block, flags=re.M))
    plan = load_plan(write_plan(tmp_path, **{**RANKED, **given}))
    assert plan.ranking.claim == "The rankings agree"
