"""Answer a list of questions into a JSON-lines file, concurrently and resumably.

Each finished rollout is appended at once, with the fields of Tongyi DeepResearch's files
(`question`, `answer`, `prediction`, `termination`, `messages`), so their readers accept it. Calling
it again resumes: tasks with a row are skipped, except those with an environment fault. A truncated
last line of a killed run is removed.
"""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from drlib.agents.agent import Agent
from drlib.agents.rollout_state import count_costs
from drlib.files import append_json_line, write_atomic
from drlib.task import Task
from drlib.trajectory import Termination, Trajectory


def answer_file(
    agent: Agent,
    tasks: Sequence[Task],
    path: str | Path,
    convert: Callable[[Trajectory], dict] | None = None,
    **options,
) -> list[dict]:
    """Answer the tasks that have no row in `path`; return the row of each task, in order.

    Args:
        agent: the agent.
        tasks: with different ids; one sample each.
        path: JSON-lines file, created if missing.
        convert: replaces `to_row`; its rows need task_id and termination.
        options: further arguments of `Agent.run`, such as temperature.

    Raises:
        ValueError: duplicate task ids, or a row of another format in the file.
    """
    path = Path(path)
    ids = [task.id for task in tasks]
    if len(set(ids)) < len(ids):
        raise ValueError(
            f"{len(ids) - len(set(ids))} tasks share an id with another one: give each task its own"
        )
    rows = _read_finished(path)
    left = [(number, task) for number, task in enumerate(tasks) if task.id not in rows]
    lock = threading.Lock()

    def save_row(event: str, _state, value) -> None:
        if event == "end" and not value.metadata.get("interrupted"):
            with lock:
                rows[value.task_id] = (convert or to_row)(value)
                append_json_line(path, rows[value.task_id])

    # keys are indices into the whole file, so a resumed run samples the same
    keys, remaining = [number for number, _ in left], [task for _, task in left]
    if remaining:
        agent.run(remaining, keys=keys, watch=save_row, **options)
    return [rows[ident] for ident in ids]


def to_row(trajectory: Trajectory) -> dict:
    """Convert a trajectory to its row.

    After an environment fault it has the cause as `error`, and a task of an environment has the
    score of its verification as `verified`.
    """
    row = {
        "task_id": trajectory.task_id,
        "question": trajectory.metadata["question"],
        "answer": trajectory.metadata["right_answer"],
        "prediction": trajectory.answer,
        "termination": str(trajectory.termination),
        "messages": trajectory.messages,
        "usage": trajectory.metadata.get("usage", {}),
        "costs": count_costs(trajectory),
    }
    if "verification" in trajectory.metadata:
        row["verified"] = trajectory.metadata["verification"]["score"]
    if trajectory.termination is Termination.ENV_FAULT:
        failed = [  # the text for the policy does not name the cause of an environment's fault
            result.source if result.error == "environment" else result.text
            for result in trajectory.tool_results
            if result.env_fault
        ]
        row["error"] = str(trajectory.metadata.get("fault") or (failed or ["a tool failed"])[-1])
    return row


def _read_finished(path: Path) -> dict[str, dict]:
    """Read the rows of earlier runs by task, and remove those with an environment fault."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows: dict[str, dict] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            if row["termination"] != Termination.ENV_FAULT:
                rows[row["task_id"]] = row
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} is not an answer of this program ({error!r})"
            ) from error
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values()]
    if "".join(lines) != text:
        write_atomic(path, "".join(lines))
    return rows
