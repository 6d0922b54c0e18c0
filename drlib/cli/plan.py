"""`drlib plan`: estimate memory, time and disk of a run, and refuse what cannot fit."""

from drlib.training.plan import main

__all__ = ["main"]
