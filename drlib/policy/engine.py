"""The local engine: slot-based continuous batching for small policies on a CPU.

`LocalEngine.converse` keeps a fixed number of cache rows busy. A request holds one row for all
its turns: when a turn ends, a callback says what the environment answers, the answer's tokens are
fed into the same row, and generation goes on. While a tool runs (the callback returned a Future)
the row is parked and the other rows go on. All per-token work is vectorised over rows.

A request's randomness is its own: uniforms come from a Philox stream keyed by (seed, request key)
and indexed by the number of tokens the request has sampled, so a sample does not depend on batch
composition, number of slots, order or process (up to float rounding of the logits).

Left out: paged caches, preemption, speculative decoding, sharing of prefixes between different
prompts (equal prompts, the GRPO case, are fed once and copied). For large models there is vLLM.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from drlib.policy.decoder import Decoder
from drlib.policy.sampling import SamplingParams, sample

_PREFILL_TOKENS = 4096  # at most so many tokens in one prefill call
_PATIENCE = 32  # row-steps of waiting that cost about as much as one more prefill call
_FREE, _WAITING, _PARKED, _ACTIVE = range(4)


@dataclass
class Completion:
    """The tokens of one turn, with log-prob and entropy (nats) of the sampling distribution.

    `finish_reason` is "stop", "length" (max_tokens reached) or "context" (the row is full). Greedy
    turns report the temperature-1 distribution.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    finish_reason: str = "stop"


Respond = Callable[[int, Completion], "list[int] | None | Future"]


class Engine(Protocol):
    """What agents and training need of anything that generates."""

    version: int

    def generate(self, prompts, params, *, keys=None) -> list[Completion]: ...

    def converse(self, prompts, params, respond, *, keys=None, context=None) -> None: ...

    def update_weights(self, model) -> None: ...


class LocalEngine:
    """Continuous batching over `slots` cache rows of `max_context` tokens; see the module.

    The weights are copied: after a training step call `update_weights`. Not thread-safe.

    `lockstep` takes the results of parked tools at fixed points of the schedule instead of when
    they happen to come, and waits for them there: the composition of every batch, and with it the
    last bit of every logit, is then a function of the inputs alone (a killed training run resumes
    to the same weights). Tools still run beside generation; slow ones are better without it.
    """

    def __init__(self, model, *, slots: int = 128, max_context: int = 512, lockstep: bool = False):
        if slots < 1 or max_context < 2:
            raise ValueError(f"slots={slots} must be at least 1, max_context={max_context} 2")
        self.max_context, self.lockstep, self.version = max_context, lockstep, 0
        self._decoder = Decoder(model, slots, max_context)

    def update_weights(self, model) -> None:
        """Re-read the weights of `model`; later completions come from them."""
        self._decoder.load(model)
        self.version += 1

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, keys=None
    ) -> list[Completion]:
        """One turn for each prompt (token ids); completions in the order of the prompts."""
        completions: list[Completion | None] = [None] * len(prompts)
        self.converse(prompts, params, completions.__setitem__, keys=keys)
        return completions

    def converse(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, respond: Respond, *,
        keys: Sequence[int] | None = None, context: int | None = None,
    ) -> None:  # fmt: skip
        """Run all requests to their end, turn by turn.

        When request i ends a turn, `respond(i, completion)` is called in this thread. It returns
        None (the request is done), the list of ids that the environment appends (generation goes
        on behind them), or a Future of either. Ids that would leave no room for another token in
        `context` (default: max_context) are not appended: respond is called once more, with an
        empty completion of reason "context". An exception of `respond` or of a Future ends the
        call and is raised here; the engine stays usable.

        `keys` are the requests' random keys (default 0, 1, ...); equal keys share a stream.
        Raises ValueError for empty or too long prompts and ids outside the vocabulary.
        """
        context = self.max_context if context is None else context
        if not 2 <= context <= self.max_context:
            raise ValueError(
                f"context={context} must be in [2, {self.max_context}] (the engine's max_context)"
            )
        prompts = _checked_prompts(prompts, context, self._decoder.vocab_size)
        keys = list(range(len(prompts)) if keys is None else keys)
        if len(keys) != len(prompts) or any(not 0 <= key < 2**64 for key in keys):
            raise ValueError(f"{len(keys)} keys for {len(prompts)} prompts: one each in [0, 2**64)")
        _check_ids(params.stop_ids, self._decoder.vocab_size, "stop_ids")
        run = _Run(self._decoder, prompts, params, respond, keys, context, self.lockstep)
        with torch.inference_mode():
            run.run()


def _checked_prompts(prompts, context: int, vocab_size: int) -> list[list[int]]:
    prompts = [list(map(int, prompt)) for prompt in prompts]
    for i, prompt in enumerate(prompts):
        if not 0 < len(prompt) < context:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens: give at least one, and leave room to "
                f"generate in a context of {context} (or raise max_context)"
            )
        _check_ids(prompt, vocab_size, f"prompt {i}")
    return prompts


def _check_ids(ids, vocab_size: int, what: str) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{what} holds id {token}, outside the vocabulary of {vocab_size}")


class _Run:
    """One `converse` call: which request sits in which row, and what each row waits for."""

    def __init__(self, decoder: Decoder, prompts, params, respond, keys, context, lockstep):
        self.decoder, self.params, self.respond, self.lockstep = decoder, params, respond, lockstep
        self.prompts, self.keys, self.context = prompts, keys, context
        self.queue = deque(range(len(prompts)))
        self.futures: dict[int, Future] = {}
        self.waited = 0
        # Equal prompts get one number; its last logits are kept while such requests are queued.
        numbers: dict[tuple[int, ...], int] = {}
        self.prompt_number = [numbers.setdefault(tuple(p), len(numbers)) for p in prompts]
        self.unfed = Counter(self.prompt_number)
        self.prompt_logits: dict[int, torch.Tensor] = {}
        rows = decoder.rows
        self.state = np.full(rows, _FREE)
        self.request = np.full(rows, -1)
        self.length = np.zeros(rows, np.int64)  # tokens of the row
        self.feed = np.zeros(rows, np.int64)  # how many of them are in the cache
        self.turn_start = np.zeros(rows, np.int64)
        self.sampled = np.zeros(rows, np.int64)  # index into the request's uniforms
        self.cached_prompt = np.full(rows, -1)  # number of the prompt the cache row begins with
        self.tokens = np.zeros((rows, self.context), np.int64)
        self.logprobs = np.zeros((rows, self.context), np.float32)
        self.entropies = np.zeros((rows, self.context), np.float32)
        self.uniforms = np.zeros((rows, self.context))
        # what moves with a row: all arrays so far, so tables of the vocabulary come after this line
        self.row_arrays = [a for a in vars(self).values() if isinstance(a, np.ndarray)]
        self.stop_table = np.zeros(decoder.vocab_size, bool)
        self.stop_table[list(params.stop_ids)] = True
        self.tail_table = np.zeros(decoder.vocab_size, bool)
        self.tail_table[[s[-1] for s in params.stop_sequences]] = True

    def run(self) -> None:
        while True:
            if not self.lockstep:
                self._take([row for row, future in self.futures.items() if future.done()])
            self._admit()
            waiting = np.flatnonzero(self.state == _WAITING)
            active = bool((self.state == _ACTIVE).any())
            idle = len(waiting) + (len(self.futures) if self.lockstep else 0)
            if idle and (not active or self.waited >= _PATIENCE):
                self._gather()
                waiting = np.flatnonzero(self.state == _WAITING)
                if len(waiting):
                    self._prefill(waiting.tolist())
            elif active:
                self.waited += idle
                self._decode()
            elif self.futures:
                wait(list(self.futures.values()), return_when=FIRST_COMPLETED)
            else:
                return

    def _gather(self) -> None:
        """In lockstep: wait for every parked tool, in the order of rows, then go on with all."""
        if self.lockstep:
            self._take(sorted(self.futures))
            self._admit()
            self.waited = 0

    # ---- requests in and out of rows

    def _admit(self) -> None:
        if not self.queue:
            return
        for row in np.flatnonzero(self.state == _FREE).tolist()[: len(self.queue)]:
            request = self.queue.popleft()
            prompt = self.prompts[request]
            self.state[row], self.request[row] = _WAITING, request
            self.feed[row], self.sampled[row], self.cached_prompt[row] = 0, 0, -1
            self.length[row] = self.turn_start[row] = len(prompt)
            self.tokens[row, : len(prompt)] = prompt
            if self.params.temperature > 0:
                key = np.array([self.params.seed, self.keys[request]], np.uint64)
                stream = np.random.Generator(np.random.Philox(key=key))
                self.uniforms[row] = stream.random(self.context)

    def _take(self, rows: list[int]) -> None:
        for row in rows:
            self._accept(row, self.futures.pop(row).result())

    def _accept(self, row: int, reply) -> None:
        """Take the environment's answer to the turn that ended in `row`."""
        request, length = int(self.request[row]), int(self.length[row])
        if reply is None:
            self._release(row)
            return
        if isinstance(reply, Future):
            self.state[row], self.futures[row] = _PARKED, reply
            return
        reply = list(map(int, reply))
        _check_ids(reply, self.decoder.vocab_size, f"the reply to request {request}")
        if length + len(reply) >= self.context:
            if self.respond(request, Completion(finish_reason="context")) is not None:
                raise ValueError(f"respond must return None: the context of {request} is full")
            self._release(row)
            return
        self.tokens[row, length : length + len(reply)] = reply
        self.length[row] = self.turn_start[row] = length + len(reply)
        self.state[row] = _WAITING

    def _release(self, row: int) -> None:
        # feed = 0: a free row that is padded along feeds its first token, which changes nothing.
        self.state[row], self.request[row], self.feed[row] = _FREE, -1, 0

    def _end_turn(self, row: int, reason: str) -> None:
        span = slice(int(self.turn_start[row]), int(self.length[row]))
        arrays = (self.tokens, self.logprobs, self.entropies)
        completion = Completion(*(array[row, span].tolist() for array in arrays), reason)
        self._accept(row, self.respond(int(self.request[row]), completion))

    # ---- the model

    def _prefill(self, waiting: list[int]) -> None:
        """Feed what the waiting rows lack; equal prompts once, then copied."""
        leaders: dict[int, int] = {}
        fed, copies, logits = [], [], {}
        for row in waiting:
            number = self.prompt_number[self.request[row]]
            if self.feed[row] > 0:
                fed.append(row)
                continue
            self.unfed[number] -= 1
            source = leaders.get(number)
            if source is None and number in self.prompt_logits:
                cached = np.flatnonzero(self.cached_prompt == number)
                source = int(cached[0]) if len(cached) else None
            if source is None:
                leaders[number] = row
                fed.append(row)
            else:
                copies.append((source, row, number))
        for batch in self._batches(fed):
            starts = self.feed[batch].tolist()
            chunks = [self.tokens[r, s : self.length[r]] for r, s in zip(batch, starts)]
            logits.update(zip(batch, self.decoder.prefill(batch, starts, chunks)))
        for number, row in leaders.items():
            self.prompt_logits[number], self.cached_prompt[row] = logits[row], number
        for source, row, number in copies:
            self.decoder.copy_row(source, row, int(self.length[row]))
            logits[row], self.cached_prompt[row] = self.prompt_logits[number], number
        for number in {self.prompt_number[self.request[row]] for row in waiting}:
            if not self.unfed[number]:
                self.prompt_logits.pop(number, None)
        self.waited = 0
        self._sample(np.array(waiting), torch.stack([logits[row] for row in waiting]))

    def _batches(self, rows: list[int]):
        """Rows by the length of what they feed, at most _PREFILL_TOKENS padded tokens a batch."""
        width = self.length - self.feed
        batch: list[int] = []
        for row in sorted(rows, key=width.__getitem__):
            if batch and width[row] * (len(batch) + 1) > _PREFILL_TOKENS:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _decode(self) -> None:
        """One token for every active row; the few other rows between them are padded along."""
        n, device = self._compact(), self.decoder.device
        feed = self.feed[:n]
        ids = torch.from_numpy(self.tokens[np.arange(n), feed]).to(device)
        logits = self.decoder.decode(ids, torch.from_numpy(feed).to(device))
        active = np.flatnonzero(self.state[:n] == _ACTIVE)
        if len(active) < n:
            logits = logits[torch.from_numpy(active).to(device)]
        self._sample(active, logits)

    def _compact(self) -> int:
        """Rows to compute; moves active rows down when too many idle ones lie between them."""
        active = np.flatnonzero(self.state == _ACTIVE)
        n = int(active[-1]) + 1
        if n - len(active) <= max(2, len(active) // 8):
            return n
        holes = np.flatnonzero(self.state[: len(active)] != _ACTIVE)
        for hole, row in zip(holes.tolist(), active[len(active) - len(holes) :].tolist()):
            self._swap(hole, row)
        return len(active)

    def _swap(self, hole: int, row: int) -> None:
        if self.state[hole] == _FREE:
            self.decoder.copy_row(row, hole, int(self.feed[row]))
            self.cached_prompt[hole] = -1
        else:
            self.decoder.swap_rows(row, hole, int(max(self.feed[row], self.feed[hole])))
        for array in self.row_arrays:
            array[[hole, row]] = array[[row, hole]]
        if hole in self.futures:
            self.futures[row] = self.futures.pop(hole)

    def _sample(self, rows: np.ndarray, logits_NV: torch.Tensor) -> None:
        uniforms = torch.from_numpy(self.uniforms[rows, self.sampled[rows]])
        ids, logp, entropy = sample(
            logits_NV, uniforms.to(logits_NV.device), self.params.temperature, self.params.top_p
        )
        ids, at = ids.cpu().numpy(), self.length[rows]
        self.tokens[rows, at] = ids
        self.logprobs[rows, at] = logp.cpu().numpy()
        self.entropies[rows, at] = entropy.cpu().numpy()
        self.sampled[rows] += 1
        self.feed[rows], self.length[rows], self.state[rows] = at, at + 1, _ACTIVE
        stop = self.stop_table[ids]
        for i in np.flatnonzero(self.tail_table[ids] & ~stop).tolist():
            stop[i] = self._ends_with_stop_sequence(int(rows[i]))
        full = at + 1 >= self.context
        long = at + 1 - self.turn_start[rows] >= self.params.max_tokens
        for i in np.flatnonzero(stop | full | long).tolist():
            reason = "stop" if stop[i] else "length" if long[i] else "context"
            self._end_turn(int(rows[i]), reason)

    def _ends_with_stop_sequence(self, row: int) -> bool:
        turn = self.tokens[row, self.turn_start[row] : self.length[row]].tolist()
        return any(turn[-len(s) :] == list(s) for s in self.params.stop_sequences)
