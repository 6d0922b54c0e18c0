"""Task folders of Terminal-Bench 1.x: task.yaml, Dockerfile, run-tests.sh."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark
from drlib.evaluation.benchmarks.task_folders import build_item, iter_tasks, read_file

BASE = "base"  # key of the description that is the task; others contain hints
SETTINGS = {
    "max_agent_timeout_sec": "positive number",
    "max_test_timeout_sec": "positive number",
    "run_tests_in_same_shell": "truth value",
    "parser_name": "text",
    "difficulty": "text",
    "category": "text",
    "tags": "list of texts",
}


def iter_terminal_bench(folder: Path) -> Iterator[Row]:
    """Yield the task.yaml of each task folder."""
    return iter_tasks(folder, "task.yaml", yaml.safe_load)


@register_benchmark("terminal_bench", judge="", rows=iter_terminal_bench)
def read_terminal_bench(row: Row) -> BenchmarkItem:
    """Read a task folder; `meta` has the settings and "folder".

    The instruction is `instruction`, or in older tasks the description with key "base". Required
    are task.yaml, run-tests.sh, and a Dockerfile or docker-compose.yaml.
    """
    task = row.path.parent
    texts = [read_file(task, "run-tests.sh"), read_file(task, "Dockerfile", "docker-compose.yaml")]
    if row.find("descriptions") is None or row.find("instruction") is not None:
        instruction = row.text("instruction")
    else:
        instruction = _read_description(row)
    return build_item(row, instruction, SETTINGS, texts)


def _read_description(row: Row) -> str:
    for description in row.listed("descriptions"):
        if not isinstance(description, dict):
            raise row.fail("descriptions", "must be a list of key and description")
        if description.get("key") == BASE:
            fields = {"descriptions.description": description.get("description")}
            return Row(row.path, row.number, fields).text("descriptions.description")
    raise row.fail("descriptions", f"has no description with key {BASE!r}")
