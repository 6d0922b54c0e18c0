"""Gradient variance of the policy under each advantage estimator; a script, not a test.

The cold start of the reference run answers training questions in groups, as a step of the loop
does. Within a group every estimator is leave-one-out times one number c: the group's mean takes
(G - 1) / G, dividing by the group's standard deviation 1 over it besides. So each live group's
gradient g is computed once, summed over its tokens, and what a batch of questions would step along
is the mean of c g over them; dead groups add nothing.

Told of each estimator, for each seed: tr(Cov(c g)) / |E(c g)|^2, the number of questions whose mean
has as much noise as signal. It does not depend on the learning rate, and the square of the mean is
made unbiased (the noise of the mean of all questions is taken off).

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_variance.py [--out FILE]
"""

import argparse
import copy
import json
import tempfile
from pathlib import Path

import torch

from drlib.config import ROOT
from drlib.files import write_atomic
from drlib.rl.advantages import ADVANTAGES
from drlib.training.batch import RolloutBatch
from drlib.training.distributed import Ranks
from drlib.training.learner import accumulate_gradients
from drlib.training.rollouts import collect_rollouts
from tests.loop_examples import ColdStart, gradient_of, settings

OUT = ROOT / "figures" / "reference" / "variance.json"
ESTIMATORS = ("leave_one_out", "group_mean", "group_normalized")


def groups_of(start: ColdStart, config) -> list[list]:
    """Return the rollouts of one step, by question."""
    with tempfile.TemporaryDirectory() as folder:
        step = start.step(config, Path(folder) / "run")
        rollouts = collect_rollouts(
            step.agent, step.scheduler, step.curriculum, config, 0, step.ranks
        )
    groups: dict[str, list] = {}
    for trajectory in rollouts.everything:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return list(groups.values())


def measured(start: ColdStart, config) -> dict:
    """Return the questions of one seed, those with a gradient, and each estimator's number."""
    groups, gradients, factors = groups_of(start, config), [], {name: [] for name in ESTIMATORS}
    model = copy.deepcopy(start.policy)
    for group in groups:
        rewards_N = torch.tensor([float(t.reward) for t in group])
        same_N = torch.zeros(len(group), dtype=torch.long)
        advantages = {name: ADVANTAGES[name](rewards_N, same_N) for name in ESTIMATORS}
        base_N = advantages["leave_one_out"]
        if not base_N.any():
            continue
        row = accumulate_gradients(
            model, [RolloutBatch(group, base_N, torch.ones(len(group)))], config, Ranks()
        )
        gradients.append(gradient_of(model) * row["tokens"])
        for name, found_N in advantages.items():
            (c,) = {round(float(c), 5) for c in found_N / base_N}
            factors[name].append(c)
    products_LL = torch.stack(gradients).double() @ torch.stack(gradients).double().T
    told = {"questions": len(groups), "live": len(gradients)}
    return told | {name: noise(products_LL, factors[name], len(groups)) for name in ESTIMATORS}


def noise(products_LL: torch.Tensor, factors: list[float], questions: int) -> float:
    """From the products of the live groups' gradients with each other."""
    c_L = torch.tensor(factors, dtype=torch.float64)
    scaled_LL = products_LL * c_L[:, None] * c_L
    of_mean = float(scaled_LL.sum()) / questions**2
    spread = (float(scaled_LL.trace()) - questions * of_mean) / (questions - 1)
    return spread / (of_mean - spread / questions)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=192)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start, rows = ColdStart(), []
    usual = {"rl.questions": args.questions, "rl.group": 8, "trainer.balance_coef": 0.0}
    for seed in args.seeds:
        # over-long failures too, so that an estimator's factor is one number in a group
        config = settings(**usual, seed=seed, rl__filter__overlong="keep")
        rows.append({"seed": seed, **measured(start, config)})
        print(rows[-1])
    start.close()
    command = "OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_variance.py"
    write_atomic(
        args.out, json.dumps({"command": command, "group": 8, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
