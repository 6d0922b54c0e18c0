"""What anything that generates has in common: a small policy in this process, vLLM, a server.

`generate` samples one turn for each prompt. `converse` runs whole conversations, turn by turn and
many at a time: whenever a turn ends, a callback says what the policy reads next. Agents and
training know nothing else of an engine.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. `temperature=0` is greedy; `max_tokens` is a limit per turn.

    A turn ends at one of `stop_ids` or when its last tokens equal one of `stop_sequences`; the
    stop token or sequence is kept in the completion.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 72
    stop_ids: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    seed: int = 0

    def __post_init__(self):
        for good, rule in (
            (self.temperature >= 0, "temperature must be >= 0"),
            (0 < self.top_p <= 1, "top_p must be in (0, 1]"),
            (self.max_tokens >= 1, "max_tokens must be at least 1"),
            (0 <= self.seed < 2**64, "seed must be in [0, 2**64)"),
            (all(self.stop_sequences), "a stop sequence must hold at least one id"),
        ):
            if not good:
                raise ValueError(f"{rule}: {self}")


@dataclass
class Completion:
    """The tokens of one turn, with log-prob and entropy (nats) of the sampling distribution.

    `finish_reason` is "stop", "length" (max_tokens reached), "context" (it is full) or "fault" (the
    engine broke, as `fault` says; nothing was sampled). Greedy turns report the temperature-1
    distribution. An engine that reads messages says `text`, and what its server counted: tokens of
    the prompt and of the turn, and their price; token ids are empty where it tells none.

    An engine that was made with `routes=True` says `routed_experts`, uint16[n, L, k]: the k experts
    in each of L sparse layers of the n tokens that it has read since its last turn in this context
    (with the first one: of all of them). The last of the n is the turn's last token but one, for
    nothing has read the last one yet; where the conversation goes on, the next turn begins with it.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    finish_reason: str = "stop"
    text: str = ""
    prompt_tokens: int = 0
    turn_tokens: int = 0
    cost: float = 0.0
    fault: str = ""
    routed_experts: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Tokens of the turn."""
        return len(self.token_ids) or self.turn_tokens


@dataclass(frozen=True)
class NewContext:
    """A reply of the environment: forget everything, and go on behind this (ids or messages)."""

    prompt: list


Respond = Callable[[int, Completion], "list | NewContext | None | Future"]


class Engine(Protocol):
    """What agents and training need of anything that generates.

    reads: what a prompt is, a list of token ids or a list of messages ({"role", "content"}, and
        "pictures", data URLs, where there are some).
    """

    reads: Literal["ids", "messages"]
    version: int

    def converse(self, prompts, params, respond, *, keys=None, context=None) -> None: ...

    def update_weights(self, model) -> None: ...

    def generate(self, prompts, params: SamplingParams, *, keys=None) -> list[Completion]:
        """One turn for each prompt; completions in the order of the prompts."""
        completions: list[Completion | None] = [None] * len(prompts)
        self.converse(prompts, params, completions.__setitem__, keys=keys)
        return completions
