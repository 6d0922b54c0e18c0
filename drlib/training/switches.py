"""The switches of reinforcement learning: which go together, and the loss that they describe."""

from drlib.config import Config
from drlib.rl.losses import LossConfig
from drlib.training.staleness import check_staleness
from drlib.training.steering import check_steering
from drlib.validation import require, require_within

LOSS_SWITCHES = (
    "clip",
    "level",
    "aggregate",
    "epsilon_low",
    "epsilon_high",
    "correction",
    "correction_level",
    "kl_coef",
    "kl_estimator",
    "kl_unbiased",
    "top_entropy",
)


def check_switches(config: Config) -> None:
    """ValueError for switches that would do nothing, or something else, without each other."""
    differ = off_policy(config) or config.rl_correction == "none"
    require(
        differ,
        f'rl_correction="{config.rl_correction}" compares the trainer with an engine '
        "that differs: set rl_engine, rl_staleness, rl_minibatches or rl_replay_groups too",
    )
    check_staleness(config)
    for name in ("rl_minibatches", "rl_oversample", "rl_sample_multiple", "rl_draws"):
        require(getattr(config, name) >= 1, f"{name} must be at least 1")
    require(
        config.rl_temperature > 0,
        "rl_temperature must be above 0: a greedy rollout has no probability to push up or down",
    )
    _check_rewards(config)
    _check_tokens(config)
    check_steering(config)
    paired = config.rl_oversample == 1 if config.rl_resample == "none" else config.rl_oversample > 1
    require(paired, "rl_oversample (from 2) and rl_resample go together")
    loss_config(config)


def _check_rewards(config: Config) -> None:
    """Of what is rewarded, and which groups are made."""
    require(
        config.rl_labels != "wrong" or config.rl_reward == "exact_match",
        'rl_labels="wrong" takes a wrong answer for the right one: set rl_reward=exact_match',
    )
    require(
        config.rl_overlong_buffer <= config.max_context_tokens,
        f"rl_overlong_buffer={config.rl_overlong_buffer} is longer than a context "
        f"(max_context_tokens={config.max_context_tokens})",
    )
    tries = config.rl_group * config.rl_oversample
    halves = not config.rl_adaptive_group or (tries >= 4 and config.rl_resample == "none")
    require(
        halves,
        "rl_adaptive_group decides by the first half of a group: set rl_group to 4 or more, and "
        "rl_resample=none",
    )
    plain = "+" not in config.rl_agent and not config.rl_agent.startswith("heavy")
    require(
        plain or not config.rl_adaptive_group,
        f'rl_adaptive_group makes half a group, and rl_agent="{config.rl_agent}" whole ones: '
        "set one agent alone",
    )
    require_within(config.rl_low_weight, "(0, 1]", "rl_low_weight")


def _check_tokens(config: Config) -> None:
    """Of which tokens learn, and what they are divided by."""
    require_within(config.rl_top_entropy, "(0, 1]", "rl_top_entropy")
    selects = config.rl_top_entropy < 1
    require(
        selects or config.rl_entropy_tokens == "top",
        f'rl_entropy_tokens="{config.rl_entropy_tokens}" goes with a share: set rl_top_entropy',
    )
    require(
        selects or config.rl_correction != "none" or config.rl_denominator == "kept",
        'rl_denominator="all" counts what rl_top_entropy or rl_correction drop: set one of them',
    )
    held = config.rl_kl_coef > 0
    require(
        held or (config.rl_kl_estimator == "k3" and not config.rl_kl_unbiased),
        "rl_kl_estimator and rl_kl_unbiased are of the KL term: set rl_kl_coef too",
    )


def loss_config(config: Config, kl_coef: float | None = None) -> LossConfig:
    """The loss that the `rl_` switches describe.

    kl_coef: in the place of the setting, where it is steered.
    """
    switches = {name: getattr(config, f"rl_{name}") for name in LOSS_SWITCHES}
    if kl_coef is not None:
        switches["kl_coef"] = kl_coef
    bounds = (config.rl_correction_low, config.rl_correction_high)
    return LossConfig(
        **switches,
        correction_bounds=bounds if any(bounds) else None,
        constant_tokens=config.max_context_tokens if config.rl_aggregate == "constant" else None,
        denominator=config.rl_denominator,
    )


def off_policy(config: Config) -> bool:
    """Whether the policy that learns may differ from the one that sampled."""
    older = config.rl_staleness > 0 or config.rl_replay_groups > 0
    return config.rl_minibatches > 1 or older or config.rl_engine != "float32"
