"""Asynchronous rollouts: Ray actors sample groups while the learner trains.

`RolloutPool` draws questions, sends them to the actors, and returns finished groups to the learner,
those of the oldest weights first. With rl.asynchronous.stale=pace, admission follows AReaL (arXiv
2505.24298, section 5.1, eq. 3), and the learner waits for a running group that would otherwise
become too old. No trained group is then older than rl.asynchronous.max_lag updates, and every
question is trained exactly once. With "drop" and "requeue", actors run ahead of the learner: groups
that have become too old are dropped, or their questions sampled again.

Groups may be older than the policy, so the loss must allow off-policy data: rl.loss.clip=ppo with
rl.loss.correction (decoupled PPO of AReaL), or double_sided (GLM-5, arXiv 2602.15763).

If an actor dies or hangs, it is replaced and its groups are sampled again. A checkpoint lists the
questions that were drawn but not trained; after a crash of the learner they are drawn again. Actors
start on the Ray cluster at RAY_ADDRESS, or else on this host.
"""

import copy
import os
import threading
import time
from collections import Counter, deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from drlib.config import Config
from drlib.files import append_json_line
from drlib.rl.curriculum import Curriculum
from drlib.rl.staleness import admission_capacity, age
from drlib.sandbox.remote import import_extra
from drlib.task import Task
from drlib.training.distributed import SHARDS
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.ray_training import WorkerFailed, connect_to_ray
from drlib.training.rollout_actor import ActorSetup, Job, JobResult, RolloutActor, pack_weights
from drlib.training.rollouts import Rollouts
from drlib.trajectory import Trajectory
from drlib.validation import require
from drlib.worlds import Library, World

JOB_TIMEOUT_S = 1800.0  # an actor that takes longer is replaced
ATTEMPTS = 5  # of a job whose actors die
POLL_S = 0.2
AHEAD = 2  # limit of unfinished and finished groups without pacing, in units of what max_lag allows
JOBS_FILE, UPDATES_FILE, DROPPED_FILE = "jobs.jsonl", "updates.jsonl", "dropped.jsonl"
Ticket = tuple[int, int]  # a question: number of the draw, index in it

# setting -> value that asynchronous training needs, and the reason
NEEDS = {
    "processes": (1, "the learner is one process"),
    "rl.sampling.draws": (1, "groups are taken as they finish"),
    "rl.curriculum.stages": ("one", "actors do not change the limits of rollouts"),
    "rl.curriculum.curation_every": (0, "probe questions need an engine beside the learner"),
    "rl.callbacks.world_change": (0, "rollouts from before the change would be trained after it"),
    "rl.off_policy.staleness": (0, "actors are behind by themselves (rl.asynchronous.max_lag)"),
    "rl.off_policy.routing_replay": ("none", "a context read again has routes of two policies"),
    "rl.off_policy.rollouts": ("", "stored rollouts need no actors"),
}


def check_asynchronous(config: Config) -> None:
    """Raise ValueError for settings that asynchronous training does not support."""
    settings = config.rl.asynchronous
    if settings.actors == 0:
        return
    for name, (value, reason) in NEEDS.items():
        found = config.unrestricted().get(name)
        require(
            found == value,
            f"rl.asynchronous.actors={settings.actors} does not go with {name}={found}: {reason}; "
            f"set {name}={value!r}",
        )
    require(
        settings.groups >= 1,
        f"rl.asynchronous.groups={settings.groups} must be at least 1",
    )
    local = not config.model.path or config.engine.name == "local"
    require(
        local or not settings.in_flight,
        f"rl.asynchronous.in_flight needs engine.name=local: {config.engine.name} changes its "
        "weights between turns only",
    )


class _Running(NamedTuple):
    """A job in progress: questions `mine` of a draw, sampled with `version` or newer weights."""

    draw: int
    mine: tuple[int, ...]
    actor: Any
    since: float
    version: int


class _Finished(NamedTuple):
    """A group, and the oldest weights that may have sampled it."""

    version: int
    ticket: Ticket
    group: list[Trajectory]


class RolloutPool:
    """Ray actors that sample groups, and the groups that wait, run or are finished.

    The learner calls `collect` instead of sampling, and `update_weights` as it would an engine's.

    Args:
        setup: what every actor needs.
        scheduler: draws the questions.
        folder: run folder; every finished job appends a row to jobs.jsonl, every batch from its
            arrival to the new weights one to updates.jsonl, every group that was too old one to
            dropped.jsonl.
        version: number of weight updates so far.
        state: result of `state_dict`; None at the start of a run.
        job_timeout_s: time after which the actor of a job is replaced.

    Raises:
        ValueError: the cluster has fewer CPUs than actors.
        ModuleNotFoundError: Ray is not installed.
    """

    def __init__(
        self,
        setup: ActorSetup,
        scheduler: QuestionScheduler,
        folder: Path,
        version: int = 0,
        state: dict | None = None,
        job_timeout_s: float = JOB_TIMEOUT_S,
    ):
        self.config, self.settings = setup.config, setup.config.rl.asynchronous
        self.scheduler, self.folder, self.version = scheduler, folder, version
        self.job_timeout_s, self._state = job_timeout_s, state
        self._drawn = self._trained = 0  # draws so far, groups so far
        self._snapshots: dict[int, dict] = {}  # draw -> state of scheduler and curriculum before it
        self._questions: dict[int, tuple[list[Task], dict[str, World]]] = {}  # by draw
        self._untrained: set[Ticket] = set()
        self._waiting: deque[tuple[int, tuple[int, ...]]] = deque()  # draw, indices
        self._running: dict[Any, _Running] = {}
        self._finished: list[_Finished] = []
        self._attempts: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self._counts, self._lags = {"restarts": 0, "stale_dropped": 0}, [0]
        self._taken_at, self._taken = time.time(), list[Ticket]()
        self._fault: BaseException | None = None
        self._changed = threading.Condition(threading.RLock())
        self._ray, self._is_open = import_extra("ray"), True
        with ExitStack() as opened:
            opened.enter_context(connect_to_ray(os.environ.get("RAY_ADDRESS")))
            cpus = int(self._ray.cluster_resources().get("CPU", 0))
            require(
                self.settings.actors <= cpus,
                f"rl.asynchronous.actors={self.settings.actors} exceeds the cluster's {cpus} CPUs: "
                "lower it",
            )
            self._opened = opened.pop_all()
        self._setup = self._ray.put(setup)
        self._weights = self._ray.put(pack_weights(setup.model))
        self._starting: dict[Any, Any] = {}  # answer of a new actor -> actor
        self._idle: list[Any] = []
        self._failed_starts = 0
        for _ in range(self.settings.actors):
            self._start_actor()
        self._thread = threading.Thread(target=self._dispatch, name="drlib-pool", daemon=True)
        self._thread.start()

    # ---- the learner's side

    def collect(self, curriculum: Curriculum) -> Rollouts:
        """Return the next rl.questions finished groups; wait until there are enough.

        Raises:
            WorkerFailed: the actors of a job died ATTEMPTS times.
            Exception: raised by a job.
        """
        wanted = self.config.rl.questions
        with self._changed:
            if self._state is not None:
                self._restore(self._state)
                self._state = None
            while True:
                if self._fault is not None:
                    raise self._fault
                self._drop_stale()
                self._draw(curriculum)
                if len(self._finished) >= wanted and not self._is_any_due():
                    break
                self._changed.notify_all()
                self._changed.wait(POLL_S)
            self._finished.sort(key=lambda one: (one.version, one.ticket))
            taken, self._finished = self._finished[:wanted], self._finished[wanted:]
            for one in taken:
                self._forget(one.ticket)
            self._taken = [one.ticket for one in taken]
            self._trained += wanted
            self._taken_at = time.time()
            self._changed.notify_all()
        shards: list[list[Trajectory]] = [[] for _ in range(SHARDS)]
        for _, (_, index), group in taken:
            shards[index % SHARDS] += group
        self._lags = [age(t, self.version) for shard in shards for t in shard]
        return Rollouts(shards, shards, 1)

    def update_weights(self, model) -> None:
        """Publish new weights: to the next jobs, and to running ones with in_flight."""
        weights = self._ray.put(pack_weights(model))
        span = {"started": round(self._taken_at, 3), "ended": round(time.time(), 3)}
        row = {"version": self.version + 1, **span, "questions": self._taken}
        append_json_line(self.folder / UPDATES_FILE, row)
        with self._changed:
            self._weights, self.version = weights, self.version + 1
            if self.settings.in_flight:
                for one in self._running.values():
                    one.actor.offer.remote(self.version, weights)
            self._changed.notify_all()

    def metrics(self) -> dict[str, float]:
        """Return metrics: ages of the last batch in updates, finished and running groups, and how
        often actors were replaced and groups dropped so far.
        """
        with self._changed:
            return {
                "lag_mean": sum(self._lags) / len(self._lags),
                "lag_max": float(max(self._lags)),
                "queued_groups": float(len(self._finished)),
                "running_groups": float(self._running_groups()),
                **{name: float(count) for name, count in self._counts.items()},
            }

    def state_dict(self) -> dict:
        """Return the questions that were drawn and not trained, as plain values."""
        with self._changed:
            if self._state is not None:
                return self._state
            return {
                "drawn": self._drawn,
                "trained": self._trained,
                "untrained": [list(ticket) for ticket in sorted(self._untrained)],
                "snapshots": copy.deepcopy(list(self._snapshots.items())),
            }

    def close(self) -> None:
        """Stop the actors; jobs in progress are lost."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        self._thread.join()
        working = [one.actor for one in self._running.values()]
        for actor in [*self._idle, *self._starting.values(), *working]:
            self._ray.kill(actor)
        self._opened.close()

    # ---- questions

    def _draw(self, curriculum: Curriculum) -> None:
        """Draw questions as far ahead as they may be sampled."""
        while self._may_draw():
            self._snapshots[self._drawn] = {
                "scheduler": copy.deepcopy(self.scheduler.state_dict()),
                "curriculum": copy.deepcopy(curriculum.state_dict()),
            }
            self._add_questions(self._drawn, curriculum, list(range(self.config.rl.questions)))
            self._drawn += 1

    def _may_draw(self) -> bool:
        batch, ahead = self.config.rl.questions, self.settings.max_lag + 1
        if self.settings.stale == "pace":
            # a run trains rl.steps batches: no question is drawn that cannot be trained
            return self._drawn < min(self.version + ahead, self.config.rl.steps)
        waiting = sum(len(mine) for _, mine in self._waiting)
        untrained = waiting + self._running_groups() + len(self._finished)
        return untrained + batch <= AHEAD * ahead * batch

    def _add_questions(self, draw: int, curriculum: Curriculum, indices: list[int]) -> None:
        """Draw the questions of a draw and queue those with these indices."""
        self._questions[draw] = self.scheduler.draw(draw, curriculum)
        for at in range(0, len(indices), self.settings.groups):
            self._waiting.append((draw, tuple(indices[at : at + self.settings.groups])))
        self._untrained |= {(draw, index) for index in indices}

    def _restore(self, state: dict) -> None:
        """Draw the untrained questions of a checkpoint again, as they were drawn."""
        self._trained, self._drawn = state["trained"], state["drawn"]
        now = copy.deepcopy(self.scheduler.state_dict())
        for draw, before in state["snapshots"]:
            self._snapshots[draw] = before
            self.scheduler.load_state_dict(copy.deepcopy(before["scheduler"]))
            mine = [index for number, index in state["untrained"] if number == draw]
            earlier = Curriculum(SKILLS, copy.deepcopy(before["curriculum"]))
            self._add_questions(draw, earlier, mine)
        self.scheduler.load_state_dict(now)

    def _forget(self, ticket: Ticket) -> None:
        """Remove a trained or dropped question, and a draw without others."""
        self._untrained.discard(ticket)
        if all(draw != ticket[0] for draw, _ in self._untrained):
            self._snapshots.pop(ticket[0], None)
            self._questions.pop(ticket[0], None)

    def _drop_stale(self) -> None:
        """Drop finished groups that are too old, or queue their questions again."""
        if self.settings.stale == "pace":
            return
        kept = []
        for one in self._finished:
            if max(age(t, self.version) for t in one.group) <= self.settings.max_lag:
                kept.append(one)
                continue
            self._counts["stale_dropped"] += 1
            append_json_line(self.folder / DROPPED_FILE, self._describe_dropped(one))
            if self.settings.stale == "requeue":
                draw, index = one.ticket
                self._waiting.appendleft((draw, (index,)))
            else:
                self._forget(one.ticket)
        self._finished = kept

    def _describe_dropped(self, one: _Finished) -> dict:
        """Return the row of a dropped group in dropped.jsonl."""
        draw, question = one.ticket
        row = {"draw": draw, "question": question, "age": self.version - one.version}
        return row | {"hops": self._hops(draw, question), "length": _mean_length(one.group)}

    def _hops(self, draw: int, question: int) -> int:
        return self._questions[draw][0][question].hops

    def _is_any_due(self) -> bool:
        """Return True if a running group would be too old for the next batch."""
        oldest = min((one.version for one in self._running.values()), default=self.version + 1)
        return self.settings.stale == "pace" and oldest <= self.version - self.settings.max_lag

    def _running_groups(self) -> int:
        return sum(len(one.mine) for one in self._running.values())

    # ---- actors

    def _start_actor(self) -> None:
        """Start an actor. It gets jobs once it answers; on a full cluster that may be never."""
        # two threads: new weights arrive during a job
        options = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0}
        actor = self._ray.remote(RolloutActor).options(**options).remote(self._setup)
        self._starting[actor.ready.remote()] = actor

    def _dispatch(self) -> None:
        """Give jobs to idle actors and receive their results, until the pool closes."""
        try:
            while self._is_open:
                with self._changed:
                    self._start_jobs()
                    self._kill_hung_actors()
                    refs = [*self._running, *self._starting]
                    if not self._running:
                        self._changed.wait(POLL_S)
                for ref in self._ray.wait(refs, timeout=POLL_S)[0] if refs else ():
                    (self._receive if ref in self._running else self._greet)(ref)
        except BaseException as fault:  # noqa: BLE001 - raised in the learner's thread
            with self._changed:
                self._fault = fault
                self._changed.notify_all()

    def _start_jobs(self) -> None:
        while self._idle and self._waiting:
            draw, mine = self._waiting[0]
            if len(mine) > self._room():
                return
            self._waiting.popleft()
            actor = self._idle.pop(0)
            tasks, worlds = self._questions[draw]
            used = {tasks[i].world for i in mine}
            own = {
                version: world
                for version, world in worlds.items()
                if version in used and not isinstance(world, Library)
            }
            ref = actor.sample.remote(Job(draw, tasks, mine, own), self.version, self._weights)
            self._running[ref] = _Running(draw, mine, actor, time.monotonic(), self.version)

    def _room(self) -> int:
        """Return the number of groups that may start."""
        running, concurrency = self._running_groups(), self.settings.actors * self.settings.groups
        if self.settings.stale != "pace":
            return concurrency - running
        accepted = self._trained + len(self._finished)
        return admission_capacity(
            concurrency,
            self.settings.max_lag,
            self.version,
            self.config.rl.questions,
            accepted,
            running,
        )

    def _greet(self, ref) -> None:
        """Give jobs to an actor that has started; replace one that died."""
        actor = self._starting.pop(ref)
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayActorError as fault:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                raise WorkerFailed(
                    f"{ATTEMPTS} actors did not start: {_one_line(fault)}"
                ) from fault
            self._start_actor()
            return
        with self._changed:
            self._failed_starts = 0
            self._idle.append(actor)

    def _receive(self, ref) -> None:
        """Accept the result of a job, or give it to another actor if its own has died."""
        errors = self._ray.exceptions
        try:
            result: JobResult = self._ray.get(ref)
        except (errors.RayActorError, errors.ObjectLostError) as fault:
            with self._changed:
                self._repeat(ref, fault)
            return
        except errors.RayTaskError as fault:
            raise fault.cause from fault
        with self._changed:
            one = self._running.pop(ref)
            self._idle.append(one.actor)
            for index, group in zip(one.mine, result.groups, strict=True):
                self._finished.append(_Finished(one.version, (one.draw, index), group))
            hops = [self._hops(one.draw, index) for index in one.mine]
            append_json_line(self.folder / JOBS_FILE, _describe(one, result) | {"hops": hops})
            self._changed.notify_all()

    def _repeat(self, ref, fault: Exception) -> None:
        """Queue the job of a dead actor first and replace the actor."""
        one = self._running.pop(ref)
        name = one.draw, one.mine
        self._attempts[name] += 1
        if self._attempts[name] >= ATTEMPTS:
            raise WorkerFailed(
                f"{ATTEMPTS} actors died while sampling questions {list(one.mine)} of draw "
                f"{one.draw}; the last one: {_one_line(fault)}"
            )
        self._counts["restarts"] += 1
        self._waiting.appendleft(name)
        self._start_actor()

    def _kill_hung_actors(self) -> None:
        """Kill actors whose job takes too long; it then fails as that of a dead actor."""
        now = time.monotonic()
        for one in self._running.values():
            if now - one.since > self.job_timeout_s:
                self._ray.kill(one.actor)


def _one_line(fault: Exception) -> str:
    return " ".join(str(fault).split())[:500]


def _mean_length(group: list[Trajectory]) -> float:
    """Return the sampled tokens per rollout."""
    return round(sum(int(t.generated.sum()) for t in group) / len(group), 2)


def _describe(one: _Running, result: JobResult) -> dict:
    """Return the row of a finished job in jobs.jsonl."""
    rollouts = [t for group in result.groups for t in group]
    versions = [int(v) for t in rollouts for v in t.versions[t.generated]]
    return {
        "draw": one.draw,
        "questions": list(one.mine),
        "process": result.process,
        "started": round(result.started, 3),
        "ended": round(result.ended, 3),
        "oldest": min(versions, default=0),
        "newest": max(versions, default=0),
        "tokens": len(versions),
        "lengths": [_mean_length(group) for group in result.groups],
    }
