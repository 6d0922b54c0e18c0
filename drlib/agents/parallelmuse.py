"""ParallelMuse: branches of a first rollout at its least certain steps (arXiv 2510.24698).

Several rollouts from scratch repeat the steps of which the policy is sure. Here one rollout is
complete. The others start at its steps with the highest perplexity and reuse what was sampled and
read before them. Thoughts and tool calls are ranked separately, because their uncertainties differ
(*functionality-specified partial rollout*). The runs are then merged as in Heavy, from a short
report of each instead of its trajectory (*compressed reasoning aggregation*).

The perplexity of step t is exp(-mean log p) over its sampled tokens of one kind (section 3). A
branch's record has the prefix as read, not sampled; `metadata["prefix"]` counts what it saves.

Reduced: one complete rollout; the reports are extracted by a rule (`extract_facts`), where the
paper has a model write them.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drlib.agents.agent import AGENTS, rollout_id
from drlib.agents.context import IdContext
from drlib.agents.heavy import Heavy
from drlib.agents.react import ReAct
from drlib.agents.resum import extract_facts
from drlib.task import Task
from drlib.trajectory import Segment, Trajectory
from drlib.validation import require

REGIONS = {"thought": Segment.THINK, "call": Segment.TOOL_CALL}
BRANCHING = (*REGIONS, "random", "full")


class PartialRollouts(ReAct):
    """Groups of `n` runs per question: a complete one, and branches of it.

    Args:
        n: runs per group.
        by: region whose perplexity ranks the steps, "thought" or "call". Controls: "random" steps,
            and "full", complete rollouts instead of branches.

    Raises:
        ValueError: n below 1, unknown `by`, an engine without log-probabilities, or (by `run`)
            greedy branches or a task with an environment.
    """

    def __init__(self, *args, n: int, by: str = "call", **kwargs):
        super().__init__(*args, **kwargs)
        require(n >= 1, f"n={n} must be at least 1")
        require(by in BRANCHING, f"by={by!r} must be one of {', '.join(BRANCHING)}")
        require(
            self.engine.reads == "ids",
            "branches need log-probabilities and token ids: use a model folder or a vLLM server "
            "with its folder",
        )
        self.n = n
        self.by = by
        self._origins: dict[str, tuple[Trajectory, int]] = {}  # by rollout id of the branch

    def run(self, tasks: Sequence[Task], *, samples: int = 1, keys=None, **options):
        """Run the tasks as `Agent.run`; `samples` is a multiple of `n`, group after group."""
        require(samples % self.n == 0, f"samples={samples} is no multiple of n={self.n}")
        require(
            self.n == 1 or options.get("temperature", 1.0) > 0,
            "greedy branches repeat the first rollout: use a temperature above 0",
        )
        require(
            not any(task.environment for task in tasks),
            "a branch cannot reuse the tool calls of a task with an environment: use heavy",
        )
        keys = list(range(len(tasks))) if keys is None else list(keys)
        options |= {"samples": samples, "keys": keys}
        roots = list(range(0, samples, self.n)) if self.by != "full" else list(range(samples))
        others = [number for number in range(samples) if number not in roots]
        self._origins = {}
        done = _by_name(super().run(tasks, numbers=roots, **options))
        seed = options.get("seed", 0)
        for key in keys:
            for number in others:
                first = done[rollout_id(seed, key, number - number % self.n)]
                steps = rank_steps(first, self.by)
                step = steps[(number % self.n - 1) % len(steps)] if steps else 0
                self._origins[rollout_id(seed, key, number)] = first, step
        if others:
            done |= _by_name(super().run(tasks, numbers=others, **options))
        names = [rollout_id(seed, key, number) for key in keys for number in range(samples)]
        return [_with_report(done[name]) for name in names]

    def begin(self, state):
        """Return the first context: the question, or the prefix of a branch."""
        first, step = self._origins.get(state.name, (None, 0))
        if first is None or not step:
            return super().begin(state)
        sampled = first.generated & (first.turns < step)
        end = int(np.argmax(first.generated & (first.turns == step)))
        turns = [i for i, message in enumerate(first.messages) if message["role"] == "assistant"]
        messages = first.messages[: turns[step]]
        calls = sum(message["role"] == "tool" for message in messages)
        state.results += first.tool_results[:calls]
        state.notes["prefix"] = {
            "step": step,
            "read": end,
            "sampled": int(sampled.sum()),
            "calls": calls,
        }
        context = IdContext.from_prefix(self.chat, first.token_ids[:end].tolist(), messages)
        return state.add_context(context)


@AGENTS.register("parallelmuse")
class ParallelMuse(Heavy):
    """Heavy with branches in place of independent runs.

    `metadata["runs"]["saved"]` counts the sampled tokens and tool calls of prefixes, which rollouts
    from scratch would have repeated in kind.

    Args:
        n: runs per question, the first included.
        by: see `PartialRollouts`.
        merge, merger_temperature: see `Heavy`.
    """

    def __init__(
        self,
        *args,
        n: int = 4,
        by: str = "call",
        merge: str = "policy",
        merger_temperature: float | None = None,
        **kwargs,
    ):
        super().__init__(
            *args,
            n=n,
            merge=merge,
            merger_temperature=merger_temperature,
            researcher=PartialRollouts(*args, n=n, by=by, **kwargs),
            **kwargs,
        )


def rank_steps(run: Trajectory, by: str) -> list[int]:
    """Return the numbers of the steps to branch at, best first.

    Args:
        run: with log-probabilities, in one context.
        by: "thought" or "call": by the perplexity of these tokens, the highest first; steps without
            any are left out. "random": a permutation that depends on the run's id only.
    """
    count = len(np.unique(run.turns[run.generated]))
    if by == "random":
        return random.Random(f"branch-{run.id}").sample(range(count), count)
    perplexities = {}
    for step in range(count):
        mine = run.generated & (run.turns == step) & (run.segments == REGIONS[by])
        if mine.any():
            perplexities[step] = float(np.exp(-run.logprobs[mine].mean()))
    return sorted(perplexities, key=lambda step: -perplexities[step])


def _by_name(runs: Sequence[Trajectory]) -> dict[str, Trajectory]:
    return {run.id: run for run in runs}


def _with_report(run: Trajectory) -> Trajectory:
    """Add the report that the merger reads to the metadata."""
    report = extract_facts(run.metadata["question"], run.messages, "")
    return replace(run, metadata=run.metadata | {"report": report})
