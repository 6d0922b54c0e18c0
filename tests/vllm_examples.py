"""A real loopback vLLM server with the tour's policy, for tests and the engine benchmark,
and an emulation of vLLM's GPU runner that reports routes on a CPU.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from drlib.app.research import TOUR_POLICY

TEACHABLE = ("--worker-extension-cls", "drlib.models.vllm_engine.WeightSync")


@contextmanager
def serving(*options, model=TOUR_POLICY, name="tour", **environment):
    """Run a vLLM server for a model (default: the tour's policy) and yield its base URL."""
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


@contextmanager
def reporting(engine, sparse):
    """Let an in-process `VllmEngine` report routes inside the context.

    Everything is vLLM's own (scheduler, store, outputs) except the model runner, which exists for
    GPUs only.

    sparse: the engine's layers with experts.
    """
    from vllm.distributed.aux_output_connector import worker
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector

    core = engine._engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "bind_routed_experts_capturer", lambda model, capturer: None)
        connector = worker.AuxOutputWorkerConnector(
            vllm_config=engine._engine.vllm_config,
            model=runner.model,
            kv_cache_config=runner.kv_cache_config,
        )
        step = _Step(runner, connector)
        hooks = step.watch()
        patch.setattr(core.scheduler, "aux_output_connector", AuxOutputSchedulerConnector())
        patch.setattr(runner, "execute_model", step.execute_model)
        patch.setattr(runner, "sample_tokens", step.sample_tokens)
        patch.setattr(engine, "routes", True)
        patch.setattr(engine, "_sparse", sparse)
        engine._engine.reset_prefix_cache()  # cached prefixes have no routes
        yield
        for hook in hooks:
            hook.remove()
        connector.close()


class _Step:
    """The runner's two calls of a step, with the experts selected by its routers."""

    def __init__(self, runner, connector):
        self.runner, self.connector = runner, connector
        self.execute, self.sample = runner.execute_model, runner.sample_tokens
        self.scheduled = {}  # tokens of a request in this step

    def watch(self):
        gates = [m for name, m in self.runner.model.named_modules() if name.endswith("mlp.gate")]
        return [
            gate.register_forward_hook(lambda _, args, out, i=i: self.record_choice(i, out[0]))
            for i, gate in enumerate(gates)
        ]

    def record_choice(self, layer, logits_NE):
        buffer_NLK = self.connector._capturer.device_buffer
        chosen_NK = logits_NE.float().softmax(-1).topk(buffer_NLK.shape[2]).indices
        buffer_NLK[: len(chosen_NK), layer] = chosen_NK.to(buffer_NLK.dtype)

    def execute_model(self, scheduled, *more, **options):
        self.connector.begin_step(scheduled.aux_output_connector_metadata)
        self.scheduled = scheduled.num_scheduled_tokens
        return self.execute(scheduled, *more, **options)

    def sample_tokens(self, *more, **options):
        batch = self.runner.input_batch
        sizes = [self.scheduled[name] for name in batch.req_ids]
        read_batch = SimpleNamespace(
            req_ids=[*batch.req_ids],
            num_computed_tokens_np=batch.num_computed_tokens_cpu[: len(sizes)].copy(),
            query_start_loc_np=np.cumsum([0, *sizes]),
        )
        pending = self.connector.prepare_output(read_batch)
        done = self.sample(*more, **options)
        done = done.get_output() if hasattr(done, "get_output") else done
        sampled = np.array([len(ids) for ids in done.sampled_token_ids])
        pending.enqueue_cpu_copy(sampled, np.zeros_like(sampled))
        done.aux_output_connector_output = pending.process_output()
        return done
