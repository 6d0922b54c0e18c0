"""The committed outcome model: sampled rollouts of the reference cold start, and training.

The cold start answers training questions in groups, as in the first steps of RL. Questions and
random numbers differ from those of the experiments with seeds 0 to 2.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_outcome_model.py
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch

from drlib.config import ROOT, Config
from drlib.files import write_atomic
from drlib.rewards.functions import make_reward
from drlib.training import stages
from drlib.training.reward_model import train_outcome_model
from drlib.training.rollouts import collect_rollouts
from tests.loop_examples import ColdStart

OUT = ROOT / "figures" / "reference" / "outcome_model"
SEED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    start, rollouts = ColdStart(), []
    with tempfile.TemporaryDirectory() as folder:
        config = Config.load("laptop", seed=SEED, rl__start=str(stages_start()))
        trainer = start.step(config, Path(folder) / "run")
        for step in range(args.steps):
            rollouts += collect_rollouts(
                trainer.agent, trainer.scheduler, trainer.curriculum, config, step, trainer.ranks
            ).everything
    start.close()
    row = train_outcome_model(rollouts, stages_start(), args.out, dtype=torch.bfloat16)
    row["rollouts"] = len(rollouts)
    row["accuracy"] = sum(t.reward_parts["correct"] for t in rollouts) / len(rollouts)
    reward = make_reward("outcome_model", path=str(args.out))
    values = {right: [] for right in (0.0, 1.0)}
    for t in rollouts[-1000:]:
        values[t.reward_parts["correct"]].append(reward(t, None).value)
    row |= {
        f"mean_reward_{name}": sum(some) / len(some)
        for name, some in (("wrong", values[0.0]), ("right", values[1.0]))
    }
    write_atomic(args.out / "results.json", json.dumps(row, indent=1))
    print(json.dumps(row, indent=1))


def stages_start() -> Path:
    """Return the committed cold start."""
    return stages.start_folder("rl", Config.load("ci"))


if __name__ == "__main__":
    main()
