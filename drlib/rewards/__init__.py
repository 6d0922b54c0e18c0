"""Rewards of finished trajectories, and random controls."""

from drlib.rewards import (
    anchored,
    code_tests,
    combined,
    entity_credit,
    evolving_rubrics,
    outcome_model,
    remote_reward,
    rubrics,
)

# importing them registers their rewards
__all__ = [
    "anchored",
    "code_tests",
    "combined",
    "entity_credit",
    "evolving_rubrics",
    "outcome_model",
    "remote_reward",
    "rubrics",
]
