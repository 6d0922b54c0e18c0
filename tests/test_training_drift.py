"""Drift: monitored signals, alarms, the learning rate response and perturbed worlds.

Run: python -m pytest tests/test_training_drift.py
"""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drlib.config import ROOT
from drlib.evaluation.evaluate import read_outcomes
from drlib.rl.stability import Alarm, PageHinkley
from drlib.training.callbacks import RolloutFacts, build_monitors, is_worse, watched_signals
from drlib.trajectory import Termination, ToolResult, load_trajectories
from drlib.worlds.perturbed import PerturbedWorld, perturb_worlds
from tests.loop_examples import (
    build_stages,
    cold_start,
    end_step,
    flat,
    learned,
    rollout_shards,
    settings,
    train_on,
)

start = cold_start
batch = rollout_shards

SMALL = {"rl.questions": 4, "rl.lr": 2e-3}
TRAINED = {"trained_share": 1.0}


def build_trainer(start, folder, **changes):
    return start.step(settings(**{**SMALL, **changes}), folder / "run")


def test_changed_world_lowers_the_learning_rate(start, tmp_path):
    step = build_trainer(
        start, tmp_path, rl__callbacks__drift_factor=0.5, rl__callbacks__world_change=2
    )
    rows = [step.step(number)[0] for number in range(4)]
    assert [row["drift_alarms"] for row in rows] == [0, 0, 1, 0]
    assert [row["lr_scale"] for row in rows] == [1.0, 1.0, 1.0, 0.5]
    # four steps: the schedule falls to 0.55 in the last
    assert [row["lr_factor"] for row in rows] == pytest.approx([1.0, 1.0, 1.0, 0.55 * 0.5])


def test_lowered_learning_rate_reaches_the_optimizer(start, batch, tmp_path):
    slow, _ = learned(start, batch, tmp_path / "slow", rl__lr=1e-4)
    step = start.step(settings(rl__lr=2e-4, rl__callbacks__drift_factor=0.5), tmp_path / "run")
    step.callbacks.parts["drift_alarm"].rate.update(True)
    row = train_on(step, batch, 0)
    assert row["lr_factor"] == 0.5
    assert torch.equal(flat(step.model), slow)


def test_learning_rate_recovers(start, batch, tmp_path):
    """The rate is held for ten steps and then returns in ten equal steps."""
    step = start.step(
        settings(rl__callbacks__drift_factor=0.5, rl__callbacks__world_change=2), tmp_path / "run"
    )
    rows = [end_step(step, n, TRAINED, batch[0]) for n in range(25)]
    scales = [row["lr_scale"] for row in rows]
    # the alarm after the third step applies from the fourth step on
    recovering = [0.5 + 0.5 * k / 10 for k in range(1, 11)]
    assert scales == pytest.approx([1.0] * 3 + [0.5] * 10 + recovering + [1.0] * 2)


def test_state_columns_are_running_averages(start, tmp_path):
    step = build_trainer(start, tmp_path, rl__callbacks__drift_factor=0.5)
    average = None
    for number in range(3):
        row, trajectories = step.step(number)
        reward = sum(t.reward for t in trajectories) / len(trajectories)
        average = reward if average is None else 0.9 * average + 0.1 * reward
        assert row["state_reward"] == pytest.approx(average)
    assert {"state_errors_search", "state_unanswered", "state_faults"} <= row.keys()
    assert not [name for name in row if "latency" in name or "cache" in name]


def make_tool_result(tool, ok):
    return ToolResult(tool, {}, "four", ok, None if ok else "x", latency_s=0.5)


def test_rarely_called_tool_has_no_error_rate():
    calls = (
        [make_tool_result("search", True)] * 3
        + [make_tool_result("search", False)]
        + [make_tool_result("python", False)]
    )
    signals = watched_signals(
        [RolloutFacts("x", 1.0, Termination.ANSWERED, calls)], ("search", "python"), fewest=4
    )
    assert signals["errors/search"] == 0.25 and signals["errors/python"] is None
    assert signals["observation_chars"] == [4.0] * 5 and signals["reward"] == 1.0
    assert not [name for name in signals if name.startswith(("latency", "cache"))]


def test_observation_length_change_alarms_once(start, batch, tmp_path):
    """Windows of 720 calls: two windows of normal pages, then longer pages."""
    config = settings(rl__callbacks__drift_factor=0.5, rl__group=2)
    step = start.step(config, tmp_path / "run")
    rollouts = batch[0] + batch[1]
    longer = [replace(t, tool_results=[*map(lengthen, t.tool_results)]) for t in rollouts]
    calls = sum(len(t.tool_results) for t in rollouts)
    steps = 720 // calls + 1
    alarms = [
        sum(end_step(step, n, TRAINED, window)["drift_alarms"] for n in range(n))
        for window, n in ((rollouts, 2 * steps), (longer, 2 * steps), (longer, 2 * steps))
    ]
    assert alarms == [0, 1, 0]


def lengthen(result):
    return replace(result, text=result.text + " and so on" * 4)


def test_only_deterioration_counts_as_drift():
    def kinds(signal, *candidates):
        return [is_worse(Alarm(1, signal, kind)) for kind in candidates]

    assert kinds("reward", "down", "up") == [True, False]
    assert kinds("errors/search", "down", "up") == [False, True]
    assert kinds("observation_chars", "shape") == kinds("world", "changed") == [True]


def reference_curves(pattern):
    """Yield mean reward and share of failed calls per step for each committed run."""
    for path in sorted((ROOT / "figures/reference/tour").glob(pattern)):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        yield {
            "reward": [row["accuracy"] for row in rows],
            "errors/search": [row["tool_errors"] for row in rows],
        }


def alarms_of(curves) -> list[str]:
    """Return the alarms of the laptop profile's monitors, as in the committed runs."""
    monitors = build_monitors(
        settings(rl__callbacks__drift_factor=0.5, rl__questions=48), ["search"]
    )
    found = []
    for signal, values in curves.items():
        monitor = copy.deepcopy(monitors[signal])
        assert isinstance(monitor, PageHinkley)
        kinds = [monitor.update(value) for value in values]
        found += [signal for kind in kinds if kind and is_worse(Alarm(1, signal, kind))]
    return found


def test_committed_runs_only_alarm_on_collapse():
    """Five reference runs raise no alarm; five random-reward controls raise both."""
    learning, collapsing = reference_curves("seed?_rl.jsonl"), reference_curves("seed?_rl_ra*")
    assert [alarms_of(curves) for curves in learning] == [[]] * 5
    for curves in collapsing:
        assert {*alarms_of(curves)} == {"reward", "errors/search"}


# ---------------------------------------------------------------- the changed world


def test_perturbed_world_has_the_same_facts(start):
    original = start.world
    changed = PerturbedWorld(original)
    assert changed.version == f"{original.version}-changed" and len(changed) == len(original)
    page = changed.page("Gabon")
    assert page.links == original.page("Gabon").links and page.text != original.page("Gabon").text
    assert page.text == (
        "Its currency dates from 1993. Language: [French](cldr:French). Currency: [Central African "
        "CFA Franc](cldr:Central African CFA Franc). That is Gabon, a territory."
    )
    before, after = original.search("Gabon", 2), changed.search("Gabon", 2)
    assert [hit.title for hit in before] == ["Gabon", "Libreville"]
    assert [hit.title for hit in after] == ["Libreville", "Gabon"]
    assert after[1].snippet == "territory: language French; currency Central African CFA Franc."
    with pytest.raises(KeyError, match="no page 'nowhere'"):
        changed.page("nowhere")


def test_search_tasks_move_to_the_perturbed_world(start, tmp_path):
    step = build_trainer(start, tmp_path, rl__questions=16)
    tasks, worlds = step.scheduler.draw(1, step.curriculum)
    moved, changed = perturb_worlds(tasks, worlds, start.world)
    assert changed.keys() == {f"{version}-changed" for version in (*worlds, start.world.version)}
    for task, same in zip(tasks, moved, strict=True):
        expected = task.world if task.kind == "python" else f"{task.world}-changed"
        assert same == replace(task, world=expected)
    assert {task.kind for task in tasks} == {"search", "python"}


def test_world_changes_at_the_configured_step(start, tmp_path):
    step = build_trainer(
        start, tmp_path, rl__callbacks__world_change=1, rl__curriculum__python_share=0.0
    )
    for number in range(2):
        _, trajectories = step.step(number)
        assert {t.world_version.endswith("-changed") for t in trajectories} == {number == 1}
        kinds = tuple({entity.kind for entity in start.world.entities.values()})
        seen = [r.text for t in trajectories for r in t.tool_results if r.tool == "search" and r.ok]
        lines = [line for text in seen for line in text.split("\n") if not line[:1].isdigit()]
        lines = [line for line in lines if line.strip("=")]
        assert lines
        assert {line.startswith(tuple(f"{k}: " for k in kinds)) for line in lines} == {number == 1}


def test_evaluation_uses_the_perturbed_world(start, tmp_path):
    few = {"rl.steps": 1, "rl.questions": 2, "evaluation.questions": 8, "evaluation.samples": 1}
    results = {}
    for after in (0, 1):
        config = settings(**few, rl__callbacks__world_change=after)
        folders = build_stages(("world", "rl", "evaluate_rl"), config, tmp_path)
        trajectories = load_trajectories(Path(folders["evaluate_rl"], "greedy.parquet"))
        outcomes = read_outcomes(folders["evaluate_rl"])
        results[after] = (folders["evaluate_rl"], [o.task for o in outcomes], trajectories)
    assert results[0][0] != results[1][0] and results[0][1] == results[1][1]
    for after, suffix in ((0, ""), (1, "-changed")):
        versions = {t.world_version for t in results[after][2]} - {"python"}
        assert versions == {start.world.version + suffix}
