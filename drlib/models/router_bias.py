"""Loss-free load balancing: a router bias per expert instead of a balancing loss.

A balancing loss pulls the router away from what predicts the next token well. Wang et al. (arXiv
2408.15664; DeepSeek-V3, arXiv 2412.19437, section 2.1.2) add a bias per expert to its probability
for the *selection* only; the gate is unchanged, so no gradient is disturbed. After each step the
bias of an expert with more than the mean number of tokens falls by a fixed rate, and that of an
expert with fewer rises.

The biases belong to the policy: sampling without them routes tokens to other experts. A policy
with biases is therefore a separate model type. transformers' auto classes know it once drlib is
imported; vLLM and transformers without drlib refuse its folder instead of running another model. At
a rate of 0 the biases are constant (DeepSeek-V3 ends its pre-training this way).

The routers are Qwen3-MoE's, a softmax; the paper's are a sigmoid.
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
    """Configuration of a Qwen3-MoE with router biases."""

    model_type = "qwen3_moe_router_bias"


class BiasedRouter(Qwen3MoeTopKRouter):
    """Selects the k experts of largest probability + bias; gates ignore the bias.

    Attributes:
        bias_E: saved with the weights, changed by `update_router_biases`, never by an optimizer.
        load_E: tokens per expert in training passes since the last update.
    """

    def __init__(self, config: RouterBiasConfig):
        super().__init__(config)
        self.register_buffer("bias_E", torch.zeros(config.num_experts))
        self.load_E: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (router logits [N, E], gates [N, k], experts [N, k]), as transformers' router."""
        logits_NE, *_ = super().forward(hidden_states)
        experts_NK = select_biased_experts(logits_NE, self.bias_E, self.top_k)
        if self.training and torch.is_grad_enabled():
            sent_E = torch.bincount(experts_NK.reshape(-1), minlength=self.num_experts)
            self.load_E = sent_E if self.load_E is None else self.load_E + sent_E
        return logits_NE, compute_gates(self, logits_NE, experts_NK), experts_NK


class RouterBiasForCausalLM(Qwen3MoeForCausalLM):
    """Qwen3-MoE with a `BiasedRouter` in each layer."""

    config_class = RouterBiasConfig

    def __init__(self, config: RouterBiasConfig):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.gate = BiasedRouter(config)
        self.post_init()

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        # transformers searches the source of the class's module for a decorator: ask about the base
        return Qwen3MoeForCausalLM._can_set_experts_implementation()

    def _init_weights(self, module) -> None:
        super()._init_weights(module)
        if isinstance(module, BiasedRouter):
            initialization.zeros_(module.bias_E)


AutoConfig.register(RouterBiasConfig.model_type, RouterBiasConfig)
AutoModelForCausalLM.register(RouterBiasConfig, RouterBiasForCausalLM)


def select_biased_experts(logits_NE: Tensor, bias_E: Tensor, k: int) -> Tensor:
    """Return the k experts of each token by probability + bias, [N, k], best first."""
    probs_NE = torch.softmax(logits_NE.detach(), dtype=torch.float, dim=-1)
    return (probs_NE + bias_E).topk(k, dim=-1).indices


def add_router_bias(model: Qwen3MoeForCausalLM) -> Qwen3MoeForCausalLM:
    """Return the same policy with biases of 0; unchanged if it has biases.

    Raises:
        ValueError: not a Qwen3-MoE with experts in every layer.
    """
    if get_router_biases(model) is not None:
        return model
    config = model.config
    dense = config.model_type != "qwen3_moe" or config.mlp_only_layers
    if dense or config.decoder_sparse_step != 1:
        raise ValueError(
            f"router biases need a Qwen3-MoE with experts in every layer, this is a "
            f"{config.model_type}: set trainer.router_bias_rate=0"
        )
    sizes = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "architectures")}
    options = {"dtype": model.dtype, "experts_implementation": config._experts_implementation}
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced below
        biased = RouterBiasForCausalLM._from_config(RouterBiasConfig(**sizes), **options)
    biased.load_state_dict(model.state_dict() | _bias_buffers(biased))
    biased.generation_config = model.generation_config
    return biased.train(model.training)


def _bias_buffers(model: RouterBiasForCausalLM) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith(".bias_E")}


def get_router_biases(model) -> Tensor | None:
    """Return the biases of a policy, [L, E], or None."""
    routers = _biased_routers(model)
    return torch.stack([router.bias_E for router in routers]) if routers else None


def pop_expert_load(model) -> Tensor:
    """Return the tokens per expert since the last call, [L, E], and reset the counts.

    The model must have biases.
    """
    loads = []
    for router in _biased_routers(model):
        none = torch.zeros(router.num_experts, dtype=torch.long, device=router.bias_E.device)
        loads.append(none if router.load_E is None else router.load_E)
        router.load_E = None
    return torch.stack(loads)


@torch.no_grad()
def update_router_biases(model, load_LE: Tensor, rate: float) -> None:
    """Lower the bias of experts above their layer's mean load by `rate`, and raise the others.

    arXiv 2408.15664, algorithm 1.

    Raises:
        ValueError: the load has other layers or experts than the model.
    """
    routers = _biased_routers(model)
    sizes = [len(routers), *{router.num_experts for router in routers}]
    if [*load_LE.shape] != sizes:
        raise ValueError(f"load_LE is {[*load_LE.shape]}, the biases are {sizes}")
    excess_LE = load_LE - load_LE.float().mean(dim=1, keepdim=True)
    for router, excess_E in zip(routers, excess_LE):
        router.bias_E -= rate * excess_E.sign()


def max_violation(load_LE: Tensor) -> float:
    """Return MaxVio of a batch: relative excess of the fullest expert, mean over the layers.

    0 is a uniform load (arXiv 2408.15664).

    >>> max_violation(torch.tensor([[3, 1]]))
    0.5
    """
    load_LE = load_LE.float()
    return float((load_LE.max(dim=1).values / load_LE.mean(dim=1) - 1).mean())


def _biased_routers(model) -> list[BiasedRouter]:
    return [module for module in model.modules() if isinstance(module, BiasedRouter)]
