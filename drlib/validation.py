"""Argument checks with uniform messages, one line each at the place of use.

Messages are formatted even if the check passes, so formatting must not fail on valid arguments.
"""

import math
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

# Types of settings: `check_fields` checks a field against the interval in its type.
Positive = Annotated[float, "(0, inf]"]
Coefficient = Annotated[float, "[0, inf)"]
AtLeastOne = Annotated[int, "[1, inf)"]


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds; comparisons with NaN are False."""
    if not condition:
        raise ValueError(message)


def require_finite(value: float, name: str) -> float:
    """Return `value` as a float; raise ValueError with `name` if it is NaN or infinite."""
    require(math.isfinite(value), f"{name} is {value}: find the step in which it became non-finite")
    return float(value)


def require_within(value: float, interval: str, name: str) -> None:
    """Raise ValueError unless `value` is in `interval`, such as "[0, 1)"; NaN is in none."""
    low, high = map(float, interval[1:-1].split(","))
    inside = low <= value <= high and (value > low or interval[0] == "[")
    inside = inside and (value < high or interval[-1] == "]")
    require(inside, f"{name} must be in {interval}, got {value}")


def require_one_of(value: Any, known: tuple, name: str) -> None:
    """Raise ValueError with the alternatives unless `value` is one of `known`."""
    listed = ", ".join(f'"{choice}"' for choice in known[:-1]) + f' or "{known[-1]}"'
    require(value in known, f"{name} must be {listed}, got {value!r}")


def check_fields(config) -> None:
    """Check the fields of a dataclass against their types.

    `Literal` lists the allowed values; a string in `Annotated` is an interval, which None also
    satisfies.

    Raises:
        ValueError: a field has a value that its type does not allow.
    """
    for name, kind in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name, None)
        if get_origin(kind) is Literal:
            require_one_of(value, get_args(kind), name)
        for part in (kind, *get_args(kind)):  # `AtLeastOne | None` is a union of the two
            if get_origin(part) is Annotated and value is not None:
                require_within(value, part.__metadata__[0], name)
