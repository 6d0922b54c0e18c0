"""Findings: the effect by hand, the verdict, and that every committed one follows from its rows.

Run: python -m pytest tests/test_experiments_findings.py
"""

import json

import pytest

from drlib.config import Config
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
from drlib.experiments.findings_page import FINDINGS_PAGE, findings_block, findings_page
from drlib.experiments.verdicts import outcome_of
from drlib.experiments.strategies import Plan
from drlib.trajectory import load_trajectories
from tests.loop_examples import build_stages

CLAIM = Claim(
    "toy", "More is better", "nobody", "higher", "sft", "search", "sample", {"seed": 1}, {"seed": 2}
)


def outcome(task, kind, samples, greedy=False):
    return Outcome(task, kind, 1, greedy, samples, 4, 0, 2, 0, 0)


def save_arm(folder, by_seed):
    """An arm whose seeds have these outcomes."""
    outcomes = {("sft", seed): some for seed, some in by_seed.items()}
    rows = [row for (_, seed), some in outcomes.items() for row in rows_of(some, "sft", seed)]
    Results("make it", "ci", rows, outcomes).save(folder)


@pytest.mark.parametrize("name", sorted(claims()))
def test_a_claim_compares_two_arms_that_differ_in_what_it_names(name):
    claim = claims()[name]
    on, off = (claim.config(arm, "laptop", 3) for arm in ARMS)
    differ = {n for n, value in vars(on).items() if value != getattr(off, n)}
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
    save_arm(tmp_path / "setting", on)
    save_arm(tmp_path / "control", off)
    found = finding(CLAIM, tmp_path)
    assert found["effect"] == (0.5 + 0 + 1 + 0.5) / 4
    assert found["accuracy"] == [(1 + 0.5 + 1 + 1) / 4, (0.5 + 0.5 + 0 + 0.5) / 4]
    low, high = found["interval"]
    assert low < found["effect"] < high and found["outcome"] == "open"
    assert found["n"] == 2 and found["seeds"] == [0, 1] and found["command"] == "make it"
    also = {(row["kind"], row["decoding"]): row["effect"] for row in found["also"]}
    assert also == {("search", "greedy"): 0, ("python", "sample"): 0, ("python", "greedy"): 0}
    # the arms turned round
    (tmp_path / "setting").rename(tmp_path / "was")
    (tmp_path / "control").rename(tmp_path / "setting")
    (tmp_path / "was").rename(tmp_path / "control")
    assert finding(CLAIM, tmp_path)["effect"] == -0.5


@pytest.mark.parametrize(
    ("expected", "low", "high", "outcome"),
    [
        ("higher", 0.01, 0.2, "reproduced"),
        ("higher", -0.2, -0.01, "refuted"),
        ("higher", -0.01, 0.2, "open"),
        ("higher", 0.0, 0.2, "open"),
        ("lower", -0.2, -0.01, "reproduced"),
        ("lower", 0.01, 0.2, "refuted"),
        ("same", -0.1, 0.1, "reproduced"),
        ("same", 0.01, 0.09, "reproduced"),
        ("same", -0.11, 0.05, "open"),
        ("same", -0.05, 0.11, "open"),
        ("same", 0.01, 0.11, "refuted"),
        ("same", -0.3, -0.01, "refuted"),
    ],
)
def test_the_verdict_is_the_interval_s(expected, low, high, outcome):
    assert outcome_of(expected, low, high) == outcome


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
    with pytest.raises(ValueError, match="x: expected: 'better'"):
        claims(table)
    with pytest.raises(ValueError, match="unknown finding 'mistake': there are .*'funnel'"):
        measure("mistake", "ci", [0], tmp_path, tmp_path)


def test_both_arms_are_trained_asked_and_written_down(tmp_path):
    small = "{layers: 2, demonstrations: 20, evaluation.questions: 3, processes: 1}"
    table = tmp_path / "claims.yaml"
    table.write_text(
        "- {name: wide, claim: Wide is better, source: nobody, expected: higher, "
        "stage: untrained, kind: python, decoding: greedy, "
        f"common: {small}, setting: {{hidden: 64}}, control: {{hidden: 32}}}}"
    )
    claim = claims(table)["wide"]
    runs = tmp_path / "runs"
    for arm in ARMS:
        names = ("world", "untrained", "demonstrations", "evaluate_untrained")
        build_stages(names, claim.config(arm, "ci", 0), runs)
    path = measure("wide", "ci", [0], runs, tmp_path / "out", table)
    found = json.loads(path.read_text())
    assert found["command"] == "drlib experiment run wide --profile ci --seeds 0"
    assert found["accuracy"] == [0, 0] and found["outcome"] == "open" and found["n"] == 3
    assert found["setting"] == {"model.hidden": 64} and found["control"] == {"model.hidden": 32}
    for arm in ARMS:
        kept = load_trajectories(tmp_path / "out" / "wide" / arm / "seed0_greedy.parquet")
        assert kept and not any(one.answer for one in kept)
    assert "| Wide is better | nobody | 0.0, 0.0 (python, greedy, n=3, 1 seeds)" in findings_block(
        tmp_path / "out"
    )


TRAINED = [path for path in sorted(FINDINGS.glob("*.json")) if path.stem in claims()]


def test_every_committed_finding_is_of_a_claim_that_there_is():
    known = {*claims(), *Plan.load().claims}
    assert {path.stem for path in FINDINGS.glob("*.json")} <= known
    assert not {*claims()} & {*Plan.load().claims}, "a name is one claim's"


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_a_committed_finding_follows_from_its_rows(path):
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(finding(claims()[path.stem], FINDINGS / path.stem)))
    assert len(told["seeds"]) >= 3


def test_the_table_of_claims_says_where_each_comes_from():
    assert CLAIMS.exists() and all(claim.source and claim.claim for claim in claims().values())


def test_the_page_of_findings_is_drawn_from_the_committed_files():
    assert FINDINGS_PAGE.read_text(encoding="utf-8") == findings_page(), (
        "run: drlib experiment pages"
    )


def test_an_arm_of_a_sweep_that_claims_something_is_a_row_beside_the_findings(tmp_path):
    """An arm that claims nothing, or was not compared yet, is none."""
    asked = {"kind": "search", "decoding": "sample", "n": 7, "accuracy": 0.25}
    difference = {"effect": -0.125, "interval": [-0.2, -0.05], "seeds": [0, 1]}
    claim = {"claim": "Less is less", "source": "nobody", "expected": "lower"}
    arms = [
        {"arm": "usual", "asked": [{**asked, "accuracy": 0.375}]},
        {
            "arm": "less",
            "asked": [{**asked, "difference": difference}],
            "claim": {**claim, "outcome": "reproduced", **difference},
        },
        {"arm": "later", "asked": [], "claim": {**claim, "outcome": "open"}},
    ]
    folder = tmp_path / "sweeps" / "some"
    folder.mkdir(parents=True)
    found = {"control": "usual", "command": "drlib experiment run some", "arms": arms}
    (folder / "sweep.json").write_text(json.dumps(found))
    rows = findings_block(tmp_path / "none", tmp_path / "sweeps").splitlines()[2:]
    assert rows == [
        "| Less is less | nobody | 25.0, 37.5 (search, sample, n=7, 2 seeds) "
        "| -12.5 [-20.0, -5.0] | **reproduced** | `drlib experiment run some` |"
    ]
