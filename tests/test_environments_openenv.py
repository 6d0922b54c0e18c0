"""OpenEnv in both directions, with real servers; skipped without it (run `make test-adapters`).

Run: python -m pytest tests/test_environments_openenv.py
"""

import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from drlib.chat.tool_calls import render_answer, render_call
from drlib.environments import load_environment
from drlib.environments.environment import demonstrate
from drlib.tools import Toolbox
from drlib.trajectory import Termination
from tests.test_environments import roll

pytest.importorskip("openenv", reason="run `make test-adapters`: it installs openenv")
ADDRESS = "http://127.0.0.1:{}"


@contextmanager
def serving(kind):
    """Run a server in a process of its own; yield its address and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.openenv_server", kind, str(port)]
    server = subprocess.Popen(command)
    try:
        for _ in range(1800):
            assert server.poll() is None, "the server did not start"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield ADDRESS.format(port), server
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def shop():
    with serving("shop") as (address, _):
        yield load_environment(f"openenv:{address}")


@pytest.fixture(scope="module")
def guessing():
    with serving("guessing") as (address, _):
        yield load_environment(f"openenv:{address},largest=5")


def guess(number, wish=""):
    return f"<think>x</think>{render_call('step', {'number': number, 'wish': wish})}"


def test_our_environment_keeps_tasks_tools_and_scores_over_the_protocol(shop):
    own = load_environment("web:easy")
    remote = shop.tasks(6, 1)
    # the server draws the same task for the same seed
    assert remote[0].question == shop.tasks(6, 1)[0].question
    assert [tool.name for tool in shop.tools(remote[0])] == ["read", "click", "type", "back"]
    for task in remote:
        seed = json.loads(task.environment)["seed"]
        drawn = own.draw_split(random.Random(seed))
        assert drawn.question == task.question
        with Toolbox(None, environments={own.name: own}) as toolbox:
            played = demonstrate(own, drawn, toolbox)
        with shop.reset(task) as episode:
            for result in played.tool_results:
                shown = episode.call(result.tool, result.arguments)
                assert (shown.text, shown.ok) == (result.text, result.ok)
            assert episode.verify(played.answer) == 1.0
        with shop.reset(task) as episode:
            assert episode.verify(played.answer) == 0.0  # nothing was done
        with shop.reset(task) as episode:
            wrong = episode.call("click", {"link": "Pay"})
            assert not wrong.ok and "no link" in wrong.text
            assert episode.verify(None) == 0.0


def test_sessions_are_separate(shop):
    tasks = shop.tasks(4, 2)

    def visit(task):
        with shop.reset(task) as episode:
            episode.call("click", {"link": "Newsletter"})
            time.sleep(0.2)
            return episode.call("read", {}).text

    with ThreadPoolExecutor(4) as pool:
        assert all(text.startswith("Newsletter") for text in pool.map(visit, tasks))


def test_a_foreign_environment_is_played(guessing):
    tasks = guessing.tasks(3, 0)
    (tool,) = guessing.tools(tasks[0])
    assert tool.name == "step" and set(tool.schema["parameters"]["properties"]) == {
        "number",
        "wish",
    }
    goal = json.loads(tasks[0].environment)["seed"] % 1000
    assert tasks[0].question == f"Guess {goal} or {goal + 7}."
    turns = [guess(goal + 7, "comfort"), guess("many"), guess(goal), guess(goal)]

    def say(messages):
        said = sum(m["role"] == "assistant" for m in messages)
        return turns[said] if said < 4 else render_answer("done")

    (rollout,), _ = roll(guessing, tasks[:1], say)
    assert [r.ok for r in rollout.tool_results] == [True, False, True, False]
    assert "number" in rollout.tool_results[1].text  # rejected by the server
    assert rollout.metadata["verification"]["score"] == 1.0  # (1 + 4) / 5
    (rollout,), _ = roll(guessing, tasks[1:2], lambda _: render_answer("done"))
    assert rollout.metadata["verification"]["score"] == 0.0


def test_a_crash_of_the_server_is_a_fault_and_no_score(guessing):
    with serving("guessing") as (address, server):
        broken = load_environment(f"openenv:{address}")
        task = broken.tasks(1, 3)[0]
        for wish in ("crash", "exit"):
            (rollout,), _ = roll(broken, broken.tasks(1, 0), lambda _, w=wish: guess(0, w))
            assert rollout.termination is Termination.ENV_FAULT
            assert "verification" not in rollout.metadata
        assert "openenv" in rollout.tool_results[-1].source
        server.wait(10)
        (rollout,), _ = roll(broken, [task], lambda _: guess(0))
        assert rollout.termination is Termination.ENV_FAULT  # refused
    unscaled = load_environment(guessing.name.partition(",")[0])
    task = guessing.tasks(1, 3)[0]
    goal = json.loads(task.environment)["seed"] % 1000
    with unscaled.reset(task) as episode:
        episode.call("step", {"number": goal})
        with pytest.raises(ValueError, match="sum to 4: set largest"):
            episode.verify("done")


def test_addresses_are_checked():
    for wrong in ("", "localhost:8000", "http://localhost:8000,scale=3"):
        with pytest.raises(ValueError, match="openenv:http://HOST:PORT"):
            load_environment(f"openenv:{wrong}")
    with pytest.raises(ConnectionError, match="no OpenEnv server"):
        load_environment("openenv:http://127.0.0.1:9")


def test_the_client_of_openenv_plays_our_environment(shop):
    from openenv import GenericEnvClient

    async def play():
        async with GenericEnvClient(base_url=shop.url) as client:
            listed = await client.step({"type": "list_tools"})
            started = await client.reset(seed=5)
            read = await client.step({"type": "call_tool", "tool_name": "read", "arguments": {}})
            action = {"tool_name": "answer", "arguments": {"text": "done"}}
            ended = await client.step({"type": "call_tool", **action})
            return listed, started, read, ended

    listed, started, read, ended = asyncio.run(play())
    assert [tool["name"] for tool in listed.observation["tools"]] == ["answer"]  # before the reset
    assert started.observation["question"].startswith("You are in a web shop.")
    assert read.observation["result"].startswith("Home") and not read.done
    assert ended.done and ended.reward == 0.0
