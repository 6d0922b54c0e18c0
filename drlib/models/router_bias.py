"""A mixture of experts whose load is balanced by a bias of the router instead of by a loss.

A loss that balances experts pulls the router away from what predicts the next token well. Wang et
al. (arXiv 2408.15664; DeepSeek-V3, arXiv 2412.19437, section 2.1.2) give each expert a number that
is added to its probability where experts are *chosen*, and nowhere else: a gate is what it was
without it, so no gradient is disturbed. After each step the number of an expert that got more than
the mean of the tokens falls by a fixed rate, and that of one that got less rises.

The biases belong to the policy: whoever samples without them sends tokens to other experts. So a
policy that has some is a model type of its own. Where drlib has been imported transformers' auto
classes know it; vLLM and a transformers without drlib refuse its folder, and do not run something
else. At a rate of 0 its biases stay as they are (DeepSeek-V3 ends its pre-training so).

The routers here are Qwen3-MoE's, a softmax; the paper's are a sigmoid. Left out: the loss within a
sequence that DeepSeek-V3 keeps beside the biases.
"""

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    initialization,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from drlib.models.routing_replay import compute_gates


class RouterBiasConfig(Qwen3MoeConfig):
    """Of a Qwen3-MoE whose routers have biases."""

    model_type = "qwen3_moe_router_bias"


class BiasedRouter(Qwen3MoeTopKRouter):
    """Chooses the k experts of the largest probability + bias; their gates know no bias.

    bias_E: saved with the weights, moved by `update_router_biases`, never by an optimizer.
    load_E: how many tokens of the passes that train went to each expert since the last move.
    """

    def __init__(self, config: RouterBiasConfig):
        super().__init__(config)
        self.register_buffer("bias_E", torch.zeros(config.num_experts))
        self.load_E: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(router logits [N, E], gates [N, k], chosen experts [N, k]), as transformers' own."""
        logits_NE, *_ = super().forward(hidden_states)
        chosen_NK = select_biased_experts(logits_NE, self.bias_E, self.top_k)
        if self.training and torch.is_grad_enabled():
            sent_E = torch.bincount(chosen_NK.reshape(-1), minlength=self.num_experts)
            self.load_E = sent_E if self.load_E is None else self.load_E + sent_E
        return logits_NE, compute_gates(self, logits_NE, chosen_NK), chosen_NK


class RouterBiasForCausalLM(Qwen3MoeForCausalLM):
    """Qwen3-MoE with a `BiasedRouter` in each layer."""

    config_class = RouterBiasConfig

    def __init__(self, config: RouterBiasConfig):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.gate = BiasedRouter(config)
        self.post_init()

    def _init_weights(self, module) -> None:
        super()._init_weights(module)
        if isinstance(module, BiasedRouter):
            initialization.zeros_(module.bias_E)


AutoConfig.register(RouterBiasConfig.model_type, RouterBiasConfig)
AutoModelForCausalLM.register(RouterBiasConfig, RouterBiasForCausalLM)


def select_biased_experts(logits_NE: Tensor, bias_E: Tensor, k: int) -> Tensor:
    """The k experts of each token, by probability + bias, [N, k]; the best first."""
    probs_NE = torch.softmax(logits_NE.detach(), dtype=torch.float, dim=-1)
    return (probs_NE + bias_E).topk(k, dim=-1).indices


def add_router_bias(model: Qwen3MoeForCausalLM) -> Qwen3MoeForCausalLM:
    """The same policy with biases, all 0: it still does the same. One that has some comes back.

    ValueError: a model that is no Qwen3-MoE with experts in every layer.
    """
    if get_router_biases(model) is not None:
        return model
    config = model.config
    dense = config.model_type != "qwen3_moe" or config.mlp_only_layers
    if dense or config.decoder_sparse_step != 1:
        raise ValueError(
            f"biases balance the experts of a Qwen3-MoE with experts in every layer, and this is a "
            f"{config.model_type}: set router_bias_rate=0"
        )
    sizes = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "architectures")}
    how = {"dtype": model.dtype, "experts_implementation": config._experts_implementation}
    with torch.random.fork_rng(devices=[]):  # the weights that it begins with are thrown away
        biased = RouterBiasForCausalLM._from_config(RouterBiasConfig(**sizes), **how)
    biased.load_state_dict(model.state_dict() | _biases_of(biased))
    biased.generation_config = model.generation_config
    return biased.train(model.training)


def _biases_of(model: RouterBiasForCausalLM) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith(".bias_E")}


def get_router_biases(model) -> Tensor | None:
    """The biases of a policy, [L, E]; None: it has none."""
    routers = _biased_routers(model)
    return torch.stack([router.bias_E for router in routers]) if routers else None


def pop_expert_load(model) -> Tensor:
    """How many tokens went to each expert since it was last asked, [L, E]; counting begins anew.

    The model is one with biases.
    """
    loads = []
    for router in _biased_routers(model):
        none = torch.zeros(router.num_experts, dtype=torch.long, device=router.bias_E.device)
        loads.append(none if router.load_E is None else router.load_E)
        router.load_E = None
    return torch.stack(loads)


@torch.no_grad()
def update_router_biases(model, load_LE: Tensor, rate: float) -> None:
    """After a step with this load: an expert's bias falls by `rate` where it got more than the mean
    of its layer's, and rises where it got less (arXiv 2408.15664, algorithm 1).

    ValueError: the load is not of this model's layers and experts.
    """
    routers = _biased_routers(model)
    sizes = [len(routers), *{router.num_experts for router in routers}]
    if [*load_LE.shape] != sizes:
        raise ValueError(f"load_LE is {[*load_LE.shape]}, the biases are {sizes}")
    excess_LE = load_LE - load_LE.float().mean(dim=1, keepdim=True)
    for router, excess_E in zip(routers, excess_LE):
        router.bias_E -= rate * excess_E.sign()


def max_violation(load_LE: Tensor) -> float:
    """How far the fullest expert is above the mean of its layer, as a share of it, mean over the
    layers: 0 is even (MaxVio of the paper, of one batch)."""
    load_LE = load_LE.float()
    return float((load_LE.max(dim=1).values / load_LE.mean(dim=1) - 1).mean())


def _biased_routers(model) -> list[BiasedRouter]:
    return [module for module in model.modules() if isinstance(module, BiasedRouter)]
