"""Reports of judged answers: Markdown tables and JSON without texts."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drlib.evaluation.answer_files import JudgedAnswers
from drlib.evaluation.measures import AMOUNTS, summarise
from drlib.rewards.judges import Verdict


def render(measures: dict[str, Any]) -> str:
    """Return the measures as a Markdown table."""
    lines = [f"| {name} | {escape_cell(value)} |" for name, value in list_measures(measures)]
    return "\n".join(["| measure | value |", "|---|---|", *lines])


def list_measures(measures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each measure that the answers have data for, as text."""
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
    lines += [
        (f"pass^{k}: all of {k} correct", f"{measures[f'pass^{k}']['value']:.1%}")
        for k in range(2, measures["rounds"] + 1)
        if f"pass^{k}" in measures
    ]
    if measures["rounds"] > 1 and measures["majority"] is not None:
        lines.append(("majority of the rounds", f"{measures['majority']:.1%}"))
    lines += [
        (
            "correct of the attempted; F1",
            f"{measures['given_attempted']:.1%}; {measures['f1']:.3f}",
        ),
        ("mean score", f"{measures['score']:.3f}"),
        *((f"mean {name}", f"{value:.3f}") for name, value in measures["parts"].items()),
        ("verdicts", ", ".join(f"{n} {name}" for name, n in counts.items())),
    ]
    if counts[Verdict.JUDGE_ERROR]:
        lowest, highest = measures["bounds"]
        lines.append(("accuracy with errors wrong, or right", f"{lowest:.1%}, {highest:.1%}"))
    lines += [*_describe_calibration(measures), *_describe_usage(measures)]
    tongyi = ", ".join(f"{name} {value:.1%}" for name, value in measures["tongyi"].items())
    return [*lines, ("named as in Tongyi's script", tongyi)]


def _describe_calibration(measures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if found := measures["calibration"]:
        errors = f"{found['rms']:.1%}; {found['ece']:.1%}"
        note = f" ({found['unstated']} answers without confidence)" if found["unstated"] else ""
        yield "calibration error: RMS as HLE; as BrowseComp-ZH", errors + note


def _describe_usage(measures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    usage = measures["usage"]
    answers = measures["questions"] * measures["rounds"]
    for name in AMOUNTS:
        if found := usage.get(name):
            note = "" if found["answers"] == answers else f" ({found['answers']} answers)"
            value = f"{found['mean']:.4g} (sum {found['sum']:.6g}){note}"
            yield f"{name.replace('_', ' ')} per answer", value
    for name in ("tools", "terminations"):
        if usage[name]:
            cells = [f"{key} {n}" for key, n in usage[name].items()]
            yield ("calls by tool" if name == "tools" else name), ", ".join(cells)
    if found := measures["budget"]:
        shares = ", ".join(f"{b}: {share:.1%}" for b, share in found["accuracy"].items())
        yield "accuracy with at most b calls", shares
    if found := measures["citations"]:
        precision = "-" if found["precision"] is None else f"{found['precision']:.1%}"
        note = "" if found["answers"] == answers else f" ({found['answers']} answers)"
        yield "citations: precision; recall", f"{precision}; {found['recall']:.1%}{note}"


def escape_cell(text: str) -> str:
    """Return a text that does not end a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


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
