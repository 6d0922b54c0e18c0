"""TRL steps of a mixture of experts on two processes: DDP, and FSDP2 with recomputation.

Uses real processes on loopback, one launch for all cases; accelerate shards the model.

Run: python -m pytest tests/test_training_trl_ranks.py
"""

import pytest
import torch

from tests import trl_worker
from tests.stage_processes import run_ranks
from tests.test_training_trl_moe import RouteEngine, make_trainer, step
from tests.trl_examples import assert_equal_gradients, save_checkpoint

CASES = ("ddp:r2", "fsdp2:none", "fsdp2:r3", "fsdp2_bf16:r3")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("policy") / "tiny", std=0.3)


@pytest.fixture(scope="module")
def two_processes(checkpoint, tmp_path_factory):
    """Return the results of two processes in each case: (gradients, log-probabilities, metrics)."""
    out = tmp_path_factory.mktemp("out")
    done = run_ranks(trl_worker.main, ["trl_worker", str(checkpoint), str(out), *CASES], 2)
    assert done.returncode == 0, done.stderr[-3000:]
    return {c: torch.load(out / f"{c.replace(':', '_')}.pt", weights_only=True) for c in CASES}


@pytest.mark.parametrize("case", CASES[:3])
def test_two_processes_match_one(case, two_processes, checkpoint, tmp_path):
    grpo_trainer = make_trainer(
        checkpoint, tmp_path, RouteEngine(checkpoint), routing=case.partition(":")[2]
    )
    expected, line = step(grpo_trainer)
    gradients, _, metrics = two_processes[case]
    assert_equal_gradients(gradients, expected)
    assert len(metrics) == 4
    assert metrics == pytest.approx({name: line[name] for name in metrics}, abs=1e-5)


def test_fsdp_bf16_keeps_exact_logprobs(two_processes):
    """Accelerate's policy casts the model's outputs; log-probabilities stay in float32."""
    (_, exact_BC, _), (_, logp_BC, _) = two_processes["fsdp2:r3"], two_processes["fsdp2_bf16:r3"]
    assert logp_BC.dtype == torch.float32
    assert not torch.equal(logp_BC, logp_BC.bfloat16().float())
    torch.testing.assert_close(logp_BC, exact_BC, rtol=0, atol=0.2)
