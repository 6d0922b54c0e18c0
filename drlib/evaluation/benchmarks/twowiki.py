"""2WikiMultihopQA (arXiv 2011.01060): questions with paragraphs and reasoning paths."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark
from drlib.evaluation.benchmarks.hotpotqa import read_context


@register_benchmark("2wiki", judge="squad")
def read_twowiki(row: Row) -> BenchmarkItem:
    """Read one row: _id, question, answer (or golden_answers), context, evidences, type."""
    golden = [str(answer) for answer in row.listed("golden_answers")]
    answers = tuple(golden or [row.text("answer")])
    meta = row.optional("type", "evidences", "supporting_facts")
    ident = row.ident("_id", "id")
    return BenchmarkItem(ident, row.text("question"), answers, meta, documents=read_context(row))
