"""Curricula with scripted solve rates: refreshes, stages and resumption."""

import json
import math
import random
from statistics import median

import pytest

from drlib.rl.curriculum import (
    RSTAR2_STAGES,
    Curriculum,
    DataCuration,
    Refresh,
    RolloutStage,
    StagedCurriculum,
    TaskMixture,
)


def reload(saved, target):
    """Load the state of `saved` into `target` through JSON, as in a checkpoint."""
    target.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    return target


def test_curriculum_draws_are_reproducible():
    curriculum = Curriculum(["a", "b", "c"])
    curriculum.update([("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 1.0)])
    assert curriculum.rates == pytest.approx({"a": 0.51, "b": 0.36, "c": 0.3})
    rng = random.Random("rl-0-0")
    weights = [0.51 * 0.49 + 0.04, 0.36 * 0.64 + 0.04, 0.3 * 0.7 + 0.04]
    expected = [random.Random("rl-0-0").choices("abc", weights)[0]]
    assert [curriculum.draw(["a", "b", "c"], rng)] == expected
    assert Curriculum(["a"], {"a": 0.9}).state_dict() == {"a": 0.9}


def test_chances_by_hand():
    curriculum = Curriculum(["a", "b", "c"], {"a": 0.5, "b": 0.1, "c": 0.9})
    # weights 0.25 + 0.04 and 0.09 + 0.04
    assert curriculum.chances(["a", "b"]) == pytest.approx([0.29 / 0.42, 0.13 / 0.42])
    assert curriculum.chances(["b", "c"]) == pytest.approx([0.5, 0.5])


RATES = {"easy": 1.0, "hard": 0.0, "m1": 0.5, "m2": 0.25, "m3": 0.75}


def test_curation_starts_with_medium_difficulty():
    curation = DataCuration(RATES)
    assert curation.state["active"] == ["m1", "m2", "m3"]


def test_refresh_on_request_without_a_period():
    for curation in (DataCuration(RATES), DataCuration(RATES, every=None)):
        curation.observe([("m1", 1.0)] * 8)
        assert not any(curation.end_step() for _ in range(1000))
        assert curation.end_step(ask=True).mastered == ("m1",)


def test_scheduled_refresh_replaces_solved_and_unsolved():
    curation = DataCuration(RATES, window=2, every=3)
    curation.observe([("m1", 1), ("m1", 1), ("m2", 0), ("m2", 0), ("m3", 1), ("m3", 0)])
    curation.probe({"easy": 0.875, "hard": 0.5})
    assert curation.end_step() is None and curation.end_step() is None
    assert {*curation.state["active"]} == {"m1", "m2", "m3"}  # never between triggers
    assert curation.end_step() == Refresh(("m1",), ("m2",), ("easy", "hard"))
    assert {*curation.state["active"]} == {"easy", "hard", "m3"} and curation.state["pool"] == {}
    assert [curation.end_step() for _ in range(3)] == [None] * 3  # no refresh


def test_mastery_needs_a_full_window():
    curation = DataCuration(RATES, window=4, every=1)
    curation.observe([("m1", 1)] * 3)
    assert curation.end_step() is None
    curation.observe([("m1", 0), *[("m1", 1)] * 3])  # the window keeps four
    assert curation.end_step() is None
    curation.observe([("m1", 1)])
    assert curation.end_step() == Refresh(("m1",), (), ())


def test_plateau_triggers_a_refresh():
    curation = DataCuration(RATES, window=2)
    curation.observe([("m1", 1), ("m1", 1), ("m2", 0), ("m2", 1), ("m3", 1), ("m3", 1)])
    assert curation.end_step() is None
    assert curation.end_step(ask=True) == Refresh(("m1", "m3"), (), ())
    curation.probe({"hard": 0.1, "easy": 0.6, "m1": 0.9})
    assert curation.end_step() is None
    # two have left: the two nearest to 0.5 enter, ties by name
    assert curation.end_step(ask=True) == Refresh((), (), ("easy", "hard"))
    assert curation.state["active"] == ["easy", "hard", "m2"]
    assert curation.state["pool"] == {"m1": 0.9}


def test_active_set_is_never_empty():
    curation = DataCuration({"a": 0.5, "b": 0.5}, window=2, every=1)
    curation.observe([("a", 1), ("a", 1), ("b", 0), ("b", 0)])
    assert curation.end_step() is None and {*curation.state["active"]} == {"a", "b"}
    with pytest.raises(ValueError, match="unknown question 'c'"):
        curation.probe({"c": 0.5})
    other = DataCuration({"a": 0.5, "b": 0.5, "c": 0.0}, window=2, every=1)
    other.observe([("a", 1), ("a", 1), ("b", 0), ("b", 0), ("c", 1)])
    other.probe({"c": 0.5})
    assert other.end_step() == Refresh(("a",), ("b",), ("c",))
    other.probe({"a": 0.5, "b": 0.5, "c": 0.5})
    assert other.state["pool"] == {"a": 0.5, "b": 0.5}
    other.probe({"a": 1.0})
    assert other.state["pool"] == {"b": 0.5}


def solve_rate(skill, difficulty):
    return 1 / (1 + math.exp(-3 * (skill - difficulty)))


def scripted_run(curation, rng, start, stop, log):
    """Run a policy with rising skill; its checkpoint probes the pool every fifth step."""
    difficulty = {q: int(q[1:]) / 10 for q in curation.known}
    for step in range(start, stop):
        skill = 1 + step / 20
        drawn = rng.choices(curation.state["active"], k=8)
        curation.observe(
            (q, float(rng.random() < solve_rate(skill, difficulty[q]))) for q in drawn * 4
        )
        if step % 5 == 0:
            rates = {
                q: sum(rng.random() < solve_rate(skill, d) for _ in range(8)) / 8
                for q, d in sorted(difficulty.items())
                if q not in {*curation.state["active"]}
            }
            curation.probe(rates)
        before = curation.state["active"]
        refresh = curation.end_step()
        active = curation.state["active"]
        assert (refresh is None) == (active == before) and len(active) <= curation.size
        assert not {*active} & {*curation.state["pool"]}
        log.append((refresh, median(difficulty[q] for q in active)))


def curation_of_100_questions():
    rates = {f"q{i}": round(solve_rate(1, i / 10) * 8) / 8 for i in range(100)}
    return DataCuration(rates, window=8, every=4)


def test_active_set_tracks_policy_skill():
    log = []
    scripted_run(curation_of_100_questions(), random.Random(0), 0, 120, log)
    medians = [at for _, at in log]
    assert medians[0] == pytest.approx(1, abs=0.3)
    assert medians[-1] > 4.5  # skill rises from 1 to 7; a fixed set stays at 1
    assert all(refresh is None for refresh, _ in log[:3])
    assert any(refresh for refresh, _ in log)


def test_resumed_curation_draws_the_same_questions():
    whole, rng, log = curation_of_100_questions(), random.Random(3), []
    scripted_run(whole, rng, 0, 30, log)
    resumed, again, logs = reload(whole, curation_of_100_questions()), random.Random(), []
    again.setstate(rng.getstate())
    scripted_run(whole, rng, 30, 50, log)
    scripted_run(resumed, again, 30, 50, logs)
    assert logs == log[30:] and resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataCuration({"a": 1.0, "b": 0.0}), "always or never solved"),
        (lambda: DataCuration({"a": 1.5}), "solve rate of 'a'"),
        (lambda: DataCuration({"a": float("nan")}), "solve rate of 'a'"),
        (lambda: DataCuration(RATES, window=1), "window must be"),
        (lambda: DataCuration(RATES, every=0), "every"),
        (lambda: DataCuration(RATES).observe([("m1", -1.0)]), "solve rate of 'm1'"),
        (lambda: reload(DataCuration(RATES), DataCuration({"m1": 0.5})), "unknown question"),
        (lambda: StagedCurriculum([]), "at least 1 step"),
        (lambda: StagedCurriculum([RolloutStage(0, 8, 1)]), "at least 1 step"),
        (lambda: StagedCurriculum().keep_hard({"a": [1]}), "not start a hard-only stage"),
        (lambda: TaskMixture({}), "weights must be"),
        (lambda: TaskMixture({"a": 0}), "weights must be"),
        (lambda: TaskMixture({"a": float("inf")}), "weights must be"),
        (lambda: TaskMixture({"a": 1}).load_state_dict({"b": 1}), "TaskMixture keeps"),
    ],
)
def test_invalid_arguments_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rstar2_stages_then_hard_questions_only():
    staged, seen = StagedCurriculum(), []
    while not staged.filter_due:
        seen.append(staged.begin_step())
    assert [stage.tokens for stage, _ in seen] == [8_000] * 300 + [12_000] * 85
    assert not any(stage.reset or questions for stage, questions in seen)
    with pytest.raises(ValueError, match="call keep_hard first"):
        staged.begin_step()
    tries = {"done": [1.0] * 8, "nearly": [1.0] * 7 + [0.0], "never": [0.0] * 8}
    assert staged.keep_hard(tries) == ("nearly", "never")
    first, questions = staged.begin_step()
    assert first.reset and questions == ("nearly", "never")
    assert (first.tokens, first.turns) == (12_000, 15)
    rest = [staged.begin_step() for _ in range(124)]
    assert not any(stage.reset for stage, _ in rest)
    assert staged.begin_step() is None and sum(s.steps for s in RSTAR2_STAGES) == 510
    assert staged.state["step"] == 510


def test_keep_hard_needs_attempts_and_failures():
    staged = StagedCurriculum([RolloutStage(2, 8, 1, hard_only=True)])
    with pytest.raises(ValueError, match="not tried"):
        staged.keep_hard({"a": []})
    with pytest.raises(ValueError, match="add harder ones"):
        staged.keep_hard({"a": [1.0], "b": [1.0, 1.0]})
    assert staged.filter_due and staged.keep_hard({"a": [0.0]}) == ("a",)


def test_pending_reset_survives_a_resume():
    stages = [RolloutStage(2, 8, 1), RolloutStage(3, 12, 2, hard_only=True, reset=True)]
    staged = StagedCurriculum(stages)
    staged.begin_step(), staged.begin_step()
    staged.keep_hard({"a": [0.0], "b": [1.0]})
    resumed = reload(staged, StagedCurriculum(stages))
    expected = [staged.begin_step() for _ in range(4)]
    assert [resumed.begin_step() for _ in range(4)] == expected
    assert [step and step[0].reset for step in expected] == [True, False, False, None]
    assert StagedCurriculum(stages).begin_step() == (stages[0], None)


PRORL = {"math": 40, "code": 24, "stem": 25, "logic": 37, "instructions": 10}


def test_mixture_meets_its_weights_exactly():
    mixture, total = TaskMixture(PRORL), sum(PRORL.values())
    drawn = mixture.draw(2 * total)
    for period in (drawn[:total], drawn[total:]):
        assert {kind: period.count(kind) for kind in PRORL} == PRORL
    for n in range(1, total):
        for kind, weight in PRORL.items():
            assert -2 < drawn[:n].count(kind) - n * weight / total < 1
    assert TaskMixture({"a": 0.5, "b": 0.25, "c": 0.25}).draw(4) == ["a", "b", "c", "a"]


def test_mixture_depends_on_the_counts_only():
    mixture = TaskMixture(PRORL)
    whole = TaskMixture(PRORL).draw(60)
    assert mixture.draw(7) + mixture.draw(0) + mixture.draw(13) == whole[:20]
    assert reload(mixture, TaskMixture(PRORL)).draw(40) == whole[20:]
