"""Run an agent on a benchmark: rounds of answers in a folder, resumable, within a budget.

The folder contains `run.json` (what is asked, by which agent) and one file of answers per round,
`round1.jsonl`, ... Each finished answer is appended at once, so a killed run loses only the
questions in flight and asks no other question again. Rows of protected benchmarks are encrypted
(`drlib.evaluation.sealing`).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drlib.agents.agent import Agent
from drlib.agents.batch_answers import answer_file, to_row
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.evaluation.sealing import seal_row
from drlib.files import write_atomic
from drlib.task import Task
from drlib.trajectory import Termination, Trajectory
from drlib.validation import require

RUN_FILE = "run.json"
UNRELATED = ("api_key", "prices")  # options that change no answer
BETWEEN_CHECKS = (
    16  # questions between two checks of the budget; the default concurrency of a server
)


@dataclass(frozen=True)
class BenchmarkRun:
    """Questions, rounds and the folder of the answers.

    Args:
        items: the questions.
        folder: of the answers.
        rounds: answers per question.
        world: name of the world that the tasks belong to.
    """

    items: Sequence[BenchmarkItem]
    folder: Path
    rounds: int
    world: str

    def __post_init__(self):
        require(bool(self.items), "the benchmark has no questions that an agent can be asked")
        require(self.rounds >= 1, f"rounds={self.rounds} must be at least 1")
        unanswered = [item.id for item in self.items if not item.answers and item.task is None]
        require(
            not unanswered,
            f"{len(unanswered)} items have no answer to compare with ({unanswered[:3]}): they are "
            "verified by execution, see drlib evaluate tasks",
        )

    @property
    def files(self) -> list[Path]:
        """Files of answers, one per round."""
        return [self.folder / f"round{number}.jsonl" for number in range(1, self.rounds + 1)]

    @property
    def tasks(self) -> list[Task]:
        """The questions as tasks; attachments are named below the question."""
        return [
            item.task
            or Task(item.id, _question_with_files(item), item.answers[0], "search", self.world)
            for item in self.items
        ]

    @property
    def missing(self) -> int:
        """Number of answers that are not finished."""
        return len(self.items) * self.rounds - sum(map(len, self.finished()))

    def finished(self) -> list[list[dict]]:
        """Return the finished rows of each round, without those to be asked again."""
        wanted = {item.id for item in self.items}
        rounds = []
        for path in self.files:
            rows = [row for row in _read_rows(path) if row["task_id"] in wanted]
            rounds.append([row for row in rows if row["termination"] != Termination.ENV_FAULT])
        return rounds

    def claim(self, description: dict[str, Any]) -> None:
        """Write `run.json`, or compare it with the description of the run that began here.

        Raises:
            ValueError: the folder has the answers of another run.
        """
        path = self.folder / RUN_FILE
        if not path.exists():
            require(
                not any(file.exists() for file in self.files),
                f"{self.folder} has answers without {RUN_FILE}: choose another folder",
            )
            write_atomic(path, json.dumps(description, indent=1) + "\n")
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = sorted(
            name
            for name in {*before, *description}
            if before.get(name) != json.loads(json.dumps(description.get(name)))
        )
        require(
            not changed,
            f"{self.folder} has the answers of another run ({', '.join(changed)} differ): choose "
            "another folder",
        )

    def answer(
        self,
        agent: Agent,
        temperature: float,
        budget: float | None = None,
        progress: Callable[[Trajectory], object] | None = None,
    ) -> bool:
        """Ask what has no answer yet; return False if the budget stopped the run.

        Args:
            temperature: of sampling; the seed of a round is its number.
            budget: no further question is asked once the answers have cost so much, in the currency
                of the engine's prices. It is checked after every 16 questions.
            progress: called with each finished rollout.

        Raises:
            ValueError: several rounds at temperature 0, which would repeat the same answers.
        """
        require(
            self.rounds == 1 or temperature > 0,
            f"{self.rounds} rounds at temperature 0 repeat the same answers: set a temperature",
        )
        tasks = self.tasks
        texts = {item.id: item.question for item in self.items}
        protected = {item.id for item in self.items if item.protected}

        def convert(trajectory: Trajectory) -> dict:
            if progress is not None:
                progress(trajectory)
            row, ident = to_row(trajectory), trajectory.task_id
            return seal_row(row, texts[ident]) if ident in protected else row

        step = len(tasks) if budget is None else BETWEEN_CHECKS
        for number, path in enumerate(self.files, 1):
            for end in [*range(step, len(tasks), step), len(tasks)]:
                if budget is not None and self.spent() >= budget:
                    return False
                options = {"temperature": temperature, "seed": number}
                answer_file(agent, tasks[:end], path, convert, **options)
        return True

    def spent(self) -> float:
        """Return the cost of all answers so far, those of unfinished rounds included."""
        rows = [row for path in self.files for row in _read_rows(path)]
        return sum(row["usage"].get("cost", 0.0) for row in rows)


def _question_with_files(item: BenchmarkItem) -> str:
    if not item.files:
        return item.question
    names = ", ".join(path.name for path in item.files)
    return f"{item.question}\n\nAttached: {names} (parse_file reads it)"


def _read_rows(path: Path) -> list[dict]:
    """Read complete rows; the last line of a killed run may be truncated."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def describe(name: str, source: Path | Sequence[BenchmarkItem], options: Any) -> dict[str, Any]:
    """Return what identifies a run: the benchmark's version and the agent's options.

    Args:
        source: file of the benchmark, or the tasks of environments.
        options: dataclass of the agent's options; those in `UNRELATED` are left out.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            version = hashlib.file_digest(file, "sha256").hexdigest()
    else:
        tasks = json.dumps([asdict(item.task) for item in source if item.task])
        version = hashlib.sha256(tasks.encode()).hexdigest()
    chosen = {name: value for name, value in asdict(options).items() if name not in UNRELATED}
    return {"benchmark": name, "sha256": version, "options": chosen}


def estimate(run: BenchmarkRun, calls: int, turn_tokens: int, context_tokens: int) -> dict:
    """Return the expected usage of the answers that are missing.

    It is the mean of the finished answers, or without any the largest that the limits allow.

    Args:
        calls: tool calls of an answer.
        turn_tokens: tokens of a turn.
        context_tokens: tokens of a context, which a server reads again in each turn.

    Returns:
        "answers" (missing), "measured" (finished answers of the mean), "turns", "read_tokens",
        "said_tokens", all of them sums.
    """
    rows = [row["usage"] for round_ in run.finished() for row in round_ if row["usage"]]
    turns = calls + 2  # an answer, and one that is requested at the limit
    most = {
        "turns": turns,
        "read_tokens": turns * context_tokens,
        "said_tokens": min(turns * turn_tokens, context_tokens),
    }
    each = {
        name: sum(usage[name] for usage in rows) / len(rows) if rows else value
        for name, value in most.items()
    }
    sums = {name: round(value * run.missing) for name, value in each.items()}
    return {"answers": run.missing, "measured": len(rows), **sums}
