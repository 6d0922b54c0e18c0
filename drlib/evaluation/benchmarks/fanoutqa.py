"""FanOutQA (arXiv 2402.14116, CC BY-SA 4.0): questions about several Wikipedia articles each.

The answer of a development question is a text, a number, a list or a record of names and values.
It becomes one correct answer, a list or record as JSON. The pages are not part of the benchmark.
"""

import json

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("fanoutqa", judge="loose")
def read_fanoutqa(row: Row) -> BenchmarkItem:
    """Read one row: id, question, answer, categories; `meta` also has the titles of the articles.

    Test questions have no answer, so they are refused.
    """
    meta = row.optional("categories")
    meta["articles"] = _titles(row)
    return BenchmarkItem(row.ident("id"), row.text("question"), (_answer(row),), meta)


def _answer(row: Row) -> str:
    """Return the answer as text, a list or record as JSON."""
    answer = row.find("answer")
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    if not isinstance(answer, list | dict):
        return row.text("answer")
    leaves = [*answer, *answer.values()] if isinstance(answer, dict) else answer
    if not all(isinstance(leaf, str | int | float) for leaf in leaves):
        raise row.fail("answer", "has a part that is no text or number")
    if not any(str(leaf).strip() for leaf in leaves):  # one published value is empty
        raise row.fail("answer", "is empty")
    return json.dumps(answer, ensure_ascii=False)


def _titles(row: Row) -> list[str]:
    """Return the titles of the articles in the decomposition, in order, inner parts included."""
    found: list[str] = []
    waiting = row.listed("decomposition")[::-1]
    while waiting:
        part = waiting.pop()
        inner = part.get("decomposition", []) if isinstance(part, dict) else None
        evidence = (part.get("evidence") or {}) if isinstance(part, dict) else None
        if not isinstance(inner, list) or not isinstance(evidence, dict):
            raise row.fail("decomposition", "must be a list of questions with evidence")
        if "title" in evidence:
            found.append(str(evidence["title"]))
        waiting += inner[::-1]
    return list(dict.fromkeys(found))
