"""MATH-500 (arXiv 2305.20050): 500 problems of MATH with LaTeX answers."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("math500", judge="math")
def read_math500(row: Row) -> BenchmarkItem:
    """Read one row: problem, answer, subject, level, unique_id."""
    meta = row.optional("subject", "level")
    return BenchmarkItem(
        row.ident("unique_id", "id"), row.text("problem", "question"), (row.text("answer"),), meta
    )
