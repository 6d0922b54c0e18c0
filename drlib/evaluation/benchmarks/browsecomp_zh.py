"""BrowseComp-ZH (arXiv 2504.19314): 289 encrypted questions in Chinese, an xlsx file."""

from drlib.evaluation.benchmarks.benchmark import (
    BenchmarkItem,
    Row,
    hashed_key,
    register_benchmark,
)


@register_benchmark("browsecomp_zh", judge="llm")
def read_browsecomp_zh(row: Row) -> BenchmarkItem:
    """Read one row: Topic, Question, Answer (all encrypted), canary."""
    key = hashed_key(row.text("canary"))
    question, answer = row.decrypt("question", key), row.decrypt("answer", key)
    meta = {"topic": row.decrypt("topic", key)}
    return BenchmarkItem(row.ident("id"), question, (answer,), meta, protected=True)
