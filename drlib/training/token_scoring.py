"""Log-probabilities of selected tokens in any Hugging Face causal LM, without logits.

TRL's fused head also avoids the N x V tensor, but scores every token of a completion, and most of a
research rollout are tool responses. Here only the tokens in the loss go through
`drlib.models.chunked_logprobs.token_logprobs`.

During one forward pass the output matrix returns two numbers per token [B, T, 2] instead of logits
[B, T, V]. The rest is the model's own: `forward`, the hooks of PEFT, accelerate, DDP and FSDP2, and
its load-balancing loss. Wrappers may round what a model returns (accelerate's FSDP2 under bfloat16
rounds to 8 bits), so values are taken inside the head; only gradients pass through the wrapper.

Not supported (`find_heads` returns [], TRL's head is used): biases, soft-capping and scaled logits,
float16, quantised heads, prompt tuning, encoder-decoders.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drlib.models.chunked_logprobs import token_logprobs

# Names of operations between output matrix and probabilities in model configurations
BEYOND_A_MATRIX = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


class Scored(NamedTuple):
    """Scores of B sequences of T tokens; 0 where a token was not selected."""

    logp_BT: Tensor  # float32, nats, with a gradient
    entropies_BT: Tensor  # float32, nats, without one
    aux_loss: Tensor | None  # load-balancing loss
    router_logits: Sequence[Tensor] | None  # per sparse layer [B * T, E]


def find_heads(model: nn.Module) -> list[nn.Linear]:
    """Return the output matrices of a model; [] if logits are more than a matrix product.

    The model must not be wrapped by DDP or FSDP1. PEFT may keep two matrices, an original and a
    trained copy.
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
    """Score the tokens in `chosen_BT`, each given its predecessors, in one forward pass.

    Args:
        model: the trained model, with wrappers.
        heads: `find_heads` of the unwrapped model.
        ids_BT: int.
        seen_BT: attention mask; padding on either side.
        chosen_BT: bool; the first column has no predecessor and is never scored.
        in_float32: compute the head in float32 regardless of autocast. Under autocast to bfloat16,
            a float32 matrix is copied once, [V, H].
        router_logits: request router logits, and thus the load-balancing loss, of a MoE model.

    Raises:
        RuntimeError: the forward pass does not call the output matrix once, on all tokens.
    """
    selection = _Selection(ids_BT, chosen_BT, temperature, in_float32)
    options = {"output_router_logits": True} if router_logits else {}
    with ExitStack() as stack:
        for head in heads:
            stack.enter_context(_replace_forward(head, selection.build_forward(head)))
        out = model(input_ids=ids_BT, attention_mask=seen_BT, use_cache=False, **options)
    if len(selection.results) != 1:
        raise RuntimeError(
            f"the model called its output matrix {len(selection.results)} times, not once"
        )
    (exact_BT2,) = selection.results
    rounded_BT2 = out.logits.float()
    logp_BT, entropies_BT = (rounded_BT2 + (exact_BT2 - rounded_BT2.detach())).unbind(-1)
    aux_loss, of_routers = getattr(out, "aux_loss", None), getattr(out, "router_logits", None)
    return Scored(logp_BT, entropies_BT.detach(), aux_loss, of_routers)


class _Selection:
    """Tokens to score, and the results of the head."""

    def __init__(self, ids_BT: Tensor, chosen_BT: Tensor, temperature: float, in_float32: bool):
        self.shape = ids_BT.shape
        self.row, self.before = chosen_BT[:, 1:].nonzero(as_tuple=True)
        self.ids_N = ids_BT[self.row, self.before + 1]
        self.temperature, self.in_float32 = temperature, in_float32
        self.results: list[Tensor] = []

    def build_forward(self, head: nn.Linear) -> Callable[[Tensor], Tensor]:
        """Return a `forward` for `head`: hidden_BTH to (log-probability, entropy) [B, T, 2]."""

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
            # connected to the model even without selected tokens: DDP waits for every gradient
            made_BT2 = empty_BT2.index_put((self.row, self.before + 1), found_N2)
            self.results.append(made_BT2.detach())
            return made_BT2

        return forward


@contextmanager
def _replace_forward(module: nn.Module, forward: Callable) -> Iterator[None]:
    own = vars(module).get("forward")  # TRL's float32 cast of the head sets one
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
