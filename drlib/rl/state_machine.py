"""Base class of objects whose state can be saved and restored with a checkpoint."""

import copy
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from drlib.validation import check_fields, require


def initial_state(**initial):
    """Declare a dataclass field that starts as a copy of `initial` and is not a setting."""
    return field(init=False, repr=False, default_factory=lambda: copy.deepcopy(initial))


class StateMachine:
    """Base of objects with a `state` of JSON values that is saved with a checkpoint.

    Settings are not part of the state: restore into an object built with the same settings.
    """

    state: dict[str, Any]

    def __post_init__(self):
        check_fields(self)

    def state_dict(self) -> dict:
        """Return a copy of the state."""
        return copy.deepcopy(self.state)

    def load_state_dict(self, state: Mapping) -> None:
        """Restore a state saved by `state_dict`. ValueError: its keys differ."""
        keeps = f"{type(self).__name__} keeps {sorted(self.state)}"
        require(set(state) == set(self.state), f"{keeps}, the state has {sorted(state)}")
        self.state.update(copy.deepcopy(dict(state)))
