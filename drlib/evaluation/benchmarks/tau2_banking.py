"""tau2's banking_knowledge (MIT, sierra-research/tau2-bench): 97 tasks over 698 documents.

A task is the instruction of a simulated customer. It names the documents that are required to
serve this customer, so it measures retrieval (`drlib evaluate retrieval`). Whether an agent
serves the customer is verified in a simulation, which drlib does not run: there is no answer text.
"""

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark


def read_page(row: Row) -> tuple[str, str]:
    """Read one row of the documents: id, title, content. The page is named by its id."""
    return row.text("id"), f"# {row.text('title')}\n\n{row.text('content')}\n"


@register_benchmark("tau2_banking", judge="", page=read_page)
def read_tau2_banking(row: Row) -> BenchmarkItem:
    """Read one row: id, user_scenario, required_documents (ids)."""
    scenario = Row(row.path, row.number, row.record("user_scenario"))
    required = row.listed("required_documents")
    if not required or not all(isinstance(ident, str) and ident for ident in required):
        raise row.fail("required_documents", "is empty or missing: it must be a list of ids")
    meta = {"required_documents": required}
    return BenchmarkItem(row.text("id"), scenario.text("instructions"), (), meta)
