"""What is kept of an arm of a comparison: its rows, its learning curves, and rollouts to read.

Findings and sweeps write the same files: `results.json` and `outcomes.json` (every question's
outcomes, from which intervals are made), `seedN_STAGE.jsonl` and `seedN_greedy.parquet`.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from drlib.config import Config
from drlib.evaluation.results import gather
from drlib.files import write_json_lines
from drlib.training import stages
from drlib.training.run_folder import read_metrics

THIN = 10  # supervised curves keep every tenth step


def save_arm(
    configs: Sequence[Config],
    stage: str,
    runs: Path,
    command: str,
    out: Path,
    *,
    demonstrator: bool = True,
) -> None:
    """Write what is kept of the evaluated `stage` of an arm, one config a seed, to the folder.

    demonstrator: whether the teacher's own answers are rows too (its stage must be there then).
    """
    gather(configs, runs, [stage], command, demonstrator=demonstrator).save(out)
    for config in configs:
        copy_curve(stage, config, runs, out)
        copy_rollouts(stage, config, runs, out)


def copy_curve(stage: str, config: Config, runs: Path, out: Path) -> None:
    """The metrics of a stage's steps, rounded, as `seedN_STAGE.jsonl`, where it took steps."""
    steps = stages.STAGES[stage].steps
    if not steps or not config.get(steps):
        return
    rows = read_metrics(stages.folder(stage, config, runs))
    if not stage.startswith("rl"):
        rows = [row for row in rows if row["step"] % THIN == 0 or row["step"] == 1]
    rounded = [
        {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]
    write_json_lines(out / curve_name(stage, config.seed), rounded)


def curve_name(stage: str, seed: int) -> str:
    """The file of a seed's curve, in an arm's folder."""
    return f"seed{seed}_{stage}.jsonl"


def copy_rollouts(stage: str, config: Config, runs: Path, out: Path) -> None:
    """The greedy rollouts that an evaluation keeps, as `seedN_greedy.parquet`: a finding is a
    number, and what the policies did can be read there."""
    kept = stages.folder(f"evaluate_{stage}", config, runs) / "greedy.parquet"
    shutil.copyfile(kept, out / f"seed{config.seed}_greedy.parquet")
