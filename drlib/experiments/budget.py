"""Spend machine hours on the claims that they are most likely to decide.

    drlib experiment run findings --budget 8h

Every shipped plan with a design (`drlib.experiments.designs`) and an undecided claim is a
candidate. The next one has the largest number of claims expected to be decided at its next look,
per machine hour of the runs that this look still needs. Its missing runs are made, its claims are
judged, and the choice is made again, until the budget is used or nothing is undecided. A run in
progress is finished. Results are in the run folders: after a kill the same command continues, with
a new budget.

The choice does not affect the errors of the designs: a verdict is only given at a look.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from drlib.experiments import runner
from drlib.experiments.designs import Design
from drlib.experiments.findings_page import read_findings
from drlib.experiments.plan import ExperimentPlan
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.tables import outcome_text, summary
from drlib.experiments.verdicts import command_of, registration
from drlib.intervals import t_quantile
from drlib.training.run_folder import code_version
from drlib.validation import require

DEFAULT_SECONDS = 120.0  # of a run (laptop: 85 s for 25 steps of RL), before one was timed
PRIOR_SEEDS = 3  # weight of the design's standard deviation against that of the seeds
DRAWS = 4000
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Candidate:
    """An experiment that could be continued.

    Attributes:
        name: of the plan.
        look: number of seeds of the next look.
        decided: expected number of claims that the look decides.
        hours: expected machine hours of the runs that are missing.
    """

    name: str
    look: int
    decided: float
    hours: float


def next_candidate(candidates: Iterable[Candidate]) -> Candidate:
    """Return the candidate with the most expected verdicts per hour; the first of equal ones.

    >>> next_candidate([Candidate("a", 8, 0.9, 3.0), Candidate("b", 14, 0.5, 1.0)]).name
    'b'
    """
    return max(candidates, key=lambda one: one.decided / max(one.hours, 1e-6))


def probability_of_verdict(
    by_seed: Sequence[float], design: Design, earlier: Sequence[float] = ()
) -> float:
    """Return the probability that the next look decides a claim, given the seeds so far.

    Mean and variance of a new seed's difference are drawn from their posterior distribution: the
    usual one of a normal sample with a flat prior for the mean, and for the variance that of the
    design's `deviation` with the weight of `PRIOR_SEEDS` seeds. Without any seed the mean is drawn
    around zero with that deviation. New seeds are then drawn up to the look, and its two tests are
    made. The part of the questions is left out of the interval. The random stream is fixed.

    Args:
        by_seed: paired differences of the registered seeds, fewer than the last look, shares.
        earlier: differences of other seeds, such as a pilot's: they inform the posterior alone.
    """
    rng = np.random.default_rng(0)
    look = next(look for look in design.looks if look > len(by_seed))
    known = np.array([*earlier, *by_seed])
    squares = ((known - known.mean()) ** 2).sum() if len(known) else 0.0
    freedom = PRIOR_SEEDS + max(len(known) - 1, 0)
    variance_R = (PRIOR_SEEDS * design.deviation**2 + squares) / rng.chisquare(freedom, DRAWS)
    centre, spread_R = 0.0, np.full(DRAWS, design.deviation)
    if len(known):
        centre, spread_R = known.mean(), np.sqrt(variance_R / len(known))
    mean_R = centre + spread_R * rng.standard_normal(DRAWS)
    new_RS = rng.standard_normal((DRAWS, look - len(by_seed))) * np.sqrt(variance_R)[:, None]
    old_RS = np.broadcast_to(np.array(by_seed, float), (DRAWS, len(by_seed)))
    all_RS = np.concatenate([old_RS, new_RS + mean_R[:, None]], axis=1)
    effect_R, error_R = np.abs(all_RS.mean(1)), all_RS.std(1, ddof=1) / look**0.5
    differs, equal = (
        t_quantile(look - 1, (1 + design.confidence(look, test)) / 2)
        for test in ("difference", "equivalence")
    )
    is_decided = (effect_R > differs * error_R) | (effect_R + equal * error_R <= design.margin)
    return float(is_decided.mean())


def parse_budget(text: str) -> float:
    """Return the seconds of a budget such as 8h, 30m or 90s; ValueError for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    require(found is not None, f"--budget {text!r}: give a number with s, m or h, such as 8h")
    return float(found[1]) * UNITS[found[2]]


def claims_of(plan: ExperimentPlan) -> list[str]:
    """Return the arms of a plan that carry a claim."""
    return [name for name, arm in plan.arms.items() if arm.statement]


class Progress:
    """The state of one plan with a design: its claims, what they still need, and its costs.

    Args:
        runs: folder of the runs.
        out: folder of the records, rewritten when runs are finished.
        ray: address of a Ray cluster ("": starts one), None: run here.
    """

    def __init__(self, plan: ExperimentPlan, runs: Path, out: Path, ray: str | None = None):
        self.plan, self.runs, self.out, self.ray = plan, runs, out, ray
        self.design = plan.design or Design()
        self.records = out / f"{plan.name}.parquet"
        self.command = command_of(f"run {plan.name}", plan.profile)
        self.failed: runner.Failed = {}
        stored = read_findings()
        self._pilots = {arm: _pilot(stored.get(plan.finding_name(arm))) for arm in claims_of(plan)}
        self._typical = _seconds(EXPERIMENTS / self.records.name) or DEFAULT_SECONDS
        if any(runner.is_finished(plan, arm, seed, runs) for arm, seed in plan.runs()):
            runner.keep(plan, runs, out, self.command, {})

    def arms(self) -> dict[str, dict]:
        """Return the arms of the summary of the finished runs by name; {} before any."""
        if not self.records.exists():
            return {}
        found = summary(self.plan, ExperimentRecords.load(self.records))
        return {arm["arm"]: arm for arm in found["arms"]}

    def claims(self) -> list[dict]:
        """Return the claims as they are judged now; [] before any run."""
        return [arm["claim"] for arm in self.arms().values() if "claim" in arm]

    def reason_to_skip(self) -> str:
        """Return why the runs of this plan would count for nothing; empty if they count."""
        codes = {code_version()}
        if self.records.exists():
            results = ExperimentRecords.load(self.records).results.values()
            codes |= {code for one in results for code in one.made["recipe"]}
        if registration(self.plan.file, self.plan.seeds, codes):
            return ""
        return (
            "the plan is not committed, or was committed after some of its runs: commit it, and "
            "give --runs and --out folders without older runs"
        )

    def candidate(self) -> Candidate | None:
        """Return the next look with its chance and costs; None if everything is decided."""
        undecided = self._undecided()
        seeds = [len(by_seed) for by_seed in undecided.values()]
        if not undecided or self.failed or min(seeds) >= self.design.looks[-1]:
            return None
        look = self._look(undecided)
        chances = [
            probability_of_verdict(by_seed, self.design, self._pilots[arm])
            for arm, by_seed in undecided.items()
            if len(by_seed) < look
        ]
        missing = len(self._missing(undecided, look))
        seconds = missing * (_seconds(self.records) or self._typical)
        return Candidate(self.plan.name, look, sum(chances), seconds / 3600)

    def advance(self, deadline: float) -> None:
        """Make the missing runs of the next look, none of them after the deadline.

        Args:
            deadline: of `time.monotonic`, seconds.
        """
        undecided = self._undecided()
        look = self._look(undecided)
        missing = self._missing(undecided, look)
        built: Iterator = ((*at, runner.build_run(self.plan, *at, self.runs)) for at in missing)
        if self.ray is not None:
            from drlib.experiments.ray_runner import built_on_ray

            arms = {name: arm for name, arm in self.plan.arms.items() if name in dict(missing)}
            part = replace(self.plan, arms=arms, seeds=self.plan.seeds[:look])
            built = built_on_ray(part, self.runs, self.ray or None)
        before = _until(built, deadline)
        self.failed = runner.measure(self.plan, self.runs, self.out, self.command, before)

    def _undecided(self) -> dict[str, list[float]]:
        """Return the differences of the plan's first seeds, by arm without a final verdict."""
        arms, found = self.arms(), {}
        for name in claims_of(self.plan):
            arm = arms.get(name, {})
            if arm.get("claim", {}).get("final"):
                continue
            difference = arm["asked"][0].get("difference", {}) if arm.get("asked") else {}
            done = dict(zip(difference.get("seeds", []), difference.get("by_seed", [])))
            ready = _leading(seed in done for seed in self.plan.seeds)
            found[name] = [done[seed] for seed in self.plan.seeds[:ready]]
        return found

    def _missing(self, undecided: Iterable[str], look: int) -> list[tuple[str, int]]:
        """Return (arm, seed) of the runs that the look needs, seed by seed."""
        return [
            (arm, seed)
            for seed in self.plan.seeds[:look]
            for arm in (self.plan.control, *undecided)
            if not runner.is_finished(self.plan, arm, seed, self.runs)
        ]

    def _look(self, undecided: Mapping[str, Sequence[float]]) -> int:
        """Return the next look of the claim that has the fewest seeds."""
        fewest = min(map(len, undecided.values()))
        return next(look for look in self.design.looks if look > fewest)


def run_findings(
    plans: Sequence[ExperimentPlan],
    runs: Path,
    out: Path,
    budget_s: float,
    ray: str | None = None,
) -> int:
    """Continue the plans by expected verdicts per hour until the budget is used; print each step.

    Args:
        plans: with designs.
        budget_s: wall-clock seconds; no run starts later.
        ray: address of a Ray cluster ("": starts one), None: run here.

    Returns:
        The number of failed runs; the other claims of their experiment stay open.

    Raises:
        ValueError: no plan has a design.
    """
    require(bool(plans), "no plan has a design: add one, see docs/experiments.md")
    deadline = time.monotonic() + budget_s
    states = {plan.name: Progress(plan, runs, out, ray) for plan in plans}
    for name, state in [*states.items()]:
        reason = state.reason_to_skip()
        if reason:
            print(f"{name}: skipped: {reason}", flush=True)
            del states[name]
    while time.monotonic() < deadline:
        candidates = [one for state in states.values() if (one := state.candidate())]
        if not candidates:
            print("no claim is left to decide", flush=True)
            break
        best = next_candidate(candidates)
        print(
            f"{best.name}: to {best.look} seeds, about {best.hours:.1f} machine hours, "
            f"{best.decided:.2f} claims expected to be decided",
            flush=True,
        )
        states[best.name].advance(deadline)
        for claim in states[best.name].claims():
            print(f"{best.name}: {claim['claim']}: {outcome_text(claim)}", flush=True)
    else:
        print("the budget is used: run the same command again to continue", flush=True)
    failed = [(name, *run) for name, state in states.items() for run in state.failed.items()]
    for name, (arm, seed), reason in failed:
        print(f"{name}: {arm}, seed {seed}: failed: {reason}", flush=True)
    return len(failed)


def _until(built: Iterator[tuple[str, int, str]], deadline: float) -> Iterator:
    """Yield runs until the deadline; a run that began before it is finished."""
    while time.monotonic() < deadline:
        one = next(built, None)
        if one is None:
            return
        yield one


def _leading(flags: Iterable[bool]) -> int:
    """Return the number of leading true values."""
    count = 0
    for flag in flags:
        if not flag:
            break
        count += 1
    return count


def _pilot(finding: Mapping | None) -> list[float]:
    """Return the differences of a pilot, [] without one."""
    return [*finding["by_seed"]] if finding and finding["pilot"] else []


def _seconds(path: Path) -> float:
    """Return the mean recorded seconds of a run, shared stages divided among the runs; 0: none.

    Older records have the seconds of training alone.
    """
    records = ExperimentRecords.load(path) if path.exists() else None
    all_runs = [*(records.head["runs"].values() if records else ())]
    runs = [run for runs in all_runs for run in runs.values() if "failed" not in run]
    stages: dict[str, float] = {}
    for run in runs:
        stages |= run.get("stages", {})
    total = sum(stages.values()) or sum(run.get("seconds", 0.0) for run in runs)
    return total / len(runs) if runs else 0.0
