"""A plan's file, and its table by hand: what is refused, and what numbers come out.

The runs themselves are in test_experiments_runner.py, the figure is in test_experiments_figures.py.

Run: python -m pytest tests/test_experiments_plan.py
"""

import sys

import numpy as np
import pytest

from drlib import cli
from drlib.config import ROOT, Config
from drlib.experiments.plan import PLANS, load_plan
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.runner import _reason, costs
from drlib.experiments.tables import curves, summary, table, write_summary
from drlib.intervals import difference_interval, share_interval
from tests.experiment_examples import (
    CLIPS,
    HALF,
    RIGHT,
    WRONG,
    asked,
    made_records,
    row,
    rows,
    toy_plan,
    write_plan,
)

CLAIM = {"claim": "CISPO is better", "source": "nobody", "expected": "higher"}


MADE = {
    ("ppo", 0): (asked(HALF, HALF, WRONG), rows(generated=10.0, tokens=100)),
    ("ppo", 1): (asked(WRONG, HALF, WRONG), rows(generated=30.0, tokens=300)),
    ("cispo", 0): (asked(RIGHT, HALF, WRONG), rows(generated=20.0, tokens=200)),
    ("cispo", 1): (asked(RIGHT, RIGHT, HALF), rows(generated=20.0, tokens=200, updates=2)),
}
PPO_SQ = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.0]])  # shares of right samples
CISPO_SQ = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.5]])


def told(tmp_path, made, failed=None, **changes):
    """The summary of made runs."""
    plan = toy_plan(tmp_path, **changes)
    return summary(plan, made_records(plan, made, failed))


def by_name(found):
    return {arm["arm"]: arm for arm in found["arms"]}


def closely(interval):
    return pytest.approx([float(end) for end in interval], abs=1e-5)


# ---------------------------------------------------------------------------------------------
# the file


SHIPPED = sorted(path for path in PLANS.glob("*.yaml") if path.stem != "strategies")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_plans_are_valid(path):
    plan = load_plan(path.stem)
    assert plan == load_plan(path) and plan.name == path.stem
    assert len(plan.arms) >= 2 and len(plan.seeds) >= 3 and plan.profile == "laptop"
    assert load_plan(path, profile="ci", seeds=[5]).config(plan.control, 5).profile == "ci"
    claims = [arm for arm in plan.arms.values() if arm.statement]
    assert claims or len(plan.arms) > 2


def test_the_plan_in_the_documentation_is_valid(tmp_path):
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    path = tmp_path / "lr.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    plan = load_plan(path)
    assert plan.finding_name("double") == "lr" and plan.config("double", 0).rl.lr == 8e-4
    assert plan.config("usual", 0).rl.lr == Config.load("laptop").rl.lr


def test_there_are_two_and_more_of_them_and_they_are_shipped():
    assert {"clips", "corrections"} <= {path.stem for path in PLANS.glob("*.yaml")}


def test_each_run_has_the_settings_of_its_arm_and_its_seed(tmp_path):
    plan = toy_plan(tmp_path, common={"rl.steps": 7, "rl.lr": 1e-3}, seeds=[3, 5])
    assert plan.runs() == [("ppo", 3), ("cispo", 3), ("ppo", 5), ("cispo", 5)]
    ppo, cispo = plan.config("ppo", 3), plan.config("cispo", 5)
    assert (ppo.rl.loss.clip, cispo.rl.loss.clip) == ("ppo", "cispo")
    assert (ppo.seed, cispo.seed) == (3, 5)
    assert ppo.rl.steps == cispo.rl.steps == 7 and ppo.rl.lr == 1e-3


def test_an_arm_s_own_setting_stands_before_the_common_one(tmp_path):
    plan = toy_plan(tmp_path, common={"rl.loss.clip": "none"})
    assert (plan.config("ppo", 0).rl.loss.clip, plan.config("cispo", 0).rl.loss.clip) == (
        "none",
        "cispo",
    )


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
def test_what_is_wrong_with_a_file_is_one_line_before_anything_is_made(
    changes, reason, tmp_path, capsys
):
    file = write_plan(tmp_path, **changes)
    where = [f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}"]
    assert cli.main(["experiment", "run", str(file), *where]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert reason in said.err
    assert not (tmp_path / "runs").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "reason"), BAD_ARMS, ids=[reason[:50] for _, reason in BAD_ARMS]
)
def test_what_is_wrong_with_an_arm_is_one_line(settings, reason, tmp_path):
    with pytest.raises(ValueError) as fault:
        toy_plan(tmp_path, arms={"ppo": {}, "x": settings})
    assert reason in str(fault.value) and "\n" not in str(fault.value)


def test_without_ray_a_line_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    where = [f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}", "--ray"]
    assert cli.main(["experiment", "run", str(write_plan(tmp_path)), *where]) == 1
    assert capsys.readouterr().err == 'error: ray is missing: pip install "drlib[cluster]".\n'


def test_files_that_are_not_there_no_yaml_or_lack_something_are_refused(tmp_path):
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
        with pytest.raises(ValueError, match=reason) as fault:
            load_plan(path)
        assert "\n" not in str(fault.value)


# ---------------------------------------------------------------------------------------------
# the numbers


def test_the_accuracies_are_of_each_arm_and_the_difference_is_paired_by_hand(tmp_path):
    arms = by_name(told(tmp_path, MADE))
    ppo, cispo = arms["ppo"]["asked"][0], arms["cispo"]["asked"][0]
    assert ppo["accuracy"] == pytest.approx(1.5 / 6) and ppo["n"] == 3
    assert cispo["accuracy"] == pytest.approx(4 / 6, abs=1e-5)
    assert ppo["by_seed"] == pytest.approx([1 / 3, 0.5 / 3], abs=1e-5)
    assert cispo["by_seed"] == pytest.approx([1.5 / 3, 2.5 / 3], abs=1e-5)
    assert [cispo["accuracy"], *cispo["interval"]] == closely(share_interval(CISPO_SQ))
    difference = cispo["difference"]
    assert difference["effect"] == pytest.approx((0.5 + 0 + 0 + 1 + 0.5 + 0.5) / 6, abs=1e-5)
    expected = difference_interval(CISPO_SQ - PPO_SQ)
    assert [difference["effect"], *difference["interval"]] == closely(expected)
    assert difference["by_seed"] == pytest.approx([0.5 / 3, 2 / 3], abs=1e-5)
    assert difference["seeds"] == [0, 1] and "difference" not in ppo


def test_the_other_arm_as_control_turns_the_sign(tmp_path):
    turned = by_name(told(tmp_path, MADE, control="cispo"))
    difference = turned["ppo"]["asked"][0]["difference"]
    assert difference["effect"] == pytest.approx(-2.5 / 6, abs=1e-5)
    assert "difference" not in turned["cispo"]["asked"][0]


def test_each_kind_of_question_is_compared_by_itself(tmp_path):
    several = ["python greedy", "search sample"]
    python, search = by_name(told(tmp_path, MADE, asked=several))["cispo"]["asked"]
    assert (python["kind"], python["decoding"], python["n"]) == ("python", "greedy", 1)
    assert python["accuracy"] == 1 and python["difference"]["effect"] == 0
    assert search["kind"] == "search" and search["n"] == 3


def test_a_seed_that_the_control_lacks_is_in_the_accuracy_and_in_no_difference(tmp_path):
    made = {at: run for at, run in MADE.items() if at != ("ppo", 1)}
    found = told(tmp_path, made, failed={("ppo", 1): "it fell over"})
    arms = by_name(found)
    assert arms["ppo"]["seeds"] == [0] and arms["ppo"]["state"] == "failed"
    cispo = arms["cispo"]["asked"][0]
    assert cispo["accuracy"] == pytest.approx(4 / 6, abs=1e-5)
    assert cispo["difference"]["seeds"] == [0]
    assert cispo["difference"]["effect"] == pytest.approx(0.5 / 3, abs=1e-5)
    page = table(found)
    assert "`ppo` (1 of 2 seeds)" in page and "- `ppo`, seed 1: failed: it fell over" in page


def test_an_arm_without_a_run_failed_or_is_not_there_yet(tmp_path):
    made = {at: run for at, run in MADE.items() if at[0] == "cispo"}
    arms = {**CLIPS["arms"], "none": {"rl.loss.clip": "none"}}
    found = told(tmp_path, made, failed={("none", 0): "a | b"}, arms=arms)
    assert [arm["state"] for arm in found["arms"]] == ["unfinished", "finished", "failed"]
    lines = {line.split("`")[1]: line for line in table(found).splitlines() if line[:3] == "| `"}
    cells = {name: [c.strip() for c in line.split(" | ")] for name, line in lines.items()}
    assert cells["ppo"][2:4] == ["not yet", "–"] and cells["none"][2:4] == ["failed", "–"]
    assert cells["cispo"][2].startswith("66.7 [") and cells["cispo"][3] == "–"
    assert len({len(row) for row in cells.values()}) == 1


def test_a_claim_is_judged_by_the_first_kind_of_question(tmp_path):
    """Two seeds are a pilot whatever the interval; twenty registered seeds allow a verdict."""
    right = [(asked(WRONG, WRONG, WRONG), rows()), (asked(RIGHT, RIGHT, RIGHT), rows())]
    for seeds, outcomes in ((range(2), ("open", "open")), (range(20), ("reproduced", "refuted"))):
        made = {(arm, s): right[arm == "cispo"] for arm in ("ppo", "cispo") for s in seeds}
        for expected, outcome_is in zip(("higher", "lower"), outcomes):
            arms = {"ppo": {}, "cispo": {"rl.loss.clip": "cispo"} | CLAIM | {"expected": expected}}
            plan = toy_plan(tmp_path, arms=arms, seeds=[*seeds])
            records = made_records(plan, made)
            records.head["registered"] = "a commit"
            found = summary(plan, records)
            claim = by_name(found)["cispo"]["claim"]
            assert (claim["outcome"], claim["effect"]) == (outcome_is, 1.0)
            assert claim["pilot"] == (len(seeds) < 20)
            text = "open (pilot)" if claim["pilot"] else outcome_is
            assert f"CISPO is better (nobody): **{text}**" in table(found)
    one_seed = {at: run for at, run in made.items() if at[1] == 0}
    claim = by_name(told(tmp_path, one_seed, arms=arms))["cispo"]["claim"]
    assert (claim["outcome"], claim["effect"]) == ("open", 1.0)
    alone = {at: run for at, run in made.items() if at[0] == "cispo"}
    assert by_name(told(tmp_path, alone, arms=arms))["cispo"]["claim"]["outcome"] == "open"


def test_a_claim_that_nothing_speaks_for_stays_open(tmp_path):
    made = {at: (asked(RIGHT, RIGHT, HALF), rows()) for at in MADE}
    found = told(tmp_path, made, arms={"ppo": {}, "cispo": {"rl.loss.clip": "cispo"} | CLAIM})
    claim = by_name(found)["cispo"]["claim"]
    assert (claim["outcome"], claim["effect"]) == ("open", 0)


def test_costs_are_sums_over_steps_and_means_over_seeds(tmp_path):
    arms = by_name(told(tmp_path, MADE))
    expected = {"seconds": 4, "rollout_seconds": 3, "rollouts": 64}
    # two steps of 32 rollouts of 10 and of 30 tokens; 100 and 300 trained tokens a step
    assert arms["ppo"]["cost"] == expected | {"generated_tokens": 1280, "trained_tokens": 400}
    # of the second seed's steps each took two updates
    assert arms["cispo"]["cost"] == expected | {"generated_tokens": 1280, "trained_tokens": 600}


def test_costs_of_supervised_steps_and_of_none_and_of_a_run_that_stopped():
    supervised = [{"step": s, "seconds": 0.5, "tokens": 90, "loss_tokens": 40} for s in (1, 2)]
    assert costs(supervised) == {"steps": 2, "seconds": 1.0, "trained_tokens": 80}
    assert costs([]) == {"steps": 0}
    stopped = [row(1), row(2, stopped="unanswered 1 is above 0.95")]
    assert costs(stopped)["stopped"] == "unanswered 1 is above 0.95"


def test_a_run_that_stopped_early_says_so_below_the_table(tmp_path):
    made = MADE | {("cispo", 1): (MADE["cispo", 1][0], [row(1, stopped="it collapsed")])}
    assert "- `cispo`, seed 1: stopped at step 1: it collapsed" in table(told(tmp_path, made))


def test_the_reason_is_what_the_stage_said_and_not_what_torchrun_adds():
    head = "rl failed (exit status 1); the end of x.log:\n"
    log = "error: give rl_x=1\nE1234 Traceback\ntorch.distributed.ChildFailedError: \n ====\n"
    assert _reason(head + log) == "rl (exit status 1): error: give rl_x=1"
    log = '  File "x.py"\n[rank1]: ZeroDivisionError: division by zero\nRuntimeError: closed\n=='
    assert _reason(head + log) == "rl (exit status 1): ZeroDivisionError: division by zero"
    assert _reason(head + "a\nlast words") == "rl (exit status 1): last words"
    assert _reason("rl failed (killed by SIGKILL); the end of x:\n") == "rl (killed by SIGKILL): "


# ---------------------------------------------------------------------------------------------
# the files


def test_records_survive_their_file_and_give_the_same_summary(tmp_path, capsys):
    plan = toy_plan(tmp_path)
    records = made_records(plan, MADE, failed={})
    found = write_summary(plan, records, tmp_path)
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    path = records.save(tmp_path / "toy.parquet")
    kept = ExperimentRecords.load(path)
    assert kept.head == records.head and kept.curves == records.curves
    assert kept.results == records.results and summary(plan, kept) == found
    shown = ["experiment", "show", str(tmp_path / "toy.yaml"), f"--out={tmp_path}"]
    assert cli.main([*shown, f"--runs={tmp_path / 'nothing'}"]) == 0
    assert table(found) in capsys.readouterr().out
    write_plan(tmp_path, arms={"ppo": {}, "cispo": {"rl.loss.clip": "none"}})
    assert cli.main(shown) == 1
    assert "have another settings than the plan" in capsys.readouterr().err


def test_unreadable_records_are_named(tmp_path):
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
def test_every_committed_experiment_belongs_to_its_plan(path):
    plan = load_plan(path.stem)
    found = summary(plan, ExperimentRecords.load(EXPERIMENTS / f"{path.stem}.parquet"))
    assert found["seeds"] == [0, 1, 2] and found["commit"]
    assert {arm["state"] for arm in found["arms"]} <= {"finished", "failed"}


def test_curves_are_those_of_the_finished_seeds(tmp_path):
    plan = toy_plan(tmp_path)
    records = made_records(plan, MADE)
    kept = curves(summary(plan, records), records)
    assert {arm: len(some) for arm, some in kept.items()} == {"ppo": 2, "cispo": 2}
    assert kept["cispo"][1] == MADE["cispo", 1][1]
