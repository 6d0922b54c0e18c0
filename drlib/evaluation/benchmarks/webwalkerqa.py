"""WebWalkerQA (arXiv 2501.07572): 680 questions about websites, each with its root page."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("webwalkerqa", judge="llm")
def read_webwalkerqa(row: Row) -> BenchmarkItem:
    """Read one row: question, answer, root_url, info (hop, language, difficulty level, ...)."""
    meta = row.optional("root_url", "info")
    return BenchmarkItem(row.ident("id"), row.text("question"), (row.text("answer"),), meta)
