"""Stages `rl` and `rl_random_reward`: agentic GRPO, strictly on-policy, with real tools.

The default is the recipe of Tongyi DeepResearch (report, eq. 4-5): 0/1 reward, leave-one-out
advantage without division by a standard deviation, token-level loss, one update per batch; no KL,
entropy bonus, format reward or dynamic sampling. Everything else is a setting or a callback, off by
default. `GRPOTrainer.step` shows the whole step.
"""

import copy
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from drlib.agents import Agent, create_agent
from drlib.agents.agent_spec import AgentMixture
from drlib.config import Config
from drlib.models.engine import Engine
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import (  # noqa: F401 - registers callbacks
    group_replay,
    question_selection,
    rubric_buffer,
)
from drlib.training.adapters import has_adapters, merge_adapters
from drlib.training.batch import PreparedBatch, check_batch, prepare_batch, truncate_batch
from drlib.training.callbacks import StepState, build_callbacks, check_callbacks
from drlib.training.distributed import Ranks
from drlib.training.doctor import require_learnable
from drlib.training.learner import LocalLearner, check_loss, is_off_policy
from drlib.training.model_setup import build_local_engine, create_engine, sampling_forks
from drlib.training.policies import StageStart, begin_stage, finish_stage
from drlib.training.policy_age import Clock, check_policy_age
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollout_actor import ActorSetup
from drlib.training.rollout_pool import RolloutPool, check_asynchronous
from drlib.training.rollouts import (
    Rollouts,
    check_rollouts,
    collect_rollouts,
    open_toolbox,
    rollout_limits,
    summarise_rollouts,
)
from drlib.training.stored_rollouts import (
    StoredRollouts,
    check_stored_rollouts,
    write_rollouts,
)
from drlib.trajectory import Trajectory
from drlib.validation import require


class GRPOTrainer:
    """The GRPO loop; a checkpoint contains everything that the next step depends on."""

    def __init__(
        self, config: Config, start: StageStart, toolbox: Toolbox, scheduler: QuestionScheduler
    ):
        self.config, self.run, self.ranks = config, start.run, start.run.ranks
        self.model, self.chat, self.system = start.model, start.chat, start.system
        self.toolbox, self.scheduler = toolbox, scheduler
        self._opened = ExitStack()  # closes the engine
        model, run = self.model, self.run
        self.learner = LocalLearner(model, config, run.ranks)
        # load the last checkpoint, if there is one, into policy and optimizer
        extra = run.resume(model, self.learner.optimizers)
        self.curriculum = Curriculum(SKILLS, extra.get("curriculum"))
        # the policy that samples: a copy only if the engine lags behind (rl.off_policy.staleness)
        self.sampler = copy.deepcopy(model) if config.rl.off_policy.staleness > 0 else model
        if extra.get("sampler"):
            self.sampler.load_state_dict(extra["sampler"])
        # other processes sample (rl.asynchronous.actors), or an engine of this one
        self.pool = self._open_pool(start, extra) if config.rl.asynchronous.actors > 0 else None
        self.engine: Any = self.pool or self._open_engine(start, extra)
        self.agent = None if self.pool else self.build_agent(config)
        # offline: rollouts from files instead of the engine (rl.off_policy.rollouts)
        self.stored = None
        if config.rl.off_policy.rollouts:
            self.stored = StoredRollouts(config, model.config.vocab_size)
        self.clock = Clock()
        self.callbacks = build_callbacks(config, self)
        # restore the rest of the checkpoint
        if extra:
            self.clock.load_state_dict(extra["clock"])
            self.learner.load_state_dict(extra["learner"])
            self.scheduler.load_state_dict(extra["questions"])
            self.callbacks.load_state_dict(extra["callbacks"])
            if self.stored:
                self.stored.epochs.load_state_dict(extra["stored"])

    def _open_engine(self, start: StageStart, extra: dict) -> Engine:
        """Open the engine: the local one for the tiny policy, or engine.name for a real model.

        Args:
            extra: of the checkpoint.
        """
        config, version = self.config, extra.get("version", 0)
        weights = engine_weights(self.sampler, config.rl.off_policy.engine_dtype)
        routes = config.rl.off_policy.routing_replay == "r3"
        if not config.model.path:
            options = {"version": version, "routes": routes, "forks": sampling_forks(config)}
            engine = build_local_engine(weights, config, **options)
            # with slow tools, do not wait for all of them in the order of rows
            engine.lockstep = config.rollout.tool_latency_ms == 0
            return engine
        engine = self._opened.enter_context(create_engine(weights, start.where, config, routes))
        engine.version = version
        return engine

    def _open_pool(self, start: StageStart, extra: dict) -> RolloutPool:
        """Start the actors, which sample from now on."""
        config = self.config
        weights = engine_weights(self.model, config.rl.off_policy.engine_dtype)
        place = start.where, start.chat, start.system, start.world
        setup = ActorSetup(config.unrestricted(), weights, *place)
        version, state = extra.get("version", 0), extra.get("pool")
        pool = RolloutPool(setup, self.scheduler, self.run.path, version, state)
        self._opened.callback(pool.close)
        return pool

    def close(self) -> None:
        """Close the engine, or stop the actors."""
        self._opened.close()

    def build_agent(self, config: Config) -> Agent | AgentMixture:
        """Build the rollout agent with the limits in `config`."""
        limits = rollout_limits(config)
        return create_agent(
            self.config.rl.agent, self.engine, self.toolbox, self.chat, limits, self.system
        )

    def collect_rollouts(self, config: Config, step: int) -> Rollouts:
        """Sample rewarded groups, again while groups have no variance; or take stored ones, or
        those that actors have finished.
        """
        if self.stored:
            return self.stored.draw(self.ranks)
        if self.pool:
            return self.pool.collect(self.curriculum)
        return collect_rollouts(
            self.agent, self.scheduler, self.curriculum, config, step, self.ranks
        )

    def prepare_batch(self, rollouts: Rollouts, step: int) -> PreparedBatch:
        """Turn the rollouts into samples with advantages and loss weights."""
        return prepare_batch(rollouts.trainable, self.config, step, self.ranks, self.clock)

    def step(self, step: int) -> tuple[dict, list[Trajectory]]:
        """Take one GRPO step; return its metrics and all rollouts of this process."""
        config, ranks, started = self.config, self.ranks, time.perf_counter()
        self.model.eval()

        # callbacks may change the rollout limits of this step
        state = StepState(step, config)
        self.callbacks.on_step_begin(self, state)
        if state.config is not config:
            self.agent = self.build_agent(state.config)

        # sample rewarded groups of rollouts with tools, or draw them from files
        rollouts = self.collect_rollouts(state.config, step)
        sampled = time.perf_counter()

        # filter, resample, advantages, loss weights: no model is run
        batch = self.prepare_batch(rollouts, step)

        # log-probabilities under the policy before the update and the reference, if in the loss
        parts = [self.learner.record(part) for part in batch.parts]
        state.batch = truncate_batch(parts, config, step)

        # callbacks may add replayed groups, ask probe questions, set learning rate and KL
        state.rollouts = rollouts.everything
        summary, state.outcomes = summarise_rollouts(state.rollouts, batch.selected, ranks)
        state.metrics |= {"step": step + 1, **summary, **batch.metrics}
        self.callbacks.on_batch(self, state)

        # loss, gradient, optimizer step
        state.metrics |= self.learner.update(state.batch, step)
        self.clock.add_updates(state.metrics["updates"])

        # synchronise the engine with the new weights
        if (step + 1) % (config.rl.off_policy.staleness + 1) == 0:
            self._update_engine()

        # curriculum and callbacks learn from the outcomes: KL control, resets, drift, early stop
        self.curriculum.update(state.outcomes)
        self.callbacks.on_step_end(self, state)
        if config.rl.sampling.draws > 1:
            state.metrics["draws"] = rollouts.draws
        if self.pool:
            state.metrics |= self.pool.metrics()
        state.metrics["seconds"] = round(time.perf_counter() - started, 3)
        state.metrics["rollout_seconds"] = round(sampled - started, 3)
        return state.metrics, state.rollouts

    def __call__(self, step: int) -> dict:
        """Take one step, save some of its rollouts, return its metrics."""
        metrics, trajectories = self.step(step)
        is_last = "stopped" in metrics
        write_rollouts(self.run.path, step, trajectories, self.config, self.ranks, is_last)
        return metrics

    def _update_engine(self) -> None:
        """Give the engine the current weights."""
        if self.sampler is not self.model:
            self.sampler.load_state_dict(self.model.state_dict())
        self.engine.update_weights(
            engine_weights(self.sampler, self.config.rl.off_policy.engine_dtype)
        )
        self.clock.on_sync()
        if self.config.rl.off_policy.reset_optimizer:
            self.learner.optimizers.forget()

    def extra(self) -> dict:
        """Return the checkpoint besides the policy and its optimizer."""
        return {
            "curriculum": self.curriculum.state_dict(),
            "questions": self.scheduler.state_dict(),
            "version": self.engine.version,
            "clock": self.clock.state_dict(),
            "sampler": self.sampler.state_dict() if self.sampler is not self.model else None,
            "learner": self.learner.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "pool": self.pool.state_dict() if self.pool else None,
            "stored": self.stored.epochs.state_dict() if self.stored else None,
        }


def engine_weights(model, dtype: str):
    """Return the model that the engine runs: the policy, or a copy with merged adapters or in a
    lower precision.
    """
    if has_adapters(model):
        return merge_adapters(model).to(getattr(torch, dtype))
    if dtype == "float32":
        return model
    return copy.deepcopy(model).to(getattr(torch, dtype))


def check_rl_settings(config: Config) -> None:
    """Raise ValueError for RL settings without effect or in conflict, in both trainers."""
    check_policy_age(config)
    check_rollouts(config)
    check_batch(config)
    check_loss(config)
    check_callbacks(config)
    check_stored_rollouts(config)
    check_asynchronous(config)


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Run stage `rl` from the cold start; return the metrics of the last step."""
    name = "rl_random_reward" if config.rl.reward.name == "random" else "rl"
    check_rl_settings(config)
    replay = config.rl.off_policy.routing_replay
    require(
        replay == "none" or is_off_policy(config),
        f'rl.off_policy.routing_replay="{replay}" has no effect on the exact local engine: '
        "set rl.minibatches, rl.off_policy.staleness or rl.off_policy.engine_dtype too",
    )
    start = begin_stage(name, "sft", config, run_dir, ranks)
    scheduler = QuestionScheduler(config, start.world, start.names)
    with (
        Sandbox() as sandbox,
        open_toolbox(config, start.world, sandbox, scheduler.environments) as toolbox,
    ):
        require_learnable(config, start.chat, start.system, scheduler, toolbox)
        trainer = GRPOTrainer(config, start, toolbox, scheduler)
        try:
            metrics = start.run.loop(
                trainer, config.rl.steps, config.trainer.checkpoint_every, trainer.extra
            )
        finally:
            trainer.close()
    return finish_stage(start, config, metrics)
