"""The files of one episode: shell commands on them, views and edits, and a result from new code.

The files are values in this process. A command gets a copy in an isolated file tree
(`drlib.sandbox.programs`) and returns the changed files, so that between two calls nothing of an
episode exists on the machine. Views and edits look up exact paths and follow no links.
"""

import ast
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from drlib.sandbox.programs import Files, ProgramResult, run_program
from drlib.tools.definitions import Parameter, Tool
from drlib.tools.episode_toolbox import Observation

FOLDER = "/app"  # working folder of every task
COMMAND_S = 10.0  # time limit of a command, besides 5 s of processor time
EVALUATION_S = 30.0  # likewise of code under test; a busy machine must not fail a solution
SHELL = Tool("shell", "Run a shell command.", (Parameter("command", "A POSIX shell command."),))
_LIMITS = {
    "timeout": f"Error: the command took longer than {COMMAND_S:g} s.",
    "output_limit": "Error: the command printed too much.",
    "files_limit": "Error: the files became too large or too many; changes are undone.",
}
VIEW_CHARS = 4000  # of a file or folder
LARGEST_EDIT = 200_000  # bytes of an edited file
VALUES_CHARS = 1_000_000
# Evaluates calls of the code under test and prints the values. It contains no expected value, and
# the comparison is made in another process, so nothing that the code does here can forge a pass.
EVALUATE = """
import json, os, sys
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.path.insert(0, sys.argv[1])
def value(call):
    scope = {}
    try:
        *lines, last = call.split("; ")
        exec("\\n".join(lines), scope)
        return repr(eval(last, scope))
    except Exception as error:
        return "raises " + type(error).__name__
text = json.dumps([value(call) for call in json.loads(sys.argv[2])])
while text:
    text = text[os.write(out, text.encode()):]
"""


def text_files(texts: Mapping[str, str], modes: Mapping[str, int] | None = None) -> Files:
    """Return files with their parent folders.

    Args:
        texts: path below `FOLDER` -> content.
        modes: path -> permissions; 0o644 by default, and 0o755 for a folder.
    """
    modes = modes or {}
    files: Files = {FOLDER: (0o755, None)}
    for path, text in texts.items():
        folder = posixpath.dirname(path)
        while folder:
            files[f"{FOLDER}/{folder}"] = (modes.get(folder, 0o755), None)
            folder = posixpath.dirname(folder)
        files[f"{FOLDER}/{path}"] = (modes.get(path, 0o644), text.encode())
    return files


class Workspace:
    """The files of an episode.

    Args:
        files: path from the root -> entry; contains `folder`.
        folder: working folder.
        variables: environment variables of its commands.
    """

    def __init__(
        self, files: Files, folder: str = FOLDER, variables: Mapping[str, str] | None = None
    ):
        self.files = files
        self.folder = folder
        self.variables = variables

    def run(self, command: str) -> Observation:
        """Run a shell command and keep its changes of the files."""
        done = self.execute(command)
        self.files = done.files
        shown = done.output.rstrip("\n")
        if done.status == "ok":
            return Observation(shown or "[no output]")
        problem = _LIMITS.get(done.status, f"[exit code {done.exit_code}]")
        return Observation(f"{shown}\n{problem}".lstrip("\n"), False)

    def execute(self, command: str) -> ProgramResult:
        """Run a shell command without keeping its changes."""
        return run_program(
            command, self.files, self.folder, timeout_s=COMMAND_S, variables=self.variables
        )

    def view(self, path: str) -> Observation:
        """Show a file with line numbers, or the files below a folder."""
        place = self._absolute(path)
        if self.files.get(place, (0, ""))[1] is None:
            below = [name for name in sorted(self.files) if name.startswith(f"{place}/")]
            names = [posixpath.relpath(name, self.folder) for name in below]
            return _shorten(names or ["[empty folder]"])
        text = self.read(path)
        if text is None:
            return Observation(f"Error: there is no text file {path}.", False)
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        return _shorten([f"{n}\t{line}" for n, line in enumerate(lines, 1)])

    def edit(self, path: str, old: str, new: str) -> Observation:
        """Replace the only occurrence of `old` in a file."""
        text = self.read(path)
        if text is None:
            return Observation(f"Error: there is no text file {path}.", False)
        count = text.count(old) if old else 0
        if count != 1:
            return Observation(f"Error: old occurs {count} times in {path}, not once.", False)
        place = self._absolute(path)
        changed = text.replace(old, new).encode("utf-8", "replace")
        if len(changed) > LARGEST_EDIT:
            return Observation(f"Error: {path} would have more than {LARGEST_EDIT} bytes.", False)
        self.files[place] = (self.files[place][0], changed)
        return Observation(f"Edited {path}.")

    def read(self, path: str) -> str | None:
        """Return the text of a regular file below the folder; None if there is none."""
        content = self.files.get(self._absolute(path), (0, None))[1]
        try:
            return content.decode() if isinstance(content, bytes) else None
        except UnicodeDecodeError:
            return None

    def _absolute(self, path: str) -> str:
        """Return the path from the root; "", which no file has, outside of the folder."""
        place = posixpath.normpath(posixpath.join(self.folder, path))
        return place if place == self.folder or place.startswith(f"{self.folder}/") else ""


def _shorten(lines: Sequence[str]) -> Observation:
    text = "\n".join(lines)
    return Observation(text if len(text) <= VIEW_CHARS else f"{text[:VIEW_CHARS]}\n[cut]")


def evaluate(sources: Mapping[str, str], calls: Sequence[str]) -> list[str] | None:
    """Evaluate calls of untrusted code and return the `repr` of their values.

    Args:
        sources: path -> Python source; the code sees no other files.
        calls: statements and a final expression, separated by "; ".

    Returns:
        One text for each call ("raises NAME" after an exception), or None if the code ended the
        process, took too long or printed something else.
    """
    files = text_files(sources) | {"/check": (0o755, None)}
    files["/check/evaluate.py"] = (0o644, EVALUATE.encode())
    arguments = f"{FOLDER} {_quote(json.dumps(list(calls)))}"
    done = run_program(
        f"exec python3 -I /check/evaluate.py {arguments}",
        files,
        FOLDER,
        timeout_s=EVALUATION_S,
        merge=False,
        output_chars=VALUES_CHARS,
    )
    try:
        values = json.loads(done.output) if done.status == "ok" else None
    except (ValueError, RecursionError):
        return None
    is_complete = isinstance(values, list) and len(values) == len(calls)
    return values if is_complete and all(isinstance(v, str) for v in values) else None


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def is_same_value(shown: str, expected: str) -> bool:
    """Return True if two `repr` texts are equal values of equal types, in any order of keys."""
    if shown == expected:
        return True
    try:
        return is_same(ast.literal_eval(shown), ast.literal_eval(expected))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def is_same(left: Any, right: Any) -> bool:
    """Return True if two values are equal and all their parts have equal types."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    return left == right
