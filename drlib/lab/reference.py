"""`python -m drlib.lab reference`: the whole line for several seeds, with its controls.

Everything that figures and the README's table are drawn from is written to
`figures/reference/tour/`: sums, outcomes, learning curves, a few trajectories, and the policies
of one seed after SFT and after RL. Each seed repeats everything, pre-training included.

With `--only STAGE...`, other settings and another folder it keeps a variation of some stages:
`--set rl_oversample=2 --set rl_resample=sample --only rl --out figures/reference/resampling`.
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


def reference(
    config: Config, seeds: list[int], runs: Path, out: Path = OUT, only: list[str] | None = None
) -> Path:
    """Build what is missing, then write the reference files; returns their folder.

    `only`: the stages to evaluate and whose curves to keep; all of them, and policies, where None.
    """
    from drlib.evals.results import gather
    from drlib.training import stages

    names = [f"evaluate_{name}" for name in only or EVALUATED]
    for name in names:
        stages.stage(name)  # a misspelt one fails before anything is trained
    configs = [config.derive(seed=seed) for seed in seeds]
    for each in configs:
        for name in ("demonstrations", *names):
            ensure(name, each, runs=runs)
    gather(configs, runs, only or EVALUATED, _command(config, seeds, out, only)).save(out)
    for each in configs:
        for name in set(CURVES) & set(only or CURVES):
            _copy_curve(name, each, runs, out)
    if only is None:
        _copy_policies(configs[0], runs, out)
    return out


def _command(config: Config, seeds: list[int], out: Path, only: list[str] | None) -> str:
    """What makes this folder, as typed in the repository's folder."""
    from drlib.training import stages

    words = ["python -m drlib.lab reference --profile", config.profile, "--seeds", *map(str, seeds)]
    words += stages.overrides(config)
    words += ["--only", *only] if only else []
    if out.resolve() != OUT:
        inside = out.resolve().is_relative_to(ROOT)
        words += ["--out", str(out.resolve().relative_to(ROOT) if inside else out)]
    return " ".join(words)


def _copy_curve(name: str, config: Config, runs: Path, out: Path) -> None:
    from drlib.training import stages
    from drlib.training.run import read_metrics, write_atomically

    rows = read_metrics(stages.folder(name, config, runs))
    if not name.startswith("rl"):
        rows = [r for r in rows if r["step"] % THIN == 0 or r["step"] == 1]
    rounded = [{k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
               for row in rows]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rounded)
    write_atomically(out / f"seed{config.seed}_{name}.jsonl", lambda p: p.write_text(text))


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
