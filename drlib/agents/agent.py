"""The base class of agents: a generator that works on one task.

An agent implements one method, `run_task`. It yields a `Context` to request the policy's next
`Turn`, or a future (a tool call, `RolloutState.act`) to get its result, and returns the answer. An
agent therefore reads from top to bottom, while many rollouts run concurrently: `Agent.run` passes
all of their contexts to the engine and advances whichever is ready.

A context only grows, and sampled tokens are never re-tokenised. An agent that discards history
starts another context. The record contains all of them, concatenated (`Trajectory.contexts` has the
context of each token), and each is a training sample.

Limits of calls, turns, tokens and time end every agent's rollouts by the same rules, with a reason
of `Termination`. With `Limits.force_answer` the policy gets one last turn to answer.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from drlib.agents.rollout_state import Limits, RolloutRunner, RolloutState, Steps, Watch
from drlib.chat.prompts import replace_tools
from drlib.chat.template import ChatIds
from drlib.models.engine import Engine, SamplingParams
from drlib.registry import Registry
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Trajectory
from drlib.validation import require
from drlib.worlds import World

AGENTS = Registry("agent")  # name -> subclass of Agent


class Agent(ABC):
    """Runs tasks with an engine and a toolbox; a subclass implements `run_task`.

    Args:
        engine: generates the policy's turns.
        toolbox: tools and their world. A task from a fictional world brings its own world (see
            `run`).
        chat: token ids of the chat template, for an engine that reads ids.
        limits: limits of each rollout.
        system: system prompt of every context.

    Raises:
        ValueError: `chat` is missing, or the engine reads messages and has its own template.
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
            require(chat is not None, "an engine that reads ids needs `chat` with its tokenizer")
        else:
            require(
                chat is None,
                "an engine that reads messages applies its own template: leave `chat` out",
            )
        self.engine = engine
        self.toolbox = toolbox
        self.chat = chat
        self.limits = limits or Limits()
        self.system = system

    @property
    def has_native_tools(self) -> bool:
        """True if tools are called in the server's or the template's own format."""
        sides = (self.engine, self.chat)
        return any(getattr(side, "has_native_tools", False) for side in sides)

    @abstractmethod
    def run_task(self, state: RolloutState) -> Steps:
        """Work on `state.task`.

        Yields a context for the policy's next `Turn`, or a future for its result. Returns the
        answer, None without one.
        """

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
        """Sample `samples` trajectories of each task, in order (all of the first task first).

        Args:
            tasks: the questions.
            samples: rollouts per task.
            numbers: indices of the samples to run (None: all); each keeps its random stream.
            temperature: 0 is greedy.
            seed: of the random streams.
            keys: one number per task; with `seed` it fixes the task's random streams, independent
                of concurrent rollouts.
            worlds: other worlds by version, for tasks that do not belong to the toolbox's world.
            watch: called with every turn, tool result and end (`Watch`), in any thread.

        Returns:
            The trajectories.

        Raises:
            ValueError: a wrong number of keys, or a prompt that exceeds the context.
            BaseException: of the engine or of Ctrl-C; running rollouts are ended first, and `watch`
                is called with their ends.
        """
        keys = list(range(len(tasks))) if keys is None else list(keys)
        if len(keys) != len(tasks):
            raise ValueError(f"{len(keys)} keys for {len(tasks)} tasks: give one key a task")
        states = [
            self._create_state(task, key, number, samples, seed, worlds)
            for task, key in zip(tasks, keys)
            for number in (range(samples) if numbers is None else numbers)
        ]
        version = self.engine.version
        runners = [RolloutRunner(self.run_task(state), state, version, watch) for state in states]
        params = SamplingParams(
            temperature=temperature,
            max_tokens=self.limits.turn_tokens,
            seed=seed,
            stop_ids=self.chat.stop_ids if self.chat else (),
        )
        prompts = [runner.open() for runner in runners]
        active = [i for i, prompt in enumerate(prompts) if prompt is not None]
        try:
            self.engine.converse(
                [prompts[i] for i in active],
                params,
                lambda i, completion: runners[active[i]].respond(completion),
                keys=[runners[i].state.key for i in active],
                context=self.limits.context_tokens,
            )
        except BaseException:
            for runner in runners:
                runner.interrupt()
            raise
        return [runner.record for runner in runners]

    def stream(self, tasks: Sequence[Task], **options) -> Iterator[Trajectory]:
        """Yield the trajectories of `run` as they end."""
        ended: queue.Queue = queue.Queue()

        def watch(event: str, state: RolloutState, value) -> None:
            if event == "end":
                ended.put(value)

        def work() -> None:
            try:
                self.run(tasks, watch=watch, **options)
                ended.put(None)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                ended.put(error)

        threading.Thread(target=work, daemon=True).start()
        while (item := ended.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _create_state(self, task, key, number, samples, seed, worlds) -> RolloutState:
        toolbox, system = self.toolbox, self.system
        if task.environment:
            toolbox = self.toolbox.open_episode(task)
            system = replace_tools(system, toolbox.schemas, self.has_native_tools)
        return RolloutState(
            task,
            self.limits,
            toolbox,
            (worlds or {}).get(task.world),
            self.chat,
            system,
            self.has_native_tools,
            rollout_id(seed, key, number),
            key * samples + number,
        )


def rollout_id(seed: int, key: int, number: int) -> str:
    """Return the id of a rollout and its trajectory; up to the last "-" it identifies the task."""
    return f"{seed}-{key}-{number}"
