"""The switches of reinforcement learning: which go together, and the loss that they describe."""

from drlib.config import Config
from drlib.rl.losses import LossConfig
from drlib.training.callbacks import check_callbacks
from drlib.training.policy_age import check_policy_age
from drlib.validation import require, require_within


def check_rl_settings(config: Config) -> None:
    """ValueError for switches that would do nothing, or something else, without each other."""
    differ = is_off_policy(config) or config.rl.loss.correction == "none"
    require(
        differ,
        f'rl.loss.correction="{config.rl.loss.correction}" compares the trainer with an engine '
        "that differs: set rl.off_policy.engine_dtype, rl.off_policy.staleness, rl.minibatches or rl.off_policy.replay_groups too",
    )
    check_policy_age(config)
    for name in (
        "rl.minibatches",
        "rl.sampling.oversample",
        "rl.advantage.sample_multiple",
        "rl.sampling.draws",
    ):
        require(config.get(name) >= 1, f"{name} must be at least 1")
    require(
        config.rl.temperature > 0,
        "rl.temperature must be above 0: a greedy rollout has no probability to push up or down",
    )
    _check_rewards(config)
    _check_tokens(config)
    check_callbacks(config)
    paired = (
        config.rl.sampling.oversample == 1
        if config.rl.sampling.resample == "none"
        else config.rl.sampling.oversample > 1
    )
    require(paired, "rl.sampling.oversample (from 2) and rl.sampling.resample go together")
    loss_config(config)


def _check_rewards(config: Config) -> None:
    """Of what is rewarded, and which groups are made."""
    require(
        config.rl.reward.labels != "wrong" or config.rl.reward.name == "exact_match",
        'rl.reward.labels="wrong" takes a wrong answer for the right one: set rl.reward.name=exact_match',
    )
    require(
        config.rl.reward.overlong_buffer <= config.rollout.max_context_tokens,
        f"rl.reward.overlong_buffer={config.rl.reward.overlong_buffer} is longer than a context "
        f"(rollout.max_context_tokens={config.rollout.max_context_tokens})",
    )
    tries = config.rl.group * config.rl.sampling.oversample
    halves = not config.rl.sampling.adaptive_group or (
        tries >= 4 and config.rl.sampling.resample == "none"
    )
    require(
        halves,
        "rl.sampling.adaptive_group decides by the first half of a group: set rl.group to 4 or more, and "
        "rl.sampling.resample=none",
    )
    plain = "+" not in config.rl.agent and not config.rl.agent.startswith("heavy")
    require(
        plain or not config.rl.sampling.adaptive_group,
        f'rl.sampling.adaptive_group makes half a group, and rl.agent="{config.rl.agent}" whole ones: '
        "set one agent alone",
    )
    require_within(config.rl.filter.low_weight, "(0, 1]", "rl.filter.low_weight")


def _check_tokens(config: Config) -> None:
    """Of which tokens learn, and what they are divided by."""
    require_within(config.rl.loss.top_entropy, "(0, 1]", "rl.loss.top_entropy")
    selects = config.rl.loss.top_entropy < 1
    require(
        selects or config.rl.loss.entropy_tokens == "top",
        f'rl.loss.entropy_tokens="{config.rl.loss.entropy_tokens}" goes with a share: set rl.loss.top_entropy',
    )
    require(
        selects or config.rl.loss.correction != "none" or config.rl.loss.denominator == "kept",
        'rl.loss.denominator="all" counts what rl.loss.top_entropy or rl.loss.correction drop: set one of them',
    )
    held = config.rl.loss.kl_coef > 0
    require(
        held or (config.rl.loss.kl_estimator == "k3" and not config.rl.loss.kl_unbiased),
        "rl.loss.kl_estimator and rl.loss.kl_unbiased are of the KL term: set rl.loss.kl_coef too",
    )


def loss_config(config: Config, kl_coef: float | None = None) -> LossConfig:
    """The loss that the `rl_` switches describe.

    kl_coef: in the place of the setting, where it is steered.
    """
    loss = config.rl.loss
    bounds = (config.rl.loss.correction_low, config.rl.loss.correction_high)
    return LossConfig(
        clip=loss.clip,
        level=loss.level,
        aggregate=loss.aggregate,
        epsilon_low=loss.epsilon_low,
        epsilon_high=loss.epsilon_high,
        correction=loss.correction,
        correction_level=loss.correction_level,
        kl_coef=loss.kl_coef if kl_coef is None else kl_coef,
        kl_estimator=loss.kl_estimator,
        kl_unbiased=loss.kl_unbiased,
        top_entropy=loss.top_entropy,
        correction_bounds=bounds if any(bounds) else None,
        constant_tokens=config.rollout.max_context_tokens
        if config.rl.loss.aggregate == "constant"
        else None,
        denominator=config.rl.loss.denominator,
    )


def is_off_policy(config: Config) -> bool:
    """Whether the policy that learns may differ from the one that sampled."""
    older = config.rl.off_policy.staleness > 0 or config.rl.off_policy.replay_groups > 0
    return config.rl.minibatches > 1 or older or config.rl.off_policy.engine_dtype != "float32"
