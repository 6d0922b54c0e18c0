"""The figures: each function takes numbers and returns a matplotlib Figure.

Nothing here trains, samples or saves. A notebook calls a function, hands the figure to
`notebook.save_figure` and ends the cell with `plt.show()`. Colours come from the style sheet's
cycle and mean the same thing everywhere: C0 what should go up (positive advantage, the real
reward), C1 what should go down, grey a control or a reference.
"""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.rl.advantages import leave_one_out
from drlib.rl.filtering import FilterConfig, filter_rollouts
from drlib.rl.losses import LossConfig, policy_loss
from drlib.trajectory import Trajectory

STYLE = Path(__file__).resolve().parents[1] / "drlib.mplstyle"  # the look of every figure
UP, DOWN, CONTROL = "C0", "C1", "0.55"
SAMPLED_PROBABILITY = 0.2  # with which the sampling policy said a token of the toys below

# shared pieces


def png_bytes(fig: Figure, dpi: int = 90) -> bytes:
    """The figure as a PNG; the figure is closed."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    plt.close(fig)
    return buffer.getvalue()


def plot_seed_band(
    ax: Axes,
    curves: Sequence[Sequence[float]],
    color: str,
    label: str,
    steps: Sequence[float] | None = None,
    *,
    style: str = "-",
    thick: float = 2.2,
) -> None:
    """The mean of several runs' curves; where they are several, their range and thin lines too.

    curves: one sequence of S values per run. steps: S places on the x axis; 0 to S - 1 when None.
    """
    runs = np.asarray(curves, dtype=float)
    if runs.ndim != 2:
        raise ValueError(f"curves must be runs of equal length, got shape {runs.shape}")
    steps = np.arange(runs.shape[1]) if steps is None else steps
    if len(runs) > 1:
        ax.fill_between(steps, runs.min(axis=0), runs.max(axis=0), color=color, alpha=0.15, lw=0)
        ax.plot(steps, runs.T, color=color, lw=0.6, alpha=0.6, ls=style)
    ax.plot(steps, runs.mean(axis=0), color=color, lw=thick, ls=style, label=label)


# GRPO by hand (notebook 05)


def compute_surrogate(
    ratios: Sequence[float], advantage: float, config: LossConfig
) -> tuple[np.ndarray, np.ndarray]:
    """The objective of one token and its gradient, as the library computes them.

    The token was sampled with chance `CHANCE`: the value (not the gradient) of a surrogate with a
    stop-gradient depends on it. With `level` "sequence" it has a neighbour that did not move.

    ratios: R values of r = pi / pi_behaviour, each above 0. advantage: of the token's rollout.
    Returns (objective_R, gradient_R): minus `policy_loss`, and its derivative by log pi.
    """
    tokens = 2 if config.level == "sequence" else 1
    found = [
        compute_grpo_step(
            [advantage], ratio, config, advantage=lambda rewards_N, _: rewards_N, lengths=[tokens]
        )
        for ratio in ratios
    ]
    gradients = [tokens * one["pushes"][0][0] for one in found]  # of the sum, not the mean
    return np.array([-one["loss"] for one in found]), np.array(gradients)


def plot_clip_shapes(configs: dict[str, LossConfig]) -> Figure:
    """Notebook 05's figure: the surrogate (above) and gradient (below) of losses by title."""
    fig, axes = plt.subplots(
        2,
        len(configs),
        figsize=(2.35 * len(configs), 5.0),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for (title, config), (above, below) in zip(configs.items(), axes.T, strict=True):
        above.set_title(title)
        below.set_xlabel("ratio π / π behaviour")
        ratios = _mark_clip_range((above, below), config)
        if config.clip in ("double_sided", "cispo"):
            above.text(0.4, 0.12, " stop-gradient:\n slope ≠ gradient", fontsize=8, va="bottom")
        for sign, color, width in ((1, UP, 2.8), (-1, DOWN, 1.5)):
            objective, gradient = compute_surrogate(ratios, sign, config)
            plain = compute_surrogate(ratios, sign, LossConfig(clip="none"))[1]
            below.plot(ratios, plain, color=CONTROL, lw=1, ls="--", label="no clip")
            label = f"advantage {'+' if sign > 0 else '−'}1"
            for ax, values in ((above, objective), (below, gradient)):
                jumps = np.flatnonzero(np.abs(np.diff(values)) > 0.3) + 1  # no line through them
                x = np.insert(ratios, jumps, np.nan)
                y = np.insert(values, jumps, np.nan)
                ax.plot(x, y, color=color, lw=width, label=label)
    axes[0, 0].set_ylabel("objective")
    axes[1, 0].set_ylabel("d objective / d log π")
    grey, up, _, down = axes[1, 0].get_legend_handles_labels()[0]
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
    """Compute GRPO's quantities for the N rollouts of one question; first tokens have moved.

    ratio: r of each rollout's first token; the others have r = 1. The policy that sampled is the
    reference of the KL term as well. advantage: the estimator, a function of
    `drlib.rl.advantages`. lengths: tokens of each rollout; 1 each when None.

    Returns `advantages` (list of N), `loss` (float), `pushes` (N arrays: minus d loss / d log pi,
    how hard each token is pushed up) and `metrics` of `policy_loss`.
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
    """A bar for each token of `grpo_numbers`; a cross where its gradient is 0."""
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
    """Plot the settings of notebook 05: from rewards to advantages to gradients per token.

    rewards: of N rollouts of one question. ratio: of each one's first token. config: the loss; the
    recipe's where None. how: `advantage` (the estimator) and `lengths` (tokens of each rollout).
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
    """Marks the clip range in the axes; the ratios to draw at, on both sides of its ends."""
    power = 2 if config.level == "sequence" else 1  # a neighbour at 1 halves log r
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


# filtering and resampling (notebook 07)

TOKEN_GROUPS = {
    "pushed up": UP,
    "up, less weight": "#9ecae9",
    "pushed down": DOWN,
    "down, less weight": "#f4bd8f",
    "idle: equal group": "0.82",
    "left out": "0.45",
}


def compute_token_shares(batch: Sequence[Trajectory], rule: FilterConfig, groups_N) -> list[float]:
    """Shares of the generated tokens under `rule` and leave-one-out, in the order of `FATES`."""
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
    """A row's `fates`, one bar a seed."""
    for at, bars in enumerate(rows.values()):
        ys = at + (np.arange(len(bars)) - (len(bars) - 1) / 2) * 0.84 / len(bars)
        ends = 100 * np.cumsum(bars, axis=1).T
        for left, end, (fate, color) in zip(
            [0 * ys, *ends], ends, TOKEN_GROUPS.items(), strict=False
        ):
            ax.barh(
                ys, end - left, 0.78 / len(bars), left=left, color=color, label=None if at else fate
            )
    ax.set(title="Fate of the tokens", xlim=(0, 100), xlabel="% of the generated tokens")
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.grid(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.4, -0.17), ncols=2)
