"""Auxiliary-loss-free load balancing: router biases updated by the tokens of all ranks.

With trainer.router_bias_rate above 0 a stage adds biases to its policy (`drlib.models.router_bias`)
and updates them after every step; later stages continue with them. The auxiliary loss is
independent (trainer.balance_coef); the paper sets it to 0.
"""

from drlib.models.router_bias import (
    add_router_bias,
    max_violation,
    pop_expert_load,
    update_router_biases,
)
from drlib.training.distributed import all_sum


def prepare_router_biases(model, rate: float):
    """Return the policy, with router biases if `rate` (trainer.router_bias_rate) is above 0."""
    return add_router_bias(model) if rate > 0 else model


def balance_experts(model, rate: float) -> dict[str, float]:
    """Update the router biases by steps of `rate` after an optimizer step.

    Returns:
        `max_violation`, the excess of the most loaded expert over the mean; {} if the rate is 0.
    """
    if rate == 0:
        return {}
    (load_LE,) = all_sum([pop_expert_load(model)])
    update_router_biases(model, load_LE, rate)
    return {"max_violation": max_violation(load_LE)}
