"""Stages `rl` and `rl_random_reward`: agentic GRPO, strictly on-policy, with real tools.

One step: draw questions; let the policy try each of them `rl_group` times with the tools; reward
1 for a right answer and 0 otherwise; subtract from each reward the mean of its siblings
(leave-one-out, never divided by a standard deviation); one gradient step on the mean over *all*
generated tokens. That is Tongyi DeepResearch's recipe (report, eq. 4-5): no KL, no entropy bonus,
no format reward, no dynamic sampling. Because every batch is used once, with the weights that
sampled it, the ratio is 1 and clipping does nothing. The relatives of the recipe are switches of
the configuration (`rl_...`), all off by default; `drlib.training.gradient` has the update itself.

Questions: sums, and chains of one to three look-ups in the real world (train answers) and in
fictional ones made on the spot, so that what is learned is looking up and not the facts.

Left out: replay of old rollouts and rollouts that run beside the update (`rl_staleness` only lets
the engine's weights grow old, and a resumed run begins with fresh ones).
"""

import copy
import hashlib
import random
import time
from collections import Counter
from pathlib import Path

import torch

from drlib.agents.react import Limits, ReAct, with_reward
from drlib.chat import ChatIds
from drlib.config import Config
from drlib.policy.engine import LocalEngine
from drlib.rl import advantages as estimators
from drlib.rl.curriculum import Curriculum
from drlib.rl.filtering import FilterConfig, apply_filter
from drlib.rl.resampling import drop_equal_groups, resample_on_correct
from drlib.rl.rewards import make_reward
from drlib.rl.stability import EmergencyStop
from drlib.sandbox import Sandbox
from drlib.synthesis.questions import PYTHON_KINDS, SearchQuestions, python_task
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import begin, finish
from drlib.training.gradient import check_switches, learn, record, select
from drlib.training.optim import Optimizers, schedule
from drlib.training.run import Ranks, RunFolder
from drlib.trajectory import Termination, Trajectory, save_trajectories
from drlib.worlds import Names, World, fictional_world

KEPT_GROUPS = 4  # whose trajectories are saved at the first, the middle and the last step
FINAL_LR = 0.1  # of the base, at the last step
FILTERED = ("overlong", "env_fault", "unjudged", "hallucination")  # rollouts left out, and why
COLLAPSE = {"unanswered": (0.3, 0.95)}  # shares of rollouts: healthy below, collapsed above
CHAINS = ("h1", "h2", "h3")  # one to three look-ups
SKILLS = (*sorted(PYTHON_KINDS), *CHAINS)


class Questions:
    """Sums, and chains of one to three look-ups in the real world (train answers) and in fictional
    ones made on the spot, so that what is learned is looking up and not the facts."""

    def __init__(self, config: Config, world: World, names: Names):
        self.config, self.names = config, names
        self.real = SearchQuestions(world, "train")

    def draw(self, step: int, curriculum: Curriculum) -> tuple[list[Task], dict[str, World]]:
        """The tasks of `step`, of skills that the curriculum draws, and the fictional worlds."""
        rng = random.Random(f"rl-{self.config.seed}-{step}")
        tasks, worlds = [], {}
        for _ in range(self.config.rl_questions):
            if rng.random() < self.config.rl_python_share:
                tasks.append(python_task(rng, curriculum.draw(sorted(PYTHON_KINDS), rng)))
                continue
            hops = int(curriculum.draw(CHAINS, rng)[1])
            source = self.real
            if rng.random() < self.config.rl_fictional_share:
                world = fictional_world(rng.getrandbits(60), self.names)
                source, worlds[world.version] = SearchQuestions(world, None), world
                hops = min(hops, max(h for h in (1, 2, 3) if source.answers(h)))
            tasks.append(source.draw(hops, rng))
        return tasks, worlds


def limits_of(config: Config) -> Limits:
    return Limits(config.max_calls, config.max_turn_tokens, config.max_context_tokens)


def rollout(
    agent: ReAct,
    tasks: list[Task],
    worlds: dict[str, World],
    config: Config,
    step: int,
    ranks: Ranks,
) -> list[Trajectory]:
    """This rank's groups, rewarded; a question keeps its random streams on whichever rank it is."""
    mine = list(range(ranks.rank, len(tasks), ranks.size))
    trajectories = agent.run(
        [tasks[i] for i in mine],
        samples=config.rl_group * config.rl_oversample,
        temperature=config.rl_temperature,
        seed=_seed(config.seed, step),
        keys=mine,
        worlds=worlds,
    )
    settings = {"seed": config.seed} if config.rl_reward == "random" else {}
    reward = make_reward(config.rl_reward, **settings)
    by_trajectory = [tasks[i] for i in mine for _ in range(len(trajectories) // len(mine))]
    rewarded = []
    for trajectory, task in zip(trajectories, by_trajectory):
        result = reward(trajectory, task)
        right = trajectory.answer is not None and is_correct(trajectory.answer, task)
        parts = {**result.parts, "correct": float(right)}
        trajectory.metadata["skill"] = task.skill
        rewarded.append(with_reward(trajectory, result.value, parts))
    return rewarded


def _seed(seed: int | str, step: int) -> int:
    return int(hashlib.sha256(f"rollout-{seed}-{step}".encode()).hexdigest()[:12], 16)


def choose(trajectories: list[Trajectory], config: Config, step: int) -> list[Trajectory]:
    """The rollouts to train on: all, or `rl_group` of each oversampled group (GRPO-RoC)."""
    if config.rl_resample == "none":
        return trajectories
    chosen = []
    for name in dict.fromkeys(t.group_id for t in trajectories):
        group = [t for t in trajectories if t.group_id == name]
        generator = torch.Generator().manual_seed(_seed(f"{config.seed}-{name}", step))
        kept = resample_on_correct(group, config.rl_group, config.rl_resample, generator=generator)
        chosen += [group[i] for i in kept]
    return chosen


def advantages_of(trajectories: list[Trajectory], config: Config):
    """(advantages, loss weights, report): by default leave-one-out after the selective filter."""
    switches = FilterConfig(config.rl_overlong, hallucination=config.rl_hallucination)
    weights, in_baseline, report = apply_filter(trajectories, switches)
    rewards = torch.tensor([0.0 if t.reward is None else t.reward for t in trajectories])
    groups = {g: i for i, g in enumerate(dict.fromkeys(t.group_id for t in trajectories))}
    groups_N = torch.tensor([groups[t.group_id] for t in trajectories])
    valid = torch.as_tensor(in_baseline, dtype=torch.bool)
    advantages = getattr(estimators, config.rl_advantage)(rewards, groups_N, valid)
    weights = torch.as_tensor(weights, dtype=torch.float32)
    if config.rl_drop_equal:
        weights = weights * drop_equal_groups(rewards, groups_N, valid)
    return advantages, weights, report


def summarise(
    trajectories: list[Trajectory], chosen: list[Trajectory], ranks: Ranks
) -> tuple[dict, list]:
    """(means over the whole step, [(skill, right)] of all ranks).

    Right or wrong is recorded also where the reward is random: the curve of a control.
    `positive_tool_errors`: the share of failed calls in the successes that are trained on, the
    `chosen` (rStar2-Agent, figure 4).
    """
    positive = {t.id for t in chosen if (t.reward or 0.0) > 0.5}
    facts = ranks.gather(
        [
            {
                "skill": t.metadata["skill"],
                "accuracy": t.reward_parts["correct"],
                "reward": t.reward,
                "group": t.group_id,
                "positive": t.id in positive,
                "ended": t.termination,
                "calls": len(t.tool_results),
                "errors": sum(not r.ok for r in t.tool_results),
                "generated": int(t.generated.sum()),
                "entropy": float(t.entropies.sum()),
            }
            for t in trajectories
        ]
    )

    def ratio(top: str, bottom: str, some: list[dict] = facts) -> float:
        return sum(f[top] for f in some) / max(sum(f[bottom] for f in some), 1)

    def share(key: str, value) -> float:
        return sum(f[key] == value for f in facts) / len(facts)

    kinds = {"python": PYTHON_KINDS, "search": CHAINS} | {name: (name,) for name in CHAINS}
    kinds = {name: [f for f in facts if f["skill"] in skills] for name, skills in kinds.items()}
    means = {f"accuracy_{name}": ("accuracy", some) for name, some in kinds.items() if some}
    means |= {name: (name, facts) for name in ("accuracy", "generated", "calls")}
    groups = {(f["group"], f["reward"]) for f in facts}
    live = Counter(group for group, _ in groups).values()
    row = {name: sum(f[key] for f in some) / len(some) for name, (key, some) in means.items()} | {
        "rollouts": len(facts),
        "tool_errors": ratio("errors", "calls"),
        "env_faults": sum(f["ended"] == Termination.ENV_FAULT for f in facts),
        "positive_tool_errors": ratio("errors", "calls", [f for f in facts if f["positive"]]),
        "entropy": ratio("entropy", "generated"),
        "live_groups": sum(rewards > 1 for rewards in live) / len(live),
        "no_call": share("calls", 0),
        "overlong": share("ended", Termination.LENGTH),
        "out_of_turns": share("ended", Termination.TURNS),
    }
    return row, [(f["skill"], f["accuracy"]) for f in facts]


class Step:
    """One GRPO step after another; checkpoints carry the curriculum and the emergency stop too.

    (A policy that has forgotten how to answer gets no reward any more, and every further step
    costs several times a healthy one: `rl_emergency_stop`.)
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        model,
        chat: ChatIds,
        toolbox: Toolbox,
        questions: Questions,
    ):
        self.config, self.run, self.model, self.questions = config, run, model, questions
        self.reference = copy.deepcopy(model) if config.rl_kl_coef > 0 else None
        self.optimizers = Optimizers.adam(model, config.rl_lr)
        extra = run.resume(model, self.optimizers)
        self.curriculum = Curriculum(SKILLS, extra.get("curriculum"))
        self.emergency = EmergencyStop(COLLAPSE if config.rl_emergency_stop else {}, patience=10)
        self.emergency.load_state_dict(extra.get("emergency", self.emergency.state_dict()))
        weights, limits = engine_weights(model, config), limits_of(config)
        engine = LocalEngine(weights, max_context=limits.context_tokens, lockstep=True)
        self.agent = ReAct(engine, toolbox, chat, limits)

    def __call__(self, step: int) -> dict:
        """Take it; "stopped" is among the metrics when the policy has collapsed."""
        metrics, trajectories = self.take(step)
        unanswered = metrics["overlong"] + metrics["out_of_turns"]
        reason = self.emergency.update({"unanswered": unanswered})
        metrics |= {"stopped": reason} if reason else {}
        kept_steps = (0, self.config.rl_steps // 2, self.config.rl_steps - 1)
        if self.run.ranks.first and (step in kept_steps or reason):
            kept = trajectories[: KEPT_GROUPS * self.config.rl_group]
            save_trajectories(self.run.path / f"trajectories_{step + 1:04d}.parquet", kept)
        return metrics

    def take(self, step: int) -> tuple[dict, list[Trajectory]]:
        """Roll out, judge, learn, hand the new weights to the engine."""
        config, ranks, started = self.config, self.run.ranks, time.perf_counter()
        tasks, worlds = self.questions.draw(step, self.curriculum)
        self.model.eval()
        trajectories = rollout(self.agent, tasks, worlds, config, step, ranks)
        rolled = time.perf_counter()
        chosen = choose(trajectories, config, step)
        row = self._learn(chosen, step)
        if (step + 1) % (config.rl_staleness + 1) == 0:
            self.agent.engine.update_weights(engine_weights(self.model, config))
        summary, outcomes = summarise(trajectories, chosen, ranks)
        self.curriculum.update(outcomes)
        row["seconds"] = round(time.perf_counter() - started, 3)
        row["rollout_seconds"] = round(rolled - started, 3)
        return {"step": step + 1, **summary, **row}, trajectories

    def _learn(self, trajectories: list[Trajectory], step: int) -> dict:
        """`rl_minibatches` updates, each on its share of the groups; metrics of the last one."""
        config, ranks = self.config, self.run.ranks
        pad_id = self.agent.chat.tokenizer.pad_token_id
        advantages, weights, report = advantages_of(trajectories, config)
        old = self.model if config.rl_correction != "none" else None
        others = {"old": old, "reference": self.reference}
        recorded = {k: record(m, trajectories, config, pad_id) for k, m in others.items() if m}
        self.model.train()
        factor = schedule(step, config.rl_steps, config.rl_warmup_steps, 0.5, FINAL_LR)
        names = list(dict.fromkeys(t.group_id for t in trajectories))
        for part in range(config.rl_minibatches):
            groups = {*names[part :: config.rl_minibatches]}
            mine = [i for i, t in enumerate(trajectories) if t.group_id in groups]
            row = learn(
                self.model,
                [trajectories[i] for i in mine],
                advantages[mine],
                weights[mine],
                config,
                ranks,
                pad_id,
                select(recorded, mine),
            )
            row |= {"grad_norm": ranks.sum_gradients(self.model), "lr_factor": factor}
            self.optimizers.step(factor)
        reasons = {f"filtered_{r}": float(report["reasons"].get(r, 0)) for r in FILTERED}
        return row | ranks.sum(reasons)

    def extra(self) -> dict:
        """What the checkpoint holds besides weights."""
        return {name: getattr(self, name).state_dict() for name in ("curriculum", "emergency")}


def engine_weights(model, config: Config):
    """What the engine samples with: the policy, or a rounded copy (`rl_engine`)."""
    if config.rl_engine == "float32":
        return model
    return copy.deepcopy(model).to(getattr(torch, config.rl_engine))


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `rl`: reinforcement learning from the cold start; returns the last metrics."""
    name = "rl_random_reward" if config.rl_reward == "random" else "rl"
    check_switches(config)
    run, model, chat, world, names = begin(name, "sft", config, run_dir, ranks)
    with Sandbox() as sandbox, Toolbox(world, sandbox, results=config.search_results) as toolbox:
        step = Step(config, run, model, chat, toolbox, Questions(config, world, names))
        metrics = run.loop(step, config.rl_steps, config.checkpoint_every, step.extra)
    return finish(run, model, chat, metrics)


if __name__ == "__main__":
    stages.main({"rl": grpo, "rl_random_reward": grpo})
