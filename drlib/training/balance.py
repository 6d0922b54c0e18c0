"""Experts prepare_router_biases by biases, in the stages' loops: all ranks' tokens move the biases of each.

`drlib.models.router_bias` says what the biases are. With `trainer.router_bias_rate` above 0 a stage gives
them to the policy that it begins with, and moves them after every step; a later stage goes on from
where they are. The auxiliary loss is a setting of its own (`trainer.balance_coef`): the paper's recipe has
it at 0.
"""

from drlib.config import Config
from drlib.models.router_bias import (
    add_router_bias,
    max_violation,
    pop_expert_load,
    update_router_biases,
)
from drlib.training.distributed import all_sum


def prepare_router_biases(model, config: Config):
    """The policy as a stage trains it: with biases where they are to move."""
    return add_router_bias(model) if config.trainer.router_bias_rate > 0 else model


def balance_experts(model, config: Config) -> dict[str, float]:
    """Move the biases after an optimizer's step, by the tokens of all ranks; the step's metric:
    `max_violation`, how far the fullest expert is above the mean. {} where none move."""
    if config.trainer.router_bias_rate == 0:
        return {}
    (load_LE,) = all_sum([pop_expert_load(model)])
    update_router_biases(model, load_LE, config.trainer.router_bias_rate)
    return {"max_violation": max_violation(load_LE)}
