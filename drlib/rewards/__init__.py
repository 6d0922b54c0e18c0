"""Rewards of finished trajectories, and random controls."""

from drlib.rewards import combined

__all__ = ["combined"]  # importing it registers its rewards
