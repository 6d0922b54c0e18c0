"""Waiting helpers for tests of processes."""

import time


def until(condition, patience_s=100.0):
    """Return when the condition holds; fail if it does not in time."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
