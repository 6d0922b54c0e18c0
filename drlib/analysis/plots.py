"""Plots shared by notebooks, and those of the GRPO and filtering notebooks.

Functions compute and draw; they do not train, sample or save. Use `notebook.save_figure` to save.
Colours have the same meaning everywhere: C0 for positive advantages and the real reward, C1 for
negative advantages, grey for controls and references.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.rl.advantages import leave_one_out
from drlib.rl.filtering import FilterConfig, filter_rollouts
from drlib.rl.losses import LossConfig, policy_loss
from drlib.trajectory import Trajectory

SAMPLED_PROBABILITY = 0.2  # probability of each token under the sampling policy of the examples

# shared


def plot_seed_band(
    ax: Axes,
    curves: ArrayLike,
    color: str,
    label: str,
    steps: ArrayLike | None = None,
    *,
    style: str = "-",
    thick: float = 2.2,
) -> None:
    """Plot the mean of several runs, with their range and thin lines for single runs.

    Args:
        ax: axes to draw into.
        curves: S values per run.
        color: colour of all lines.
        label: label of the mean.
        steps: S x values; default: 0 to S - 1.
        style: line style.
        thick: line width of the mean.

    Raises:
        ValueError: runs of different lengths.

    """
    runs = np.asarray(curves, dtype=float)
    if runs.ndim != 2:
        raise ValueError(f"curves must be runs of equal length, got shape {runs.shape}")
    steps = np.arange(runs.shape[1]) if steps is None else steps
    if len(runs) > 1:
        ax.fill_between(steps, runs.min(axis=0), runs.max(axis=0), color=color, alpha=0.15, lw=0)
        ax.plot(steps, runs.T, color=color, lw=0.6, alpha=0.6, ls=style)
    ax.plot(steps, runs.mean(axis=0), color=color, lw=thick, ls=style, label=label)


# GRPO by hand (notebook 03)


def compute_surrogate(
    ratios: Iterable[float], advantage: float, config: LossConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the surrogate objective of one token and its gradient with `policy_loss`.

    The token has probability `SAMPLED_PROBABILITY`, which determines the value (not the gradient)
    of a surrogate with stop-gradient. With `level` "sequence" the rollout has a second token with
    ratio 1.

    Args:
        ratios: R values of r = pi / pi_behaviour, each above 0.
        advantage: advantage of the rollout.
        config: loss settings.

    Returns:
        (objective_R, gradient_R): minus `policy_loss`, and its derivative with respect to log pi.

    """
    tokens = 2 if config.level == "sequence" else 1
    found = [
        compute_grpo_step(
            [advantage], ratio, config, advantage=lambda rewards_N, _: rewards_N, lengths=[tokens]
        )
        for ratio in ratios
    ]
    gradients = [tokens * one["pushes"][0][0] for one in found]  # gradient of the sum
    return np.array([-one["loss"] for one in found]), np.array(gradients)


def plot_clip_shapes(configs: dict[str, LossConfig]) -> Figure:
    """Plot d objective / d log pi of one token against its ratio, for losses by title."""
    fig, axes = plt.subplots(
        1,
        len(configs),
        figsize=(2.35 * len(configs), 3.1),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for (title, config), ax in zip(configs.items(), axes.flat, strict=True):
        ax.set(title=title, xlabel="ratio π / π behaviour")
        ratios = _mark_clip_range((ax,), config)
        for sign, color, width in ((1, UP, 2.8), (-1, DOWN, 1.5)):
            plain = compute_surrogate(ratios, sign, LossConfig(clip="none"))[1]
            ax.plot(ratios, plain, color=CONTROL, lw=1, ls="--", label="no clip")
            gradient = compute_surrogate(ratios, sign, config)[1]
            jumps = np.flatnonzero(np.abs(np.diff(gradient)) > 0.3) + 1  # break the line at jumps
            x = np.insert(ratios, jumps, np.nan)
            y = np.insert(gradient, jumps, np.nan)
            ax.plot(x, y, color=color, lw=width, label=f"advantage {'+' if sign > 0 else '−'}1")
    axes[0, 0].set_ylabel("d objective / d log π")
    grey, up, _, down = axes[0, 0].get_legend_handles_labels()[0]
    fig.legend(handles=[up, down, grey], loc="outside upper right", ncols=3)
    return fig


def compute_grpo_step(
    rewards: Sequence[float],
    ratio: float,
    config: LossConfig,
    *,
    advantage: Callable = leave_one_out,
    lengths: Sequence[int] | None = None,
) -> dict:
    """Compute advantages, loss and gradients of GRPO for N rollouts of one question.

    The sampling policy is also the reference of the KL term.

    Args:
        rewards: N rewards.
        ratio: r of the first token of each rollout; other tokens have r = 1.
        config: loss settings.
        advantage: estimator from `drlib.rl.advantages`.
        lengths: tokens per rollout; default: 1.

    Returns:
        `advantages` (list of N), `loss` (float), `pushes` (N arrays, minus d loss / d log pi) and
        `metrics` of `policy_loss`.

    """
    lengths_N1 = torch.tensor(lengths or [1] * len(rewards))[:, None]
    rewards_N = torch.tensor(rewards, dtype=torch.float64)
    advantages_N = advantage(rewards_N, torch.zeros(len(rewards), dtype=torch.long))
    mask_NT = torch.arange(int(lengths_N1.max())) < lengths_N1
    behaviour_NT = torch.full(mask_NT.shape, SAMPLED_PROBABILITY, dtype=torch.float64).log()
    logp_NT = behaviour_NT.clone()
    logp_NT[:, 0] += math.log(ratio)
    logp_NT.requires_grad_()
    loss, metrics = policy_loss(
        logp_NT, behaviour_NT, advantages_N, mask_NT, config, reference_logp_BT=behaviour_NT
    )
    loss.backward()
    pushes = [-row[kept].numpy() for row, kept in zip(logp_NT.grad, mask_NT, strict=True)]
    return dict(advantages=advantages_N.tolist(), loss=loss.item(), pushes=pushes, metrics=metrics)


def plot_token_pushes(ax: Axes, numbers: dict, title: str) -> None:
    """Plot the gradient of each token from `compute_grpo_step`; a cross marks zero gradients."""
    start = 0
    ticks = []
    for advantage, pushes in zip(numbers["advantages"], numbers["pushes"], strict=True):
        places = start + np.arange(len(pushes))
        color = UP if advantage >= 0 else DOWN
        ax.bar(places, pushes, color=color)
        ax.plot(places[pushes == 0], pushes[pushes == 0], "x", color=color, mew=1.5)
        ticks.append(places.mean())
        start += len(pushes) + 1
    ax.axhline(0, color="0.3", lw=0.8)
    ax.set_xticks(ticks, [f"#{i + 1}" for i in range(len(ticks))])
    ax.grid(visible=False, axis="x")
    ax.set_title(title)


def plot_grpo_step(rewards: Sequence[float], ratio: float, config=None, **how) -> Figure:
    """Plot a GRPO step: rewards, advantages and gradients per token.

    Args:
        rewards: rewards of N rollouts of one question.
        ratio: ratio of the first token of each rollout.
        config: loss settings; default: `LossConfig()`.
        how: `advantage` and `lengths` of `compute_grpo_step`.
    """
    config = config or LossConfig()
    numbers = compute_grpo_step(rewards, ratio, config, **how)
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), width_ratios=(3, 3, 5), layout="constrained")
    names = [f"#{i + 1}" for i in range(len(rewards))]
    axes[0].bar(names, rewards, color=CONTROL)
    axes[0].set(title="Rewards", ylim=(0, 1.05))
    colors = [UP if value >= 0 else DOWN for value in numbers["advantages"]]
    axes[1].bar(names, numbers["advantages"], color=colors)
    axes[1].axhline(0, color="0.3", lw=0.8)
    title = how.get("advantage", leave_one_out).__name__.replace("_", " ")
    axes[1].set(title=f"Advantages ({title})", ylim=(-1.65, 1.65))
    plot_token_pushes(axes[2], numbers, "Push on log π of each token")
    limit = max(0.12, 1.1 * max(abs(push) for row in numbers["pushes"] for push in row))
    axes[2].set_ylim(-limit, limit)
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    fig.suptitle(
        f"ratio of each first token {ratio:.2f}, clip range {low:.2f} to {high:.2f}, "
        f"loss {numbers['loss'] + 0.0:.3f}"
    )
    return fig


def _mark_clip_range(axes: Sequence[Axes], config: LossConfig) -> np.ndarray:
    """Mark the clip range in the axes; return ratios that include both sides of its ends."""
    power = 2 if config.level == "sequence" else 1  # a second token with ratio 1 halves log r
    low = (1 - config.epsilon_low) ** power
    high = (1 + config.epsilon_high) ** power
    ratios = np.linspace(0.4, 1.8, 22)
    for ax in axes:
        if config.clip != "none":
            start = ratios[0] if config.clip == "cispo" else low
            ax.axvspan(start, high, color="0.5", alpha=0.12, lw=0)
        ax.axvline(1, color="0.5", lw=0.8, ls=":")
        ax.axhline(0, color="0.5", lw=0.8, zorder=1)
    beside = [low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6]
    return np.sort([*ratios, *beside])


# filtering and resampling (notebook 18)

TOKEN_GROUPS = {
    "pushed up": UP,
    "up, less weight": "#9ecae9",
    "pushed down": DOWN,
    "down, less weight": "#f4bd8f",
    "no gradient: equal rewards": "0.82",
    "left out": "0.45",
}


def plot_kept_variance(ax: Axes, made: int, keep: int) -> None:
    """Plot the probability that a group keeps both outcomes if `keep` of `made` rollouts are kept.

    GRPO-RoC's quotas always keep both. A uniform choice loses one of them with a hypergeometric
    probability.
    """
    right = np.arange(1, made)
    lost = [math.comb(n, keep) + math.comb(made - n, keep) for n in right.tolist()]
    ax.plot(right, np.full(made - 1, 100.0), "o-", label="RoC")
    uniform = 100 - 100 * np.array(lost) / math.comb(made, keep)
    ax.plot(right, uniform, "o--", color=CONTROL, label="uniform choice")
    ax.set(title="Groups that keep their variance", ylim=(-4, 106), ylabel="probability, %")
    ax.set_xlabel(f"right of {made} rollouts, {keep} are kept")
    ax.legend(loc="center")


def compute_token_shares(batch: Sequence[Trajectory], rule: FilterConfig, groups_N) -> list[float]:
    """Compute the share of generated tokens in each of `TOKEN_GROUPS` under a filter rule.

    Args:
        batch: N rollouts with rewards.
        rule: filter settings.
        groups_N: group of each rollout, for leave-one-out advantages.
    """
    weights_N, in_baseline_N, _ = filter_rollouts(batch, rule)
    rewards_N = torch.tensor([t.reward or 0.0 for t in batch])
    push_N = weights_N * leave_one_out(rewards_N, groups_N, in_baseline_N)
    tokens_N = torch.tensor([float(t.generated.sum()) for t in batch])
    full_N, up_N, down_N = weights_N == 1, push_N > 0, push_N < 0
    idle_N = (push_N == 0) & (weights_N > 0)
    parts = (up_N & full_N, up_N & ~full_N, down_N & full_N, down_N & ~full_N, idle_N)
    parts += (weights_N == 0,)
    return [(tokens_N[part].sum() / tokens_N.sum().clamp(min=1)).item() for part in parts]


def plot_token_shares(ax: Axes, rows: dict[str, Sequence[Sequence[float]]]) -> None:
    """Plot token shares: rows by label, one bar per seed (`compute_token_shares`)."""
    for at, bars in enumerate(rows.values()):
        ys = at + (np.arange(len(bars)) - (len(bars) - 1) / 2) * 0.84 / len(bars)
        ends = 100 * np.cumsum(bars, axis=1).T
        for left, end, (group, color) in zip(
            [0 * ys, *ends], ends, TOKEN_GROUPS.items(), strict=False
        ):
            ax.barh(
                ys,
                end - left,
                0.78 / len(bars),
                left=left,
                color=color,
                label=None if at else group,
            )
    ax.set(title="Fate of the tokens", xlim=(0, 100), xlabel="% of the generated tokens")
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.grid(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.17), ncols=2)
