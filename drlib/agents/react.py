"""ReAct: think, call a tool, read, repeat, answer. The loop that every rollout and evaluation uses.

Text is decoded only to be parsed: what the policy sampled is never tokenised again. All rollouts of
a call generate together in the engine; while one waits for its tool, the others go on.

A turn is sampled up to the close of its first action; the environment writes the end of turn.
Nothing judges what follows an answer, so a policy gradient would let it grow (seen here: rows of
`</answer>`, which then broke the actions themselves). A format error is an observation like any
other (Tongyi DeepResearch answers invalid JSON with a text) and counts as a failed call. The limit
on calls (TURNS) and those on tokens (LENGTH) end a rollout without an answer.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from drlib.chat import ChatIds, segment_tokens
from drlib.format import Answer, ToolCall, parse
from drlib.policy.engine import Completion, LocalEngine, SamplingParams
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Termination, ToolResult, Trajectory
from drlib.worlds import World


@dataclass(frozen=True)
class Limits:
    """What one rollout may use."""

    calls: int = 6
    turn_tokens: int = 72
    context_tokens: int = 448


class ReAct:
    """Runs tasks with an engine, whose tokenizer is `chat.tokenizer`, and a toolbox; a task from a
    fictional world brings its own world (see `run`)."""

    def __init__(
        self, engine: LocalEngine, toolbox: Toolbox, chat: ChatIds, limits: Limits = Limits()
    ):
        self.engine, self.toolbox, self.chat, self.limits = engine, toolbox, chat, limits

    def run(
        self,
        tasks: Sequence[Task],
        *,
        samples: int = 1,
        temperature: float = 1.0,
        seed: int = 0,
        keys: Sequence[int] | None = None,
        worlds: dict[str, World] | None = None,
    ) -> list[Trajectory]:
        """`samples` trajectories of each task, in order (all of the first task first).

        Args:
            temperature: 0 is greedy.
            keys: one number a task; with `seed` it fixes the task's random streams, whatever else
                runs beside it.
            worlds: other worlds by version, for tasks that do not belong to the toolbox's.
        """
        keys = list(range(len(tasks))) if keys is None else list(keys)
        if len(keys) != len(tasks):
            raise ValueError(f"{len(keys)} keys for {len(tasks)} tasks: give one key a task")
        rollouts = [
            _Rollout(self, task, key * samples + s, f"{seed}-{key}-{s}", worlds)
            for task, key in zip(tasks, keys)
            for s in range(samples)
        ]
        params = SamplingParams(
            temperature=temperature,
            max_tokens=self.limits.turn_tokens,
            seed=seed,
            stop_ids=self.chat.stop_ids,
        )
        self.engine.converse(
            [r.prompt for r in rollouts],
            params,
            lambda i, done: rollouts[i].respond(done),
            keys=[r.key for r in rollouts],
            context=self.limits.context_tokens,
        )
        return [r.trajectory() for r in rollouts]


class _Rollout:
    """One conversation while it runs."""

    def __init__(self, agent: ReAct, task: Task, key: int, name: str, worlds):
        self.agent, self.task, self.key, self.name = agent, task, key, name
        self.world = (worlds or {}).get(task.world)
        self.prompt = agent.chat.prompt(task.question)
        self.parts: list[tuple[list[int], Completion | None]] = [(self.prompt, None)]
        self.messages = [{"role": "user", "content": task.question}]
        self.results: list[ToolResult] = []
        self.answer: str | None = None
        self.termination = Termination.LENGTH

    def respond(self, done: Completion) -> list[int] | Future | None:
        """What the environment says after a turn: ids, a future of ids, or None (the end)."""
        if done.finish_reason == "context" and not done.token_ids:
            return None  # the observation did not fit and was not fed: it is not part of the record
        self.parts.append((done.token_ids, done))
        text = self.agent.chat.decode_turn(done.token_ids)
        self.messages.append({"role": "assistant", "content": text})
        if done.finish_reason != "stop":
            return None
        action = parse(text)
        if isinstance(action, Answer):
            self.answer, self.termination = action.text, Termination.ANSWERED
        elif len(self.results) >= self.agent.limits.calls:
            self.termination = Termination.TURNS
        elif isinstance(action, ToolCall):
            return self.agent.toolbox.submit(
                action.name, action.arguments, world=self.world, then=self._observe
            )
        else:
            error = ToolResult("format", {}, f"Error: {action.reason}", False, "format")
            return self._observe(error)
        return None

    def _observe(self, result: ToolResult) -> list[int] | None:
        self.results.append(result)
        self.messages.append({"role": "tool", "content": result.text})
        if result.env_fault:
            self.termination = Termination.ENV_FAULT
            return None
        chat = self.agent.chat
        end = [] if self.parts[-1][0][-1:] == [chat.end_id] else [chat.end_id]
        self.parts.append((end + chat.tool_turn(result.text), None))
        return self.parts[-1][0]

    def trajectory(self) -> Trajectory:
        while self.parts[-1][1] is None and len(self.parts) > 1:  # read, but never answered to
            self.parts.pop()
        parts, completions = zip(*self.parts)
        ids, lengths = np.concatenate(parts).astype(np.int32), [len(part) for part in parts]
        sampled = np.array([done is not None for done in completions])
        generated = np.repeat(sampled, lengths)
        turns = np.repeat(np.cumsum(sampled) - sampled, lengths).astype(np.uint16)
        column = {name: np.zeros(len(ids), np.float32) for name in ("logprobs", "entropies")}
        for name, values in column.items():
            values[generated] = [x for done in completions if done for x in getattr(done, name)]
        version = self.agent.engine.version
        return Trajectory(
            id=self.name,
            task_id=self.task.id,
            group_id=self.name.rsplit("-", 1)[0],
            world_version=self.task.world,
            policy_version=version,
            token_ids=ids,
            generated=generated,
            segments=segment_tokens(ids, self.agent.chat.tokenizer),
            turns=turns,
            versions=np.where(generated, version, 0).astype(np.int32),
            routed_experts=None,
            tool_results=self.results,
            termination=self.termination,
            answer=self.answer,
            reward=None,
            reward_parts={},
            messages=self.messages,
            metadata={"question": self.task.question, "right_answer": self.task.answer},
            **column,
        )


def with_reward(trajectory: Trajectory, reward: float | None, parts: dict) -> Trajectory:
    """The trajectory with its reward set."""
    return replace(trajectory, reward=reward, reward_parts=parts)
