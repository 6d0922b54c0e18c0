r"""A vLLM server as an engine of token ids: the sampled ids are the recorded ids.

    VLLM_NO_USAGE_STATS=1 python -m vllm.entrypoints.openai.api_server --model FOLDER \
        --host 127.0.0.1 --port 8000 --generation-config vllm \
        --logprobs-mode processed_logprobs \
        --worker-extension-cls drlib.models.vllm_engine.WeightSync

On a CPU add `--dtype float32 --enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens
8192` (see `drlib.models.vllm_engine`), and TORCH_COMPILE_DISABLE=1 if a folder name has a space.

A server's chat interface reads messages and re-tokenises its own turns (`drlib.models.api_engine`
uses it). Here ids are sent to vLLM's `/completions` and ids are returned, so the record can be
trained on.

Weights are updated through a folder that the server can read. The server must run with
`VLLM_SERVER_DEV_MODE=1`, which gives every client of its port that right: use loopback only.
`require_parity` then verifies the update.
"""

import math
import random
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.models.api_engine import retry_request
from drlib.models.conversations import (
    Conversation,
    check_ids,
    has_stopped,
    infer_finish_reason,
)
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_model_config, save_policy
from drlib.models.replica_routing import ROUTERS, Router
from drlib.models.turn_constraint import TurnConstraint
from drlib.models.vllm_engine import (
    MAX_GAP,
    ParityCheckedEngine,
    WeightsDiffer,
    request_options,
    truncate_at_stop,
)
from drlib.validation import require

POLL_S = 0.05  # maximum wait for replies, so that finished tools are noticed
RELOAD_S = 600.0
REMEDY = (
    "to update weights start the server with VLLM_SERVER_DEV_MODE=1 and "
    "--worker-extension-cls drlib.models.vllm_engine.WeightSync"
)


class VllmServer(ParityCheckedEngine):
    """Turns of the model behind `endpoint`, a vLLM server, or behind several replicas of it.

    Args:
        endpoint: address of the server; a list for replicas, which all get the weights.
        folder: folder of the server's model; its configuration is read.
        router: chooses the replica of a request: "hash", "sticky", "cache_aware" or "random" (see
            `drlib.models.replica_routing`), by the key of the rollout.
        max_context: tokens; None for the configuration's. A server with less reports an error.
        concurrency: requests in flight, over all replicas.
        attempts, pause_s: as for `ApiEngine`.
        max_gap: as for `VllmEngine`.
        constraint: of every turn, through the server's structured outputs; None for free text.

    Raises:
        ValueError: no model in that folder, an unknown router, or a repeated address.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint | Sequence[ChatEndpoint],
        folder: str | Path,
        *,
        router: str = "hash",
        max_context: int | None = None,
        concurrency: int = 64,
        attempts: int = 5,
        pause_s: float = 0.5,
        max_gap: float = MAX_GAP,
        constraint: TurnConstraint | None = None,
    ):
        require(min(concurrency, attempts) >= 1, "concurrency and attempts must be at least 1")
        self.replicas = [endpoint] if isinstance(endpoint, ChatEndpoint) else list(endpoint)
        self.router = router
        self._router = self._create_router()
        config = load_model_config(folder)
        self.vocab_size = config.vocab_size
        self.max_context = max_context or config.max_position_embeddings
        self.concurrency = concurrency
        self.attempts = attempts
        self.pause_s = pause_s
        self.max_gap = max_gap
        self.constraint = constraint
        self._waiting: list[tuple[Conversation, SamplingParams]] = []
        self._in_flight: dict[Future, tuple[Conversation, int]] = {}  # with its replica

    def _create_router(self) -> Router:
        return ROUTERS[self.router]([replica.url for replica in self.replicas])

    def update_weights(self, model: PreTrainedModel) -> None:
        """Load the weights of `model`, of the same shape, into all replicas.

        Raises:
            EndpointError: a server does not accept updates.
            WeightsDiffer: it did not load them.
        """
        with tempfile.TemporaryDirectory(prefix="drlib-vllm-") as folder:
            path = save_policy(model, None, Path(folder, "update"))
            for replica in self.replicas:
                body = {"method": "reload_from", "args": [str(path)]}
                _post(replica, "/collective_rpc", body)
                _post(replica, "/reset_prefix_cache", {})
            self.require_parity(model)
        self._router = self._create_router()  # the caches are empty
        self.version += 1

    def require_parity(self, model: PreTrainedModel) -> float:
        """Compare every replica with `model`; see `ParityCheckedEngine.require_parity`."""
        gaps = []
        for replica in self.replicas:
            self._scored = replica
            try:
                gaps.append(super().require_parity(model))
            except WeightsDiffer as fault:
                raise WeightsDiffer(f"{replica.url}: {fault}") from None
        return max(gaps)

    def _score(self, prompts: Sequence[list[int]]) -> list[list[float]]:
        scores = []
        for prompt in prompts:
            options = {"max_tokens": 1, "extra_body": {"prompt_logprobs": 0}}
            reply = self._scored.complete_ids(prompt, **options)
            places = reply["choices"][0]["prompt_logprobs"][1:]
            scores.append([at[str(token)]["logprob"] for token, at in zip(prompt[1:], places)])
        return scores

    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        self._waiting.append((conversation, params))

    def _step(self) -> list[tuple[Conversation, Completion]]:
        free = self.concurrency - len(self._in_flight)
        batch, self._waiting = self._waiting[:free], self._waiting[free:]
        loads = [0] * len(self.replicas)
        for _, replica in self._in_flight.values():
            loads[replica] += 1
        for conversation, params in batch:
            replica = self._router.choose(conversation.key, conversation.ids, loads)
            loads[replica] += 1
            turn = self._send(conversation, params, self.replicas[replica])
            self._in_flight[turn] = conversation, replica
        done, _ = wait(self._in_flight, timeout=POLL_S, return_when=FIRST_COMPLETED)
        return [(self._in_flight.pop(future)[0], future.result()) for future in done]

    def _abandon(self) -> None:
        """Ignore the outstanding replies."""
        self._waiting.clear()
        self._in_flight.clear()

    def _send(
        self, conversation: Conversation, params: SamplingParams, replica: ChatEndpoint
    ) -> Future:
        """Request a turn in a daemon thread, so a hanging request cannot block exit."""
        turn: Future = Future()
        prompt = list(conversation.ids)
        options = _options(conversation, params)
        rng = random.Random(options["seed"])
        if self.constraint:
            options["extra_body"]["structured_outputs"] = {"grammar": self.constraint.grammar}

        def ask() -> Completion:
            reply = replica.complete_ids(prompt, **options)
            completion = _completion(reply, params)
            check_ids(completion.token_ids, self.vocab_size, "the server's turn")
            if self.constraint and completion.finish_reason == "stop":
                self.constraint.require_applied(completion.token_ids)
            return completion

        def work() -> None:
            try:
                turn.set_result(retry_request(ask, self.attempts, self.pause_s, rng))
            except BaseException as error:  # noqa: BLE001 - raised by future.result()
                turn.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return turn


def _post(replica: ChatEndpoint, path: str, body: dict) -> None:
    try:
        replica.post(path, body, RELOAD_S)
    except EndpointError as error:
        raise EndpointError(f"{error}; {REMEDY}", error.status) from None


def _options(conversation: Conversation, params: SamplingParams) -> dict[str, Any]:
    """Return the request options of a turn."""
    plan = request_options(conversation, params)
    own = {name: plan.pop(name) for name in ("stop_token_ids", "ignore_eos")}
    return {**plan, "extra_body": {**own, "return_token_ids": True, "skip_special_tokens": False}}


def _completion(reply: Any, params: SamplingParams) -> Completion:
    """Convert a reply. LookupError, TypeError, ValueError: not a completion of ids."""
    choice = reply["choices"][0]
    turn, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if not turn or len(turn) != len(logprobs) or not all(isinstance(t, int) for t in turn):
        raise ValueError(f"{len(turn)} token ids and {len(logprobs)} log-probabilities")
    turn = truncate_at_stop(turn, params)
    if choice.get("finish_reason") != "length" and not has_stopped(turn, params):
        raise ValueError(f"finish_reason {choice.get('finish_reason')!r} without a stop")
    logprobs = [float(logp) for logp in logprobs[: len(turn)]]
    return Completion(turn, logprobs, [math.nan] * len(turn), infer_finish_reason(turn, params))
