"""Stages `rl` and `rl_random_reward`: agentic GRPO, strictly on-policy, with real tools.

One step: draw questions; let the policy try each of them `rl_group` times with the tools; reward
1 for a right answer and 0 otherwise; subtract from each reward the mean of its siblings
(leave-one-out, never divided by a standard deviation); one gradient step on the mean over *all*
generated tokens. That is Tongyi DeepResearch's recipe (report, eq. 4-5): no KL, no entropy bonus,
no format reward, no dynamic sampling. Because every batch is used once, with the weights that
sampled it, the ratio is 1 and clipping does nothing.

Questions: sums, and chains of one to three look-ups in the real world (train answers) and in
fictional ones made on the spot, so that what is learned is looking up and not the facts.

Left out: a reference model, replay, asynchronous rollouts (`drlib.rl` is where they would go).
"""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import numpy as np
import torch

from drlib.agents.react import Limits, ReAct, with_reward
from drlib.config import Config
from drlib.policy.engine import LocalEngine
from drlib.policy.moe import load_policy, save_policy
from drlib.rl.advantages import leave_one_out
from drlib.rl.curriculum import Curriculum
from drlib.rl.filtering import FilterConfig, apply_filter
from drlib.rl.losses import LossConfig, policy_loss
from drlib.rl.rewards import make_reward
from drlib.sandbox import Sandbox
from drlib.synthesis.questions import (
    PYTHON_KINDS, SearchQuestions, Task, is_correct, python_task,
)  # fmt: skip
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.batches import pack, score, spread
from drlib.training.data import policy_tools
from drlib.training.optim import Optimizers, schedule
from drlib.training.run import Interrupted, Ranks, RunFolder, interruptible
from drlib.trajectory import Termination, Trajectory, save_trajectories
from drlib.worlds import Names, World, fictional_world

MICRO_BATCH_ROWS = 6
KEPT_GROUPS = 4  # whose trajectories are saved at the first, the middle and the last step
FINAL_LR = 0.1  # of the base, at the last step
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
        [tasks[i] for i in mine], samples=config.rl_group, temperature=config.rl_temperature,
        seed=_seed(config.seed, step), keys=mine, worlds=worlds,
    )  # fmt: skip
    settings = {"seed": config.seed} if config.rl_reward == "random" else {}
    reward = make_reward(config.rl_reward, **settings)
    by_trajectory = [tasks[i] for i in mine for _ in range(config.rl_group)]
    rewarded = []
    for trajectory, task in zip(trajectories, by_trajectory):
        result = reward(trajectory, task)
        right = trajectory.answer is not None and is_correct(trajectory.answer, task)
        parts = {**result.parts, "correct": float(right)}
        trajectory.metadata["skill"] = task.skill
        rewarded.append(with_reward(trajectory, result.value, parts))
    return rewarded


def _seed(seed: int, step: int) -> int:
    digest = hashlib.sha256(f"rollout-{seed}-{step}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def advantages_of(trajectories: list[Trajectory], config: Config):
    """(advantages, loss weights, report): leave-one-out after the selective filter."""
    weights, in_baseline, report = apply_filter(
        trajectories, FilterConfig(overlong=config.rl_overlong)
    )
    rewards = torch.tensor([0.0 if t.reward is None else t.reward for t in trajectories])
    groups = {g: i for i, g in enumerate(dict.fromkeys(t.group_id for t in trajectories))}
    groups_N = torch.tensor([groups[t.group_id] for t in trajectories])
    valid = torch.as_tensor(in_baseline, dtype=torch.bool)
    advantages = leave_one_out(rewards, groups_N, valid)
    return advantages, torch.as_tensor(weights, dtype=torch.float32), report


def learn(
    model, trajectories: list[Trajectory], advantages, weights, config: Config, ranks: Ranks,
    pad_id: int,
) -> dict:  # fmt: skip
    """Accumulate the gradient of the step's loss; returns its metrics (summed over ranks).

    Trajectories with advantage 0 have no gradient and are not run through the model, but their
    tokens count in the denominator: it is one number for the whole step.
    """
    tokens = [int(t.generated.sum()) for t in trajectories]
    kept = sum(n for n, w in zip(tokens, weights.tolist()) if w > 0)
    denominator = max(ranks.sum({"n": float(kept)})["n"], 1.0)
    live = [i for i in range(len(tokens)) if weights[i] > 0 and advantages[i] != 0 and tokens[i]]
    live.sort(key=lambda i: len(trajectories[i].token_ids))
    sums = {"loss": 0.0, "gap": 0.0, "scored": 0.0, "balance": 0.0, "batches": 0.0}
    gap_max = 0.0
    for batch in _micro_batches(live, trajectories, config.max_context_tokens):
        chosen, of_each = [trajectories[i] for i in batch], advantages[batch].tolist()
        loss, balance, gap = batch_loss(model, chosen, of_each, denominator, config, pad_id)
        share = gap.numel() / denominator
        (loss + config.balance_coef * share * balance).backward()
        gap_max = max(gap_max, float(gap.max()))
        sums["loss"] += float(loss.detach())
        sums["gap"] += float(gap.sum())
        sums["scored"] += gap.numel()
        sums["balance"] += float(balance.detach())
        sums["batches"] += 1
    sums = ranks.sum(sums)
    return {
        "loss": sums["loss"], "logp_gap": sums["gap"] / max(sums["scored"], 1.0),
        "logp_gap_max_rank0": gap_max, "balance": sums["balance"] / max(sums["batches"], 1.0),
        "tokens": int(denominator), "trained_share": sums["scored"] / denominator,
    }  # fmt: skip


def batch_loss(
    model, chosen: list[Trajectory], advantages: list[float], denominator: float, config: Config,
    pad_id: int,
):  # fmt: skip
    """(policy loss, balance loss, |log-prob gap to the engine| of each scored token).

    A packed row holds several trajectories, so every scored token stands as a sequence of its own
    in `policy_loss`; with one denominator for the whole step that changes nothing.
    """
    rows = pack([t.token_ids for t in chosen], config.max_context_tokens, pad_id)
    mask_RT = spread(rows, [t.generated for t in chosen], torch.bool)
    scored = score(model, rows, mask_RT, config.rl_temperature)
    behaviour_M = spread(rows, [t.logprobs for t in chosen], torch.float32)[scored.at]
    of_token = [np.full(len(t.token_ids), a) for a, t in zip(advantages, chosen)]
    advantage_M = spread(rows, of_token, torch.float32)[scored.at]
    logp_M1 = scored.logp_M[:, None]
    loss, _ = policy_loss(
        logp_M1, logp_M1.detach(), advantage_M, torch.ones_like(logp_M1, dtype=torch.bool),
        LossConfig(), denominator=denominator,
    )  # fmt: skip
    return loss, scored.balance, (scored.logp_M.detach() - behaviour_M).abs()


def _micro_batches(order: list[int], trajectories: list[Trajectory], width: int):
    """Runs of `order` that fill about MICRO_BATCH_ROWS rows."""
    batch, total = [], 0
    for i in order:
        n = len(trajectories[i].token_ids)
        if batch and total + n > MICRO_BATCH_ROWS * width * 0.93:
            yield batch
            batch, total = [], 0
        batch.append(i)
        total += n
    if batch:
        yield batch


def summarise(trajectories: list[Trajectory], ranks: Ranks) -> tuple[dict, list]:
    """(means over the whole step, [(skill, right)] of all ranks)."""
    calls = [r for t in trajectories for r in t.tool_results]
    sums = {
        "n": len(trajectories), "calls": len(calls), "errors": sum(not r.ok for r in calls),
        "no_call": sum(not t.tool_results for t in trajectories),
        "overlong": sum(t.termination is Termination.LENGTH for t in trajectories),
        "turns_out": sum(t.termination is Termination.TURNS for t in trajectories),
        "faults": sum(t.termination is Termination.ENV_FAULT for t in trajectories),
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
        "tool_errors": s["errors"] / max(s["calls"], 1), "no_call": s["no_call"] / s["n"],
        "overlong": s["overlong"] / s["n"], "out_of_turns": s["turns_out"] / s["n"],
        "env_faults": int(s["faults"]), "generated": s["generated"] / s["n"],
        "calls": s["calls"] / s["n"], "entropy": s["entropy"] / max(s["generated"], 1),
        "live_groups": sum(len(r) > 1 for r in groups.values()) / len(groups),
    }  # fmt: skip
    return row, [(skill, correct) for skill, correct, *_ in outcomes]


class Step:
    """One GRPO step after another: what the loop needs between checkpoints."""

    def __init__(self, config: Config, model, optimizers, agent: ReAct, questions, ranks: Ranks):
        self.config, self.model, self.optimizers = config, model, optimizers
        self.agent, self.questions, self.ranks = agent, questions, ranks

    def __call__(self, step: int, curriculum: Curriculum) -> tuple[dict, list[Trajectory]]:
        """Roll out, judge, learn, hand the new weights to the engine."""
        config, model, ranks = self.config, self.model, self.ranks
        started = time.perf_counter()
        tasks, worlds = self.questions.draw(step, curriculum)
        model.eval()
        trajectories = rollout(self.agent, tasks, worlds, config, step, ranks)
        rolled = time.perf_counter()
        advantages, weights, _ = advantages_of(trajectories, config)
        model.train()
        pad_id = self.agent.chat.tokenizer.pad_token_id
        row = learn(model, trajectories, advantages, weights, config, ranks, pad_id)
        ranks.sum_gradients(model)
        row["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        row["lr_factor"] = schedule(step, config.rl_steps, config.rl_warmup_steps, 0.5, FINAL_LR)
        self.optimizers.step(row["lr_factor"])
        self.agent.engine.update_weights(model)
        summary, outcomes = summarise(trajectories, ranks)
        sampled = summary["generated"] * summary["rollouts"]
        row["excluded_tokens"] = 1.0 - row["tokens"] / max(sampled, 1.0)
        curriculum.update(outcomes)
        times = {
            "seconds": round(time.perf_counter() - started, 3),
            "rollout_seconds": round(rolled - started, 3),
        }
        return {"step": step + 1, **summary, **row, **times}, trajectories


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `rl`: reinforcement learning from the cold start; returns the last metrics."""
    ranks = ranks or Ranks()
    name = "rl_random_reward" if config.rl_reward == "random" else "rl"
    run = RunFolder(run_dir, stages.settings_of(name, config), ranks)
    runs = run_dir.parents[1]
    tokenizer, chat, world, names = policy_tools(config, runs)
    model, _ = load_policy(stages.input_folder(name, "sft", config, runs) / "policy")
    optimizers = Optimizers.adam(model, config.rl_lr)
    done, extra = run.resume(model, optimizers)
    curriculum = Curriculum(SKILLS, extra.get("curriculum"))
    questions = Questions(config, world, names)
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.search_results) as toolbox,
        interruptible(ranks) as stop,
    ):
        engine = LocalEngine(model, max_context=config.max_context_tokens, lockstep=True)
        agent = ReAct(engine, toolbox, chat, limits_of(config))
        take = Step(config, model, optimizers, agent, questions, ranks)
        metrics = _loop(config, run, done, take, curriculum, stop)
    if ranks.first:
        save_policy(model, tokenizer, run.path / "policy")
    ranks.barrier()
    run.finish(metrics)
    return metrics


def _loop(config: Config, run: RunFolder, done: int, take: Step, curriculum, stop) -> dict:
    """All steps that are left: a line of metrics each, checkpoints, a few kept trajectories."""
    metrics: dict = {}
    for step in range(done, config.rl_steps):
        metrics, trajectories = take(step, curriculum)
        run.log(metrics)
        last = step + 1 == config.rl_steps
        if run.ranks.first and (step in (0, config.rl_steps // 2) or last):
            kept = trajectories[: KEPT_GROUPS * config.rl_group]
            save_trajectories(run.path / f"trajectories_{step + 1:04d}.parquet", kept)
        asked = stop()
        if asked or last or (step + 1) % config.checkpoint_every == 0:
            state = {"curriculum": curriculum.state_dict()}
            run.save_checkpoint(step + 1, take.model, take.optimizers, state)
        if asked and not last:
            raise Interrupted
    return metrics


if __name__ == "__main__":
    stages.main({"rl": grpo, "rl_random_reward": grpo})
