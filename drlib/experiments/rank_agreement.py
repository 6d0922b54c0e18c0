"""Agreement of two rankings of the same arms: does a simulator predict a realistic environment?

Recipes are ranked by mean accuracy over seeds and questions, once by each kind of question. The
result is Spearman's and Kendall's (tau-b) rank correlation, each with a 95% interval by a nested
bootstrap: seeds within each arm, and questions, which all arms and both rankings share.

Noise lowers a rank correlation, and a bootstrap adds noise once more, so that a percentile interval
misses a true correlation of 1. The interval here is symmetric around the estimate (Hall 1988), and
S - 1 of S seeds are drawn, which gives the variance of their mean without bias. Simulations with
eight arms, three seeds and true correlations of 1, 0.45 and -1 (tests/test_experiments_ranking.py):

| neighbours in the ranking differ by | covers Spearman's | Kendall's |
|---|---|---|
| 0.7 standard deviations between seeds and more | 95 to 99% | 89 to 99% |
| 0.3 | 77 to 97% | 49 to 99% |

The interval is about these arms. Another choice of recipes is another correlation: very bad arms
among good ones make agreement easy, so the range without one arm is part of the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.stats import kendalltau, spearmanr

from drlib.analysis import tour
from drlib.evaluation.results import Results
from drlib.experiments.designs import SEEDS
from drlib.experiments.plan import ExperimentPlan
from drlib.experiments.verdicts import decide, rounded
from drlib.intervals import Interval, share_interval, t_quantile
from drlib.validation import require

RESAMPLES = 1000
LEAST_ARMS = 3
Coefficient = Callable[[np.ndarray, np.ndarray], float]


def spearman(first_A: np.ndarray, second_A: np.ndarray) -> float:
    """Return Spearman's rank correlation; nan if all values of a side are equal."""
    if np.ptp(first_A) == 0 or np.ptp(second_A) == 0:
        return float("nan")
    return float(spearmanr(first_A, second_A).statistic)


def kendall(first_A: np.ndarray, second_A: np.ndarray) -> float:
    """Return Kendall's rank correlation tau-b; nan if all values of a side are equal."""
    return float(kendalltau(first_A, second_A).statistic)


def correlation_interval(
    first_ASQ: np.ndarray,
    second_ASQ: np.ndarray,
    coefficient: Coefficient = spearman,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the rank correlation of the arms' means with its 95% interval.

    Args:
        first_ASQ, second_ASQ: scores of A arms, S seeds and Q questions, of equal shape; a seed is
            the same run on both sides, and a question the same question.
        coefficient: function of the means [A] of both sides.
        seed: of the bootstrap.

    Raises:
        ValueError: the shapes differ or have fewer than three arms, values are not finite, or all
            arms are equally good on one side.
    """
    first_ASQ, second_ASQ = np.asarray(first_ASQ, float), np.asarray(second_ASQ, float)
    shape = first_ASQ.shape
    usable = len(shape) == 3 and shape[0] >= LEAST_ARMS and min(shape) > 0
    finite = np.isfinite(first_ASQ).all() and np.isfinite(second_ASQ).all()
    require(
        usable and shape == second_ASQ.shape and bool(finite),
        f"need finite scores [arms, seeds, questions] of equal shape with at least {LEAST_ARMS} "
        f"arms, got shapes {shape} and {second_ASQ.shape}",
    )
    estimate = coefficient(first_ASQ.mean((1, 2)), second_ASQ.mean((1, 2)))
    require(np.isfinite(estimate), "all arms are equally good on one side: there is no ranking")
    arms, seeds, questions = shape
    rng = np.random.default_rng(seed)
    # The same questions for all arms and both sides; for each arm, the same seeds on both sides.
    counts_RQ = rng.multinomial(questions, np.full(questions, 1 / questions), resamples)
    draws = max(seeds - 1, 1)
    counts_RAS = rng.multinomial(draws, np.full(seeds, 1 / seeds), (resamples, arms))
    means_RA = [
        (np.einsum("asq,rq->ras", side_ASQ, counts_RQ, optimize=True) * counts_RAS).sum(-1)
        for side_ASQ in (first_ASQ, second_ASQ)
    ]
    found_R = np.array([coefficient(first_A, second_A) for first_A, second_A in zip(*means_RA)])
    half = float(np.nanquantile(np.abs(found_R - estimate), 0.95))
    return estimate, max(-1.0, estimate - half), min(1.0, estimate + half)


@dataclass(frozen=True)
class SingleRuns:
    """Mean Spearman correlation of rankings by one run of each arm.

    Attributes:
        same_run: both sides evaluate the same runs.
        other_seeds: the sides evaluate runs with different seeds: does the recipe predict, beyond
            the policy that it happened to train? None for one seed.
        first_itself: the first side against itself with different seeds, which bounds what any
            prediction from one run can reach; None for one seed.
    """

    same_run: float
    other_seeds: float | None
    first_itself: float | None


def compare_single_runs(first_ASQ: np.ndarray, second_ASQ: np.ndarray) -> SingleRuns:
    """Return correlations of rankings by single runs; pairs without a ranking are left out."""
    first_AS, second_AS = first_ASQ.mean(-1), second_ASQ.mean(-1)
    seeds = range(first_AS.shape[1])

    def mean(other_AS: np.ndarray, pairs) -> float | None:
        found = [spearman(first_AS[:, one], other_AS[:, other]) for one, other in pairs]
        judged = [value for value in found if np.isfinite(value)]
        return round(float(np.mean(judged)), 5) if judged else None

    same = mean(second_AS, [(seed, seed) for seed in seeds])
    require(same is not None, "all arms are equally good on one side: there is no ranking")
    different = [*permutations(seeds, 2)]
    return SingleRuns(same, mean(second_AS, different), mean(first_AS, different))


def leave_one_out_range(first_ASQ: np.ndarray, second_ASQ: np.ndarray) -> tuple[float, float]:
    """Return the lowest and the highest Spearman correlation without one of the arms.

    An arm whose removal leaves no ranking is not removed.
    """
    first_A, second_A = first_ASQ.mean((1, 2)), second_ASQ.mean((1, 2))
    found = [
        spearman(np.delete(first_A, arm), np.delete(second_A, arm)) for arm in range(len(first_A))
    ]
    judged = [value for value in found if np.isfinite(value)]
    require(bool(judged), "all arms are equally good on one side: there is no ranking")
    return min(judged), max(judged)


def score_arrays(
    results: Mapping[str, Results], stage: str, asked: tuple[tuple[str, str], tuple[str, str]]
) -> tuple[np.ndarray, np.ndarray, list[int], list[str]]:
    """Return the scores of two kinds of question for the runs and questions that all arms share.

    A question that one side does not ask, such as one without an answer there, counts on neither.

    Returns:
        Scores [A, S, Q] of both sides, the seeds and the questions.
    """
    sides = [
        [one.scores(stage, kind, decoding) for one in results.values()] for kind, decoding in asked
    ]
    runs = [by_seed for side in sides for by_seed in side]
    seeds = sorted(set.intersection(*({*by_seed} for by_seed in runs)))
    names = [{*scores} for by_seed in runs for scores in by_seed.values()]
    questions = sorted(set.intersection(*names))
    require(bool(questions), f"{asked[0][0]} and {asked[1][0]} questions have no id in common")
    first_ASQ, second_ASQ = (
        np.array([[[one[s][q] for q in questions] for s in seeds] for one in side])
        for side in sides
    )
    return first_ASQ, second_ASQ, seeds, questions


def rank_agreement(plan: ExperimentPlan, results: Mapping[str, Results], registered: str) -> dict:
    """Return the agreement of the arms' rankings by the first two kinds of question.

    Args:
        results: outcomes of the arms that have finished runs.
        registered: the commit that registered the seeds; empty: a pilot.

    Returns:
        {} if fewer than three arms share a seed, or all are equally good on one side; else
        accuracies, correlations, the claim and its verdict.
    """
    if plan.ranking is None or len(results) < LEAST_ARMS:
        return {}
    if not set.intersection(*({*one.seeds} for one in results.values())):
        return {}
    asked = (plan.asked[0], plan.asked[1])
    first_ASQ, second_ASQ, seeds, questions = score_arrays(results, plan.stage, asked)
    if not all(np.ptp(side_ASQ.mean((1, 2))) for side_ASQ in (first_ASQ, second_ASQ)):
        return {}
    effect = correlation_interval(first_ASQ, second_ASQ)
    said, judged = plan.ranking, len(seeds) if registered else 0
    return {
        "claim": said.claim,
        "source": said.source,
        "expected": said.expected,
        "outcome": decide(said.expected, effect[1:], effect[1:]) if judged >= SEEDS else "open",
        "pilot": judged < SEEDS,
        "registered": registered,
        "statistic": "Spearman",
        **rounded(effect),
        "kendall": rounded(correlation_interval(first_ASQ, second_ASQ, kendall)),
        "smallest_detectable": chance_correlation(len(results)),
        "without_one_arm": [round(end, 5) for end in leave_one_out_range(first_ASQ, second_ASQ)],
        "single_runs": vars(compare_single_runs(first_ASQ, second_ASQ)),
        "asked": [{"kind": kind, "decoding": decoding} for kind, decoding in asked],
        "n": len(questions),
        "seeds": seeds,
        "arms": {
            arm: [rounded(share_interval(side_ASQ[place])) for side_ASQ in (first_ASQ, second_ASQ)]
            for place, arm in enumerate(results)
        },
    }


def chance_correlation(arms: int) -> float:
    """Return the |correlation| that unrelated rankings of so many arms exceed in 5% of cases.

    Student's t approximation; 1 for three arms, where no agreement is significant.
    """
    if arms <= LEAST_ARMS:
        return 1.0
    t = t_quantile(arms - 2)
    return round(t / (arms - 2 + t**2) ** 0.5, 3)


def describe_ranking(ranking: Mapping) -> str:
    """Return the agreement as a Markdown paragraph."""
    first, second = (f"{one['kind']} ({one['decoding']})" for one in ranking["asked"])
    runs, arms = ranking["single_runs"], len(ranking["arms"])
    single = [f"the same runs {runs['same_run']:.2f}"]
    if runs["other_seeds"] is not None:
        single.append(f"runs with other seeds {runs['other_seeds']:.2f}")
    if runs["first_itself"] is not None:
        own = ranking["asked"][0]["kind"]
        single.append(f"{own} against itself with other seeds {runs['first_itself']:.2f}")
    lowest, highest = ranking["without_one_arm"]
    verdict = f"{ranking['outcome']} (pilot)" if ranking["pilot"] else ranking["outcome"]
    return (
        f"**Ranking.** {first} against {second}, {arms} arms, {ranking['n']} shared questions, "
        f"{tour.format_seeds(len(ranking['seeds']))}: {correlation_text(ranking)}, "
        f"{correlation_text(ranking['kendall'] | {'statistic': 'Kendall'})}. "
        f"Without one arm: {lowest:+.2f} to {highest:+.2f} (Spearman). "
        f"Rankings by one run of each arm (Spearman): {', '.join(single)}. "
        f"Unrelated rankings of {arms} arms exceed {ranking['smallest_detectable']:.2f} in 5% of "
        f"cases. Intervals over {tour.describe_sampling(len(ranking['seeds']))}, not over the "
        "choice of arms. "
        f"{ranking['claim']} ({ranking['source']}): **{verdict}**"
    )


def correlation_text(found: Mapping) -> str:
    """Return a coefficient with its interval, such as `Spearman +0.90 [+0.71, +1.00]`."""
    low, high = found["interval"]
    return f"{found['statistic']} {found['effect']:+.2f} [{low:+.2f}, {high:+.2f}]"
