"""A cold start whose groups live, and steps of the loop from it, for the tests of training.

It is the committed policy of the reference run after SFT: small, and right often enough that
siblings differ. From the ci profile's own cold start every rollout is over-long, every group is
dead and every gradient 0, and a loop that never learned anything would pass its tests.
"""

import copy
import json
from pathlib import Path

import pytest
import torch

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import Config
from drlib.models.moe import load_policy
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import data, grpo, stages
from drlib.training.batch import RolloutBatch, prepare_batch, truncate_batch
from drlib.training.callbacks import StepState
from drlib.training.distributed import Ranks, gradients
from drlib.training.question_scheduler import QuestionScheduler
from drlib.training.rollouts import collect_rollouts, sample_rollouts, summarise_rollouts
from drlib.training.run_folder import RunFolder
from drlib.trajectory import with_reward
from drlib.worlds import Names, load_world

SMALL = {
    "processes": 1,
    "rl.steps": 4,
    "rl.questions": 8,
    "rl.group": 6,
    "rl.warmup_steps": 0,
    "trainer.checkpoint_every": 2,
}


def settings(**changes) -> Config:
    """The ci profile from the committed cold start, four steps of eight groups of six."""
    return Config.load("ci", **{**SMALL, **changes})


class ColdStart:
    """The policy, its tokenizer, the world and the tools: what a step needs besides settings."""

    def __init__(self, **changes):
        folder = stages.start_folder("rl", settings(**changes))
        self.policy, _ = load_policy(folder)
        self.chat = ChatIds(load_tokenizer(folder))
        self.world = load_world("tour")
        self.sandbox = Sandbox()
        self.toolbox = Toolbox(self.world, self.sandbox, results=2)

    def close(self) -> None:
        self.toolbox.close()
        self.sandbox.close()

    def step(self, config: Config, folder: Path, policy=None) -> grpo.GRPOTrainer:
        """The loop, about to take its first step (or the one after the folder's checkpoint)."""
        run = RunFolder(folder, {}, Ranks())
        model = copy.deepcopy(policy or self.policy)
        questions = QuestionScheduler(config, self.world, Names.from_world(self.world))
        return grpo.GRPOTrainer(config, run, model, self.chat, self.toolbox, questions)


def build_world(runs: Path) -> None:
    """The one stage that RL from a committed cold start needs before it."""
    config = settings()
    data.build_world(config, stages.folder("world", config, runs), Ranks())


def build_stages(names, config: Config, runs: Path) -> dict[str, Path]:
    """Each stage built in this process, in this order, where it is missing: name -> its folder."""
    made = {}
    for name in names:
        stage = stages.STAGES[name]
        made[name] = stages.folder(name, config, runs)
        if not RunFolder.is_complete(made[name]):
            stage.builder(config)(config, made[name], Ranks(), **stage.arguments)
    return made


def flat(model) -> torch.Tensor:
    """All weights in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def after_a_kill(machine, fresh):
    """`fresh` with the state of `machine`, by way of JSON as TRL's checkpoint stores it."""
    fresh.load_state_dict(json.loads(json.dumps(machine.state_dict())))
    return fresh


def gradient_of(model) -> torch.Tensor:
    """The gradients of all weights in one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients(model)])


def only_dead(shards):
    """The same rollouts, all of reward 0."""
    return [[with_reward(t, 0.0, t.reward_parts) for t in shard] for shard in shards]


def live_groups(trajectories) -> list[str]:
    """The names of the groups whose rewards differ."""
    rewards: dict[str, set] = {}
    for t in trajectories:
        rewards.setdefault(t.group_id, set()).add(t.reward)
    return [name for name, different in rewards.items() if len(different) > 1]


def prepare(trainer, shards, number: int):
    """Return (samples per shard with their log-probabilities, metrics) of judged rollouts."""
    config = trainer.config
    batch = prepare_batch(shards, config, number, trainer.ranks, trainer.clock)
    parts = [trainer.learner.record(part) for part in batch.parts]
    return truncate_batch(parts, config, number), batch.metrics


def record_part(trainer, *batch):
    """Return a batch with its log-probabilities under the policy before the update."""
    return trainer.learner.record(RolloutBatch(*batch), old=True)


def train_on(trainer, shards, number: int) -> dict:
    """Take the update of a step on given rollouts; return its metrics."""
    state = StepState(number, trainer.config)
    state.batch, state.metrics = prepare(trainer, shards, number)
    trainer.callbacks.on_batch(trainer, state)
    state.metrics |= trainer.learner.update(state.batch, number)
    trainer.clock.add_updates(state.metrics["updates"])
    return state.metrics


def end_step(trainer, number: int, row: dict, trajectories, outcomes=()) -> dict:
    """Return the metrics that callbacks add at the end of a step with these results."""
    state = StepState(number, trainer.config, metrics={"overlong": 0, "out_of_turns": 0, **row})
    state.rollouts, state.outcomes = list(trajectories), list(outcomes)
    before = {*state.metrics}
    trainer.callbacks.on_step_end(trainer, state)
    return {name: value for name, value in state.metrics.items() if name not in before}


def collect(trainer, number: int):
    """Return the rollouts of a step: (all by shard, trainable ones by shard, draws)."""
    return collect_rollouts(
        trainer.agent,
        trainer.scheduler,
        trainer.curriculum,
        trainer.config,
        number,
        trainer.ranks,
    )


def learned(start: ColdStart, shards, folder: Path, **changes) -> tuple[torch.Tensor, dict]:
    """(weights, metrics) after one update on `shards`, from the cold start."""
    step = start.step(settings(**changes), folder)
    row = train_on(step, shards, 0)
    return flat(step.model), row


@pytest.fixture(scope="session")
def cold_start():
    """A test module takes it under the name `start`."""
    start = ColdStart()
    yield start
    start.close()


@pytest.fixture(scope="module")
def a_batch(start, tmp_path_factory):
    """One step's rollouts, shard by shard; some groups live, some rollouts over-long."""
    config = settings()
    step = start.step(config, tmp_path_factory.mktemp("runs") / "batch")
    tasks, worlds = step.scheduler.draw(1, step.curriculum)
    shards = [sample_rollouts(step.agent, tasks, worlds, config, 1, shard) for shard in (0, 1)]
    assert summarise_rollouts(shards[0] + shards[1], [], Ranks())[0]["live_groups"] >= 0.25
    return shards
