"""Rows of answers to protected benchmarks, encrypted with their question.

Authors of protected benchmarks ask that no text of a question or an answer is published, because it
would leak into training data. An agent's answer and messages contain such texts. They are stored
combined (exclusive or) with a stream that only the question gives, so who has the benchmark can
read them, and a crawler cannot. This is protection against leaks, not against attacks.
"""

import base64
import hashlib
import json
import os
from typing import Any

from drlib.validation import require

OPEN = ("task_id", "termination", "usage")  # fields that contain no text of the benchmark
_SALT = 16  # bytes


def seal_row(row: dict[str, Any], question: str) -> dict[str, Any]:
    """Return the row with every field except `OPEN` encrypted in "sealed" (base64)."""
    hidden = {name: value for name, value in row.items() if name not in OPEN}
    salt = os.urandom(_SALT)  # no stream is used twice
    data = _combine(json.dumps(hidden).encode(), question, salt)
    shown = {name: row[name] for name in OPEN if name in row}
    return {**shown, "sealed": base64.b64encode(salt + data).decode()}


def unseal_row(row: dict[str, Any], question: str) -> dict[str, Any]:
    """Return the row that `seal_row` encrypted.

    Raises:
        ValueError: the row is damaged or belongs to another question.
    """
    try:
        data = base64.b64decode(row["sealed"], validate=True)
        hidden = json.loads(_combine(data[_SALT:], question, data[:_SALT]))
    except (ValueError, TypeError):
        hidden = None
    require(
        isinstance(hidden, dict),
        f"the row of {row.get('task_id')!r} cannot be decrypted: it is damaged, or the benchmark's "
        "file has another question under this id",
    )
    return {**{name: value for name, value in row.items() if name != "sealed"}, **hidden}


def _combine(data: bytes, question: str, salt: bytes) -> bytes:
    stream = hashlib.shake_256(salt + question.encode()).digest(len(data))
    return bytes(a ^ b for a, b in zip(data, stream))
