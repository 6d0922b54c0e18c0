"""Rewards of finished trajectories, and random controls."""

from drlib.rewards import code_tests, combined, entity_credit, outcome_model, remote_reward, rubrics

# importing them registers their rewards
__all__ = ["code_tests", "combined", "entity_credit", "outcome_model", "remote_reward", "rubrics"]
