"""The line of `gpu1` in miniature: random models of three architectures, a few steps of each stage.

What has learned nothing answers nothing right, so the reward is drawn at random where a gradient is
wanted.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from drlib.config import Config
from drlib.training import build, stages
from drlib.training.distributed import Ranks
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


def miniature(folder: Path, kind: str, **changes) -> Config:
    """Settings of the line for a random model of this kind, which is made in `folder`."""
    where = folder / kind
    if not where.exists():
        random_model(where, kind)
    return Config.load("gpu1", **{**MINIATURE, "model.path": str(where), **changes})


def built(stage: str, config: Config, runs: Path) -> Path:
    """The stage's folder; what is missing is built in this process."""
    for name in stages.missing_stages(stage, config, runs):
        build.build(name, config, runs, Ranks("trl"))
    return stages.folder(stage, config, runs)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a policy's folder."""
    return load_file(folder / "model.safetensors")


def gap(left: dict, right: dict) -> float:
    """The largest difference between two policies' weights."""
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)
