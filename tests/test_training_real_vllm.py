"""The pipeline of a real model with vLLM as its engine, in process and as a server.

Skipped if vLLM is not installed.

Run: make test-vllm
"""

import numpy as np
import pytest
import torch

from drlib.endpoint import EndpointError
from drlib.training import stages
from drlib.training.model_setup import find_policy, load_model, open_policy
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from tests.real_examples import built, max_difference, miniature_config, weights
from tests.vllm_examples import TEACHABLE, serving

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("real models")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def assert_sampled_by(record, folder):
    """Check that the record's log-probabilities are those of the model in `folder`."""
    ids_T = torch.tensor(record.token_ids[None].astype(np.int64))
    with torch.no_grad():
        logp_TV = load_model(folder, torch.float32)(ids_T).logits[0].log_softmax(-1)
    sampled = record.generated.nonzero()[0]
    expected = logp_TV[sampled - 1, ids_T[0, sampled]].numpy()
    assert np.abs(record.logprobs[sampled] - expected).max() < 1e-4


@pytest.mark.parametrize("kind", ["qwen3_moe", "llama"])
def test_pipeline_with_vllm_in_process(workspace, kind):
    """Adapters are merged before the weights are sent to vLLM, and the update is verified."""
    config = miniature_config(workspace, kind, engine__name="vllm")
    runs = workspace / "runs"
    folder = built("evaluate_rl", config, runs)
    rl, sft = stages.folder("rl", config, runs), stages.folder("sft", config, runs)
    first, *_ = load_trajectories(rl / "trajectories_0001.parquet")
    assert_sampled_by(first, find_policy(sft))
    assert read_metrics(rl)[0]["grad_norm"] > 0
    record, *_ = load_trajectories(folder / "sampled.parquet")
    assert_sampled_by(record, find_policy(rl))
    assert max_difference(weights(sft / "policy"), weights(rl / "policy")) > 0


def test_pipeline_with_a_vllm_server(workspace):
    """The server starts with the base model and receives the cold start and every update."""
    config = miniature_config(workspace, "qwen3", engine__name="server")
    runs = workspace / "runs"
    built("sft", config, runs)
    variables = {"VLLM_SERVER_DEV_MODE": "1"}
    with serving(*TEACHABLE, model=config.model.path, name=config.model.path, **variables) as url:
        replicas = f"{url},{url.replace('127.0.0.1', 'localhost')}"  # the server twice
        online = config.derive(engine__url=replicas, engine__router="cache_aware")
        rl = built("rl", online, runs)
        records = load_trajectories(rl / "trajectories_0001.parquet")
        assert_sampled_by(records[0], find_policy(stages.folder("sft", config, runs)))
        with open_policy(rl, online) as (engine, *_):
            model = load_model(find_policy(rl), torch.float32)
            assert engine.require_parity(model) < 1e-4
    assert read_metrics(rl)[0]["grad_norm"] > 0


def test_server_without_updates_gives_a_one_line_error(workspace):
    config = miniature_config(workspace, "qwen3", engine__name="server")
    runs = workspace / "runs"
    built("sft", config, runs)
    with serving(model=config.model.path, name=config.model.path) as url:
        online = config.derive(engine__url=url, rl__steps=1)
        with pytest.raises(EndpointError, match="VLLM_SERVER_DEV_MODE") as error:
            built("rl", online, runs)
    assert "\n" not in str(error.value)
