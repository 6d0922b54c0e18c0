"""The line of `gpu1` in miniature: random models of three architectures, a few steps of each stage.

What has learned nothing answers nothing right, so the reward is drawn at random where a gradient is
wanted.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from drlib.config import Config
from drlib.training import build, stages
from drlib.training.ranks import Ranks
from tests.template_examples import random_model

MINIATURE = {
    "dtype": "float32",
    "engine": "hf",
    "engine_gap": 1e-4,
    "world_pages": 100,
    "vocabulary": 2048,
    "questions": "chains",
    "search_results": 2,
    "max_calls": 3,
    "max_turn_tokens": 24,
    "max_context_tokens": 3000,
    "teacher": "solver",
    "demonstrations": 24,
    "sft_steps": 3,
    "sft_batch_tokens": 4096,
    "sft_adam_lr": 1e-3,
    "pack_tokens": 2048,
    "lora_rank": 4,
    "gradient_checkpointing": False,
    "rl_steps": 2,
    "rl_questions": 2,
    "rl_group": 2,
    "rl_lr": 1e-3,
    "rl_warmup_steps": 0,
    "rl_reward": "random",
    "rl_overlong": "keep",
    "checkpoint_every": 1,
    "eval_questions": 2,
    "eval_samples": 1,
}


def miniature(folder: Path, kind: str, **changes) -> Config:
    """Settings of the line for a random model of this kind, which is made in `folder`."""
    where = folder / kind
    if not where.exists():
        random_model(where, kind)
    return Config.load("gpu1", **{**MINIATURE, "model": str(where), **changes})


def built(stage: str, config: Config, runs: Path) -> Path:
    """The stage's folder; what is missing is built in this process."""
    for name in stages.needed(stage, config, runs):
        build.build(name, config, runs, Ranks("trl"))
    return stages.folder(stage, config, runs)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of a policy's folder."""
    return load_file(folder / "model.safetensors")


def gap(left: dict, right: dict) -> float:
    """The largest difference between two policies' weights."""
    assert left.keys() == right.keys()
    return max((left[name] - right[name]).abs().max().item() for name in left)
