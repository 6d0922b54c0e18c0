"""Waiting helpers for tests of processes."""

import time

HANG_S = 900.0  # only a hung process takes this long, on the slowest machine under load


def until(condition, patience_s=HANG_S, process=None):
    """Return when the condition holds; fail if it does not in time, or its process has ended."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        if process is not None and process.poll() is not None:
            assert condition(), f"the process ended before, with status {process.returncode}"
        time.sleep(0.02)
