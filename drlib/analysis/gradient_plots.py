"""Plots of the policy gradient: baselines, clips, KLs, bias and noise, single updates."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.analysis.plots import compute_surrogate
from drlib.rl.losses import LossConfig
from drlib.trajectory import Trajectory

STYLES = ("-", "--", ":")


def best_baselines(chances: ArrayLike, rewards: ArrayLike) -> tuple[float, float]:
    """Return the expected reward and the baseline of least variance of a softmax bandit.

    The second is the mean of the rewards weighted by the squared score (Greensmith et al., JMLR
    2004, theorem 8, for one state).

    Args:
        chances: probabilities of V answers.
        rewards: their rewards.
    """
    p, r = np.asarray(chances, float), np.asarray(rewards, float)
    weight = p * _squared_scores(p)
    return float(p @ r), float(weight @ r / weight.sum())


def plot_baselines(ax: Axes, chances: ArrayLike, rewards: ArrayLike) -> None:
    """Plot the variance of the gradient of one sample against the baseline, of a softmax bandit.

    Marks no baseline, the expected reward, and the best baseline.

    Args:
        ax: axes to draw into.
        chances: probabilities of V answers.
        rewards: their rewards, not negative.
    """
    p, r = np.asarray(chances, float), np.asarray(rewards, float)
    mean, best = best_baselines(p, r)

    def variance(b):
        exact = p * (r - mean)
        return ((r - b) ** 2) @ (p * _squared_scores(p)) - exact @ exact

    grid = np.linspace(0, max(r.max(), 1e-9), 101)
    ax.plot(grid, [variance(b) for b in grid], color=CONTROL)
    for name, b in (("no baseline", 0.0), ("expected reward", mean), ("best", best)):
        ax.plot(b, variance(b), "o", label=f"{name}: {b:.3f}")
    ax.set(title="Variance of one sample", xlabel="baseline b", ylim=(0, None))
    ax.legend(fontsize=8)


def draw_bandit(paris: float, oslo: float, added: float) -> Figure:
    """Draw `plot_baselines` for the three answers of notebook 02.

    Args:
        paris: probability of Paris; two thirds of the rest are Rome, one third Oslo.
        oslo: reward of Oslo; Paris has 1, Rome 0.
        added: added to all rewards.
    """
    fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
    chances = [paris, 2 * (1 - paris) / 3, (1 - paris) / 3]
    plot_baselines(ax, chances, [1 + added, added, oslo + added])
    return fig


def _squared_scores(chances: np.ndarray) -> np.ndarray:
    """Return |grad log pi(k)|^2 for the logits of a softmax, for each answer k."""
    return ((np.eye(len(chances)) - chances) ** 2).sum(1)


def plot_means(ax: Axes, curves: dict[str, ArrayLike], colors: Sequence[str]) -> None:
    """Plot means over runs with two standard errors.

    Args:
        ax: axes to draw into.
        curves: values [steps, runs] by name.
        colors: one per curve.
    """
    for (name, values), color in zip(curves.items(), colors, strict=True):
        runs = np.asarray(values, float)
        mean, error = runs.mean(1), 2 * runs.std(1, ddof=1) / runs.shape[1] ** 0.5
        ax.fill_between(range(len(runs)), mean - error, mean + error, color=color, alpha=0.25, lw=0)
        ax.plot(mean, color=color, label=name)
    ax.legend(fontsize=8)


def plot_gradients(
    ax: Axes, gradients: Mapping[str, ArrayLike], answers: Sequence[str], title: str = ""
) -> None:
    """Plot one bar per answer and rule: the expected gradient of the answer's logit.

    Args:
        ax: axes to draw into.
        gradients: rule -> one gradient per answer.
        answers: labels of the answers.
        title: title of the legend.
    """
    width = 0.8 / len(gradients)
    for number, (rule, gradient) in enumerate(gradients.items()):
        at = np.arange(len(answers)) + width * (number - (len(gradients) - 1) / 2)
        ax.bar(at, np.asarray(gradient), 0.92 * width, label=rule)
    ax.axhline(0, color="0.3", lw=1)
    ax.set_xticks(range(len(answers)), answers)
    ax.set(title="Expected gradient", ylabel="gradient of the answer's logit")
    ax.legend(title=title, fontsize=8, title_fontsize=8)


def plot_clip_factors(ax: Axes, rules: dict[str, LossConfig]) -> None:
    """Plot the factor of grad log pi against the ratio, for positive and negative advantages.

    Args:
        ax: axes to draw into.
        rules: up to three losses by name.
    """
    grid = np.linspace(0.4, 1.8, 71)
    for (name, config), style in zip(rules.items(), STYLES, strict=False):
        for sign, color in ((1, UP), (-1, DOWN)):
            factor = compute_surrogate(grid, sign, config)[1]
            factor[1:][np.abs(np.diff(factor)) > 0.3] = np.nan  # no line over a jump
            ax.plot(grid, factor, style, color=color, label=name if sign > 0 else None)
    ax.set(title="Factor of ∇ log π", xlabel="ratio r; blue: A = 1, orange: A = -1")
    ax.legend(fontsize=8, loc="lower left")


def plot_bias_and_noise(ax: Axes, errors: dict[str, tuple[float, float]]) -> None:
    """Plot two bars per rule, its bias and its noise.

    Args:
        ax: axes to draw into.
        errors: (bias, noise) by rule, relative to the exact gradient.
    """
    places = np.arange(len(errors))
    bias, noise = np.transpose(list(errors.values()))
    ax.bar(places - 0.2, bias, 0.4, color=UP, label="bias")
    ax.bar(places + 0.2, noise, 0.4, color=DOWN, label="noise")
    ax.set_xticks(places, list(errors))
    ax.set_ylabel("relative error")
    ax.legend()


def plot_first_step(
    gradients_W: ArrayLike,
    steps_W: ArrayLike,
    rate: float,
    gains: dict[float, tuple[float, float]],
    changes: Mapping[str, Sequence[float]],
) -> Figure:
    """Plot the first step of Adam: step sizes, predicted and real gain, change per rollout.

    Args:
        gradients_W: gradient of each weight.
        steps_W: change of each weight.
        rate: learning rate of these steps.
        gains: learning rate -> (predicted, real) gain of the objective, both positive.
        changes: kind of rollout -> changes of the log-probability per token, in nats.
    """
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11.5, 3.4), layout="constrained")
    sizes = np.abs(np.asarray(gradients_W, float))
    moved = sizes > 0
    left.plot(sizes[moved], np.abs(np.asarray(steps_W, float))[moved] / rate, ".", ms=3, alpha=0.4)
    left.set(title="Adam's first step", xlabel="|gradient| of a weight", xscale="log")
    left.set(ylabel="|step| / learning rate", ylim=(0, 1.2))

    rates = sorted(gains)
    predicted, real = zip(*(gains[r] for r in rates))
    middle.loglog(rates, predicted, "--", color=CONTROL, label="predicted")
    middle.loglog(rates, real, "o-", color="C0", label="real")
    middle.set(title="Gain of the objective", xlabel="learning rate", ylabel="mean of A (r - 1)")
    middle.legend(loc="upper left")

    colors = dict(zip(changes, (UP, DOWN, CONTROL)))
    for x, (kind, values) in enumerate(changes.items()):
        right.plot(np.full(len(values), x), values, "o", color=colors[kind], alpha=0.7)
    right.axhline(0, color="0.6", lw=1)
    right.set_xticks(range(len(changes)), list(changes))
    right.set(title="Change per rollout", xlim=(-0.5, len(changes) - 0.5))
    right.set_ylabel("nats per token")
    return fig


def plot_update(
    rollouts: Sequence[Trajectory], advantages: Sequence[float], gains: Sequence[float]
) -> Figure:
    """Plot which tokens of a group carry loss, and what one update changes.

    Left: one row per rollout and one cell per token; tokens with loss have the colour of the sign
    of their advantage. Right: change of the log-probability of each rollout.

    Args:
        rollouts: N rollouts of one question.
        advantages: N advantages.
        gains: N changes of the summed log-probability of the generated tokens, in nats.
    """
    fig, (left, right) = plt.subplots(
        1, 2, figsize=(10.5, 3.6), width_ratios=(2, 1), sharey=True, layout="constrained"
    )
    signs = [UP if advantage > 0 else DOWN for advantage in advantages]
    image_NTC = np.ones((len(rollouts), max(len(t) for t in rollouts), 3))
    for row, rollout, color in zip(image_NTC, rollouts, signs):
        row[: len(rollout)] = to_rgb("0.85")  # tokens without loss
        row[: len(rollout)][rollout.generated] = to_rgb(color)
    numbers = np.arange(1, len(rollouts) + 1)
    left.imshow(
        image_NTC,
        aspect="auto",
        interpolation="none",
        extent=(0, image_NTC.shape[1], len(rollouts) + 0.5, 0.5),
    )
    left.hlines(numbers[:-1] + 0.5, 0, image_NTC.shape[1], color="white", lw=3)
    left.set(title="Tokens of the group", xlabel="token", ylabel="rollout", yticks=numbers)
    right.barh(numbers, gains, color=signs, height=0.7)
    right.axvline(0, color="0.3", lw=1)
    right.set(title="Change by one update", xlabel="log-probability of the rollout, nats")
    for ax in (left, right):
        ax.grid(False)
    labels = {UP: "positive advantage", DOWN: "negative advantage", "0.85": "no loss"}
    handles = [Patch(color=color, label=label) for color, label in labels.items()]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def two_token_student(p: ArrayLike) -> np.ndarray:
    """Return the probabilities [..., 3] of "New York", mixed names and "San Diego".

    The student draws both tokens independently, each from "New York" with probability `p`.
    """
    p = np.asarray(p, float)
    return np.stack([p**2, 2 * p * (1 - p), (1 - p) ** 2], -1)


def two_kls(teacher: ArrayLike, p: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return KL(teacher || student) and KL(student || teacher) of `two_token_student`, in nats.

    Args:
        teacher: probabilities of the three names, above 0.
        p: values in 0..1, exclusive.
    """
    q, student = np.asarray(teacher, float), two_token_student(p)
    log_ratio = np.log(q / student)
    return log_ratio @ q, -(student * log_ratio).sum(-1)


def plot_two_kls(ax: Axes, teacher: ArrayLike) -> tuple[float, float]:
    """Plot both KLs of `two_kls` against p and mark their minima.

    Args:
        ax: axes to draw into.
        teacher: probabilities of the three names, above 0.

    Returns:
        p at the minimum of the forward and of the reverse KL.
    """
    grid = np.linspace(0.005, 0.995, 199)
    best = []
    names = ("forward: KL(teacher || student)", "reverse: KL(student || teacher)")
    for values, name, color in zip(two_kls(teacher, grid), names, (UP, DOWN), strict=True):
        at = int(values.argmin())
        ax.plot(grid, np.where(values < 2.2, values, np.nan), color=color, label=name)
        ax.plot(grid[at], values[at], "o", color=color, ms=7, mec="white")
        best.append(float(grid[at]))
    ax.set(xlabel="p of the student", ylabel="nats", ylim=(0, 3), xlim=(0, 1), yticks=(0, 1, 2))
    ax.legend(fontsize=8, loc="upper center")
    return best[0], best[1]


def draw_two_kls(new_york: float, mixed: float) -> Figure:
    """Draw `plot_two_kls`, and the names of the teacher and of both best students as bars.

    Args:
        new_york: share of "New York" among the teacher's unmixed names, 0..1, exclusive.
        mixed: probability of a mixed name, 0..1, exclusive.
    """
    fig, (curves, bars) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    teacher = np.array([(1 - mixed) * new_york, mixed, (1 - mixed) * (1 - new_york)])
    forward, reverse = plot_two_kls(curves, teacher)
    students = {"teacher": teacher, "best forward": two_token_student(forward)}
    students["best reverse"] = two_token_student(reverse)
    for at, (name, color) in enumerate(zip(students, (CONTROL, UP, DOWN), strict=True)):
        bars.bar(np.arange(3) + 0.26 * (at - 1), students[name], 0.26, color=color, label=name)
    bars.set_xticks(range(3), ["New York", "mixed", "San Diego"])
    bars.set(ylabel="probability", ylim=(0, 1.3), yticks=np.linspace(0, 1, 5))
    bars.legend(fontsize=8, loc="upper center", ncols=3)
    return fig


def truncation_error(
    behaviour: ArrayLike, policy: ArrayLike, values: ArrayLike, caps: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return bias and standard deviation of a truncated importance-sampling estimate, exactly.

    One sample y of the behaviour policy estimates the mean of `values` under the policy by
    min(policy(y) / behaviour(y), cap) * values(y).

    Args:
        behaviour: probabilities of V answers under the policy that sampled, above 0.
        policy: their probabilities under the other policy.
        values: the values to average.
        caps: C caps of the ratio.

    Returns:
        Bias and standard deviation per cap, [C] each, in units of the values.
    """
    mu, p, f = (np.asarray(x, float) for x in (behaviour, policy, values))
    estimates_CV = np.minimum(p / mu, np.asarray(caps, float)[:, None]) * f
    mean_C = estimates_CV @ mu
    return mean_C - p @ f, np.sqrt((estimates_CV - mean_C[:, None]) ** 2 @ mu)


def draw_truncation(
    behaviour: ArrayLike,
    policy: ArrayLike,
    values: ArrayLike,
    samples: int,
    distance: float = 1.0,
) -> Figure:
    """Draw the error of a truncated estimate against the cap, and mark its minimum.

    Args:
        behaviour, policy, values: as for `truncation_error`.
        samples: number of samples that are averaged.
        distance: share of the way from the policy (0) to the behaviour policy (1), in logits.
    """
    caps = np.linspace(1, 5, 81)
    mu = np.asarray(policy) ** (1 - distance) * np.asarray(behaviour) ** distance
    bias, deviation = truncation_error(mu / mu.sum(), policy, values, caps)
    noise = deviation / samples**0.5
    total = np.hypot(bias, noise)
    fig, ax = plt.subplots(figsize=(6.5, 3), layout="constrained")
    ax.plot(caps, np.abs(bias), color=UP, label="bias")
    ax.plot(caps, noise, color=DOWN, label="noise")
    ax.plot(caps, total, color=CONTROL, label="error")
    best = total.argmin()
    ax.plot(caps[best], total[best], "o", color=CONTROL, label=f"best cap {caps[best]:.2f}")
    ax.set(title=f"Truncated estimate, {samples} samples", xlabel="cap c", ylim=(0, None))
    fig.legend(*ax.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return fig
