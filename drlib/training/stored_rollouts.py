"""Stored rollouts: write those of a run, and train offline from such files.

With rl.save_rollouts a run writes all rollouts of each step to `trajectories_NNNN.parquet`. With
rl.off_policy.rollouts a run trains on such files instead of sampling: groups are drawn in shuffled
epochs, with the rewards and the log-probabilities of the behaviour policy that were stored. All
other settings keep their meaning. These select the published offline methods:

    behaviour cloning      rl.loss.clip=log_likelihood, rl.advantage.estimator=uniform
    cloning of successes   rl.loss.clip=log_likelihood, rl.advantage.estimator=reward
    reward-weighted        rl.loss.clip=log_likelihood, rl.advantage.estimator=exponential
    one-step               rl.loss.clip=none, one epoch: the importance-weighted policy gradient
    multi-step             rl.loss.clip=ppo, several epochs: groups are used again

One-step and multi-step are those of Brandfonbrener et al. (arXiv 2106.08909); reward-weighted
regression is Peters and Schaal (ICML 2007). Not supported: new rewards for stored rollouts.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from drlib.config import FIELDS, Config, list_rollout_files
from drlib.rl.curriculum import Epochs
from drlib.training.distributed import Ranks
from drlib.training.rollouts import Rollouts
from drlib.trajectory import Trajectory, iter_trajectories, save_trajectories
from drlib.validation import require

KEPT_GROUPS = 4  # saved at the first, the middle and the last step without rl.save_rollouts
NOT_READ = ("routed_experts", "top_ids", "top_logprobs")
FACTS = ("skill", "source")  # metadata that the metrics of a step need
# Settings of sampling and rewarding, which have no effect on stored rollouts.
UNUSED = (
    "engine.name",
    "rl.agent",
    "rl.filter.max_age",
    "rl.off_policy.staleness",
    "rl.off_policy.engine_dtype",
    "rl.off_policy.routing_replay",
    "rl.off_policy.replay_groups",
    "rl.sampling.oversample",
    "rl.sampling.resample",
    "rl.sampling.adaptive_group",
    "rl.sampling.draws",
    "rl.sampling.fork_temperature",
    "rl.reward.name",
    "rl.reward.arguments",
    "rl.reward.labels",
    "rl.reward.overlong_buffer",
    "rl.curriculum.pool",
    "rl.callbacks.world_change",
    "rl.save_rollouts",
)


class StoredRolloutError(ValueError):
    """Stored rollouts cannot be trained on; the message names the file and the row."""


def write_rollouts(
    folder: Path,
    step: int,
    rollouts: Sequence[Trajectory],
    config: Config,
    ranks: Ranks,
    is_last: bool = False,
) -> None:
    """Write the rollouts of a step: all of them with rl.save_rollouts, else a few of some steps.

    Args:
        step: counted from 0.
        rollouts: those of this process.
        is_last: the run stops after this step.
    """
    kept_steps = (0, config.rl.steps // 2, config.rl.steps - 1)
    if config.rl.save_rollouts:
        # a group's name ends with its question's number: equal files on any number of processes
        kept = sorted(ranks.gather([*rollouts]), key=_question_number)
    elif step in kept_steps or is_last:
        kept = list(rollouts[: KEPT_GROUPS * config.rl.group])
    else:
        return
    if ranks.first:
        save_trajectories(folder / f"trajectories_{step + 1:04d}.parquet", kept)


def _question_number(trajectory: Trajectory) -> int:
    return int(trajectory.group_id.rpartition("-")[2])


class StoredRollouts:
    """Groups of rollouts from files, drawn in shuffled epochs.

    Args:
        config: rl.off_policy.rollouts names the files.
        vocabulary: number of tokens of the policy.

    Raises:
        StoredRolloutError: a file is missing, damaged or without groups, or a row lacks what
            training needs.
    """

    def __init__(self, config: Config, vocabulary: int):
        self.config = config
        self.groups: dict[str, list[Trajectory]] = {}
        where = config.rl.off_policy.rollouts
        files = list_rollout_files(where)
        if not files:
            raise StoredRolloutError(
                f"rl.off_policy.rollouts={where!r}: there is no rollout file; pass a Parquet file, "
                "or the folder of a run with rl.save_rollouts=true"
            )
        # a group's name contains the seed of its step, so names differ between files
        for file in files:
            for trajectory in read_rollouts(file, vocabulary):
                self.groups.setdefault(trajectory.group_id, []).append(trajectory)
        if not self.groups:
            raise StoredRolloutError(f"rl.off_policy.rollouts={where!r}: the files have no rows")
        self.epochs = Epochs(self.groups, config.seed)

    def draw(self, ranks: Ranks) -> Rollouts:
        """Return the next rl.questions groups, divided over shards as sampled ones are."""
        names = self.epochs.draw(self.config.rl.questions)
        shards = [
            [t for i in ranks.assign(len(names), shard) for t in self.groups[names[i]]]
            for shard in ranks.shards
        ]
        return Rollouts(shards, shards, 1)


def read_rollouts(path: Path, vocabulary: int) -> list[Trajectory]:
    """Return the rollouts of a file after checking every row.

    Raises:
        StoredRolloutError: names the file, the row (from 1) and the remedy.
    """
    found: list[Trajectory] = []
    try:
        for trajectory in iter_trajectories(path, without=NOT_READ):
            _check_rollout(trajectory, vocabulary)
            found.append(trajectory)
    except (OSError, TypeError, ValueError, KeyError) as fault:
        raise StoredRolloutError(f"{path}, row {len(found) + 1}: {fault}") from fault
    return found


def _check_rollout(trajectory: Trajectory, vocabulary: int) -> None:
    """Raise ValueError if a stored rollout cannot be trained on."""
    missing = [f"metadata {name!r}" for name in FACTS if name not in trajectory.metadata]
    missing += ["reward part 'correct'"] if "correct" not in trajectory.reward_parts else []
    missing += ["entropies"] if trajectory.entropies is None else []
    require(
        not missing,
        f"rollout {trajectory.id} has no {', '.join(missing)}: pass rollouts of stage rl",
    )
    reward = trajectory.reward
    require(
        reward is None or bool(np.isfinite(reward)),
        f"rollout {trajectory.id} has the reward {reward}: leave it out",
    )
    own_T = trajectory.generated
    require(
        bool(np.isfinite(trajectory.logprobs[own_T]).all()),
        f"rollout {trajectory.id} has tokens without a log-probability of the policy that sampled "
        "them: pass rollouts of an engine that reports them",
    )
    ids_T = trajectory.token_ids
    require(
        len(ids_T) > 0 and int(ids_T.min()) >= 0 and int(ids_T.max()) < vocabulary,
        f"rollout {trajectory.id} has token ids outside the policy's vocabulary of {vocabulary}: "
        "pass rollouts of a policy with the same tokenizer",
    )


def check_stored_rollouts(config: Config) -> None:
    """Raise ValueError for settings without effect on stored rollouts."""
    if not config.rl.off_policy.rollouts:
        return
    for name in UNUSED:
        usual = FIELDS[name].default
        require(
            config.get(name) == usual,
            f"{name}={config.get(name)!r} has no effect on the stored rollouts of "
            f"rl.off_policy.rollouts: set {name}={usual!r}",
        )
