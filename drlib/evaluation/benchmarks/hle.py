"""Humanity's Last Exam (arXiv 2501.14249): 2,500 questions; those with an image are marked."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("hle", judge="llm")
def read_hle(row: Row) -> BenchmarkItem:
    """Read one row: id, question, answer, answer_type, category, image.

    The rows carry a canary, so they are protected although they are not encrypted.
    """
    meta = row.optional("answer_type", "category", "raw_subject")
    meta["has_image"] = bool(row.find("image"))
    ident, answers = row.ident("id"), (row.text("answer"),)
    return BenchmarkItem(ident, row.text("question"), answers, meta, protected=True)
