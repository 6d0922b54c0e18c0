"""Held-out tasks of environments as questions of a benchmark run.

    items = draw_items("database:easy+harbor:my_tasks", n=20, seed=0)

The end of each rollout is verified by its environment, so there is no answer text to judge. Of a
folder of Harbor tasks all are asked; tasks with a canary are protected, so their answers are
written encrypted (`drlib.evaluation.sealing`).
"""

from dataclasses import replace
from pathlib import Path

from drlib.environments.environment import environment_names, load_environment
from drlib.environments.harbor_tasks import HarborEnvironment
from drlib.evaluation.benchmarks import BenchmarkItem, load_benchmark
from drlib.validation import require


def draw_items(names: str, n: int, seed: int) -> list[BenchmarkItem]:
    """Draw `n` tasks of the test split of each environment, and all of a folder of Harbor.

    Args:
        names: "NAME+NAME:ARGUMENTS", see `drlib.environments`.

    Raises:
        ValueError: an unknown environment, or one with fewer tasks.
    """
    listed = environment_names(names)
    require(bool(listed), "name an environment, such as database:easy")
    require(n >= 1, f"n={n} must be at least 1")
    items = []
    for name in listed:
        environment = load_environment(name)
        if isinstance(environment, HarborEnvironment):
            items += _harbor_items(environment)
            continue
        items += [
            BenchmarkItem(task.id, task.question, (), {"category": name}, task=task)
            for task in environment.tasks(n, seed, "test")
        ]
    return items


def _harbor_items(environment: HarborEnvironment) -> list[BenchmarkItem]:
    """Return the checked task folders with the tasks of the environment."""
    folder = environment.name.partition(":")[2]
    tasks = {task.id.removeprefix("harbor-"): task for task in environment.all_tasks()}
    items = []
    for item in load_benchmark("harbor", folder):
        task = replace(tasks[Path(item.meta["folder"]).name], id=item.id)
        meta = {"category": environment.name, **item.meta}
        items.append(replace(item, meta=meta, task=task))
    return items
