"""Sequential designs: levels by simulation and by hand, p-values, power, and verdicts out.

Run: python -m pytest tests/test_experiments_designs.py
"""

import json
import math

import numpy as np
import pytest
from scipy.special import stdtr
from scipy.stats import nct

from drlib.config import ROOT
from drlib.experiments.designs import Design, nominal_levels, read_design, spent
from drlib.experiments.verdicts import Statement
from drlib.intervals import interval_parts, t_quantile
from tests.benchmarks.make_designs import OUT, Case, judge_all, simulate

LOOKS = (8, 14, 20)
DESIGN = Design(looks=LOOKS)


def crossings(looks, levels, repeats, seed=0):
    """Return the share of simulated paths of mean zero that were stopped up to each look."""
    values_RS = np.random.default_rng(seed).standard_normal((repeats, looks[-1]))
    alive_R, stopped = np.ones(repeats, bool), []
    for look, level in zip(looks, levels):
        some_RS = values_RS[:, :look]
        t_R = some_RS.mean(1) / some_RS.std(1, ddof=1) * math.sqrt(look)
        alive_R &= np.abs(t_R) < t_quantile(look - 1, 1 - level / 2)
        stopped.append(1 - alive_R.mean())
    return stopped


def test_spending_function_by_hand():
    """2 - 2 Phi(2.2414 / sqrt(0.25)) for 0.025 on one side at a quarter: 2 (1 - Phi(4.4828))."""
    assert spent(1.0, 0.025) == pytest.approx(0.025)
    assert spent(0.25, 0.025) == pytest.approx(7.367e-6, rel=1e-3)


@pytest.mark.parametrize(("looks", "side"), [(LOOKS, 0.025), (LOOKS, 0.05), ((4, 6, 9, 20), 0.1)])
def test_error_up_to_each_look_is_the_planned_one(looks, side):
    repeats = 100_000
    stopped = crossings(looks, nominal_levels(looks, side), repeats)
    planned = [2 * spent(look / looks[-1], side) for look in looks]
    for found, expected in zip(stopped, planned):
        assert abs(found - expected) < 4 * math.sqrt(expected / repeats) + 1e-3 * expected


def test_many_seeds_have_the_boundaries_of_a_known_variance():
    """|z| > 3.3569, 2.4445, 2.0005 at 8, 14 and 20 by multivariate normal probabilities (scipy).

    With few seeds these boundaries spend too much: about 7.9% instead of 5%.
    """
    levels = nominal_levels((800, 1400, 2000), 0.025)
    z = [t_quantile(10**7, 1 - level / 2) for level in levels]
    assert z == pytest.approx([3.3569, 2.4445, 2.0005], abs=2e-3)
    naive = [2 * (1 - stdtr(look - 1, each)) for each, look in zip(z, LOOKS)]
    assert crossings(LOOKS, naive, 20_000)[-1] == pytest.approx(0.079, abs=0.008)
    assert nominal_levels(LOOKS, 0.025)[-1] < levels[-1]


def test_one_look_is_the_ordinary_test():
    one = Design(looks=(20,))
    assert one.confidence(20) == pytest.approx(0.95) and one.confidence(
        20, "equivalence"
    ) == pytest.approx(0.9)
    values_SQ = np.random.default_rng(1).normal(0.03, 0.07, (20, 1)) + np.zeros((1, 50))
    parts = interval_parts(values_SQ)
    t = parts.mean / parts.from_seeds
    expected = 2 * (1 - stdtr(19, t))
    assert one.p_values({20: parts})[0] == pytest.approx(expected, rel=1e-6)
    t = (0.05 - parts.mean) / parts.from_seeds
    assert one.p_values({20: parts})[1] == pytest.approx(1 - stdtr(19, t), rel=1e-6)


def test_power_of_a_single_look_is_that_of_the_t_test():
    """Issue: with a deviation of 7 points a true zero is found in 50% at 12 seeds, 85% at 20."""
    shift = 0.05 * math.sqrt(20) / 0.07
    critical = t_quantile(19)
    expected = 1 - nct.cdf(critical, 19, shift)
    assert Design(looks=(20,)).power_at(0.05) == pytest.approx(expected, abs=2e-3)
    assert Design(looks=(20,)).power_at(0.0) == pytest.approx(0.85, abs=0.02)
    assert Design(looks=(12,), power=0.4).power_at(0.0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("test", ["difference", "equivalence"])
def test_p_value_is_the_alpha_at_which_the_boundary_is_met(test):
    """A design with that alpha has an interval that ends at zero, or at the margin."""
    rng = np.random.default_rng(2)
    mean = 0.05 if test == "difference" else 0.0
    seeds_S = rng.normal(0, 0.05, 14)
    values_SQ = (seeds_S - seeds_S[:].mean() + mean)[:, None] + rng.normal(0, 0.1, (1, 300))
    parts = {14: interval_parts(values_SQ)}
    place = ["difference", "equivalence"].index(test)
    p = DESIGN.p_values(parts)[place]
    assert 1e-5 < p < 0.2
    half = parts[14].half_width(Design(looks=LOOKS, alpha=p, power=0.01).confidence(14, test))
    distance = abs(parts[14].mean) if place == 0 else 0.05 - abs(parts[14].mean)
    assert half == pytest.approx(distance, rel=1e-3)


def test_p_value_is_that_of_the_look_which_decides():
    strong = interval_parts(np.full((8, 5), 0.3) + np.linspace(-0.1, 0.1, 8)[:, None])
    weak = interval_parts(np.zeros((14, 5)) + np.linspace(-0.2, 0.2, 14)[:, None])
    alone, later = DESIGN.p_values({8: strong})[0], DESIGN.p_values({8: strong, 14: weak})[0]
    assert later == alone < 0.05 < DESIGN.p_values({14: weak})[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (3, "design: give {margin"),
        ({"margin": 0.05}, "design: give {margin"),
        ({"looks": [8], "seeds": 3}, "keys: looks, margin, alpha, power, deviation"),
        ({"looks": 8}, "looks: give a list"),
        ({"looks": []}, "give rising numbers of seeds"),
        ({"looks": [8, 9, 20]}, "at least 2 apart"),
        ({"looks": [2, 20]}, "give rising numbers of seeds from 3"),
        ({"looks": [14, 8]}, "give rising numbers of seeds"),
        ({"looks": [20], "alpha": 0}, "alpha=0: give a number between 0 and 0.25"),
        ({"looks": [20], "margin": "5"}, "margin='5'"),
        ({"looks": [12]}, "12 seeds have 50% power at a margin of 0.05 for a deviation of 0.07"),
    ],
)
def test_invalid_designs_are_rejected(content, reason):
    with pytest.raises(ValueError, match=".*") as fault:
        read_design(content)
    assert reason in str(fault.value)


def test_fewer_seeds_suffice_for_a_smaller_deviation():
    assert read_design({"looks": [6, 10], "deviation": 0.04}).looks == (6, 10)


# ---------------------------------------------------------------------------------------------
# known effects in, verdicts out


def test_simulation_judges_as_the_findings_do():
    """The fast simulation and `Statement.judge` agree on every repetition, with questions."""
    case = Case(effect=0.06, deviation=0.05, questions_error=0.01)
    values_RS, shift_R = simulate(case, LOOKS, repeats=40, seed=3)
    found = judge_all(values_RS, shift_R, case, DESIGN)
    questions_Q = np.tile([-1.0, 1.0], 100)
    questions_Q *= 0.01 * math.sqrt(199 / 200) * math.sqrt(200)  # standard error 0.01, mean 0
    statement = Statement("x", "c", "s", "higher")
    for row, (seeds_S, shift) in enumerate(zip(values_RS, shift_R)):
        judged = statement.judge((seeds_S + shift)[:, None] + questions_Q, "commit", DESIGN)
        expected = {"reproduced": 1, "refuted": -1, "no effect": 0, "open": 2}[judged["outcome"]]
        assert found.verdict_R[row] == expected and found.seeds_R[row] == judged["look"]
        assert [found.low_R[row], found.high_R[row]] == pytest.approx(judged["interval"], abs=2e-5)


@pytest.mark.parametrize("questions_error", [0.0, 0.01])
def test_errors_and_coverage_of_the_design(questions_error):
    repeats = 20_000
    noise = 3 * math.sqrt(0.05 * 0.95 / repeats)
    for effect in (0.0, 0.05):
        case = Case(effect, 0.07, questions_error)
        found = judge_all(*simulate(case, LOOKS, repeats, seed=4), case, DESIGN)
        covered = (found.low_R <= effect) & (effect <= found.high_R)
        assert covered.mean() >= 0.95 - noise
        is_false = np.isin(found.verdict_R, (1, -1)) if effect == 0 else found.verdict_R == 0
        assert is_false.mean() <= 0.05 + noise
        if questions_error == 0:
            right = found.verdict_R == (0 if effect == 0 else 1)
            assert right.mean() >= DESIGN.power_at(effect) - noise


def test_opposite_effects_have_opposite_verdicts():
    case = Case(0.06, 0.07, 0.0)
    values_RS, shift_R = simulate(case, LOOKS, repeats=2000, seed=5)
    one = judge_all(values_RS, shift_R, case, DESIGN)
    other = judge_all(-values_RS, -shift_R, case, DESIGN)
    swap = {1: -1, -1: 1, 0: 0, 2: 2}
    assert [swap[v] for v in one.verdict_R.tolist()] == other.verdict_R.tolist()
    assert {1, 0, 2} <= {*one.verdict_R.tolist()}
    assert np.array_equal(one.seeds_R, other.seeds_R)


def committed_rows():
    return json.loads((OUT / "simulation.json").read_text())["rows"]


def test_committed_simulation_keeps_the_errors():
    """200,000 repetitions: rates have a standard error of at most 0.05 points at 5%."""
    for row in committed_rows():
        assert row["coverage"] >= 0.9485
        if row["effect"] == 0:
            assert row["higher"] + row["lower"] <= 0.0515
        if row["effect"] >= 0.05:
            assert row["no_effect"] <= 0.0515


def test_documented_table_is_that_of_the_file():
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    table = page.partition("| true effect, points |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(table) == 5
    for line in table:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows = [
            row
            for row in committed_rows()
            if row["effect"] == float(cells[0]) / 100
            and row["deviation"] == 0.07
            and row["questions_error"] == 0
        ]
        for place, row in enumerate(rows):
            values = [row["higher"] + row["lower"], row["no_effect"], row["open"], row["coverage"]]
            for cell, value in zip(cells[1:5], values):
                assert float(cell.split(", ")[place]) == pytest.approx(100 * value, abs=0.051)
            assert float(cells[5].split(", ")[place]) == pytest.approx(row["seeds"], abs=0.051)
