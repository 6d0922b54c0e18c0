"""What the runs of a sweep say: `sweep.json`, `table.md` and `figure.png`, from OUT/results alone.

An arm's accuracy has an interval over seeds and questions; its difference to the control is paired
by seed and question, over the seeds that both have. Beside them stand what the runs cost. A claim
that an arm carries is judged by the first of the kinds of question that were asked.

Left out: a correction for the number of arms. Of twenty without any effect one would seem to have
some.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from drlib.analysis import tour
from drlib.evaluation.results import Results
from drlib.files import read_json_lines, write_atomic
from drlib.experiments.arms import curve_name
from drlib.experiments.verdicts import rounded
from drlib.experiments.plan import Arm, Sweep
from drlib.experiments.runner import RESULTS, RUNS, what_ran
from drlib.validation import require

COSTS = ("seconds", "rollout_seconds", "rollouts", "generated_tokens", "trained_tokens")
NONE = "–"


def write_summary(sweep: Sweep, out: Path) -> dict:
    """Write the three files; returns what `sweep.json` has.

    ValueError: there are no results, or they are of other settings than the file has now.
    """
    from drlib.experiments import figures as sweep_plots  # lazily: matplotlib, which --list does without

    found = summary(sweep, out / RESULTS)
    write_atomic(out / "sweep.json", json.dumps(found, indent=1) + "\n")
    write_atomic(out / "table.md", table(found))
    figure = sweep_plots.sweep_figure(found, curves(found, out / RESULTS))
    write_atomic(out / "figure.png", sweep_plots.drawn(figure))
    return found


def summary(sweep: Sweep, folder: Path) -> dict:
    """What the kept runs say; shares and their differences, costs a run (the mean over seeds)."""
    ran = _ran(sweep, folder)
    results = {arm: Results.load(folder / arm) for arm, runs in ran["runs"].items() if _done(runs)}
    control = results.get(sweep.control)
    arms = [
        _arm(sweep, arm, ran["runs"].get(name, {}), results.get(name), control, ran["seeds"])
        for name, arm in sweep.arms.items()
    ]
    return {
        "name": sweep.name,
        "about": sweep.about,
        "command": ran["command"],
        "stage": sweep.stage,
        "profile": ran["profile"],
        "seeds": ran["seeds"],
        "control": sweep.control,
        "common": dict(sweep.common),
        "asked": [{"kind": kind, "decoding": decoding} for kind, decoding in sweep.asked],
        "arms": arms,
    }


def _ran(sweep: Sweep, folder: Path) -> dict:
    """runs.json, where it is of this sweep; ValueError else."""
    try:
        ran = json.loads((folder / RUNS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ValueError(f"no readable {folder / RUNS}: run the sweep first") from fault
    now = json.loads(json.dumps(what_ran(sweep)))
    changed = [key for key in ("stage", "settings") if ran[key] != now[key]]
    fault = f"{folder} is of another {' and '.join(changed)} than the file has now"
    require(not changed, f"{fault}: run the sweep again, or give another --out")
    return ran


def _done(runs: Mapping) -> list[int]:
    """The seeds whose runs are finished."""
    return [int(seed) for seed, run in runs.items() if "failed" not in run]


def _arm(
    sweep: Sweep,
    arm: Arm,
    runs: Mapping,
    results: Results | None,
    control: Results | None,
    seeds: Sequence[int],
) -> dict:
    """An arm's part of the summary."""
    done = _done(runs)
    is_control = arm.name == sweep.control
    failed = {seed: run["failed"] for seed, run in runs.items() if "failed" in run}
    asked = []
    for kind, decoding in sweep.asked if results else ():
        row = _measured(sweep.stage, kind, decoding, results)
        both = {*done} & {*control.seeds} if control and not is_control else set()
        if both:
            row |= _difference(sweep.stage, kind, decoding, results, control, both)
        asked.append(row)
    return {
        "arm": arm.name,
        "settings": dict(arm.settings),
        "state": "finished" if len(done) == len(seeds) else "failed" if failed else "unfinished",
        "seeds": done,
        "failed": failed,
        "asked": asked,
        "cost": _mean_cost([runs[str(seed)] for seed in done]),
        "stopped": {
            seed: f"step {run['steps']}: {run['stopped']}"
            for seed, run in runs.items()
            if "stopped" in run
        },
        **_judged(arm, asked),
    }


def _measured(stage: str, kind: str, decoding: str, results: Results) -> dict:
    """Accuracy with its interval over seeds and questions, and each seed's."""
    share = rounded(results.accuracy(stage, kind, decoding))
    scores = results.scores(stage, kind, decoding)
    return {
        "kind": kind,
        "decoding": decoding,
        "n": len(next(iter(scores.values()))),
        "accuracy": share["effect"],
        "interval": share["interval"],
        "by_seed": [round(sum(some.values()) / len(some), 5) for some in scores.values()],
    }


def _difference(
    stage: str, kind: str, decoding: str, results: Results, control: Results, both: set[int]
) -> dict:
    """The arm's less the control's, paired, of the seeds that both have; and each seed's."""
    effect = results.gain(stage, stage, kind, decoding, of=control)
    by_seed = [
        results.only([seed]).gain(stage, stage, kind, decoding, of=control.only([seed]))[0]
        for seed in sorted(both)
    ]
    by_seed = [round(float(each), 5) for each in by_seed]
    return {"difference": {**rounded(effect), "seeds": sorted(both), "by_seed": by_seed}}


def _judged(arm: Arm, asked: Sequence[Mapping]) -> dict:
    """The claim that the arm carries and its outcome: "open" where nothing was compared yet, or by
    one seed alone, whose interval says nothing of other trainings."""
    if arm.statement is None:
        return {}
    if not asked or "difference" not in asked[0]:
        return {"claim": _open(arm)}
    difference = asked[0]["difference"]
    judged = arm.statement.judged((difference["effect"], *difference["interval"]))
    alone = {"outcome": "open"} if len(difference["seeds"]) < 2 else {}
    return {"claim": judged | alone}


def _open(arm: Arm) -> dict:
    said = arm.statement
    return {
        "claim": said.claim,
        "source": said.source,
        "expected": said.expected,
        "outcome": "open",
    }


def _mean_cost(runs: Sequence[Mapping]) -> dict:
    """The mean over runs of each cost that all of them have."""
    shared = [name for name in COSTS if runs and all(name in run for run in runs)]
    return {name: round(sum(run[name] for run in runs) / len(runs), 1) for name in shared}


def curves(found: Mapping, folder: Path) -> dict[str, list[list[dict]]]:
    """Arm -> the rows of each finished seed's steps; arms without any are left out."""
    kept = {
        arm["arm"]: [folder / arm["arm"] / curve_name(found["stage"], s) for s in arm["seeds"]]
        for arm in found["arms"]
    }
    read = {
        name: [read_json_lines(path) for path in paths if path.exists()]
        for name, paths in kept.items()
    }
    return {name: rows for name, rows in read.items() if rows}


def table(found: Mapping) -> str:
    """The summary as a page of Markdown."""
    heads = ["arm", "settings"]
    for asked in found["asked"]:
        what = f"{asked['kind']}, {asked['decoding']}"
        heads += [f"{what}, % right [95%]", f"less {found['control']}, points [95%]"]
    heads += ["each seed", "seconds a run", "in rollouts", "rollouts"]
    heads += ["generated tokens", "trained tokens", "claim"]
    lines = [f"# {found['name']}", "", found["about"], "", _told(found), ""]
    lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for arm in found["arms"]:
        cells = [cell.replace("|", "\\|") for cell in _cells(arm, found)]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [note for arm in found["arms"] for note in _notes(arm)]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _told(found: Mapping) -> str:
    """How it was measured."""
    common = ", ".join(f"{name}={value}" for name, value in found["common"].items())
    first = next((arm["asked"] for arm in found["arms"] if arm["asked"]), [])
    asked = ", ".join(f"{row['n']} {row['kind']} questions" for row in first)
    return (
        f"Stage `{found['stage']}`, profile `{found['profile']}`"
        + (f", all with {common}" if common else "")
        + (f"; asked {asked}" if asked else "")
        + f". Intervals over {tour.drawn_over(len(found['seeds']))}; differences are paired. "
        f"Costs are those of the stage itself. Made by `{found['command']}`."
    )


def _cells(arm: Mapping, found: Mapping) -> list[str]:
    """A row of the table."""
    done, all_seeds = arm["seeds"], found["seeds"]
    part = (
        f" ({len(done)} of {tour.seeds(len(all_seeds))})" if 0 < len(done) < len(all_seeds) else ""
    )
    settings = ", ".join(f"{name}={value}" for name, value in arm["settings"].items())
    cells = [f"`{arm['arm']}`{part}", f"`{settings}`" if settings else NONE]
    for number, _ in enumerate(found["asked"]):
        cells += _asked_cells(arm, number, found["control"])
    shares = arm["asked"][0]["by_seed"] if arm["asked"] else []
    cells.append(", ".join(f"{100 * share:.1f}" for share in shares) or NONE)
    costs = (arm["cost"].get(name) for name in COSTS)
    cells += [NONE if value is None else f"{value:,.0f}" for value in costs]
    claim = arm.get("claim")
    said = f"{claim['claim']} ({claim['source']}): **{claim['outcome']}**" if claim else NONE
    return [*cells, said]


def _asked_cells(arm: Mapping, number: int, control: str) -> list[str]:
    """Accuracy, and the difference to the control."""
    if not arm["asked"]:
        return ["failed" if arm["state"] == "failed" else "not yet", NONE]
    row = arm["asked"][number]
    accuracy = tour.percent((row["accuracy"], *row["interval"]))
    if arm["arm"] == control:
        return [accuracy, "control"]
    if "difference" not in row:
        return [accuracy, NONE]
    difference = row["difference"]
    return [accuracy, tour.percent((difference["effect"], *difference["interval"]), "+")]


def _notes(arm: Mapping) -> list[str]:
    """What did not go as planned, a line a run."""
    failed = [f"- `{arm['arm']}`, seed {s}: failed: {why}" for s, why in arm["failed"].items()]
    return failed + [
        f"- `{arm['arm']}`, seed {seed}: stopped at {why}" for seed, why in arm["stopped"].items()
    ]
