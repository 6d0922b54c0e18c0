"""Hand-made outcomes of a small run of the tour: four python and six search questions."""

from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results

K = 8


def outcome(task, kind, hops, right, greedy, errors=1, calls=4):
    """Return an outcome with `right` correct of K samples; errors and calls count the samples."""
    samples = [i < right for i in range(K)]
    return Outcome(task, kind, hops, greedy, samples, calls, errors, 1, 0, 0)


def make_outcomes(python, search, errors=1):
    """Return outcomes of four python and six search questions (two for each number of hops)."""
    hops = [1, 1, 2, 2, 3, 3]
    outcomes = [outcome(f"p{i}", "python", 0, n, n > 4, errors) for i, n in enumerate(python)]
    return outcomes + [
        outcome(f"s{i}", "search", h, n, n > 4, errors)
        for i, (n, h) in enumerate(zip(search, hops))
    ]


def tour_results():
    """Return results of one seed, with every stage and control."""
    outcomes = {
        ("untrained", 0): make_outcomes([0] * 4, [0] * 6),
        ("sft", 0): make_outcomes([4, 4, 8, 0], [4, 0, 2, 0, 0, 0], 2),
        ("sft_continued", 0): make_outcomes([6, 4, 8, 2], [5, 1, 2, 0, 0, 0], 2),
        ("rl", 0): make_outcomes([8, 8, 8, 4], [8, 6, 5, 4, 6, 1], 1),
        ("rl_random_reward", 0): make_outcomes([4, 4, 8, 0], [4, 0, 1, 0, 0, 0], 2),
        ("closed_book", 0): make_outcomes([0] * 4, [0] * 6),
    }
    rows = [r for (stage, seed), group in outcomes.items() for r in rows_of(group, stage, seed)]
    rows.append(
        dict(
            stage="demonstrator", kind="python", hops=0, decoding="sample", seed=0, n=50, correct=20
        )
    )
    return Results("a command", "laptop", rows, outcomes)
