"""Rewards of finished trajectories, and random controls."""

from drlib.rewards import code_tests, combined, entity_credit, remote_reward

# importing them registers their rewards
__all__ = ["code_tests", "combined", "entity_credit", "remote_reward"]
