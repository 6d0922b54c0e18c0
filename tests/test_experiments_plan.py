"""Experiment plans and their tables: rejected plans, and numbers by hand.

test_experiments_runner.py tests the runs, and test_experiments_figures.py the figures.

Run: python -m pytest tests/test_experiments_plan.py
"""

import sys

import numpy as np
import pytest

from drlib import cli
from drlib.config import ROOT, Config
from drlib.experiments.designs import Design
from drlib.experiments.plan import PLANS, designed_plans, load_plan
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.runner import costs, is_finished, listing, missing_policies
from drlib.experiments.tables import (
    curves,
    findings_of,
    outcome_text,
    summary,
    table,
    write_summary,
)
from drlib.intervals import difference_interval, share_interval
from drlib.training.launch import find_error
from tests.experiment_examples import (
    CLIPS,
    HALF,
    RIGHT,
    WRONG,
    make_outcomes,
    make_records,
    row,
    rows,
    toy_plan,
    write_plan,
)

CLAIM = {"claim": "CISPO is better", "source": "nobody", "expected": "higher"}


RUNS = {
    ("ppo", 0): (make_outcomes(HALF, HALF, WRONG), rows(generated=10.0, tokens=100)),
    ("ppo", 1): (make_outcomes(WRONG, HALF, WRONG), rows(generated=30.0, tokens=300)),
    ("cispo", 0): (make_outcomes(RIGHT, HALF, WRONG), rows(generated=20.0, tokens=200)),
    ("cispo", 1): (make_outcomes(RIGHT, RIGHT, HALF), rows(generated=20.0, tokens=200, updates=2)),
}
PPO_SQ = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.0]])  # shares of right samples
CISPO_SQ = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.5]])


def summary_of(tmp_path, runs, failed=None, **changes):
    """Return the summary of these runs."""
    plan = toy_plan(tmp_path, **changes)
    return summary(plan, make_records(plan, runs, failed))


def by_name(found):
    return {arm["arm"]: arm for arm in found["arms"]}


def approximately(interval):
    return pytest.approx([float(end) for end in interval], abs=1e-5)


# ---------------------------------------------------------------------------------------------
# plan files


SHIPPED = sorted(path for path in PLANS.glob("*.yaml") if "\ntrials:" not in path.read_text())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_plans_are_valid(path):
    plan = load_plan(path.stem)
    assert plan == load_plan(path) and plan.name == path.stem
    assert len(plan.arms) >= 2 and len(plan.seeds) >= 3 and plan.profile == "laptop"
    assert load_plan(path, profile="ci", seeds=[5]).config(plan.control, 5).profile == "ci"
    claims = [arm for arm in plan.arms.values() if arm.statement]
    assert claims or len(plan.arms) > 2


def test_documented_plan_is_valid(tmp_path):
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    path = tmp_path / "lr.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    plan = load_plan(path)
    assert plan.finding_name("double") == "lr" and plan.config("double", 0).rl.lr == 8e-4
    assert plan.config("usual", 0).rl.lr == Config.load("laptop").rl.lr


def test_required_plans_are_shipped():
    assert {"clips", "corrections"} <= {path.stem for path in PLANS.glob("*.yaml")}


def test_run_has_the_settings_of_its_arm_and_seed(tmp_path):
    plan = toy_plan(tmp_path, common={"rl.steps": 7, "rl.lr": 1e-3}, seeds=[3, 5])
    assert plan.runs() == [("ppo", 3), ("cispo", 3), ("ppo", 5), ("cispo", 5)]
    ppo, cispo = plan.config("ppo", 3), plan.config("cispo", 5)
    assert (ppo.rl.loss.clip, cispo.rl.loss.clip) == ("ppo", "cispo")
    assert (ppo.seed, cispo.seed) == (3, 5)
    assert ppo.rl.steps == cispo.rl.steps == 7 and ppo.rl.lr == 1e-3


DESIGN = {"looks": [4, 6], "deviation": 0.01, "margin": 0.1}


def test_design_names_the_seeds(tmp_path):
    named = toy_plan(tmp_path, design=DESIGN, seeds=[*range(3, 9)])
    assert named.seeds == [3, 4, 5, 6, 7, 8] and named.design.looks == (4, 6)
    assert load_plan(named.file, seeds=[0]).seeds == [0]  # the design stays
    text = named.file.read_text().replace("seeds:\n- 3\n- 4\n- 5\n- 6\n- 7\n- 8\n", "")
    named.file.write_text(text)
    assert load_plan(named.file).seeds == [0, 1, 2, 3, 4, 5]
    assert [plan.name for plan in designed_plans(tmp_path)] == ["toy"]
    write_plan(tmp_path)
    assert designed_plans(tmp_path) == []


def test_claim_of_a_design_is_judged_at_its_looks(tmp_path):
    """Four seeds decide; two more of both arms, and a run that failed between, do not count."""
    arms = {"ppo": {}, "cispo": {"rl.loss.clip": "cispo"} | CLAIM}
    plan = toy_plan(tmp_path, arms=arms, design=DESIGN, seeds=[*range(3, 9)])
    wrong, right = make_outcomes(WRONG, WRONG, WRONG), make_outcomes(RIGHT, RIGHT, RIGHT)
    runs = {
        (arm, seed): (right if arm == "cispo" and seed < 7 else wrong, rows())
        for arm in arms
        for seed in plan.seeds
    }
    records = make_records(plan, runs)
    records.head |= {"registered": "a commit", "design": plan.design.as_dict()}
    for arm in arms:
        for seed in plan.seeds:
            own = {f"rl-{arm}{seed}": 900.0, f"world-{seed}": 450.0}  # one world for both arms
            records.head["runs"][arm][str(seed)]["stages"] = own
    (finding,) = findings_of(summary(plan, records)).values()
    assert (finding["outcome"], finding["look"], finding["final"]) == ("reproduced", 4, True)
    assert finding["seeds"] == [3, 4, 5, 6] and finding["by_seed"] == [1.0] * 4
    assert finding["accuracy"] == [1.0, 0.0] and finding["effect"] == 1.0
    assert finding["machine_hours"] == (4 * 2 * 900 + 4 * 450) / 3600
    del runs["ppo", 5]
    gap = make_records(plan, runs)
    gap.head |= {"registered": "a commit", "design": plan.design.as_dict()}
    (finding,) = findings_of(summary(plan, gap)).values()
    assert finding["pilot"] and finding["seeds"] == [3, 4, 6, 7, 8]
    # the design of the runs counts, not that of the plan
    records.head["design"] = plan.design.as_dict() | {"looks": [6]}
    (finding,) = findings_of(summary(plan, records)).values()
    assert (finding["look"], finding["effect"]) == (6, 0.66667)
    del records.head["design"]
    (finding,) = findings_of(summary(plan, records)).values()
    assert finding["pilot"] and finding["registered"] == "a commit"


def test_open_claims_of_a_design_show_its_state(tmp_path):
    claim = {"outcome": "open", "pilot": False, "look": 8, "final": False}
    claim["design"] = Design(looks=(8, 20)).as_dict()
    assert outcome_text(claim) == "open at 8 of 20 seeds"
    assert outcome_text(claim | {"look": 20, "final": True}) == "open, undecided at 20 seeds"
    assert outcome_text(claim | {"pilot": True}) == "open (pilot)"
    assert outcome_text(claim | {"outcome": "refuted", "final": True}) == "refuted"


def test_arm_settings_override_common_settings(tmp_path):
    plan = toy_plan(tmp_path, common={"rl.loss.clip": "none"})
    assert (plan.config("ppo", 0).rl.loss.clip, plan.config("cispo", 0).rl.loss.clip) == (
        "none",
        "cispo",
    )


CHAIN = {
    "stage": "distill",
    "policies": {
        "first": {"rl.steps": 1, "rl.curriculum.python_share": 0.0},
        "last": {"rl.steps": 1, "rl.start": "{first}"},
        "other": {"rl.steps": 2},
    },
    "common": {"distill.start": "{last}", "distill.steps": 0},
    "control": "one",
    "arms": {
        "one": {"distill.teachers": "{last}"},
        "two": {"distill.teachers": "search={first},python={last}"},
        "third": {"distill.start": "{other}", "distill.teachers": "{other}"},
    },
}


def test_arm_names_the_policies_of_other_runs(tmp_path):
    plan, runs = toy_plan(tmp_path, **CHAIN), tmp_path / "runs"
    assert plan.policies_of("one") == plan.policies_of("two") == ["first", "last"]
    assert plan.policies_of("third") == ["other"]
    assert missing_policies(plan, "two", 0, runs) == ["first", "last"]
    assert listing(plan, runs).splitlines()[2] == "third, seed 0: missing: policies other"
    first = write_policy(plan.policy_run("first", 0, runs))
    assert missing_policies(plan, "two", 0, runs) == ["last"]
    assert plan.policy_config("last", 0, runs).rl.start == str(first)
    last = write_policy(plan.policy_run("last", 0, runs))
    assert missing_policies(plan, "two", 0, runs) == []
    config = plan.config("two", 0, runs)
    assert config.distill.start == str(last) and config.seed == 0
    assert config.distill.teachers == f"search={first},python={last}"
    assert missing_policies(plan, "two", 1, runs) == ["first", "last"], "another seed"
    assert not is_finished(plan, "third", 0, runs) and not is_finished(plan, "two", 0, runs)


def write_policy(run):
    """Write the files by which a run counts as complete; return the folder of its policy."""
    (run / "policy").mkdir(parents=True)
    (run / "policy" / "model.safetensors").write_bytes(str(run).encode())
    (run / "manifest.json").write_text('{"settings": {}}')
    return run / "policy"


def test_records_of_other_policies_are_rejected(tmp_path):
    plan = toy_plan(tmp_path, **CHAIN)
    records = make_records(plan, {})
    other = CHAIN["policies"] | {"other": {"rl.steps": 3}}
    with pytest.raises(ValueError, match="have another policies than the plan"):
        summary(toy_plan(tmp_path, **{**CHAIN, "policies": other}), records)


BAD = [
    ({"kontrol": "ppo"}, "unknown key 'kontrol': did you mean 'control'?"),
    ({"control": "pppo"}, "control 'pppo' is no arm: did you mean 'ppo'?"),
    ({"stage": "rll"}, "unknown stage 'rll': did you mean 'rl'?"),
    ({"stage": "world"}, "unknown stage 'world'"),
    ({"stage": "evaluate_rl"}, "unknown stage 'evaluate_rl'"),
    ({"profile": "latop"}, "unknown profile 'latop': did you mean 'laptop'?"),
    ({"seeds": [0, 0]}, "seeds: give different whole numbers from 0"),
    ({"seeds": []}, "seeds: give different whole numbers from 0"),
    ({"seeds": 3}, "seeds: give different whole numbers from 0"),
    ({"name": "../x"}, "name '../x': give a text of letters"),
    ({"about": 3}, "about: give a text, got 3"),
    ({"arms": {"ppo": {}}}, "arms: give two and more"),
    ({"arms": {"ppo": {}, False: {}}}, "arm False: give a text of letters"),
    ({"arms": {"ppo": {}, "x": 3}}, "arm 'x': give {setting: value}, got 3"),
    ({"common": {"seed": 1}}, "common: seed belongs at the top, as seeds"),
    ({"common": {"rl_stepps": 1}}, "common: unknown setting 'rl_stepps': did you mean 'rl.steps'"),
    ({"common": {"plugins": "no_such"}}, "common: plugin 'no_such': no module 'no_such'"),
    ({"policies": {"a": {"rl.start": "{b}"}, "b": {}}}, "unknown policy in policy 'a': 'b'"),
    ({"policies": {"a": {"rl.klip": 1}}}, "unknown setting 'rl.klip'"),
    ({"common": {"rl.start": "{a}"}}, "unknown policy in common: 'a'"),
    ({"design": {"looks": [4]}}, "4 seeds have 7% power at a margin of 0.05"),
    ({"design": {"looks": [20]}}, "seeds: the design needs 20, got 2"),
    ({"design": {"lucks": [20]}}, "design: give {margin: 0.05"),
    ({"asked": ["search"]}, "asked: give a kind and a decoding each"),
    ({"asked": []}, "asked: give a list such as [search sample]"),
    ({"asked": ["serch sample"]}, "kind of question in asked: 'serch': did you mean 'search'?"),
    ({"asked": ["2 conditions sample"]}, "kind of question in asked: '2 conditions'"),
    ({"asked": ["search gredy"]}, "unknown decoding in asked: 'gredy': did you mean 'greedy'?"),
]
BAD_ARMS = [
    (
        {"rl.loss.klip": "cispo"},
        "arm 'x': unknown setting 'rl.loss.klip': did you mean 'rl.loss.clip'",
    ),
    ({"rl.loss.clip": "cisp"}, "arm 'x': setting 'rl.loss.clip' must be one of"),
    ({"rl.loss.clip": "ppo"}, "arms 'ppo' and 'x' have equal settings for stage 'rl'"),
    ({"sft.steps": 3}, "arms 'ppo' and 'x' have equal settings for stage 'rl'"),
    ({"evaluation.seed": 1}, "arm 'x': evaluation.seed chooses the held-out questions"),
    ({"world.name": "pydocs"}, "arm 'x': world.name chooses the held-out questions"),
    (
        {"rollout.search_results": 3},
        "arm 'x': rollout.search_results chooses the held-out questions",
    ),
    (
        {"rl.loss.correction": "mask"},
        "arm 'x': rl.loss.correction=\"mask\" has no effect",
    ),
    ({"rl.start": "nowhere"}, "rl.start='nowhere': there is no policy in"),
    (
        {"rl.loss.clip": "none", "claim": "x"},
        "arm 'x': a claim is three texts: claim, source, expected",
    ),
    (
        {"rl.loss.clip": "none"} | CLAIM | {"expected": "better"},
        "arm 'x': expected='better' must be higher, lower or same",
    ),
]
BAD.append(({"arms": {"ppo": CLAIM, "x": {"rl.loss.clip": "none"}}}, "arm 'ppo' is the control"))


@pytest.mark.parametrize(("changes", "reason"), BAD, ids=[reason[:40] for _, reason in BAD])
def test_invalid_plans_give_a_one_line_error(changes, reason, tmp_path, capsys):
    file = write_plan(tmp_path, **changes)
    folders = [f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}"]
    assert cli.main(["experiment", "run", str(file), *folders]) == 1
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
    assert reason in output.err
    assert not (tmp_path / "runs").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "reason"), BAD_ARMS, ids=[reason[:50] for _, reason in BAD_ARMS]
)
def test_invalid_arms_give_a_one_line_error(settings, reason, tmp_path):
    with pytest.raises(ValueError) as error:
        toy_plan(tmp_path, arms={"ppo": {}, "x": settings})
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_missing_ray_error_states_the_package(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    folders = [f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}", "--ray"]
    assert cli.main(["experiment", "run", str(write_plan(tmp_path)), *folders]) == 1
    assert capsys.readouterr().err == 'error: ray is missing: pip install "drlib[cluster]".\n'


def test_missing_and_malformed_plans_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="no plan 'clip': .* did you mean 'clips'?"):
        load_plan("clip")
    path = tmp_path / "bad.yaml"
    for text, reason in (
        ("a: [", "bad.yaml cannot be read as YAML"),
        ("- a", "give `name: value` lines, got list"),
        ("name: a", "the plan lacks 'about'"),
        ("arms: {a: {}, b: {}, a: {}}", "'a' stands twice in the plan"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=reason) as error:
            load_plan(path)
        assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------
# numbers


def test_accuracies_and_paired_difference_by_hand(tmp_path):
    arms = by_name(summary_of(tmp_path, RUNS))
    ppo, cispo = arms["ppo"]["asked"][0], arms["cispo"]["asked"][0]
    assert ppo["accuracy"] == pytest.approx(1.5 / 6) and ppo["n"] == 3
    assert cispo["accuracy"] == pytest.approx(4 / 6, abs=1e-5)
    assert ppo["by_seed"] == pytest.approx([1 / 3, 0.5 / 3], abs=1e-5)
    assert cispo["by_seed"] == pytest.approx([1.5 / 3, 2.5 / 3], abs=1e-5)
    assert [cispo["accuracy"], *cispo["interval"]] == approximately(share_interval(CISPO_SQ))
    difference = cispo["difference"]
    assert difference["effect"] == pytest.approx((0.5 + 0 + 0 + 1 + 0.5 + 0.5) / 6, abs=1e-5)
    expected = difference_interval(CISPO_SQ - PPO_SQ)
    assert [difference["effect"], *difference["interval"]] == approximately(expected)
    assert difference["by_seed"] == pytest.approx([0.5 / 3, 2 / 3], abs=1e-5)
    assert difference["seeds"] == [0, 1] and "difference" not in ppo


def test_swapping_the_control_flips_the_sign(tmp_path):
    swapped = by_name(summary_of(tmp_path, RUNS, control="cispo"))
    difference = swapped["ppo"]["asked"][0]["difference"]
    assert difference["effect"] == pytest.approx(-2.5 / 6, abs=1e-5)
    assert "difference" not in swapped["cispo"]["asked"][0]


def test_question_kinds_are_compared_separately(tmp_path):
    several = ["python greedy", "search sample"]
    python, search = by_name(summary_of(tmp_path, RUNS, asked=several))["cispo"]["asked"]
    assert (python["kind"], python["decoding"], python["n"]) == ("python", "greedy", 1)
    assert python["accuracy"] == 1 and python["difference"]["effect"] == 0
    assert search["kind"] == "search" and search["n"] == 3


def test_seeds_without_a_control_are_not_paired(tmp_path):
    runs = {at: run for at, run in RUNS.items() if at != ("ppo", 1)}
    found = summary_of(tmp_path, runs, failed={("ppo", 1): "it fell over"})
    arms = by_name(found)
    assert arms["ppo"]["seeds"] == [0] and arms["ppo"]["state"] == "failed"
    cispo = arms["cispo"]["asked"][0]
    assert cispo["accuracy"] == pytest.approx(4 / 6, abs=1e-5)
    assert cispo["difference"]["seeds"] == [0]
    assert cispo["difference"]["effect"] == pytest.approx(0.5 / 3, abs=1e-5)
    page = table(found)
    assert "`ppo` (1 of 2 seeds)" in page and "- `ppo`, seed 1: failed: it fell over" in page


def test_arms_without_runs_are_unfinished_or_failed(tmp_path):
    runs = {at: run for at, run in RUNS.items() if at[0] == "cispo"}
    arms = {**CLIPS["arms"], "none": {"rl.loss.clip": "none"}}
    found = summary_of(tmp_path, runs, failed={("none", 0): "a | b"}, arms=arms)
    assert [arm["state"] for arm in found["arms"]] == ["unfinished", "finished", "failed"]
    lines = {line.split("`")[1]: line for line in table(found).splitlines() if line[:3] == "| `"}
    cells = {name: [c.strip() for c in line.split(" | ")] for name, line in lines.items()}
    assert cells["ppo"][2:4] == ["not yet", "–"] and cells["none"][2:4] == ["failed", "–"]
    assert cells["cispo"][2].startswith("66.7 [") and cells["cispo"][3] == "–"
    assert len({len(row) for row in cells.values()}) == 1


def test_claim_is_judged_on_the_first_question_kind(tmp_path):
    """Two seeds are a pilot whatever the interval; twenty registered seeds allow a verdict."""
    right = [
        (make_outcomes(WRONG, WRONG, WRONG), rows()),
        (make_outcomes(RIGHT, RIGHT, RIGHT), rows()),
    ]
    for seeds, outcomes in ((range(2), ("open", "open")), (range(20), ("reproduced", "refuted"))):
        runs = {(arm, s): right[arm == "cispo"] for arm in ("ppo", "cispo") for s in seeds}
        for expected, expected_outcome in zip(("higher", "lower"), outcomes):
            arms = {"ppo": {}, "cispo": {"rl.loss.clip": "cispo"} | CLAIM | {"expected": expected}}
            plan = toy_plan(tmp_path, arms=arms, seeds=[*seeds])
            records = make_records(plan, runs)
            records.head["registered"] = "a commit"
            found = summary(plan, records)
            claim = by_name(found)["cispo"]["claim"]
            assert (claim["outcome"], claim["effect"]) == (expected_outcome, 1.0)
            assert claim["pilot"] == (len(seeds) < 20)
            text = "open (pilot)" if claim["pilot"] else expected_outcome
            assert f"CISPO is better (nobody): **{text}**" in table(found)
    one_seed = {at: run for at, run in runs.items() if at[1] == 0}
    claim = by_name(summary_of(tmp_path, one_seed, arms=arms))["cispo"]["claim"]
    assert (claim["outcome"], claim["effect"]) == ("open", 1.0)
    without_control = {at: run for at, run in runs.items() if at[0] == "cispo"}
    assert (
        by_name(summary_of(tmp_path, without_control, arms=arms))["cispo"]["claim"]["outcome"]
        == "open"
    )


def test_claim_without_an_effect_stays_open(tmp_path):
    runs = {at: (make_outcomes(RIGHT, RIGHT, HALF), rows()) for at in RUNS}
    found = summary_of(tmp_path, runs, arms={"ppo": {}, "cispo": {"rl.loss.clip": "cispo"} | CLAIM})
    claim = by_name(found)["cispo"]["claim"]
    assert (claim["outcome"], claim["effect"]) == ("open", 0)


def test_costs_are_sums_over_steps_and_means_over_seeds(tmp_path):
    arms = by_name(summary_of(tmp_path, RUNS))
    expected = {"seconds": 4, "rollout_seconds": 3, "rollouts": 64}
    # two steps of 32 rollouts of 10 and of 30 tokens; 100 and 300 trained tokens a step
    assert arms["ppo"]["cost"] == expected | {"generated_tokens": 1280, "trained_tokens": 400}
    # each step of the second seed took two updates
    assert arms["cispo"]["cost"] == expected | {"generated_tokens": 1280, "trained_tokens": 600}


def test_costs_of_supervised_empty_and_stopped_runs():
    supervised = [{"step": s, "seconds": 0.5, "tokens": 90, "loss_tokens": 40} for s in (1, 2)]
    assert costs(supervised) == {"steps": 2, "seconds": 1.0, "trained_tokens": 80}
    assert costs([]) == {"steps": 0}
    stopped = [row(1), row(2, stopped="unanswered 1 is above 0.95")]
    assert costs(stopped)["stopped"] == "unanswered 1 is above 0.95"


def test_table_notes_runs_that_stopped_early(tmp_path):
    runs = RUNS | {("cispo", 1): (RUNS["cispo", 1][0], [row(1, stopped="it collapsed")])}
    assert "- `cispo`, seed 1: stopped at step 1: it collapsed" in table(summary_of(tmp_path, runs))


def test_reward_metrics_are_means_over_the_last_steps_and_the_seeds(tmp_path):
    """By hand: 12 steps, of which the last 10 count; step 3 judged nothing."""
    outcomes = make_outcomes(HALF, HALF, WRONG)
    first = [row(s, reward=float(s), zero_variance=0.5) for s in range(1, 13)]
    del first[2]["reward"]
    second = [row(s, reward=1.0, zero_variance=0.25) for s in range(1, 13)]
    own = [row(1, reward=0.25, reward_std=0.5, zero_variance=0.0) | {"rewards/right/mean": 0.75}]
    runs = {("ppo", 0): (outcomes, first), ("ppo", 1): (outcomes, second)}
    runs |= {("cispo", 0): (outcomes, own), ("cispo", 1): (outcomes, [own[0] | {"reward": 0.75}])}
    found = summary_of(tmp_path, runs)
    arms = by_name(found)
    expected = (sum(range(4, 13)) / 9 + 1) / 2
    assert arms["ppo"]["rewards"] == {"reward": expected, "zero_variance": 0.375}
    assert arms["cispo"]["rewards"]["reward"] == 0.5
    heads, _, ppo, cispo = [
        [cell.strip() for cell in line.split(" | ")]
        for line in table(found).splitlines()
        if line.startswith("|")
    ]
    at = heads.index("reward")
    names = ["reward", "rewards/right/mean", "reward_std", "zero_variance"]
    assert heads[at : at + 4] == names
    assert ppo[at : at + 4] == ["4.500", "–", "–", "0.375"]
    assert cispo[at : at + 4] == ["0.500", "0.750", "0.500", "0.000"]
    # a seed without the metric: its mean is unknown
    runs["cispo", 1] = (outcomes, rows())
    assert by_name(summary_of(tmp_path, runs))["cispo"]["rewards"] == {}
    assert "reward" not in table(summary_of(tmp_path, RUNS))


def test_failure_reason_comes_from_the_log():
    log = "error: give rl_x=1\nE1234 Traceback\ntorch.distributed.ChildFailedError: \n ====\n"
    assert find_error(log) == "error: give rl_x=1"
    log = '  File "x.py"\n[rank1]: ZeroDivisionError: division by zero\nRuntimeError: closed\n=='
    assert find_error(log) == "ZeroDivisionError: division by zero"
    assert find_error("a\nlast words") == "last words"
    assert find_error("") == "it printed nothing"


# ---------------------------------------------------------------------------------------------
# record files


def test_records_round_trip(tmp_path, capsys):
    plan = toy_plan(tmp_path)
    records = make_records(plan, RUNS, failed={})
    found = write_summary(plan, records, tmp_path)
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    path = records.save(tmp_path / "toy.parquet")
    kept = ExperimentRecords.load(path)
    assert kept.head == records.head and kept.curves == records.curves
    assert kept.results == records.results and summary(plan, kept) == found
    shown = ["experiment", "show", str(tmp_path / "toy.yaml"), f"--out={tmp_path}"]
    assert cli.main([*shown, f"--runs={tmp_path / 'nothing'}"]) == 0
    assert table(found) in capsys.readouterr().out
    write_plan(tmp_path, common={"evaluation.questions": 1000})
    assert cli.main(shown) == 0
    assert table(found) in capsys.readouterr().out
    write_plan(tmp_path, arms={"ppo": {}, "cispo": {"rl.loss.clip": "none"}})
    assert cli.main(shown) == 1
    assert "have another settings than the plan" in capsys.readouterr().err


def test_unreadable_records_are_rejected(tmp_path):
    broken = tmp_path / "toy.parquet"
    for text in (None, b"no parquet"):
        if text:
            broken.write_bytes(text)
        with pytest.raises(ValueError, match="toy.parquet: run the experiment first"):
            ExperimentRecords.load(broken)


@pytest.mark.parametrize(
    "path",
    [path for path in SHIPPED if (EXPERIMENTS / f"{path.stem}.parquet").exists()],
    ids=lambda path: path.stem,
)
def test_committed_experiments_match_their_plans(path):
    plan = load_plan(path.stem)
    found = summary(plan, ExperimentRecords.load(EXPERIMENTS / f"{path.stem}.parquet"))
    looks = plan.design.looks if plan.design else ()
    assert found["seeds"] in ([0, 1, 2], *([*plan.seeds[:look]] for look in looks))
    assert found["commit"]
    # a sequential design is complete when its claims have a verdict
    decided = all(arm["claim"].get("final") for arm in found["arms"] if "claim" in arm)
    states = {"finished", "failed", *(["unfinished"] if looks and decided else [])}
    assert {arm["state"] for arm in found["arms"]} <= states


def test_curves_contain_the_finished_seeds(tmp_path):
    plan = toy_plan(tmp_path)
    records = make_records(plan, RUNS)
    kept = curves(summary(plan, records), records)
    assert {arm: len(rows_of_seeds) for arm, rows_of_seeds in kept.items()} == {
        "ppo": 2,
        "cispo": 2,
    }
    assert kept["cispo"][1] == RUNS["cispo", 1][1]
