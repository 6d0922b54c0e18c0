"""vLLM as an in-process engine whose weights can be updated.

`VllmEngine` advances vLLM's scheduler step by step: many conversations run together, a tool's reply
is appended as ids, and the prefix cache reads only new tokens. (`drlib.models.vllm_server` connects
to a separate server.)

**Every weight update is verified.** vLLM 0.31 on a CPU reports success for a reload that leaves
experts, and a head tied to the embedding, as they were packed before (0.1 and 1.9 nats off).
`WeightSync` packs them again, and every update ends with `require_parity`: the engine's
log-probabilities of a few prompts are compared with the trainer's own forward pass.

On a CPU prompts are read in one piece: vLLM's chunked prefill cannot undo the random number drawn
for a chunk there. Its CPU attention needs heads of at least 32 coordinates.

Routes (`routes=True`) are vLLM's own record of the first pass over a token, stored with the prefix
cache. This needs a GPU; vLLM 0.31 cannot record on a CPU. Entropies are NaN, because vLLM returns
only the top log-probabilities. With a `constraint`, log-probabilities are those of the constrained
distribution (`drlib.models.turn_constraint`).
"""

import math
import os
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from drlib.models.conversations import (
    Conversation,
    TurnwiseEngine,
    has_stopped,
    infer_finish_reason,
)
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_model_config, save_policy
from drlib.models.router_bias import get_router_biases
from drlib.models.turn_constraint import TurnConstraint
from drlib.validation import require

SMALLEST_HEAD = 32  # head_dim of vLLM's attention on a CPU
READ_AT_ONCE = 8192  # prompt tokens per step on a CPU; at least one context
MAX_GAP = 1e-4  # nats between engine and trainer, float32
PROBES = 4  # prompts of the comparison
PROBE_TOKENS = 32
INSTALL_VLLM = (
    "on a GPU run `pip install -c constraints.txt -e '.[vllm]'`; on a CPU run `make test-vllm` "
    "once and use its environment `.venv-vllm`"
)
NO_ROUTES = (
    "routes=True: vLLM on a CPU records no experts: sample on a GPU, or with engine.name=hf "
    "(drlib.models.transformers_engine.TransformersEngine)"
)
NO_BIASES = (
    "vLLM does not support router biases (drlib.models.router_bias): sample with "
    "engine.name=local or engine.name=hf"
)


class WeightsDiffer(ValueError):
    """The engine's weights differ from the trainer's."""


class WeightSync:
    """Methods added to vLLM's worker (its `worker_extension_cls`)."""

    model_runner: Any  # attributes of the worker
    device: Any

    def reload_from(self, path: str) -> int:
        """Load the weights in the folder `path`; return the number of repacked layers."""
        self.model_runner.reload_weights(weights_path=path)
        return self._pack()

    def _pack(self) -> int:
        """Repack layers for the CPU, which vLLM does at start but not after a reload."""
        if self.device.type != "cpu":
            return 0
        packed = 0
        for module in self.model_runner.model.modules():
            method = getattr(module, "quant_method", None)
            kernel = getattr(method, "moe_kernel", None)
            if kernel is not None and hasattr(module, "w13_weight"):
                kernel.fused_experts.process_weights_after_loading(module)
            elif type(module).__name__ == "ParallelLMHead":
                method.process_weights_after_loading(module)
            else:
                continue
            packed += 1
        return packed


class ParityCheckedEngine(TurnwiseEngine):
    """Base of both vLLM engines: verifies that the engine runs the given weights.

    max_gap: maximum difference of log-probabilities, nats.
    """

    max_gap: float

    def require_parity(self, model: PreTrainedModel) -> float:
        """Compare log-probabilities of random prompts with those of `model`.

        Returns:
            The largest difference in nats.

        Raises:
            WeightsDiffer: it exceeds `max_gap`.
        """
        rng = np.random.default_rng(0)
        size = min(PROBE_TOKENS, self.max_context - 1)
        prompts = rng.integers(0, self.vocab_size, (PROBES, size)).tolist()
        ours_N = torch.tensor(self._score(prompts))
        gap = (ours_N - _scored_by(model, prompts)).abs().max().item()
        if not gap <= self.max_gap:
            raise WeightsDiffer(
                f"vLLM and trainer differ in log-probabilities by up to {gap:.2g} nats (limit "
                f"{self.max_gap:.2g}): it does not run these weights. Start a new engine from them"
            )
        return gap

    @abstractmethod
    def _score(self, prompts: Sequence[list[int]]) -> list[list[float]]:
        """Return log-probabilities of all tokens but the first of each prompt."""


class VllmEngine(ParityCheckedEngine):
    """Turns of `model`, a transformers model or the folder of one, from in-process vLLM.

    Args:
        max_context: tokens; None for the model's maximum.
        max_gap: maximum difference of log-probabilities after an update, nats (`require_parity`).
            In half precision a correct engine differs by more: measure before you raise it.
        routes: report expert routes (`Completion.routed_experts`).
        constraint: of every turn, through vLLM's structured outputs; None for free text.
        options: of `vllm.EngineArgs`, such as `tensor_parallel_size` or `dtype` (default float32).

    Raises:
        ModuleNotFoundError: vLLM is not installed.
        ValueError: no model in that folder, routes on a CPU or of a model without experts, or a
            model with router biases.
        WeightsDiffer: vLLM does not run the model that was passed.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        max_context: int | None = None,
        max_gap: float = MAX_GAP,
        routes: bool = False,
        constraint: TurnConstraint | None = None,
        **options,
    ):
        arguments, engine, platform = _vllm()
        require(not (routes and platform.is_cpu()), NO_ROUTES)
        self._folder = tempfile.TemporaryDirectory(prefix="drlib-vllm-")
        self.max_gap = max_gap
        path = model
        if isinstance(model, PreTrainedModel):
            require(get_router_biases(model) is None, NO_BIASES)
            path = save_policy(model, None, Path(self._folder.name, "model"))
        plan = {
            "dtype": "float32",
            "max_model_len": max_context,
            "skip_tokenizer_init": True,
            "worker_extension_cls": f"{__name__}.WeightSync",
            "logprobs_mode": "processed_logprobs",  # of the sampling distribution
            "disable_log_stats": True,
        }
        self._grammar = constraint.grammar if constraint else ""
        if constraint:
            own = str(Path(self._folder.name, "tokenizer"))
            constraint.tokenizer.save_pretrained(own)
            load_model_config(path).save_pretrained(own)  # read by vLLM before the tokenizer
            plan["tokenizer"] = own
            plan["skip_tokenizer_init"] = False  # structured outputs read the tokens' text
            plan["structured_outputs_config"] = {"backend": "guidance"}
        if platform.is_cpu():
            plan |= _on_a_cpu(path, max_context)
        self._sparse = _sparse_layers(path) if routes else []
        if routes:
            plan["enable_return_routed_experts"] = True
        self._engine = engine.from_engine_args(arguments(model=str(path), **plan | options))
        config = self._engine.model_config
        self.max_context = config.max_model_len
        self.vocab_size = config.get_vocab_size()
        self.routes = routes
        self._running: dict[str, tuple[Conversation, SamplingParams]] = {}
        self._next_id = 0
        if isinstance(model, PreTrainedModel):
            self.require_parity(model)

    def close(self) -> None:
        """Stop vLLM's processes and delete temporary files."""
        self._engine.engine_core.shutdown()
        self._folder.cleanup()

    def update_weights(self, model: PreTrainedModel) -> None:
        """Load the weights of `model`, of the same shape.

        Raises:
            WeightsDiffer: vLLM did not load them.
            ValueError: conversations are running; their caches belong to the old weights.
        """
        emptied = self._engine.reset_prefix_cache()
        require(emptied, "vLLM has running conversations: end them, then update the weights")
        path = save_policy(model, None, Path(self._folder.name, "update"))
        self._engine.collective_rpc("reload_from", args=(str(path),))
        self.require_parity(model)
        self.version += 1

    def _score(self, prompts: Sequence[list[int]]) -> list[list[float]]:
        from vllm import SamplingParams as VllmParams

        params = VllmParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        names = [self._add(prompt, params) for prompt in prompts]
        found = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    found[output.request_id] = output.prompt_logprobs
        return [
            [choice[token].logprob for token, choice in zip(prompt[1:], found[name][1:])]
            for name, prompt in zip(names, prompts)
        ]

    def _add(self, ids: list[int], params) -> str:
        name = str(self._next_id)
        self._next_id += 1
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
        return name

    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        from vllm import SamplingParams as VllmParams

        options = request_options(conversation, params) | {"detokenize": False}
        if self._grammar:
            from vllm.sampling_params import StructuredOutputsParams

            options["structured_outputs"] = StructuredOutputsParams(grammar=self._grammar)
        if self.routes:
            options["routed_experts_prompt_start"] = conversation.reported
        name = self._add(conversation.ids, VllmParams(**options))
        self._running[name] = (conversation, params)

    def _step(self) -> list[tuple[Conversation, Completion]]:
        ended = []
        for output in self._engine.step():
            if output.request_id not in self._running:
                continue  # aborted at a stop sequence
            conversation, params = self._running[output.request_id]
            (sampled,) = output.outputs
            turn = list(sampled.token_ids)
            if params.stop_sequences:
                turn = truncate_at_stop(turn, params)
            if not output.finished and not has_stopped(turn, params):
                continue
            routes_TLK = (
                self._extract_routes(output, conversation, len(turn)) if self.routes else None
            )
            if not output.finished:
                self._engine.abort_request([output.request_id])
            del self._running[output.request_id]
            logprobs = [at[token].logprob for token, at in zip(turn, sampled.logprobs)]
            unknown = [math.nan] * len(turn)
            reason = infer_finish_reason(turn, params)
            completion = Completion(turn, logprobs, unknown, reason, routed_experts=routes_TLK)
            ended.append((conversation, completion))
        return ended

    def _extract_routes(self, output, conversation: Conversation, size: int) -> np.ndarray:
        """Return the routes of a turn of `size` tokens, of sparse layers only; see `Completion`.

        Raises:
            ValueError: vLLM reported fewer tokens.
        """
        (sampled,) = output.outputs
        routes_TLK = sampled.routed_experts
        if not output.finished:  # vLLM reports routes of turns that it ends; this one is aborted
            processor = self._engine.output_processor
            (name,) = processor.external_req_ids[output.request_id]
            routes_TLK = np.concatenate(processor.request_states[name].routed_experts_chunks)
        found = 0 if routes_TLK is None else len(routes_TLK)
        need = len(conversation.ids) - conversation.reported + size - 1
        require(found >= need, f"vLLM reported the experts of {found} tokens instead of {need}")
        return routes_TLK[:need, self._sparse].astype(np.uint16)

    def _abandon(self) -> None:
        self._engine.abort_request(list(self._running))
        self._running.clear()


def request_options(conversation: Conversation, params: SamplingParams) -> dict:
    """Return the sampling options of a turn for vLLM, in process or by HTTP."""
    entropy = [params.seed, conversation.key, conversation.context_index, conversation.turns]
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_tokens": conversation.turn_limit,
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": True,  # only stop_token_ids end a turn
        "seed": int(np.random.SeedSequence(entropy).generate_state(1)[0]),
        "logprobs": 0,  # of the sampled token only
    }


@torch.no_grad()
def _scored_by(model: PreTrainedModel, prompts: Sequence[list[int]]) -> torch.Tensor:
    """Return log-probabilities [N, T-1] of the tokens of equally long prompts under `model`."""
    ids_NT = torch.tensor(prompts, device=model.device)
    was_training = model.training
    model.eval()
    logp_NTV = model(ids_NT).logits[:, :-1].float().log_softmax(-1)
    model.train(was_training)
    return logp_NTV.gather(2, ids_NT[:, 1:, None])[..., 0].cpu()


def truncate_at_stop(turn: list[int], params: SamplingParams) -> list[int]:
    """Cut the turn after its first stop; one step may return more than one token."""
    for size in range(1, len(turn)):
        if has_stopped(turn[:size], params):
            return turn[:size]
    return turn


def _sparse_layers(path: str | Path) -> list[int]:
    """Return the layers with experts of the model at `path`. ValueError: none."""
    config = load_model_config(path)
    every, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", [])
    layers = range(config.num_hidden_layers) if getattr(config, "num_experts", 0) else ()
    sparse = [i for i in layers if i not in dense and (i + 1) % every == 0]
    require(
        bool(sparse),
        f"a {config.model_type} has no experts, so no routes to report: leave routes=True "
        "out (and set rl.off_policy.routing_replay=none)",
    )
    return sparse


def _on_a_cpu(path: str | Path, max_context: int | None) -> dict:
    """Return the CPU options of vLLM (see the module). ValueError: unsupported model."""
    config = load_model_config(path)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    large = size >= SMALLEST_HEAD
    require(large, f"heads of {size} coordinates: vLLM on a CPU needs {SMALLEST_HEAD} (head_dim)")
    longest = max_context or config.max_position_embeddings
    return {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(READ_AT_ONCE, longest),
    }


def _vllm():
    """Import vLLM and return (EngineArgs, LLMEngine, platform).

    Imported lazily: it takes five seconds and is optional.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # no telemetry
    if not torch.cuda.is_available():  # torch.compile fails in folders with a space in the name
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    # vLLM reads `__dict__` of all module attributes at start. llvmlite's ffi object (used by the
    # local engine) would look that up as a C function, so its function table gets an entry.
    from llvmlite.binding import ffi

    ffi.lib._fntab["__dict__"] = {}
    try:
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"vLLM is not installed: {INSTALL_VLLM}") from error
    return EngineArgs, LLMEngine, current_platform
