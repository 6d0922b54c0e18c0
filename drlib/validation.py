"""Checks of arguments, shared by all rooms so that each check is one line where it is used.

Messages are made whether they are needed or not: they must not fail on good arguments.
"""

import math
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

# types of settings: `check_fields` holds a field to the interval that stands beside its type
Positive = Annotated[float, "(0, inf]"]
Coefficient = Annotated[float, "[0, inf)"]
AtLeastOne = Annotated[int, "[1, inf)"]


def require(condition: bool, message: str) -> None:
    """ValueError with `message` unless `condition`; a comparison with NaN is False."""
    if not condition:
        raise ValueError(message)


def finite(value: float, name: str) -> float:
    """`value` as a float; ValueError with `name` when it is NaN or infinite."""
    require(math.isfinite(value), f"{name} is {value}; find the step that broke before going on")
    return float(value)


def within(value: float, interval: str, name: str) -> None:
    """ValueError unless `value` lies in `interval`, such as "[0, 1)"; NaN lies in none."""
    low, high = map(float, interval[1:-1].split(","))
    inside = low <= value <= high and (value > low or interval[0] == "[")
    inside = inside and (value < high or interval[-1] == "]")
    require(inside, f"{name} must be in {interval}, got {value}")


def one_of(value: Any, known: tuple, name: str) -> None:
    """ValueError, listing what is known, unless `value` is one of `known`."""
    listed = ", ".join(f'"{choice}"' for choice in known[:-1]) + f' or "{known[-1]}"'
    require(value in known, f"{name} must be {listed}, got {value!r}")


def check_fields(config) -> None:
    """ValueError where a dataclass has a value that its field's type does not allow.

    `Literal` lists the values, a string in `Annotated` is an interval; None passes the latter.
    """
    for name, kind in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name, None)
        if get_origin(kind) is Literal:
            one_of(value, get_args(kind), name)
        for part in (kind, *get_args(kind)):  # `AtLeastOne | None` is a union of the two
            if get_origin(part) is Annotated and value is not None:
                within(value, part.__metadata__[0], name)
