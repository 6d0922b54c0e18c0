"""Measures of judged answers: accuracy, pass@k, pass^k, calibration, cost, call budgets, citations.

Accuracies are shares of the answers that could be judged; an answer without a judgement is excluded
and counted. All questions weigh the same. `compare` is paired by question.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from drlib.evaluation.answer_files import AnswerRow, JudgedAnswers
from drlib.rewards.judges import Judgement, Verdict
from drlib.task import normalise_answer
from drlib.validation import require

RESAMPLES = 10_000  # of the bootstrap over questions, and of permutations
Z_TEST, Z_POWER = 1.96, 0.8416  # normal quantiles: two-sided 5%, power 80%
HLE_BIN = 100  # answers
ZH_BIN = 0.2  # of confidence
AMOUNTS = ("calls", "read_tokens", "said_tokens", "cost", "seconds")  # numbers of `Usage`


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Return the unbiased estimate of the probability that one of `k` answers is correct.

    Source: Chen et al. (arXiv 2107.03374), eq. 1.

    Args:
        correct: correct answers of `n`.

    Raises:
        ValueError: not 1 <= k <= n.

    Example:
        >>> pass_at_k(1, 3, 1), pass_at_k(1, 3, 3), round(pass_at_k(1, 3, 2), 3)
        (0.3333333333333333, 1.0, 0.667)
    """
    require(1 <= k <= n and 0 <= correct <= n, f"k={k}, n={n}, correct={correct}: need k <= n")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_hat_k(correct: int, n: int, k: int) -> float:
    """Return the unbiased estimate of the probability that all of `k` answers are correct.

    Source: tau-bench (arXiv 2406.12045), pass^k.

    Args:
        correct: correct answers of `n`.

    Raises:
        ValueError: not 1 <= k <= n.

    Example:
        >>> pass_hat_k(2, 3, 1), pass_hat_k(2, 3, 3), round(pass_hat_k(2, 3, 2), 3)
        (0.6666666666666666, 0.0, 0.333)
    """
    require(1 <= k <= n and 0 <= correct <= n, f"k={k}, n={n}, correct={correct}: need k <= n")
    return math.comb(correct, k) / math.comb(n, k)


def bootstrap_interval(values_Q: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return the mean over questions and its 95% percentile interval."""
    draws = np.random.default_rng(seed)
    means = [
        values_Q[draws.integers(0, len(values_Q), len(values_Q))].mean() for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values_Q.mean()), float(low), float(high)


def summarise(judged: JudgedAnswers) -> dict[str, Any]:
    """Compute the measures of judged answers.

    Accuracies are shares of the judged answers. Intervals are 95% bootstrap intervals over
    questions.

    Returns:
        "accuracy" (mean, low, high) of single answers; "bounds": accuracy if all answers that could
        not be judged were wrong, or right; "by_round"; "pass@k" and "pass^k" for k = 1 .. rounds,
        over questions with k judged answers; "majority" over rounds; "verdicts" (counts);
        "given_attempted"; "f1": harmonic mean of accuracy and "given_attempted", as SimpleQA
        reports it; "score": mean of graded scores; "parts": means of their parts, 0 where an answer
        has none; "tongyi": the three numbers that Tongyi
        DeepResearch's script prints, which counts errors as wrong answers; "calibration", "usage",
        "budget", "citations": see `calibration_errors`, `sum_usage`, `accuracy_under_budget` and
        `score_citations`, None without the data.

    Raises:
        ValueError: nothing could be judged.
    """
    verdicts = [[one.verdict for one in each] for each in judged.judgements]
    rounds, n = len(verdicts), len(judged.keys)
    counts = Counter(verdict for each in verdicts for verdict in each)
    errors, correct = counts[Verdict.JUDGE_ERROR], counts[Verdict.CORRECT]
    total = rounds * n
    require(total > errors, f"none of {total} answers could be judged: see the reasons")
    by_question = [
        [each[q] for each in verdicts if each[q] is not Verdict.JUDGE_ERROR] for q in range(n)
    ]
    rights = [(some.count(Verdict.CORRECT), len(some)) for some in by_question if some]
    passed = {}
    for name, estimate in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
        for k in range(1, rounds + 1):
            some = [estimate(c, m, k) for c, m in rights if m >= k]
            if some:
                passed[f"{name}{k}"] = {"value": float(np.mean(some)), "questions": len(some)}
    attempted = counts[Verdict.CORRECT] + counts[Verdict.INCORRECT]
    accuracy = correct / (total - errors)
    given = correct / attempted if attempted else 0.0
    graded = [
        one for each in judged.judgements for one in each if one.verdict is not Verdict.JUDGE_ERROR
    ]
    parts = {name: None for one in graded for name in one.parts}  # in order, each once
    shares = [_share(each, Verdict.CORRECT) for each in verdicts]
    wrong = [each.count(Verdict.CORRECT) / n for each in verdicts]  # with errors as wrong answers
    any_right = sum(any(v is Verdict.CORRECT for v in some) for some in by_question) / n
    return {
        "questions": n,
        "rounds": rounds,
        "accuracy": bootstrap_interval(np.array([c / m for c, m in rights])),
        "bounds": (correct / total, (correct + errors) / total),
        "by_round": shares,
        **passed,
        "majority": _majority_share(judged),
        "verdicts": {str(verdict): counts[verdict] for verdict in Verdict},
        "given_attempted": given,
        "f1": 2 * accuracy * given / (accuracy + given) if correct else 0.0,
        "score": float(np.mean([one.score for one in graded])),
        "parts": {
            name: float(np.mean([one.parts.get(name, 0.0) for one in graded])) for name in parts
        },
        "tongyi": {
            "Avg. Pass@k": float(np.mean(wrong)),
            "Best Pass@1": max(wrong),
            "Pass@k": any_right,
        },
        "calibration": calibration_errors(judged),
        "usage": sum_usage([row for each in judged.rows for row in each]),
        "budget": accuracy_under_budget(judged),
        "citations": score_citations([row for each in judged.rows for row in each]),
    }


def _share(verdicts: Sequence[Verdict], wanted: Verdict) -> float | None:
    judged = [verdict is wanted for verdict in verdicts if verdict is not Verdict.JUDGE_ERROR]
    return sum(judged) / len(judged) if judged else None


def _majority_share(judged: JudgedAnswers) -> float | None:
    """Return the accuracy of the most frequent answer; the first of them in a tie.

    Questions whose majority could not be judged do not count.
    """
    found = []
    for q in range(len(judged.keys)):
        answers = [
            (normalise_answer(text), each[q].verdict)
            for text, each in zip(_predictions(judged, q), judged.judgements)
            if text is not None and each[q].verdict is not Verdict.NOT_ATTEMPTED
        ]
        if not answers:
            found.append(Verdict.NOT_ATTEMPTED)
            continue
        most = Counter(text for text, _ in answers).most_common(1)[0][0]
        found.append(next(verdict for text, verdict in answers if text == most))
    return _share(found, Verdict.CORRECT)


def _predictions(judged: JudgedAnswers, q: int) -> list[str | None]:
    """Return the answers to a question by round; None for a failed run."""
    return [None if each[q].error else each[q].prediction for each in judged.rows]


def _judged_pairs(judged: JudgedAnswers) -> list[tuple[AnswerRow, Judgement]]:
    """Return the answers that could be judged, round by round."""
    return [
        (row, found)
        for rows, each in zip(judged.rows, judged.judgements)
        for row, found in zip(rows, each)
        if found.verdict is not Verdict.JUDGE_ERROR
    ]


def calibration_errors(judged: JudgedAnswers) -> dict[str, Any] | None:
    """Compute the calibration errors of HLE and of BrowseComp-ZH from stated confidences.

    Answers without a stated confidence are excluded and counted ("unstated"). HLE's script gives
    them 100%, BrowseComp-ZH's 0%. HLE's script also leaves out the last bin, so that fewer than 200
    answers have error 0; here all answers count.

    Returns:
        "rms": root of the mean squared difference of confidence and accuracy, in bins of 100
        answers in order of confidence, the last with the rest (HLE, arXiv 2501.14249); "ece": mean
        absolute difference in five bins of 20 points (BrowseComp-ZH, arXiv 2504.19314), both 0..1
        and weighted by answers; "stated" and "unstated" answers. None if no confidence is stated.
    """
    pairs = _judged_pairs(judged)
    stated = [
        (row.confidence, float(found.verdict is Verdict.CORRECT))
        for row, found in pairs
        if row.confidence is not None
    ]
    if not stated:
        return None
    # a stable order by confidence alone, so that correctness cannot influence the bins
    values_N2 = np.array(sorted(stated, key=lambda pair: pair[0]))
    starts = [*range(0, max(len(stated) - HLE_BIN + 1, 1), HLE_BIN)]
    # rounded, because 0.6 / 0.2 is 2.999...
    fifths_N = np.minimum(np.floor(np.round(values_N2[:, 0] / ZH_BIN, 9)), 4)
    fifths = [values_N2[fifths_N == fifth] for fifth in sorted({*fifths_N})]
    return {
        "rms": math.sqrt(_mean_gap(np.split(values_N2, starts[1:]), 2)),
        "ece": _mean_gap(fifths, 1),
        "stated": len(stated),
        "unstated": len(pairs) - len(stated),
    }


def _mean_gap(bins: Sequence[np.ndarray], power: int) -> float:
    """Return the mean over answers of |confidence - accuracy|^power of their bin."""
    total = sum(map(len, bins))
    gaps = [abs(np.subtract(*some.mean(axis=0))) ** power * len(some) for some in bins]
    return float(sum(gaps) / total)


def sum_usage(rows: Sequence[AnswerRow]) -> dict[str, Any]:
    """Sum the resources of answers, failed runs included.

    Returns:
        for each of `AMOUNTS`, if known for some answers: "sum", "mean" over the answers that state
        it and their number "answers"; "tools": calls by tool; "terminations": answers by the cause
        of their end.
    """
    found: dict[str, Any] = {}
    for name in AMOUNTS:
        values = [value for row in rows if (value := getattr(row.usage, name)) is not None]
        if values:
            total = math.fsum(values)
            found[name] = {"sum": total, "mean": total / len(values), "answers": len(values)}
    tools: Counter[str] = Counter()
    for row in rows:
        tools.update(row.usage.tools)
    ends = Counter(row.termination for row in rows if row.termination)
    return found | {"tools": dict(tools.most_common()), "terminations": dict(ends.most_common())}


def accuracy_under_budget(judged: JudgedAnswers) -> dict[str, Any] | None:
    """Compute the accuracy if an answer with more than `b` tool calls counted as wrong.

    Returns:
        "accuracy" by b = 1, 2, 4, ... up to the most calls, mean over questions; "questions" with a
        judged answer whose calls are known. None without any.
    """
    known: dict[str, list[tuple[int, bool]]] = {}
    for row, found in _judged_pairs(judged):
        if row.usage.calls is not None:
            pair = row.usage.calls, found.verdict is Verdict.CORRECT
            known.setdefault(row.key, []).append(pair)
    if not known:
        return None
    budgets = [1]
    while budgets[-1] < max(calls for some in known.values() for calls, _ in some):
        budgets.append(2 * budgets[-1])
    return {
        "accuracy": {
            b: float(np.mean([np.mean([r and c <= b for c, r in some]) for some in known.values()]))
            for b in budgets
        },
        "questions": len(known),
    }


def score_citations(rows: Sequence[AnswerRow]) -> dict[str, Any] | None:
    """Compare the cited sources with the documents that a benchmark requires, by title or URL.

    A required document supports the question, not each sentence: this is not the precision of
    single statements.

    Returns:
        "precision": mean share of the cited sources that are required, over answers that cite
        something (None without any); "recall": mean share of the required documents that are cited;
        "answers" with a list of sources and required documents. None without any.
    """
    both = [(row.cited, row.required) for row in rows if row.cited is not None and row.required]
    if not both:
        return None
    precisions = [
        np.mean([bool(names & required) for names in cited]) for cited, required in both if cited
    ]
    recalls = [
        len(required & frozenset().union(*cited)) / len(required) for cited, required in both
    ]
    return {
        "precision": float(np.mean(precisions)) if precisions else None,
        "recall": float(np.mean(recalls)),
        "answers": len(both),
    }


def compare(ours: JudgedAnswers, theirs: JudgedAnswers, seed: int = 0) -> dict[str, Any]:
    """Compare two sets of answers to the same questions, paired by question.

    Returns:
        "difference" (mean, low, high) of accuracy, ours minus theirs, with a 95% bootstrap interval
        over questions; "p": two-sided p value of a permutation test that swaps the two sets
        question by question; "detectable": smallest true difference that a two-sided test at 5%
        finds with 80% power; "questions": those with a judged answer in both.

    Raises:
        ValueError: other questions, or fewer than two that both have judged answers of.
    """
    same = {*ours.keys} == {*theirs.keys}
    require(same, "the two sets ask different questions: compare answers to the same ones")
    left, right = _question_shares(ours), _question_shares(theirs)
    both = [key for key in ours.keys if key in left and key in right]
    require(len(both) > 1, f"both sets have judged answers to only {len(both)} questions")
    differences_Q = np.array([left[key] - right[key] for key in both])
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), (RESAMPLES, len(both)))
    permuted = np.abs((signs * differences_Q).mean(axis=1))
    # a tie counts as at least as large; the observed assignment is one of the permutations
    extreme = int((permuted >= abs(differences_Q.mean()) - 1e-12).sum())
    error = differences_Q.std(ddof=1) / math.sqrt(len(both))
    return {
        "difference": bootstrap_interval(differences_Q, seed),
        "p": (extreme + 1) / (RESAMPLES + 1),
        "detectable": float((Z_TEST + Z_POWER) * error),
        "questions": len(both),
    }


def _question_shares(judged: JudgedAnswers) -> dict[str, float]:
    """Return the share of correct answers of each question with a judged answer."""
    found = {}
    for q, key in enumerate(judged.keys):
        share = _share([each[q].verdict for each in judged.judgements], Verdict.CORRECT)
        if share is not None:
            found[key] = share
    return found


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for several comparisons (Holm, 1979), in the same order.

    Example:
        >>> [round(p, 3) for p in adjust_holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
