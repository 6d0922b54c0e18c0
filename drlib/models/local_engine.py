"""The local engine: slot-based continuous batching for small policies.

`LocalEngine.converse` keeps a fixed number of cache rows busy. A request holds one row for all its
turns: after each turn a callback returns the environment's reply, its tokens are appended to the
same row, and generation continues. While a tool runs (the callback returned a Future) the row is
parked and the other rows continue. All per-token work is vectorised over rows.

Each request has its own random numbers: a Philox stream keyed by (seed, request key) and indexed by
the number of sampled tokens. A sample therefore does not depend on batch composition, number of
slots, order or process (up to floating-point rounding of the logits). Tokens are drawn by inverse
CDF, which needs one uniform per token; Gumbel noise would need V per row.

Equal prompts (the GRPO case) are fed once and copied. With `kv_budget` an admission policy limits
the cached tokens of all rows (`drlib.models.admission`); a row that is evicted keeps its tokens and
random numbers and is read again. There is no paged cache or speculative decoding; use vLLM for
large models.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import numpy as np
import torch

from drlib.models.admission import ADMISSIONS, Admission
from drlib.models.conversations import check_ids, random_stream, validate_requests
from drlib.models.decoder import Decoder
from drlib.models.dense_decoder import DenseDecoder
from drlib.models.engine import Completion, Engine, NewContext, Respond, SamplingParams
from drlib.models.sampling import Forks, redraw_forks
from drlib.trajectory import NO_RECORD
from drlib.validation import require

_PREFILL_TOKENS = 4096  # maximum tokens, with padding, of one prefill call
_PATIENCE = 32  # row-steps of waiting that cost about as much as a prefill call
_FREE, _WAITING, _PARKED, _ACTIVE = range(4)


class LocalEngine(Engine):
    """Continuous batching over `slots` cache rows of `max_context` tokens. Not thread-safe.

    Args:
        model: the policy. Its weights are copied: call `update_weights` after a training step.
        slots: cache rows.
        max_context: tokens per row.
        lockstep: read the results of parked tools at fixed points of the schedule, waiting for
            them, instead of as they arrive. The composition of every batch, and with it the last
            bit of every logit, is then a function of the inputs, so a resumed training run is
            bit-identical. Slow tools are faster without it.
        version: number of weight updates so far; pass the saved one when resuming.
        routes: report expert routes (`Completion.routed_experts`); NO_RECORD in the last layer for
            tokens of which only keys and values were needed there.
        dtype: of weights and cache of a dense model (`drlib.models.dense_decoder`).
        forks: another temperature at tokens of high entropy; None: the same everywhere.
        kv_budget: maximum tokens in the cache over all rows; None for slots * max_context. Prompts
            left in free rows do not count: they are overwritten when the row is needed.
        admission: name in `drlib.models.admission.ADMISSIONS`. Each call has a policy of its own,
            with the call's context as the maximum length.

    Attributes:
        admission: policy of the last call, with its counts; None without a budget.

    Raises:
        ValueError: slots or max_context too small, a context longer than the model's, a budget that
            one context exceeds, or an unknown admission.
    """

    reads = "ids"

    def __init__(
        self,
        model,
        *,
        slots: int = 128,
        max_context: int = 512,
        lockstep: bool = False,
        version: int = 0,
        routes: bool = False,
        dtype: torch.dtype = torch.float32,
        forks: Forks | None = None,
        kv_budget: int | None = None,
        admission: str = "reserve",
    ):
        if slots < 1 or max_context < 2:
            raise ValueError(
                f"slots={slots} must be at least 1 and max_context={max_context} at least 2"
            )
        self.max_context, self.lockstep = max_context, lockstep
        self.version, self.forks = version, forks
        self._kv_budget, self._create_admission = kv_budget, ADMISSIONS[admission]
        self.admission: Admission | None = self._admission(max_context)
        self._decoder = create_decoder(model, slots, max_context, routes, dtype)
        self._offered: tuple[Any, int] | None = None
        self._offer_lock = threading.Lock()

    def _admission(self, context: int) -> Admission | None:
        """Create the policy of a call; None without a budget."""
        if self._kv_budget is None:
            return None
        return self._create_admission(self._kv_budget, context)

    def update_weights(self, model) -> None:
        """Copy the weights of `model`; later completions use them."""
        self._decoder.load(model)
        self.version += 1

    def offer_weights(self, model, version: int) -> None:
        """Give weights to a running `converse` call, from any thread.

        The call loads them before its next token. Running contexts are read again under the new
        weights, so a token's log-probability is that of one policy given the whole prefix, and
        `Completion.versions` has the version of each token. Without a running call, the next one
        loads them first. A second offer replaces one that was not loaded.

        Args:
            model: must not change until it is loaded.
            version: number of weight updates behind the model.
        """
        with self._offer_lock:
            self._offered = model, version

    def _load_offered(self) -> bool:
        """Load the offered weights; return True if there were any."""
        if self._offered is None:
            return False
        with self._offer_lock:
            (model, version), self._offered = self._offered, None
        self._decoder.load(model)
        self.version = version
        return True

    def converse(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        respond: Respond,
        *,
        keys: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        """Run all conversations to their end, turn by turn.

        After each turn of request i, `respond(i, completion)` is called in this thread. It returns
        None (the request is finished), the list of ids to append, a `NewContext` that replaces the
        context, or a Future of one of these. If the reply leaves no room for another token in
        `context`, it is not read: respond is called once more with an empty completion of reason
        "context". An exception of `respond` or of a Future ends the call and is raised here; the
        engine remains usable.

        Args:
            prompts: token ids.
            params: sampling options.
            respond: the callback.
            keys: random keys of the requests (default 0, 1, ...); equal keys share a stream.
            context: maximum tokens per conversation (default: max_context).

        Raises:
            ValueError: empty or too long prompts, ids outside the vocabulary, or top-p with forks.
        """
        require(self.forks is None or params.top_p == 1, f"forks need top_p=1, got {params.top_p}")
        prompts, keys, context = validate_requests(
            prompts, keys, params, context, self.max_context, self._decoder.vocab_size
        )
        self.admission = self._admission(context)
        with torch.inference_mode():
            self._load_offered()
            _Run(self, self._decoder, prompts, params, respond, keys, context).run()


class _Run:
    """State of a `converse` call: the request in each row, and the state of each row."""

    def __init__(self, engine, decoder: Decoder, prompts, params, respond, keys, context):
        self.engine, self.lockstep, self.has_new_weights = engine, engine.lockstep, False
        self.decoder, self.params, self.respond = decoder, params, respond
        self.forks, self.admission = engine.forks, engine.admission
        self.context, self.stop_ids = context, list(params.stop_ids)
        self.queue = enumerate(prompts)
        self.futures: dict[int, Future] = {}
        self.keys = list(keys)
        self.numbers: dict[tuple[int, ...], int] = {}  # equal prompts get one number
        self.prompt_number = [self._number(prompt) for prompt in prompts]  # by request
        self.context_index = [0] * len(prompts)  # contexts started after the first, per request
        rows = decoder.rows  # the following arrays have one entry per row and move with it
        self.state = np.full(rows, _FREE)
        self.request = np.full(rows, -1)
        self.length = np.zeros(rows, np.int64)  # tokens of the row
        self.feed = np.zeros(rows, np.int64)  # number of them in the cache
        self.has_cache = np.full(rows, self.admission is None)  # admitted, not evicted since
        self.recorded = np.zeros(rows, np.int64)  # tokens whose routes an eviction must not change
        self.turn_start = np.zeros(rows, np.int64)
        self.sampled = np.zeros(rows, np.int64)  # index into the request's uniforms
        self.cached_prompt = np.full(rows, -1)  # number of the prompt at the start of the cache row
        self.prompt_logits = np.zeros((rows, decoder.vocab_size), np.float32)  # after that prompt
        self.tokens = np.zeros((rows, context), np.int64)
        self.logprobs = np.zeros((rows, context), np.float32)
        self.entropies = np.zeros((rows, context), np.float32)
        self.versions = np.zeros((rows, context), np.int32)
        self.uniforms = np.zeros((rows, context))
        self.routes = _no_routes(decoder, context)
        self.reported = np.zeros(rows, np.int64)  # tokens of the row with reported routes
        self.row_arrays = [a for a in vars(self).values() if isinstance(a, np.ndarray)]

    def run(self) -> None:
        waited = 0
        while True:
            if self.engine._load_offered():
                self._read_again()
            if not self.lockstep:
                self._accept_results([row for row, future in self.futures.items() if future.done()])
            self._admit()
            active = (self.state == _ACTIVE).any()
            idle = len(self._unread_rows()) + self.lockstep * len(self.futures)
            if idle and (not active or waited >= _PATIENCE):
                waited = 0
                if self.lockstep:  # wait for every parked tool, in the order of rows
                    self._accept_results(sorted(self.futures))
                    self._admit()
                self._prefill(self._unread_rows())
            elif active:
                waited += idle
                self._decode()
            elif self.futures:
                wait(list(self.futures.values()), return_when=FIRST_COMPLETED)
            else:
                return

    def _read_again(self) -> None:
        """Mark the contexts of all rows as unread: their keys and values are of older weights."""
        self.has_new_weights = True
        self._forget(np.arange(len(self.state)))
        self.recorded[:] = 0

    def _forget(self, rows: np.ndarray) -> None:
        """Mark the contexts of rows as unread."""
        for row in rows[self.state[rows] != _FREE].tolist():
            if self.sampled[row] > 0:  # no longer equal to the prompt of other rows
                request = int(self.request[row])
                self.prompt_number[request] = -2 - request
            if self.state[row] == _ACTIVE:
                self.state[row] = _WAITING
        self.feed[rows], self.cached_prompt[rows] = 0, -1

    def _unread_rows(self) -> list[int]:
        """Return the rows to read: they wait for it and are admitted to the cache."""
        return np.flatnonzero((self.state == _WAITING) & self.has_cache).tolist()

    # ---- requests in and out of rows

    def _number(self, prompt: Sequence[int]) -> int:
        return self.numbers.setdefault(tuple(prompt), len(self.numbers))

    def _admit(self) -> None:
        free = np.flatnonzero(self.state == _FREE).tolist()
        for row, (request, prompt) in zip(free, self.queue):
            self.request[row] = request
            self._begin(row, prompt)
        if self.admission:
            self._schedule_cache(self.admission)

    def _schedule_cache(self, admission: Admission) -> None:
        """Evict rows until the next step fits the budget, then admit rows that wait for cache."""
        rows = np.flatnonzero((self.state != _FREE) & self.has_cache)
        needed_N = self._needed(rows)
        evicted = rows[admission.evict(self.feed[rows], needed_N)]
        self.recorded[evicted] = np.maximum(self.recorded[evicted], self.feed[evicted])
        self._forget(evicted)
        self.has_cache[evicted] = False
        rows = np.setdiff1d(rows, evicted)
        waiting = np.flatnonzero((self.state == _WAITING) & ~self.has_cache)
        waiting = waiting[np.argsort(self.request[waiting])]  # first come, first served
        count = admission.admit(self._needed(rows), self.length[waiting] + 1)
        self.has_cache[waiting[:count]] = True

    def _needed(self, rows: np.ndarray) -> np.ndarray:
        """Return the cached tokens of rows after the next step; unread tokens will be read."""
        reads = self.state[rows] == _WAITING
        decodes = self.state[rows] == _ACTIVE
        return np.where(reads, self.length[rows], self.feed[rows] + decodes)

    def _begin(self, row: int, prompt: list[int]) -> None:
        """Start a context of the row's request; each context has its own random numbers."""
        request = int(self.request[row])
        self.state[row] = _WAITING
        self.feed[row], self.sampled[row], self.cached_prompt[row] = 0, 0, -1
        self.reported[row] = self.recorded[row] = 0
        self.length[row] = self.turn_start[row] = len(prompt)
        self.tokens[row, : len(prompt)] = prompt
        if self.params.temperature > 0 or self.forks:
            stream = random_stream(
                self.params.seed, self.keys[request], self.context_index[request]
            )
            self.uniforms[row] = stream.random(self.context)

    def _accept_results(self, rows: list[int]) -> None:
        for row in rows:
            self._accept(row, self.futures.pop(row).result())

    def _accept(self, row: int, reply) -> None:
        """Process the environment's reply to the turn that ended in `row`."""
        request, length = int(self.request[row]), int(self.length[row])
        if isinstance(reply, Future):
            self.state[row], self.futures[row] = _PARKED, reply
            return
        if reply is not None:
            is_new = isinstance(reply, NewContext)
            reply = list(map(int, reply.prompt if is_new else reply))
            check_ids(reply, self.decoder.vocab_size, f"the reply to request {request}")
            if is_new and 0 < len(reply) < self.context:
                self.context_index[request] += 1
                self.prompt_number[request] = self._number(reply)
                self._begin(row, reply)
                return
            if not is_new and length + len(reply) < self.context:
                self.tokens[row, length : length + len(reply)] = reply
                self.length[row] = self.turn_start[row] = length + len(reply)
                self.state[row] = _WAITING
                return
            last = self.respond(request, Completion(finish_reason="context"))
            if isinstance(last, Future):  # the end of the rollout is being verified
                self.state[row], self.futures[row] = _PARKED, last
                return
            if last is not None:
                raise ValueError(f"respond must return None: the context of {request} is full")
        # feed = 0: a free row that is computed along feeds its first token, without effect.
        self.state[row], self.request[row], self.feed[row] = _FREE, -1, 0
        self.has_cache[row] = self.admission is None

    # ---- the model

    def _prefill(self, waiting: list[int]) -> None:
        """Feed unread tokens of the waiting rows; equal prompts are fed once and copied."""
        fed, copies = [], []
        logits: dict[int, torch.Tensor] = {}
        for row in waiting:
            number = self.prompt_number[self.request[row]]
            cached = np.flatnonzero(self.cached_prompt == number)
            if self.feed[row] == 0 and len(cached):
                copies.append((int(cached[0]), row))
            else:
                fed.append(row)
            self.cached_prompt[row] = number
        width, batches = self.length - self.feed, [[]]
        for row in sorted(fed, key=width.__getitem__):
            if batches[-1] and width[row] * (len(batches[-1]) + 1) > _PREFILL_TOKENS:
                batches.append([])
            batches[-1].append(row)
        for batch in filter(None, batches):
            starts = self.feed[batch].tolist()
            chunks = [self.tokens[r, s : self.length[r]] for r, s in zip(batch, starts)]
            logits.update(zip(batch, self.decoder.prefill(batch, starts, chunks)))
            self._note_prefill(batch, starts)
        for row in fed:
            if self.feed[row] == 0:
                self.prompt_logits[row] = logits[row].cpu().numpy()
        for source, row in copies:
            self.decoder.copy_row(source, row, int(self.length[row]))
            self.routes[row] = self.routes[source]
            self.prompt_logits[row] = self.prompt_logits[source]
            logits[row] = torch.from_numpy(self.prompt_logits[row]).to(self.decoder.device)
        if waiting:
            self._sample(np.array(waiting), torch.stack([logits[row] for row in waiting]))

    def _decode(self) -> None:
        """Sample one token for every active row; idle rows in between are computed along."""
        n, device = self._compact(), self.decoder.device
        feed = self.feed[:n]
        ids = torch.from_numpy(self.tokens[np.arange(n), feed]).to(device)
        logits = self.decoder.decode(ids, torch.from_numpy(feed).to(device))
        active = np.flatnonzero(self.state[:n] == _ACTIVE)
        if self.decoder.routes:
            experts_NLK = torch.stack(self.decoder.expert_ids, dim=1).cpu().numpy()
            self.routes[active, feed[active]] = experts_NLK[active]
        if len(active) < n:
            logits = logits[torch.from_numpy(active).to(device)]
        self._sample(active, logits)

    def _note_prefill(self, batch: list[int], starts: list[int]) -> None:
        """Record the routes of the tokens just fed into the rows of `batch`."""
        if not self.decoder.routes:
            return
        *whole, last_MK = (experts_NK.cpu().numpy() for experts_NK in self.decoder.expert_ids)
        at = 0
        for i, (row, start) in enumerate(zip(batch, starts)):
            end, known = int(self.length[row]), int(self.recorded[row])
            new = max(start, known)  # routes of a token stay those of its first reading
            for layer, experts_TK in enumerate(whole):
                self.routes[row, new:end, layer] = experts_TK[at + new - start : at + end - start]
            self.routes[row, new : end - 1, -1] = NO_RECORD
            self.routes[row, end - 1, -1] = last_MK[i]
            at += end - start

    def _compact(self) -> int:
        """Return the number of rows to compute, after moving active rows into gaps."""
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
        uniforms_N = self.uniforms[rows, self.sampled[rows]]
        sampling = self.params.temperature, self.params.top_p
        logits_copy_NV = logits_NV.clone() if self.forks else logits_NV  # drawing overwrites it
        drawn = self.decoder.draw(logits_NV, uniforms_N, *sampling)
        if self.forks:
            temperature = self.params.temperature
            drawn = redraw_forks(drawn, logits_copy_NV, uniforms_N, temperature, self.forks)
        at, arrays = self.length[rows], (self.tokens, self.logprobs, self.entropies)
        for array, values in zip(arrays, drawn):
            array[rows, at] = values
        self.versions[rows, at] = self.engine.version
        self.sampled[rows] += 1
        self.feed[rows], self.length[rows], self.state[rows] = at, at + 1, _ACTIVE
        if self.admission:
            self.admission.record(int(self.feed.sum()))
        stop = np.isin(drawn[0], self.stop_ids)
        for i, row in enumerate(rows.tolist() if self.params.stop_sequences else ()):
            turn = self.tokens[row, self.turn_start[row] : self.length[row]].tolist()
            stop[i] |= any(turn[-len(s) :] == list(s) for s in self.params.stop_sequences)
        full = at + 1 >= self.context
        long = at + 1 - self.turn_start[rows] >= self.params.max_tokens
        for i in np.flatnonzero(stop | full | long).tolist():
            row, reason = int(rows[i]), "stop" if stop[i] else "length" if long[i] else "context"
            turn = slice(int(self.turn_start[row]), int(self.length[row]))
            ids, logprobs, entropies = (array[row, turn].tolist() for array in arrays)
            completion = Completion(ids, logprobs, entropies, reason)
            if self.has_new_weights:
                completion.versions = self.versions[row, turn].tolist()
            if self.decoder.routes:
                read = int(self.length[row]) - 1  # the last token has not been read yet
                completion.routed_experts = self.routes[row, int(self.reported[row]) : read].copy()
                self.reported[row] = read
            self._accept(row, self.respond(int(self.request[row]), completion))


def _no_routes(decoder: Decoder, context: int) -> np.ndarray:
    """Allocate the routes of all rows [rows, context, L, k]; context 0 without `routes`."""
    config = decoder.config
    if not decoder.routes:
        return np.zeros((decoder.rows, 0), np.uint16)
    shape = (decoder.rows, context, config.num_hidden_layers, config.num_experts_per_tok)
    return np.full(shape, NO_RECORD, np.uint16)


def create_decoder(
    model,
    rows: int,
    max_context: int,
    routes: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Create the decoder for the kind and device of the model; arguments as for `Decoder`."""
    if not hasattr(model.config, "num_experts"):
        require(not routes, f"a {model.config.model_type} has no experts, so no routes to report")
        return DenseDecoder(model, rows, max_context, dtype)
    require(dtype == torch.float32, f"dtype={dtype}: the tiny policy's engine is float32")
    if model.lm_head.weight.device.type != "cpu":
        return Decoder(model, rows, max_context, routes)
    # Lazy import: numba takes a third of a second, and most programs do not sample.
    from drlib.models.compiled_decoder import CompiledDecoder

    return CompiledDecoder(model, rows, max_context, routes)
