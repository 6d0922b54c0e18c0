"""What every agent is: a generator that works at one task and says whose turn it is.

An agent is one method, `attempt`. It yields a `Context` when the policy is to speak and gets a
`Turn` back; it yields a future (a tool's call, `RolloutState.act`) when something else is to answer, and
gets its result; what it returns is the answer. So an agent reads from top to bottom, like what it
does, while many attempts run at once: `Agent.run` hands the engine all of their contexts, and
whichever is ready goes on.

A context only grows: what the policy has sampled is never tokenised again. An agent that wants its
policy to forget begins another one, and the record has them all, one behind the other
(`Trajectory.contexts` says where each token stands): each is a sample to train on.

Who counts is not the agent but this module: limits of calls, turns, tokens and time end every
agent's attempts by the same rules, with a reason of `Termination`. Where `Limits.force_answer` is
set, the policy gets one last turn to answer in, behind all that it has read.

Left out: agents that speak with two policies at once (a second one is a future).
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from drlib.agents.rollout_state import Limits, RolloutState, Steps, Watch, Work
from drlib.chat.template import ChatIds
from drlib.models.engine import Engine, SamplingParams
from drlib.registry import Registry
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Trajectory
from drlib.validation import require
from drlib.worlds import World

AGENTS = Registry("agent")  # name -> a subclass of Agent


class Agent(ABC):
    """Runs tasks with an engine and a toolbox; a subclass says how, in `attempt`.

    chat: of an engine that reads ids, whose tokenizer is `chat.tokenizer`. system: what every
    context begins with. A task from a fictional world brings its own world (see `run`).
    """

    def __init__(
        self,
        engine: Engine,
        toolbox: Toolbox,
        chat: ChatIds | None = None,
        limits: Limits | None = None,
        system: str | None = None,
    ):
        if engine.reads == "ids":
            require(chat is not None, "an engine that reads ids needs `chat`, its tokenizer")
        else:
            require(chat is None, "an engine that reads messages has a template: no `chat`")
        self.engine = engine
        self.toolbox = toolbox
        self.chat = chat
        self.limits = limits or Limits()
        self.system = system

    @abstractmethod
    def run_task(self, at: RolloutState) -> Steps:
        """Work at `at.task`. Yields a context for the policy's next `Turn`, or a future for its
        result; returns the answer, None where it gives up."""

    def run(
        self,
        tasks: Sequence[Task],
        *,
        samples: int = 1,
        numbers: Sequence[int] | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        keys: Sequence[int] | None = None,
        worlds: dict[str, World] | None = None,
        watch: Watch | None = None,
    ) -> list[Trajectory]:
        """`samples` trajectories of each task, in order (all of the first task first).

        Args:
            numbers: which of the samples to make, from 0 (None: all); each has the random stream
                that it would have beside the others.
            temperature: 0 is greedy.
            keys: one number a task; with `seed` it fixes the task's random streams, whatever else
                runs beside it.
            worlds: other worlds by version, for tasks that do not belong to the toolbox's.
            watch: is told of every turn, tool's result and end as they come (`Watch`), in whatever
                thread they come.

        Whatever ends the run (Ctrl-C, a server that refuses) ends the attempts that still go on:
        `watch` is told of those ends, too, before it is raised.
        """
        keys = list(range(len(tasks))) if keys is None else list(keys)
        if len(keys) != len(tasks):
            raise ValueError(f"{len(keys)} keys for {len(tasks)} tasks: give one key a task")
        begun = [
            self._begin(task, key, number, samples, seed, worlds)
            for task, key in zip(tasks, keys)
            for number in (range(samples) if numbers is None else numbers)
        ]
        version = self.engine.version
        works = [Work(self.run_task(at), at, version, watch) for at in begun]
        params = SamplingParams(
            temperature=temperature,
            max_tokens=self.limits.turn_tokens,
            seed=seed,
            stop_ids=self.chat.stop_ids if self.chat else (),
        )
        opened = [work.open() for work in works]
        speaking = [i for i, ids in enumerate(opened) if ids is not None]
        try:
            self.engine.converse(
                [opened[i] for i in speaking],
                params,
                lambda i, done: works[speaking[i]].respond(done),
                keys=[works[i].at.key for i in speaking],
                context=self.limits.context_tokens,
            )
        except BaseException:
            for work in works:
                work.interrupt()
            raise
        return [work.record for work in works]

    def stream(self, tasks: Sequence[Task], **how) -> Iterator[Trajectory]:
        """The trajectories of `run`, each as it ends."""
        found: queue.Queue = queue.Queue()

        def watch(what: str, at: RolloutState, value) -> None:
            if what == "end":
                found.put(value)

        def work() -> None:
            try:
                self.run(tasks, watch=watch, **how)
                found.put(None)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                found.put(error)

        threading.Thread(target=work, daemon=True).start()
        while (one := found.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one

    def _begin(self, task, key, number, samples, seed, worlds) -> RolloutState:
        return RolloutState(
            task,
            self.limits,
            self.toolbox,
            (worlds or {}).get(task.world),
            self.chat,
            self.system,
            rollout_id(seed, key, number),
            key * samples + number,
        )


def rollout_id(seed: int, key: int, number: int) -> str:
    """What the attempt, and its trajectory, is called; up to the last "-" it names the task's."""
    return f"{seed}-{key}-{number}"
