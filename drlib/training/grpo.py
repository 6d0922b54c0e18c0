"""Stages `rl` and `rl_random_reward`: agentic GRPO, strictly on-policy, with real tools.

One step: draw questions; let the policy try each of them `rl.group` times with the tools; reward
1 for a right answer and 0 otherwise; subtract from each reward the mean of its siblings
(leave-one-out, never divided by a standard deviation); one gradient step on the mean over *all*
generated tokens. That is Tongyi DeepResearch's recipe (report, eq. 4-5): no KL, no entropy bonus,
no format reward, no dynamic sampling. Because every batch is used once, with the weights that
sampled it, the ratio is 1 and clipping does nothing. The relatives of the recipe are switches of
the configuration (`rl_...`), all off by default; `drlib.training.learner` has the update itself.

Questions: sums, and chains of one to three look-ups in the real world (train answers) and in
fictional ones made on the spot, so that what is learned is looking up and not the facts; with the
setting `questions.source=engine` also proven questions of several conditions, with `rl.curriculum.trail_share` also
trails. Who rolls out is a setting, too (`rl.agent`): of an agent that begins several contexts each
is a sample (`drlib.training.samples`).

Left out: rollouts that run beside the update (`rl.off_policy.staleness` only lets the engine's weights grow
old; `drlib.training.staleness` counts how old).
"""

import copy
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from drlib.agents import create_agent
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.models.local_engine import LocalEngine
from drlib.rl.advantages import ADVANTAGES, share_over_segments
from drlib.rl.curriculum import Curriculum
from drlib.rl.filtering import filter_rollouts
from drlib.rl.resampling import (
    drop_zero_variance_groups,
    replace_zero_variance_groups,
    truncate_to_multiple,
)
from drlib.rl.stability import EmergencyStop
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training.asking import Asking, Begun
from drlib.training.balance import balance_experts
from drlib.training.flat_routes import Routes, engine_routes
from drlib.training.learner import Recorded, Share, chosen_routes, learn, record
from drlib.training.optim import SKIPPED, GradientWatch, Optimizers, schedule
from drlib.training.policies import begin, finish
from drlib.training.question_scheduler import SKILLS, Questions
from drlib.training.distributed import Ranks
from drlib.training.replay_groups import Replay
from drlib.training.rewarding import filter_of
from drlib.training.rollouts import choose, first_live, limits_of, rollout, step_seed
from drlib.training.run_folder import RunFolder
from drlib.training.samples import all_contexts
from drlib.training.staleness import Clock, without_lost
from drlib.training.steering import Steering
from drlib.training.step_summary import summarise
from drlib.training.switches import check_switches, off_policy
from drlib.training.token_choice import choosing_tokens
from drlib.trajectory import Trajectory, save_trajectories
from drlib.validation import require

KEPT_GROUPS = 4  # whose trajectories are saved at the first, the middle and the last step
FINAL_LR = 0.1  # of the base, at the last step
FILTERED = ("overlong", "env_fault", "unjudged", "hallucination")  # rollouts left out, and why
LOW_QUALITY = ("format", "no_answer", "duplicate")  # and what the pipeline adds
COLLAPSE = {"unanswered": (0.3, 0.95)}  # shares of rollouts: healthy below, collapsed above
COLLAPSED_STEPS = 5  # then it is over: of the runs in figures/reference none ever came back


def advantages_of(
    trajectories: list[Trajectory],
    config: Config,
    ranks: Ranks | None = None,
    clock: Clock | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """(advantages_N, loss weights_N, report): by default leave-one-out after the selective filter.

    The estimator sees the rewards of all ranks: `batch_normalized` divides by their deviation.
    clock: of the policy that is trained, None at its first update.
    """
    ranks = ranks or Ranks()
    weights_N, in_baseline_N, report = filter_rollouts(trajectories, filter_of(config))
    weights_N, in_baseline_N, report["lost"] = without_lost(
        trajectories, weights_N, in_baseline_N, config, clock or Clock()
    )
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
    advantages_N = ADVANTAGES[config.rl.advantage.estimator](rewards_N, groups_N, valid_N)[mine]
    weights_N = torch.as_tensor(weights_N, dtype=torch.float32)
    if config.rl.filter.drop_equal:
        weights_N = weights_N * drop_zero_variance_groups(rewards_N, groups_N, valid_N)[mine]
    if config.rl.sampling.duplicate:
        # a copy is a weight: two of a group are a weight of 2 for each of its rollouts
        generator = torch.Generator().manual_seed(step_seed(f"{config.seed}-{names[0]}", 0))
        copies_M, _ = replace_zero_variance_groups(
            rewards_N, groups_N, valid_N, generator=generator
        )
        weights_N = weights_N * torch.bincount(copies_M, minlength=len(names))[mine]
    return advantages_N, weights_N, report


class Step:
    """One GRPO step after another; checkpoints carry all that the next step depends on.

    (A policy that has forgotten how to answer gets no reward any more, and every further step
    costs several times a healthy one: `rl.callbacks.emergency_stop`.)
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
        self.reference = copy.deepcopy(model) if config.rl.loss.kl_coef > 0 else None
        self.optimizers = Optimizers.adam(model, config.rl.lr)
        self.watch = GradientWatch()
        extra = run.resume(model, self.optimizers)
        acted_upon = (model, self.reference, self.optimizers, toolbox)
        self.steering = Steering(config, *acted_upon, extra.get("steering"))
        self.curriculum = Curriculum(SKILLS, extra.get("curriculum"))
        self.emergency = emergency_stop(config)
        self.emergency.load_state_dict(extra.get("emergency", self.emergency.state_dict()))
        self.sampler = copy.deepcopy(model) if config.rl.off_policy.staleness > 0 else model
        if extra.get("sampler"):
            self.sampler.load_state_dict(extra["sampler"])
        engine = LocalEngine(
            engine_weights(self.sampler, config),
            max_context=config.rollout.max_context_tokens,
            lockstep=True,
            version=extra.get("version", 0),
            routes=config.rl.off_policy.routing_replay == "r3",
        )
        self._agent_of = lambda limited: create_agent(
            config.rl.agent, engine, toolbox, chat, limits_of(limited)
        )
        self.agent = self._agent_of(config)
        self.asking = Asking(config, questions, run.ranks, self._agent_of, chat)
        self.clock = Clock()
        self.clock.load_state_dict(extra.get("clock", self.clock.state_dict()))
        self.replay = Replay(config, run.ranks, extra.get("replay"))
        if "asking" in extra:
            self.questions.load_state_dict(extra["questions"])
            self.asking.load_state_dict(extra["asking"])

    def __call__(self, step: int) -> dict:
        """Take it; "stopped" is among the metrics when the policy has collapsed."""
        metrics, trajectories = self.take(step)
        unanswered = metrics["overlong"] + metrics["out_of_turns"]
        reason = self.emergency.update({"unanswered": unanswered})
        metrics |= {"stopped": reason} if reason else {}
        kept_steps = (0, self.config.rl.steps // 2, self.config.rl.steps - 1)
        if self.run.ranks.first and (step in kept_steps or reason):
            kept = trajectories[: KEPT_GROUPS * self.config.rl.group]
            save_trajectories(self.run.path / f"trajectories_{step + 1:04d}.parquet", kept)
        return metrics

    def take(self, step: int) -> tuple[dict, list[Trajectory]]:
        """Roll out, judge, learn, hand the new weights to the engine."""
        config, ranks, started = self.config, self.run.ranks, time.perf_counter()
        self.model.eval()
        begun = self._begin(step)
        shards, kept, draws = self._roll_out(step, begun.config)
        trajectories = [t for shard in shards for t in shard]
        asked = self.asking.end(step, begun, trajectories)
        rolled = time.perf_counter()
        chosen = [choose(trajectories, config, step) for trajectories in kept]
        row = self._learn(chosen, step)
        if (step + 1) % (config.rl.off_policy.staleness + 1) == 0:
            self._update_engine()
        summary, outcomes = summarise(trajectories, [t for c in chosen for t in c], ranks)
        self.curriculum.update(outcomes)
        row |= asked | self.steering.after(step, row, trajectories, outcomes, ranks)
        if config.rl.sampling.draws > 1:
            row["draws"] = draws
        row["seconds"] = round(time.perf_counter() - started, 3)
        row["rollout_seconds"] = round(rolled - started, 3)
        return {"step": step + 1, **summary, **row}, trajectories

    def _begin(self, step: int) -> Begun:
        """The step's limits, and what begins with it (`drlib.training.asking`)."""
        begun = self.asking.begin(step)
        if begun.reset:
            self.steering.start_anew()
        if begun.config is not self.config:
            self.agent = self._agent_of(begun.config)
        return begun

    def _roll_out(self, step: int, config: Config) -> tuple[list, list, int]:
        """(all rollouts by shard, those that may be trained on, how often questions were drawn).

        With `rl.sampling.draws` questions are drawn again until as many groups are live as a step asks
        questions, and only these are kept (DAPO's dynamic sampling); of a step without any, all.
        """
        ranks = self.run.ranks
        made: list[list[Trajectory]] = [[] for _ in ranks.shards]
        for draw in range(config.rl.sampling.draws):
            tasks, worlds = self.questions.draw(step, self.curriculum, draw)
            for shard, rolled in zip(ranks.shards, made):
                rolled += rollout(self.agent, tasks, worlds, config, step, shard, draw, ranks)
            if config.rl.sampling.draws == 1:
                return made, made, 1
            live = first_live(made, config.rl.questions, ranks)
            if len(live) == config.rl.questions:
                break
        kept = [[t for t in rolled if t.group_id in live] for rolled in made]
        return made, kept if live else made, draw + 1

    def _update_engine(self) -> None:
        if self.sampler is not self.model:
            self.sampler.load_state_dict(self.model.state_dict())
        self.agent.engine.update_weights(engine_weights(self.sampler, self.config))
        self.clock.handed_over()

    def _learn(self, shards: list[list[Trajectory]], step: int) -> dict:
        """`rl.minibatches` updates, each on its share of the groups; metrics of the last one.

        An update without a gradient (every group dead) is not taken: Adam's momentum alone would
        move the weights, and nothing that was rolled out asked for that. Nor is one whose gradient
        is not finite (`GradientWatch`).
        """
        config, ranks = self.config, self.run.ranks
        shares, left_out = self._shares(shards, step)
        shares, replayed = self.replay.joined(
            shares, step, self.clock, lambda *of: self._share(*of, old=True)
        )
        shares = choosing_tokens(shares, "batch", config, ranks)
        self.model.train()
        factor = schedule(step, config.rl.steps, config.rl.warmup_steps, 0.5, FINAL_LR)
        factor *= self.steering.lr_scale
        row = {"updates": 0, "grad_norm": 0.0, "lr_factor": factor}
        for part in range(config.rl.minibatches):
            parts = [share.of(_groups_of(share, part, config)) for share in shares]
            row |= learn(self.model, parts, config, ranks, kl_coef=self.steering.kl_coef)
            row["grad_norm"] = ranks.sum_gradients(self.model)
            if row["trained_share"] == 0:
                continue
            if self.watch.usable(math.isfinite(row["grad_norm"])):
                self.optimizers.step(factor)
                row |= balance_experts(self.model, config)
                row["updates"] += 1
            else:
                self.model.zero_grad(set_to_none=True)
                row["skipped"] = SKIPPED
        self.clock.updated(row["updates"])
        return row | left_out | replayed

    def _shares(self, shards: list[list[Trajectory]], step: int) -> tuple[list[Share], dict]:
        """(each shard with what its loss needs, the row's columns of what is left out of it)."""
        config, ranks = self.config, self.run.ranks
        if config.rl.advantage.baseline == "samples":
            shards = [all_contexts(shard)[0] for shard in shards]
        everything = [t for shard in shards for t in shard]
        advantages_N, weights_N, report = advantages_of(everything, config, ranks, self.clock)
        shares, before = [], 0
        for shard in shards:
            mine = slice(before, before + len(shard))
            before += len(shard)
            samples, owners = all_contexts(shard)
            share = self._share(
                samples,
                share_over_segments(advantages_N[mine], owners),
                share_over_segments(weights_N[mine], owners),
                old=config.rl.loss.correction != "none",
            )
            shares.append(share.of(_kept(samples, config, step)))
        names = (*FILTERED, *LOW_QUALITY) if config.rl.filter.pipeline else FILTERED
        reasons = {f"filtered_{name}": float(report["reasons"].get(name, 0)) for name in names}
        return shares, ranks.sum(reasons | report["lost"])

    def _share(
        self, samples: list[Trajectory], advantages_N: Tensor, weights_N: Tensor, old: bool
    ) -> Share:
        """Samples with what their loss needs."""
        routes = self._routes(samples)
        recorded = self._recorded(samples, old, routes)
        return Share(samples, advantages_N, weights_N, recorded, routes=routes)

    def _recorded(
        self, samples: list[Trajectory], old: bool, routes: Routes | None = None
    ) -> Recorded:
        """Log-probabilities under the policy before the update, if `old`, by the routes that the
        update replays, and under the reference, by its own."""
        found = {}
        if old:
            found["old"] = record(self.model.eval(), samples, self.config, routes)
        if self.reference is not None:
            found["reference"] = record(self.reference, samples, self.config)
        return found

    def _routes(self, samples: list[Trajectory]) -> Routes | None:
        """What `rl.off_policy.routing_replay` replays in the update."""
        if self.config.rl.off_policy.routing_replay == "none":
            return None
        if self.config.rl.off_policy.routing_replay == "r3":
            return engine_routes(samples)
        return chosen_routes(self.model.eval(), samples, self.config)

    def extra(self) -> dict:
        """What the checkpoint holds besides the policy and its optimizer."""
        stale = self.sampler is not self.model
        return {
            "curriculum": self.curriculum.state_dict(),
            "emergency": self.emergency.state_dict(),
            "steering": self.steering.state_dict(),
            "questions": self.questions.state_dict(),
            "asking": self.asking.state_dict(),
            "version": self.agent.engine.version,
            "clock": self.clock.state_dict(),
            "replay": self.replay.state_dict(),
            "sampler": self.sampler.state_dict() if stale else None,
        }


def _kept(samples: list[Trajectory], config: Config, step: int) -> list[int]:
    """Which contexts are trained on: all, or as many as `rl.advantage.sample_multiple` wants."""
    seed = step_seed(f"{config.seed}-{samples[0].id}-fewest", step) if samples else 0
    generator = torch.Generator().manual_seed(seed)
    return truncate_to_multiple(
        len(samples), config.rl.advantage.sample_multiple, generator=generator
    ).tolist()


def _groups_of(share: Share, part: int, config: Config) -> list[int]:
    """Indices of the trajectories whose groups belong to mini-batch `part`."""
    names = list(dict.fromkeys(t.group_id for t in share.trajectories))
    chosen = set(names[part :: config.rl.minibatches])
    return [i for i, t in enumerate(share.trajectories) if t.group_id in chosen]


def emergency_stop(config: Config) -> EmergencyStop:
    """What ends a run that has forgotten how to answer; where `rl.callbacks.emergency_stop` is off, nothing
    does."""
    limits = COLLAPSE if config.rl.callbacks.emergency_stop else {}
    return EmergencyStop(limits, patience=COLLAPSED_STEPS)


def engine_weights(model, config: Config):
    """What the engine samples with: the policy, or a rounded copy (`rl.off_policy.engine_dtype`)."""
    if config.rl.off_policy.engine_dtype == "float32":
        return model
    return copy.deepcopy(model).to(getattr(torch, config.rl.off_policy.engine_dtype))


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `rl`: reinforcement learning from the cold start; returns the last metrics."""
    name = "rl_random_reward" if config.rl.reward.name == "random" else "rl"
    check_switches(config)
    require(
        config.rl.off_policy.routing_replay == "none" or off_policy(config),
        f'rl.off_policy.routing_replay="{config.rl.off_policy.routing_replay}" replays choices that differ: the local engine is exact, '
        "so set rl.minibatches, rl.off_policy.staleness or rl.off_policy.engine_dtype too",
    )
    run, model, chat, world, names = begin(name, "sft", config, run_dir, ranks)
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
    ):
        step = Step(config, run, model, chat, toolbox, Questions(config, world, names))
        metrics = run.loop(step, config.rl.steps, config.trainer.checkpoint_every, step.extra)
    return finish(run, model, chat, metrics)
