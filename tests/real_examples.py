"""A miniature of the `gpu1` pipeline: random models of three architectures, a few steps per stage.

Random models answer nothing correctly, so the reward is random where a gradient is needed.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from drlib.config import Config
from drlib.training import build, stages
from drlib.training.distributed import Ranks
from drlib.training.model_setup import load_model
from drlib.trajectory import Trajectory
from tests.template_examples import random_model

MINIATURE = {
    "model.dtype": "float32",
    "engine.name": "hf",
    "engine.max_mismatch": 1e-4,
    "world.pages": 100,
    "world.vocabulary": 2048,
    "questions.source": "chains",
    "rollout.search_results": 2,
    "rollout.max_calls": 3,
    "rollout.max_turn_tokens": 24,
    "rollout.max_context_tokens": 3000,
    "demonstrations.teacher": "solver",
    "demonstrations.count": 24,
    "sft.steps": 3,
    "sft.batch_tokens": 4096,
    "sft.adam_lr": 1e-3,
    "trainer.pack_tokens": 2048,
    "trainer.lora_rank": 4,
    "trainer.gradient_checkpointing": False,
    "rl.steps": 2,
    "rl.questions": 2,
    "rl.group": 2,
    "rl.lr": 1e-3,
    "rl.warmup_steps": 0,
    "rl.reward.name": "random",
    "rl.filter.overlong": "keep",
    "trainer.checkpoint_every": 1,
    "evaluation.questions": 2,
    "evaluation.samples": 1,
}

# Still shorter, where any rollout and any update will do.
FEW = {
    "world.pages": 60,
    "rollout.max_turn_tokens": 12,
    "rollout.max_calls": 1,
    "demonstrations.count": 8,
    "sft.steps": 2,
}


def miniature_config(folder: Path, kind: str, **changes) -> Config:
    """Return pipeline settings for a random model of this kind, created in `folder`."""
    where = folder / kind
    if not where.exists():
        random_model(where, kind)
    return Config.load("gpu1", **{**MINIATURE, "model.path": str(where), **changes})


def built(stage: str, config: Config, runs: Path) -> Path:
    """Build the stage and missing inputs in this process; return its folder."""
    for name in stages.missing_stages(stage, config, runs):
        build.build(name, config, runs, Ranks("trl"))
    return stages.folder(stage, config, runs)


def assert_logprobs_of(record: Trajectory, policy: str | Path) -> None:
    """Compare the recorded log-probabilities with those of a policy in float32."""
    model = load_model(str(policy), torch.float32)
    ids_T = torch.tensor(record.token_ids[None].astype(np.int64))
    with torch.no_grad():
        logp_TV = model(ids_T).logits[0].log_softmax(-1)
    sampled = record.generated.nonzero()[0]
    expected = logp_TV[sampled - 1, ids_T[0, sampled]].numpy()
    assert np.abs(record.logprobs[sampled] - expected).max() < 1e-4


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a policy's folder."""
    return load_file(folder / "model.safetensors")


def max_difference(left: dict, right: dict) -> float:
    """Return the largest absolute difference between two policies' weights."""
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)
