"""A file of questions, answered one after the other or many at a time, by a run that may be killed.

Each attempt that ends is a line of JSON at once, with the fields of Tongyi DeepResearch's files
(`question`, `answer`, `prediction`, `termination`, `messages`), so the readers of such files take
it. The same call goes on where a run was killed: what has a line is not asked again, but for
attempts that the environment broke. Half a line, which a killed run may leave, is cut off.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from drlib.agents.agent import Agent
from drlib.files import append_json_line, write_atomic
from drlib.task import Task
from drlib.trajectory import Termination, Trajectory


def answer_file(agent: Agent, tasks: Sequence[Task], path: str | Path, **how) -> list[dict]:
    """Answer the tasks that have no line in `path` yet; returns the line of each task, in order.

    how: of `Agent.run`, such as temperature; one sample a task. ValueError: two tasks of one id, or
    a line of the file is none of ours.
    """
    path = Path(path)
    ids = [task.id for task in tasks]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{len(ids) - len(set(ids))} tasks have the id of another one")
    found = _finished(path)
    left = [(number, task) for number, task in enumerate(tasks) if task.id not in found]
    lock = threading.Lock()

    def keep(what: str, _at, value) -> None:
        if what == "end" and not value.metadata.get("interrupted"):
            with lock:
                found[value.task_id] = row_of(value)
                append_json_line(path, found[value.task_id])

    # the number in the whole file is the key, so a resumed run draws what it would have drawn
    keys, todo = [number for number, _ in left], [task for _, task in left]
    if todo:
        agent.run(todo, keys=keys, watch=keep, **how)
    return [found[ident] for ident in ids]


def row_of(done: Trajectory) -> dict:
    """The line of a trajectory."""
    return {
        "task_id": done.task_id,
        "question": done.metadata["question"],
        "answer": done.metadata["right_answer"],
        "prediction": done.answer,
        "termination": str(done.termination),
        "messages": done.messages,
        "usage": done.metadata.get("usage", {}),
    }


def _finished(path: Path) -> dict[str, dict]:
    """The lines of earlier runs by task, but for faults of the environment, which are dropped from
    the file: their tasks are asked again."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    kept: dict[str, dict] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            if row["termination"] != Termination.ENV_FAULT:
                kept[row["task_id"]] = row
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is no answer of ours ({error!r})") from error
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept.values()]
    if "".join(lines) != text:
        write_atomic(path, "".join(lines))
    return kept
