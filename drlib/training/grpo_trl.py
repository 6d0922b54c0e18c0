"""Stages `rl` and `rl_random_reward` with trainer.backend=trl: agentic GRPO in TRL's trainer.

Rollouts, rewards, filters, advantages and callbacks are those of the local loop
(`drlib.training.grpo`); only the update differs. TRL and accelerate own the model, the processes,
FSDP2, PEFT and checkpoints.

TRL calls a rollout function with prompts. A prompt is here "step/question": it identifies the step,
whose questions are drawn when it begins. The batch that TRL expects has rl.questions * rl.group
rows. Missing rows are filled with rows of loss weight 0. If an agent starts several contexts, one
of each rollout is drawn and weighted by their number, so the expected loss is that over all.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from trl import GRPOConfig

from drlib.agents import Agent, create_agent
from drlib.config import Config
from drlib.files import write_atomic
from drlib.models.engine import Engine
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import (  # noqa: F401 - callbacks
    group_replay,
    question_selection,
    rubric_buffer,
    stages,
)
from drlib.training.batch import RolloutBatch, prepare_batch, truncate_batch
from drlib.training.callbacks import StepState, build_callbacks
from drlib.training.data import WORLD_FILE
from drlib.training.distributed import Ranks
from drlib.training.doctor import require_learnable
from drlib.training.grpo import check_rl_settings
from drlib.training.learner import FINAL_LR, loss_config
from drlib.training.model_setup import (
    ChatSetup,
    build_chat,
    build_lora_config,
    create_engine,
    find_policy,
    gather_model,
    load_model,
    load_model_tokenizer,
    load_trainable_model,
    save_trained_model,
)
from drlib.training.optim import schedule
from drlib.training.policy_age import Clock
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollouts import (
    collect_rollouts,
    open_toolbox,
    rollout_limits,
    split_contexts,
    step_seed,
    summarise_rollouts,
)
from drlib.training.run_folder import RunFolder
from drlib.training.stored_rollouts import write_rollouts
from drlib.training.trl import (
    CHECKPOINTS,
    GIVEN,
    DeepResearchGRPOTrainer,
    Routing,
    balance_coefficient,
    build_arguments,
    find_checkpoint,
    run_trainer,
)
from drlib.trajectory import NO_RECORD, Trajectory
from drlib.validation import require
from drlib.worlds import Names, SmallWorld

# Settings that TRL's trainer cannot express: name -> (required value, reason).
UNSUPPORTED = {
    "rl.minibatches": (1, "TRL shuffles rows, so its mini-batches would split groups"),
    "rl.asynchronous.actors": (0, "TRL samples and trains in turn"),
    "rl.off_policy.reset_optimizer": (False, "TRL's optimizer is not reset"),
    "rl.off_policy.staleness": (0, "the engine shares or receives the weights at every step"),
    "rl.off_policy.engine_dtype": ("float32", "an engine's precision is model.dtype here"),
    "rl.off_policy.replay_groups": (0, "TRL's batch has no rows for replayed groups"),
    "rl.sampling.fork_temperature": (0.0, "only the tiny policy's engine has forks"),
    "rl.off_policy.rollouts": ("", "TRL's step begins with the rollouts of an engine"),
    "rl.loss.entropy_tokens": ("top", "the loss selects tokens by the highest entropy only"),
    "rl.callbacks.reference_every": (0, "TRL's checkpoints lack the reference model"),
}
STATE = "drlib.json"  # file in a checkpoint, beside TRL's files
DECAY_SHARE = 0.5  # share of the steps, as in the local loop


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Run stage `rl` from the cold start; return the metrics of the last step."""
    name = "rl_random_reward" if config.rl.reward.name == "random" else "rl"
    check_supported(config)
    runs = run_dir.parents[1]
    run = RunFolder(run_dir, stages.stage_settings(name, config), ranks, config.trainer.report_to)
    where = _find_start(name, config, runs)
    tokenizer = load_model_tokenizer(where)
    world = SmallWorld.load(stages.require_input(name, "world", config, runs) / WORLD_FILE)
    checkpoint = find_checkpoint(run.path / CHECKPOINTS, run)
    model = load_trainable_model(where, checkpoint, config)
    # an engine in this process needs all weights: a second copy if the trained model is sharded
    whole = load_model(where, getattr(torch, config.model.dtype)) if config.trainer.fsdp else model
    routes = config.rl.off_policy.routing_replay == "r3"
    scheduler = QuestionScheduler(config, world, Names.from_world(world))
    with (
        Sandbox() as sandbox,
        open_toolbox(config, world, sandbox, scheduler.environments) as toolbox,
        create_engine(whole, where, config, routes=routes) as engine,
    ):
        setup = build_chat(tokenizer, config.model.tool_format)
        require_learnable(config, *setup, scheduler, toolbox)
        rollouts = RolloutFunction(config, run, engine, toolbox, setup, scheduler)
        trainer = AgenticGRPOTrainer(rollouts, model, tokenizer)
        if checkpoint:
            state = Path(checkpoint, STATE).read_text(encoding="utf-8")
            rollouts.load_state_dict(json.loads(state))
        metrics = run_trainer(run, trainer, checkpoint, rollouts.is_dead)
        return save_trained_model(run, trainer, tokenizer, config, metrics)


def check_supported(config: Config) -> None:
    """Raise ValueError for settings that need the local trainer or have no effect."""
    check_rl_settings(config)
    for name, (value, reason) in UNSUPPORTED.items():
        given = config.get(name)
        require(
            given == value,
            f"{name}={given!r} needs trainer.backend=local ({reason}): use {value!r}",
        )
    is_ranked = config.rl.loss.entropy_scope == "micro" and config.rl.loss.denominator == "all"
    require(
        config.rl.loss.top_entropy == 1 or is_ranked,
        "rl.loss.top_entropy with trainer.backend=trl is ranked in each micro-batch and counts all "
        "tokens: set rl.loss.entropy_scope=micro and rl.loss.denominator=all",
    )
    has_kl = config.rl.loss.kl_coef > 0
    require(
        not has_kl or config.rl.sampling.draws == 1,
        "rl.sampling.draws with rl.loss.kl_coef needs trainer.backend=local: if no group has "
        "reward variance, the KL term covers all drawn groups, more rows than TRL's batch has",
    )
    moves = config.rl.callbacks.reset_patience > 0 or config.rl.curriculum.stages != "one"
    require(
        not (has_kl and moves),
        "rl.callbacks.reset_patience and rl.curriculum.stages move the reference of "
        "rl.loss.kl_coef, which TRL's checkpoints lack: use trainer.backend=local, or set "
        "rl.loss.kl_coef=0",
    )


def _find_start(name: str, config: Config, runs: Path) -> str:
    """Return the folder or hub id of the policy to train."""
    if config.rl.start:
        return str(stages.start_folder(name, config))
    return find_policy(stages.require_input(name, "sft", config, runs))


class Row(NamedTuple):
    """Row of TRL's batch: a context with its advantage and loss weight."""

    sample: Trajectory
    advantage: float
    weight: float


class RolloutFunction:
    """TRL's rollout function: the part of a GRPO step before the update, and callbacks.

    Callbacks receive this object as their trainer. It has the attributes of the local
    `GRPOTrainer` that they use.
    """

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        engine: Engine,
        toolbox: Toolbox,
        chat_setup: ChatSetup,
        scheduler: QuestionScheduler,
    ):
        self.config, self.run, self.ranks = config, run, run.ranks
        self.engine, self.toolbox, self.scheduler = engine, toolbox, scheduler
        self.chat, self.system = chat_setup
        self.agent = self.build_agent(config)
        self.curriculum = Curriculum(SKILLS, None)
        self.callbacks = build_callbacks(config, self)
        self.learner: AgenticGRPOTrainer | None = None  # set when TRL's trainer is built
        self.state: StepState | None = None  # of the step whose update has not been logged
        self.has_gradient = False  # True if a rollout of the step has an advantage

    def build_agent(self, config: Config) -> Agent:
        """Build the rollout agent with the limits in `config`."""
        limits = rollout_limits(config)
        agent = create_agent(
            self.config.rl.agent, self.engine, self.toolbox, self.chat, limits, self.system
        )
        return cast(Agent, agent)  # a mixture of agents has the same interface

    def is_dead(self) -> bool:
        """Return True if no rollout of the step has a gradient; the update is then skipped."""
        return self.config.rl.loss.kl_coef == 0 and not self.has_gradient

    def dataset(self) -> Dataset:
        """Return one prompt per question of every step."""
        steps, questions = self.config.rl.steps, self.config.rl.questions
        return Dataset.from_dict(
            {"prompt": [f"{step}/{q}" for step in range(steps) for q in range(questions)]}
        )

    def state_dict(self) -> dict:
        """Return what the next step depends on besides the weights."""
        return {
            "curriculum": self.curriculum.state_dict(),
            "questions": self.scheduler.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "version": self.engine.version,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.curriculum = Curriculum(SKILLS, state["curriculum"])
        self.scheduler.load_state_dict(state["questions"])
        self.callbacks.load_state_dict(state["callbacks"])
        self.engine.version = state["version"]  # it receives the weights before it generates

    def __call__(self, prompts: list[str], trainer: "AgenticGRPOTrainer") -> dict:
        """Sample, judge and prepare this process's rows of a step; see `GRPOTrainer.step`."""
        config, started = self.config, time.perf_counter()
        step = int(prompts[0].partition("/")[0])
        trainer.update_engine()

        # callbacks may change the rollout limits of this step
        state = StepState(step, config)
        self.callbacks.on_step_begin(self, state)
        if state.config is not config:
            self.agent = self.build_agent(state.config)

        # sample groups with tools, reward them; draw again while groups have no variance
        rollouts = collect_rollouts(
            self.agent, self.scheduler, self.curriculum, state.config, step, self.ranks
        )

        # filter, resample, advantages, loss weights
        batch = prepare_batch(rollouts.trainable, config, step, self.ranks, Clock())
        state.batch = truncate_batch(batch.parts, config, step)

        # callbacks may probe questions, or set learning rate and KL coefficient
        state.rollouts = rollouts.everything
        summary, state.outcomes = summarise_rollouts(state.rollouts, batch.selected, self.ranks)
        state.metrics |= {"step": step + 1, **summary, **batch.metrics}
        self.callbacks.on_batch(self, state)
        trainer.scale_learning_rate()
        if config.rl.sampling.draws > 1:
            state.metrics["draws"] = rollouts.draws

        # lay the samples out as the rows that TRL expects
        rows = draw_contexts(state.batch[0], batch.selected, config.seed, step)
        learning = sum(row.advantage != 0 and row.weight > 0 for row in rows)
        self.has_gradient = self.ranks.sum({"learning": float(learning)})["learning"] > 0
        rows = fit_rows(rows, len(prompts), self.ranks)
        state.metrics["rollout_seconds"] = round(time.perf_counter() - started, 3)
        self.state = state
        return to_columns(rows, trainer.padding, trainer.routing)

    def finish_step(self, update: dict[str, float]) -> dict:
        """Run the callbacks after an update with its metrics; return all metrics of the step."""
        state, self.state = self.state, None
        if state is None:  # TRL also logs at the end of training
            return {}
        state.metrics |= update
        self.curriculum.update(state.outcomes)
        self.callbacks.on_step_end(self, state)
        is_last = "stopped" in state.metrics
        write_rollouts(self.run.path, state.step, state.rollouts, self.config, self.ranks, is_last)
        return state.metrics


# ---------------------------------------------------------------- rows of a batch


def draw_contexts(
    batch: RolloutBatch, selected: list[Trajectory], seed: int, step: int
) -> list[Row]:
    """Draw one sample of each rollout at random, weighted by the number of its samples.

    Args:
        selected: the rollouts that the samples of `batch` are contexts of.
    """
    rollout_of = {context.id: t.id for t in selected for context in split_contexts(t)}
    samples_of: dict[str, list[int]] = {}
    for i, sample in enumerate(batch.trajectories):
        samples_of.setdefault(rollout_of[sample.id], []).append(i)
    rows = []
    for name, indices in samples_of.items():
        generator = torch.Generator().manual_seed(step_seed(f"{seed}-{name}", step))
        i = indices[int(torch.randint(len(indices), (1,), generator=generator))]
        weight = float(batch.weights_N[i]) * len(indices)
        rows.append(Row(batch.trajectories[i], float(batch.advantages_N[i]), weight))
    return rows


def fit_rows(rows: list[Row], size: int, ranks: Ranks) -> list[Row | None]:
    """Return `size` rows for this process; None for padding.

    Rows move between processes only if one has more than `size`, as with rl.sampling.draws. More
    rows than all processes hold occur only without a gradient, and are dropped.
    """
    if max(ranks.gather([len(rows)])) > size:
        rows = ranks.gather(rows)[ranks.rank * size : (ranks.rank + 1) * size]
    return [*rows, *[None] * (size - len(rows))]


def to_columns(rows: list[Row | None], padding: int, routing: Routing) -> dict:
    """Return the columns that TRL, the reward and the trainer read."""
    cells = [_split_sample(row, padding) for row in rows]
    batch = {name: [cell[name] for cell in cells] for name in cells[0]}
    if routing.mode == "r3":
        batch[GIVEN] = [_routes(row, cell, routing) for row, cell in zip(rows, cells)]
    return batch | {
        "reward": [None if row is None else row.sample.reward for row in rows],
        "advantage": [0.0 if row is None else row.advantage for row in rows],
        "weight": [0.0 if row is None else row.weight for row in rows],
    }


def _split_sample(row: Row | None, padding: int) -> dict:
    """Split a context into prompt (up to the first sampled token) and completion.

    Tokens after the last sampled one are dropped. Without sampled tokens, the completion is one
    padding token without loss.
    """
    ids = [padding] if row is None else row.sample.token_ids.tolist()
    sampled = [] if row is None else row.sample.generated.nonzero()[0]
    if row is None or not len(sampled):
        return {
            "prompt_ids": ids,
            "completion_ids": [padding],
            "logprobs": [0.0],
            "env_mask": [0],
        }
    sample, first, end = row.sample, int(sampled[0]), int(sampled[-1]) + 1
    return {
        "prompt_ids": ids[:first],
        "completion_ids": ids[first:end],
        "logprobs": sample.logprobs[first:end].tolist(),
        "env_mask": sample.generated[first:end].astype(int).tolist(),
    }


def _routes(row: Row | None, cell: dict, routing: Routing) -> np.ndarray:
    """Return the engine's routes of a row's tokens, uint16 [T, L, k].

    Raises:
        ValueError: the engine generated tokens without reporting their routes.
    """
    length = len(cell["prompt_ids"]) + len(cell["completion_ids"])
    if row is not None and row.sample.routed_experts is not None:
        return row.sample.routed_experts[:length]
    silent = row is None or not row.sample.generated.any()
    require(silent, "the engine reported no routes of a rollout: create it with routes=True")
    tokens = length if row is None else len(row.sample)
    return np.full((tokens, routing.sizes.layers, routing.sizes.chosen), NO_RECORD, np.uint16)


def judged_reward(prompts, completions, reward: list, **_) -> list:
    """Return the reward of each rollout, None if it could not be judged (a TRL reward function)."""
    return reward


# ---------------------------------------------------------------- trainer


class AgenticGRPOTrainer(DeepResearchGRPOTrainer):
    """TRL trainer of prepared batches, with the local learning-rate schedule and checkpoints.

    Callbacks use it as the learner.

    Attributes:
        kl_coef: coefficient of the KL term in the next update.
        lr_scale: factor of the learning rate in the next update.
        reference_age: steps since the start; the reference does not move.
    """

    def __init__(self, rollouts: RolloutFunction, model, tokenizer):
        config = rollouts.config
        self.rollouts = rollouts
        self.padding = tokenizer.pad_token_id
        self.lr_scale, self.reference_age = 1.0, 0
        self._engine_step = -1  # step whose weights the engine has
        args = build_arguments(
            GRPOConfig,
            rollouts.run,
            config,
            steps=config.rl.steps,
            rows=config.rl.questions * config.rl.group,
            lr=config.rl.lr,
            num_generations=config.rl.group,
            max_completion_length=config.rollout.max_context_tokens,
            temperature=config.rl.temperature,
            beta=config.rl.loss.kl_coef,
            shuffle_dataset=False,
            remove_unused_columns=False,
            router_aux_loss_coef=balance_coefficient(
                model.config._name_or_path, config.trainer.balance_coef
            ),
        )
        super().__init__(
            model=model,
            reward_funcs=judged_reward,
            args=args,
            train_dataset=rollouts.dataset(),
            processing_class=tokenizer,
            peft_config=build_lora_config(model, config.trainer.lora_rank),
            rollout_func=rollouts,
            loss=loss_config(config),
            routing=config.rl.off_policy.routing_replay,
        )
        rollouts.learner = self

    @property
    def kl_coef(self) -> float:
        return self.loss_config.kl_coef

    @kl_coef.setter
    def kl_coef(self, value: float) -> None:
        self.loss_config = replace(self.loss_config, kl_coef=value)

    @property
    def reference(self):
        """Reference model of the KL term; None if there is none, or if it is the base of LoRA."""
        return self.ref_model

    def restart(self) -> None:
        """Clear the optimizer's state. Without a KL term there is no reference to move."""
        self.optimizer.state.clear()

    def scale_learning_rate(self) -> None:
        """Apply lr_scale to the next update; the schedule then sets the rate again."""
        for group in self.optimizer.param_groups:
            group["lr"] *= self.lr_scale

    def update_engine(self) -> None:
        """Give the engine the current weights, once per step."""
        step, before = self.state.global_step, self._engine_step
        self._engine_step = step
        if step in (0, before):  # it was created with the weights of step 0
            return
        rollouts, engine, ranks = self.rollouts, self.rollouts.engine, self.rollouts.ranks
        config = rollouts.config
        if config.engine.name == "hf" and not config.trainer.fsdp:
            # it runs the trained model itself
            engine.update_weights(getattr(engine, "model", None))
            return
        # a server is shared by all processes: the first one sends the weights
        is_own = config.engine.name != "server"
        model = gather_model(self, everywhere=is_own)
        if is_own or ranks.first:
            engine.update_weights(model)
        else:
            engine.version += 1
        ranks.barrier()

    def _advantages_and_weights(
        self, rewards_NF: Tensor, inputs, completions, completion_ids_list
    ) -> tuple[Tensor, Tensor]:
        """Return the advantages and loss weights of the prepared batch."""
        device = rewards_NF.device
        advantages_N = torch.tensor([row["advantage"] for row in inputs], device=device)
        weights_N = torch.tensor([row["weight"] for row in inputs], device=device)
        return advantages_N, weights_N

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Create the learning-rate schedule of the local loop."""
        config = self.rollouts.config
        warmup = config.rl.warmup_steps

        def factor(step: int) -> float:
            return schedule(step, config.rl.steps, warmup, DECAY_SHARE, FINAL_LR)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler

    def log(self, logs: dict, *more, **named) -> None:
        """Log the metrics of rollouts and update, after the callbacks at the end of the step."""
        update = {}
        for name, short in (("trained_share", "trained_share"), ("policy/kl", "kl")):
            if values := self._metrics["train"].get(name):
                update[short] = sum(values) / len(values)
        row = self.rollouts.finish_step(update)
        super().log({**logs, **row}, *more, **named)
        self.control.should_training_stop |= "stopped" in row

    def _save_checkpoint(self, model, trial) -> None:
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        if self.rollouts.ranks.first:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / STATE, json.dumps(self.rollouts.state_dict()))
        super()._save_checkpoint(model, trial)
