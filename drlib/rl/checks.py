"""Checks of arguments that the modules of this room share, so that each is one line where it is
used. Messages are made whether they are needed or not: they must not fail on good arguments."""

import math
from typing import Literal, get_args, get_origin, get_type_hints


def require(condition: bool, message: str) -> None:
    """ValueError with `message` unless `condition`; a comparison with NaN is False."""
    if not condition:
        raise ValueError(message)


def finite(value: float, name: str) -> float:
    require(math.isfinite(value), f"{name} is {value}; find the step that broke before going on")
    return float(value)


def require_choices(config) -> None:
    """ValueError where a dataclass has a value that the `Literal` of its field does not list."""
    for name, kind in get_type_hints(type(config)).items():
        known = get_args(kind) if get_origin(kind) is Literal else ()
        if known and getattr(config, name) not in known:
            listed = ", ".join(f'"{value}"' for value in known[:-1]) + f' or "{known[-1]}"'
            raise ValueError(f"{name} must be {listed}, got {getattr(config, name)!r}")
