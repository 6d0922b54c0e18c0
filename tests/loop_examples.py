"""A cold start with reward variance and RL steps from it, for the training tests.

The cold start is the committed policy of the reference run after SFT. It is small, and correct
often enough that rollouts of a group differ. The ci profile's own cold start only produces overlong
rollouts with zero reward variance, so a loop that never trains would pass its tests.
"""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from drlib.training.rollouts import (
    Rollouts,
    collect_rollouts,
    sample_rollouts,
    summarise_rollouts,
)
from drlib.training.run_folder import METRICS, RunFolder, read_metrics
from drlib.trajectory import Termination, Trajectory, with_reward
from drlib.worlds import Names, load_world

SMALL = {
    "processes": 1,
    "rl.steps": 4,
    "rl.questions": 8,
    "rl.group": 6,
    "rl.warmup_steps": 0,
    "trainer.checkpoint_every": 2,
}
# Loops that sample: short rollouts in small groups. With this seed and learning rate every step has
# groups with reward variance.
QUICK = {
    "seed": 8,
    "rl.steps": 3,
    "rl.questions": 4,
    "rl.group": 4,
    "rl.lr": 5e-4,
    "rollout.max_calls": 2,
    "rollout.max_turn_tokens": 40,
}
CALLED_BACK = {  # every callback that can be resumed and has a state
    "rl.loss.kl_coef": 0.05,
    "rl.callbacks.kl_target": 0.001,
    "rl.callbacks.reference_every": 2,
    "rl.callbacks.reference_decay": 0.25,
    "rl.callbacks.reset_patience": 1,
    "rl.callbacks.validate_every": 1,
    "rl.callbacks.drift_factor": 0.5,
    "rl.callbacks.world_change": 2,
}
REPLAYED = {  # replay with everything that treats older samples differently
    "rl.off_policy.replay_groups": 2,
    "rl.off_policy.replay_age": 3,
    "rl.off_policy.staleness": 1,
    "rl.filter.max_age": 2,
    "rl.filter.repair_groups": True,
    "rl.loss.correction": "truncate",
    "rl.loss.kl_coef": 0.02,
    "rl.minibatches": 2,
}
# Policy folder -> rollouts of its first step by shard, shared by several test modules.
SAMPLED: dict[Path, list[list[Trajectory]]] = {}


def settings(**changes) -> Config:
    """Return the ci profile with four RL steps of eight groups of six rollouts."""
    return Config.load("ci", **{**SMALL, **changes})


def quick_settings(**changes) -> Config:
    """Return the ci profile with three RL steps of four groups of four short rollouts."""
    return settings(**{**QUICK, **changes})


class ColdStart:
    """Policy, tokenizer, world and tools: the inputs of an RL step besides its settings."""

    def __init__(self, **changes):
        self.folder = stages.start_folder("rl", settings(**changes))
        self.policy, _ = load_policy(self.folder)
        self.chat = ChatIds(load_tokenizer(self.folder))
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


def without_sampling(trainer, shards):
    """Let every step use these rollouts as if the engine had sampled them; return the trainer."""

    def collect(*_):
        version = trainer.engine.version
        new = [[as_sampled_by(version, t) for t in shard] for shard in shards]
        return Rollouts(new, new, 1)

    trainer.collect_rollouts = collect
    return trainer


def as_sampled_by(version: int, trajectory: Trajectory) -> Trajectory:
    """Return the rollout with another version of the policy."""
    versions = np.full_like(trajectory.versions, version)
    return replace(trajectory, policy_version=version, versions=versions)


def whole_and_resumed(start: ColdStart, config: Config, folder: Path, look=lambda trainer: None):
    """Take three steps, and the last one again after a power cut.

    The cut comes after the third step is logged and before it is saved, so the run resumes from the
    checkpoint of the second step.

    Returns:
        (trainer, what `look` returned before each step) of both runs, for the same steps.
    """
    last = config.rl.steps - 1
    assert last % config.trainer.checkpoint_every == 0, "saved before the last step"

    def run(name: str, is_cut: bool):
        trainer, seen = start.step(config, folder / name), []

        def step(number: int) -> dict:
            if is_cut and number == last:
                shutil.copytree(trainer.run.path, folder / "cut.partial")
            seen.append(look(trainer))
            return trainer(number)

        trainer.run.loop(step, config.rl.steps, config.trainer.checkpoint_every, trainer.extra)
        return trainer, seen

    whole, seen = run("whole", True)
    shutil.copy(whole.run.path / METRICS, folder / "cut.partial")
    resumed, again = run("cut", False)
    assert len(again) == 1, "one step was taken again"
    rows, others = (timeless_rows(trainer.run.path) for trainer in (whole, resumed))
    assert rows == others and len(rows) == config.rl.steps
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert not torch.equal(flat(whole.model), flat(start.policy))
    return (whole, seen[last:]), (resumed, again)


def timeless_rows(folder: Path) -> list[dict]:
    """Return the metrics of a stage's folder without durations."""
    rows = read_metrics(folder)
    return [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]


def first_batch(start: ColdStart, folder: Path) -> list[list[Trajectory]]:
    """Return one step's rollouts by shard; they are sampled once for each policy."""
    if start.folder not in SAMPLED:
        config = settings()
        step = start.step(config, folder)
        tasks, worlds = step.scheduler.draw(1, step.curriculum)
        shards = [sample_rollouts(step.agent, tasks, worlds, config, 1, shard) for shard in (0, 1)]
        SAMPLED[start.folder] = shards
    return copy.deepcopy(SAMPLED[start.folder])


@pytest.fixture(scope="session")
def cold_start():
    """Yield the cold start; test modules import this fixture as `start`."""
    start = ColdStart()
    yield start
    start.close()


@pytest.fixture(scope="module")
def rollout_shards(start, tmp_path_factory):
    """Return one step's rollouts by shard, with some mixed-reward groups and overlong rollouts."""
    shards = first_batch(start, tmp_path_factory.mktemp("runs") / "batch")
    assert summarise_rollouts(shards[0] + shards[1], [], Ranks())[0]["live_groups"] >= 0.25
    return shards


@pytest.fixture(scope="module")
def few_rollouts(start, tmp_path_factory):
    """Return two of four groups of each shard of `rollout_shards`.

    The first shard has two groups with reward variance, of which one has an overlong failure. In
    the groups of the second all fail, some overlong, or all succeed.
    """
    shards = first_batch(start, tmp_path_factory.mktemp("runs") / "batch")
    kept = [select_groups(shards[0], 0, 2), select_groups(shards[1], 2, 3)]
    assert [len(live_groups(shard)) for shard in kept] == [2, 0]
    failed = [t for shard in kept for t in shard if not t.reward]
    assert sum(t.termination == Termination.LENGTH for t in failed) == 3
    return kept


def select_groups(trajectories, *numbers: int):
    """Return the rollouts of the groups with these numbers."""
    names = list(dict.fromkeys(t.group_id for t in trajectories))
    kept = {names[number] for number in numbers}
    return [t for t in trajectories if t.group_id in kept]
