"""HumanEval (arXiv 2107.03374, MIT): 164 functions to complete, verified by their tests."""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


@register_benchmark("humaneval", judge="code")
def read_humaneval(row: Row) -> BenchmarkItem:
    """Read one row: task_id, prompt, entry_point, canonical_solution, test.

    The question is the prompt, and the "answer" the program that tests a solution.
    """
    name = row.text("entry_point")
    if not name.isidentifier():
        raise row.fail("entry_point", "is no name of a function")
    meta = {"entry_point": name} | row.optional("canonical_solution")
    answer = f"{row.text('test')}\n\ncheck({name})\n"
    return BenchmarkItem(row.text("task_id", "id"), row.text("prompt"), (answer,), meta)
