"""WideSearch (arXiv 2508.07999): 200 questions whose answer is a table.

The correct tables are csv files in the folder widesearch_gold beside the file of questions.
"""

from collections.abc import Iterable

from drlib.evaluation.benchmarks.benchmark import (
    BenchmarkError,
    BenchmarkItem,
    Row,
    iter_rows,
    register_benchmark,
)

FOLDER = "widesearch_gold"


@register_benchmark("widesearch", judge="table")
def read_widesearch(row: Row) -> BenchmarkItem:
    """Read one row: instance_id, query, language, evaluation (unique_columns, required, ...).

    The answer is a Markdown table of the required columns. Its unique columns come first, in bold,
    which marks them as the key of a row for the judge `table`. Of rows with the same key the first
    is kept, as in the published evaluation. The judge compares items by its
    rules; the comparisons that eval_pipeline names for single columns are not used.
    """
    ident = row.text("instance_id")
    required, keys = (_read_columns(row, name) for name in ("required", "unique_columns"))
    if not {*keys} <= {*required}:
        raise row.fail("evaluation", "unique_columns must be some of required")
    path = row.file("instance_id", f"{FOLDER}/{ident}.csv")
    columns = [*keys, *(name for name in required if name not in keys)]
    rows: dict[tuple[str, ...], str] = {}  # by key
    for gold in iter_rows(path):
        fields = {_fold(name): value for name, value in gold.fields.items()}
        if missing := [name for name in columns if name not in fields]:
            raise gold.fail(missing[0], f"missing; the table has: {', '.join(fields)}")
        rows.setdefault(
            tuple(fields[name] for name in keys), _render_row(fields[name] for name in columns)
        )
    if not rows:
        raise BenchmarkError(f"{path} has no rows")
    head = _render_row(f"**{name}**" if name in keys else name for name in columns)
    table = "\n".join([head, _render_row("---" for _ in columns), *rows.values()])
    return BenchmarkItem(ident, row.text("query"), (table,), row.optional("language"))


def _read_columns(row: Row, name: str) -> list[str]:
    evaluation = row.record("evaluation")
    columns = Row(row.path, row.number, {f"evaluation.{name}": evaluation.get(name)}).listed(
        f"evaluation.{name}"
    )
    folded = [_fold(column) for column in columns if isinstance(column, str) and column.strip()]
    if not folded or len({*folded}) < len(columns):
        raise row.fail("evaluation", f"{name} must be a list of different names of columns")
    return folded


def _fold(name: str) -> str:
    """Return the name of a column as WideSearch compares it: lower case, without spaces."""
    return "".join(name.lower().split())


def _render_row(cells: Iterable[str]) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"
