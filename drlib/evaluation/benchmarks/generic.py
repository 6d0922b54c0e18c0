"""Any file with question and answer: rows of `question`, `answer` or `answers`, `aliases`.

Optional: `id`, and `category`, by which reports filter.
"""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("generic", judge="rules")
def read_generic(row: Row) -> BenchmarkItem:
    """Read one row; `answer` may be a list of accepted answers."""
    answer = row.find("answer", "answers")
    listed = row.listed("answer", "answers") if isinstance(answer, list) else []
    answers = [*map(str, listed or [row.text("answer", "answers")])]
    answers += map(str, row.listed("aliases"))
    if not all(map(str.strip, answers)):
        raise row.fail("answer", "is empty")
    ident, meta = row.ident("id", "task_id", "_id"), row.optional("category")
    return BenchmarkItem(ident, row.text("question"), tuple(answers), meta)
