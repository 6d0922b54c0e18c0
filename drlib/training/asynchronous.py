"""Asynchronous GRPO: actors sample while the learner trains (rl.asynchronous.actors).

`AsyncGRPOTrainer` takes the steps of `GRPOTrainer`; only the source of rollouts differs. Instead of
sampling, it takes finished groups from a `RolloutPool`, and instead of an engine the pool gets the
new weights. Groups may be up to rl.asynchronous.max_lag updates old, so a loss for off-policy data
is needed: rl.loss.clip=ppo with rl.loss.correction (decoupled PPO of AReaL, arXiv 2505.24298), or
double_sided (GLM-5, arXiv 2602.15763).

The learner is one process. Actors run on the Ray cluster at RAY_ADDRESS, or else on this host.
"""

from drlib.config import Config
from drlib.training.grpo import GRPOTrainer, StageStart, engine_weights
from drlib.training.rollout_actor import ActorSetup
from drlib.training.rollout_pool import RolloutPool
from drlib.training.rollouts import Rollouts
from drlib.trajectory import Trajectory
from drlib.validation import require

# setting -> value that asynchronous training needs, and the reason
NEEDS = {
    "processes": (1, "the learner is one process"),
    "rl.sampling.draws": (1, "groups are taken as they finish"),
    "rl.curriculum.stages": ("one", "actors do not change the limits of rollouts"),
    "rl.curriculum.curation_every": (0, "probe questions need an engine beside the learner"),
    "rl.callbacks.world_change": (0, "rollouts from before the change would be trained after it"),
    "rl.off_policy.staleness": (0, "actors are behind by themselves (rl.asynchronous.max_lag)"),
    "rl.off_policy.routing_replay": ("none", "a context read again has routes of two policies"),
    "rl.off_policy.rollouts": ("", "stored rollouts need no actors"),
}


def check_asynchronous(config: Config) -> None:
    """Raise ValueError for settings that asynchronous training does not support."""
    settings = config.rl.asynchronous
    if settings.actors == 0:
        return
    for name, (value, reason) in NEEDS.items():
        found = config.unrestricted().get(name)
        require(
            found == value,
            f"rl.asynchronous.actors={settings.actors} does not go with {name}={found}: {reason}; "
            f"set {name}={value!r}",
        )
    require(
        settings.groups >= 1,
        f"rl.asynchronous.groups={settings.groups} must be at least 1",
    )
    local = not config.model.path or config.engine.name == "local"
    require(
        local or not settings.in_flight,
        f"rl.asynchronous.in_flight needs engine.name=local: {config.engine.name} changes its "
        "weights between turns only",
    )


class AsyncGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` with a pool of actors in place of its engine."""

    engine: RolloutPool

    def _open_engine(self, start: StageStart, extra: dict) -> RolloutPool:
        setup = ActorSetup(
            self.config.unrestricted(),
            engine_weights(self.model, self.config.rl.off_policy.engine_dtype),
            start.where,
            start.chat,
            start.system,
            start.world,
        )
        return RolloutPool(
            setup, self.scheduler, self.run.path, extra.get("version", 0), extra.get("pool")
        )

    def build_agent(self, config: Config) -> None:
        """Build no agent: the actors have their own."""

    def collect_rollouts(self, config: Config, step: int) -> Rollouts:
        """Take finished groups from the pool."""
        return self.engine.collect(self.curriculum)

    def step(self, step: int) -> tuple[dict, list[Trajectory]]:
        """Take one step; its metrics also describe the pool."""
        metrics, rollouts = super().step(step)
        return metrics | self.engine.metrics(), rollouts

    def close(self) -> None:
        """Stop the actors."""
        self.engine.close()

    def extra(self) -> dict:
        """Return the checkpoint besides the policy and its optimizer."""
        return super().extra() | {"pool": self.engine.state_dict()}
