"""BrowseComp-Plus (arXiv 2508.06600): 830 encrypted questions over a fixed corpus of 100,195 pages.

The names of the fields (hub: Tevatron/browsecomp-plus and browsecomp-plus-corpus) were written from
memory, as was that BrowseComp's encryption is used with a canary in each row: check them at the
first use. The texts of the documents are read from the corpus, not from the questions' lists.
"""

from drlib.evaluation.benchmarks.benchmark import (
    BenchmarkItem,
    Row,
    hashed_key,
    register_benchmark,
)


def read_page(row: Row) -> tuple[str, str]:
    """Read one row of the corpus: docid, text, url. The page is named by its docid."""
    text = row.text("text")
    url = f"\n\nSource: {row.text('url')}" if row.optional("url") else ""
    return row.text("docid"), f"{text}{url}\n"


@register_benchmark("browsecomp_plus", judge="llm", page=read_page)
def read_browsecomp_plus(row: Row) -> BenchmarkItem:
    """Read one row: query_id, query, answer, canary, gold_docs, evidence_docs.

    `meta` has the docids of both lists; the texts of these documents, and negative_docs, are in the
    corpus.
    """
    key = hashed_key(row.text("canary"))
    question, answer = row.decrypt("query", key), row.decrypt("answer", key)
    meta = {name: _read_docids(row, name, key) for name in ("gold_docs", "evidence_docs")}
    return BenchmarkItem(row.ident("query_id"), question, (answer,), meta, protected=True)


def _read_docids(row: Row, name: str, key: bytes) -> list[str]:
    """Return the docids of a list of documents; they are numbers unless they are encrypted too."""
    found = []
    for document in row.listed(name):
        if not isinstance(document, dict) or "docid" not in document:
            raise row.fail(name, "must be a list of documents with docid")
        inner = Row(row.path, row.number, {f"{name}.docid": document["docid"]})
        docid = inner.text(f"{name}.docid")
        found.append(docid if docid.isdecimal() else inner.decrypt(f"{name}.docid", key))
    return found
