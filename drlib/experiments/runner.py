"""Run an experiment on this machine: build missing runs one by one, and keep their records.

Each run is a stage and its evaluation, in run folders named by a hash of their settings
(`drlib.training.stages`). Arms share every earlier stage that their settings do not change. A
finished run is not repeated, and the same command resumes an interrupted experiment, also within a
run. A failed run is reported with its reason, and the others continue.

Records are rewritten after every run. Table and figure are made from them alone
(`drlib.experiments.tables`), so they show the runs finished so far.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from drlib.config import Config
from drlib.experiments.plan import ExperimentPlan, what_ran
from drlib.experiments.records import ExperimentRecords
from drlib.experiments.verdicts import registration
from drlib.training import stages
from drlib.training.launch import LaunchError, build_stage
from drlib.training.run_folder import (
    METRICS,
    RunFolder,
    RunFolderError,
    read_manifest,
    read_metrics,
)

Failed = dict[tuple[str, int], str]  # (arm, seed) -> why


def built_here(plan: ExperimentPlan, runs: Path) -> Iterator[tuple[str, int, str]]:
    """Build missing runs and yield (arm, seed, "" or the reason of a failure)."""
    for arm, seed in plan.runs():
        yield arm, seed, build_run(plan, arm, seed, runs)


def build_run(plan: ExperimentPlan, arm: str, seed: int, runs: Path) -> str:
    """Build a run, after the policies that it names; return "" or the reason of a failure."""
    for name in plan.policies_of(arm):
        reason = build_or_say("rl", plan.policy_config(name, seed, runs), runs)
        if reason:
            return f"policy {name}: {reason}"
    return build_or_say(f"evaluate_{plan.stage}", plan.config(arm, seed, runs), runs)


def build_or_say(stage: str, config: Config, runs: Path) -> str:
    """Build a stage and its inputs if missing; return "" or the reason of a failure on one line."""
    try:
        build_stage(stage, config, runs=runs)
    except LaunchError as fault:
        return fault.reason
    except (ValueError, RunFolderError, OSError) as fault:
        return " ".join(str(fault).split())
    return ""


def measure(
    plan: ExperimentPlan,
    runs: Path,
    out: Path,
    command: str,
    built: Iterable[tuple[str, int, str]],
) -> Failed:
    """Record each run as it is built; return the failed ones with their reasons."""
    from drlib.experiments.tables import write_summary  # lazily: it brings matplotlib

    failed: Failed = {}
    for arm, seed, reason in built:
        if reason:
            failed[arm, seed] = reason
        print(f"{arm}, seed {seed}: {'failed: ' + reason if reason else 'finished'}", flush=True)
        write_summary(plan, keep(plan, runs, out, command, failed), out)
    return failed


def is_finished(plan: ExperimentPlan, arm: str, seed: int, runs: Path) -> bool:
    """Return True if the run's evaluation is complete."""
    if missing_policies(plan, arm, seed, runs):
        return False
    path = stages.folder(f"evaluate_{plan.stage}", plan.config(arm, seed, runs), runs)
    return RunFolder.is_complete(path)


def missing_policies(plan: ExperimentPlan, arm: str, seed: int, runs: Path) -> list[str]:
    """Return the policies of an arm from the first one that is not trained."""
    names = plan.policies_of(arm)
    for number, name in enumerate(names):
        if not RunFolder.is_complete(plan.policy_run(name, seed, runs)):
            return names[number:]
    return []


def keep(
    plan: ExperimentPlan, runs: Path, out: Path, command: str, failed: Failed
) -> ExperimentRecords:
    """Write the records of all finished runs to OUT/NAME.parquet and return them."""
    kept: dict[str, dict[int, dict]] = {arm: {} for arm in plan.arms}
    for arm, seed in plan.runs():
        if is_finished(plan, arm, seed, runs):
            config = plan.config(arm, seed, runs)
            stage_seconds = seconds_by_stage(plan, arm, seed, runs)
            kept[arm][seed] = cost_of(plan.stage, config, runs) | {"stages": stage_seconds}
        elif (arm, seed) in failed:
            kept[arm][seed] = {"failed": failed[arm, seed]}
    head = {"command": command, **what_ran(plan), "seeds": list(plan.seeds), "runs": kept}
    head |= {"design": plan.design.as_dict()} if plan.design else {}
    records = ExperimentRecords(json.loads(json.dumps(head)))  # seeds as text, as after loading
    for arm, by_seed in kept.items():
        done = [
            plan.config(arm, seed, runs) for seed, run in by_seed.items() if "failed" not in run
        ]
        if done:
            records.add_arm(arm, done, plan.stage, runs, command, demonstrator=False)
    codes = {code for one in records.results.values() for code in one.made["recipe"]}
    records.head["registered"] = registration(plan.file, plan.seeds, codes)
    records.save(out / f"{plan.name}.parquet")
    return records


def seconds_by_stage(plan: ExperimentPlan, arm: str, seed: int, runs: Path) -> dict[str, float]:
    """Return the wall-clock seconds of all stages of a finished run, by folder name.

    Runs that share a stage name the same folder. A stage that was killed and resumed counts the
    seconds of its steps, or those since its last start if these are more. Zero if not recorded.
    """
    wanted = [(f"evaluate_{plan.stage}", plan.config(arm, seed, runs))]
    wanted += [("rl", plan.policy_config(name, seed, runs)) for name in plan.policies_of(arm)]
    found = {}
    for last, config in wanted:
        for name in stages.list_ancestors(last, config):
            folder = stages.folder(name, config, runs)
            if RunFolder.is_complete(folder):
                steps = cost_of(name, config, runs).get("seconds", 0.0)
                found[folder.name] = max(steps, read_manifest(folder).get("seconds", 0.0))
    return found


def cost_of(stage: str, config: Config, runs: Path) -> dict:
    """Return the training costs of the stage, {} for a stage without steps."""
    folder = stages.folder(stage, config, runs)
    return costs(read_metrics(folder)) if (folder / METRICS).exists() else {}


def costs(rows: Sequence[Mapping]) -> dict:
    """Sum the costs over the rows of a metrics.jsonl, as far as recorded.

    seconds: wall clock of the steps, affected by other programs. rollout_seconds: the part for
    rollouts. generated_tokens: of all rollouts. trained_tokens: in the loss of the updates taken;
    for a step with several updates, the last one's times their number. stopped: why the run ended
    early.
    """
    parts = {
        "seconds": [row.get("seconds") for row in rows],
        "rollout_seconds": [row.get("rollout_seconds") for row in rows],
        "rollouts": [row.get("rollouts") for row in rows],
        "generated_tokens": [_times(row, "generated", "rollouts") for row in rows],
        "trained_tokens": [_trained(row) for row in rows],
    }
    sums = {
        name: [value for value in values if value is not None] for name, values in parts.items()
    }
    found = {name: round(sum(values), 3) for name, values in sums.items() if values}
    stopped = rows[-1].get("stopped") if rows else None
    return {"steps": len(rows), **found, **({"stopped": stopped} if stopped else {})}


def _times(row: Mapping, one: str, other: str) -> float | None:
    return row[one] * row[other] if one in row and other in row else None


def _trained(row: Mapping) -> float | None:
    """Return the tokens in the loss; supervised rows record them as `loss_tokens`."""
    tokens = row.get("loss_tokens", row.get("tokens"))
    return None if tokens is None else tokens * row.get("updates", 1)


def listing(plan: ExperimentPlan, runs: Path) -> str:
    """Return one line per run: finished, or missing stages and progress. Trains nothing."""
    lines = []
    for arm, seed in plan.runs():
        policies = missing_policies(plan, arm, seed, runs)
        if policies:
            lines.append(f"{arm}, seed {seed}: missing: policies {', '.join(policies)}")
            continue
        config = plan.config(arm, seed, runs)
        missing = stages.missing_stages(f"evaluate_{plan.stage}", config, runs)
        state = f"missing: {', '.join(missing)}" if missing else "finished"
        lines.append(f"{arm}, seed {seed}: {state}{_begun(missing, config, runs)}")
    return "\n".join(lines)


def _begun(missing: Sequence[str], config: Config, runs: Path) -> str:
    """Return the progress of interrupted stages."""
    told = []
    for name in missing:
        final = stages.folder(name, config, runs)
        partial = final.with_name(final.name + ".partial")
        if (partial / METRICS).exists():
            total = config.get(stages.STAGES[name].steps)
            told.append(f"{name} at step {len(read_metrics(partial))} of {total}")
    return f" ({', '.join(told)})" if told else ""
