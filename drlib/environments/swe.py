"""Software engineering: small Python repositories with one planted bug, verified by hidden tests.

`swe:easy` (one file), `swe:medium` (three or four files), `swe:hard` (six to eight files); "" is
easy. The question names a failing call. The tools are `view`, `edit` (replace an exact string) and
`run` (a shell command, such as the visible tests). Hidden tests call the functions with other
arguments: fail-to-pass tests fail with the bug, pass-to-pass tests do not. When a task is drawn,
both are checked by running the code with and without the bug.

Only the repository's source files are verified. They run alone, as in `workspace.evaluate`.
"""

import inspect
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drlib.chat.tool_calls import ToolCall
from drlib.environments.environment import (
    Environment,
    Episode,
    Observation,
    Solution,
    choose_tier,
)
from drlib.environments.harbor_tasks import HarborTask
from drlib.environments.swe_templates import LISTS, MEASURES, NOUNS, OTHERS, Template
from drlib.environments.workspace import (
    EVALUATE,
    FOLDER,
    Workspace,
    evaluate,
    is_same,
    is_same_value,
    text_files,
)
from drlib.sandbox.programs import require_programs
from drlib.task import Task
from drlib.tools.definitions import Parameter, Tool

TIERS = ("easy", "medium", "hard")
HIDDEN = (6, 4)  # most fail-to-pass and pass-to-pass tests
_PATH = Parameter("path", "Path of a file.")
TOOLS = (
    Tool("view", "Show a file with line numbers.", (_PATH,)),
    Tool(
        "edit",
        "Replace a string that occurs once in a file.",
        (_PATH, Parameter("old", "String to replace."), Parameter("new", "Replacement.")),
    ),
    Tool("run", "Run a shell command.", (Parameter("command", "A shell command."),)),
)
TEST_FILE = """from {module} import {function}

for call, expected in [
{rows}
]:
    result = eval(call)
    if result == expected:
        print("pass", call)
    else:
        print("FAIL", call, "is", result, "instead of", expected)
"""


# The tests of a saved task. The code under test cannot write to files or start processes, and the
# expected values are removed from the disk before it runs.
CHECK = f"""import ast, json, os, resource, subprocess
from typing import Any

{inspect.getsource(is_same_value)}

{inspect.getsource(is_same)}

with open("/tests/tests.json") as file:
    tests = json.load(file)
os.unlink("/tests/tests.json")


def restrict():
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


os.makedirs("/tests/code")
for name in tests["sources"]:
    path = os.path.join(tests["folder"], name)
    if os.path.isfile(path) and not os.path.islink(path):
        with open(path) as source, open("/tests/code/" + name, "w") as copy:
            copy.write(source.read())
calls = json.dumps([call for call, _ in tests["tests"]])
command = ["python3", "-I", "/tests/evaluate.py", "/tests/code", calls]
try:
    done = subprocess.run(command, capture_output=True, timeout=20, preexec_fn=restrict)
    values = json.loads(done.stdout) if done.returncode == 0 else []
except (ValueError, subprocess.TimeoutExpired):
    values = []
expected = [value for _, value in tests["tests"]]
passed = isinstance(values, list) and len(values) == len(expected)
passed = passed and all(map(is_same_value, map(str, values), expected))
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(str(int(passed)))
"""


class Repository(NamedTuple):
    """Source files without a bug.

    Attributes:
        files: path -> source.
        functions: name -> (path, template), of the functions that tests call.
        top: the function of the failing call.
        bugs: (path, correct line, wrong line).
        trail: path -> paths to view, in order, until its bug is found.
    """

    files: dict[str, str]
    functions: dict[str, tuple[str, Template]]
    top: str
    bugs: list[tuple[str, str, str]]
    trail: dict[str, list[str]]


class SweEnvironment(Environment):
    """Repositories with a bug.

    Args:
        arguments: "easy", "medium" or "hard"; "" is easy.

    Raises:
        ValueError: another tier.
        SandboxUnavailable: this machine cannot isolate programs.
    """

    def __init__(self, arguments: str):
        self.tier, self.name = choose_tier("swe", arguments, TIERS)
        require_programs()

    def draw(self, rng: random.Random) -> Task:
        """Draw a repository, a bug and tests that tell the two apart."""
        while True:
            repository = _draw_repository(self.tier, rng)
            data = _plant(repository, rng)
            if data:
                break
        name = f"swe-{self.tier}-{rng.getrandbits(40):010x}"
        question = data.pop("question")
        return Task(name, question, "done", self.name, self.name, environment=json.dumps(data))

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return view, edit and run."""
        return TOOLS

    def reset(self, task: Task) -> Episode:
        """Create the repository."""
        return _Repair(json.loads(task.environment))

    def solve(self, task: Task) -> Solution:
        """View the files up to the bug, edit the line and run the visible tests."""
        data = json.loads(task.environment)
        path, old, new = data["fix"]
        for each in data["trail"]:
            yield f"Look at {each}.", ToolCall("view", {"path": each})
        yield f"It must be: {new}", ToolCall("edit", {"path": path, "old": old, "new": new})
        yield "Run the tests.", ToolCall("run", {"command": f"python3 {data['test']}"})
        return "The tests pass.", "done"

    def export(self, task: Task) -> HarborTask:
        """Return the task for `save_harbor`."""
        data = json.loads(task.environment)
        path, old, new = data["fix"]
        tests = {
            "folder": FOLDER,
            "sources": [name for name in data["files"] if name != data["test"]],
            "tests": data["fail_to_pass"] + data["pass_to_pass"],
        }
        texts = {
            "test.sh": "#!/bin/sh\nexec python3 -I /tests/check.py\n",
            "check.py": CHECK,
            "evaluate.py": EVALUATE,
            "tests.json": json.dumps(tests),
        }
        program = (
            f"path, old, new = {path!r}, {old!r}, {new!r}\n"
            "text = open(path).read()\nopen(path, 'w').write(text.replace(old, new))\n"
        )
        return HarborTask(
            task.id,
            task.question.removesuffix(" Answer done."),
            text_files(data["files"]),
            FOLDER,
            {name: text.encode() for name, text in texts.items()},
            f"#!/bin/sh\npython3 - <<'END'\n{program}END\n",
            timeout_s=30.0,
        )


class _Repair(Episode):
    """A copy of a repository."""

    def __init__(self, data: dict):
        self.data = data
        self.workspace = Workspace(text_files(data["files"]))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        if name == "view":
            return self.workspace.view(arguments["path"])
        if name == "edit":
            return self.workspace.edit(arguments["path"], arguments["old"], arguments["new"])
        if name == "run":
            return self.workspace.run(arguments["command"])
        return super().call(name, arguments)

    def verify(self, answer: str | None) -> float:
        """1 if the rollout ended with an answer and all hidden tests pass."""
        if answer is None:
            return 0.0
        sources = {}
        for path in self.data["files"]:
            text = self.workspace.read(path)
            if path != self.data["test"] and text is not None:
                sources[path] = text
        tests = self.data["fail_to_pass"] + self.data["pass_to_pass"]
        values = evaluate(sources, [call for call, _ in tests])
        if values is None:
            return 0.0
        expected = [value for _, value in tests]
        return float(all(map(is_same_value, values, expected)))


# ---------------------------------------------------------------- generation


def _draw_repository(tier: str, rng: random.Random) -> Repository:
    if tier == "easy":
        return _single_file(rng)
    noun = rng.choice(NOUNS)
    if tier == "medium":
        return _report(noun, rng.choice((2, 3)), rng)
    return _nested_report(noun, rng)


def _single_file(rng: random.Random) -> Repository:
    """A function of any template."""
    noun = rng.choice(NOUNS)
    template = rng.choice(MEASURES + LISTS + OTHERS).fill(noun, rng)
    path = f"{noun}s.py"
    bugs = [(path, right, wrong) for right, wrong in template.bugs]
    functions = {template.name: (path, template)}
    return Repository({path: template.code}, functions, template.name, bugs, {path: [path]})


def _report(noun: str, count: int, rng: random.Random) -> Repository:
    """A report of one or two figures about a filtered list, one module for each function."""
    choice = rng.choice(LISTS).fill(noun, rng)
    measures = [m.fill(noun, rng) for m in rng.sample(MEASURES, count - 1)]
    modules = {f"{choice.stem}.py": choice} | {f"{m.stem}.py": m for m in measures}
    imports = [f"from {path[:-3]} import {part.name}" for path, part in modules.items()]
    figures = ", ".join(f'"{m.stem}": {m.name}(kept)' for m in measures)
    lines = [
        *imports,
        "",
        "",
        f"def report({noun}s):",
        f'    """Return figures about the {noun}s that {choice.name} returns."""',
        f"    kept = {choice.name}({noun}s)",
        f"    return {{{figures}}}",
    ]
    return _assemble(noun, modules, {"report.py": lines}, ["report.py"], rng)


def _nested_report(noun: str, rng: random.Random) -> Repository:
    """A report of two sections, each with a filter and one or two measures."""
    choices = [c.fill(noun, rng) for c in rng.sample(LISTS, 2)]
    measures = [m.fill(noun, rng) for m in rng.sample(MEASURES, rng.choice((2, 3)))]
    modules = {f"{part.stem}.py": part for part in (*choices, *measures)}
    glue: dict[str, list[str]] = {}
    sections = rng.sample(("summary", "details", "overview", "figures", "checks", "totals"), 2)
    for section, choice, parts in zip(sections, choices, (measures[:1], measures[1:]), strict=True):
        used = [choice, *parts]
        figures = ", ".join(f'"{m.stem}": {m.name}(kept)' for m in parts)
        glue[f"{section}.py"] = [
            *(f"from {part.stem} import {part.name}" for part in used),
            "",
            "",
            f"def {section}({noun}s, limit):",
            f'    """Return figures about the first `limit` {noun}s, after {choice.name}."""',
            f"    kept = {choice.name}({noun}s[:limit])",
            f"    return {{{figures}}}",
        ]
    first, second = sections
    glue["report.py"] = [
        f"from {first} import {first}",
        f"from {second} import {second}",
        "",
        "",
        f"def report({noun}s, limit):",
        f'    """Return {first} of `limit` {noun}s and {second} of twice as many."""',
        f"    result = {first}({noun}s, limit)",
        f"    result.update({second}({noun}s, 2 * limit))",
        "    return result",
    ]
    trail = ["report.py", f"{first}.py", f"{second}.py"]
    return _assemble(noun, modules, glue, trail, rng, limit=True)


# Wrong lines of the modules that connect others: (pattern, replacement).
_GLUE_BUGS = (
    (r"(\w+)\((\w+)\[:limit\]\)", r"\1(\2[limit:])"),
    (r"(\w+)\((\w+)\[:limit\]\)", r"\1(\2)"),
    (r"kept = \w+\((\w+)\)", r"kept = \1"),
    (r", 2 \* limit\)", r", limit)"),
    (r"result = (\w+)\((\w+), limit\)", r"result = \1(\2, 2 * limit)"),
)


def _assemble(
    noun: str,
    modules: dict[str, Template],
    glue: dict[str, list[str]],
    trail: list[str],
    rng: random.Random,
    limit: bool = False,
) -> Repository:
    """Join the modules of templates with those that connect them."""
    top = Template("report", "report", "", f"{noun}s", "list limit" if limit else "list", ())
    files = {path: part.code for path, part in modules.items()}
    files |= {path: "\n".join(lines) + "\n" for path, lines in glue.items()}
    functions = {part.name: (path, part) for path, part in modules.items()}
    functions["report"] = ("report.py", top)
    bugs = [(path, *bug) for path, part in modules.items() for bug in part.bugs]
    for path, lines in glue.items():
        for line in lines:
            for pattern, replacement in _GLUE_BUGS:
                wrong = re.sub(pattern, replacement, line)
                if wrong != line:
                    # as likely as all bugs of a template together
                    bugs += [(path, line.strip(), wrong.strip())] * 3
    visits = {}
    for path in files:
        users = [each for each in trail if f"from {path[:-3]} import" in files[each]]
        way = ["report.py", *(each for each in users if each != "report.py"), path]
        visits[path] = list(dict.fromkeys(way))
    return Repository(files, functions, "report", bugs, visits)


def _plant(repository: Repository, rng: random.Random) -> dict | None:
    """Plant one bug and return the task's data with its "question"; None if tests do not show it.

    The bug changes the result of the failing call, of at least three hidden calls with two
    different values, and of no pass-to-pass test.
    """
    path, right, wrong = rng.choice(repository.bugs)
    text = repository.files[path]
    if text.count(right) != 1 or (changed := text.replace(right, wrong)).count(wrong) != 1:
        return None
    files = repository.files | {path: changed}
    correct, broken = _load(repository.files), _load(files)
    top = repository.functions[repository.top]
    failing: dict[str, str] = {}
    passing: dict[str, str] = {}
    for number in range(60):
        name = repository.top
        if number >= 45 and len(repository.functions) > 1:  # of other functions
            name = rng.choice([n for n in repository.functions if n != repository.top])
        module, template = repository.functions[name]
        arguments = template.arguments(rng)
        shown = ", ".join(map(repr, arguments))
        call = f"{name}({shown})"
        expected = _outcome(correct[name], arguments)
        is_same = _outcome(broken[name], arguments) == expected
        if is_same or name == repository.top:
            statement = f"from {module[:-3]} import {name}; {call}"
            (passing if is_same else failing)[statement] = expected
    first, *others = failing.items() or [("", "")]
    of_top = [item for item in passing.items() if f"; {repository.top}(" in item[0]]
    shown_rows = [first, *others[HIDDEN[0] :][:1], *of_top[:1]]
    others = others[: HIDDEN[0]]
    kept = [item for item in passing.items() if item not in shown_rows][-HIDDEN[1] :]
    if len(others) < 3 or len({value for _, value in others}) < 2 or not kept:
        return None
    call = first[0].split("; ")[1]
    wrong_value = _outcome(broken[repository.top], _arguments_of(call))
    test = f"test_{top[0]}"
    rows = "\n".join(f"    ({c.split('; ')[1]!r}, {v})," for c, v in shown_rows)
    body = TEST_FILE.format(module=top[0][:-3], function=repository.top, rows=rows)
    return {
        "question": (
            f"Fix the bug: in {top[0]}, {call} {_describe(wrong_value)} instead of {first[1]}. "
            f"The tests are in {test}. Answer done."
        ),
        "files": files | {test: body},
        "test": test,
        "fail_to_pass": others,
        "pass_to_pass": kept,
        "fix": [path, wrong, right],
        "trail": repository.trail[path],
    }


def _describe(outcome: str) -> str:
    return outcome if outcome.startswith("raises ") else f"returns {outcome}"


def _arguments_of(call: str) -> tuple:
    return eval(f"({call.partition('(')[2][:-1]},)")


def _load(files: dict[str, str]) -> dict[str, Any]:
    """Run generated sources together and return their functions."""
    scope: dict[str, Any] = {}
    for text in files.values():
        exec(re.sub(r"^from .*$", "", text, flags=re.MULTILINE), scope)
    return scope


def _outcome(function: Any, arguments: tuple) -> str:
    """Return the `repr` of the value, or "raises NAME"; arguments are copied."""
    try:
        return repr(function(*(list(a) if isinstance(a, list) else a for a in arguments)))
    except Exception as error:  # noqa: BLE001 - planted bugs raise anything
        return f"raises {type(error).__name__}"
