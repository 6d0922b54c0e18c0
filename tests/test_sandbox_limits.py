"""Exact limits of a call: seconds, bytes of memory and of files, and no network.

`test_sandbox_bounds.py` tests ways around these limits.
Run: python -m pytest tests/test_sandbox_limits.py
"""

import socket
import time
import warnings

import pytest

from drlib.sandbox import Sandbox, probe
from tests.sandbox_targets import sandbox_at, skip_without


@pytest.fixture(scope="module", params=["strong", "standard"])
def sandbox(request):
    skip_without(request.param)
    with sandbox_at(request.param, timeout_s=0.5, memory_mb=64) as made:
        made.run("print(1)")
        yield made


@pytest.mark.parametrize("code", ["while True: pass", "import time\ntime.sleep(60)"])
def test_time_limit_is_exact(code, sandbox):
    began = time.monotonic()
    result = sandbox.run(code)
    assert result.status == "timeout" and 0.5 <= result.duration_s < 3, result
    assert time.monotonic() - began < 4


def test_memory_limit_is_exact(sandbox):
    assert sandbox.run("x = bytearray(40 << 20)\nprint(len(x) >> 20)").text == "40"
    assert sandbox.run("x = bytearray(100 << 20)\nprint(len(x) >> 20)").status == "memory_limit"


def test_file_size_limit_is_exact(sandbox):
    code = (
        "f = open('f', 'wb', buffering=0)\nf.write(bytes((8 << 20) - 1))\nprint(f.write(bytes(2)))"
    )
    assert sandbox.run(code).text == "1"


def test_namespaces_alone_deny_the_network():
    """The filter and Landlock are off, because they would hide a missing namespace."""
    skip_without("strong")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Sandbox(found=probe().without("seccomp", "landlock"), min_level="weak")
    with made, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = made.run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        assert result.status == "error" and "Network is unreachable" in result.text, result
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_available_namespaces_pass_their_trial():
    """A failing trial must not lower the level unnoticed."""
    skip_without("standard")
    (namespaces,) = (layer for layer in probe().layers if layer.name == "namespaces")
    assert "was possible" not in namespaces.detail
