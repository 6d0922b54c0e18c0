"""Findings: the effect by hand, the verdict, and that every committed one follows from its rows.

Run: python -m pytest tests/test_experiments_findings.py
"""

import json

import pytest

from drlib.config import FIELDS, ROOT, Config
from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results
from drlib.experiments.findings import (
    ARMS,
    CLAIMS,
    FINDINGS,
    Claim,
    claims,
    finding,
    measure,
)
from drlib.experiments.findings_page import (
    FINDINGS_PAGE,
    findings_block,
    findings_page,
    read_findings,
    readme_findings,
    reference_sweeps,
)
from drlib.experiments.plan import PLANS, load_sweep
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.reference_run import reference_blocks, with_block
from drlib.experiments.strategies import Plan
from drlib.experiments.tables import claims_of
from drlib.experiments.verdicts import SEEDS, decide, smallest_detectable
from tests.loop_examples import build_stages

CLAIM = Claim(
    "toy", "More is better", "nobody", "higher", "sft", "search", "sample", {"seed": 1}, {"seed": 2}
)


def outcome(task, kind, samples, greedy=False):
    return Outcome(task, kind, 1, greedy, samples, 4, 0, 2, 0, 0)


def arm_results(by_seed):
    """Return the results of an arm whose seeds have these outcomes."""
    outcomes = {("sft", seed): some for seed, some in by_seed.items()}
    rows = [row for (_, seed), some in outcomes.items() for row in rows_of(some, "sft", seed)]
    return Results("make it", "ci", rows, outcomes)


@pytest.mark.parametrize("name", sorted(claims()))
def test_a_claim_compares_two_arms_that_differ_in_what_it_names(name):
    claim = claims()[name]
    on, off = (claim.config(arm, "laptop", 3) for arm in ARMS)
    differ = {name for name in FIELDS if on.get(name) != off.get(name)}
    assert differ == set(claim.setting) == set(claim.control)
    assert on.seed == off.seed == 3 and on.evaluation.seed == Config().evaluation.seed


def test_the_effect_is_the_paired_difference_by_hand(tmp_path):
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
    results = {"setting": arm_results(on), "control": arm_results(off)}
    found = finding(CLAIM, ExperimentRecords({}, results))
    assert found["by_seed"] == [0.25, 0.75] and found["pilot"]
    assert found["effect"] == (0.5 + 0 + 1 + 0.5) / 4
    assert found["accuracy"] == [(1 + 0.5 + 1 + 1) / 4, (0.5 + 0.5 + 0 + 0.5) / 4]
    low, high = found["interval"]
    assert low < found["effect"] < high and found["outcome"] == "open"
    assert found["n"] == 2 and found["seeds"] == [0, 1] and found["command"] == "make it"
    also = {(row["kind"], row["decoding"]): row["effect"] for row in found["also"]}
    assert also == {("search", "greedy"): 0, ("python", "sample"): 0, ("python", "greedy"): 0}
    swapped = {"setting": results["control"], "control": results["setting"]}
    assert finding(CLAIM, ExperimentRecords({}, swapped))["effect"] == -0.5


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
def test_the_verdict_follows_from_the_interval_and_the_number_of_seeds(
    expected, low, high, outcome
):
    assert decide(expected, low, high, SEEDS) == outcome
    assert decide(expected, low, high, SEEDS - 1) == "open"


def test_the_smallest_detectable_effect_by_hand():
    """Differences 0, 0.1, 0.2: s = 0.1, n = 3, t(0.975, 2) = 4.3027, t(0.8, 2) = 1.0607."""
    expected = (4.302653 + 1.060660) * 0.1 / 3**0.5
    assert smallest_detectable([0, 0.1, 0.2]) == pytest.approx(expected, abs=1e-5)
    assert smallest_detectable([0.3]) is None


def test_a_claim_that_compares_nothing_is_named(tmp_path):
    entry = (
        "- {name: x, claim: c, source: s, expected: higher, stage: sft, kind: search, "
        "decoding: sample, "
    )
    table = tmp_path / "claims.yaml"
    for arms, reason in (
        ("setting: {seed: 1}, control: {seed: 1}}", "x: both arms are the same"),
        ("setting: {seed: 1}, control: {sft.steps: 1}}", "x: arms of other settings"),
    ):
        table.write_text(entry + arms)
        with pytest.raises(ValueError, match=reason):
            claims(table)
    table.write_text(
        (entry + "setting: {seed: 1}, control: {seed: 2}}").replace("higher", "better")
    )
    with pytest.raises(ValueError, match="x: expected='better'"):
        claims(table)
    with pytest.raises(ValueError, match="unknown finding 'mistake': there are .*'funnel'"):
        measure("mistake", "ci", [0], tmp_path, tmp_path)


def test_both_arms_are_trained_asked_and_written_down(tmp_path):
    small = "{model.layers: 2, demonstrations.count: 20, evaluation.questions: 3, processes: 1}"
    table = tmp_path / "claims.yaml"
    table.write_text(
        "- {name: wide, claim: Wide is better, source: nobody, expected: higher, "
        "stage: untrained, kind: python, decoding: greedy, "
        f"common: {small}, setting: {{model.hidden: 64}}, control: {{model.hidden: 32}}}}"
    )
    claim = claims(table)["wide"]
    runs = tmp_path / "runs"
    for arm in ARMS:
        names = ("world", "untrained", "demonstrations", "evaluate_untrained")
        build_stages(names, claim.config(arm, "ci", 0), runs)
    path = measure("wide", "ci", [0], runs, tmp_path / "rows", tmp_path / "out", table)
    found = json.loads(path.read_text())
    assert found["command"] == "drlib experiment run wide --profile ci --seeds 0"
    assert found["accuracy"] == [0, 0] and found["outcome"] == "open" and found["n"] == 3
    assert found["setting"] == {"model.hidden": 64} and found["control"] == {"model.hidden": 32}
    records = ExperimentRecords.load(tmp_path / "rows" / "wide.parquet")
    assert {*records.results} == {*ARMS} and finding(claim, records) == found
    assert "| Wide is better | nobody | 0.0, 0.0 (python, greedy, n=3, 1 seeds)" in findings_block(
        tmp_path / "out"
    )


TRAINED = [path for path in sorted(FINDINGS.glob("*.json")) if path.stem in claims()]


def test_every_committed_finding_belongs_to_a_claim_of_a_plan():
    swept = {
        f"{path.stem}_{arm.name}"
        for path in PLANS.glob("*.yaml")
        for arm in load_sweep(path).arms.values()
        if arm.statement
    }
    known = [*claims(), *Plan.load().claims, *swept]
    assert len(known) == len({*known}) and {*read_findings()} <= {*known}
    for found in read_findings().values():
        assert found["pilot"] == (len(found["seeds"]) < SEEDS)
        assert found["outcome"] in ("reproduced", "refuted", "no effect", "open")


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_a_committed_finding_follows_from_its_rows(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    records = ExperimentRecords.load(EXPERIMENTS / f"{path.stem}.parquet")
    assert stored == json.loads(json.dumps(finding(claims()[path.stem], records)))
    assert len(stored["seeds"]) >= 3


def test_the_claims_of_committed_experiments_follow_from_their_rows():
    stored = read_findings()
    judged = {name: c for found in reference_sweeps() for name, c in claims_of(found).items()}
    assert len(judged) > 20
    for name, claim in judged.items():
        assert stored[name] == json.loads(json.dumps(claim))


def test_the_table_of_claims_says_where_each_comes_from():
    assert CLAIMS.exists() and all(claim.source and claim.claim for claim in claims().values())


def test_the_pages_are_generated_from_the_committed_files():
    hint = "run: drlib experiment pages"
    assert FINDINGS_PAGE.read_text(encoding="utf-8") == findings_page(reference_blocks()), hint
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_block(readme, readme_findings(), "findings") == readme, hint


def test_only_compared_arms_with_a_claim_become_findings():
    asked = {"kind": "search", "decoding": "sample", "n": 7, "accuracy": 0.25}
    difference = {"effect": -0.125, "interval": [-0.2, -0.05], "seeds": [0, 1], "by_seed": [0, 0]}
    claim = {"claim": "Less is less", "source": "nobody", "expected": "lower"}
    arms = [
        {"arm": "usual", "settings": {}, "asked": [{**asked, "accuracy": 0.375}]},
        {
            "arm": "less",
            "settings": {"rl.lr": 0.1},
            "asked": [{**asked, "difference": difference}],
            "claim": {**claim, "outcome": "open", "pilot": True, **difference},
        },
        {"arm": "later", "settings": {}, "asked": [], "claim": {**claim, "outcome": "open"}},
    ]
    found = {"name": "some", "control": "usual", "command": "again", "commit": ["c"], "arms": arms}
    (name,) = found_claims = claims_of(found | {"stage": "rl", "common": {}})
    assert name == "some_less" and found_claims[name]["accuracy"] == [0.25, 0.375]
    assert found_claims[name]["setting"] == {"rl.lr": 0.1} and found_claims[name]["n"] == 7
