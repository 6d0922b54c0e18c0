"""`python -m drlib.lab reference`: the whole line for several seeds, with its controls.

Everything that figures and the README's table are drawn from is written to
`figures/reference/tour/`: sums, outcomes, learning curves, a few trajectories, and the policies
of one seed after SFT and after RL. Each seed repeats everything, pre-training included.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from drlib.config import Config
from drlib.lab.display import ROOT
from drlib.lab.launching import ensure

OUT = ROOT / "figures" / "reference" / "tour"
CURVES = ("cpt", "sft", "sft_continued", "rl", "rl_random_reward")
EVALUATED = ("untrained", "sft", "sft_continued", "rl", "closed_book", "rl_random_reward")
THIN = 10  # supervised curves keep every tenth step


def reference(config: Config, seeds: list[int], runs: Path, out: Path = OUT) -> Path:
    """Build what is missing, then write the reference files; returns their folder."""
    from drlib.evals.results import gather

    configs = [config.derive(seed=seed) for seed in seeds]
    for each in configs:
        for name in EVALUATED:
            ensure(f"evaluate_{name}", each, runs=runs)
    command = f"python -m drlib.lab reference --profile {config.profile} --seeds {_words(seeds)}"
    gather(configs, runs, EVALUATED, command).save(out)
    for each in configs:
        for name in CURVES:
            _copy_curve(name, each, runs, out)
    _copy_policies(configs[0], runs, out)
    return out


def _words(seeds: list[int]) -> str:
    return " ".join(map(str, seeds))


def _copy_curve(name: str, config: Config, runs: Path, out: Path) -> None:
    from drlib.training import stages
    from drlib.training.run import read_metrics, write_atomically

    rows = read_metrics(stages.folder(name, config, runs))
    if not name.startswith("rl"):
        rows = [r for r in rows if r["step"] % THIN == 0 or r["step"] == 1]
    text = "".join(json.dumps(_rounded(row)) + "\n" for row in rows)
    write_atomically(out / f"seed{config.seed}_{name}.jsonl", lambda p: p.write_text(text))


def _rounded(row: dict) -> dict:
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}


def _copy_policies(config: Config, runs: Path, out: Path) -> None:
    """The first seed's policies in bf16, and the trajectories that they were seen to make."""
    import torch

    from drlib.policy.moe import load_policy, save_policy
    from drlib.training import stages

    for name in ("sft", "rl"):
        model, tokenizer = load_policy(stages.folder(name, config, runs) / "policy")
        if (out / f"policy_{name}").exists():
            shutil.rmtree(out / f"policy_{name}")
        save_policy(model, tokenizer, out / f"policy_{name}", dtype=torch.bfloat16)
        seen = stages.folder(f"evaluate_{name}", config, runs)
        for decoding in ("greedy", "sampled"):
            shutil.copy(seen / f"{decoding}.parquet", out / f"{name}_{decoding}.parquet")
