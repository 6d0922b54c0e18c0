"""Task environments behind one interface: tools over a state of each rollout, and verification."""

from drlib.environments.environment import (
    ENVIRONMENTS,
    Environment,
    Episode,
    Observation,
    load_environment,
    load_environments,
)

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Episode",
    "Observation",
    "load_environment",
    "load_environments",
]
