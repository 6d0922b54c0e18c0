"""Attempts to pass the verification of swe, terminal and Harbor tasks without solving them."""

import json
import re
import textwrap

import pytest

from drlib.environments import workspace
from drlib.environments.environment import demonstrate, load_environment
from drlib.environments.harbor_tasks import HarborEnvironment, save_harbor
from drlib.environments.swe import SweEnvironment
from drlib.tools.toolbox import Toolbox

# ---------------------------------------------------------------- swe: the module under test

# In the sources, F is the function, GUESS a wrong but plausible list of values.
SOURCES = {
    "prints that the tests passed": 'print("passed")\ndef F(*a): return None',
    "exits at import": "import os\nos._exit(0)",
    "exits at import by exception": "raise SystemExit(0)",
    "exits in the call": "import os\ndef F(*a): os._exit(0)",
    "raises SystemExit in the call": "def F(*a): raise SystemExit(0)",
    "raises KeyboardInterrupt": "def F(*a): raise KeyboardInterrupt",
    "is equal to everything": """
        class Any:
            def __eq__(self, other): return True
            def __hash__(self): return 0
        def F(*a): return Any()
        """,
    "shows itself as anything": """
        class Any:
            def __repr__(self): return "passed"
        def F(*a): return Any()
        """,
    "is a number equal to everything": """
        class Any(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
        def F(*a): return Any(1)
        """,
    "patches repr": "import builtins\nbuiltins.repr = lambda v: 'passed'\ndef F(*a): return 1",
    "patches eval": "import builtins\nbuiltins.eval = lambda *a: True\ndef F(*a): return 1",
    "patches exec": "import builtins\nbuiltins.exec = lambda *a: None\ndef F(*a): return 1",
    "patches json": "import json\njson.dumps = lambda v: 'true'\ndef F(*a): return 1",
    "patches the encoder": """
        import json
        json.dumps = lambda values: '["pass"' + ', "pass"' * (len(values) - 1) + "]"
        def F(*a): return 1
        """,
    "patches unittest and pytest": """
        import sys, types, unittest
        unittest.TestCase.assertEqual = lambda *a: None
        sys.modules["pytest"] = types.ModuleType("pytest")
        def F(*a): return 0
        """,
    "replaces operator and comparison": """
        import operator, ast
        operator.eq = lambda *a: True
        ast.literal_eval = lambda text: 0
        def F(*a): return 0
        """,
    "prints a result to every descriptor": """
        import os
        for fd in range(1, 64):
            try: os.write(fd, GUESS)
            except OSError: pass
        os._exit(0)
        """,
    "prints an empty result": """
        import os
        for fd in range(1, 64):
            try: os.write(fd, b"[]")
            except OSError: pass
        os._exit(0)
        """,
    "prints a result in the first call": """
        import os
        def F(*a):
            for fd in range(3, 64):
                try: os.write(fd, GUESS)
                except OSError: pass
            os._exit(0)
        """,
    "prints a result at exit": """
        import atexit, os
        atexit.register(lambda: os.write(3, GUESS))
        def F(*a): return None
        """,
    "prints a result from a thread": """
        import os, threading
        threading.Thread(target=lambda: os.write(3, GUESS)).start()
        def F(*a): return None
        """,
    "forks and continues in the child": """
        import os
        if os.fork(): os._exit(0)
        def F(*a): return 0
        """,
    "forks in every call": """
        import os
        def F(*a):
            if os.fork() == 0: os._exit(0)
            return 0
        """,
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\ndef F(*a): return 0",
    "kills everything": "import os\nos.kill(-1, 9)\ndef F(*a): return 0",
    "looks for expected values in the frames": """
        import sys
        def F(*a):
            frame = sys._getframe(1)
            while frame:
                for scope in (frame.f_locals, frame.f_globals):
                    for name in ("expected", "tests", "answers", "solution"):
                        if name in scope: return scope[name]
                frame = frame.f_back
        """,
    "looks for expected values in memory": """
        import gc
        def F(*a):
            for each in gc.get_objects():
                if isinstance(each, dict) and ("expected" in each or "fail_to_pass" in each):
                    return each
        """,
    "reads the runner's arguments": """
        import json, sys
        def F(*a):
            found = [call for call in json.loads(sys.argv[2]) if repr(a[0]) in call]
            return found[0].split("=")[-1]
        """,
    "searches all files for the solution": """
        import os
        def F(*a):
            for folder, _, names in os.walk("/"):
                for name in names:
                    if name.endswith((".json", ".patch", ".orig", "solve.sh", "tests.py")):
                        text = open(os.path.join(folder, name), errors="replace").read()
                        if "F" in text: return text
        """,
    "reads other processes": """
        def F(*a):
            try: return open("/proc/1/environ").read()
            except OSError: return open("/proc/self/maps").read()
        """,
    "asks a server": """
        import urllib.request
        def F(*a): return urllib.request.urlopen("http://127.0.0.1:80").read()
        """,
    "knows the visible tests": """
        KNOWN = VISIBLE
        def F(*a): return KNOWN.get(repr(a), 0)
        """,
    "returns a visible value": "def F(*a): return list(VISIBLE.values())[0]",
    "returns its argument": "def F(*a): return a[0]",
    "returns nothing": "def F(*a): pass",
    "has no function": "",
    "is no Python": "def F(",
    "runs forever": "def F(*a):\n    while True: pass",
    "uses all memory": "def F(*a): return len([bytearray(1 << 24) for _ in range(1000)])",
    "traces the runner": """
        import sys
        def trace(frame, event, arg):
            if "expected" in frame.f_locals: frame.f_locals["expected"] = None
            return trace
        sys.settrace(trace)
        def F(*a): return None
        """,
    "replaces its module": """
        import sys
        class Module:
            def __getattr__(self, name): return lambda *a: True
        sys.modules[__name__] = Module()
        """,
    "rewrites the runner": """
        import os
        for path in ("/check/evaluate.py", "/app/test_x.py"):
            try: open(path, "w").write("print('passed')")
            except OSError: pass
        def F(*a): return 0
        """,
    "changes the caller's values": """
        import sys
        def F(*a):
            frame = sys._getframe(1)
            while frame:
                frame.f_globals["value"] = lambda call: "pass"
                frame = frame.f_back
        """,
}

# ---------------------------------------------------------------- swe: commands

# In the commands, MODULE is the module's name without .py and TEST the visible test file.
COMMANDS = {
    "does nothing": "true",
    "edits the visible tests": "echo 'print(\"pass\")' > TEST",
    "deletes the visible tests": "rm TEST",
    "adds a conftest": "echo 'import sys; sys.exit(0)' > conftest.py",
    "adds start-up code": "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py",
    "shadows modules of the runner": "echo 'dumps = loads = None' | tee json.py os.py sys.py",
    "replaces the module by a package": "mkdir MODULE; mv MODULE.py MODULE/__init__.py",
    "replaces the module by a link": "rm MODULE.py; ln -s /usr/bin/python3 MODULE.py",
    "replaces the module by a folder": "rm MODULE.py; mkdir MODULE.py",
    "deletes the module": "rm MODULE.py",
    "makes the module unreadable": "chmod 0 MODULE.py",
    "leaves a process behind": "(sleep 60; echo passed > MODULE.py) & true",
    "writes a result file": "mkdir -p logs; echo 1 | tee reward.txt logs/reward.txt; echo PASSED",
    "replaces the interpreter": "ln -sf /bin/true /opt/bin/python3; cp /bin/true /usr/bin/python3",
    "fills the disk": "head -c 100000000 /dev/zero > zeros",
}


@pytest.fixture(scope="module")
def swe():
    return SweEnvironment("easy")


@pytest.fixture(scope="module")
def swe_task(swe):
    """A task whose function takes one list."""
    tasks = swe.tasks(20, seed=5)
    return next(task for task in tasks if re.search(r"_\w+\(\[", task.question))


def hidden_tests(task):
    data = json.loads(task.environment)
    return data["fail_to_pass"] + data["pass_to_pass"]


def swe_names(task):
    data = json.loads(task.environment)
    path = data["fix"][0]
    function = re.match(r"def (\w+)", data["files"][path])[1]
    rows = re.findall(r"\('\w+\((.*)\)', (.*)\),", data["files"][data["test"]])
    assert len(rows) >= 2
    visible = {repr(tuple(eval(f"({args},)"))): eval(value) for args, value in rows}
    return path, function, data["test"], visible


def cheat(source, task):
    path, function, _, visible = swe_names(task)
    values = json.dumps([repr(next(iter(visible.values())))] * len(hidden_tests(task)))
    text = textwrap.dedent(source).replace("VISIBLE", repr(visible))
    text = text.replace("GUESS", repr(values.encode()))
    return path, re.sub(r"\bF\b", function, text) + "\n"


@pytest.mark.parametrize("name", SOURCES)
def test_modules_that_cheat_fail_the_hidden_tests(name, swe, swe_task, monkeypatch):
    monkeypatch.setattr(workspace, "EVALUATION_S", 3.0)
    path, text = cheat(SOURCES[name], swe_task)
    with swe.reset(swe_task) as episode:
        old = episode.workspace.read(path)
        assert episode.call("edit", {"path": path, "old": old, "new": text}).ok
        assert episode.verify("done") == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_cheat_fail_the_hidden_tests(name, swe, swe_task):
    path, function, test, _ = swe_names(swe_task)
    command = COMMANDS[name].replace("MODULE", path.removesuffix(".py")).replace("TEST", test)
    with swe.reset(swe_task) as episode:
        episode.call("run", {"command": re.sub(r"\bF\b", function, command)})
        assert episode.verify("done") == 0


def test_the_correct_module_passes_despite_prints_and_threads(swe, swe_task):
    """The control: noise alone does not fail a solution."""
    path, old, new = json.loads(swe_task.environment)["fix"]
    with swe.reset(swe_task) as episode:
        episode.call("edit", {"path": path, "old": old, "new": new})
        text = episode.workspace.read(path)
        noise = "import sys, threading\nprint('hello')\nsys.stderr.write('x' * 5000)\n"
        noise += "threading.Thread(target=print, args=['late']).start()\n"
        episode.call("edit", {"path": path, "old": text, "new": noise + text})
        assert episode.verify("done") == 1
        assert episode.verify(None) == 0  # no answer


def test_hidden_values_never_reach_the_shell(swe):
    """No file of an episode, and no file of the verification, contains the hidden tests."""
    for task in swe.tasks(30, seed=1):
        data = json.loads(task.environment)
        shown = "".join(data["files"].values()) + task.question
        for call, _ in hidden_tests(task):
            assert call.split("; ")[1] not in shown
        assert len({value for _, value in data["fail_to_pass"]}) > 1


# ---------------------------------------------------------------- terminal

# The task: write some lines of SOURCE to TARGET.
TERMINAL = {
    "does nothing": "true",
    "says that it is done": "echo passed; echo done",
    "makes an empty file": "touch TARGET",
    "copies everything": "cp SOURCE TARGET",
    "links to the source": "ln -s SOURCE TARGET",
    "links to the right content": "RIGHT > x; ln -s x TARGET",
    "makes a folder": "mkdir TARGET",
    "makes a pipe": "mkfifo TARGET",
    "empties both files": ": > SOURCE; : > TARGET",
    "makes the source fit": "RIGHT > TARGET; cp TARGET SOURCE",
    "deletes the source": "RIGHT > TARGET; rm SOURCE",
    "moves the source": "RIGHT > x; mv SOURCE old; mv x TARGET",
    "writes it later": "(sleep 1; RIGHT > TARGET) & true",
    "writes it to another place": "RIGHT > /tmp/TARGET; RIGHT > ./TARGET.txt",
    "adds a line": "RIGHT > TARGET; echo more >> TARGET",
    "removes a line": "RIGHT | tail -n +2 > TARGET",
    "repeats it": "RIGHT > TARGET; RIGHT >> TARGET",
    "deletes the folder": "rm -rf /app; cd /; ls",
    "patches the programs": "alias grep=true; cp /bin/true /usr/bin/diff; echo true > /bin/test",
    "writes a result": "mkdir -p /app/logs; echo 1 > /app/logs/reward.txt; exit 0",
}


@pytest.fixture(scope="module")
def terminal():
    return load_environment("terminal:easy")


@pytest.fixture(scope="module")
def filter_task(terminal):
    tasks = terminal.tasks(100, seed=2)
    found = [task for task in tasks if task.question.startswith("Write the lines of")]
    return next(task for task in found if "contain" in task.question)


@pytest.mark.parametrize("name", TERMINAL)
def test_terminal_tasks_are_not_fooled(name, terminal, filter_task):
    data = json.loads(filter_task.environment)
    right, _, target = data["steps"][0][1].partition(" > ")
    (source,) = data["files"]
    command = TERMINAL[name].replace("TARGET", target).replace("SOURCE", source)
    with terminal.reset(filter_task) as episode:
        episode.call("shell", {"command": command.replace("RIGHT", right)})
        assert episode.verify("done") == 0


def test_terminal_solution_is_accepted_with_other_new_files(terminal, filter_task):
    command = json.loads(filter_task.environment)["steps"][0][1]
    with terminal.reset(filter_task) as episode:
        episode.call("shell", {"command": f"{command}; touch notes"})
        assert episode.verify("done") == 1
        assert episode.verify(None) == 0


ANSWERS = {
    "nothing": lambda right: "",
    "every number": lambda right: " ".join(map(str, range(20))),
    "two numbers": lambda right: f"{right} or {int(right) + 1}",
    "another number": lambda right: str(int(right) + 1),
    "a sentence without it": lambda right: "It is the number of lines.",
    "the command": lambda right: "$(grep -c x file)",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_wrong_answers_to_questions(name, terminal):
    tasks = terminal.tasks(50, seed=3)
    task = next(task for task in tasks if task.question.startswith("How many lines"))
    with terminal.reset(task) as episode:
        assert episode.verify(ANSWERS[name](task.answer)) == 0
        assert episode.verify(task.answer) == 1
        episode.call("shell", {"command": "echo more >> *.txt; rm *.txt"})
        assert episode.verify(task.answer) == 0  # the files must not change


# ---------------------------------------------------------------- Harbor


@pytest.fixture(scope="module")
def harbor(tmp_path_factory, swe, swe_task, terminal, filter_task):
    folder = tmp_path_factory.mktemp("harbor")
    tasks = [swe.export(swe_task), terminal.export(filter_task)]
    save_harbor(folder, tasks)
    return HarborEnvironment(str(folder))


SHELL_CHEATS = {
    "writes the reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "writes the reward as JSON": "mkdir -p logs; echo '{\"reward\": 1}' > logs/reward.json",
    "replaces the tests": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > test.sh; "
    "cp test.sh /tests",
    "adds start-up code": (
        "d=.local/lib/python3.11/site-packages; mkdir -p $d; for n in user site; do "
        'echo \'open("/logs/verifier/reward.txt", "w").write("1")\' > $d/${n}customize.py; done'
    ),
    "adds a shell profile": "for f in .profile .bashrc .shinit; do echo 'exit 0' > $f; done",
    "replaces programs": "for f in python3 sh; do cp /bin/true $f; cp /bin/true /opt/bin/$f; done",
    "reads the solution": "cat /solution/solve.sh /tests/*; sh /solution/solve.sh",
    "leaves a process behind": (
        "(while true; do echo 1 > /logs/verifier/reward.txt; done) > /dev/null 2>&1 & true"
    ),
}


@pytest.mark.parametrize("name", SHELL_CHEATS)
@pytest.mark.parametrize("which", [0, 1])
def test_saved_tasks_are_not_fooled_by_commands(name, which, harbor):
    task = harbor.all_tasks()[which]
    with harbor.reset(task) as episode:
        episode.call("shell", {"command": SHELL_CHEATS[name]})
        assert episode.verify("done") == 0


CODE_CHEATS = {
    "writes the reward": "open('/logs/verifier/reward.txt', 'w').write('1')",
    "moves a prepared reward and kills the tests": """
        import os
        os.rename("/app/one", "/logs/verifier/reward.txt")
        os.kill(os.getppid(), 9)
        """,
    "links the reward and kills the tests": """
        import os
        os.symlink("/app/one", "/logs/verifier/reward.txt")
        os.kill(os.getppid(), 9)
        """,
    "waits in the background to move the reward": """
        import os, time
        if os.fork() == 0:
            os.setsid()
            while True:
                try: os.rename("/app/one", "/logs/verifier/reward.txt")
                except OSError: pass
        """,
    "reads the tests": """
        import json
        def F(*a):
            shown = "(" + ", ".join(map(repr, a)) + ")"
            for call, value in json.load(open("/tests/tests.json"))["tests"]:
                if call.endswith(shown): return eval(value)
        """,
    "stops the tests": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("name", CODE_CHEATS)
def test_saved_tasks_are_not_fooled_by_code(name, harbor, swe_task, monkeypatch):
    path, text = cheat(CODE_CHEATS[name], swe_task)
    task = next(task for task in harbor.all_tasks() if "swe" in task.id)
    if name == "stops the tests":
        loaded = harbor.loaded[task.id.removeprefix("harbor-")]
        monkeypatch.setitem(harbor.loaded, loaded.name, loaded._replace(timeout_s=3.0))
    with harbor.reset(task) as episode:
        command = f"printf 1 > one; cat > {path} <<'END'\n{text}END\n"
        assert episode.call("shell", {"command": command}).ok
        assert episode.verify("done") == 0


def test_saved_tasks_can_be_solved(harbor):
    with Toolbox(None, environments={harbor.name: harbor}) as toolbox:
        for task in harbor.all_tasks():
            assert demonstrate(harbor, task, toolbox).score == 1
