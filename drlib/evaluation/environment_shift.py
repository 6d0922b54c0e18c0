"""A realistic environment: a small world with faults, latency, drift and another search ranking.

Recipes are developed in a simulator and then applied to the real web (WebSailor-V2, arXiv
2509.13305; Tongyi DeepResearch, arXiv 2510.24701). Here both environments have the same facts apart
from four declared differences (`evaluation.shift`), each with a seed:

| difference | effect |
|---|---|
| faults | a search or visit fails, and the policy reads that the tool is unavailable |
| latency | exponential, on a simulated clock; calls above the time limit fail |
| drift | pages are missing, or a fact has another value |
| ranking | the order of search results is drawn by Plackett and Luce's model |

No answer is judged by facts that have changed: answers are derived again in the changed world.
Questions that became unanswerable or trivial are excluded and counted.

Faults and latencies depend on the seed, the rollout and its calls only, so results do not depend on
the number of threads or processes. Not implemented: another layout of pages
(`drlib.worlds.perturbed`), pages that change during a rollout.
"""

import copy
import itertools
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drlib.config import EvaluationShiftConfig
from drlib.questions.chains import has_shortcut
from drlib.task import Task
from drlib.tools import FaultInjector, ReliabilityPolicy, ToolFault
from drlib.tools.backends import digest, uniform
from drlib.validation import require
from drlib.worlds import Entity, SmallWorld, World
from drlib.worlds.world import Hit, Page

CANDIDATES = 10  # search results that the noise of the ranking can move
# No retries, so that the declared rate is the rate that a policy meets. A failed call is part of
# the environment and not a fault of the evaluation: the rollout continues and is judged.
POLICY = ReliabilityPolicy(attempts=1, critical=False)


class SimulatedClock:
    """A clock that `sleep` advances without waiting, separately in each thread."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def monotonic(self) -> float:
        """Return the simulated time of this thread in seconds."""
        return getattr(self._thread, "now", 0.0)

    def sleep(self, seconds: float) -> None:
        """Advance the time of this thread."""
        self._thread.now = self.monotonic() + seconds


class DriftedWorld(SmallWorld):
    """`world` with missing pages, changed facts and a noisy search ranking.

    Attributes:
        missing: titles of the missing pages, `missing_share` of all.
        changed: (title, relation) of the changed facts, one on `changed_share` of all pages.
    """

    def __init__(self, world: SmallWorld, shift: EvaluationShiftConfig):
        kept, self.missing, self.changed = drift_entities(world, shift)
        super().__init__(kept, world.name, scheme=world.scheme)
        self.ranking_noise = shift.ranking_noise
        self.seed = shift.seed
        # ranking is no part of the data, but of what a cached search returns
        self.version += f"-{digest(shift.ranking_noise, shift.seed)[:6]}"

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """Return the `k` best pages in the order of noisy scores.

        The score of the original rank r is -log(r) + ranking_noise x Gumbel noise, which is
        Plackett and Luce's model: the first position goes to rank r with a probability proportional
        to r^(-1 / ranking_noise). Equal queries have equal results.

        Raises:
            ValueError: k < 1.
        """
        if self.ranking_noise == 0:
            return super().search(query, k)
        hits = super().search(query, max(k, CANDIDATES))
        scores = [
            -math.log(rank) + self.ranking_noise * self._gumbel(query, hit.title)
            for rank, hit in enumerate(hits, 1)
        ]
        order = sorted(range(len(hits)), key=lambda place: -scores[place])
        return [hits[place] for place in order[:k]]

    def _gumbel(self, query: str, title: str) -> float:
        share = uniform(self.seed, "ranking", query.casefold(), title)
        return -math.log(-math.log(share or 0.5**53))


def drift_entities(
    world: SmallWorld, shift: EvaluationShiftConfig
) -> tuple[list[Entity], frozenset[str], frozenset[tuple[str, str]]]:
    """Remove pages and change facts.

    A changed fact gets the value that another page has for the same relation. A larger share
    includes the pages of a smaller one.

    Returns:
        The entities, the removed titles, and (title, relation) of the changed facts.

    Raises:
        ValueError: fewer pages have a fact that can change than should change.
    """

    def pick(kind: str, titles: Sequence[str], share: float) -> list[str]:
        count = round(share * len(world))
        require(
            count <= len(titles),
            f"evaluation.shift.{kind}_share={share} is {count} pages, but only {len(titles)} can "
            f"be {kind}: lower it",
        )
        return sorted(titles, key=lambda title: uniform(shift.seed, kind, title))[:count]

    entities = world.entities
    missing = frozenset(pick("missing", [*entities], shift.missing_share))
    values: dict[str, list[str]] = {}
    for entity in entities.values():
        for relation, value in entity.facts.items():
            values.setdefault(relation, []).append(value)
    values = {relation: sorted({*some}) for relation, some in values.items()}
    changeable = {
        title: relations
        for title, entity in entities.items()
        if title not in missing
        and (relations := [r for r, v in entity.facts.items() if {*values[r]} - {v, title}])
    }
    changed = set()
    kept = {title: entity for title, entity in entities.items() if title not in missing}
    for title in pick("changed", [*changeable], shift.changed_share):
        facts = entities[title].facts
        relation = _choose(changeable[title], shift.seed, "relation", title)
        others = [v for v in values[relation] if v not in (facts[relation], title)]
        value = _choose(others, shift.seed, "value", title)
        kept[title] = replace(entities[title], facts={**facts, relation: value})
        changed.add((title, relation))
    return [*kept.values()], missing, frozenset(changed)


def _choose(options: Sequence[str], *parts: Any) -> str:
    return options[int(uniform(*parts) * len(options))]


@dataclass(frozen=True)
class ShiftedTasks:
    """Questions of the realistic environment.

    Attributes:
        tasks: answerable questions, with their ids in the simulator and their answers here.
        changed: ids of the questions with another answer than in the simulator.
        excluded: id -> "unanswerable" (a page of the chain is missing) or "shortcut" (a search
            before the last hop shows the answer).
    """

    tasks: list[Task]
    changed: frozenset[str]
    excluded: Mapping[str, str]

    def summary(self) -> dict[str, int]:
        """Return the number of questions that are asked, have a changed answer, are excluded."""
        reasons = Counter(self.excluded.values())
        return {
            "asked": len(self.tasks),
            "changed": len(self.changed),
            "unanswerable": reasons["unanswerable"],
            "shortcut": reasons["shortcut"],
        }


def shift_tasks(tasks: Sequence[Task], world: DriftedWorld, results: int) -> ShiftedTasks:
    """Derive the answers of chain questions in the drifted world; exclude unsuitable questions.

    Args:
        results: pages shown per search.

    Raises:
        ValueError: a task is no chain of hops, or no question is left.
    """
    kept, changed, excluded = [], set(), {}
    for task in tasks:
        require(
            bool(task.relations),
            f"task {task.id} is no chain of hops, so its answer cannot be derived again after a "
            "drift: pass questions with relations",
        )
        path = world.follow(task.start, task.relations)
        if path is None:
            excluded[task.id] = "unanswerable"
            continue
        entities = tuple(path)
        moved = replace(task, world=world.version, answer=path[-1], entities=entities)
        if path[-1] != task.answer:
            moved = replace(moved, aliases=(), page="")
            changed.add(task.id)
        if has_shortcut(moved, world, results):
            excluded[task.id] = "shortcut"
            changed.discard(task.id)
            continue
        kept.append(moved)
    require(
        bool(kept),
        "evaluation.shift leaves no question: lower evaluation.shift.missing_share",
    )
    return ShiftedTasks(kept, frozenset(changed), excluded)


class RealisticEnvironment:
    """Questions in a drifted world, with faults and latencies of their own in each rollout.

    Args:
        tasks: chain questions of the simulator.
        world: the simulator's world.
        shift: the declared differences.
        results: pages shown per search.

    Attributes:
        world: the drifted world.
        questions: the questions that are asked, and those that are excluded.
        clock, policies: arguments of the `Toolbox`.
    """

    policies = dict.fromkeys(("search", "visit"), POLICY)

    def __init__(
        self,
        tasks: Sequence[Task],
        world: SmallWorld,
        shift: EvaluationShiftConfig,
        results: int = 2,
    ):
        self.world = DriftedWorld(world, shift)
        self.questions = shift_tasks(tasks, self.world, results)
        self.clock = SimulatedClock()
        self._shift = shift

    def rollout_world(self, rollout: str) -> World:
        """Return the drifted world with the faults and latencies of one rollout.

        rollout: any text that identifies the rollout; equal texts give equal faults.
        """
        shift = self._shift
        numbers = itertools.count()

        def wait() -> None:
            share = uniform(shift.seed, "latency", rollout, next(numbers))
            seconds = -shift.latency_s * math.log1p(-share)
            self.clock.sleep(min(seconds, POLICY.timeout_s))
            if seconds >= POLICY.timeout_s:
                raise ToolFault("timeout", f"simulated latency of {seconds:.1f} s")

        def search(query: str, k: int = 10) -> list[Hit]:
            wait()
            return self.world.search(query, k)

        def page(title_or_url: str) -> Page:
            wait()
            return self.world.page(title_or_url)

        world = copy.copy(self.world)
        # an own version: cached results of another rollout would hide faults
        version = f"{self.world.version}-{digest(rollout)[:12]}"
        vars(world).update(search=search, page=page, version=version)
        half = shift.fault_share / 2
        seed = int(digest(shift.seed, "faults", rollout)[:12], 16)
        faults = FaultInjector({"503": half, "cut": half}, seed=seed, clock=self.clock)
        return faults.world(world)

    def expand(
        self, tasks: Sequence[Task], samples: int, decoding: str
    ) -> tuple[list[Task], dict[str, World]]:
        """Repeat each task for its rollouts, each with a world of its own.

        Returns:
            Tasks [len(tasks) x samples], all rollouts of the first task first, and their worlds by
            version, for `Agent.run`.
        """
        rollouts, worlds = [], {}
        for task in tasks:
            for number in range(samples):
                world = self.rollout_world(f"{task.id}/{decoding}/{number}")
                worlds[world.version] = world
                rollouts.append(replace(task, world=world.version))
        return rollouts, worlds
