"""FRAMES (arXiv 2409.12941): 824 questions over Wikipedia articles, `test.tsv`."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("frames", judge="llm")
def read_frames(row: Row) -> BenchmarkItem:
    """Read one row: Prompt, Answer, wiki_links (a list as text), reasoning_types (joined by |)."""
    kinds = str(row.find("reasoning_types") or "")
    meta = {
        "wiki_links": row.listed("wiki_links"),
        "reasoning_types": [kind.strip() for kind in kinds.split("|") if kind.strip()],
    }
    ident = row.ident("id", "unnamed: 0", "")
    return BenchmarkItem(ident, row.text("prompt"), (row.text("answer"),), meta)
