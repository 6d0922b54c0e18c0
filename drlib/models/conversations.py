"""Conversations over libraries that generate one turn at a time, such as vLLM or transformers.

The library receives a prompt and returns a turn. This module tracks what each conversation has
read, its token limits, the environment's replies, and conversations that wait for a tool. Every
turn is requested with all preceding ids as they were sampled, never re-tokenised; a prefix cache
then reads only new ones.
"""

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import numpy as np

from drlib.models.engine import Completion, Engine, NewContext, Respond, SamplingParams
from drlib.validation import require


@dataclass
class Conversation:
    """State of a running request.

    Attributes:
        number: index of the request.
        key: random key.
        ids: token ids of the current context.
        context_index: number of contexts started after the first.
        turns: turns sampled in this context.
        sampled: tokens sampled in this context.
        turn_limit: maximum tokens of the next turn.
        reported: tokens of this context with reported routes.
    """

    number: int
    key: int
    ids: list[int]
    context_index: int = 0
    turns: int = 0
    sampled: int = 0
    turn_limit: int = 0
    reported: int = 0


def random_stream(seed: int, key: int, context_index: int) -> np.random.Generator:
    """Return the Philox stream of random numbers of one context of a request."""
    counter = np.array([0, 0, 0, context_index], np.uint64)
    return np.random.Generator(
        np.random.Philox(key=np.array([seed, key], np.uint64), counter=counter)
    )


def check_ids(ids: Sequence[int], vocab_size: int, name: str) -> None:
    """Raise ValueError if `ids` contains an id outside the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name} holds id {token}, outside the vocabulary of {vocab_size}")


def validate_requests(
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int] | None,
    params: SamplingParams,
    context: int | None,
    max_context: int,
    vocab_size: int,
) -> tuple[list[list[int]], list[int], int]:
    """Check the arguments of `converse`; return (prompts, keys, context) with defaults.

    Raises:
        ValueError: an empty or too long prompt, an id outside the vocabulary, a wrong number or
            range of keys, or a context longer than the engine's.
    """
    context = max_context if context is None else context
    has_context = 2 <= context <= max_context
    require(has_context, f"context={context} must be in [2, max_context={max_context}]")
    checked = [list(map(int, prompt)) for prompt in prompts]
    for i, prompt in enumerate(checked):
        require(
            0 < len(prompt) < context,
            f"prompt {i} has {len(prompt)} tokens: give at least one, and "
            f"fewer than the context of {context}, or raise max_context",
        )
        check_ids(prompt, vocab_size, f"prompt {i}")
    keys = list(range(len(prompts)) if keys is None else keys)
    if len(keys) != len(prompts) or any(not 0 <= key < 2**64 for key in keys):
        raise ValueError(f"{len(keys)} keys for {len(prompts)} prompts: one each in [0, 2**64)")
    check_ids(params.stop_ids, vocab_size, "stop_ids")
    return checked, keys, context


class TurnwiseEngine(Engine):
    """Implements `converse` over three methods of a subclass: `_start`, `_step` and `_abandon`.

    The subclass also sets `max_context` and `vocab_size` of the model.
    """

    reads = "ids"
    version = 0
    max_context: int
    vocab_size: int

    @abstractmethod
    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        """Start to sample the conversation's next turn, of at most `turn_limit` tokens."""

    @abstractmethod
    def _step(self) -> list[tuple[Conversation, Completion]]:
        """Advance all started turns; return those that ended."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drop all started turns."""

    def converse(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        respond: Respond,
        *,
        keys: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        """Run all conversations, turn by turn; see `LocalEngine.converse`."""
        prompts, keys, context = validate_requests(
            prompts, keys, params, context, self.max_context, self.vocab_size
        )
        run = _Run(self, params, respond, context)
        try:
            run.run([Conversation(i, k, p) for i, (k, p) in enumerate(zip(keys, prompts))])
        except BaseException:
            self._abandon()
            raise


class _Run:
    """One `converse` call."""

    def __init__(self, engine: TurnwiseEngine, params, respond, context: int):
        self.engine = engine
        self.params = params
        self.respond = respond
        self.context = context
        self.parked: dict[Future, Conversation] = {}
        self.running = 0  # started turns

    def run(self, conversations: list[Conversation]) -> None:
        for conversation in conversations:
            self._start_turn(conversation)
        while self.running or self.parked:
            if not self.running:
                wait(self.parked, return_when=FIRST_COMPLETED)
            for future in [future for future in self.parked if future.done()]:
                self._accept(self.parked.pop(future), future.result())
            if self.running:
                for conversation, completion in self.engine._step():
                    self.running -= 1
                    conversation.ids += completion.token_ids
                    conversation.turns += 1
                    conversation.sampled += len(completion.token_ids)
                    if completion.routed_experts is not None:
                        conversation.reported += len(completion.routed_experts)
                    self._accept(conversation, self.respond(conversation.number, completion))

    def _start_turn(self, conversation: Conversation) -> None:
        conversation.turn_limit = min(self.params.max_tokens, self.context - len(conversation.ids))
        self.running += 1
        self.engine._start(conversation, self.params)

    def _accept(self, conversation: Conversation, reply) -> None:
        """Process the environment's reply to a turn."""
        if isinstance(reply, Future):
            self.parked[reply] = conversation
            return
        if reply is None:
            return
        is_new = isinstance(reply, NewContext)
        ids = list(map(int, reply.prompt if is_new else reply))
        check_ids(ids, self.engine.vocab_size, f"the reply to request {conversation.number}")
        whole = ids if is_new else conversation.ids + ids
        if not 0 < len(whole) < self.context:
            last = self.respond(conversation.number, Completion(finish_reason="context"))
            if isinstance(last, Future):  # the end of the rollout is being verified
                self.parked[last] = conversation
            elif last is not None:
                raise ValueError(
                    f"respond must return None: the context of {conversation.number} is full"
                )
            return
        conversation.ids = whole
        if is_new:
            conversation.context_index += 1
            conversation.turns = conversation.sampled = conversation.reported = 0
        self._start_turn(conversation)


def has_stopped(turn: Sequence[int], params: SamplingParams) -> bool:
    """Return True if a turn's last tokens are one of the stops."""
    stops = itertools.chain(((token,) for token in params.stop_ids), params.stop_sequences)
    return any(tuple(turn[-len(stop) :]) == tuple(stop) for stop in stops)


def infer_finish_reason(turn: Sequence[int], params: SamplingParams) -> str:
    """Return the `Completion.finish_reason` of a turn that has ended."""
    if has_stopped(turn, params):
        return "stop"
    return "length" if len(turn) >= params.max_tokens else "context"
