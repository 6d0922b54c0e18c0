"""Heavy mode: several agents research the same question, and their reports become one answer.

Tongyi DeepResearch (arXiv 2510.24701, section 4.3) announced it and never released it. `n`
IterResearch runs work on their own; what is merged are their last reports and answers, never their
trajectories, which would not fit. The merger is the policy itself, reading all reports in one
context, or a vote, which is what one would do with the answers alone: its baseline.

A trajectory of Heavy is the merger's; what the runs have used is in its metadata.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from drlib.agents.agent import AGENTS, Agent, rollout_id
from drlib.agents.iterresearch import IterResearch
from drlib.agents.rollout_state import RolloutState, Steps, Watch, count_costs
from drlib.chat.prompts import merge_prompt
from drlib.chat.tool_calls import Answer
from drlib.task import Task, normalise_answer
from drlib.trajectory import Trajectory


@AGENTS.register("heavy")
class Heavy(Agent):
    """`n` runs of `researcher` (the IterResearch of the same engine where it is None), merged.

    merge: "policy" or "vote". shared: whether all samples of a question merge the same runs, as
    when the merger is trained: then only what it makes of them differs between siblings.
    merger_temperature: of the merger's turn, None for that of the runs: many runs want variety, one
    synthesis does not.
    """

    def __init__(
        self,
        *how,
        n: int = 8,
        merge: str = "policy",
        researcher=None,
        shared: bool = False,
        merger_temperature: float | None = None,
        **more,
    ):
        super().__init__(*how, **more)
        if n < 1 or merge not in ("policy", "vote"):
            raise ValueError(f"n={n} must be at least 1, and merge={merge!r} policy or vote")
        self.n = n
        self.merge = merge
        self.shared = shared
        self.merger_temperature = merger_temperature
        self.researcher = researcher or IterResearch(*how, **more)
        self._reports: dict[str, list[Trajectory]] = {}  # by attempt, while they are merged

    def run(self, tasks: Sequence[Task], *, samples: int = 1, keys=None, **how):
        """As `Agent.run`; each sample has `n` runs of its own, whose ends `watch` is not told."""
        keys = list(range(len(tasks))) if keys is None else list(keys)
        watch = how.pop("watch", None)
        quiet = {} if watch is None else {"watch": _but_for_ends(watch)}
        made = self.n if self.shared else samples * self.n
        runs = self.researcher.run(tasks, samples=made, keys=keys, **quiet, **how)
        groups = [runs[at : at + self.n] for at in range(0, len(runs), self.n)]
        if self.shared:
            groups = [group for group in groups for _ in range(samples)]
        seed = how.get("seed", 0)
        names = [rollout_id(seed, key, number) for key in keys for number in range(samples)]
        self._reports = dict(zip(names, groups))
        if self.merge == "vote":
            merged = [_voted(group, name) for name, group in self._reports.items()]
        else:
            if self.merger_temperature is not None:
                how = how | {"temperature": self.merger_temperature}
            merged = super().run(tasks, samples=samples, keys=keys, **quiet, **how)
        merged = [_with_parts(one, group, self.merge) for one, group in zip(merged, groups)]
        for one in merged if watch else ():
            watch("end", None, one)
        return merged

    def run_task(self, at: RolloutState) -> Steps:
        """The merger's only turn."""
        turn = yield at.begin(synthesis(at.task.question, self._reports[at.name]))
        return turn.action.text if isinstance(turn.action, Answer) else None


def synthesis(question: str, runs: Sequence[Trajectory]) -> str:
    """What the merger reads: the last report and the answer of each run."""
    return merge_prompt(question, [(run.metadata.get("report", ""), run.answer) for run in runs])


def vote(answers: Sequence[str | None]) -> str | None:
    """The answer that most give, the first of them where several are given as often; None where
    nobody answers."""
    given = [answer for answer in answers if answer is not None]
    counts = Counter(map(normalise_answer, given))
    best = max(counts.values(), default=0)
    return next((a for a in given if counts[normalise_answer(a)] == best), None)


def _but_for_ends(watch: Watch) -> Watch:
    """Tells all but ends, unless the whole run was interrupted."""

    def quiet(what: str, at: RolloutState, value) -> None:
        if what != "end" or "interrupted" in at.notes:
            watch(what, at, value)

    return quiet


def _voted(runs: Sequence[Trajectory], name: str) -> Trajectory:
    """The first run that gave the answer of the vote."""
    answer = vote([run.answer for run in runs])
    chosen = next((run for run in runs if run.answer == answer), runs[0])
    return replace(chosen, id=name, group_id=name.rsplit("-", 1)[0])


def _with_parts(merged: Trajectory, runs: Sequence[Trajectory], merge: str) -> Trajectory:
    """What the runs answered and cost, beside the merger's own."""
    costs = [count_costs(run) for run in runs]
    parts = {"merge": merge, "answers": [run.answer for run in runs], "costs": costs}
    return replace(merged, metadata=merged.metadata | {"runs": parts})
