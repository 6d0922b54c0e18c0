"""Engine for any causal language model of transformers, without a server.

The model runs through `generate` with its own cache; only the draw is replaced. A logits processor
samples each token as the local engine does (`sampling.sample`, with the request's own random
numbers). A sample therefore has a log-probability and entropy, does not depend on the batch, and
equals the local engine's for the same model.

It is slower than the other engines: a batch ends with its longest turn, and every turn reads its
whole context. Routes (`routes=True`) are those of the first pass over a token. For several devices
or quantisation pass a model that was loaded that way. With a `constraint`, log-probabilities and
entropies are those of the constrained distribution (`drlib.models.turn_constraint`).
"""

from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, StoppingCriteria

from drlib.models.conversations import (
    Conversation,
    TurnwiseEngine,
    has_stopped,
    infer_finish_reason,
    random_stream,
)
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_model
from drlib.models.routing_replay import record_routes
from drlib.models.sampling import sample
from drlib.models.turn_constraint import TokenMasks, TurnConstraint
from drlib.validation import require

# logit of a token that is not allowed; finite, because 0 * infinity in the entropy would be NaN
MASKED = -1e30


class TransformersEngine(TurnwiseEngine):
    """Turns of `model`, a transformers model or the folder of one.

    A model that is passed is not copied: training it changes the engine. `update_weights` copies
    the weights of another model.

    Args:
        batch: conversations that generate together.
        max_context: tokens; None for the model's maximum.
        routes: report expert routes (`Completion.routed_experts`).
        constraint: of every turn; None for free text.

    Raises:
        ValueError: no causal language model in that folder, a context longer than the model's,
            routes of a model without softmax top-k routers, or a constraint that llguidance
            rejects.
        ModuleNotFoundError: a constraint without llguidance.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        batch: int = 16,
        max_context: int | None = None,
        routes: bool = False,
        constraint: TurnConstraint | None = None,
    ):
        require(batch >= 1, f"batch={batch} must be at least 1")
        self.model = load_model(model) if isinstance(model, str | Path) else model
        config = self.model.config.get_text_config()
        longest = config.max_position_embeddings
        fits = max_context is None or 2 <= max_context <= longest
        require(fits, f"max_context={max_context} must be in [2, {longest}], the model's own")
        self.max_context = max_context or longest
        self.vocab_size = config.vocab_size
        self.batch = batch
        self.routes = routes
        if routes:
            _require_routers(self.model)
        self._masks = constraint.create_masks(self.vocab_size) if constraint else None
        self._waiting: list[tuple[Conversation, SamplingParams]] = []

    def update_weights(self, model: PreTrainedModel) -> None:
        """Copy the weights of `model`, of the same shape."""
        if model is not self.model:
            self.model.load_state_dict(model.state_dict())
        self.version += 1

    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        self._waiting.append((conversation, params))

    def _abandon(self) -> None:
        self._waiting.clear()

    def _step(self) -> list[tuple[Conversation, Completion]]:
        """Generate one turn each for the next `batch` conversations."""
        batch, self._waiting = self._waiting[: self.batch], self._waiting[self.batch :]
        conversations = [conversation for conversation, _ in batch]
        draw = _Draw(conversations, batch[0][1], self._masks)
        prompts = [torch.tensor(conversation.ids) for conversation in conversations]
        ids_NT, seen_NT = _left_padded(prompts, self.model.device)
        plan = GenerationConfig(
            max_new_tokens=max(conversation.turn_limit for conversation in conversations),
            do_sample=False,
            pad_token_id=0,
        )
        was_training = self.model.training
        self.model.eval()
        recorder = record_routes(self.model) if self.routes else nullcontext()
        try:
            with recorder, torch.inference_mode(), _no_defaults(self.model):
                self.model.generate(
                    ids_NT,
                    attention_mask=seen_NT,
                    generation_config=plan,
                    logits_processor=[draw],
                    stopping_criteria=[draw.over],
                )
        finally:
            self.model.train(was_training)
        ended = list(zip(conversations, draw.completions()))
        if self.routes:
            _report(recorder.passes, ids_NT.shape[1], ended)
        return ended


class _Draw(LogitsProcessor):
    """Samples each conversation's next token, records it, and forces `generate` to emit it."""

    def __init__(
        self,
        conversations: list[Conversation],
        params: SamplingParams,
        masks: TokenMasks | None = None,
    ):
        self.params = params
        self.masks = [masks.copy() for _ in conversations] if masks else None
        self.turn_limits = [conversation.turn_limit for conversation in conversations]
        self.turns: list[list[int]] = [[] for _ in conversations]
        self.logprobs: list[list[float]] = [[] for _ in conversations]
        self.entropies: list[list[float]] = [[] for _ in conversations]
        self.open = [True] * len(conversations)
        self.over = _Over(self)
        longest = max(self.turn_limits)
        self.uniforms = np.stack(
            [_uniforms(conversation, params.seed, longest) for conversation in conversations]
        )

    def __call__(self, input_ids, scores):
        step = max(map(len, self.turns))
        uniforms_N = torch.from_numpy(self.uniforms[:, step]).to(scores.device)
        sampling = self.params.temperature, self.params.top_p
        logits_NV = scores.float()
        if self.masks:
            logits_NV = self._mask(logits_NV)
        drawn_N, logp_N, entropy_N = sample(logits_NV, uniforms_N, *sampling)
        columns = drawn_N.tolist(), logp_N.tolist(), entropy_N.tolist()
        for i, (token, logp, entropy) in enumerate(zip(*columns)):
            if self.open[i]:
                self.turns[i].append(token)
                self.logprobs[i].append(logp)
                self.entropies[i].append(entropy)
                full = len(self.turns[i]) >= self.turn_limits[i]
                self.open[i] = not full and not has_stopped(self.turns[i], self.params)
                if self.masks and self.open[i]:
                    self.masks[i].accept(token)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn_N[:, None], 0.0)

    def _mask(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Return the logits with MASKED for the tokens that the grammar excludes."""
        allowed_NV = np.ones(logits_NV.shape, bool)
        for i, masks in enumerate(self.masks):
            if self.open[i]:
                allowed_NV[i] = masks.allowed()
        return logits_NV.masked_fill(~torch.from_numpy(allowed_NV).to(logits_NV.device), MASKED)

    def completions(self) -> list[Completion]:
        reasons = [infer_finish_reason(turn, self.params) for turn in self.turns]
        return [Completion(*of) for of in zip(self.turns, self.logprobs, self.entropies, reasons)]


class _Over(StoppingCriteria):
    """Stopping criterion: the rows of a `_Draw` that have ended."""

    def __init__(self, draw: _Draw):
        self.draw = draw

    def __call__(self, input_ids, scores, **_):
        return ~torch.tensor(self.draw.open, device=input_ids.device)


def _require_routers(model: PreTrainedModel) -> None:
    try:
        record_routes(model).close()
    except ValueError as error:
        raise ValueError(
            f"{type(model).__name__} has no softmax top-k routers, so no routes to report: "
            "leave routes=True out (and set rl.off_policy.routing_replay=none)"
        ) from error


def _report(
    passes: Sequence[torch.Tensor], width: int, ended: list[tuple[Conversation, Completion]]
) -> None:
    """Set `routed_experts` of each completion.

    passes: routes int16 [L, N x T, k] of each forward pass of `generate`: the first reads the
        prompts, padded on the left to `width`, each later one a token of every row.

    Raises:
        ValueError: other passes (a model without cache).
    """
    routes_LNTK = torch.cat([each.unflatten(1, (len(ended), -1)) for each in passes], dim=2)
    longest = max(len(completion.token_ids) for _, completion in ended)
    got, need = routes_LNTK.shape[2], width + longest - 1
    require(
        got == need,
        f"generate read {got} positions per row instead of {need}: routes need its cache",
    )
    for row, (conversation, completion) in enumerate(ended):
        begin = width - len(conversation.ids)
        end = width + len(completion.token_ids) - 1
        routes_LTK = routes_LNTK[:, row, begin + conversation.reported : end]
        completion.routed_experts = routes_LTK.transpose(0, 1).cpu().numpy().astype(np.uint16)


def _uniforms(conversation: Conversation, seed: int, count: int) -> np.ndarray:
    """Return the next `count` random numbers of the conversation's context."""
    stream = random_stream(seed, conversation.key, conversation.context_index)
    return stream.random(conversation.sampled + count)[conversation.sampled :]


def _left_padded(prompts: list[torch.Tensor], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids, attention mask), both [N, T], with each prompt at the end of its row."""
    width = max(map(len, prompts))
    ids_NT = torch.zeros(len(prompts), width, dtype=torch.long)
    seen_NT = torch.zeros_like(ids_NT)
    for row, prompt in enumerate(prompts):
        ids_NT[row, width - len(prompt) :] = prompt
        seen_NT[row, width - len(prompt) :] = 1
    return ids_NT.to(device), seen_NT.to(device)


@contextmanager
def _no_defaults(model: PreTrainedModel):
    """Disable a model's own generation settings during a call.

    They would fill unset options (penalties, temperature) and change the sampled distribution.
    Router statistics, which a trainer requests, are disabled too.
    """
    own = model.generation_config
    routed = getattr(model.config, "output_router_logits", None)
    model.generation_config = GenerationConfig()
    if routed:
        model.config.output_router_logits = False
    try:
        yield
    finally:
        model.generation_config = own
        if routed:
            model.config.output_router_logits = True
