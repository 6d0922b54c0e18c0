"""The frugal head in any Hugging Face causal LM: log-probabilities of chosen tokens, no logits.

TRL's own fused head holds no N x V tensor either, but scores every token of a completion (without
Triton every position of the row): most of a research rollout is what tools returned. Here the
tokens in the loss alone go through `drlib.models.chunked_logprobs.token_logprobs`.

For one forward pass the output matrix's `forward` gives, in place of logits [B, T, V], two numbers
a token [B, T, 2]. All else is the model's own: its `forward`, the hooks of PEFT, accelerate, DDP
and FSDP2 (which gather the head's weight when the head is called), its load-balancing loss.

A wrapper may round what a model returns (accelerate's FSDP2 policy under bfloat16 does, to 8 bits,
and a ratio of rounded log-probabilities is noise). Values are therefore taken where they are made;
only gradients travel through the wrapper.

Left out (`find_heads` finds nothing, the trainer then asks TRL): biases, soft-capping and scaled
logits, float16, quantised heads, prompt tuning, encoder-decoders.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drlib.models.chunked_logprobs import token_logprobs

# What configurations call a step between the output matrix and the probabilities.
BEYOND_A_MATRIX = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


class Scored(NamedTuple):
    """Of B sequences of T tokens; zeros where nothing was chosen."""

    logp_BT: Tensor  # float32, nats, with a gradient
    entropies_BT: Tensor  # float32, nats, without one
    aux_loss: Tensor | None  # the model's load-balancing loss
    router_logits: Sequence[Tensor] | None  # of each sparse layer [B * T, E]


def find_heads(model: nn.Module) -> list[nn.Linear]:
    """The output matrices that may be called in `model` (no wrapper of DDP or FSDP1); [] if a
    matrix product is not all that lies between hidden states and logits.

    PEFT may keep two, an original and a trained copy (TRL refuses an adapter on the head).
    """
    adapters = getattr(model, "peft_config", {}).values()
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head, config = base.get_output_embeddings(), base.config.get_text_config()
    scaled = any(getattr(config, name, None) not in (None, 1.0) for name in BEYOND_A_MATRIX)
    prompted = any(getattr(each, "is_prompt_learning", False) for each in adapters)
    found = [head] if isinstance(head, nn.Linear) else []
    if hasattr(head, "modules_to_save"):
        found = [m for m in head.modules() if isinstance(m, nn.Linear)]
    plain = all(m.bias is None and m.weight.dtype in (torch.float32, torch.bfloat16) for m in found)
    return [] if scaled or prompted or config.is_encoder_decoder or not plain else found


def score_tokens(
    model: nn.Module,
    heads: Sequence[nn.Linear],
    ids_BT: Tensor,
    seen_BT: Tensor,
    chosen_BT: Tensor,
    *,
    temperature: float = 1.0,
    in_float32: bool = False,
    router_logits: bool = False,
) -> Scored:
    """Score the tokens in `chosen_BT`, each given the tokens before it, in one forward pass.

    model: as trained, wrappers included; heads: `find_heads` what it wraps.
    ids_BT: int; seen_BT: 1 on tokens, 0 on padding (either side); position ids are the model's own.
    chosen_BT: bool; a row's first column has no predecessor and is never scored.
    in_float32: the head's product in float32 whatever autocast says. Under autocast to bfloat16 a
        float32 matrix is copied once, V x H.
    router_logits: ask a mixture of experts for them, and so for its load-balancing loss.

    RuntimeError: the model's forward pass does not call its output matrix once, on all tokens.
    """
    where = _Where(ids_BT, chosen_BT, temperature, in_float32)
    asked = {"output_router_logits": True} if router_logits else {}
    with ExitStack() as stack:
        for head in heads:
            stack.enter_context(_forward_replaced(head, where.scored_by(head)))
        out = model(input_ids=ids_BT, attention_mask=seen_BT, use_cache=False, **asked)
    if len(where.made) != 1:
        raise RuntimeError(f"the model called its output matrix {len(where.made)} times, not once")
    (exact_BT2,) = where.made
    rounded_BT2 = out.logits.float()
    logp_BT, entropies_BT = (rounded_BT2 + (exact_BT2 - rounded_BT2.detach())).unbind(-1)
    aux_loss, of_routers = getattr(out, "aux_loss", None), getattr(out, "router_logits", None)
    return Scored(logp_BT, entropies_BT.detach(), aux_loss, of_routers)


class _Where:
    """The tokens to score, and what a head made of them."""

    def __init__(self, ids_BT: Tensor, chosen_BT: Tensor, temperature: float, in_float32: bool):
        self.shape = ids_BT.shape
        self.row, self.before = chosen_BT[:, 1:].nonzero(as_tuple=True)
        self.ids_N = ids_BT[self.row, self.before + 1]
        self.temperature, self.in_float32 = temperature, in_float32
        self.made: list[Tensor] = []

    def scored_by(self, head: nn.Linear) -> Callable[[Tensor], Tensor]:
        """A `forward` for `head`: hidden_BTH to (log-probability, entropy) [B, T, 2]."""

        def forward(hidden_BTH: Tensor) -> Tensor:
            if hidden_BTH.shape[:2] != self.shape:
                got = [*hidden_BTH.shape[:2]]
                raise RuntimeError(f"the output matrix got {got} tokens of {[*self.shape]}")
            device = hidden_BTH.device.type
            dtype = head.weight.dtype
            if self.in_float32:
                dtype = torch.float32
            elif torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
            hidden_NH = hidden_BTH[self.row, self.before].to(dtype)
            with torch.autocast(device, enabled=False):
                logp_N, entropy_N = token_logprobs(
                    hidden_NH, head.weight.to(dtype), self.ids_N, temperature=self.temperature
                )
            found_N2 = torch.stack([logp_N, entropy_N.detach()], dim=-1)
            empty_BT2 = found_N2.new_zeros(*self.shape, 2)
            # Connected to the model even where no token was chosen: DDP waits for every gradient.
            made_BT2 = empty_BT2.index_put((self.row, self.before + 1), found_N2)
            self.made.append(made_BT2.detach())
            return made_BT2

        return forward


@contextmanager
def _forward_replaced(module: nn.Module, forward: Callable) -> Iterator[None]:
    own = vars(module).get("forward")  # TRL's cast of the head to float32 put one there
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
