"""A vLLM server as an engine of token ids: what is sampled there is what the record has.

    VLLM_NO_USAGE_STATS=1 python -m vllm.entrypoints.openai.api_server --model FOLDER \\
        --host 127.0.0.1 --port 8000 --generation-config vllm \\
        --logprobs-mode processed_logprobs --worker-extension-cls drlib.models.vllm_engine.WeightSync

On a CPU also `--dtype float32 --enforce-eager --no-enable-chunked-prefill --max-num-batched-tokens
8192` (policy.vllm says why), and TORCH_COMPILE_DISABLE=1 where a folder's name has a space.

The chat interface of a server reads messages, and tokenises anew in every turn what it had sampled
itself (`policy.api` speaks with it, and with any other server). Here prompts go as ids to vLLM's
`/completions`, and ids come back: nothing is re-tokenised, so such a record can be trained on.

New weights go through a folder that the server can read, and only to one that was started with
`VLLM_SERVER_DEV_MODE=1` (which lets anybody who reaches its port do the same: loopback only); then
`require_parity` looks whether they are there.

Left out: several servers (put a proxy before them).
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
from drlib.models.conversations import Conversation, ends, infer_finish_reason
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_model_config, save_policy
from drlib.models.vllm_engine import MAX_GAP, ParityCheckedEngine, asked, truncate_at_stop
from drlib.validation import require

POLL_S = 0.05  # between looks at the tools that run beside
RELOAD_S = 600.0
REMEDY = (
    "to take weights the server must run with VLLM_SERVER_DEV_MODE=1 and "
    "--worker-extension-cls drlib.models.vllm_engine.WeightSync"
)


class VllmServer(ParityCheckedEngine):
    """Turns of the model behind `endpoint`, a vLLM server.

    Args:
        folder: of the server's model: its configuration is read.
        max_context: tokens; None for what that says. A server may take fewer, and says so.
        concurrency: requests in flight.
        attempts, pause_s: as of `ApiEngine`.
        max_gap: as of `VllmEngine`.

    Raises:
        ValueError: no model in that folder.
    """

    def __init__(
        self,
        endpoint: ChatEndpoint,
        folder: str | Path,
        *,
        max_context: int | None = None,
        concurrency: int = 64,
        attempts: int = 5,
        pause_s: float = 0.5,
        max_gap: float = MAX_GAP,
    ):
        require(min(concurrency, attempts) >= 1, "concurrency and attempts start at 1")
        self.endpoint = endpoint
        config = load_model_config(folder)
        self.vocab_size = config.vocab_size
        self.max_context = max_context or config.max_position_embeddings
        self.concurrency = concurrency
        self.attempts = attempts
        self.pause_s = pause_s
        self.max_gap = max_gap
        self._waiting: list[tuple[Conversation, SamplingParams]] = []
        self._flying: dict[Future, Conversation] = {}

    def update_weights(self, model: PreTrainedModel) -> None:
        """Have the server take the weights of `model`, of the same shape.

        EndpointError: it does not let itself be told. WeightsDiffer: it did not take them.
        """
        with tempfile.TemporaryDirectory(prefix="drlib-vllm-") as folder:
            path = save_policy(model, None, Path(folder, "update"))
            self._tell("/collective_rpc", {"method": "reload_from", "args": [str(path)]})
            self._tell("/reset_prefix_cache", {})
            self.require_parity(model)
        self.version += 1

    def _tell(self, path: str, body: dict) -> None:
        try:
            self.endpoint.post(path, body, RELOAD_S)
        except EndpointError as error:
            raise EndpointError(f"{error}; {REMEDY}", error.status) from None

    def _score(self, prompts: Sequence[list[int]]) -> list[list[float]]:
        found = []
        for prompt in prompts:
            options = {"max_tokens": 1, "extra_body": {"prompt_logprobs": 0}}
            reply = self.endpoint.complete_ids(prompt, **options)
            places = reply["choices"][0]["prompt_logprobs"][1:]
            found.append([at[str(token)]["logprob"] for token, at in zip(prompt[1:], places)])
        return found

    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        self._waiting.append((conversation, params))

    def _step(self) -> list[tuple[Conversation, Completion]]:
        room = self.concurrency - len(self._flying)
        some, self._waiting = self._waiting[:room], self._waiting[room:]
        for conversation, params in some:
            self._flying[self._send(conversation, params)] = conversation
        done, _ = wait(self._flying, timeout=POLL_S, return_when=FIRST_COMPLETED)
        return [(self._flying.pop(future), future.result()) for future in done]

    def _abandon(self) -> None:
        """What still comes for these is not read."""
        self._waiting.clear()
        self._flying.clear()

    def _send(self, conversation: Conversation, params: SamplingParams) -> Future:
        """The turn, in a thread of its own: one that hangs must not keep a program from ending."""
        turn: Future = Future()
        prompt = list(conversation.ids)
        options = _options(conversation, params)
        rng = random.Random(options["seed"])

        def ask() -> Completion:
            return _completion(self.endpoint.complete_ids(prompt, **options), params)

        def work() -> None:
            try:
                turn.set_result(retry_request(ask, self.attempts, self.pause_s, rng))
            except BaseException as error:  # noqa: BLE001 - raised where the turn is waited for
                turn.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return turn


def _options(conversation: Conversation, params: SamplingParams) -> dict[str, Any]:
    """The turn as the server is asked for it."""
    plan = asked(conversation, params)
    own = {name: plan.pop(name) for name in ("stop_token_ids", "ignore_eos")}
    return {**plan, "extra_body": {**own, "return_token_ids": True, "skip_special_tokens": False}}


def _completion(reply: Any, params: SamplingParams) -> Completion:
    """A reply as ours. LookupError, TypeError, ValueError: it is no completion of ids."""
    choice = reply["choices"][0]
    turn, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if not turn or len(turn) != len(logprobs) or not all(isinstance(t, int) for t in turn):
        raise ValueError(f"{len(turn)} token ids and {len(logprobs)} log-probabilities")
    turn = truncate_at_stop(turn, params)
    if choice.get("finish_reason") != "length" and not ends(turn, params):
        raise ValueError(f"finish_reason {choice.get('finish_reason')!r}, and no stop")
    logprobs = [float(logp) for logp in logprobs[: len(turn)]]
    return Completion(turn, logprobs, [math.nan] * len(turn), infer_finish_reason(turn, params))
