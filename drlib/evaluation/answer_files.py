"""Scores of answers in files, of any agent: one JSON-lines file per round.

A row has `question`, `answer` (text, number, or list of accepted answers) and `prediction` (null
without an answer), as Tongyi DeepResearch's `iter1.jsonl`, `iter2.jsonl`, ... and
`drlib.agents.answer_file` write them; `id` or `task_id`, `aliases` and `error` are optional. A row
with an `error`, or whose judge failed, is excluded and counted; it is not a wrong answer.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.files import iter_json_lines
from drlib.rewards.judges import Judge, Judgement, Verdict
from drlib.task import normalise_answer
from drlib.validation import require

RESAMPLES = 10_000  # of the bootstrap over questions, and of permutations
Z_TEST, Z_POWER = 1.96, 0.8416  # normal quantiles: two-sided 5%, power 80%
FAILED = ("[failed]",)  # predictions of runs that ended with an exception


@dataclass(frozen=True)
class AnswerRow:
    """An agent's answer to one question.

    Attributes:
        key: id of the question, or a hash of its text.
        golds: accepted answers.
        prediction: the agent's answer; None without one.
        error: cause if the run failed; then there is nothing to judge.
    """

    key: str
    question: str
    golds: tuple[str, ...]
    prediction: str | None
    error: str = ""


@dataclass(frozen=True)
class JudgedAnswers:
    """Judgements of R rounds of the same Q questions.

    Attributes:
        keys: the questions, in the order of the first file.
        judgements: [R][Q].
        predictions: [R][Q].
    """

    keys: tuple[str, ...]
    judgements: tuple[tuple[Judgement, ...], ...]
    predictions: tuple[tuple[str | None, ...], ...]


def read_answers(path: str | Path, items: Sequence[BenchmarkItem] = ()) -> list[AnswerRow]:
    """Read the rows of one round.

    Args:
        items: questions of a benchmark; a row then needs only `id` or `question`, and `prediction`,
            and the correct answers are the benchmark's.

    Raises:
        ValueError: a row lacks a field or repeats a question; the message names file and line.
    """
    rows: dict[str, AnswerRow] = {}
    asked = Counter(item.question for item in items)
    known = {item.question: item for item in items if asked[item.question] == 1}
    known |= {item.id: item for item in items}
    for number, data in iter_json_lines(path):
        where = f"{path}, line {number}"
        require(isinstance(data, dict), f"{where} is no JSON object")
        fields = {str(name).lower(): value for name, value in data.items()}
        if items:
            fields |= _find_item(fields, known, where)
        row = _read_row(fields, where)
        require(row.key not in rows, f"{where} repeats the question {row.key!r} of an earlier line")
        rows[row.key] = row
    require(bool(rows), f"{path} has no rows")
    return list(rows.values())


def _find_item(
    fields: dict[str, Any], known: Mapping[str, BenchmarkItem], where: str
) -> dict[str, Any]:
    """Return question, answers and id of the benchmark's question that a row answers."""
    names = [str(fields[name]) for name in ("task_id", "id", "question") if fields.get(name)]
    item = next((known[name] for name in names if name in known), None)
    require(item is not None, f"{where} answers no question of the benchmark: give its id or text")
    answers = {"answer": list(item.answers), "aliases": None}
    return {"task_id": item.id, "question": item.question, **answers}


def _read_row(fields: dict[str, Any], where: str) -> AnswerRow:
    for name in ("question", "answer", "prediction"):
        require(name in fields or (name == "prediction" and "error" in fields), _lacks(where, name))
    question, answer = fields["question"], fields["answer"]
    require(isinstance(question, str) and bool(question.strip()), _lacks(where, "question"))
    listed = [*(answer if isinstance(answer, list) else [answer]), *(fields.get("aliases") or [])]
    golds = tuple(str(one).strip() for one in listed if one is not None)
    require(bool(golds) and all(golds), f"{where} has an empty answer: give the correct one")
    prediction = fields.get("prediction")
    require(
        prediction is None or isinstance(prediction, str | int | float),
        f"{where}: prediction must be a text or null",
    )
    text = None if prediction is None else str(prediction)
    error = str(fields.get("error") or "")
    if text is not None and text.strip().lower() in FAILED:
        error = error or "the run failed"
    ident = fields.get("task_id", fields.get("id"))
    key = hash_question(question) if ident is None else str(ident)
    return AnswerRow(key, question, golds, text, error)


def _lacks(where: str, name: str) -> str:
    return f"{where} lacks {name!r}: a row needs question, answer and prediction"


def hash_question(question: str) -> str:
    """Return a short hash, under which results name a question without its text."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def judge_files(
    paths: Sequence[str | Path],
    judge: Judge,
    workers: int = 1,
    progress: Callable[[Judgement], object] | None = None,
    items: Sequence[BenchmarkItem] = (),
) -> JudgedAnswers:
    """Judge the answers in `paths`, one file per round.

    Args:
        workers: judgements at the same time, for a judge on a server.
        progress: called with each finished judgement.
        items: see `read_answers`.

    Raises:
        ValueError: the rounds ask other questions or have other correct answers.
    """
    require(bool(paths), "name at least one file of answers")
    rounds = [{row.key: row for row in read_answers(path, items)} for path in paths]
    first = rounds[0]
    for path, rows in zip(paths[1:], rounds[1:]):
        missing, more = sorted(first.keys() - rows.keys()), sorted(rows.keys() - first.keys())
        require(
            not missing and not more,
            f"{path} asks other questions than {paths[0]}: {len(missing)} are missing "
            f"({missing[:3]}), {len(more)} are new ({more[:3]}); score them apart",
        )
        other = [key for key, row in rows.items() if row.golds != first[key].golds]
        require(not other, f"{path}: the answer of {other[:1]} differs from that in {paths[0]}")

    def work(row: AnswerRow) -> Judgement:
        if row.error:
            found = Judgement(Verdict.JUDGE_ERROR, row.error)
        else:
            found = judge(row.question, row.prediction, row.golds)
        if progress is not None:
            progress(found)
        return found

    rows = [rows[key] for rows in rounds for key in first]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        judged = list(pool.map(work, rows)) if workers > 1 else list(map(work, rows))
    return JudgedAnswers(
        tuple(first),
        tuple(_split(judged, len(first))),
        tuple(_split([None if row.error else row.prediction for row in rows], len(first))),
    )


def _split(values: list, size: int) -> Iterator[tuple]:
    for start in range(0, len(values), size):
        yield tuple(values[start : start + size])


# ---------------------------------------------------------------- measures


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
        not be judged were wrong, or right; "by_round"; "pass@k" for k = 1 .. rounds, over questions
        with k judged answers; "majority" over rounds; "verdicts" (counts); "given_attempted";
        "f1": harmonic mean of accuracy and "given_attempted", as SimpleQA reports it; "score":
        mean of graded scores; "tongyi": the three numbers that Tongyi DeepResearch's script prints,
        which counts errors as wrong answers.

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
    for k in range(1, rounds + 1):
        some = [pass_at_k(c, m, k) for c, m in rights if m >= k]
        if some:
            passed[f"pass@{k}"] = {"value": float(np.mean(some)), "questions": len(some)}
    attempted = counts[Verdict.CORRECT] + counts[Verdict.INCORRECT]
    accuracy = correct / (total - errors)
    given = correct / attempted if attempted else 0.0
    scores = [
        one.score
        for each in judged.judgements
        for one in each
        if one.verdict is not Verdict.JUDGE_ERROR
    ]
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
        "score": float(np.mean(scores)),
        "tongyi": {
            "Avg. Pass@k": float(np.mean(wrong)),
            "Best Pass@1": max(wrong),
            "Pass@k": any_right,
        },
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
            for text, each in zip([p[q] for p in judged.predictions], judged.judgements)
            if text is not None and each[q].verdict is not Verdict.NOT_ATTEMPTED
        ]
        if not answers:
            found.append(Verdict.NOT_ATTEMPTED)
            continue
        most = Counter(text for text, _ in answers).most_common(1)[0][0]
        found.append(next(verdict for text, verdict in answers if text == most))
    return _share(found, Verdict.CORRECT)


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


def render_comparison(found: dict[str, Any]) -> str:
    """Return the comparison as a Markdown table."""
    mean, low, high = (100 * value for value in found["difference"])
    return "\n".join(
        [
            "| comparison | value |",
            "|---|---|",
            f"| difference in accuracy, points | {mean:+.1f} [{low:+.1f}, {high:+.1f}] |",
            f"| p, permutation test | {found['p']:.4f} |",
            f"| detectable with 80% power, points | {100 * found['detectable']:.1f} |",
            f"| questions | {found['questions']} |",
        ]
    )


def to_json(
    judged: JudgedAnswers, files: Sequence[str | Path], judge: str, unanswered: int = 0
) -> str:
    """Return measures and judgements as JSON; it contains no question, answer or prediction.

    Args:
        unanswered: questions of the benchmark that the files do not answer.
    """
    rows = [
        {
            "question": key,
            "verdicts": [str(each[q].verdict) for each in judged.judgements],
            "scores": [round(each[q].score, 4) for each in judged.judgements],
        }
        for q, key in enumerate(judged.keys)
    ]
    head: dict[str, Any] = {"judge": judge, "files": [Path(file).name for file in files]}
    head["unanswered"] = unanswered
    return json.dumps(head | {"measures": summarise(judged), "rows": rows}, indent=1) + "\n"


def render(measures: dict[str, Any]) -> str:
    """Return the measures as a Markdown table."""
    mean, low, high = measures["accuracy"]
    counts = measures["verdicts"]
    lines = [
        ("questions x rounds", f"{measures['questions']} x {measures['rounds']}"),
        ("accuracy (mean of the rounds)", f"{mean:.1%} [{low:.1%}, {high:.1%}]"),
        ("by round", ", ".join("-" if s is None else f"{s:.1%}" for s in measures["by_round"])),
    ]
    for k in range(2, measures["rounds"] + 1):
        if found := measures.get(f"pass@{k}"):
            note = "" if found["questions"] == measures["questions"] else f" ({found['questions']})"
            lines.append((f"pass@{k}, unbiased", f"{found['value']:.1%}{note}"))
    if measures["rounds"] > 1 and measures["majority"] is not None:
        lines.append(("majority of the rounds", f"{measures['majority']:.1%}"))
    lines += [
        (
            "correct of the attempted; F1",
            f"{measures['given_attempted']:.1%}; {measures['f1']:.3f}",
        ),
        ("mean score", f"{measures['score']:.3f}"),
        ("verdicts", ", ".join(f"{n} {name}" for name, n in counts.items())),
    ]
    if counts[Verdict.JUDGE_ERROR]:
        lowest, highest = measures["bounds"]
        lines.append(("accuracy with errors wrong, or right", f"{lowest:.1%}, {highest:.1%}"))
    tongyi = ", ".join(f"{name} {value:.1%}" for name, value in measures["tongyi"].items())
    lines.append(("named as in Tongyi's script", tongyi))
    return "\n".join(["| measure | value |", "|---|---|", *(f"| {a} | {b} |" for a, b in lines)])
