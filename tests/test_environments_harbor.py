"""Harbor task folders: loading, refused features, saving, running without Docker."""

import json
import random
from pathlib import Path

import pytest

from drlib.config import Config
from drlib.environments import harbor_tasks, load_environment, load_environments
from drlib.environments.environment import demonstrate
from drlib.environments.harbor_tasks import load_harbor, save_harbor
from drlib.evaluation.benchmarks.harbor import iter_harbor, read_harbor
from drlib.tools.toolbox import Toolbox
from drlib.training import stages

TIERS = "swe:easy+swe:hard+terminal:easy+terminal:medium+terminal:hard"
TOML = 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 20.0\n'
DOCKERFILE = "FROM ubuntu:24.04\nWORKDIR /app\n"
TEST = "#!/bin/bash\nif [ -f /app/out ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def write(folder, name="task", **texts):
    """Write a task folder; keyword arguments replace files."""
    contents = {
        "task.toml": TOML,
        "instruction.md": "Make the file out.\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": TEST,
        "solution/solve.sh": "#!/bin/sh\ntouch out\n",
    }
    for path, text in (contents | texts).items():
        place = Path(folder) / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            place.write_text(text)
    return Path(folder) / name


def score(folder, command=None):
    """Return the score after one command, or after the solution."""
    environment = load_environment(f"harbor:{folder}")
    (task,) = environment.all_tasks()
    if command is None:
        with Toolbox(None, environments={environment.name: environment}) as toolbox:
            return demonstrate(environment, task, toolbox).score
    with environment.reset(task) as episode:
        episode.call("shell", {"command": command})
        return episode.verify("done")


def test_a_task_runs_without_docker(tmp_path):
    write(tmp_path)
    assert score(tmp_path) == 1
    assert score(tmp_path, "true") == 0
    environment = load_environment(f"harbor:{tmp_path}")
    assert environment.draw(random.Random(0)) == environment.all_tasks()[0]


def test_20_saved_tasks_are_loaded_and_solved(tmp_path):
    for environment in load_environments(TIERS).values():
        save_harbor(tmp_path, [environment.export(task) for task in environment.tasks(4, seed=3)])
    harbor = load_environment(f"harbor:{tmp_path}")
    tasks = harbor.all_tasks()
    assert len(tasks) == 20
    with Toolbox(None, environments={harbor.name: harbor}) as toolbox:
        for task in tasks:
            assert demonstrate(harbor, task, toolbox).score == 1
    for task in tasks[::4]:
        with harbor.reset(task) as episode:
            assert episode.verify("done") == 0
    # the evaluation's reader accepts them as well
    items = [read_harbor(row) for row in iter_harbor(tmp_path)]
    assert [item.question for item in items] == [task.question for task in tasks]


def test_saving_and_loading_keep_every_field(tmp_path):
    for environment in load_environments(TIERS).values():
        for task in environment.tasks(3, seed=4):
            exported = environment.export(task)
            save_harbor(tmp_path, [exported])
            assert load_harbor(tmp_path / exported.name) == exported
    odd = exported._replace(
        name="odd",
        files={
            "/data": (0o755, None),
            "/data/empty": (0o700, None),
            "/data/a b'c": (0o600, b"\x00\xff"),
            "/data/link": (0o777, "a b'c"),
        },
        folder="/data",
        variables={"A": "1", "B": 'it\'s = "x"'},
    )
    save_harbor(tmp_path, [odd])
    assert load_harbor(tmp_path / "odd") == odd


@pytest.mark.parametrize(
    ("path", "text", "feature"),
    [
        ("environment/Dockerfile", DOCKERFILE + "RUN apt-get install -y git\n", "apt-get"),
        ("environment/Dockerfile", DOCKERFILE + "RUN mkdir x && pip install numpy\n", "pip"),
        ("environment/Dockerfile", DOCKERFILE + "RUN echo $(curl x)\n", "curl"),
        ("environment/Dockerfile", DOCKERFILE + "RUN echo 'a' > b; (make)\n", "make"),
        ("environment/Dockerfile", DOCKERFILE + "RUN echo 'a\n", "echo"),
        ("environment/Dockerfile", DOCKERFILE + "RUN <<END\nmkdir x\nEND\n", "<<END"),
        ("environment/Dockerfile", DOCKERFILE + "ENV A=$PATH:1\n", "ENV A=$PATH:1"),
        ("environment/Dockerfile", DOCKERFILE + "ENV A=1 2B=3\n", "2B=3"),
        ("environment/Dockerfile", DOCKERFILE + "USER app\n", "USER"),
        ("environment/Dockerfile", DOCKERFILE + "EXPOSE 80\n", "EXPOSE"),
        ("environment/Dockerfile", DOCKERFILE + "COPY --from=build a b\n", "--from"),
        ("environment/Dockerfile", DOCKERFILE + "COPY *.txt /app/\n", "COPY"),
        ("environment/Dockerfile", DOCKERFILE + "COPY ../task.toml /app/\n", "task.toml"),
        ("environment/Dockerfile", DOCKERFILE + "COPY missing /app/\n", "missing"),
        ("environment/Dockerfile", DOCKERFILE + "COPY Dockerfile /etc/\n", "/etc"),
        ("environment/Dockerfile", "FROM ubuntu:24.04\n", "WORKDIR"),
        ("environment/Dockerfile", "FROM ubuntu:24.04\nWORKDIR /usr/src/app\n", "/usr/src/app"),
        ("environment/Dockerfile", "FROM nvidia/cuda:12\nWORKDIR /app\n", "nvidia/cuda"),
        ("environment/Dockerfile", "FROM python:3 AS a\nWORKDIR /app\n", "AS a"),
        ("environment/docker-compose.yaml", "services: {}\n", "docker-compose"),
        ("task.toml", TOML + "[environment]\ngpus = 1\n", "GPU"),
        ("task.toml", TOML + "[environment]\nallow_internet = true\n", "network"),
        ("task.toml", TOML + "[environment]\nmcp_servers = ['a']\n", "environment.mcp_servers"),
        ("task.toml", TOML + "[solution]\nenv = {A = '1'}\n", "solution.env"),
        ("task.toml", TOML + "[[steps]]\nname = 'a'\n", "steps"),
        ("tests/test.sh", TEST + "curl -LsSf https://astral.sh/uv/install.sh | sh\n", "network"),
        ("tests/test.sh", TEST + "pip install pytest\n", "pip"),
        ("tests/test.sh", TEST + "docker ps\n", "docker"),
        ("task.yaml", "instruction: old\n", "Terminal-Bench 1"),
    ],
)
def test_missing_features_are_named(path, text, feature, tmp_path):
    folder = write(tmp_path, **{path: text})
    with pytest.raises(ValueError, match="task needs") as caught:
        load_harbor(folder)
    assert feature in str(caught.value)
    with pytest.raises(ValueError, match="task needs"):
        load_environment(f"harbor:{tmp_path}")


@pytest.mark.parametrize("path", ["task.toml", "instruction.md", "tests/test.sh"])
def test_missing_files_are_named(path, tmp_path):
    (write(tmp_path) / path).unlink()
    with pytest.raises(ValueError, match=path):
        load_environment(f"harbor:{tmp_path}")


def test_folders_without_tasks(tmp_path):
    for arguments in ("", str(tmp_path / "missing"), str(tmp_path)):
        with pytest.raises(ValueError, match="folder"):
            load_environment(f"harbor:{arguments}")


def test_links_in_a_task_folder_are_refused(tmp_path):
    folder = write(tmp_path, **{"environment/Dockerfile": DOCKERFILE + "COPY d /app/d\n"})
    (folder / "environment" / "d").mkdir()
    (folder / "environment" / "d" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="link"):
        load_harbor(folder)


def test_steps_of_a_dockerfile(tmp_path):
    dockerfile = """
        # a comment
        FROM python:3.11-slim
        LABEL a=b
        WORKDIR /srv
        WORKDIR app
        COPY one.txt two.txt ./
        COPY one.txt /data/new.txt
        COPY ["one.txt", "with space"]
        COPY tree /srv/tree/
        RUN mkdir -p a/b && \\
            echo '1;2 && 3' > a/b/c; chmod 600 two.txt
        CMD ["sleep", "infinity"]
        """
    texts = {
        "environment/Dockerfile": "\n".join(line.strip() for line in dockerfile.splitlines()),
        "environment/one.txt": "1",
        "environment/two.txt": "2",
        "environment/tree/x/y.sh": "3",
    }
    folder = write(tmp_path, **texts)
    (folder / "environment/tree/x/y.sh").chmod(0o755)
    loaded = load_harbor(folder)
    assert loaded.folder == "/srv/app" and loaded.timeout_s == 20
    found = {path: entry for path, entry in loaded.files.items() if entry[1] is not None}
    assert found == {
        "/srv/app/one.txt": (0o644, b"1"),
        "/srv/app/two.txt": (0o600, b"2"),
        "/data/new.txt": (0o644, b"1"),
        "/srv/app/with space": (0o644, b"1"),
        "/srv/tree/x/y.sh": (0o755, b"3"),
        "/srv/app/a/b/c": (0o644, b"1;2 && 3\n"),
    }


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 0.5 > /logs/verifier/reward.txt", 0.5),
        ("echo '{\"reward\": 0.25}' > /logs/verifier/reward.json", 0.25),
        ("echo 1 > /logs/verifier/reward.txt; exit 1", 0.0),
        ("pwd > /logs/a; [ $(cat /logs/a) = /app ] && echo 1 > /logs/verifier/reward.txt", 1.0),
        ("#!/usr/bin/env bash\n[[ a == a ]] && echo 1 > /logs/verifier/reward.txt", 1.0),
        ("cat /tests/data/key > /logs/verifier/reward.txt", 1.0),
    ],
)
def test_rewards(script, expected, tmp_path):
    write(tmp_path, **{"tests/test.sh": script, "tests/data/key": "1"})
    assert score(tmp_path, "true") == expected


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "exit 1",
        "echo yes > /logs/verifier/reward.txt",
        "echo 2 > /logs/verifier/reward.txt",
        "echo nan > /logs/verifier/reward.txt",
        "echo '[1]' > /logs/verifier/reward.json",
        "ln -s /tests/test.sh /logs/verifier/reward.txt",
        "missing-program",
    ],
)
def test_tests_without_a_reward_are_a_fault(script, tmp_path):
    write(tmp_path, **{"tests/test.sh": script})
    environment = load_environment(f"harbor:{tmp_path}")
    (task,) = environment.all_tasks()
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        with toolbox.open_episode(task) as tools:
            verification = tools.verify("done")
    assert verification.score is None and "reward" in verification.fault


def test_tests_that_the_policy_breaks_give_zero(tmp_path):
    write(
        tmp_path,
        **{"tests/test.sh": "cp /app/in /logs/verifier/reward.txt\n"},
        **{"environment/Dockerfile": DOCKERFILE + "RUN echo 0 > in\n"},
    )
    for command in ("rm in", "rm in; mkdir in", "echo x > in"):
        assert score(tmp_path, command) == 0


def test_a_task_without_a_solution(tmp_path):
    folder = write(tmp_path)
    (folder / "solution" / "solve.sh").unlink()
    environment = load_environment(f"harbor:{tmp_path}")
    (task,) = environment.all_tasks()
    with pytest.raises(ValueError, match="solve.sh"):
        next(environment.solve(task))
    assert json.loads(task.environment) == {"task": "task"}


def test_variables_of_a_dockerfile_reach_commands_and_tests(tmp_path):
    dockerfile = DOCKERFILE + 'ENV A=1 B="two words"\nENV C old form\nRUN printf x > $A\n'
    with pytest.raises(ValueError, match="RUN printf"):
        load_harbor(write(tmp_path / "refused", **{"environment/Dockerfile": dockerfile}))
    dockerfile = dockerfile.replace("RUN printf x > $A\n", "")
    script = '[ "$A$B$C" = "1two wordsold form" ] && echo 1 > /logs/verifier/reward.txt\n'
    folder = write(
        tmp_path / "tasks", **{"environment/Dockerfile": dockerfile, "tests/test.sh": script}
    )
    assert load_harbor(folder).variables == {"A": "1", "B": "two words", "C": "old form"}
    assert score(tmp_path / "tasks", "true") == 1
    environment = load_environment(f"harbor:{tmp_path / 'tasks'}")
    with environment.reset(environment.all_tasks()[0]) as episode:
        assert episode.call("shell", {"command": "echo $B $HOME"}).text == "two words /app"


PYTEST_TEST = """#!/bin/bash
pytest -q /tests/test_outputs.py
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
OUTPUTS = """import pathlib
def test_out():
    assert pathlib.Path("/app/out").read_text() == "right\\n"
"""


def test_tests_with_pytest(tmp_path, monkeypatch):
    tests = {"tests/test.sh": PYTEST_TEST, "tests/test_outputs.py": OUTPUTS}
    folder = write(tmp_path, **tests)
    assert score(tmp_path, "echo right > out") == 1
    assert score(tmp_path, "echo wrong > out") == 0
    # the policy cannot bring a pytest of its own
    assert score(tmp_path, "echo 'raise SystemExit(0)' | tee pytest.py > conftest.py") == 0
    assert score(tmp_path, "mkdir -p /tests/.pytest; echo > /tests/.pytest/pytest.py") == 0
    monkeypatch.setattr("drlib.environments.harbor_tasks.PYTEST_PACKAGES", ("no_such_package",))
    harbor_tasks._pytest_files.cache_clear()
    try:
        with pytest.raises(ValueError, match="the package pytest"):
            load_harbor(folder)
    finally:
        harbor_tasks._pytest_files.cache_clear()


def test_a_changed_task_is_another_stage(tmp_path):
    folder = write(tmp_path)
    for stage, setting in (
        ("demonstrations", "demonstrations__environments"),
        ("rl", "rl__curriculum__environments"),
        ("evaluate_rl", "evaluation__environments"),
    ):
        config = Config.load("ci", **{setting: f"harbor:{tmp_path}+terminal:easy"})

        def path(stage=stage, config=config):
            return stages.folder(stage, config, Path("runs"))

        before = path()
        assert path() == before
        script = folder / "tests" / "test.sh"
        script.write_text(TEST + "\n")
        assert path() != before
        script.write_text(TEST)
        assert path() == before
        script.chmod(0o755)
        assert path() != before
        script.chmod(0o644)
    plain = Config.load("ci", evaluation__environments="terminal:easy")
    assert not any("_files" in name for name in stages.stage_settings("evaluate_rl", plain)["own"])
