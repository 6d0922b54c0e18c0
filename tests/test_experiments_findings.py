"""Findings: effects by hand, verdicts, and the committed findings.

Run: python -m pytest tests/test_experiments_findings.py
"""

import json
import subprocess

import numpy as np
import pytest

from drlib.config import ROOT
from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results
from drlib.experiments.agent_comparison import AgentRecords
from drlib.experiments.agent_plan import agent_findings
from drlib.experiments.designs import SEEDS, Design
from drlib.experiments.findings_page import (
    FINDINGS_PAGE,
    NOT_REPRODUCED_PAGE,
    findings_page,
    is_against,
    meanings_block,
    not_reproduced_page,
    read_findings,
    readme_findings,
)
from drlib.experiments.plan import PLANS, ExperimentPlan, load_plan, what_ran
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.reference_run import reference_blocks, with_block
from drlib.experiments.tables import findings_of, summary
from drlib.experiments.verdicts import (
    Statement,
    corrected_outcomes,
    decide,
    registration,
    smallest_detectable,
)
from drlib.intervals import t_quantile
from tests.experiment_examples import toy_plan

PLAN = {
    "stage": "sft",
    "asked": ["search sample", "search greedy", "python sample"],
    "control": "old",
    "arms": {
        "old": {"sft.steps": 5},
        "new": {"sft.steps": 6, "claim": "More is better", "source": "s", "expected": "higher"},
    },
}


def outcome(task, kind, samples, greedy=False):
    return Outcome(task, kind, 1, greedy, samples, 4, 0, 2, 0, 0)


def arm_results(by_seed):
    """Return the results of an arm whose seeds have these outcomes."""
    outcomes = {("sft", seed): some for seed, some in by_seed.items()}
    rows = [row for (_, seed), some in outcomes.items() for row in rows_of(some, "sft", seed)]
    return Results("make it", "ci", rows, outcomes)


def findings(plan, new, old):
    """Return the findings of hand-made results."""
    runs = {arm: {str(seed): {} for seed in plan.seeds} for arm in plan.arms}
    head = {"command": "make it", **what_ran(plan), "seeds": list(plan.seeds), "runs": runs}
    results = {"old": old, "new": new}
    return findings_of(summary(plan, ExperimentRecords(head | {"registered": ""}, results)))


def test_effect_is_the_paired_difference(tmp_path):
    right, wrong = [True, True], [False, False]
    half = [True, False]
    python = outcome("p", "python", right)
    on = {
        0: [outcome("a", "search", right), outcome("b", "search", half), python],
        1: [outcome("a", "search", right), outcome("b", "search", right), python],
    }
    off = {
        0: [outcome("a", "search", half), outcome("b", "search", half), python],
        1: [outcome("a", "search", wrong), outcome("b", "search", half), python],
    }
    new, old = arm_results(on), arm_results(off)
    plan = toy_plan(tmp_path, **PLAN)
    found = findings(plan, new, old)[plan.name]
    assert found["by_seed"] == [0.25, 0.75] and found["pilot"]
    assert found["effect"] == (0.5 + 0 + 1 + 0.5) / 4
    assert found["accuracy"] == [(1 + 0.5 + 1 + 1) / 4, (0.5 + 0.5 + 0 + 0.5) / 4]
    low, high = found["interval"]
    assert low < found["effect"] < high and found["outcome"] == "open"
    assert found["n"] == 2 and found["seeds"] == [0, 1] and found["command"] == "make it"
    assert found["setting"] == {"sft.steps": 6} and found["control"] == {"sft.steps": 5}
    also = {(row["kind"], row["decoding"]): row["effect"] for row in found["also"]}
    assert also == {("search", "greedy"): 0, ("python", "sample"): 0}
    assert findings(plan, old, new)[plan.name]["effect"] == -0.5


def test_single_claim_has_the_name_of_its_plan(tmp_path):
    claim = {"claim": "c", "source": "s", "expected": "higher"}
    one = {"ppo": {}, "cispo": {"rl.loss.clip": "cispo", **claim}}
    two = {**one, "none": {"rl.loss.clip": "none", **claim}}
    assert toy_plan(tmp_path, arms=one).finding_name("cispo") == "toy"
    assert toy_plan(tmp_path, arms=two).finding_name("cispo") == "toy_cispo"


def run_git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_registration_requires_a_commit_before_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("drlib.training.run_folder.ROOT", tmp_path)
    run_git(tmp_path, "init", "-q")
    run_git(tmp_path, "commit", "-q", "--allow-empty", "-m", "before")
    before = run_git(tmp_path, "rev-parse", "HEAD")
    file = tmp_path / "plan.yaml"
    file.write_text("name: x\nseeds: [0, 1]\n")
    assert registration(file, [0, 1], [before]) == ""  # not committed
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-q", "-m", "register")
    registered = run_git(tmp_path, "rev-parse", "HEAD")
    assert registration(file, [0, 1], [registered]) == registered
    assert registration(file, [0, 1], [before, registered]) == ""  # one run was made earlier
    assert registration(file, [0, 1], [registered + "-dirty"]) == registered
    assert registration(file, [0, 1, 2], [registered]) == ""  # another seed
    file.write_text("name: y\nseeds: [0, 1]\n")
    assert registration(file, [0, 1], [registered]) == ""  # changed
    run_git(tmp_path, "commit", "-qam", "rename")
    assert registration(file, [0, 1], [registered]) == registered
    file.write_text("name: y\nseeds: [0, 1, 2]\n")
    run_git(tmp_path, "commit", "-qam", "more seeds")
    assert registration(file, [0, 1, 2], [registered]) == ""


def test_design_is_registered_with_its_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr("drlib.training.run_folder.ROOT", tmp_path)
    run_git(tmp_path, "init", "-q")
    file = tmp_path / "plan.yaml"

    def commit(text):
        file.write_text(text)
        run_git(tmp_path, "add", ".")
        run_git(tmp_path, "commit", "-qm", "plan")
        return run_git(tmp_path, "rev-parse", "HEAD")

    pilot = commit("name: x\nseeds: [0, 1, 2]\n")
    first = commit("name: x\ndesign: {looks: [8, 20]}\n")
    assert registration(file, range(20), [first]) == first
    assert registration(file, range(8), [first]) == first  # the seeds of a look
    assert registration(file, [0, 2], [first]) == ""  # not the first ones
    assert registration(file, range(8), [pilot]) == ""  # one run was made before the design
    spelled = commit("name: x\ndesign:\n  looks: [8, 20]\n  alpha: 0.05\n")
    assert registration(file, range(8), [first, spelled]) == first  # equal values
    changed = commit("name: x\ndesign: {looks: [8, 14, 20]}\n")
    assert registration(file, range(8), [changed]) == changed
    assert registration(file, range(8), [first, changed]) == ""  # changed after the first run
    other = commit("name: x\nseeds: [1, 2, 3, 4]\ndesign: {looks: [4], deviation: 0.01}\n")
    assert registration(file, [1, 2], [other]) == other
    assert registration(file, [0, 1], [other]) == ""


def rows_of_seeds(by_seed, questions=50):
    """Return differences [S, Q] without a part of the questions."""
    return np.tile(np.array(by_seed, float)[:, None], (1, questions))


def test_claim_without_registration_stays_open():
    statement = Statement("x", "c", "s", "higher")
    differences_SQ = rows_of_seeds([0.09, 0.11] * (SEEDS // 2))
    judged = statement.judge(differences_SQ, "some commit")
    assert judged["outcome"] == "reproduced" and not judged["pilot"] and judged["look"] == SEEDS
    judged = statement.judge(differences_SQ, "")
    assert judged["outcome"] == "open" and judged["pilot"] and "look" not in judged
    assert statement.judge(differences_SQ[:-1], "some commit")["pilot"]


LOOKS = Design(looks=(8, 14, 20))
CLEAR, WEAK = [0.28, 0.32], [-0.2, 0.24]  # pairs of seeds


@pytest.mark.parametrize(
    ("by_seed", "look", "outcome", "final"),
    [
        (CLEAR * 3, None, "open", None),  # before the first look
        (CLEAR * 4, 8, "reproduced", True),
        (CLEAR * 4 + [-0.9] * 6, 8, "reproduced", True),  # later seeds do not change it
        (WEAK * 4, 8, "open", False),
        (WEAK * 4 + [0.3] * 5, 8, "open", False),  # between two looks
        (WEAK * 7, 14, "open", False),
        (WEAK * 10, 20, "open", True),  # undecided at the end
        ([-0.28, -0.32] * 4, 8, "refuted", True),
        ([0.002, -0.002] * 4, 8, "no effect", True),
    ],
)
def test_claim_is_decided_at_the_first_look_with_a_verdict(by_seed, look, outcome, final):
    judged = Statement("x", "c", "s", "higher").judge(rows_of_seeds(by_seed), "commit", LOOKS)
    assert (judged["outcome"], judged.get("look"), judged.get("final")) == (outcome, look, final)
    assert judged["pilot"] == (look is None)
    used = by_seed[: look or len(by_seed)]
    assert judged["effect"] == pytest.approx(np.mean(used), abs=1e-5)
    if look:
        deviation = np.std(used, ddof=1)
        half = t_quantile(look - 1, (1 + LOOKS.confidence(look)) / 2) * deviation / look**0.5
        low, high = judged["interval"]
        assert (high - low) / 2 == pytest.approx(half, abs=2e-5)
        assert (judged["p_difference"] <= 0.05) == (outcome in ("reproduced", "refuted"))
        assert (judged["p_equivalence"] <= 0.05) == (outcome == "no effect")


def test_look_uses_only_leading_seeds_without_a_gap():
    rows_SQ = rows_of_seeds(CLEAR * 4)
    statement = Statement("x", "c", "s", "higher")
    assert statement.judge(rows_SQ, "commit", LOOKS, ready=7)["pilot"]
    assert statement.judge(rows_SQ, "commit", LOOKS, ready=8)["look"] == 8


def test_correction_by_hand():
    """Four claims with a design: Holm multiplies sorted p-values by 4, 3, 2, 1, in each family."""
    design = Design(looks=(20,)).as_dict()

    def finding(outcome, p_difference, p_equivalence=1.0, expected="higher"):
        ps = {"p_difference": p_difference, "p_equivalence": p_equivalence}
        return {"outcome": outcome, "expected": expected, "design": design, **ps}

    found = {
        "a": finding("reproduced", 0.012),  # 4 x 0.012 = 0.048
        "b": finding("refuted", 0.017),  # 3 x 0.017 = 0.051
        "c": finding("no effect", 0.9, 0.0125),  # 4 x 0.0125 = 0.05
        "d": finding("reproduced", 0.8, 0.02, "same"),  # 3 x 0.02 = 0.06
        "pilot": {"outcome": "open", "pilot": True},
    }
    expected = {"a": "reproduced", "b": "open", "c": "no effect", "d": "open"}
    assert corrected_outcomes(found, "abcd") == expected
    assert corrected_outcomes(found, "ab") == expected  # judged claims count anyway
    assert corrected_outcomes(found, "abcde") == dict.fromkeys("abcd", "open")  # one not judged
    three = {name: found[name] for name in "bcd"}
    assert corrected_outcomes(three, "bcd") == {"b": "open", "c": "no effect", "d": "reproduced"}
    # monotone: a larger p-value is not significant after one that is not
    late = {"a": finding("reproduced", 0.03), "b": finding("reproduced", 0.04)}
    assert corrected_outcomes(late, "ab") == {"a": "open", "b": "open"}


@pytest.mark.parametrize(
    ("expected", "low", "high", "outcome"),
    [
        ("higher", 0.01, 0.2, "reproduced"),
        ("higher", -0.2, -0.01, "refuted"),
        ("higher", -0.01, 0.2, "open"),
        ("higher", 0.0, 0.2, "open"),
        ("higher", 0.01, 0.05, "no effect"),
        ("lower", -0.2, -0.01, "reproduced"),
        ("lower", 0.01, 0.2, "refuted"),
        ("lower", -0.05, 0.05, "no effect"),
        ("same", -0.05, 0.05, "reproduced"),
        ("same", 0.01, 0.05, "reproduced"),
        ("same", -0.06, 0.05, "open"),
        ("same", 0.01, 0.11, "refuted"),
    ],
)
def test_verdict_depends_on_the_intervals(expected, low, high, outcome):
    assert decide(expected, (low, high), (low, high)) == outcome


def test_tests_of_difference_and_margin_have_intervals_of_their_own():
    assert decide("higher", (-0.01, 0.06), (0.0, 0.05)) == "no effect"
    assert decide("higher", (-0.01, 0.04), (-0.06, 0.04)) == "open"
    assert decide("higher", (0.01, 0.09), (0.02, 0.08), margin=0.1) == "no effect"


def test_smallest_detectable_effect():
    """Differences 0, 0.1, 0.2: s = 0.1, n = 3, t(0.975, 2) = 4.3027, t(0.8, 2) = 1.0607."""
    expected = (4.302653 + 1.060660) * 0.1 / 3**0.5
    assert smallest_detectable([0, 0.1, 0.2]) == pytest.approx(expected, abs=1e-5)
    assert smallest_detectable([0.3]) is None


def test_committed_findings_follow_from_their_records():
    expected, first_look = {}, {}
    for path in PLANS.glob("*.yaml"):
        plan, records = load_plan(path.stem), EXPERIMENTS / f"{path.stem}.parquet"
        if records.exists() and isinstance(plan, ExperimentPlan):
            found = findings_of(summary(plan, ExperimentRecords.load(records)))
            expected |= found
            first_look |= dict.fromkeys(found, (plan.design or Design()).looks[0])
        elif records.exists():
            expected |= agent_findings(plan, AgentRecords.load(records))
    stored = read_findings()
    assert {*stored} == {*expected} and len(stored) == 70
    for name, found in expected.items():
        assert stored[name] == json.loads(json.dumps(found)), name
        least = first_look.get(name, SEEDS)
        assert len(found["seeds"]) >= 3 and found["pilot"] == (len(found["seeds"]) < least)


def test_generated_pages_are_current():
    hint = "run: drlib experiment pages"
    assert FINDINGS_PAGE.read_text(encoding="utf-8") == findings_page(reference_blocks()), hint
    assert NOT_REPRODUCED_PAGE.read_text(encoding="utf-8") == not_reproduced_page(), hint
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_block(readme, readme_findings(), "findings") == readme, hint


@pytest.mark.parametrize(
    ("expected", "effect", "interval", "against"),
    [
        ("higher", -0.01, (-0.1, 0.08), True),
        ("higher", 0.01, (-0.08, 0.1), False),
        ("lower", 0.01, (-0.08, 0.1), True),
        ("lower", -0.2, (-0.3, -0.1), False),
        ("same", 0.2, (0.1, 0.3), True),
        ("same", -0.2, (-0.3, -0.1), True),
        ("same", 0.2, (0.0, 0.4), False),
    ],
)
def test_estimates_against_the_source(expected, effect, interval, against):
    claim = {"expected": expected, "effect": effect, "interval": interval}
    assert is_against(claim) == against
    assert not is_against(claim | {"statistic": "kendall"})


@pytest.mark.parametrize("write_page", [meanings_block, not_reproduced_page])
def test_each_finding_needs_its_text(write_page, tmp_path):
    """A missing text and one of another finding; `mask` is confirmed, so it needs no reason."""
    file, found = tmp_path / "texts.yaml", read_findings()
    if write_page is not_reproduced_page:
        found = {name: claim for name, claim in found.items() if is_against(claim)}
        assert "drift" in found and "mask" not in found
    extra = "gone" if write_page is meanings_block else "mask"
    file.write_text("".join(f"{name}: Try it.\n" for name in [*({*found} - {"drift"}), extra]))
    with pytest.raises(ValueError, match=rf"texts.yaml: add \['drift'\], remove \['{extra}'\]"):
        write_page(file=file)


def test_findings_require_a_claim_and_a_comparison():
    asked = {"kind": "search", "decoding": "sample", "n": 7, "accuracy": 0.25}
    difference = {"effect": -0.125, "interval": [-0.2, -0.05], "seeds": [0, 1], "by_seed": [0, 0]}
    claim = {"claim": "Less is less", "source": "nobody", "expected": "lower"}
    arms = [
        {"arm": "usual", "settings": {}, "asked": [{**asked, "accuracy": 0.375}]},
        {
            "arm": "less",
            "settings": {"rl.lr": 0.1},
            "asked": [{**asked, "difference": difference}],
            "claim": {"finding": "some", **claim, "outcome": "open", "pilot": True, **difference},
        },
        {
            "arm": "later",
            "settings": {},
            "asked": [],
            "claim": {"finding": "later", **claim, "outcome": "open"},
        },
    ]
    found = {"name": "some", "control": "usual", "command": "again", "commit": ["c"], "arms": arms}
    (name,) = found_claims = findings_of(found | {"stage": "rl", "common": {}})
    assert name == "some" and found_claims[name]["accuracy"] == [0.25, 0.375]
    assert found_claims[name]["setting"] == {"rl.lr": 0.1} and found_claims[name]["n"] == 7
