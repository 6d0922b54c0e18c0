"""GAIA (arXiv 2311.12983): questions with attachments, which stand beside the metadata file."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("gaia", judge="gaia")
def read_gaia(row: Row) -> BenchmarkItem:
    """Read one row: task_id, Question, Level, Final answer, file_name.

    The answers of the test split are hidden ("?"), so it is refused.
    """
    answer = row.text("final answer", "answer")
    if answer == "?":
        raise row.fail("Final answer", "is hidden: only the validation split has answers")
    name = str(row.find("file_name") or "")
    files = (row.file("file_name", name),) if name else ()
    meta = row.optional("level")
    ident = row.ident("task_id", "id")
    return BenchmarkItem(ident, row.text("question"), (answer,), meta, files, protected=True)
