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

from __future__ import annotations

import copy
import hashlib
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from drlib.agents.react import Limits, ReAct, with_reward
from drlib.config import Config
from drlib.policy.engine import LocalEngine
from drlib.rl import advantages as estimators
from drlib.rl.curriculum import Curriculum
from drlib.rl.filtering import FilterConfig, apply_filter
from drlib.rl.resampling import drop_equal_groups, resample_on_correct
from drlib.rl.rewards import make_reward
from drlib.rl.stability import EmergencyStop
from drlib.sandbox import Sandbox
from drlib.synthesis.questions import (
    PYTHON_KINDS, SearchQuestions, Task, is_correct, python_task,
)  # fmt: skip
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import begin, finish
from drlib.training.gradient import check_switches, learn, record, select
from drlib.training.optim import Optimizers, schedule
from drlib.training.run import Interrupted, Ranks, RunFolder, interruptible
from drlib.trajectory import Termination, Trajectory, save_trajectories
from drlib.worlds import Names, World, fictional_world

KEPT_GROUPS = 4  # whose trajectories are saved at the first, the middle and the last step
FINAL_LR = 0.1  # of the base, at the last step
FILTERED = ("overlong", "env_fault", "unjudged", "hallucination")  # rollouts left out, and why
COLLAPSE = {"unanswered": (0.3, 0.95)}  # shares of rollouts: healthy below, collapsed above
SKILLS = (*sorted(PYTHON_KINDS), "h1", "h2", "h3")


class Questions:
    """Draws the step's questions: the curriculum chooses skills, `draw` makes tasks of them."""

    def __init__(self, config: Config, world: World, names: Names):
        self.config, self.names = config, names
        self.real = SearchQuestions(world, "train")

    def draw(self, step: int, curriculum: Curriculum) -> tuple[list[Task], dict[str, World]]:
        """The tasks of `step` and the fictional worlds that some of them live in."""
        rng = random.Random(f"rl-{self.config.seed}-{step}")
        tasks, worlds = [], {}
        for _ in range(self.config.rl_questions):
            if rng.random() < self.config.rl_python_share:
                tasks.append(python_task(rng, curriculum.draw(sorted(PYTHON_KINDS), rng)))
                continue
            hops = int(curriculum.draw(["h1", "h2", "h3"], rng)[1])
            if rng.random() < self.config.rl_fictional_share:
                world = fictional_world(rng.getrandbits(60), self.names)
                source = SearchQuestions(world, None)
                worlds[world.version] = world
                hops = min(hops, max(h for h in (1, 2, 3) if source.answers(h)))
                tasks.append(source.draw(hops, rng))
            else:
                tasks.append(self.real.draw(hops, rng))
        return tasks, worlds


def limits_of(config: Config) -> Limits:
    return Limits(config.max_calls, config.max_turn_tokens, config.max_context_tokens)


def rollout(
    agent: ReAct, tasks: list[Task], worlds: dict[str, World], config: Config, step: int,
    ranks: Ranks,
) -> list[Trajectory]:  # fmt: skip
    """This rank's groups, rewarded; a question keeps its random streams on whichever rank it is."""
    mine = list(range(ranks.rank, len(tasks), ranks.size))
    trajectories = agent.run(
        [tasks[i] for i in mine], samples=config.rl_group * config.rl_oversample,
        temperature=config.rl_temperature, seed=_seed(config.seed, step), keys=mine, worlds=worlds,
    )  # fmt: skip
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
    digest = hashlib.sha256(f"rollout-{seed}-{step}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


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

    `positive_tool_errors`: the share of failed calls in the successes that are trained on, the
    `chosen` (rStar2-Agent, figure 4).
    """
    calls = [r for t in trajectories for r in t.tool_results]
    positive = [r for t in chosen if (t.reward or 0.0) > 0.5 for r in t.tool_results]
    sums = {
        "n": len(trajectories), "calls": len(calls), "errors": sum(not r.ok for r in calls),
        "no_call": sum(not t.tool_results for t in trajectories),
        "overlong": sum(t.termination is Termination.LENGTH for t in trajectories),
        "out_of_turns": sum(t.termination is Termination.TURNS for t in trajectories),
        "positive": len(positive), "positive_errors": sum(not r.ok for r in positive),
        "env_faults": sum(t.termination is Termination.ENV_FAULT for t in trajectories),
        "generated": sum(int(t.generated.sum()) for t in trajectories),
        "entropy": sum(float(t.entropies.sum()) for t in trajectories),
    }  # fmt: skip
    # right or wrong is recorded also where the reward is random: the curve of a control
    outcomes = ranks.gather(
        [(t.metadata["skill"], t.reward_parts["correct"], t.reward, t.group_id)
         for t in trajectories]
    )  # fmt: skip
    s = ranks.sum(sums)
    right = {"python": [], "search": [], "h1": [], "h2": [], "h3": []}
    groups: dict[str, set] = {}
    for skill, correct, reward, group in outcomes:
        right["search" if skill[0] == "h" and skill[1:].isdigit() else "python"].append(correct)
        if skill in right:
            right[skill].append(correct)
        groups.setdefault(group, set()).add(reward)
    row = {f"accuracy_{k}": sum(v) / len(v) for k, v in right.items() if v}
    row |= {
        "accuracy": sum(o[1] for o in outcomes) / len(outcomes), "rollouts": int(s["n"]),
        "tool_errors": s["errors"] / max(s["calls"], 1), "env_faults": int(s["env_faults"]),
        "positive_tool_errors": s["positive_errors"] / max(s["positive"], 1),
        "entropy": s["entropy"] / max(s["generated"], 1),
        "live_groups": sum(len(r) > 1 for r in groups.values()) / len(groups),
    }  # fmt: skip
    means = ("no_call", "overlong", "out_of_turns", "generated", "calls")
    row |= {name: s[name] / s["n"] for name in means}
    return row, [(skill, correct) for skill, correct, *_ in outcomes]


@dataclass
class Step:
    """One GRPO step after another: what the loop needs between checkpoints."""

    config: Config
    model: nn.Module
    optimizers: Optimizers
    agent: ReAct
    questions: Questions
    ranks: Ranks
    reference: nn.Module | None = None  # the policy that a KL term pulls to

    def __call__(self, step: int, curriculum: Curriculum) -> tuple[dict, list[Trajectory]]:
        """Roll out, judge, learn, hand the new weights to the engine."""
        config, started = self.config, time.perf_counter()
        tasks, worlds = self.questions.draw(step, curriculum)
        self.model.eval()
        trajectories = rollout(self.agent, tasks, worlds, config, step, self.ranks)
        rolled = time.perf_counter()
        chosen = choose(trajectories, config, step)
        row = self._learn(chosen, step)
        if (step + 1) % (config.rl_staleness + 1) == 0:
            self.agent.engine.update_weights(engine_weights(self.model, config))
        summary, outcomes = summarise(trajectories, chosen, self.ranks)
        curriculum.update(outcomes)
        times = {
            "seconds": round(time.perf_counter() - started, 3),
            "rollout_seconds": round(rolled - started, 3),
        }
        return {"step": step + 1, **summary, **row, **times}, trajectories

    def _learn(self, trajectories: list[Trajectory], step: int) -> dict:
        """`rl_minibatches` updates, each on its share of the groups; metrics of the last one."""
        config, ranks = self.config, self.ranks
        pad_id = self.agent.chat.tokenizer.pad_token_id
        advantages, weights, report = advantages_of(trajectories, config)
        others = {"old": self.model} if config.rl_correction != "none" else {}
        others |= {"reference": self.reference} if self.reference is not None else {}
        reasons = {f"filtered_{r}": float(report["reasons"].get(r, 0)) for r in FILTERED}
        recorded = {k: record(m, trajectories, config, pad_id) for k, m in others.items()}
        self.model.train()
        factor = schedule(step, config.rl_steps, config.rl_warmup_steps, 0.5, FINAL_LR)
        names = list(dict.fromkeys(t.group_id for t in trajectories))
        row = {}
        for part in range(config.rl_minibatches):
            groups = {*names[part :: config.rl_minibatches]}
            mine = [i for i, t in enumerate(trajectories) if t.group_id in groups]
            row = learn(
                self.model, [trajectories[i] for i in mine], advantages[mine], weights[mine],
                config, ranks, pad_id, select(recorded, mine),
            )  # fmt: skip
            ranks.sum_gradients(self.model)
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            row |= {"grad_norm": float(norm), "lr_factor": factor}
            self.optimizers.step(factor)
        return row | ranks.sum(reasons)


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
    reference = copy.deepcopy(model) if config.rl_kl_coef > 0 else None
    optimizers = Optimizers.adam(model, config.rl_lr)
    done, extra = run.resume(model, optimizers)
    questions = Questions(config, world, names)
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.search_results) as toolbox,
        interruptible(run.ranks) as stop,
    ):
        sampler = engine_weights(model, config)
        engine = LocalEngine(sampler, max_context=config.max_context_tokens, lockstep=True)
        agent = ReAct(engine, toolbox, chat, limits_of(config))
        take = Step(config, model, optimizers, agent, questions, run.ranks, reference)
        metrics = _loop(config, run, done, extra, take, stop)
    return finish(run, model, chat, metrics)


def _loop(config: Config, run: RunFolder, done: int, extra: dict, take: Step, stop) -> dict:
    """All steps that are left: a line of metrics each, checkpoints, a few kept trajectories.

    `extra` is what the last checkpoint knew besides weights: the curriculum's rates, and the
    emergency stop's memory (`rl_emergency_stop`: a policy that has forgotten how to answer gets no
    reward any more, and every further step costs several times a healthy one).
    """
    curriculum = Curriculum(SKILLS, extra.get("curriculum"))
    emergency = EmergencyStop(COLLAPSE if config.rl_emergency_stop else {}, patience=10)
    emergency.load_state_dict(extra.get("emergency", emergency.state_dict()))
    metrics: dict = extra.get("stopped", {})
    for step in range(done, done if metrics else config.rl_steps):
        metrics, trajectories = take(step, curriculum)
        unanswered = metrics["overlong"] + metrics["out_of_turns"]
        reason = emergency.update({"unanswered": unanswered})
        metrics |= {"stopped": reason} if reason else {}
        run.log(metrics)
        last = step + 1 == config.rl_steps or reason is not None
        if run.ranks.first and (step in (0, config.rl_steps // 2) or last):
            kept = trajectories[: KEPT_GROUPS * config.rl_group]
            save_trajectories(run.path / f"trajectories_{step + 1:04d}.parquet", kept)
        asked = stop()
        if asked or last or (step + 1) % config.checkpoint_every == 0:
            state = {"curriculum": curriculum.state_dict(), "emergency": emergency.state_dict()}
            state |= {"stopped": metrics} if reason else {}
            run.save_checkpoint(step + 1, take.model, take.optimizers, state)
        if asked and not last:
            raise Interrupted
        if last:
            break
    return metrics


if __name__ == "__main__":
    stages.main({"rl": grpo, "rl_random_reward": grpo})
