"""Task folders of Harbor, the format of Terminal-Bench 2: task.toml, instruction.md, tests/test.sh.

Tasks of several steps (`steps/`) are refused, because they have no instruction.md.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from drlib.evaluation.benchmarks.benchmark import BenchmarkItem, Row, register_benchmark
from drlib.evaluation.benchmarks.task_folders import build_item, iter_tasks, read_file

SETTINGS = {
    "agent.timeout_sec": "positive number",
    "verifier.timeout_sec": "positive number",
    "verifier.env": "table of texts",
    "solution.env": "table of texts",
    "environment.build_timeout_sec": "positive number",
    "environment.docker_image": "text",
    "environment.cpus": "positive number",
    "environment.memory_mb": "positive number",
    "environment.storage_mb": "positive number",
    "environment.memory": "text",  # "2G": the older form of memory_mb
    "environment.storage": "text",
    "environment.gpus": "number from 0",
    "environment.allow_internet": "truth value",
    "environment.env": "table of texts",
    "metadata.difficulty": "text",
    "metadata.category": "text",
    "metadata.tags": "list of texts",
}


def iter_harbor(folder: Path) -> Iterator[Row]:
    """Yield the task.toml of each task folder."""
    return iter_tasks(folder, "task.toml", tomllib.loads)


@register_benchmark("harbor", judge="", rows=iter_harbor)
def read_harbor(row: Row) -> BenchmarkItem:
    """Read a task folder; `meta` has the settings by their dotted names, and "folder".

    Required are task.toml, instruction.md, tests/test.sh, and in environment/ a Dockerfile or
    docker-compose.yaml unless environment.docker_image names an image. The solution is optional.
    """
    task = row.path.parent
    instruction = read_file(task, "instruction.md")
    texts = [instruction, read_file(task, "tests/test.sh")]
    item = build_item(row, instruction.strip(), SETTINGS, texts)
    if "environment.docker_image" not in item.meta:
        read_file(task, "environment/Dockerfile", "environment/docker-compose.yaml")
    return item
