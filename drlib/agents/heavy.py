"""Heavy mode: several agents research the same question, and their reports are merged.

Announced but not released by Tongyi DeepResearch (arXiv 2510.24701, section 4.3). `n` IterResearch
runs work independently; their last reports and answers are merged, not their trajectories, which
would not fit in a context. The merger is the policy itself, which reads all reports, or a majority
vote over the answers (the baseline).

The trajectory of Heavy is the merger's; the usage of the runs is in its metadata.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from drlib.agents.agent import AGENTS, Agent, rollout_id
from drlib.agents.iterresearch import IterResearch
from drlib.agents.rollout_state import RolloutState, Steps, Watch, count_costs
from drlib.chat.prompts import merge_prompt
from drlib.chat.tool_calls import Answer
from drlib.task import Task, normalise_answer
from drlib.trajectory import Trajectory


@AGENTS.register("heavy")
class Heavy(Agent):
    """`n` runs of `researcher` (None: IterResearch with the same engine), merged.

    Args:
        n: runs per question.
        merge: "policy" or "vote".
        researcher: an agent.
        shared: all samples of a question merge the same runs, as in training of the merger:
            rollouts of the group then differ only in the merge.
        merger_temperature: of the merger's turn, None for that of the runs.

    Raises:
        ValueError: n below 1 or unknown merge.
    """

    def __init__(
        self,
        *args,
        n: int = 8,
        merge: str = "policy",
        researcher=None,
        shared: bool = False,
        merger_temperature: float | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        if n < 1 or merge not in ("policy", "vote"):
            raise ValueError(f"n={n} must be at least 1, and merge={merge!r} policy or vote")
        self.n = n
        self.merge = merge
        self.shared = shared
        self.merger_temperature = merger_temperature
        self.researcher = researcher or IterResearch(*args, **kwargs)
        self._reports: dict[str, list[Trajectory]] = {}  # by rollout id, while they are merged

    def run(self, tasks: Sequence[Task], *, samples: int = 1, keys=None, **options):
        """Run the tasks as `Agent.run`; each sample has `n` runs, without end events."""
        keys = list(range(len(tasks))) if keys is None else list(keys)
        watch = options.pop("watch", None)
        quiet: dict[str, Any] = {} if watch is None else {"watch": without_ends(watch)}
        made = self.n if self.shared else samples * self.n
        runs = self.researcher.run(tasks, samples=made, keys=keys, **quiet, **options)
        groups = [runs[at : at + self.n] for at in range(0, len(runs), self.n)]
        if self.shared:
            groups = [group for group in groups for _ in range(samples)]
        seed = options.get("seed", 0)
        names = [rollout_id(seed, key, number) for key in keys for number in range(samples)]
        self._reports = dict(zip(names, groups))
        if self.merge == "vote":
            merged = [_select_by_vote(group, name) for name, group in self._reports.items()]
        else:
            if self.merger_temperature is not None:
                options = options | {"temperature": self.merger_temperature}
            merged = super().run(tasks, samples=samples, keys=keys, **quiet, **options)
        merged = [
            with_runs(trajectory, group, self.merge) for trajectory, group in zip(merged, groups)
        ]
        for trajectory in merged if watch else ():
            watch("end", None, trajectory)
        return merged

    def run_task(self, state: RolloutState) -> Steps:
        """Request the merger's only turn."""
        turn = yield state.begin(synthesis_prompt(state.task.question, self._reports[state.name]))
        return turn.action.text if isinstance(turn.action, Answer) else None


def synthesis_prompt(question: str, runs: Sequence[Trajectory]) -> str:
    """Build the merger's prompt: the last report and the answer of each run."""
    return merge_prompt(question, [(run.metadata.get("report", ""), run.answer) for run in runs])


def vote(answers: Sequence[str | None]) -> str | None:
    """Return the most frequent answer, the first of them in a tie; None without any.

    >>> vote(["Oslo", "Bergen", "oslo", None])
    'Oslo'
    """
    answered = [answer for answer in answers if answer is not None]
    counts = Counter(map(normalise_answer, answered))
    best = max(counts.values(), default=0)
    return next((a for a in answered if counts[normalise_answer(a)] == best), None)


def without_ends(watch: Watch) -> Watch:
    """Wrap `watch` without end events, unless the whole run was interrupted."""

    def quiet(event: str, state: RolloutState, value) -> None:
        if event != "end" or "interrupted" in state.notes:
            watch(event, state, value)

    return quiet


def _select_by_vote(runs: Sequence[Trajectory], name: str) -> Trajectory:
    """Return the first run with the majority answer."""
    answer = vote([run.answer for run in runs])
    winner = next((run for run in runs if run.answer == answer), runs[0])
    return replace(winner, id=name, group_id=name.rsplit("-", 1)[0])


def with_runs(merged: Trajectory, runs: Sequence[Trajectory], merge: str, **parts) -> Trajectory:
    """Add the runs' answers and costs, and other `parts`, to the metadata as "runs"."""
    costs = [count_costs(run) for run in runs]
    prefixes = [run.metadata["prefix"] for run in runs if "prefix" in run.metadata]
    if prefixes:  # of branches
        parts["saved"] = {name: sum(p[name] for p in prefixes) for name in ("sampled", "calls")}
    found = {"merge": merge, "answers": [run.answer for run in runs], "costs": costs} | parts
    return replace(merged, metadata=merged.metadata | {"runs": found})
