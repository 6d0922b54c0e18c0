"""Rewards of finished trajectories, and random controls."""
