"""A leaderboard of several sets of answers to the same questions, each compared with the first."""

from collections.abc import Mapping
from typing import Any

from drlib.evaluation.answer_files import JudgedAnswers
from drlib.evaluation.answer_report import escape_cell
from drlib.evaluation.measures import AMOUNTS, adjust_holm, compare, summarise
from drlib.validation import require


def build_leaderboard(sets: Mapping[str, JudgedAnswers]) -> dict[str, Any]:
    """Compare sets of answers, paired by question.

    Args:
        sets: name -> answers; the first is the base of the comparisons.

    Returns:
        "base": its name; "k": the fewest rounds of a set; "rows", the best first: "name",
        "questions", "rounds", "accuracy" (mean, low, high), "pass@k" (None if no question has k
        judged answers), "errors" (answers that could not be judged), the mean per answer of each of
        `measures.AMOUNTS` that is known, and "comparison" as of `measures.compare` with "p_holm",
        its p value adjusted for the number of comparisons (None for the base).

    Raises:
        ValueError: fewer than two sets, or other questions than the base; the message names the
            set.
    """
    require(len(sets) > 1, f"a leaderboard needs two sets of answers or more, got {len(sets)}")
    base, *others = sets
    comparisons = {}
    for name in others:
        try:
            comparisons[name] = compare(sets[name], sets[base])
        except ValueError as error:
            raise ValueError(f"{name} and {base}: {error}") from error
    adjusted = adjust_holm([found["p"] for found in comparisons.values()])
    for found, p in zip(comparisons.values(), adjusted):
        found["p_holm"] = p
    k = min(len(judged.judgements) for judged in sets.values())
    rows = []
    for name, judged in sets.items():
        measures = summarise(judged)
        passed, usage = measures.get(f"pass@{k}"), measures["usage"]
        rows.append(
            {
                "name": name,
                "questions": measures["questions"],
                "rounds": measures["rounds"],
                "accuracy": measures["accuracy"],
                "pass@k": passed["value"] if passed else None,
                "errors": measures["verdicts"]["judge_error"],
                **{amount: usage[amount]["mean"] for amount in AMOUNTS if amount in usage},
                "comparison": comparisons.get(name),
            }
        )
    rows.sort(key=lambda row: -row["accuracy"][0])
    return {"base": base, "k": k, "rows": rows}


def render_leaderboard(found: dict[str, Any]) -> str:
    """Return the leaderboard as a Markdown table; columns that nothing is known of are left out."""
    rows, k = found["rows"], found["k"]
    columns = {"accuracy [95%]": [_percent(*row["accuracy"]) for row in rows]}
    if k > 1:
        columns[f"pass@{k}"] = [
            "-" if row["pass@k"] is None else f"{row['pass@k']:.1%}" for row in rows
        ]
    if any(row["errors"] for row in rows):
        columns["not judged"] = [f"{row['errors']}" for row in rows]
    for amount in AMOUNTS:
        if any(amount in row for row in rows):
            title = f"{amount.replace('_', ' ')} per answer"
            columns[title] = [f"{row[amount]:.4g}" if amount in row else "-" for row in rows]
    compared = [row["comparison"] for row in rows]
    columns[f"points over {escape_cell(found['base'])}"] = [
        "(base)" if one is None else _points(*one["difference"]) for one in compared
    ]
    columns["p (Holm)"] = ["-" if one is None else f"{one['p_holm']:.4f}" for one in compared]
    columns["detectable"] = [
        "-" if one is None else f"{100 * one['detectable']:.1f}" for one in compared
    ]
    names = [escape_cell(row["name"]) for row in rows]
    lines = [["answers", *columns], ["---"] * (len(columns) + 1), *zip(names, *columns.values())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _percent(mean: float, low: float, high: float) -> str:
    return f"{mean:.1%} [{low:.1%}, {high:.1%}]"


def _points(mean: float, low: float, high: float) -> str:
    return f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
