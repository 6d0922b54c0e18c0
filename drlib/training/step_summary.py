"""What a step's rollouts were like, over all processes: the part of its row in metrics.jsonl that
stands fixed before the update."""

from collections import defaultdict

from drlib.questions.chains import PYTHON_KINDS
from drlib.questions.question_engine import CHAINS, CONDITIONS
from drlib.training.distributed import Ranks
from drlib.training.question_scheduler import FICTIONAL, REAL, TRAIL
from drlib.training.rollouts import split_contexts
from drlib.trajectory import Termination, Trajectory


def summarise(
    trajectories: list[Trajectory], chosen: list[Trajectory], ranks: Ranks
) -> tuple[dict, list]:
    """(means over the whole step, [(skill, right)] of all ranks).

    Right or wrong is recorded also where the reward is random: the curve of a control.
    `live_groups`: the share of groups whose judged rewards differ. `positive_tool_errors`: the
    share of failed calls in the successes that are trained on, the `chosen` (rStar2-Agent, fig. 4).
    """
    positive = {t.id for t in chosen if (t.reward or 0.0) > 0.5}
    facts = ranks.gather([_facts(t, t.id in positive) for t in trajectories])
    row = _accuracies(facts) | {
        "accuracy": _mean("accuracy", facts),
        "generated": _mean("generated", facts),
        "contexts": _mean("contexts", facts),
        "calls": _mean("calls", facts),
        "rollouts": len(facts),
        "tool_errors": _ratio("errors", "calls", facts),
        "env_faults": sum(f["ended"] == Termination.ENV_FAULT for f in facts),
        "positive_tool_errors": _ratio("errors", "calls", [f for f in facts if f["positive"]]),
        "entropy": _ratio("entropy", "generated", facts),
        "live_groups": _live_groups(facts),
        "no_call": _mean("no_call", facts),
        "overlong": _mean("overlong", facts),
        "out_of_turns": _mean("out_of_turns", facts),
    }
    return row, [(f["skill"], f["accuracy"]) for f in facts]


def _facts(trajectory: Trajectory, positive: bool) -> dict:
    """What the step's means are made of."""
    return {
        "skill": trajectory.metadata["skill"],
        "source": trajectory.metadata["source"],
        "accuracy": trajectory.reward_parts["correct"],
        "reward": trajectory.reward,
        "group": trajectory.group_id,
        "positive": positive,
        "ended": trajectory.termination,
        "overlong": trajectory.termination == Termination.LENGTH,
        "out_of_turns": trajectory.termination == Termination.TURNS,
        "calls": len(trajectory.tool_results),
        "no_call": not trajectory.tool_results,
        "errors": sum(not result.ok for result in trajectory.tool_results),
        "generated": int(trajectory.generated.sum()),
        "contexts": len(split_contexts(trajectory)),
        "entropy": float(trajectory.entropies.sum()),
    }


def _mean(name: str, facts: list[dict]) -> float:
    return sum(f[name] for f in facts) / len(facts)


def _ratio(top: str, bottom: str, facts: list[dict]) -> float:
    return sum(f[top] for f in facts) / max(sum(f[bottom] for f in facts), 1)


def _accuracies(facts: list[dict]) -> dict[str, float]:
    """Accuracy of each kind of question that was asked, of each number of look-ups, and of search
    questions by the world that they are of."""
    kinds = {"python": PYTHON_KINDS, "search": CHAINS, "conditions": CONDITIONS}
    kinds |= {name: (name,) for name in (*CHAINS, *CONDITIONS, TRAIL)}
    asked = {kind: [f for f in facts if f["skill"] in skills] for kind, skills in kinds.items()}
    asked |= {name: [f for f in facts if f["source"] == name] for name in (REAL, FICTIONAL)}
    return {f"accuracy_{kind}": _mean("accuracy", some) for kind, some in asked.items() if some}


def _live_groups(facts: list[dict]) -> float:
    """Share of groups with a signal; a rollout that could not be judged has no reward to differ."""
    rewards = defaultdict(set)
    for f in facts:
        rewards[f["group"]] |= set() if f["reward"] is None else {f["reward"]}
    return sum(len(different) > 1 for different in rewards.values()) / len(rewards)
