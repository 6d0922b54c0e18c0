"""BrowseComp (arXiv 2504.12516): 1,266 encrypted questions, `browse_comp_test_set.csv`."""

from drlib.evaluation.benchmarks.benchmark import (
    BenchmarkItem,
    Row,
    hashed_key,
    register_benchmark,
)


@register_benchmark("browsecomp", judge="llm")
def read_browsecomp(row: Row) -> BenchmarkItem:
    """Read one row: problem, answer, canary (the key is its SHA-256)."""
    key = hashed_key(row.text("canary"))
    question, answer = row.decrypt("problem", key), row.decrypt("answer", key)
    meta = row.optional("problem_topic", "topic")
    return BenchmarkItem(row.ident("id"), question, (answer,), meta, protected=True)
