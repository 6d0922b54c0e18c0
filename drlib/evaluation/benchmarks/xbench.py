"""xbench-DeepSearch and ScienceQA (arXiv 2506.13651): encrypted CSV files of 100 questions each.

The key is the canary itself, not its hash as in BrowseComp.
"""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("xbench", judge="llm")
def read_xbench(row: Row) -> BenchmarkItem:
    """Read one row: id, prompt, answer, canary (ScienceQA: also type and subject)."""
    key = row.text("canary").encode()
    question, answer = row.decrypt("prompt", key), row.decrypt("answer", key)
    meta = row.optional("type", "subject")
    return BenchmarkItem(row.ident("id"), question, (answer,), meta, protected=True)
