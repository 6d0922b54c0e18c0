"""Conversations over a library that generates one turn at a time, such as vLLM or transformers.

Such a library is handed a prompt and gives a turn back. Here is what lies between the turns: what a
conversation has read, how much room it has, what its environment answers, which of them wait for a
tool. Every turn is asked for with all the ids before it, as they were sampled and never
re-tokenised; a library with a prefix cache reads only what is new.
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
    """One request while it runs.

    number: of the request. begun: contexts begun after the first. turns: spoken in this context;
    sampled: tokens of them. room: how many tokens the next turn may have. routed: tokens of this
    context whose routes were reported.
    """

    number: int
    key: int
    ids: list[int]
    begun: int = 0
    turns: int = 0
    sampled: int = 0
    room: int = 0
    routed: int = 0


def random_stream(seed: int, key: int, begun: int) -> np.random.Generator:
    """The random numbers of one context of a request: a Philox stream that is its own."""
    counter = np.array([0, 0, 0, begun], np.uint64)
    return np.random.Generator(
        np.random.Philox(key=np.array([seed, key], np.uint64), counter=counter)
    )


def check_ids(ids: Sequence[int], vocab_size: int, what: str) -> None:
    """ValueError: an id outside the vocabulary, of `what`."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{what} holds id {token}, outside the vocabulary of {vocab_size}")


def validate_requests(
    prompts: Sequence[Sequence[int]],
    keys: Sequence[int] | None,
    params: SamplingParams,
    context: int | None,
    max_context: int,
    vocab_size: int,
) -> tuple[list[list[int]], list[int], int]:
    """(prompts, keys, context) of a call of `converse`, with its defaults.

    ValueError: a prompt that is empty or too long, an id outside the vocabulary, keys of another
    number or out of range, a context that the engine does not have.
    """
    context = max_context if context is None else context
    has_context = 2 <= context <= max_context
    require(has_context, f"context={context} must be in [2, max_context={max_context}]")
    prompts = [list(map(int, prompt)) for prompt in prompts]
    for i, prompt in enumerate(prompts):
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
    return prompts, keys, context


class TurnwiseEngine(Engine):
    """`converse` over three methods that a subclass has: `_start`, `_step` and `_abandon`.

    max_context, vocab_size: of the model; set by the subclass.
    """

    reads = "ids"
    version = 0
    max_context: int
    vocab_size: int

    @abstractmethod
    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        """Begin to sample the conversation's next turn, of at most `conversation.room` tokens."""

    @abstractmethod
    def _step(self) -> list[tuple[Conversation, Completion]]:
        """Work for a while at all turns begun; those that ended."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drop all turns begun."""

    def converse(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        respond: Respond,
        *,
        keys: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        """Run all requests to their end, turn by turn; see `LocalEngine.converse`."""
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
        self.running = 0  # turns begun

    def run(self, conversations: list[Conversation]) -> None:
        for one in conversations:
            self._speak(one)
        while self.running or self.parked:
            if not self.running:
                wait(self.parked, return_when=FIRST_COMPLETED)
            for future in [future for future in self.parked if future.done()]:
                self._accept(self.parked.pop(future), future.result())
            if self.running:
                for one, done in self.engine._step():
                    self.running -= 1
                    one.ids += done.token_ids
                    one.turns += 1
                    one.sampled += len(done.token_ids)
                    if done.routed_experts is not None:
                        one.routed += len(done.routed_experts)
                    self._accept(one, self.respond(one.number, done))

    def _speak(self, one: Conversation) -> None:
        one.room = min(self.params.max_tokens, self.context - len(one.ids))
        self.running += 1
        self.engine._start(one, self.params)

    def _accept(self, one: Conversation, reply) -> None:
        """Take the environment's answer to a turn."""
        if isinstance(reply, Future):
            self.parked[reply] = one
            return
        if reply is None:
            return
        fresh = isinstance(reply, NewContext)
        ids = list(map(int, reply.prompt if fresh else reply))
        check_ids(ids, self.engine.vocab_size, f"the reply to request {one.number}")
        whole = ids if fresh else one.ids + ids
        if not 0 < len(whole) < self.context:
            if self.respond(one.number, Completion(finish_reason="context")) is not None:
                raise ValueError(f"respond must return None: the context of {one.number} is full")
            return
        one.ids = whole
        if fresh:
            one.begun += 1
            one.turns = one.sampled = one.routed = 0
        self._speak(one)


def ends(turn: Sequence[int], params: SamplingParams) -> bool:
    """Whether a turn's last tokens are one of the stops."""
    stops = itertools.chain(((token,) for token in params.stop_ids), params.stop_sequences)
    return any(tuple(turn[-len(stop) :]) == tuple(stop) for stop in stops)


def infer_finish_reason(turn: Sequence[int], params: SamplingParams) -> str:
    """Why a turn that has ended did, as `Completion.finish_reason` has it."""
    if ends(turn, params):
        return "stop"
    return "length" if len(turn) >= params.max_tokens else "context"
