"""Stages `rl` and `rl_random_reward`: agentic GRPO, strictly on-policy, with real tools.

One step: draw questions; let the policy try each of them `rl_group` times with the tools; reward
1 for a right answer and 0 otherwise; subtract from each reward the mean of its siblings
(leave-one-out, never divided by a standard deviation); one gradient step on the mean over *all*
generated tokens. That is Tongyi DeepResearch's recipe (report, eq. 4-5): no KL, no entropy bonus,
no format reward, no dynamic sampling. Because every batch is used once, with the weights that
sampled it, the ratio is 1 and clipping does nothing. The relatives of the recipe are switches of
the configuration (`rl_...`), all off by default; `drlib.training.gradient` has the update itself.

Questions: sums, and chains of one to three look-ups in the real world (train answers) and in
fictional ones made on the spot, so that what is learned is looking up and not the facts; with the
setting `questions=engine` also proven questions of several conditions, with `rl_trail_share` also
trails. Who rolls out is a setting, too (`rl_agent`): of an agent that begins several contexts each
is a sample (`drlib.training.samples`).

Left out: replay of old rollouts and rollouts that run beside the update (`rl_staleness` only lets
the engine's weights grow old).
"""

import copy
import hashlib
import time
from collections import defaultdict
from pathlib import Path

import torch

from drlib.agents import Agent, Limits, agent_named
from drlib.chat import ChatIds
from drlib.checks import require
from drlib.config import Config
from drlib.policy.engine import LocalEngine
from drlib.rl.advantages import ADVANTAGES, share_over_segments
from drlib.rl.curriculum import Curriculum
from drlib.rl.filtering import FilterConfig, apply_filter
from drlib.rl.resampling import drop_equal_groups, fewest_dropped, resample_on_correct
from drlib.rl.rewards import make_reward
from drlib.rl.stability import EmergencyStop
from drlib.sandbox import Sandbox
from drlib.synthesis.conditions import CHAINS, CONDITIONS
from drlib.synthesis.questions import PYTHON_KINDS
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.training.gradient import Share, check_switches, learn, record
from drlib.training.optim import Optimizers, schedule
from drlib.training.policies import begin, finish
from drlib.training.questions import SKILLS, TRAIL, Questions
from drlib.training.ranks import SHARDS, Ranks
from drlib.training.run import RunFolder
from drlib.training.samples import all_contexts, contexts_of
from drlib.trajectory import Termination, Trajectory, save_trajectories, with_reward
from drlib.worlds import SmallWorld

KEPT_GROUPS = 4  # whose trajectories are saved at the first, the middle and the last step
FINAL_LR = 0.1  # of the base, at the last step
FILTERED = ("overlong", "env_fault", "unjudged", "hallucination")  # rollouts left out, and why
COLLAPSE = {"unanswered": (0.3, 0.95)}  # shares of rollouts: healthy below, collapsed above


def limits_of(config: Config) -> Limits:
    return Limits(config.max_calls, config.max_turn_tokens, config.max_context_tokens)


def rollout(
    agent: Agent,
    tasks: list[Task],
    worlds: dict[str, SmallWorld],
    config: Config,
    step: int,
    shard: int | None = None,
) -> list[Trajectory]:
    """The groups of one shard's questions (None: of all of them), rewarded.

    Every SHARDS-th question belongs to a shard. A shard's rollouts run together and apart from the
    others', so they have the same bits whether another process makes the rest or this one does.
    """
    mine = list(range(len(tasks))) if shard is None else list(range(shard, len(tasks), SHARDS))
    return tried(agent, tasks, mine, worlds, config, step)


def tried(
    agent: Agent,
    tasks: list[Task],
    mine: list[int],
    worlds: dict[str, SmallWorld],
    config: Config,
    step: int,
) -> list[Trajectory]:
    """The groups of the questions with the numbers `mine`, rewarded."""
    trajectories = agent.run(
        [tasks[i] for i in mine],
        samples=config.rl_group * config.rl_oversample,
        temperature=config.rl_temperature,
        seed=step_seed(config.seed, step),
        keys=mine,
        worlds=worlds,
    )
    settings = {"seed": config.seed} if config.rl_reward == "random" else {}
    reward = make_reward(config.rl_reward, **settings)
    tries = config.rl_group * config.rl_oversample
    rewarded = []
    for i, trajectory in enumerate(trajectories):
        task = tasks[mine[i // tries]]
        result = reward(trajectory, task)
        right = is_correct(trajectory.answer, task)
        parts = {**result.parts, "correct": float(right)}
        trajectory.metadata["skill"] = task.skill
        rewarded.append(with_reward(trajectory, result.value, parts))
    return rewarded


def step_seed(seed: int | str, step: int) -> int:
    """Of a step's random numbers."""
    return int(hashlib.sha256(f"rollout-{seed}-{step}".encode()).hexdigest()[:12], 16)


def choose(trajectories: list[Trajectory], config: Config, step: int) -> list[Trajectory]:
    """The rollouts to train on: all, or `rl_group` of each oversampled group (GRPO-RoC)."""
    if config.rl_resample == "none":
        return trajectories
    chosen = []
    for name in dict.fromkeys(t.group_id for t in trajectories):
        group = [t for t in trajectories if t.group_id == name]
        generator = torch.Generator().manual_seed(step_seed(f"{config.seed}-{name}", step))
        kept = resample_on_correct(group, config.rl_group, config.rl_resample, generator=generator)
        chosen += [group[i] for i in kept]
    return chosen


def advantages_of(
    trajectories: list[Trajectory], config: Config, ranks: Ranks | None = None
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """(advantages_N, loss weights_N, report): by default leave-one-out after the selective filter.

    The estimator sees the rewards of all ranks: `batch_normalized` divides by their deviation.
    """
    ranks = ranks or Ranks()
    switches = FilterConfig(config.rl_overlong, hallucination=config.rl_hallucination)
    weights_N, in_baseline_N, report = apply_filter(trajectories, switches)
    own = [
        (0.0 if t.reward is None else t.reward, t.group_id, bool(valid))
        for t, valid in zip(trajectories, in_baseline_N)
    ]
    parts = ranks.gather_parts(own)
    before = sum(len(part) for part in parts[: ranks.rank])
    mine = slice(before, before + len(own))
    rewards, names, valid = zip(*(row for part in parts for row in part))
    rewards_N, valid_N = torch.tensor(rewards), torch.tensor(valid)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups_N = torch.tensor([numbers[name] for name in names])
    advantages_N = ADVANTAGES[config.rl_advantage](rewards_N, groups_N, valid_N)[mine]
    weights_N = torch.as_tensor(weights_N, dtype=torch.float32)
    if config.rl_drop_equal:
        weights_N = weights_N * drop_equal_groups(rewards_N, groups_N, valid_N)[mine]
    return advantages_N, weights_N, report


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
        "contexts": len(contexts_of(trajectory)),
        "entropy": float(trajectory.entropies.sum()),
    }


def _mean(name: str, facts: list[dict]) -> float:
    return sum(f[name] for f in facts) / len(facts)


def _ratio(top: str, bottom: str, facts: list[dict]) -> float:
    return sum(f[top] for f in facts) / max(sum(f[bottom] for f in facts), 1)


def _accuracies(facts: list[dict]) -> dict[str, float]:
    """Accuracy of each kind of question that was asked, and of each number of look-ups."""
    kinds = {"python": PYTHON_KINDS, "search": CHAINS, "conditions": CONDITIONS}
    kinds |= {name: (name,) for name in (*CHAINS, *CONDITIONS, TRAIL)}
    asked = {kind: [f for f in facts if f["skill"] in skills] for kind, skills in kinds.items()}
    return {f"accuracy_{kind}": _mean("accuracy", some) for kind, some in asked.items() if some}


def _live_groups(facts: list[dict]) -> float:
    """Share of groups with a signal; a rollout that could not be judged has no reward to differ."""
    rewards = defaultdict(set)
    for f in facts:
        rewards[f["group"]] |= set() if f["reward"] is None else {f["reward"]}
    return sum(len(different) > 1 for different in rewards.values()) / len(rewards)


class Step:
    """One GRPO step after another; checkpoints carry all that the next step depends on.

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
        self.sampler = copy.deepcopy(model) if config.rl_staleness > 0 else model
        if extra.get("sampler"):
            self.sampler.load_state_dict(extra["sampler"])
        limits = limits_of(config)
        engine = LocalEngine(
            engine_weights(self.sampler, config),
            max_context=limits.context_tokens,
            lockstep=True,
            version=extra.get("version", 0),
        )
        self.agent = agent_named(config.rl_agent, engine, toolbox, chat, limits)
        self.pad_id = chat.tokenizer.pad_token_id

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
        shards = [rollout(self.agent, tasks, worlds, config, step, s) for s in ranks.shards]
        rolled = time.perf_counter()
        chosen = [choose(trajectories, config, step) for trajectories in shards]
        row = self._learn(chosen, step)
        if (step + 1) % (config.rl_staleness + 1) == 0:
            self._update_engine()
        trajectories = [t for shard in shards for t in shard]
        summary, outcomes = summarise(trajectories, [t for c in chosen for t in c], ranks)
        self.curriculum.update(outcomes)
        row["seconds"] = round(time.perf_counter() - started, 3)
        row["rollout_seconds"] = round(rolled - started, 3)
        return {"step": step + 1, **summary, **row}, trajectories

    def _update_engine(self) -> None:
        if self.sampler is not self.model:
            self.sampler.load_state_dict(self.model.state_dict())
        self.agent.engine.update_weights(engine_weights(self.sampler, self.config))

    def _learn(self, shards: list[list[Trajectory]], step: int) -> dict:
        """`rl_minibatches` updates, each on its share of the groups; metrics of the last one.

        An update without a gradient (every group dead) is not taken: Adam's momentum alone would
        move the weights, and nothing that was rolled out asked for that.
        """
        config, ranks = self.config, self.run.ranks
        shares, reasons = self._shares(shards, step)
        self.model.train()
        factor = schedule(step, config.rl_steps, config.rl_warmup_steps, 0.5, FINAL_LR)
        row = {"updates": 0, "grad_norm": 0.0, "lr_factor": factor}
        for part in range(config.rl_minibatches):
            parts = [share.of(_groups_of(share, part, config)) for share in shares]
            row |= learn(self.model, parts, config, ranks, self.pad_id)
            row["grad_norm"] = ranks.sum_gradients(self.model)
            if row["trained_share"] > 0:
                self.optimizers.step(factor)
                row["updates"] += 1
        return row | {f"filtered_{name}": count for name, count in reasons.items()}

    def _shares(self, shards: list[list[Trajectory]], step: int) -> tuple[list[Share], dict]:
        """(each shard with what its loss needs, rollouts that the filter left out by reason)."""
        config, ranks = self.config, self.run.ranks
        if config.rl_baseline == "samples":
            shards = [all_contexts(shard)[0] for shard in shards]
        everything = [t for shard in shards for t in shard]
        advantages_N, weights_N, report = advantages_of(everything, config, ranks)
        models = {"old": self.model if config.rl_correction != "none" else None}
        models["reference"] = self.reference
        shares, before = [], 0
        for shard in shards:
            mine = slice(before, before + len(shard))
            before += len(shard)
            samples, owners = all_contexts(shard)
            share = Share(
                samples,
                share_over_segments(advantages_N[mine], owners),
                share_over_segments(weights_N[mine], owners),
                {k: record(m, samples, config, self.pad_id) for k, m in models.items() if m},
            )
            shares.append(share.of(_kept(samples, config, step)))
        reasons = {name: float(report["reasons"].get(name, 0)) for name in FILTERED}
        return shares, ranks.sum(reasons)

    def extra(self) -> dict:
        """What the checkpoint holds besides the policy and its optimizer."""
        stale = self.sampler is not self.model
        return {
            "curriculum": self.curriculum.state_dict(),
            "emergency": self.emergency.state_dict(),
            "version": self.agent.engine.version,
            "sampler": self.sampler.state_dict() if stale else None,
        }


def _kept(samples: list[Trajectory], config: Config, step: int) -> list[int]:
    """Which contexts are trained on: all, or as many as `rl_sample_multiple` wants."""
    seed = step_seed(f"{config.seed}-{samples[0].id}-fewest", step) if samples else 0
    generator = torch.Generator().manual_seed(seed)
    return fewest_dropped(len(samples), config.rl_sample_multiple, generator=generator).tolist()


def _groups_of(share: Share, part: int, config: Config) -> list[int]:
    """Indices of the trajectories whose groups belong to mini-batch `part`."""
    names = list(dict.fromkeys(t.group_id for t in share.trajectories))
    chosen = set(names[part :: config.rl_minibatches])
    return [i for i, t in enumerate(share.trajectories) if t.group_id in chosen]


def engine_weights(model, config: Config):
    """What the engine samples with: the policy, or a rounded copy (`rl_engine`)."""
    if config.rl_engine == "float32":
        return model
    return copy.deepcopy(model).to(getattr(torch, config.rl_engine))


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `rl`: reinforcement learning from the cold start; returns the last metrics."""
    name = "rl_random_reward" if config.rl_reward == "random" else "rl"
    check_switches(config)
    require(config.rl_routing == "none", "rl_routing is of trainer=trl: the local engine is exact")
    run, model, chat, world, names = begin(name, "sft", config, run_dir, ranks)
    with Sandbox() as sandbox, Toolbox(world, sandbox, results=config.search_results) as toolbox:
        step = Step(config, run, model, chat, toolbox, Questions(config, world, names))
        metrics = run.loop(step, config.rl_steps, config.checkpoint_every, step.extra)
    return finish(run, model, chat, metrics)
