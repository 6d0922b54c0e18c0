"""MuSiQue (arXiv 2108.00573): questions composed of two to four, with 20 paragraphs each."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Document, Row, register_benchmark


@register_benchmark("musique", judge="musique")
def read_musique(row: Row) -> BenchmarkItem:
    """Read one row: id, question, answer, answer_aliases, paragraphs, question_decomposition."""
    documents = []
    for paragraph in row.listed("paragraphs"):
        if not (isinstance(paragraph, dict) and {"title", "paragraph_text"} <= paragraph.keys()):
            raise row.fail("paragraphs", "must have title and paragraph_text")
        documents.append(Document(str(paragraph["title"]), str(paragraph["paragraph_text"])))
    answers = (row.text("answer"), *map(str, row.listed("answer_aliases")))
    meta = row.optional("answerable", "question_decomposition")
    ident = row.ident("id")
    return BenchmarkItem(ident, row.text("question"), answers, meta, documents=tuple(documents))
