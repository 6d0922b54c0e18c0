"""Summaries of an experiment: accuracies, paired differences to the control, costs, claims.

An arm's accuracy has an interval over seeds and questions; its difference to the control is paired
by seed and question over the seeds that both have. A claim is judged by the first kind of question.
The correction for the number of claims is made on the page of all findings
(`drlib.experiments.findings_page`), not here.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from drlib.analysis import tour
from drlib.evaluation.results import Results
from drlib.experiments.designs import SEEDS, Design, read_design
from drlib.experiments.plan import Arm, ExperimentPlan, load_plan, what_ran
from drlib.experiments.rank_agreement import describe_ranking, rank_agreement
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.verdicts import FINDINGS, rounded
from drlib.files import write_atomic
from drlib.validation import require

COSTS = ("seconds", "rollout_seconds", "rollouts", "generated_tokens", "trained_tokens")
REWARDS = ("reward", "reward_std", "zero_variance")  # and rewards/NAME/mean of each term
LAST_STEPS = 10  # steps over which reward metrics are averaged
NONE = "–"
COUNTS = ("evaluation.questions", "evaluation.samples")  # may differ between a pilot and its plan


def write_summary(plan: ExperimentPlan, records: ExperimentRecords, out: Path) -> dict:
    """Write OUT/NAME.png and the findings; return the summary.

    Findings are written to `FINDINGS` for the committed experiments, else to OUT/findings.
    """
    from drlib.experiments import figures  # lazy: matplotlib

    found = summary(plan, records)
    figure = figures.experiment_figure(found, curves(found, records))
    write_atomic(out / f"{plan.name}.png", figures.drawn(figure))
    if "ranking" in found:
        ranking = figures.ranking_figure(found)
        write_atomic(out / f"{plan.name}_ranking.png", figures.drawn(ranking))
    folder = FINDINGS if out.resolve() == EXPERIMENTS else out / "findings"
    for name, finding in findings_of(found).items():
        write_atomic(folder / f"{name}.json", json.dumps(finding, indent=1) + "\n")
    return found


def findings_of(found: Mapping) -> dict[str, dict]:
    """Return the judged claims of a summary as findings, by name."""
    arms = {arm["arm"]: arm for arm in found["arms"]}
    control = arms[found["control"]]
    findings = {}
    for arm in found["arms"]:
        claim = arm.get("claim")
        if not claim or "effect" not in claim:
            continue
        first = arm["asked"][0]
        judged = {key: value for key, value in claim.items() if key not in ("finding", "seeds")}
        off = control["asked"][0]["accuracy"]
        if "look" in claim:  # the control may have more seeds, for other claims
            off = round(first["accuracy"] - claim["effect"], 5)
        findings[claim["finding"]] = {
            **judged,
            "accuracy": [first["accuracy"], off],
            "command": found["command"],
            "commit": found["commit"],
            "n": first["n"],
            "seeds": first["difference"]["seeds"],
            "by_seed": first["difference"]["by_seed"],
            "asked": {
                "stage": found["stage"],
                "kind": first["kind"],
                "decoding": first["decoding"],
            },
            "setting": arm["settings"],
            "control": control["settings"],
            "common": found["common"],
            **({"policies": found["policies"]} if found.get("policies") else {}),
            "also": [
                {
                    "kind": own["kind"],
                    "decoding": own["decoding"],
                    "accuracy": [own["accuracy"], other["accuracy"]],
                    "effect": own["difference"]["effect"],
                    "interval": own["difference"]["interval"],
                }
                for own, other in zip(arm["asked"][1:], control["asked"][1:])
            ],
        }
    if "ranking" in found:
        findings[found["name"]] = {
            **found["ranking"],
            "command": found["command"],
            "commit": found["commit"],
            "settings": {arm["arm"]: arm["settings"] for arm in found["arms"]},
            "common": found["common"],
        }
    return findings


def load_committed(name: str) -> tuple[dict, ExperimentRecords]:
    """Return the summary and the records of an experiment under figures/reference/experiments.

    Raises:
        ValueError: the plan or the results are missing or unreadable, or the plan compares agents.
    """
    plan = load_plan(name)
    if not isinstance(plan, ExperimentPlan):
        raise ValueError(f"{name} compares agents: see drlib.experiments.agent_plan")
    records = ExperimentRecords.load(EXPERIMENTS / f"{name}.parquet")
    return summary(plan, records), records


def summary(plan: ExperimentPlan, records: ExperimentRecords) -> dict:
    """Return accuracies, paired differences to the control and mean costs of every arm.

    Raises:
        ValueError: the records were made with other settings than the plan has now.
    """
    ran = _check_head(plan, records.head)
    control = records.results.get(plan.control)
    arms = [
        _arm(plan, arm, ran, records.results.get(name), control, records.curves.get(name, {}))
        for name, arm in plan.arms.items()
    ]
    commits = {code for one in records.results.values() for code in one.made.get("recipe", [])}
    ranking = rank_agreement(plan, records.results, ran["registered"])
    return {
        "name": plan.name,
        "about": plan.about,
        "command": ran["command"],
        "commit": sorted(commits),
        "stage": plan.stage,
        "profile": ran["profile"],
        "seeds": ran["seeds"],
        "control": plan.control,
        "common": _common(plan, ran),
        "policies": {name: dict(settings) for name, settings in plan.policies.items()},
        "asked": [{"kind": kind, "decoding": decoding} for kind, decoding in plan.asked],
        "arms": arms,
        **({"ranking": ranking} if ranking else {}),
    }


def _check_head(plan: ExperimentPlan, ran: Mapping) -> Mapping:
    """Return the head of the records if they belong to the plan; ValueError otherwise."""
    now = _without_counts(json.loads(json.dumps(what_ran(plan))))
    then = _without_counts(ran)
    changed = [key for key in ("stage", "settings", "policies") if then.get(key) != now.get(key)]
    require(
        not changed,
        f"the records of {plan.name!r} have another {' and '.join(changed)} than the plan: "
        "run the experiment again, or pass another --out",
    )
    return ran


def _without_counts(ran: Mapping) -> dict:
    """Return what ran without the numbers of questions and answers: they change the precision."""
    arms = ran.get("settings", {}).items()
    kept = {arm: {k: v for k, v in own.items() if k not in COUNTS} for arm, own in arms}
    return {**ran, "settings": kept}


def _common(plan: ExperimentPlan, ran: Mapping) -> dict:
    """Return the plan's common settings, with the numbers of questions and answers that ran."""
    others = {key: value for key, value in plan.common.items() if key not in COUNTS}
    ran_with = ran["settings"][plan.control]
    return others | {key: ran_with[key] for key in COUNTS if key in ran_with}


def _done(runs: Mapping) -> list[int]:
    """Return the seeds whose runs are finished."""
    return [int(seed) for seed, run in runs.items() if "failed" not in run]


def _arm(
    plan: ExperimentPlan,
    arm: Arm,
    ran: Mapping,
    results: Results | None,
    control: Results | None,
    curves: Mapping[int, Sequence[Mapping]],
) -> dict:
    """Return an arm's part of the summary; a claim at a look has the seeds of the look alone."""
    runs, seeds = ran["runs"].get(arm.name, {}), ran["seeds"]
    claim = _judged(plan, arm, ran, results, control)
    if results and "look" in claim:
        results = results.only(claim["seeds"])
    done = _done(runs)
    is_control = arm.name == plan.control
    failed = {seed: run["failed"] for seed, run in runs.items() if "failed" in run}
    asked = []
    for kind, decoding in plan.asked if results else ():
        row = _measured(plan.stage, kind, decoding, results)
        both = {*results.seeds} & {*control.seeds} if control and not is_control else set()
        if both:
            row |= _difference(plan.stage, kind, decoding, results, control, both)
        asked.append(row)
    return {
        "arm": arm.name,
        "settings": dict(arm.settings),
        "state": "finished" if len(done) == len(seeds) else "failed" if failed else "unfinished",
        "seeds": done,
        "failed": failed,
        "asked": asked,
        "cost": _mean_cost([runs[str(seed)] for seed in done]),
        "rewards": _mean_rewards([curves.get(seed, []) for seed in done]),
        "stopped": {
            seed: f"step {run['steps']}: {run['stopped']}"
            for seed, run in runs.items()
            if "stopped" in run
        },
        **({"claim": claim} if claim else {}),
    }


def _measured(stage: str, kind: str, decoding: str, results: Results) -> dict:
    """Return accuracy with its interval over seeds and questions, and by seed."""
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
    """Return the paired difference to the control over the seeds of both, and by seed."""
    effect = results.gain(stage, stage, kind, decoding, of=control)
    by_seed = [
        results.only([seed]).gain(stage, stage, kind, decoding, of=control.only([seed]))[0]
        for seed in sorted(both)
    ]
    by_seed = [round(float(each), 5) for each in by_seed]
    return {"difference": {**rounded(effect), "seeds": sorted(both), "by_seed": by_seed}}


def _judged(
    plan: ExperimentPlan,
    arm: Arm,
    ran: Mapping,
    results: Results | None,
    control: Results | None,
) -> dict:
    """Return the arm's claim with its verdict, {} without a claim; open before a comparison."""
    if arm.statement is None:
        return {}
    said, name = arm.statement, {"finding": plan.finding_name(arm.name)}
    both = sorted({*results.seeds} & {*control.seeds}) if results and control else []
    if not both:
        texts = {"claim": said.claim, "source": said.source, "expected": said.expected}
        return {**name, **texts, "outcome": "open", "pilot": True}
    ready = [*takewhile(lambda seed: seed in both, ran["seeds"])]
    order = [*ready, *(seed for seed in both if seed not in ready)]
    differences_SQ = results.differences(plan.stage, plan.stage, *plan.asked[0], of=control)
    differences_SQ = differences_SQ[[both.index(seed) for seed in order]]
    # the design that was registered with the runs, not one that the plan has now
    design = read_design(ran["design"]) if "design" in ran else None
    if design is None and len(ran["seeds"]) >= SEEDS:
        design = Design(looks=(len(ran["seeds"]),))
    claim: dict = name | said.judge(differences_SQ, ran["registered"], design, len(ready))
    if "look" not in claim:
        return claim
    seeds = sorted(order[: claim["look"]])
    hours = _machine_hours([ran["runs"][one] for one in (arm.name, plan.control)], seeds)
    return claim | {"seeds": seeds} | ({"machine_hours": hours} if hours else {})


def _machine_hours(arms: Sequence[Mapping], seeds: Sequence[int]) -> float:
    """Return the wall-clock hours of all stages of these runs; shared stages count once."""
    stages = {
        folder: seconds
        for runs in arms
        for seed in seeds
        for folder, seconds in runs[str(seed)].get("stages", {}).items()
    }
    return round(sum(stages.values()) / 3600, 3)


def _mean_cost(runs: Sequence[Mapping]) -> dict:
    """Return the mean over runs of each cost that all runs have."""
    shared = [name for name in COSTS if runs and all(name in run for run in runs)]
    return {name: round(sum(run[name] for run in runs) / len(runs), 1) for name in shared}


def _mean_rewards(runs: Sequence[Sequence[Mapping]]) -> dict[str, float]:
    """Return the mean over runs of each reward metric at the end of training.

    A run's value is the mean over those of its last `LAST_STEPS` steps that have the metric. A
    metric that a run lacks is left out.
    """
    found: dict[str, list[float]] = {}
    for rows in runs:
        last = rows[-LAST_STEPS:]
        for name in dict.fromkeys(name for row in last for name in row):
            if name in REWARDS or name.startswith("rewards/"):
                values = [row[name] for row in last if name in row]
                found.setdefault(name, []).append(sum(values) / len(values))
    return {
        name: round(sum(values) / len(runs), 4)
        for name, values in found.items()
        if len(values) == len(runs)
    }


def _reward_columns(found: Mapping) -> list[str]:
    """Return the reward metrics that some arm has: the reward, its terms, then its variance."""
    names = {name for arm in found["arms"] for name in arm["rewards"]}
    terms = sorted(names - {*REWARDS})
    return [name for name in ("reward", *terms, "reward_std", "zero_variance") if name in names]


def curves(found: Mapping, records: ExperimentRecords) -> dict[str, list[list[dict]]]:
    """Return the metrics of every finished seed by arm; arms without any are left out."""
    kept = {
        arm["arm"]: [
            records.curves.get(arm["arm"], {})[seed]
            for seed in arm["seeds"]
            if seed in records.curves.get(arm["arm"], {})
        ]
        for arm in found["arms"]
    }
    return {name: rows for name, rows in kept.items() if rows}


def outcome_text(claim: Mapping) -> str:
    """Return the verdict as pages show it; an open claim with the state of its design."""
    if claim.get("pilot"):
        return f"{claim['outcome']} (pilot)"
    if claim["outcome"] != "open" or "look" not in claim:
        return claim["outcome"]
    if claim["final"]:
        return f"open, undecided at {claim['look']} seeds"
    return f"open at {claim['look']} of {claim['design']['looks'][-1]} seeds"


def table(found: Mapping) -> str:
    """Return the summary as a Markdown page."""
    heads = ["arm", "settings"]
    for asked in found["asked"]:
        what = f"{asked['kind']}, {asked['decoding']}"
        heads += [f"{what}, % right [95%]", f"less {found['control']}, points [95%]"]
    heads += ["each seed", *_reward_columns(found), "seconds a run", "in rollouts", "rollouts"]
    heads += ["generated tokens", "trained tokens", "claim"]
    lines = [f"# {found['name']}", "", found["about"], "", _describe(found), ""]
    lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for arm in found["arms"]:
        cells = [cell.replace("|", "\\|") for cell in _cells(arm, found)]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [note for arm in found["arms"] for note in _notes(arm)]
    if "ranking" in found:
        lines += ["", describe_ranking(found["ranking"])]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _describe(found: Mapping) -> str:
    """Describe the measurement."""
    common = ", ".join(f"{name}={value}" for name, value in found["common"].items())
    first = next((arm["asked"] for arm in found["arms"] if arm["asked"]), [])
    asked = ", ".join(dict.fromkeys(f"{row['n']} {row['kind']} questions" for row in first))
    return (
        f"Stage `{found['stage']}`, profile `{found['profile']}`"
        + (f", all with {common}" if common else "")
        + (f"; asked {asked}" if asked else "")
        + f". Intervals over {tour.describe_sampling(len(found['seeds']))}; "
        + "differences are paired. "
        + (
            f"Reward metrics are means over the last {LAST_STEPS} steps and the seeds. "
            if _reward_columns(found)
            else ""
        )
        + f"Costs are those of the stage itself. Made by `{found['command']}`."
    )


def _cells(arm: Mapping, found: Mapping) -> list[str]:
    """Return the cells of an arm's row."""
    done, all_seeds = arm["seeds"], found["seeds"]
    part = (
        f" ({len(done)} of {tour.format_seeds(len(all_seeds))})"
        if 0 < len(done) < len(all_seeds)
        else ""
    )
    settings = ", ".join(f"{name}={value}" for name, value in arm["settings"].items())
    cells = [f"`{arm['arm']}`{part}", f"`{settings}`" if settings else NONE]
    for number, _ in enumerate(found["asked"]):
        cells += _asked_cells(arm, number, found["control"])
    shares = arm["asked"][0]["by_seed"] if arm["asked"] else []
    cells.append(", ".join(f"{100 * share:.1f}" for share in shares) or NONE)
    rewards = (arm["rewards"].get(name) for name in _reward_columns(found))
    cells += [NONE if value is None else f"{value:.3f}" for value in rewards]
    costs = (arm["cost"].get(name) for name in COSTS)
    cells += [NONE if value is None else f"{value:,.0f}" for value in costs]
    claim = arm.get("claim")
    said = f"{claim['claim']} ({claim['source']}): **{outcome_text(claim)}**" if claim else NONE
    return [*cells, said]


def _asked_cells(arm: Mapping, number: int, control: str) -> list[str]:
    """Return accuracy and difference to the control."""
    if not arm["asked"]:
        return ["failed" if arm["state"] == "failed" else "not yet", NONE]
    row = arm["asked"][number]
    accuracy = tour.format_percent((row["accuracy"], *row["interval"]))
    if arm["arm"] == control:
        return [accuracy, "control"]
    if "difference" not in row:
        return [accuracy, NONE]
    difference = row["difference"]
    return [accuracy, tour.format_percent((difference["effect"], *difference["interval"]), "+")]


def _notes(arm: Mapping) -> list[str]:
    """Return notes on failed and stopped runs, one line per run."""
    failed = [f"- `{arm['arm']}`, seed {s}: failed: {why}" for s, why in arm["failed"].items()]
    return failed + [
        f"- `{arm['arm']}`, seed {seed}: stopped at {why}" for seed, why in arm["stopped"].items()
    ]
