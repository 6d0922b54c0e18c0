"""Rewards of finished trajectories, and random controls."""

from drlib.rewards import combined, remote_reward

__all__ = ["combined", "remote_reward"]  # importing them registers their rewards
