"""Environments: one state per rollout, verification at the end, faults that are never punished.

Run: python -m pytest tests/test_environments.py
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from drlib import register
from drlib.agents import Limits, ReAct
from drlib.chat.prompts import BRIEF_PROMPT, replace_tools, research_prompt
from drlib.chat.tool_calls import ToolCall, render_answer, render_call
from drlib.environments import (
    ENVIRONMENTS,
    Environment,
    Episode,
    Observation,
    load_environment,
    load_environments,
)
from drlib.environments.environment import demonstrate, is_test
from drlib.environments.trl_classes import TrlEnvironment, trl_class, trl_rows
from drlib.models.scripted_engine import ScriptedEngine
from drlib.rewards.functions import is_solved, make_reward
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import TOOLS, Toolbox
from drlib.tools.definitions import Parameter, Tool
from drlib.trajectory import Termination
from drlib.worlds import load_world

BRIEF = {
    (): "Answer.",
    ("add",): "Use the tool add, then answer.",
    ("search", "python"): BRIEF_PROMPT,
    ("view", "edit", "run"): "Use the tools view, edit and run, then answer.",
}
ADD = Tool("add", "Add to the counter.", (Parameter("amount", "A whole number."),))


class Counter(Environment):
    """Bring a counter to a number; the score falls with the distance."""

    def __init__(self, arguments="", questions=1000):
        self.name = "counter"
        self.shared_tools = tuple(filter(None, [arguments]))
        self.questions = questions
        self.opened = []

    def draw(self, rng):
        goal = rng.randrange(1, self.questions + 1)
        return self.task(goal)

    def task(self, goal):
        data = json.dumps({"goal": goal})
        return Task(f"counter-{goal}", f"Count to {goal}.", "", "counter", "", environment=data)

    def tools(self, task):
        return [ADD]

    def reset(self, task):
        episode = CounterEpisode(json.loads(task.environment)["goal"])
        self.opened.append(episode)
        return episode

    def solve(self, task):
        shown = yield "Add it.", ToolCall("add", {"amount": task.question.split()[-1].rstrip(".")})
        return "Done.", shown


class CounterEpisode(Episode):
    def __init__(self, goal):
        self.goal = goal
        self.value = 0
        self.closed = 0
        self.inside = 0

    def call(self, name, arguments):
        self.inside += 1
        assert self.inside == 1, "two calls at once"
        try:
            if arguments["amount"] == "crash":
                raise RuntimeError("the counter broke")
            if not arguments["amount"].isdecimal():
                return Observation("Error: no number.", False)
            self.value += int(arguments["amount"])
            return Observation(str(self.value))
        finally:
            self.inside -= 1

    def verify(self, answer):
        if answer == "broken":
            raise RuntimeError("no verification")
        if answer == "endless":
            return float("inf")
        return max(0.0, 1 - abs(self.goal - self.value) / self.goal)

    def close(self):
        self.closed += 1


def roll(environment, tasks, say, limits=None, samples=1, **toolbox):
    """Run scripted rollouts; `say` maps the messages to a turn."""
    engine = ScriptedEngine(say)
    with Toolbox(toolbox.pop("world", None), environments={environment.name: environment}) as tools:
        agent = ReAct(engine, tools, limits=limits or Limits(), system=research_prompt())
        agent.system = research_prompt([TOOLS["search"].schema])
        return agent.run(tasks, samples=samples), engine


def turns(*texts):
    """Return a `say` that returns the texts in order, for each conversation."""
    return lambda messages: texts[sum(m["role"] == "assistant" for m in messages)]


def add(amount):
    return f"<think>x</think>{render_call('add', {'amount': amount})}"


def answer(text):
    return f"<think>x</think>{render_answer(text)}"


# ---------------------------------------------------------------- rollouts


def test_each_rollout_has_a_state_of_its_own_and_no_call_is_cached():
    environment = Counter()
    say = turns(add("2"), add("2"), answer("done"))
    rollouts, _ = roll(environment, [environment.task(4), environment.task(8)], say, samples=3)
    assert [t.metadata["verification"]["score"] for t in rollouts] == [1.0] * 3 + [0.5] * 3
    assert [r.text for r in rollouts[0].tool_results] == ["2", "4"]
    assert not any(r.cache_hit for t in rollouts for r in t.tool_results)
    assert [episode.closed for episode in environment.opened] == [1] * 6


def test_rewards_read_the_verification():
    environment = Counter()
    tasks = [environment.task(2), environment.task(4)]
    (solved, half), _ = roll(environment, tasks, turns(add("2"), answer("done")))
    assert [
        make_reward("exact_match")(t, task).value for t, task in zip((solved, half), tasks)
    ] == [
        1.0,
        0.0,
    ]
    assert make_reward("verified")(half, tasks[1]).value == 0.5
    assert is_solved(solved, tasks[0]) and not is_solved(half, tasks[1])
    plain = replace(tasks[0], environment="", answer="done")
    assert make_reward("verified")(solved, plain).value == 1.0
    unverified = replace(half, metadata={})
    with pytest.raises(ValueError, match=f"{half.id}.*counter-4.*counter"):
        make_reward("exact_match")(unverified, tasks[1])


def test_a_limit_ends_in_a_verification_without_an_answer():
    environment = Counter()
    (rollout,), _ = roll(
        environment, [environment.task(2)], lambda _: add("1"), limits=Limits(calls=2)
    )
    assert rollout.termination is Termination.TURNS and rollout.answer is None
    assert rollout.metadata["verification"]["score"] == 1.0  # the state counts, not the answer


def test_the_policys_errors_are_observations():
    environment = Counter()
    wrong = f"<think>x</think>{render_call('search', {'query': ['x']})}"
    more = f"<think>x</think>{render_call('add', {'amount': 3})}"
    say = turns(add("three"), wrong, more, answer("done"))
    (rollout,), _ = roll(environment, [environment.task(2)], say)
    assert [r.error for r in rollout.tool_results] == ["failed", "unknown", "arguments"]
    assert not any(r.ok or r.env_fault for r in rollout.tool_results)
    assert rollout.metadata["verification"]["score"] == 0.0


@pytest.mark.parametrize(
    "texts",
    [(add("crash"), answer("x")), (answer("broken"),), (answer("endless"),)],
    ids=["call", "verify", "score"],
)
def test_a_fault_of_the_environment_is_excluded_and_never_scored(texts):
    environment = Counter()
    task = environment.task(2)
    (rollout,), _ = roll(environment, [task], turns(*texts))
    assert rollout.termination is Termination.ENV_FAULT
    assert "verification" not in rollout.metadata
    assert make_reward("exact_match")(rollout, task).value is None
    assert make_reward("verified")(rollout, task).value is None
    assert not is_solved(rollout, task)
    cause = rollout.metadata.get("fault") or rollout.tool_results[-1].source
    assert task.id in cause
    assert [episode.closed for episode in environment.opened] == [1]


def test_a_fault_of_reset():
    class Unavailable(Counter):
        def reset(self, task):
            raise OSError("disk full")

    environment = Unavailable()
    rollouts, _ = roll(environment, [environment.task(2)] * 2, turns(add("2"), answer("x")))
    assert [t.termination for t in rollouts] == [Termination.ENV_FAULT] * 2


def test_an_interrupted_run_closes_every_state():
    environment = Counter()
    ended = []

    def say(messages):
        if "3" in messages[-1]["content"]:
            raise KeyboardInterrupt
        return add("3")

    engine = ScriptedEngine(say)
    with Toolbox(None, environments={"counter": environment}) as toolbox:
        agent = ReAct(engine, toolbox)
        with pytest.raises(KeyboardInterrupt):
            agent.run(
                [environment.task(5)],
                watch=lambda event, _, value: ended.append(value) if event == "end" else None,
            )
    assert [t.termination for t in ended] == [Termination.WALL_CLOCK]
    assert [episode.closed for episode in environment.opened] == [1]


def test_calls_of_one_episode_do_not_overlap():
    environment = Counter()
    with Toolbox(None, environments={"counter": environment}) as toolbox:
        tools = toolbox.open_episode(environment.task(400))
        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(lambda _: tools.call("add", {"amount": "1"}), range(400)))
        assert all(r.ok for r in results)
        assert sorted(int(r.text) for r in results) == list(range(1, 401))
        assert tools.verify("x").score == 1.0
        after = tools.call("add", {"amount": "1"})
        assert after.env_fault and not after.ok


def test_the_prompt_lists_the_tools_of_the_task():
    environment = Counter()
    _, engine = roll(environment, [environment.task(2)], turns(answer("x")))
    system = engine.requests[0][0]["content"]
    assert '"add"' in system and '"search"' not in system
    assert replace_tools(None, [ADD.schema]) is None
    brief = [replace_tools(BRIEF_PROMPT, [{"name": name} for name in names]) for names in BRIEF]
    assert brief == [*BRIEF.values()]
    with pytest.raises(ValueError, match="tool_format"):
        replace_tools(research_prompt(), [ADD.schema])
    listed = research_prompt([TOOLS["search"].schema])
    with pytest.raises(ValueError, match="native"):
        replace_tools(listed, [ADD.schema], has_native_tools=True)
    braces = Tool("t", r"Escapes \1 and {x}.", ())
    assert r"Escapes \\1 and {x}." in replace_tools(listed, [braces.schema])


def test_shared_tools_are_those_of_the_toolbox():
    environment = Counter("python")
    task = environment.task(2)
    with (
        Sandbox() as sandbox,
        Toolbox(None, sandbox, environments={"counter": environment}) as tools,
    ):
        episode = tools.open_episode(task)
        assert [*episode.tools] == ["add", "python"]
        assert episode.call("python", {"code": "print(1 + 1)"}).text.strip() == "2"
    with Toolbox(load_world("tour"), environments={"counter": environment}) as tools:
        with pytest.raises(ValueError, match="python"):
            tools.open_episode(task)
    with Toolbox(None) as tools, pytest.raises(ValueError, match="counter.*load_environments"):
        tools.open_episode(task)


# ---------------------------------------------------------------- tasks


def test_splits_are_disjoint_for_every_seed():
    environment = Counter()
    train = {t.question for seed in range(4) for t in environment.tasks(150, seed)}
    test = {t.question for seed in range(4) for t in environment.tasks(150, seed, "test")}
    assert not train & test
    assert all(map(is_test, test)) and not any(map(is_test, train))
    assert environment.tasks(20, 7) == environment.tasks(20, 7)
    assert environment.tasks(20, 7) != environment.tasks(20, 8)
    share = sum(is_test(f"Count to {n}.") for n in range(5000)) / 5000
    assert share == pytest.approx(0.2, abs=0.02)


def test_too_few_questions():
    with pytest.raises(ValueError, match="counter has about .* train"):
        Counter(questions=20).tasks(50, 0)
    alone = next(n for n in range(1, 50) if not is_test(f"Count to {n}."))
    environment = Counter(questions=1)
    environment.draw = lambda rng: environment.task(alone)
    with pytest.raises(ValueError, match="no question in its test split"):
        environment.tasks(1, 0, "test")


def test_demonstrations_play_the_real_tools():
    environment = Counter()
    with Toolbox(None, environments={"counter": environment}) as toolbox:
        played = demonstrate(environment, environment.task(7), toolbox)
    assert played.correct and played.score == 1.0 and played.answer == "7"
    assert [m["role"] for m in played.messages] == ["user", "assistant", "tool", "assistant"]
    assert played.tools == [ADD.schema]
    assert [episode.closed for episode in environment.opened] == [1]


def test_names():
    @register.environment("my_counter", replace=True)
    def build(arguments):
        return Counter(arguments)

    try:
        found = load_environments("my_counter:python+database:medium")
        assert [*found] == ["my_counter:python", "database:medium"]
        assert found["my_counter:python"].shared_tools == ("python",)
        assert all(environment.name == name for name, environment in found.items())
    finally:
        del ENVIRONMENTS["my_counter"]
    assert load_environments("") == {}
    with pytest.raises(ValueError, match="databse.*database"):
        load_environment("databse")
    with pytest.raises(ValueError, match="easy, medium, hard"):
        load_environment("database:simple")


# ---------------------------------------------------------------- databases


@pytest.mark.parametrize("tier", ["easy", "medium", "hard"])
def test_every_request_to_a_database_can_be_met(tier):
    environment = load_environment(f"database:{tier}")
    with Toolbox(None, environments={environment.name: environment}) as toolbox:
        played = [demonstrate(environment, t, toolbox) for t in environment.tasks(60, 1)]
        assert [p.score for p in played] == [1.0] * 60
        untouched = [toolbox.open_episode(p.task).verify("Done.").score for p in played]
    assert untouched == [0.0] * 60  # nothing is solved by doing nothing


def test_a_database_is_judged_by_its_state_and_reads_by_their_calls():
    environment = load_environment("database:easy")
    tasks = environment.tasks(80, 2)
    with Toolbox(None, environments={"database:easy": environment}) as toolbox:

        def score(task, calls, said="Done."):
            with toolbox.open_episode(task) as tools:
                for call in calls:
                    tools.call(call.name, call.arguments)
                return tools.verify(said).score

        for task in tasks:
            calls = [call for _, call in replay(environment, task, toolbox)]
            assert score(task, calls) == 1.0
            assert score(task, calls, None) == 0.0  # it must end with an answer
            writes = not all(call.name.startswith(("get_", "find_")) for call in calls)
            again = [*calls, calls[0]]
            if not writes:
                assert score(task, again) == 0.0
                assert score(task, calls[:-1]) == 0.0
            wrong = ToolCall(calls[0].name, {**calls[0].arguments, "nothing": "1"})
            assert score(task, [wrong, *calls]) == 1.0  # a failed call changes nothing


def replay(environment, task, toolbox):
    """Return the steps of the scripted solution."""
    steps = []
    with toolbox.open_episode(task) as tools:
        solution = environment.solve(task)
        step = next(solution)
        while True:
            steps.append(step)
            try:
                step = solution.send(tools.call(step[1].name, step[1].arguments).text)
            except StopIteration:
                return steps


def test_databases_are_used_from_several_threads():
    environment = load_environment("database:medium")
    tasks = environment.tasks(16, 3)
    with Toolbox(None, environments={"database:medium": environment}) as toolbox:
        with ThreadPoolExecutor(8) as pool:
            played = list(pool.map(lambda t: demonstrate(environment, t, toolbox), tasks))
    assert all(p.score == 1.0 for p in played)
    assert threading.active_count() < 100


# ---------------------------------------------------------------- TRL's classes


class Lamp:
    """A class as TRL's users write it."""

    def reset(self, on: bool = False, **row) -> str:
        self.on = on
        return f"The lamp is {'on' if on else 'off'}."

    def switch(self, times: int) -> str:
        """Press the switch.

        Args:
            times: how often.
        """
        if times < 0:
            raise ValueError("it cannot be unpressed")
        self.on ^= times % 2 == 1
        return "click"

    def get_reward(self) -> float:
        return float(self.on)


def test_a_class_of_trl_is_an_environment():
    rows = [{"prompt": f"Light lamp {n}.", "on": n % 2 == 1} for n in range(40)]
    environment = TrlEnvironment("lamp", Lamp, rows)
    tasks = environment.tasks(12, 0)
    assert all("The lamp is" in task.question for task in tasks)
    press = f"<think>x</think>{render_call('switch', {'times': 1})}"
    back = f"<think>x</think>{render_call('switch', {'times': -1})}"
    rollouts, _ = roll(environment, tasks, turns(back, press, answer("done")))
    expected = [float("off" in task.question) for task in tasks]
    assert [t.metadata["verification"]["score"] for t in rollouts] == expected
    assert [r.ok for r in rollouts[0].tool_results] == [False, True]
    judged = TrlEnvironment("lamp", Lamp, rows, score=lambda lamp, row, said: float(said == "done"))
    assert judged.reset(tasks[0]).verify("done") == 1.0
    with pytest.raises(ValueError, match="get_reward"):
        TrlEnvironment("dark", type("Dark", (), {"reset": lambda self: None}), rows)
    with pytest.raises(ValueError, match="row 1.*prompt"):
        TrlEnvironment("lamp", Lamp, [{"prompt": "x"}, {"question": "y"}])


def test_an_environment_is_a_class_of_trl():
    environment = Counter()
    tasks = [environment.task(3), environment.task(4)]
    with Toolbox(None, environments={"counter": environment}) as toolbox:
        made = trl_class(environment, toolbox, tasks)
        instance = made()
        row = trl_rows(tasks)[0]
        instance.reset(**row)
        assert instance.add(amount="3") == "3"
        assert instance.get_reward() == 1.0
        instance.reset(**trl_rows(tasks)[1])
        instance.add(amount="2")
        assert instance.get_reward() == 0.5
        instance.reset(**row)
        instance.add(amount="crash")
        instance.reset(**row)
    assert [episode.closed for episode in environment.opened] == [1, 1, 1]
    assert "amount: A whole number." in made.add.__doc__
    database = load_environment("database")
    with Toolbox(None, environments={"database": database}) as toolbox:
        with pytest.raises(ValueError, match="different tools"):
            trl_class(database, toolbox, database.tasks(20, 0))
