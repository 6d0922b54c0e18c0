"""Terminal tasks on files, verified by the final state of the folder.

`terminal:easy` (one command), `terminal:medium` (pipelines and loops), `terminal:hard` (several
steps); "" is easy. The tool is `shell`. A task is solved if every file has the expected content and
permissions, and, for a question, if the answer is right. Files that the task does not mention must
be unchanged; other new files are allowed. The state is compared outside of the shell, and links
count as missing files.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from drlib.chat.tool_calls import ToolCall
from drlib.environments.environment import (
    Environment,
    Episode,
    Observation,
    Solution,
    choose_tier,
)
from drlib.environments.harbor_tasks import HarborTask
from drlib.environments.terminal_exercises import EXERCISES
from drlib.environments.workspace import FOLDER, SHELL, Workspace, text_files
from drlib.sandbox.programs import require_programs
from drlib.task import Task, is_correct
from drlib.tools.definitions import Tool

DONE = "done"  # answer of a task that is not a question
ANSWER_FILE = "answer.txt"  # for the answer of a saved question
TEST = "#!/bin/sh\nexec python3 -I /tests/check.py\n"
# The tests of a saved task: the comparison of `has_state`, on a real folder.
CHECK = """import json, os, stat

data = json.load(open("/tests/expected.json"))


def look(path):
    place = os.path.join(data["folder"], path)
    if os.path.realpath(place) != place or not os.path.lexists(place):
        return None, None
    mode = os.lstat(place).st_mode
    return mode, open(place, errors="replace").read() if stat.S_ISREG(mode) else None


def is_expected():
    for path, text in data["texts"].items():
        mode, found = look(path)
        if text is None:
            if os.path.lexists(os.path.join(data["folder"], path)):
                return False
        elif found is None or found.rstrip("\\n") != text.rstrip("\\n"):
            return False
    for path in data["folders"]:
        if not stat.S_ISDIR(look(path)[0] or 0):
            return False
    for path, mode in data["modes"].items():
        if stat.S_IMODE(look(path)[0] or 0) != mode:
            return False
    if data["answer"]:
        found = look("answer.txt")[1]
        return found is not None and found.strip() == data["answer"]
    return True


with open("/logs/verifier/reward.txt", "w") as file:
    file.write(str(int(is_expected())))
"""


class TerminalEnvironment(Environment):
    """Tasks on files.

    Args:
        arguments: "easy", "medium" or "hard"; "" is easy.

    Raises:
        ValueError: another tier.
        SandboxUnavailable: this machine cannot isolate programs.
    """

    def __init__(self, arguments: str):
        self.tier, self.name = choose_tier("terminal", arguments, EXERCISES)
        require_programs()

    def draw(self, rng: random.Random) -> Task:
        """Draw an exercise with random names and contents."""
        exercise = rng.choice(EXERCISES[self.tier])(rng)
        name = f"terminal-{self.tier}-{rng.getrandbits(40):010x}"
        ending = "" if exercise.answer else f" Answer {DONE}."
        return Task(
            name,
            exercise.request + ending,
            exercise.answer or DONE,
            self.name,
            self.name,
            environment=json.dumps(exercise._asdict()),
        )

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return shell."""
        return (SHELL,)

    def reset(self, task: Task) -> Episode:
        """Create the files."""
        return _Terminal(task)

    def solve(self, task: Task) -> Solution:
        """Run the exercise's commands."""
        for thought, command in json.loads(task.environment)["steps"]:
            yield thought, ToolCall("shell", {"command": command})
        return "All is done." if task.answer == DONE else f"It is {task.answer}.", task.answer

    def export(self, task: Task) -> HarborTask:
        """Return the task for `save_harbor`; a question is answered in a file."""
        data = json.loads(task.environment)
        commands = [command for _, command in data["steps"]]
        request = data["request"]
        if data["answer"]:
            request += f" Write the answer to {FOLDER}/{ANSWER_FILE}."
            commands.append(f"echo {data['answer']} > {ANSWER_FILE}")
        expected = {
            "folder": FOLDER,
            "texts": data["files"] | data["changes"],
            "folders": data["folders"],
            "modes": data["modes"] | data["new_modes"],
            "answer": data["answer"],
        }
        tests = {"test.sh": TEST, "check.py": CHECK, "expected.json": json.dumps(expected)}
        return HarborTask(
            task.id,
            request,
            text_files(data["files"], data["modes"]),
            FOLDER,
            {name: text.encode() for name, text in tests.items()},
            "\n".join(["#!/bin/sh", "set -e", *commands, ""]),
        )


class _Terminal(Episode):
    """A copy of the files."""

    def __init__(self, task: Task):
        self.task = task
        self.data = json.loads(task.environment)
        self.workspace = Workspace(text_files(self.data["files"], self.data["modes"]))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        if name == SHELL.name:
            return self.workspace.run(arguments["command"])
        return super().call(name, arguments)

    def verify(self, answer: str | None) -> float:
        """1 if the rollout ended with an answer, the state is expected and the answer right."""
        if answer is None:
            return 0.0
        is_right = self.task.answer == DONE or is_correct(answer, self.task)
        return float(is_right and has_state(self.workspace, self.data))


def has_state(workspace: Workspace, data: Mapping[str, Any]) -> bool:
    """Return True if the files are in the state after an exercise.

    Args:
        data: fields of `Exercise`. Line ends at the end of a file are ignored.
    """
    for path, text in (data["files"] | data["changes"]).items():
        if text is None:
            if f"{FOLDER}/{path}" in workspace.files:
                return False
            continue
        found = workspace.read(path)
        if found is None or found.rstrip("\n") != text.rstrip("\n"):
            return False
    for path in data["folders"]:
        if workspace.files.get(f"{FOLDER}/{path}", (0, ""))[1] is not None:
            return False
    modes = data["modes"] | data["new_modes"]
    for path, mode in modes.items():
        if workspace.files.get(f"{FOLDER}/{path}", (-1, ""))[0] != mode:
            return False
    return True
