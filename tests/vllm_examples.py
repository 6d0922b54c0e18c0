"""A real vLLM server on loopback with the tour's policy, for tests and the benchmark of engines."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from drlib.ask.speakers import TOUR_POLICY

TEACHABLE = ("--worker-extension-cls", "drlib.policy.vllm.WeightSync")


@contextmanager
def serving(*options, model=TOUR_POLICY, name="tour", **environment):
    """A model, the tour's policy where none is named, behind a vLLM server; yields its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--served-model-name", name, "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
    command += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs", *options]
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    variables |= environment
    server = subprocess.Popen(
        command,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/v1"
    lines = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: lines.extend(server.stdout))
        try:
            _wait_for(url, server, lines)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            reading.result()


def _wait_for(url, server, lines):
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            host, port = url.split("/")[2].split(":")
            if probe.connect_ex((host, int(port))) == 0:
                return
        assert server.poll() is None, b"".join(lines[-30:]).decode()
        time.sleep(0.5)
    raise TimeoutError(b"".join(lines[-30:]).decode())
