"""Rewards of finished trajectories, and the controls that reward at random."""
