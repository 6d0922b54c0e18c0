"""SimpleQA (arXiv 2411.04368) and SimpleQA Verified (2509.07968)."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("simpleqa", judge="llm")
def read_simpleqa(row: Row) -> BenchmarkItem:
    """Read one row: problem, answer; metadata, topic and answer_type are kept."""
    meta = row.optional("metadata", "topic", "answer_type")
    ident = row.ident("original_index", "id")
    return BenchmarkItem(ident, row.text("problem", "question"), (row.text("answer"),), meta)
