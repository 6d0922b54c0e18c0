"""The interface of all engines: local policies, transformers, vLLM and servers.

`generate` samples one turn per prompt. `converse` runs whole conversations, many at a time: after
each turn a callback returns what the policy reads next. Agents and training use nothing else.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one call.

    Args:
        temperature: 0 is greedy.
        top_p: nucleus sampling, in (0, 1].
        max_tokens: limit per turn.
        stop_ids, stop_sequences: a turn ends after one of these; it is kept in the completion.
        seed: in [0, 2**64).

    Raises:
        ValueError: a value out of range.
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
    """Sampled turn: token ids with log-probabilities and entropies (nats).

    Log-probabilities and entropies are those of the sampling distribution; greedy turns report the
    temperature-1 distribution.

    Attributes:
        finish_reason: "stop", "length" (max_tokens reached), "context" (context full) or "fault"
            (the engine failed, see `fault`; nothing was sampled).
        text, prompt_tokens, turn_tokens, cost: set by engines that read messages, as counted by
            their server; token ids are then empty.
        seconds: time of the request with its retries, set by engines that read messages.
        call_ids: the server's ids of the native calls in `text`.
        routed_experts: with `routes=True`, uint16[n, L, k]: the k experts in each of L sparse
            layers of the n tokens read since the last turn in this context (all of them for the
            first turn). The turn's last token has not been read yet; it is the first of the next
            turn's n.
        versions: weights that sampled each token, if they changed during the rollouts; empty:
            those at the beginning.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    finish_reason: str = "stop"
    text: str = ""
    prompt_tokens: int = 0
    turn_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    fault: str = ""
    call_ids: tuple[str, ...] = ()
    routed_experts: np.ndarray | None = field(default=None, repr=False, compare=False)
    versions: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of tokens of the turn."""
        return len(self.token_ids) or self.turn_tokens


@dataclass(frozen=True)
class NewContext:
    """An environment reply that replaces the context by this prompt (ids or messages)."""

    prompt: list


Respond = Callable[[int, Completion], "list | NewContext | None | Future"]


class Engine(Protocol):
    """Interface of everything that generates.

    Attributes:
        reads: type of a prompt: "ids", a list of token ids, or "messages", a list of {"role",
            "content"} dicts, optionally with "pictures" (data URLs).
        version: number of weight updates.
    """

    reads: Literal["ids", "messages"]
    version: int

    def converse(self, prompts, params, respond, *, keys=None, context=None) -> None: ...

    def update_weights(self, model) -> None: ...

    def generate(self, prompts, params: SamplingParams, *, keys=None) -> list[Completion]:
        """Sample one turn per prompt; completions in the order of the prompts."""
        completions: list[Completion | None] = [None] * len(prompts)
        self.converse(prompts, params, completions.__setitem__, keys=keys)
        return completions
