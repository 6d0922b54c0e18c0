"""Process that samples rollouts while the learner trains (`drlib.training.rollout_pool`).

An actor owns an engine, a sandbox and tools. It takes a job, some groups of one draw of questions,
and returns the judged rollouts. A group's random numbers depend only on the seed, the draw and the
question (`rollouts.sample_groups`), so another actor can repeat a lost job.
"""

import copy
import io
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch

from drlib.agents import create_agent
from drlib.config import Config
from drlib.environments import load_environments
from drlib.models.local_engine import LocalEngine
from drlib.registry import load_plugins
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.training.model_setup import build_local_engine, create_engine, sampling_forks
from drlib.training.question_scheduler import load_documents
from drlib.training.rollouts import open_toolbox, rollout_limits, sample_groups
from drlib.trajectory import Trajectory
from drlib.worlds import World


@dataclass(frozen=True)
class ActorSetup:
    """Everything that an actor needs besides weights.

    Attributes:
        model: the policy; actors load other weights into it.
        where: folder or hub id of the starting policy.
        chat, system: chat template and system prompt.
    """

    config: Config
    model: Any
    where: str
    chat: Any
    system: str | None
    world: World


@dataclass(frozen=True)
class Job:
    """Some groups of one draw of questions.

    Attributes:
        draw: number of the draw.
        tasks: all questions of the draw; their indices select the random numbers.
        mine: indices of the questions to sample.
        worlds: own worlds of the questions, by version, without those of documents.
    """

    draw: int
    tasks: list[Task]
    mine: tuple[int, ...]
    worlds: dict[str, World]


@dataclass(frozen=True)
class JobResult:
    """The groups of a finished job, and when and where it ran (seconds since the epoch)."""

    groups: list[list[Trajectory]]
    started: float
    ended: float
    process: int


def pack_weights(model) -> bytes:
    """Serialise the weights of a model."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def load_weights(model, weights: bytes) -> None:
    """Load the result of `pack_weights` into a model of the same shape."""
    model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))


class RolloutActor:
    """Samples jobs with its own engine; `offer` may be called from another thread meanwhile."""

    def __init__(self, setup: ActorSetup):
        torch.set_num_threads(1)  # one core each, as the processes of the local trainer
        self.config, self.model = setup.config, setup.model.eval()
        load_plugins(self.config.plugins)
        self._opened = ExitStack()
        if self.config.model.path:
            self.engine = self._opened.enter_context(
                create_engine(self.model, setup.where, self.config)
            )
        else:
            forks = sampling_forks(self.config)
            self.engine = build_local_engine(self.model, self.config, forks=forks)
        if isinstance(self.engine, LocalEngine):
            self.engine.lockstep = False  # slow tools do not stop the other rollouts
        environments = load_environments(self.config.rl.curriculum.environments)
        sandbox = self._opened.enter_context(Sandbox())
        toolbox = self._opened.enter_context(
            open_toolbox(self.config, setup.world, sandbox, environments)
        )
        limits = rollout_limits(self.config)
        self.agent = create_agent(
            self.config.rl.agent, self.engine, toolbox, setup.chat, limits, setup.system
        )
        self._documents = load_documents(self.config)  # open SQLite files cannot be sent
        self._offered = -1

    def sample(self, job: Job, version: int, weights: bytes) -> JobResult:
        """Sample and judge the groups of a job with these weights, or newer ones."""
        started = time.time()
        if self.engine.version < version and self._offered < version:
            load_weights(self.model, weights)
            self.engine.update_weights(self.model)
            self.engine.version = version
        worlds = {**self._documents, **job.worlds}
        rollouts = sample_groups(
            self.agent, job.tasks, list(job.mine), worlds, self.config, job.draw
        )
        names = dict.fromkeys(trajectory.group_id for trajectory in rollouts)
        groups = [[t for t in rollouts if t.group_id == name] for name in names]
        return JobResult(groups, started, time.time(), os.getpid())

    def offer(self, version: int, weights: bytes) -> None:
        """Give new weights to the running job."""
        model = copy.deepcopy(self.model)  # the next job may load into `self.model` meanwhile
        load_weights(model, weights)
        self._offered = version
        cast(LocalEngine, self.engine).offer_weights(model, version)  # see check_asynchronous

    def ready(self) -> None:
        """Answer when the actor has started."""
