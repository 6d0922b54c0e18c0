"""What a call is given, to the number: seconds, bytes of memory and of files, and no network.

`test_sandbox_bounds.py` looks for ways around these; here they are measured where they stand.
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
def test_a_call_has_the_seconds_that_it_was_given(code, sandbox):
    began = time.monotonic()
    result = sandbox.run(code)
    assert result.status == "timeout" and 0.5 <= result.duration_s < 3, result
    assert time.monotonic() - began < 4


def test_a_call_has_the_memory_that_it_was_given_and_not_twice_that(sandbox):
    assert sandbox.run("x = bytearray(40 << 20)\nprint(len(x) >> 20)").text == "40"
    assert sandbox.run("x = bytearray(100 << 20)\nprint(len(x) >> 20)").status == "memory_limit"


def test_a_file_has_the_bytes_that_it_was_given_and_not_one_more(sandbox):
    code = (
        "f = open('f', 'wb', buffering=0)\nf.write(bytes((8 << 20) - 1))\nprint(f.write(bytes(2)))"
    )
    assert sandbox.run(code).text == "1"


def test_namespaces_alone_keep_code_from_the_network():
    """The filter and Landlock deny it as well, and would hide that it is there."""
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


def test_namespaces_that_the_kernel_gives_forbid_what_they_should():
    """A trial that finds a hole is no reason to go on at a lower level unseen."""
    skip_without("standard")
    (namespaces,) = (layer for layer in probe().layers if layer.name == "namespaces")
    assert "was possible" not in namespaces.detail
