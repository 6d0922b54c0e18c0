"""HotpotQA (arXiv 1809.09600): two-hop questions with ten paragraphs each."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Document, Row, register_benchmark


@register_benchmark("hotpotqa", judge="squad")
def read_hotpotqa(row: Row) -> BenchmarkItem:
    """Read one row of the original JSON file or of the hub's Parquet file."""
    meta = row.optional("type", "level", "supporting_facts")
    return BenchmarkItem(
        row.ident("_id", "id"),
        row.text("question"),
        (row.text("answer"),),
        meta,
        documents=read_context(row),
    )


def read_context(row: Row) -> tuple[Document, ...]:
    """Return the paragraphs of `context`: pairs [title, sentences], or {"title", "sentences"}."""
    context = row.find("context")
    if isinstance(context, dict):
        columns = context.get("title"), context.get("sentences")
        if not all(isinstance(c, list) for c in columns) or len(columns[0]) != len(columns[1]):
            raise row.fail("context", "must have lists title and sentences of one length")
        context = list(zip(*columns))
    elif context is not None:
        context = row.listed("context")
    found = []
    for pair in context or ():
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not (is_pair and isinstance(pair[1], list) and all(isinstance(s, str) for s in pair[1])):
            raise row.fail("context", "must be pairs of a title and a list of sentences")
        found.append(Document(str(pair[0]), "".join(pair[1]).strip()))
    return tuple(found)
