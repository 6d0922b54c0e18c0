"""Sequential designs: looks at the seeds so far, with the error over all looks controlled.

A design names the numbers of seeds at which a claim is tested (`looks`). At each look two tests are
made on the paired differences: of an effect of zero (two-sided, level alpha over all looks), and of
an effect as large as the margin (two one-sided tests, level alpha each over all looks). Each side
of a test spends its level by the function of Lan and DeMets (1983) that resembles O'Brien and
Fleming's boundary: 2 - 2 Phi(z(1 - a/2) / sqrt(t)) at a share t of the seeds. Few seeds therefore
decide only large effects, and the last look loses little against a fixed number of seeds.

Intervals are repeated confidence intervals (Jennison and Turnbull 1989): ordinary t intervals, with
a higher confidence at each look, which cover the effect at all looks together with probability
1 - alpha. They are valid whenever the experiment stops, also if it goes on after a verdict.

The boundaries of the literature assume a known variance. At 8, 14 and 20 seeds they spend 7.9%
instead of 5% with the deviation of the sample, and 5.1% with quantiles of t at the same levels,
because successive looks are correlated in another way (simulation with two million repetitions).
Here the levels are exact for an unknown variance. With a mean of zero,
W = sum(x) / sqrt(n sum(x^2)) is a Markov chain over the looks: the sum of squares is independent of
W, its share that is due to the earlier seeds has a Beta distribution, and the new seeds add an
independent W of their own. `nominal_levels` integrates this chain numerically (Gauss-Jacobi over
the Beta distribution, cells over W). tests/test_experiments_designs.py compares it with simulation.

Seeds are not all: every seed answers the same questions. The difference that these questions make
is the same at every look, so more seeds do not reduce it. The interval therefore has the part of
the questions' difficulty of `drlib.intervals`, at the confidence of the look. This part makes
successive looks more similar, so the error over all looks only decreases. The noise of single
answers differs from seed to seed and is in the differences between seeds.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, ndtri, roots_jacobi, stdtr, stdtrit

from drlib.intervals import IntervalParts, t_quantile
from drlib.validation import require

SEEDS = 20  # seeds of a design with one look: 80% power at a margin of 5 points
CELLS = 120  # of W between the boundaries; even; levels are exact to about 0.1%
NODES = 32  # of the Beta distribution
# one-sided errors between which p-values are interpolated
LEVELS = np.concatenate([np.geomspace(1e-7, 0.05, 10), np.linspace(0.1, 0.49, 9)])
LEAST_LOOK, LEAST_STEP = 3, 2  # seeds


@dataclass(frozen=True)
class Design:
    """Looks, error and power of a comparison, written before its runs.

    Attributes:
        looks: numbers of seeds at which the claim is tested; the last is the most that is run.
        margin: effects below it count as none, a share (0.05: five points).
        alpha: error of each of the two tests over all looks.
        power: probability of a verdict at the last look, for an effect of zero and of the margin.
        deviation: standard deviation of the paired difference between seeds for which the number of
            seeds was chosen, a share.

    Raises:
        ValueError: looks that do not increase by two seeds and more, values outside their range, or
            too few seeds for the power.
    """

    looks: tuple[int, ...] = (SEEDS,)
    margin: float = 0.05
    alpha: float = 0.05
    power: float = 0.8
    deviation: float = 0.07

    def __post_init__(self):
        object.__setattr__(self, "looks", tuple(self.looks))
        steps = [later - look for look, later in zip(self.looks, self.looks[1:])]
        whole = bool(self.looks) and all(type(look) is int for look in self.looks)
        require(
            whole and self.looks[0] >= LEAST_LOOK and all(step >= LEAST_STEP for step in steps),
            f"design: looks={[*self.looks]}: give rising numbers of seeds from {LEAST_LOOK}, "
            f"at least {LEAST_STEP} apart, such as [8, 14, 20]",
        )
        for name, most in (("margin", 1), ("alpha", 0.25), ("power", 1), ("deviation", 1)):
            value = getattr(self, name)
            fits = isinstance(value, int | float) and 0 < value < most
            require(fits, f"design: {name}={value!r}: give a number between 0 and {most}")
        found = min(self.power_at(0.0), self.power_at(self.margin))
        require(
            found >= self.power,
            f"design: {self.looks[-1]} seeds have {found:.0%} power at a margin of {self.margin} "
            f"for a deviation of {self.deviation}, not {self.power:.0%}: add seeds to looks, or "
            "state a lower power",
        )

    def confidence(self, look: int, test: str = "difference") -> float:
        """Return the confidence of the interval at a look.

        Args:
            look: number of seeds, one of `looks`.
            test: "difference" gives the intervals that cover the effect at all looks together with
                probability 1 - alpha; "equivalence" those for the two one-sided tests of the
                margin, which cover it with probability 1 - 2 alpha.
        """
        side = self.alpha / 2 if test == "difference" else self.alpha
        return 1 - nominal_levels(self.looks, side)[self.looks.index(look)]

    def power_at(self, effect: float) -> float:
        """Return the probability of a verdict at the last look for an effect and `deviation`.

        The verdict is "no effect" for 0 and one of a difference otherwise. The chance to stop
        earlier is left out, so this is a lower bound.
        """
        n, test = self.looks[-1], "difference" if effect else "equivalence"
        critical = t_quantile(n - 1, (1 + self.confidence(n, test)) / 2)
        levels = (np.arange(400) + 0.5) / 400
        spread = np.sqrt(chdtri(n - 1, levels) / (n - 1))  # sample over true deviation
        scale = math.sqrt(n) / self.deviation
        if effect:
            missed = ndtr(critical * spread - effect * scale)
            return float(np.mean(1 - missed + ndtr(-critical * spread - effect * scale)))
        reach = np.maximum(self.margin * scale - critical * spread, 0)
        return float(np.mean(2 * ndtr(reach) - 1))

    def p_values(self, parts: Mapping[int, IntervalParts]) -> tuple[float, float]:
        """Return the p-values of a difference and of equivalence over the looks so far.

        A p-value is the smallest alpha whose boundary is crossed at one of the looks.

        Args:
            parts: look -> mean and errors of the differences (`drlib.intervals.interval_parts`).
        """
        difference = equivalence = 1.0
        for look, one in parts.items():
            place = self.looks.index(look)
            difference = min(difference, 2 * _overall(self.looks, place, one.level(abs(one.mean))))
            inside = self.margin - abs(one.mean)
            if inside > 0:
                equivalence = min(equivalence, _overall(self.looks, place, one.level(inside)))
        return min(1.0, difference), equivalence

    def as_dict(self) -> dict:
        """Return the design as plans and records store it."""
        return asdict(self) | {"looks": [*self.looks]}


def read_design(content) -> Design:
    """Return the design of a plan's `design` block; ValueError if it is invalid."""
    known = [each.name for each in fields(Design)]
    fits = isinstance(content, dict) and "looks" in content and set(content) <= set(known)
    example = "{margin: 0.05, looks: [8, 14, 20], alpha: 0.05, power: 0.8}"
    require(fits, f"design: give {example}, got {content!r}; keys: {', '.join(known)}")
    looks = content["looks"]
    require(isinstance(looks, list), f"design: looks: give a list such as [8, 14, 20]: {looks!r}")
    return Design(**content)


def spent(share: float, side: float) -> float:
    """Return the error that one side may have spent at a share of the seeds.

    Lan and DeMets (1983), the function that resembles O'Brien and Fleming's boundary.

    Args:
        side: error of this side over all looks, below 0.5.
    """
    return float(2 * ndtr(ndtri(side / 2) / math.sqrt(share)))


@lru_cache(maxsize=4096)
def nominal_levels(looks: tuple[int, ...], side: float) -> tuple[float, ...]:
    """Return the two-sided level of the t interval at each look.

    With these levels, the intervals exclude a true mean of zero up to each look with twice the
    probability that `spent` allows one side, for independent normal differences of unknown
    variance. With one look the level is 2 side.

    Args:
        looks: rising numbers of seeds.
        side: error of one side over all looks, below 0.5.
    """
    levels = [2 * spent(looks[0] / looks[-1], side)]
    edge = _edge(looks[0], levels[0])
    edges_E = np.linspace(-edge, edge, CELLS + 1)
    mass_C = np.diff(_cdf(edges_E, looks[0]))  # probability of W in each cell without a stop
    for before, look in pairwise(looks):
        move = _Transition(before, look, (edges_E[1:] + edges_E[:-1]) / 2)
        edge = move.edge(1 - 2 * spent(look / looks[-1], side), mass_C)
        levels.append(2 * float(_cdf(-edge, look)))
        if look != looks[-1]:
            edges_E = np.linspace(-edge, edge, CELLS + 1)
            mass_C = move.mass(edges_E, mass_C)
    return tuple(levels)


class _Transition:
    """Distribution of W at a look given its value at the look before.

    The functions of W are symmetric around 0, so only the upper half of the cells is computed.

    Args:
        places_C: centres of the cells of W at the look before.
    """

    def __init__(self, before: int, look: int, places_C: np.ndarray):
        new = look - before
        # the share of the sum of squares that is due to the earlier seeds: Beta(before/2, new/2)
        nodes_N, weights_N = roots_jacobi(NODES, new / 2 - 1, before / 2 - 1)
        shares_N = (nodes_N + 1) / 2
        self.half, self.look, self.new = len(places_C) // 2, look, new
        self.weights_N = weights_N / weights_N.sum()
        self.shift_CN = places_C[self.half :, None] * np.sqrt(before * shares_N)
        self.scale_N = np.sqrt(new * (1 - shares_N))

    def below(self, w: float) -> np.ndarray:
        """Return P(W <= w) for each upper cell, [C / 2]."""
        own_CN = (w * math.sqrt(self.look) - self.shift_CN) / self.scale_N  # W of the new seeds
        return _cdf(own_CN, self.new) @ self.weights_N

    def inside(self, w: float, mass_C: np.ndarray) -> float:
        """Return the probability of no stop so far and |W| <= w."""
        return 2 * float(mass_C[self.half :] @ (self.below(w) - self.below(-w)))

    def edge(self, kept: float, mass_C: np.ndarray) -> float:
        """Return w with the probability `kept` of no stop so far and |W| <= w."""
        return brentq(lambda w: self.inside(w, mass_C) - kept, 0.0, 1.0, xtol=1e-14)

    def mass(self, edges_E: np.ndarray, mass_C: np.ndarray) -> np.ndarray:
        """Return the probability of no stop so far and W in each cell between `edges_E`."""
        upper_C = np.diff([float(mass_C[self.half :] @ self.below(w)) for w in edges_E])
        return upper_C + upper_C[::-1]


def _cdf(w, n: int):
    """Return P(W <= w) for n values: W sqrt(n - 1) / sqrt(1 - W^2) is t with n - 1 degrees."""
    w = np.clip(w, -1 + 1e-15, 1 - 1e-15)
    return stdtr(n - 1, w * np.sqrt((n - 1) / (1 - w * w)))


def _edge(n: int, level: float) -> float:
    """Return |W| that n values exceed with this probability."""
    t = -stdtrit(n - 1, max(level, 1e-200) / 2)
    return float(t / math.hypot(t, math.sqrt(n - 1)))


@lru_cache(maxsize=64)
def _levels_at(looks: tuple[int, ...], place: int) -> PchipInterpolator:
    """Return the logarithm of the one-sided error as a function of that of the level at a look."""
    here = [nominal_levels(looks, float(side))[place] for side in LEVELS]
    return PchipInterpolator(np.log(here), np.log(LEVELS), extrapolate=False)


def _overall(looks: tuple[int, ...], place: int, level: float) -> float:
    """Return the one-sided error over all looks of a design with this two-sided level at a look."""
    if len(looks) == 1:
        return level / 2
    known = _levels_at(looks, place)
    lowest, highest = (float(np.exp(end)) for end in (known.x[0], known.x[-1]))
    if level >= highest:
        return 0.5
    return float(np.exp(known(math.log(max(level, lowest)))))  # the least that is distinguished
