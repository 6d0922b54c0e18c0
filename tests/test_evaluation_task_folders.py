"""Task folders of Harbor and Terminal-Bench: settings, missing files, links, damaged settings.

Run: python -m pytest tests/test_evaluation_task_folders.py
"""

import random

import pytest

from drlib.cli import main
from drlib.evaluation.benchmarks import BENCHMARKS, BenchmarkError, load_benchmark
from tests.random_files import change_bytes, memory_folder

TOML = """version = "1.0"
[metadata]
difficulty = "easy"
tags = ["files", "python"]
[verifier]
timeout_sec = 120
[verifier.env]
MODE = "strict"
[agent]
timeout_sec = 60.5
[environment]
cpus = 2
memory_mb = 2048
gpus = 0
allow_internet = false
"""
YAML = """instruction: |-
  Create out.txt.
difficulty: easy
tags:
- files
parser_name: pytest
max_agent_timeout_sec: 900.0
max_test_timeout_sec: 180
run_tests_in_same_shell: false
estimated_duration_sec:
"""
FILES = {
    "harbor": {
        "task.toml": TOML,
        "instruction.md": "\ufeffCreate out.txt.\n",
        "environment/Dockerfile": "FROM scratch\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "touch out.txt\n",
    },
    "terminal_bench": {
        "task.yaml": YAML,
        "Dockerfile": "FROM scratch\n",
        "run-tests.sh": "pytest\n",
    },
}
UNSAFE = "instruction: !!python/object/apply:os.getcwd []"  # code that an unsafe loader calls
SETTINGS = {"harbor": "task.toml", "terminal_bench": "task.yaml"}


def make_task(folder, name="harbor", **changes):
    """Write a task folder; `changes` replace the text of files, None removes one."""
    for path, text in (FILES[name] | changes).items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    return folder


def test_tasks_of_harbor(tmp_path):
    make_task(tmp_path / "set" / "b")
    make_task(tmp_path / "set" / "a", **{"instruction.md": "Other.", "solution/solve.sh": None})
    (tmp_path / "set" / ".git").mkdir()
    (tmp_path / "set" / "README.md").write_text("The tasks.")
    first, second = load_benchmark("harbor", tmp_path / "set")
    assert (first.id, first.question, second.id) == ("a", "Other.", "b")
    assert second.question == "Create out.txt." and second.answers == ()
    assert not second.protected
    assert second.meta == {
        "folder": str(tmp_path / "set" / "b"),
        "agent.timeout_sec": 60.5,
        "verifier.timeout_sec": 120,
        "verifier.env": {"MODE": "strict"},
        "environment.cpus": 2,
        "environment.memory_mb": 2048,
        "environment.gpus": 0,
        "environment.allow_internet": False,
        "metadata.difficulty": "easy",
        "metadata.tags": ["files", "python"],
    }


def test_an_image_replaces_the_dockerfile(tmp_path):
    image = TOML.replace("cpus = 2", 'docker_image = "busybox:1"')
    changes = {"environment/Dockerfile": None, "task.toml": image}
    make_task(tmp_path / "set" / "a", **changes)
    (item,) = load_benchmark("harbor", tmp_path / "set")
    assert item.meta["environment.docker_image"] == "busybox:1"
    changes = {"environment/Dockerfile": None, "environment/docker-compose.yaml": "services: {}"}
    make_task(tmp_path / "other" / "a", **changes)
    assert len(load_benchmark("harbor", tmp_path / "other")) == 1


def test_tasks_of_terminal_bench(tmp_path):
    make_task(tmp_path / "set" / "a", "terminal_bench")
    older = YAML.replace(
        "instruction: |-\n  Create out.txt.",
        "descriptions:\n- {key: hint, description: Touch.}\n- {key: base, description: Create.}",
    )
    changes = {"task.yaml": older, "Dockerfile": None, "docker-compose.yaml": "services: {}"}
    make_task(tmp_path / "set" / "b", "terminal_bench", **changes)
    first, second = load_benchmark("terminal_bench", tmp_path / "set")
    assert (first.question, second.question) == ("Create out.txt.", "Create.")
    assert first.meta == {
        "folder": str(tmp_path / "set" / "a"),
        "max_agent_timeout_sec": 900.0,
        "max_test_timeout_sec": 180,
        "run_tests_in_same_shell": False,
        "parser_name": "pytest",
        "difficulty": "easy",
        "tags": ["files"],
    }


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("harbor", "task.toml"),
        ("harbor", "instruction.md"),
        ("harbor", "tests/test.sh"),
        ("terminal_bench", "task.yaml"),
        ("terminal_bench", "run-tests.sh"),
    ],
)
def test_canaries_protect_a_task(name, file, tmp_path):
    text = f"# benchmark-canary GUID 1-2\n{FILES[name][file]}"
    make_task(tmp_path / "set" / "a", name, **{file: text.replace("\ufeff", "")})
    assert load_benchmark(name, tmp_path / "set")[0].protected


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("harbor", {"task.toml": None}, "a: task.toml is missing"),
        ("harbor", {"instruction.md": None}, "a: instruction.md is missing"),
        ("harbor", {"tests/test.sh": None}, "a: tests/test.sh is missing"),
        ("harbor", {"environment/Dockerfile": None}, "a: environment/Dockerfile or .* is missing"),
        ("harbor", {"instruction.md": " \n"}, "a/instruction.md is empty"),
        ("harbor", {"task.toml": "[agent\n"}, "a/task.toml cannot be read: .*line 1"),
        ("harbor", {"task.toml": "agent = 1\n"}, "a/task.toml, field 'agent.timeout_sec'"),
        ("terminal_bench", {"task.yaml": None}, "a: task.yaml is missing"),
        ("terminal_bench", {"run-tests.sh": None}, "a: run-tests.sh is missing"),
        ("terminal_bench", {"Dockerfile": None}, "a: Dockerfile or docker-compose.yaml is missing"),
        ("terminal_bench", {"task.yaml": "a: [1"}, "a/task.yaml cannot be read: .*line 1"),
        ("terminal_bench", {"task.yaml": "a: !!int ''"}, "a/task.yaml cannot be read"),
        ("terminal_bench", {"task.yaml": UNSAFE}, "a/task.yaml cannot be read: .*constructor"),
        ("terminal_bench", {"task.yaml": "- a"}, "a/task.yaml has no settings by name"),
        ("terminal_bench", {"task.yaml": "a: 1"}, "a/task.yaml, field 'instruction': missing"),
        ("terminal_bench", {"task.yaml": "instruction: ' '"}, "field 'instruction': is empty"),
        ("terminal_bench", {"task.yaml": "descriptions: [x]"}, "'descriptions': must be a list"),
        ("terminal_bench", {"task.yaml": "descriptions: x"}, "'descriptions': is no list"),
        (
            "terminal_bench",
            {"task.yaml": "descriptions: [{key: base}]"},
            "field 'descriptions.description': missing",
        ),
        (
            "terminal_bench",
            {"task.yaml": "descriptions: [{key: hard, description: x}]"},
            "no description with key 'base'",
        ),
    ],
)
def test_damaged_tasks_are_named(name, changes, message, tmp_path):
    make_task(tmp_path / "set" / "a", name, **changes)
    make_task(tmp_path / "set" / "b", name)  # a complete task hides no damaged one
    with pytest.raises(BenchmarkError, match=message):
        load_benchmark(name, tmp_path / "set")


@pytest.mark.parametrize(
    ("name", "old", "new", "field"),
    [
        ("harbor", "timeout_sec = 120", "timeout_sec = 0", "verifier.timeout_sec"),
        ("harbor", "timeout_sec = 60.5", 'timeout_sec = "60"', "agent.timeout_sec"),
        ("harbor", "timeout_sec = 60.5", "timeout_sec = inf", "agent.timeout_sec"),
        ("harbor", "cpus = 2", "cpus = true", "environment.cpus"),
        ("harbor", "gpus = 0", "gpus = -1", "environment.gpus"),
        ("harbor", "allow_internet = false", "allow_internet = 0", "environment.allow_internet"),
        ("harbor", 'MODE = "strict"', "MODE = 1", "verifier.env"),
        ("harbor", '["files", "python"]', '["files", 1]', "metadata.tags"),
        ("harbor", '"easy"', '" "', "metadata.difficulty"),
        ("terminal_bench", "900.0", "-1", "max_agent_timeout_sec"),
        ("terminal_bench", "180", "soon", "max_test_timeout_sec"),
        ("terminal_bench", "shell: false", "shell: 1", "run_tests_in_same_shell"),
        ("terminal_bench", "- files", "  a: b", "tags"),
    ],
)
def test_settings_of_another_kind_are_named(name, old, new, field, tmp_path):
    file = SETTINGS[name]
    text = FILES[name][file]
    assert text.count(old) == 1
    make_task(tmp_path / "set" / "a", name, **{file: text.replace(old, new)})
    with pytest.raises(BenchmarkError, match=f"^a/{file}, field '{field}': "):
        load_benchmark(name, tmp_path / "set")


def test_links_stay_inside_the_task(tmp_path):
    task = make_task(tmp_path / "set" / "a")
    (task / "environment" / "copy").symlink_to(task / "solution")
    (task / "environment" / "relative.sh").symlink_to("../tests/test.sh")
    assert len(load_benchmark("harbor", tmp_path / "set")) == 1
    for target in (tmp_path / "elsewhere", tmp_path, "../../../elsewhere", "loop"):
        link = task / "environment" / "loop"
        link.symlink_to(target)
        with pytest.raises(BenchmarkError, match="a/environment/loop is a link that leaves"):
            load_benchmark("harbor", tmp_path / "set")
        link.unlink()
    make_task(tmp_path / "task")
    (tmp_path / "set" / "b").symlink_to(tmp_path / "task")
    with pytest.raises(BenchmarkError, match="b is a symbolic link"):
        load_benchmark("harbor", tmp_path / "set")


def test_sources_that_are_no_folders_of_tasks(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n")
    with pytest.raises(BenchmarkError, match="is no folder"):
        load_benchmark("harbor", file)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchmarkError, match="contains no folders of tasks"):
        load_benchmark("harbor", tmp_path / "empty")
    with pytest.raises(BenchmarkError, match="environment: task.toml is missing"):
        load_benchmark("harbor", make_task(tmp_path / "task"))  # a task, not a folder of tasks


@pytest.mark.parametrize("name", sorted(FILES))
def test_random_bytes_in_settings(name):
    """10,000 settings: noise, and valid ones with changed bytes."""
    draws = random.Random(name)
    valid = FILES[name][SETTINGS[name]].encode()
    loaded = 0
    with memory_folder() as folder:
        task = make_task(folder / "set" / "a", name)
        for number in range(10_000):
            content = change_bytes(valid, draws) if number % 2 else draws.randbytes(number % 64)
            (task / SETTINGS[name]).write_bytes(content)
            try:
                (item,) = load_benchmark(name, folder / "set")
            except BenchmarkError:
                continue
            loaded += 1
            assert item.question and item.answers == ()
    assert loaded > 100


@pytest.mark.parametrize("name", ["swebench", "harbor", "terminal_bench"])
def test_answers_are_not_judged_without_answer_texts(name, tmp_path, capsys):
    assert BENCHMARKS[name].judge == ""
    answers = tmp_path / "a.jsonl"
    answers.write_text('{"id": "a", "prediction": "x"}\n')
    command = ["evaluate", "answers", str(answers), "--benchmark", name, "--source", str(tmp_path)]
    for judge in ((), ("--judge", "rules")):
        assert main([*command, *judge]) == 1
        assert f"{name} has no answer texts" in capsys.readouterr().err
