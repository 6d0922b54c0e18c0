"""JSON schema of a Python function, as chat templates and TRL read it."""

from collections.abc import Callable
from typing import Any

from transformers.utils import get_json_schema


def function_schema(function: Callable) -> dict[str, Any]:
    """Return {"name", "description", "parameters"} from type hints and a Google-style docstring.

    Raises:
        ValueError: a hint or a description is missing, or a type is not supported.
    """
    try:
        return get_json_schema(function)["function"]
    except Exception as error:  # of any type, by the wording of the hints and the docstring
        raise ValueError(str(error)) from error
