"""GSM8K (arXiv 2110.14168): the answer stands after "####" at the end of a solution."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark

MARK = "####"


@register_benchmark("gsm8k", judge="math")
def read_gsm8k(row: Row) -> BenchmarkItem:
    """Read one row: question, answer."""
    solution, mark, answer = row.text("answer").rpartition(MARK)
    if not mark or not answer.strip():
        raise row.fail("answer", f"has no {MARK}")
    meta = {"solution": solution.strip()}
    number = answer.strip().replace(",", "")
    return BenchmarkItem(row.ident("id"), row.text("question"), (number,), meta)
