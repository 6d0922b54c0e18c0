"""vLLM as an engine: a model of any size, in this process, taught new weights while it serves.

`VllmEngine` drives vLLM's own scheduler a step at a time: many conversations run together, a tool's
answer is appended as ids, and the prefix cache reads only what is new. (`policy.vllm_server` speaks
ids with a server that vLLM runs elsewhere.)

**Weights are never trusted.** vLLM 0.31 on a CPU reports success for a reload that leaves experts,
and a head that is tied to the embedding, as they were packed before (0.1 and 1.9 nats off). So
`WeightSync` packs them again, and every update ends with `require_parity`: the engine's
log-probabilities of a few prompts against the trainer's own forward pass, or an error.

On a CPU prompts are read whole: vLLM would read long ones in pieces, and there it cannot take the
random number back that a piece has drawn. Its attention knows no head of fewer than 32 coordinates.

Routes of experts (`routes=True`) are vLLM's own record: of the pass that read a token first, kept
beside the prefix cache. It needs a GPU; on a CPU vLLM 0.31 has no runner that records.

Left out: entropies (a server sends the likeliest few tokens of a distribution: they are NaN),
weights over NCCL (TRL has that), routes from a server.
"""

import math
import os
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from drlib.models.conversations import Conversation, TurnwiseEngine, ends, infer_finish_reason
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_model_config, save_policy
from drlib.models.router_bias import get_router_biases
from drlib.validation import require

SMALLEST_HEAD = 32  # coordinates, of vLLM's attention on a CPU
READ_AT_ONCE = 8192  # tokens of prompts, on a CPU; no less than a context
MAX_GAP = 1e-4  # nats between the engine's and the trainer's log-probabilities, float32
PROBES = 4  # prompts that they are compared on
PROBE_TOKENS = 32
INSTALL_VLLM = (
    "on a GPU `pip install -c constraints.txt -e '.[vllm]'`, on a CPU `make test-vllm` once, and "
    "its environment `.venv-vllm`"
)
NO_ROUTES = (
    "routes=True: vLLM on a CPU records no experts, its runner that does wants a GPU: sample on a "
    "GPU, or with engine=hf (drlib.models.transformers_engine.TransformersEngine)"
)
NO_BIASES = (
    "vLLM runs no Qwen3-MoE whose routers have biases (drlib.models.router_bias): sample with "
    "engine=local or engine=hf"
)


class WeightsDiffer(ValueError):
    """An engine's weights are not those that it was given."""


class WeightSync:
    """What vLLM's worker can do besides (its `worker_extension_cls`)."""

    def reload_from(self, path: str) -> int:
        """Take the weights in the folder `path`; returns how many layers were packed again."""
        self.model_runner.reload_weights(weights_path=path)
        return self._pack()

    def _pack(self) -> int:
        """vLLM packs these for the CPU when it starts, and forgets to after a reload."""
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
    """What both ways to vLLM share: whether it runs the weights that it was given is looked at.

    max_gap: nats.
    """

    max_gap: float

    def require_parity(self, model: PreTrainedModel) -> float:
        """The largest gap in nats between the log-probabilities of this engine and of `model`, on
        random prompts. WeightsDiffer: it is above `max_gap`."""
        rng = np.random.default_rng(0)
        size = min(PROBE_TOKENS, self.max_context - 1)
        prompts = rng.integers(0, self.vocab_size, (PROBES, size)).tolist()
        ours_N = torch.tensor(self._score(prompts))
        gap = (ours_N - _scored_by(model, prompts)).abs().max().item()
        if not gap <= self.max_gap:
            raise WeightsDiffer(
                f"vLLM's log-probabilities are up to {gap:.2g} nats off the trainer's (at most "
                f"{self.max_gap:.2g}): it does not run these weights. Start a new engine from them"
            )
        return gap

    @abstractmethod
    def _score(self, prompts: Sequence[list[int]]) -> list[list[float]]:
        """Log-probabilities of all tokens but the first of each prompt."""


class VllmEngine(ParityCheckedEngine):
    """Turns of `model`, a transformers model or the folder of one, from vLLM in this process.

    Args:
        max_context: tokens; None for what the model's configuration says.
        max_gap: nats, that log-probabilities may be off after an update (`require_parity`). In
            half precision a good engine is off by more: measure before you raise it.
        routes: whether completions say the experts of their tokens (`Completion.routed_experts`).
        options: of `vllm.EngineArgs`, such as `tensor_parallel_size` or `dtype` (float32).

    Raises:
        ModuleNotFoundError: vLLM is not installed. ValueError: no model in that folder, routes on a
            CPU or of a model without experts, or a model whose routers have biases.
        WeightsDiffer: the model that was passed is not the one that vLLM runs.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        max_context: int | None = None,
        max_gap: float = MAX_GAP,
        routes: bool = False,
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
            "logprobs_mode": "processed_logprobs",  # of the distribution that was drawn from
            "disable_log_stats": True,
        }
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
        self._begun = 0
        if isinstance(model, PreTrainedModel):
            self.require_parity(model)

    def close(self) -> None:
        """End vLLM's processes and delete what was written for them."""
        self._engine.engine_core.shutdown()
        self._folder.cleanup()

    def update_weights(self, model: PreTrainedModel) -> None:
        """Take the weights of `model`, of the same shape. WeightsDiffer: vLLM did not. ValueError:
        conversations are under way, and what they have read belongs to the old weights."""
        emptied = self._engine.reset_prefix_cache()
        require(emptied, "vLLM still holds keys and values of conversations: end them, then update")
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
        name = str(self._begun)
        self._begun += 1
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
        return name

    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        from vllm import SamplingParams as VllmParams

        how = asked(conversation, params) | {"detokenize": False}
        if self.routes:
            how["routed_experts_prompt_start"] = conversation.routed
        name = self._add(conversation.ids, VllmParams(**how))
        self._running[name] = (conversation, params)

    def _step(self) -> list[tuple[Conversation, Completion]]:
        ended = []
        for output in self._engine.step():
            if output.request_id not in self._running:
                continue  # ended by a stop sequence, while its next token was on its way
            conversation, params = self._running[output.request_id]
            (said,) = output.outputs
            turn = list(said.token_ids)
            if params.stop_sequences:
                turn = truncate_at_stop(turn, params)
            if not output.finished and not ends(turn, params):
                continue
            routes_TLK = self._routes_of(output, conversation, len(turn)) if self.routes else None
            if not output.finished:
                self._engine.abort_request([output.request_id])
            del self._running[output.request_id]
            logprobs = [at[token].logprob for token, at in zip(turn, said.logprobs)]
            unknown = [math.nan] * len(turn)
            reason = infer_finish_reason(turn, params)
            done = Completion(turn, logprobs, unknown, reason, routed_experts=routes_TLK)
            ended.append((conversation, done))
        return ended

    def _routes_of(self, output, conversation: Conversation, size: int) -> np.ndarray:
        """Of a turn of `size` tokens, see `Completion`. Of vLLM's layers the sparse ones alone have
        routes. ValueError: vLLM did not report them all."""
        (said,) = output.outputs
        routes_TLK = said.routed_experts
        if not output.finished:  # vLLM shows them when it ends a turn, and we end this one
            processor = self._engine.output_processor
            (name,) = processor.external_req_ids[output.request_id]
            routes_TLK = np.concatenate(processor.request_states[name].routed_experts_chunks)
        got = 0 if routes_TLK is None else len(routes_TLK)
        need = len(conversation.ids) - conversation.routed + size - 1
        require(got >= need, f"vLLM reported the experts of {got} tokens, and has read {need}")
        return routes_TLK[:need, self._sparse].astype(np.uint16)

    def _abandon(self) -> None:
        self._engine.abort_request(list(self._running))
        self._running.clear()


def asked(conversation: Conversation, params: SamplingParams) -> dict:
    """The turn as vLLM is asked for it, in this process or by HTTP."""
    sown = [params.seed, conversation.key, conversation.begun, conversation.turns]
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_tokens": conversation.room,
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": True,  # a turn ends where the caller says
        "seed": int(np.random.SeedSequence(sown).generate_state(1)[0]),
        "logprobs": 0,  # of the token that was drawn
    }


@torch.no_grad()
def _scored_by(model: PreTrainedModel, prompts: Sequence[list[int]]) -> torch.Tensor:
    """Log-probabilities [N, T-1] of the tokens of equally long prompts, by `model` itself."""
    ids_NT = torch.tensor(prompts, device=model.device)
    was_training = model.training
    model.eval()
    logp_NTV = model(ids_NT).logits[:, :-1].float().log_softmax(-1)
    model.train(was_training)
    return logp_NTV.gather(2, ids_NT[:, 1:, None])[..., 0].cpu()


def truncate_at_stop(turn: list[int], params: SamplingParams) -> list[int]:
    """The turn up to the first place where it ends; a step may have brought more than a token."""
    for size in range(1, len(turn)):
        if ends(turn[:size], params):
            return turn[:size]
    return turn


def _sparse_layers(path: str | Path) -> list[int]:
    """The layers with experts of the model at `path`. ValueError: it has none."""
    config = load_model_config(path)
    every, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", [])
    layers = range(config.num_hidden_layers) if getattr(config, "num_experts", 0) else ()
    sparse = [i for i in layers if i not in dense and (i + 1) % every == 0]
    require(
        bool(sparse),
        f"a {config.model_type} has no experts, and so no routes to report: leave routes=True out "
        "(and rl_routing at none)",
    )
    return sparse


def _on_a_cpu(path: str | Path, max_context: int | None) -> dict:
    """What vLLM is told there (see the module). ValueError: it cannot run that model."""
    config = load_model_config(path)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    large = size >= SMALLEST_HEAD
    require(large, f"heads of {size} coordinates: vLLM on a CPU wants {SMALLEST_HEAD} (head_dim)")
    longest = max_context or config.max_position_embeddings
    return {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(READ_AT_ONCE, longest),
    }


def _vllm():
    """(EngineArgs, LLMEngine, the platform): imported here, for it takes five seconds and is not
    everywhere."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # it would report what runs here
    if not torch.cuda.is_available():  # torch's compiler fails in a folder with a space in its name
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    # vLLM's start asks every object that modules hold for its `__dict__`, and llvmlite's (the local
    # engine's compiler) takes that for the name of a C function: its table of them gets a dict.
    from llvmlite.binding import ffi

    ffi.lib._fntab["__dict__"] = {}
    try:
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"vLLM is not installed: {INSTALL_VLLM}") from error
    return EngineArgs, LLMEngine, current_platform
