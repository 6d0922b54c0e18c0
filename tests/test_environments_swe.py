"""Repositories with a planted bug: generation, tools, verification, demonstrations."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from drlib.environments import load_environment, workspace
from drlib.environments.environment import demonstrate, is_test
from drlib.environments.swe import TIERS
from drlib.environments.swe_templates import LISTS, MEASURES, NOUNS, OTHERS
from drlib.environments.workspace import (
    Workspace,
    evaluate,
    is_same_value,
    text_files,
)
from drlib.sandbox.programs import ProgramFault
from drlib.tools.toolbox import Toolbox

COUNTS = {"easy": 6, "medium": 3, "hard": 3}  # tasks that are solved with real tools
FILES = {"easy": (1, 1), "medium": (3, 4), "hard": (7, 8)}


@pytest.fixture(scope="module", params=TIERS)
def environment(request):
    return load_environment(f"swe:{request.param}")


def data_of(task):
    return json.loads(task.environment)


# ---------------------------------------------------------------- generation


def test_tasks_depend_only_on_the_seed(environment):
    first, again = environment.tasks(20, seed=3), environment.tasks(20, seed=3)
    assert first == again
    assert not {t.question for t in first} & {t.question for t in environment.tasks(20, seed=4)}
    assert not any(is_test(task.question) for task in first)
    assert all(is_test(task.question) for task in environment.tasks(5, seed=3, split="test"))


def test_thousands_of_different_tasks():
    environment = load_environment("swe")
    assert environment.tier == "easy"
    tasks = environment.tasks(1500, seed=0)
    assert len({data_of(t)["fix"][1] for t in tasks}) > 300
    assert len({t.id for t in tasks}) == 1500


def test_unknown_tier():
    with pytest.raises(ValueError, match="easy, medium, hard"):
        load_environment("swe:expert")


def test_the_tests_tell_correct_and_wrong_code_apart(environment):
    """In one process per task: as planted, and with the fix."""
    tier = environment.tier
    for task in environment.tasks(COUNTS[tier], seed=0):
        data = data_of(task)
        path, wrong, right = data["fix"]
        sources = {name: text for name, text in data["files"].items() if name != data["test"]}
        fewest, most = FILES[tier]
        assert fewest <= len(sources) <= most
        if tier == "easy":
            assert len(sources[path].splitlines()) <= 12
        assert data["trail"][-1] == path
        fails, passes = data["fail_to_pass"], data["pass_to_pass"]
        assert len(fails) >= 3 and passes
        calls = [call for call, _ in fails + passes]
        values = evaluate(sources, calls)
        assert not any(map(is_same_value, values, [value for _, value in fails]))
        assert values[len(fails) :] == [value for _, value in passes]
        assert sources[path].count(wrong) == 1
        sources[path] = sources[path].replace(wrong, right)
        assert evaluate(sources, calls) == [value for _, value in fails + passes]


def test_every_template_has_bugs_that_calls_can_show():
    rng = random.Random(0)
    for template in (*MEASURES, *LISTS, *OTHERS):
        for _ in range(3):
            filled = template.fill(rng.choice(NOUNS), rng)
            assert len(filled.bugs) >= 3
            assert len(filled.code.splitlines()) <= 12
            for right, wrong in filled.bugs:
                assert filled.code.count(right) == 1  # so that `edit` can replace it
                scopes = []
                for code in (filled.code, filled.code.replace(right, wrong)):
                    scopes.append({})
                    exec(code, scopes[-1])
                assert any(
                    outcome(scopes[0][filled.name], arguments)
                    != outcome(scopes[1][filled.name], arguments)
                    for arguments in (filled.arguments(rng) for _ in range(300))
                ), (filled.name, wrong)


def outcome(function, arguments):
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - planted bugs raise anything
        return type(error)


# ---------------------------------------------------------------- tools


@pytest.fixture
def space():
    texts = {"a.py": "x = 1\ny = x\n", "pkg/b.py": "z = 2\n", "bin.dat": ""}
    files = text_files(texts, {"a.py": 0o640})
    files["/app/bin.dat"] = (0o644, b"\xff\x00")
    files["/app/link.py"] = (0o777, "a.py")
    files["/secret"] = (0o755, None)
    files["/secret/key.py"] = (0o644, b"hidden = 1")
    return Workspace(files)


def test_view(space):
    assert space.view("a.py") == ("1\tx = 1\n2\ty = x", True)
    assert (
        space.view("./pkg/../a.py").text == space.view("/app/a.py").text == space.view("a.py").text
    )
    assert space.view(".").text.split() == ["a.py", "bin.dat", "link.py", "pkg", "pkg/b.py"]
    assert space.view("pkg").text == "pkg/b.py"


def test_long_files_are_cut(space):
    space.files["/app/a.py"] = (0o644, b"x\n" * 10_000)
    assert space.view("a.py").text.endswith("[cut]")
    assert len(space.view("a.py").text) < workspace.VIEW_CHARS + 10


@pytest.mark.parametrize(
    "path",
    [
        "missing.py",
        "../secret/key.py",
        "/secret/key.py",
        "/secret",
        "..",
        "/",
        "pkg/../../secret/key.py",
        "/app/../secret/key.py",
        "/app2",
        "link.py",
        "bin.dat",
        "a.py/x",
        "/etc/passwd",
        "a\0.py",
        "\ud800",
    ],
)
def test_paths_outside_links_and_binaries_are_refused(path, space):
    before = dict(space.files)
    assert not space.view(path).ok
    assert "hidden" not in space.view(path).text
    assert not space.edit(path, "hidden", "shown").ok
    assert space.read(path) is None
    assert space.files == before


def test_edit(space):
    assert space.edit("a.py", "x = 1", "x = 3").ok
    assert space.files["/app/a.py"] == (0o640, b"x = 3\ny = x\n")
    for old in ("x", "missing", ""):  # twice, never, empty
        done = space.edit("a.py", old, "z")
        assert not done.ok and space.read("a.py") == "x = 3\ny = x\n"
    assert space.edit("a.py", "y = x\n", "y = '\ud800'\n").ok  # no character: stored as "?"
    assert space.read("a.py") == "x = 3\ny = '?'\n"
    assert not space.edit("a.py", "x = 3", "x" * workspace.LARGEST_EDIT).ok


def test_run_keeps_changes_and_names_the_exit_code(space):
    assert space.run("echo 5 > new; cat a.py") == ("x = 1\ny = x", True)
    assert space.view("new").text == "1\t5"
    assert space.run("true") == ("[no output]", True)
    assert space.run("echo no; exit 3") == ("no\n[exit code 3]", False)
    assert space.run("cat /secret/key.py").ok  # a folder of this episode, not of the machine


def test_limits_of_a_command_are_observations(space, monkeypatch):
    monkeypatch.setattr(workspace, "COMMAND_S", 0.5)
    before = dict(space.files)
    assert not space.run("sleep 60").ok
    assert not space.run("yes").ok
    assert not space.run("truncate -s 4M 1 && cp 1 2 && cp 1 3").ok
    assert space.files == before


def test_evaluate_returns_values_whatever_the_code_prints():
    code = "import sys\nprint('noise')\ndef f(x):\n    print('more')\n    return x\n"
    calls = ["from m import f; f({'a': (1, [2.5, None])})", "f(1)", "1 / 0", "x = 3; x + 1"]
    assert evaluate({"m.py": code}, calls) == [
        "{'a': (1, [2.5, None])}",
        "raises NameError",
        "raises ZeroDivisionError",
        "4",
    ]
    assert evaluate({"m.py": "raise SystemExit"}, ["from m import f; f(1)"]) is None


@pytest.mark.parametrize(
    ("shown", "expected", "same"),
    [
        ("1", "1", True),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True),
        ("1", "True", False),
        ("1.0", "1", False),
        ("(1, 2)", "[1, 2]", False),
        ("{'a': 1}", "{'a': True}", False),
        ("[1, [2]]", "[1, [2.0]]", False),
        ("<Any object>", "1", False),
        ("[" * 10_000, "1", False),
        ("1 + 0", "1", False),
    ],
)
def test_values_are_compared_by_type(shown, expected, same):
    assert is_same_value(shown, expected) == same


# ---------------------------------------------------------------- episodes


def test_every_demonstration_is_correct(environment):
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        for task in environment.tasks(COUNTS[environment.tier], seed=1):
            played = demonstrate(environment, task, toolbox)
            assert played.score == 1 and played.answer == "done"
            assert all(result.ok for result in played.tool_results)
            assert "FAIL" not in played.tool_results[-1].text


def test_the_visible_tests_show_the_bug():
    environment = load_environment("swe:easy")
    for task in environment.tasks(2, seed=2):
        with environment.reset(task) as episode:
            shown = episode.call("run", {"command": f"python3 {data_of(task)['test']}"}).text
            assert "FAIL" in shown or "Error" in shown
            assert episode.verify("done") == 0


def test_demonstrations_of_the_easy_tier_are_short():
    environment = load_environment("swe:easy")
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        for task in environment.tasks(3, seed=7):
            messages = demonstrate(environment, task, toolbox).messages
            assert sum(len(message["content"]) for message in messages) < 1800


def test_64_episodes_at_once():
    environment = load_environment("swe:easy")
    (task,) = environment.tasks(1, seed=0)
    path, wrong, right = data_of(task)["fix"]

    def play(number):
        with environment.reset(task) as episode:
            new = right if number % 2 else f"{wrong}  # {number}"
            episode.call("edit", {"path": path, "old": wrong, "new": new})
            return episode.verify("done")

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(play, range(64))) == [0.0, 1.0] * 32


def test_a_fault_of_the_sandbox_is_no_score(monkeypatch):
    environment = load_environment("swe:easy")
    (task,) = environment.tasks(1, seed=0)

    def fail(*arguments, **options):
        raise ProgramFault("no memory")

    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        monkeypatch.setattr(workspace, "run_program", fail)
        with toolbox.open_episode(task) as tools:
            assert tools.call("run", {"command": "true"}).env_fault
            verification = tools.verify("done")
            assert verification.score is None and "no memory" in verification.fault


def test_unknown_tool(environment):
    with environment.reset(environment.tasks(1, seed=0)[0]) as episode, pytest.raises(LookupError):
        episode.call("shell", {})
