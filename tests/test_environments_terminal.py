"""Terminal tasks: generation, verification by the final state, demonstrations."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from drlib.environments import load_environment, workspace
from drlib.environments.environment import demonstrate, is_test
from drlib.environments.terminal_exercises import EXERCISES
from drlib.environments.terminal_tasks import has_state
from drlib.environments.workspace import FOLDER, Workspace, text_files
from drlib.sandbox.programs import ProgramFault
from drlib.tools.toolbox import Toolbox

ALL = [(tier, make) for tier, group in EXERCISES.items() for make in group]


@pytest.fixture(scope="module", params=EXERCISES)
def environment(request):
    return load_environment(f"terminal:{request.param}")


def state_after(exercise):
    """Return the expected files, built from the data alone."""
    changed = exercise.files | exercise.changes
    texts = {path: text for path, text in changed.items() if text is not None}
    files = text_files(texts, exercise.modes | exercise.new_modes)
    for folder in exercise.folders:
        files[f"{FOLDER}/{folder}"] = (0o755, None)
    return Workspace(files)


def test_tasks_depend_only_on_the_seed(environment):
    first, again = environment.tasks(30, seed=3), environment.tasks(30, seed=3)
    assert first == again
    other = environment.tasks(30, seed=4)
    assert len({t.question for t in first} & {t.question for t in other}) < 3
    assert all(is_test(task.question) for task in environment.tasks(5, seed=3, split="test"))
    assert len(environment.tasks(3000, seed=0)) == 3000  # different questions


def test_unknown_tier():
    assert load_environment("terminal").tier == "easy"
    with pytest.raises(ValueError, match="easy, medium, hard"):
        load_environment("terminal:expert")


@pytest.mark.parametrize(("tier", "make"), ALL, ids=lambda v: getattr(v, "__name__", v))
def test_the_expected_state_is_accepted_and_every_deviation_is_not(tier, make):
    """Without a shell: remove or change each expected file, keep each file that must go."""
    rng = random.Random(7)
    for _ in range(5):
        exercise = make(rng)
        data = exercise._asdict()
        start = Workspace(text_files(exercise.files, exercise.modes))
        assert has_state(start, data) == bool(exercise.answer and not exercise.changes)
        assert has_state(state_after(exercise), data)
        for path, text in (exercise.files | exercise.changes).items():
            place = f"{FOLDER}/{path}"
            variants = [{place: (0o644, b"other")}]
            if text is not None:
                variants += [{place: None}, {place: (0o755, None)}, {place: (0o777, "x")}]
            for variant in variants:
                wrong = state_after(exercise)
                files = {k: v for k, v in (wrong.files | variant).items() if v is not None}
                assert not has_state(Workspace(files), data), (path, variant)
        for path, mode in exercise.new_modes.items():
            wrong = state_after(exercise)
            content = wrong.files[f"{FOLDER}/{path}"][1]
            wrong.files[f"{FOLDER}/{path}"] = (mode ^ 0o100, content)
            assert not has_state(wrong, data)
        for folder in exercise.folders:
            wrong = state_after(exercise)
            del wrong.files[f"{FOLDER}/{folder}"]
            assert not has_state(wrong, data)


@pytest.mark.parametrize(("tier", "make"), ALL, ids=lambda v: getattr(v, "__name__", v))
def test_the_commands_of_every_exercise_reach_the_state(tier, make):
    rng = random.Random(1)
    for _ in range(1 if tier == "hard" else 2):
        exercise = make(rng)
        space = Workspace(text_files(exercise.files, exercise.modes))
        for _, command in exercise.steps:
            shown = space.run(command)
            assert shown.ok, shown.text
        assert has_state(space, exercise._asdict())
        if exercise.answer:
            assert exercise.answer in shown.text


def test_demonstrations_are_correct(environment):
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        for task in environment.tasks(4, seed=1):
            assert demonstrate(environment, task, toolbox).score == 1


def test_64_episodes_at_once():
    environment = load_environment("terminal:easy")
    tasks = environment.tasks(64, seed=0)

    def play(task):
        with environment.reset(task) as episode:
            for _, command in json.loads(task.environment)["steps"]:
                episode.call("shell", {"command": command})
            return episode.verify(task.answer), episode.verify(None)

    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(play, tasks)) == {(1.0, 0.0)}


def test_a_fault_of_the_sandbox_is_no_score(monkeypatch):
    environment = load_environment("terminal:easy")
    (task,) = environment.tasks(1, seed=0)

    def fail(*arguments, **options):
        raise ProgramFault("no memory")

    monkeypatch.setattr(workspace, "run_program", fail)
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        with toolbox.open_episode(task) as tools:
            assert tools.call("shell", {"command": "true"}).env_fault
