"""Base class of objects whose state can be saved and restored with a checkpoint."""

import copy
from collections.abc import Mapping
from dataclasses import field

from drlib.validation import check_fields, require


def initial_state(**initial):
    """A dataclass field that starts as a copy of `initial` and is not a setting."""
    return field(init=False, repr=False, default_factory=lambda: copy.deepcopy(initial))


class StateMachine:
    """Base of all that keeps a `state`; settings are not part of it: construct with the same."""

    def __post_init__(self):
        check_fields(self)

    def state_dict(self) -> dict:
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: Mapping) -> None:
        keeps = f"{type(self).__name__} keeps {sorted(self.state)}"
        require(set(state) == set(self.state), f"{keeps}, the state has {sorted(state)}")
        self.state.update(copy.deepcopy(dict(state)))
