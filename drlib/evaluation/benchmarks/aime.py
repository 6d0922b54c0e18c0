"""AIME 2024, 2025 and 2026: integers from 0 to 999."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("aime", judge="math")
def read_aime(row: Row) -> BenchmarkItem:
    """Read one row: problem (or question) and answer."""
    answer = row.text("answer")
    number = answer.removesuffix(".0")
    if not (number.isascii() and number.isdigit() and len(number.lstrip("0")) <= 3):
        raise row.fail("answer", "is no integer from 0 to 999")
    ident = row.ident("id", "unique_id")
    return BenchmarkItem(ident, row.text("problem", "question"), (number.lstrip("0") or "0",))
