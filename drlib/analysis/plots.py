"""The figures: each function takes numbers and returns a matplotlib Figure.

Nothing here trains, samples or saves. A notebook calls a function, hands the figure to
`lab.save_figure` and ends the cell with `plt.show()`. Colours come from the style sheet's cycle and
mean the same thing everywhere: C0 what should go up (positive advantage, the real reward), C1 what
should go down, grey a control or a reference.

Sections: shared pieces, GRPO by hand (notebook 05).
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.rl.advantages import leave_one_out
from drlib.rl.losses import LossConfig, policy_loss

UP, DOWN, CONTROL = "C0", "C1", "0.55"

# ---------------------------------------------------------------------------------------------
# shared pieces


def band(ax: Axes, curves: Sequence[Sequence[float]], color: str, label: str) -> None:
    """The mean of several runs' curves over their range, and each run as a thin line.

    Args:
        curves: one sequence of S values per run, all equally long.
    """
    runs = np.asarray(curves, dtype=float)
    if runs.ndim != 2:
        raise ValueError(f"curves must be runs of equal length, got shape {runs.shape}")
    steps = np.arange(runs.shape[1])
    ax.fill_between(steps, runs.min(axis=0), runs.max(axis=0), color=color, alpha=0.15, lw=0)
    ax.plot(steps, runs.T, color=color, lw=0.6, alpha=0.6)
    ax.plot(steps, runs.mean(axis=0), color=color, lw=2.2, label=label)


# ---------------------------------------------------------------------------------------------
# GRPO by hand (notebook 05)


def surrogate(
    ratios: Sequence[float], advantage: float, config: LossConfig
) -> tuple[np.ndarray, np.ndarray]:
    """The objective of one token and its gradient, as the library computes them.

    Args:
        ratios: R values of r = pi / pi_behaviour, each above 0.
        advantage: of the token's rollout.

    Returns:
        (objective_R, gradient_R): minus `policy_loss`, and its derivative by log pi.
    """
    ratios_R = torch.as_tensor(ratios, dtype=torch.float64)
    logp_R1 = ratios_R.log()[:, None].requires_grad_()
    objective_R = []
    for row in range(len(ratios_R)):
        token_11 = logp_R1[row : row + 1]
        ones = torch.ones(1, dtype=torch.float64)
        mask_11 = torch.ones(1, 1, dtype=torch.bool)
        loss, _ = policy_loss(token_11, token_11.detach() * 0, ones * advantage, mask_11, config)
        loss.backward()
        objective_R.append(-loss.item())
    return np.array(objective_R), -logp_R1.grad[:, 0].numpy()


def grpo_numbers(rewards: Sequence[float], ratio: float, config: LossConfig) -> dict:
    """One question's rollouts of one token each, all at the same ratio: what GRPO makes of them.

    Returns:
        `advantages` (list of N), `loss` (float), `pushes` (list of N: minus d loss / d log pi, how
        hard a rollout's token is pushed up) and `metrics` of `policy_loss`.
    """
    rewards_N = torch.tensor(rewards, dtype=torch.float64)
    advantages_N = leave_one_out(rewards_N, torch.zeros(len(rewards), dtype=torch.long))
    logp_N1 = torch.full((len(rewards), 1), ratio, dtype=torch.float64).log().requires_grad_()
    mask_N1 = torch.ones(len(rewards), 1, dtype=torch.bool)
    behaviour_N1 = torch.zeros_like(logp_N1)
    loss, metrics = policy_loss(logp_N1, behaviour_N1, advantages_N, mask_N1, config)
    loss.backward()
    pushes = (-logp_N1.grad[:, 0]).tolist()
    return dict(advantages=advantages_N.tolist(), loss=loss.item(), pushes=pushes, metrics=metrics)


def grpo_by_hand(
    trained: Sequence[Sequence[float]],
    control: Sequence[Sequence[float]],
    config: LossConfig | None = None,
) -> Figure:
    """Notebook 05's figure: the clipped surrogate, its gradient, and a bandit that learns.

    Args:
        trained: chance of the right answer per step, one curve per seed, with the real reward.
        control: the same with a random reward.
        config: the loss whose clip range is drawn.
    """
    config = config or LossConfig()
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for advantage, color, label in ((1, UP, "advantage +1"), (-1, DOWN, "advantage −1")):
        _surrogate_curves(left, middle, advantage, config, color, label)
    for ax, title in ((left, "Objective of one token"), (middle, "Its gradient")):
        _mark_clip_range(ax, config)
        ax.set(title=title, xlabel="ratio π / π behaviour")
    left.set_ylabel("min(r A, clip(r) A)")
    middle.set_ylabel("d objective / d log π")
    left.legend(loc="lower left")
    band(right, trained, UP, "reward for the right answer")
    band(right, control, CONTROL, "random reward (control)")
    right.set(title=f"Softmax bandit, {len(trained)} seeds", xlabel="step", ylim=(0, 1.02))
    right.set_ylabel("chance of the right answer")
    right.legend(loc="center right")
    return fig


def grpo_step(rewards: Sequence[float], ratio: float, config: LossConfig | None = None) -> Figure:
    """What the sliders of notebook 05 show: rewards to advantages to pushes on each rollout.

    Args:
        rewards: one per rollout. ratio: r of every rollout's token. config: clip range.
    """
    config = config or LossConfig()
    numbers = grpo_numbers(rewards, ratio, config)
    names = [f"#{i + 1}" for i in range(len(rewards))]
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    axes[0].bar(names, rewards, color=CONTROL)
    axes[0].set(title="Rewards", ylim=(0, 1.05))
    limits = {"Advantages (leave one out)": 1.1, "Pushes on log π": 0.47}
    for ax, key, title in zip(axes[1:], ("advantages", "pushes"), limits, strict=True):
        colors = [UP if value >= 0 else DOWN for value in numbers["advantages"]]
        ax.bar(names, numbers[key], color=colors)
        ax.axhline(0, color="0.3", lw=0.8)
        ax.set(title=title, ylim=(-limits[title], limits[title]))
    for i, (advantage, push) in enumerate(
        zip(numbers["advantages"], numbers["pushes"], strict=True)
    ):
        if advantage and not push:
            axes[2].text(i, 0.02, "clipped", ha="center", color=UP if advantage > 0 else DOWN)
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    fig.suptitle(f"ratio {ratio:.2f}, clip range {low:.2f} to {high:.2f}, "
                 f"loss {numbers['loss'] + 0.0:.3f}")  # fmt: skip
    return fig


def _surrogate_curves(left: Axes, middle: Axes, advantage, config, color, label) -> None:
    """Both curves of one advantage; the gradient breaks where it jumps to 0."""
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    cuts = [0.4, low, high, 1.7] if config.clip == "ppo" else [0.4, 1.7]
    for i, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        ratios = np.linspace(start + 1e-6, end - 1e-6, 12)
        objective, gradient = surrogate(ratios, advantage, config)
        left.plot(ratios, objective, color=color, label=label if i == 0 else None)
        middle.plot(ratios, gradient, color=color)


def _mark_clip_range(ax: Axes, config: LossConfig) -> None:
    ax.axvspan(1 - config.epsilon_low, 1 + config.epsilon_high, color="0.5", alpha=0.12, lw=0)
    ax.axvline(1, color="0.5", lw=0.8, ls=":")
    ax.axhline(0, color="0.5", lw=0.8, zorder=1)
