"""Any causal language model of transformers as an engine: a folder with weights, and no server.

The model runs through its library's own `generate`, with its own cache; only the draw is ours. A
logits processor draws each token as the local engine does (`sampling.sample`, random numbers of the
request's own), so a sample has its log-probability and entropy, does not depend on what else is in
the batch, and is that of the local engine wherever both run the same model.

Slower than the others: a batch ends with its longest turn, and every turn reads its context anew.
Routes of experts (`routes=True`) are of the pass that read a token first: the one that the policy's
next token was drawn from.

Left out: several devices (pass a model that accelerate has spread), quantisation (likewise).
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
    ends,
    infer_finish_reason,
    random_stream,
)
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_model
from drlib.models.routing_replay import record_routes
from drlib.models.sampling import sample
from drlib.validation import require


class TransformersEngine(TurnwiseEngine):
    """Turns of `model`, a transformers model or the folder of one.

    A model that is passed is not copied: what trains it trains the engine, and `update_weights`
    takes those of another one.

    Args:
        batch: conversations that generate together.
        max_context: tokens; None for what the model's configuration says.
        routes: whether completions say the experts of their tokens (`Completion.routed_experts`).

    Raises:
        ValueError: no causal language model in that folder, a longer context than it has, or
            routes of a model without softmax top-k routers.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        batch: int = 16,
        max_context: int | None = None,
        routes: bool = False,
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
        self._waiting: list[tuple[Conversation, SamplingParams]] = []

    def update_weights(self, model: PreTrainedModel) -> None:
        """Take the weights of `model`, of the same shape."""
        if model is not self.model:
            self.model.load_state_dict(model.state_dict())
        self.version += 1

    def _start(self, conversation: Conversation, params: SamplingParams) -> None:
        self._waiting.append((conversation, params))

    def _abandon(self) -> None:
        self._waiting.clear()

    def _step(self) -> list[tuple[Conversation, Completion]]:
        """One turn each of the next `batch` conversations."""
        some, self._waiting = self._waiting[: self.batch], self._waiting[self.batch :]
        conversations = [conversation for conversation, _ in some]
        draw = _Draw(conversations, some[0][1])
        prompts = [torch.tensor(one.ids) for one in conversations]
        ids_NT, seen_NT = _left_padded(prompts, self.model.device)
        plan = GenerationConfig(
            max_new_tokens=max(one.room for one in conversations), do_sample=False, pad_token_id=0
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
    """Draws each conversation's next token, notes it, and leaves `generate` no other choice."""

    def __init__(self, conversations: list[Conversation], params: SamplingParams):
        self.params = params
        self.rooms = [one.room for one in conversations]
        self.turns: list[list[int]] = [[] for _ in conversations]
        self.logprobs: list[list[float]] = [[] for _ in conversations]
        self.entropies: list[list[float]] = [[] for _ in conversations]
        self.open = [True] * len(conversations)
        self.over = _Over(self)
        longest = max(self.rooms)
        self.uniforms = np.stack([_uniforms(one, params.seed, longest) for one in conversations])

    def __call__(self, input_ids, scores):
        step = max(map(len, self.turns))
        uniforms_N = torch.from_numpy(self.uniforms[:, step]).to(scores.device)
        how = self.params.temperature, self.params.top_p
        drawn_N, logp_N, entropy_N = sample(scores.float(), uniforms_N, *how)
        columns = drawn_N.tolist(), logp_N.tolist(), entropy_N.tolist()
        for i, (token, logp, entropy) in enumerate(zip(*columns)):
            if self.open[i]:
                self.turns[i].append(token)
                self.logprobs[i].append(logp)
                self.entropies[i].append(entropy)
                full = len(self.turns[i]) >= self.rooms[i]
                self.open[i] = not full and not ends(self.turns[i], self.params)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn_N[:, None], 0.0)

    def completions(self) -> list[Completion]:
        reasons = [infer_finish_reason(turn, self.params) for turn in self.turns]
        return [Completion(*of) for of in zip(self.turns, self.logprobs, self.entropies, reasons)]


class _Over(StoppingCriteria):
    """Which rows of a `_Draw` have ended."""

    def __init__(self, draw: _Draw):
        self.draw = draw

    def __call__(self, input_ids, scores, **_):
        return ~torch.tensor(self.draw.open, device=input_ids.device)


def _require_routers(model: PreTrainedModel) -> None:
    try:
        record_routes(model).close()
    except ValueError as error:
        raise ValueError(
            f"{type(model).__name__} has no softmax top-k routers, and so no routes to report: "
            "leave routes=True out (and rl_routing at none)"
        ) from error


def _report(
    passes: Sequence[torch.Tensor], width: int, ended: list[tuple[Conversation, Completion]]
) -> None:
    """Fill in each completion's `routed_experts`.

    passes: routes int16 [L, N x T, k] of each forward pass of `generate`: the first one reads the
        prompts, padded on the left to `width`, and each later one a token of every row.

    ValueError: they were not like that (a model that keeps no cache).
    """
    routes_LNTK = torch.cat([each.unflatten(1, (len(ended), -1)) for each in passes], dim=2)
    longest = max(len(done.token_ids) for _, done in ended)
    got, need = routes_LNTK.shape[2], width + longest - 1
    require(got == need, f"generate read {got} places a row and not {need}: routes need its cache")
    for row, (one, done) in enumerate(ended):
        begin = width - len(one.ids)
        end = width + len(done.token_ids) - 1
        routes_LTK = routes_LNTK[:, row, begin + one.routed : end]
        done.routed_experts = routes_LTK.transpose(0, 1).cpu().numpy().astype(np.uint16)


def _uniforms(one: Conversation, seed: int, count: int) -> np.ndarray:
    """The next `count` random numbers of the conversation's context."""
    return random_stream(seed, one.key, one.begun).random(one.sampled + count)[one.sampled :]


def _left_padded(prompts: list[torch.Tensor], device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [N, T], which of them are real [N, T]), each prompt at the end of its row."""
    width = max(map(len, prompts))
    ids_NT = torch.zeros(len(prompts), width, dtype=torch.long)
    seen_NT = torch.zeros_like(ids_NT)
    for row, prompt in enumerate(prompts):
        ids_NT[row, width - len(prompt) :] = prompt
        seen_NT[row, width - len(prompt) :] = 1
    return ids_NT.to(device), seen_NT.to(device)


@contextmanager
def _no_defaults(model: PreTrainedModel):
    """A model's own settings of `generate` (penalties, a temperature) fill what a call leaves
    open, and would change the distribution that is drawn from. A router's statistics, which a
    trainer asks for, are of no use here."""
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
