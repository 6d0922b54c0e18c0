"""`drlib rewards serve | train`: a service for the reward `remote`, a model for `outcome_model`.

`serve` judges rollouts over HTTP; without DRLIB_REWARDS_TOKEN it listens on loopback only. `train`
reads judged rollouts, several for each question.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from drlib.cli.examples import add_examples

# argument of `serve` -> (default, help)
SERVE_OPTIONS = {
    "host": ("127.0.0.1", "address to listen on"),
    "port": (8732, "port to listen on"),
    "threads": (16, "samples judged at the same time"),
    "timeout_s": (30.0, "time limit of a sample, seconds"),
    "max_queue": (20000, "maximum number of waiting samples"),
    "plugins": ("", "modules that register rewards of your own, separated by commas"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib rewards", description=__doc__)
    add_examples(parser, "drlib rewards serve --port 8732")
    commands = parser.add_subparsers(dest="command", required=True)
    about = "serve all registered rewards"
    serve = commands.add_parser("serve", help=about, description=about)
    add_examples(serve, "drlib rewards serve --port 8732 --plugins my_rewards")
    for name, (value, about) in SERVE_OPTIONS.items():
        option = "--" + name.removesuffix("_s").replace("_", "-")
        note = f"{about} ({value})" if value != "" else about
        serve.add_argument(option, dest=name, type=type(value), default=value, help=note)
    about = "train an outcome model on judged rollouts"
    train = commands.add_parser("train", help=about, description=about)
    add_examples(train, "drlib rewards train rollouts.parquet --start runs/policy --out judge")
    train.add_argument("rollouts", nargs="+", type=Path, help="Parquet files of judged rollouts")
    train.add_argument("--start", required=True, help="folder of the policy that it starts from")
    train.add_argument("--out", required=True, type=Path, help="folder of the model")
    train.add_argument("--epochs", type=float, default=3.0, help="passes over the pairs (3)")
    train.add_argument("--lr", type=float, default=3e-4, help="learning rate (3e-4)")
    options = vars(parser.parse_args(argv))
    try:
        if options.pop("command") == "train":
            return _train(**options)
        from drlib.rewards import reward_service  # needs the cluster extra

        return reward_service.serve(**options)
    except (ValueError, OSError, ImportError) as error:
        print(f"drlib rewards: {error}", file=sys.stderr)
        return 1


def _train(rollouts: Sequence[Path], start: str, out: Path, **settings) -> int:
    """Train an outcome model; print its metrics as JSON."""
    from drlib.training.reward_model import train_outcome_model  # imports TRL: slow
    from drlib.trajectory import load_trajectories

    judged = [trajectory for path in rollouts for trajectory in load_trajectories(path)]
    print(json.dumps(train_outcome_model(judged, start, out, **settings)))
    return 0
