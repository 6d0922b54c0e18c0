"""Stages `rl` and `rl_random_reward` of `trainer.backend=trl`: our agents' rollouts in TRL's trainer.

What is asked, who rolls out, what is rewarded, left out and compared are the local loop's own
functions (`drlib.training.grpo`); TRL and accelerate have the model, the processes, FSDP2, PEFT
and checkpoints. TRL asks its rollout function for completions of prompts; a prompt is here the
number of a step and of a question in it ("12/5"), and the questions are drawn when the step comes,
as the curriculum then stands. Each process rolls out whole groups, all of them at once: tools run
beside generation, and what was sampled is what is trained.

TRL's batch has a fixed size: one sample a rollout. Of an agent that begins several contexts one is
drawn, with the weight of all of them, so the sum over contexts is right in the mean.

Left out, and refused: several updates a batch, stale or rounded engines, rewards compared over
contexts.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from trl import GRPOConfig

from drlib.agents import create_agent
from drlib.config import Config
from drlib.files import write_atomic
from drlib.models.engine import Engine
from drlib.rl.advantages import ADVANTAGES
from drlib.rl.curriculum import Curriculum
from drlib.rl.filtering import filter_rollouts
from drlib.rl.resampling import drop_zero_variance_groups
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.batch import filter_of, resample_groups
from drlib.training.callbacks import BUILT_IN, StepState, build_callbacks, emergency_stop
from drlib.training.data import WORLD_FILE
from drlib.training.distributed import Ranks
from drlib.training.grpo import KEPT_GROUPS
from drlib.training.learner import FINAL_LR
from drlib.training.model_setup import (
    adapters,
    engine_of,
    load_model,
    load_tokenizer_of,
    load_trained,
    policy_of,
    save_whole,
    told,
    whole_model,
)
from drlib.training.optim import schedule
from drlib.training.question_scheduler import SKILLS, Questions
from drlib.training.rollouts import contexts_of, limits_of, sample_groups, step_seed
from drlib.training.routing import GIVEN, Routing
from drlib.training.run_folder import RunFolder
from drlib.training.step_summary import summarise
from drlib.training.switches import check_switches, loss_config
from drlib.training.trl import DeepResearchGRPOTrainer, Rollouts
from drlib.training.trl_run import (
    CHECKPOINTS,
    balance_of,
    last_checkpoint,
    train_in,
    trainer_arguments,
)
from drlib.trajectory import NO_RECORD, Trajectory, save_trajectories
from drlib.validation import require
from drlib.worlds import Names, SmallWorld

# Switches that this path does not have, and what they must be.
# Settings that TRL's trainer cannot express: name -> (required value, reason).
UNSUPPORTED = {
    "rl.minibatches": (1, "TRL draws its mini-batches by rows, not by whole groups"),
    "rl.off_policy.staleness": (0, "the engine receives the weights before each generation"),
    "rl.off_policy.engine_dtype": ("float32", "the engine chooses its own precision"),
    "rl.advantage.baseline": ("trajectories", "a TRL batch has one context per rollout"),
    "rl.advantage.sample_multiple": (1, "a TRL batch has a fixed number of rows"),
    "rl.sampling.adaptive_group": (False, "a TRL batch has groups of one size"),
    "rl.sampling.draws": (1, "a TRL batch has a fixed number of questions"),
    "rl.sampling.duplicate": (False, "copies are drawn from the groups of all processes"),
    "rl.filter.max_age": (0, "every TRL rollout is sampled by the current policy"),
    "rl.filter.repair_groups": (False, "a TRL batch has groups of one size"),
    "rl.off_policy.replay_groups": (0, "a TRL batch has a fixed number of rows"),
    "rl.loss.entropy_tokens": ("top", "TRL selects tokens by the highest entropy only"),
    "rl.callbacks.kl_target": (0.0, "TRL fixes the KL coefficient at the start"),
    "rl.callbacks.reference_every": (0, "TRL owns the reference model"),
    "rl.callbacks.reset_patience": (0, "accelerate owns the optimizer state"),
    "rl.callbacks.drift_factor": (1.0, "accelerate owns the learning-rate schedule"),
    "rl.curriculum.curation_every": (0, "probes need rollouts of whole groups on all shards"),
    "rl.curriculum.stages": ("one", "stages reset the optimizer, which accelerate owns"),
}
STATE = "drlib.json"  # of a checkpoint, beside TRL's files
DECAY_SHARE = 0.5  # of the steps, as in the local loop


def grpo(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `rl`: reinforcement learning from the cold start; returns the last metrics."""
    name = "rl_random_reward" if config.rl.reward.name == "random" else "rl"
    _check(config)
    runs = run_dir.parents[1]
    run = RunFolder(run_dir, stages.settings_of(name, config), ranks, config.trainer.report_to)
    where = _start(name, config, runs)
    tokenizer = load_tokenizer_of(where)
    chat, system = told(tokenizer, config)
    world = SmallWorld.load(stages.input_folder(name, "world", config, runs) / WORLD_FILE)
    checkpoint = last_checkpoint(run.path / CHECKPOINTS, run)
    model = load_trained(where, checkpoint, config)
    # who generates needs all weights: of a model that is sharded another copy
    whole = load_model(where, getattr(torch, config.model.dtype)) if config.trainer.fsdp else model
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
        engine_of(
            whole, where, config, routes=config.rl.off_policy.routing_replay == "r3"
        ) as engine,
    ):
        limits = limits_of(config)
        agent = create_agent(config.rl.agent, engine, toolbox, chat, limits, system)
        rolls = RollOuts(config, run, agent, Questions(config, world, Names.from_world(world)))
        trainer = AgenticTrainer(rolls, model, tokenizer)
        if checkpoint:
            rolls.load(json.loads(Path(checkpoint, STATE).read_text(encoding="utf-8")))
        metrics = train_in(run, trainer, checkpoint, rolls.is_dead)
        return save_whole(run, trainer, tokenizer, config, metrics)


def _check(config: Config) -> None:
    check_switches(config)
    for name, (value, reason) in UNSUPPORTED.items():
        given = config.get(name)
        require(
            given == value,
            f"{name}={given!r} needs trainer.backend=local ({reason}): use {value!r}",
        )
    ranked = config.rl.loss.entropy_scope == "micro" and config.rl.loss.denominator == "all"
    require(
        config.rl.loss.top_entropy == 1 or ranked,
        "rl.loss.top_entropy with trainer.backend=trl is ranked in each micro-batch, and counts all tokens: "
        "set rl.loss.entropy_scope=micro and rl.loss.denominator=all",
    )


def _start(name: str, config: Config, runs: Path) -> str:
    """Where the policy that is trained lies."""
    if config.rl.start:
        return str(stages.start_folder(name, config))
    return policy_of(stages.input_folder(name, "sft", config, runs))


class RollOuts:
    """TRL's rollout function: the groups of this process's questions, judged and filtered."""

    def __init__(self, config: Config, run: RunFolder, agent, questions: Questions):
        self.config = config
        self.run = run
        self.agent = agent
        self.questions = questions
        self.curriculum = Curriculum(SKILLS, None)
        self.emergency = emergency_stop(config)
        # plugins only: the built-in callbacks act on the local learner
        self.callbacks = build_callbacks(config, self, skip=BUILT_IN)
        self.step_state: StepState | None = None  # of the step that is not yet logged
        self.row: dict = {}  # rollout metrics of the last step

    @property
    def engine(self) -> Engine:
        return self.agent.engine

    def is_dead(self) -> bool:
        """Whether no group of the step has rewards that differ: there is nothing to learn from."""
        return self.config.rl.loss.kl_coef == 0 and self.row["live_groups"] == 0

    def dataset(self) -> Dataset:
        """A prompt for every question of every step."""
        steps, questions = self.config.rl.steps, self.config.rl.questions
        return Dataset.from_dict(
            {"prompt": [f"{step}/{q}" for step in range(steps) for q in range(questions)]}
        )

    def state(self) -> dict:
        """What the next step depends on, besides the weights."""
        return {
            "curriculum": self.curriculum.state_dict(),
            "emergency": self.emergency.state_dict(),
            "questions": self.questions.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "version": self.engine.version,
        }

    def load(self, state: dict) -> None:
        """Of a checkpoint."""
        self.curriculum = Curriculum(SKILLS, state["curriculum"])
        self.emergency.load_state_dict(state["emergency"])
        self.questions.load_state_dict(state.get("questions", {}))
        self.callbacks.load_state_dict(state["callbacks"])
        self.engine.version = state["version"]  # it takes the checkpoint's weights before it rolls

    def __call__(self, prompts: list[str], trainer: "AgenticTrainer") -> dict:
        """What TRL wants of each prompt, and what our reward and filter want."""
        config, began = self.config, time.perf_counter()
        steps, numbers = zip(*(map(int, prompt.split("/")) for prompt in prompts))
        step = steps[0]
        mine = list(dict.fromkeys(numbers))
        whole = len(mine) * config.rl.group == len(prompts)
        require(whole, "a process must have whole groups: let rl.questions divide by processes")
        trainer.hand_over_weights()
        state = StepState(step, config)
        self.callbacks.on_step_begin(self, state)
        tasks, worlds = self.questions.draw(step, self.curriculum)
        rolled = sample_groups(self.agent, tasks, mine, worlds, config, step)
        chosen = resample_groups(rolled, config, step)
        self.row, outcomes = summarise(rolled, chosen, self.run.ranks)
        self.curriculum.update(outcomes)
        unanswered = self.row["overlong"] + self.row["out_of_turns"]
        reason = self.emergency.update({"unanswered": unanswered})
        if reason:
            self.row["stopped"] = reason
        self._keep(rolled, step, bool(reason))
        state.metrics, state.rollouts, state.outcomes = self.row, rolled, outcomes
        self.callbacks.on_batch(self, state)
        self.step_state = state
        self.row["rollout_seconds"] = round(time.perf_counter() - began, 3)
        return self._batch(chosen, step, trainer)

    def _batch(self, chosen: list[Trajectory], step: int, trainer: "AgenticTrainer") -> dict:
        config = self.config
        weights_N, in_baseline_N, _ = filter_rollouts(chosen, filter_of(config))
        weights_N = torch.as_tensor(weights_N, dtype=torch.float32)
        in_baseline_N = torch.as_tensor(in_baseline_N)
        if config.rl.filter.drop_equal:
            rewards_N = torch.tensor([t.reward or 0.0 for t in chosen])
            groups_N = torch.arange(len(chosen)) // config.rl.group
            weights_N = weights_N * drop_zero_variance_groups(rewards_N, groups_N, in_baseline_N)
        drawn = [_one_context(t, step_seed(f"{config.seed}-{t.id}", step)) for t in chosen]
        columns = [_columns(sample, trainer.padding) for sample, _ in drawn]
        batch = {name: [row[name] for row in columns] for name in columns[0]}
        if config.rl.off_policy.routing_replay == "r3":
            samples = [sample for sample, _ in drawn]
            batch[GIVEN] = [_routes(s, row, trainer.routing) for s, row in zip(samples, columns)]
        return batch | {
            "judged": [t.reward for t in chosen],
            "weight": [float(w) * many for w, (_, many) in zip(weights_N, drawn)],
            "in_baseline": in_baseline_N.tolist(),
        }

    def _keep(self, trajectories: list[Trajectory], step: int, stopped: bool) -> None:
        kept_steps = (0, self.config.rl.steps // 2, self.config.rl.steps - 1)
        if self.run.ranks.first and (step in kept_steps or stopped):
            kept = trajectories[: KEPT_GROUPS * self.config.rl.group]
            save_trajectories(self.run.path / f"trajectories_{step + 1:04d}.parquet", kept)


def _one_context(trajectory: Trajectory, seed: int) -> tuple[Trajectory, int]:
    """(a context of the rollout, drawn evenly; how many it stands for)."""
    contexts = contexts_of(trajectory) or [trajectory]
    generator = torch.Generator().manual_seed(seed)
    at = int(torch.randint(len(contexts), (1,), generator=generator))
    return contexts[at], len(contexts)


def _columns(sample: Trajectory, padding: int) -> dict:
    """A context as TRL takes it: what stands before the first sampled token is its prompt, what
    stands behind the last one is left away."""
    sampled = sample.generated.nonzero()[0]
    ids = sample.token_ids.tolist()
    if not len(sampled):  # nothing fitted into the context: one token, without loss
        return {
            "prompt_ids": ids,
            "completion_ids": [padding],
            "logprobs": [0.0],
            "env_mask": [0],
        }
    first, end = int(sampled[0]), int(sampled[-1]) + 1
    return {
        "prompt_ids": ids[:first],
        "completion_ids": ids[first:end],
        "logprobs": sample.logprobs[first:end].tolist(),
        "env_mask": sample.generated[first:end].astype(int).tolist(),
    }


def _routes(sample: Trajectory, row: dict, routing: Routing) -> np.ndarray:
    """What the engine reported of a context's tokens that are in its `row`, uint16[T, L, k]; no
    record of one in which it has said nothing. ValueError: it said something, and not where its
    tokens went."""
    if sample.routed_experts is not None:
        return sample.routed_experts[: len(row["prompt_ids"]) + len(row["completion_ids"])]
    require(not sample.generated.any(), f"{sample.id}: the engine reported no routes")
    sizes = routing.sizes
    return np.full((len(sample), sizes.layers, sizes.chosen), NO_RECORD, np.uint16)


def judged_reward(prompts: Sequence, completions: Sequence, judged: list, **_) -> list:
    """The reward that the rollout was given; None where nobody could judge."""
    return judged


def filtered(rollouts: Rollouts) -> tuple[torch.Tensor, torch.Tensor]:
    """The verdict of our own filter, which has seen the whole rollout."""
    device = rollouts.rewards_N.device
    weights_N = torch.tensor([row["weight"] for row in rollouts.inputs], device=device)
    in_baseline_N = torch.tensor([row["in_baseline"] for row in rollouts.inputs], device=device)
    return weights_N, in_baseline_N


class AgenticTrainer(DeepResearchGRPOTrainer):
    """Our trainer with `rolls` for its rollouts, our schedule, and our part of a checkpoint."""

    def __init__(self, rolls: RollOuts, model, tokenizer):
        config = rolls.config
        self.rolls = rolls
        self.padding = tokenizer.pad_token_id
        self._handed_over = -1  # the step whose weights the engine has
        args = trainer_arguments(
            GRPOConfig,
            rolls.run,
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
            router_aux_loss_coef=balance_of(model.config._name_or_path, config),
        )
        super().__init__(
            model=model,
            reward_funcs=judged_reward,
            args=args,
            train_dataset=rolls.dataset(),
            processing_class=tokenizer,
            peft_config=adapters(model, config),
            rollout_func=rolls,
            loss=loss_config(config),
            advantages=ADVANTAGES[config.rl.advantage.estimator],
            rollout_filter=filtered,
            routing=config.rl.off_policy.routing_replay,
        )

    def hand_over_weights(self) -> None:
        """The engine takes today's weights, once a step."""
        step = self.state.global_step
        before = self._handed_over
        if step == before:
            return
        self._handed_over = step
        if step == 0:
            return  # it was made with them
        config, engine, ranks = self.rolls.config, self.rolls.engine, self.rolls.run.ranks
        if (
            config.engine.name == "hf" and not config.trainer.fsdp
        ):  # it runs the very model that is trained
            engine.update_weights(engine.model)
            return
        own = config.engine.name != "server"  # a server is shared: the first process teaches it
        model = whole_model(self, everywhere=own)
        if own or ranks.first:
            engine.update_weights(model)
        else:
            engine.version += 1
        ranks.barrier()

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """The local loop's learning rate."""
        config = self.rolls.config
        warmup = config.rl.warmup_steps

        def factor(step: int) -> float:
            return schedule(step, config.rl.steps, warmup, DECAY_SHARE, FINAL_LR)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler

    def log(self, logs: dict, *more, **named) -> None:
        """Log the metrics of the rollouts beside those of TRL, and end the step of the callbacks."""
        state, self.rolls.step_state = self.rolls.step_state, None
        if state is not None:
            self.rolls.callbacks.on_step_end(self.rolls, state)
        super().log({**logs, **self.rolls.row}, *more, **named)
        self.control.should_training_stop |= "stopped" in self.rolls.row

    def _save_checkpoint(self, model, trial) -> None:
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        if self.rolls.run.ranks.first:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / STATE, json.dumps(self.rolls.state()))
        super()._save_checkpoint(model, trial)
