"""A cold start with reward variance and RL steps from it, for the training tests.

The cold start is the committed policy of the reference run after SFT. It is small, and correct
often enough that rollouts of a group differ. The ci profile's own cold start only produces overlong
rollouts with zero reward variance, so a loop that never trains would pass its tests.
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
from drlib.training.policies import StageStart
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
    """Return the ci profile with four RL steps of eight groups of six rollouts."""
    return Config.load("ci", **{**SMALL, **changes})


class ColdStart:
    """Policy, tokenizer, world and tools: the inputs of an RL step besides its settings."""

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
        """Return a trainer before its first step, or resumed from the folder's checkpoint."""
        run = RunFolder(folder, {}, Ranks())
        model = copy.deepcopy(policy or self.policy)
        questions = QuestionScheduler(config, self.world, Names.from_world(self.world))
        names = Names.from_world(self.world)
        start = StageStart(run, "", model, self.chat, None, self.world, names)
        return grpo.GRPOTrainer(config, start, self.toolbox, questions)


def build_world(runs: Path) -> None:
    """Build the only stage that RL from the committed cold start requires."""
    config = settings()
    data.build_world(config, stages.folder("world", config, runs), Ranks())


def build_stages(names, config: Config, runs: Path) -> dict[str, Path]:
    """Build missing stages in this process, in this order; return stage name -> folder."""
    folders = {}
    for name in names:
        stage = stages.STAGES[name]
        folders[name] = stages.folder(name, config, runs)
        if not RunFolder.is_complete(folders[name]):
            stage.builder(config)(config, folders[name], Ranks(), **stage.arguments)
    return folders


def flat(model) -> torch.Tensor:
    """Return all weights in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def reload_state(source, target):
    """Load the state of `source` into `target` through JSON, as in a TRL checkpoint."""
    target.load_state_dict(json.loads(json.dumps(source.state_dict())))
    return target


def gradient_of(model) -> torch.Tensor:
    """Return the gradients of all weights in one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients(model)])


def zero_rewards(shards):
    """Return the same rollouts with reward 0."""
    return [[with_reward(t, 0.0, t.reward_parts) for t in shard] for shard in shards]


def live_groups(trajectories) -> list[str]:
    """Return the names of groups with non-zero reward variance."""
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
    """Return (weights, metrics) after one update on `shards` from the cold start."""
    step = start.step(settings(**changes), folder)
    row = train_on(step, shards, 0)
    return flat(step.model), row


@pytest.fixture(scope="session")
def cold_start():
    """Yield the cold start; test modules import this fixture as `start`."""
    start = ColdStart()
    yield start
    start.close()


@pytest.fixture(scope="module")
def rollout_shards(start, tmp_path_factory):
    """Return one step's rollouts by shard, with some mixed-reward groups and overlong rollouts."""
    config = settings()
    step = start.step(config, tmp_path_factory.mktemp("runs") / "batch")
    tasks, worlds = step.scheduler.draw(1, step.curriculum)
    shards = [sample_rollouts(step.agent, tasks, worlds, config, 1, shard) for shard in (0, 1)]
    assert summarise_rollouts(shards[0] + shards[1], [], Ranks())[0]["live_groups"] >= 0.25
    return shards
