"""Checks of the code blocks of the docs pages, each in its own process.

Run by tests/test_contributing.py, in the folder of the recipes' modules:
python -m tests.contributing_checks RECIPE...
Each check runs in a forked process. The names of recipes that pass are printed.
"""

import json
import os
import sys

import torch

from drlib.agents import AGENTS, ReAct
from drlib.analysis.widgets import GrpoPanel
from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import ROOT, Config
from drlib.registry import load_plugins
from drlib.rewards.functions import make_reward
from drlib.rl.losses import LossConfig, policy_loss
from drlib.task import Task
from drlib.tools import Toolbox, trl_environment
from drlib.training.callbacks import StepState, build_callbacks
from drlib.training.learner import loss_config
from drlib.trajectory import Termination
from drlib.worlds import load_world
from tests.agent_examples import ScriptedTurns, TextEngine

TASK = Task("t", "How many days has the February of 2024?", "29", "search", "cldr")
ANSWER = "<think>x</think><answer>29</answer>"


def call(name, **arguments):
    """Return a turn that calls a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<think>x</think><tool_call>{body}</tool_call>"


def play(*lines):
    """Return the trajectory of the real agent with real tools and these scripted turns."""
    chat = ChatIds(load_tokenizer(ROOT / "figures" / "reference" / "tour" / "policy_sft"))
    with Toolbox(load_world("tour")) as toolbox:
        return ReAct(ScriptedTurns(chat, lines), toolbox, chat).run([TASK])[0]


def clips():
    """By hand: ratio 1.25, advantages 2 and -1, two tokens: -r A / 2 where A is positive."""
    behaviour_BT = torch.tensor([[0.4], [0.4]]).log()
    logp_BT = torch.tensor([[0.5], [0.5]]).log().requires_grad_()
    advantages_B = torch.tensor([2.0, -1.0])
    mask_BT = torch.ones(2, 1, dtype=torch.bool)
    found = {}
    for clip in ("successes", "none"):
        config = LossConfig(clip=clip)
        loss, _ = policy_loss(logp_BT, behaviour_BT, advantages_B, mask_BT, config)
        found[clip] = torch.autograd.grad(loss, logp_BT)[0].flatten()
    torch.testing.assert_close(found["successes"], torch.tensor([-1.25, 0.0]))
    torch.testing.assert_close(found["none"], torch.tensor([-1.25, 0.625]))
    assert loss_config(Config.load("ci", rl__loss__clip="successes")).clip == "successes"
    assert "successes" in GrpoPanel().switches["clip"].options


def tools():
    """The agent calls the tool; wrong and unknown arguments are observations."""
    february = {"first": "2024-02-01", "last": "2024-03-01"}
    trajectory = play(
        call("days_between", **february, colour="red"),
        call("days_between", first="2024-02-30", last="2024-03-01"),
        call("days_between", first="2024-02-01"),
        call("days_between", **february, unit="years"),
        ANSWER,
    )
    days, wrong, incomplete, years = trajectory.tool_results
    assert (days.text, days.ok, days.source) == ("29", True, "days_between")
    assert wrong.text.startswith("Error: ") and not wrong.env_fault
    assert "last" in incomplete.text and not incomplete.ok
    assert "unit" in years.text and years.error == "arguments"
    assert [m["content"] for m in trajectory.messages if m["role"] == "tool"][0] == "29"
    assert trajectory.termination == Termination.ANSWERED
    with Toolbox(None) as toolbox:
        assert [schema["name"] for schema in toolbox.schemas] == ["days_between"]
        assert trl_environment(toolbox)().days_between(**february) == "29"
    with Toolbox(None, closed_book=True) as closed:
        assert closed.call("days_between", february).text == "No results."


def rewards():
    """The reward depends on the number of calls: one call, no call, and a wrong answer."""
    once = play(call("search", query=["Norway"]), ANSWER)
    never = play(ANSWER)
    wrong = play("<think>x</think><answer>28</answer>")
    judge = make_reward("frugal", price=0.25)
    assert [judge(trajectory, TASK).value for trajectory in (once, never, wrong)] == [0.75, 1, 0]
    assert judge(once, TASK).parts == {"frugal": 0.75}
    terms = make_reward("frugal_terms", price=0.25)
    assert terms(once, TASK).parts == {"right": 1.0, "paid": 0.25}
    once.tool_results[0].env_fault = True
    assert judge(once, TASK).value is None and terms(once, TASK).value is None
    assert Config.load("ci", rl__reward__name="frugal").rl.reward.name == "frugal"


def worlds():
    """The world is loaded by name, searched and read, also by the tools."""
    world = load_world("planets")
    assert [hit.title for hit in world.search("Phobos")] == ["Phobos", "Mars"]
    assert "It sets in the east." in world.page("Phobos").text
    assert world.page("Mars").links == ("Phobos",)
    assert world.graph.values("Mars", "moon") == {"Phobos"}
    with Toolbox(world) as toolbox:
        visit = toolbox.call("visit", {"url": [world.page("Mars").url], "goal": "moon"})
        assert visit.ok and "Phobos" in visit.text
    for name, message in (("planet", "did you mean 'planets'"), ("planets:9", "unknown world")):
        try:
            load_world(name)
        except ValueError as error:
            assert message in str(error)
        else:
            raise AssertionError(f"load_world({name!r}) was no fault")


def agents():
    """The agent answers, reviews its answer and returns the second one, on a scripted policy."""
    chat = ChatIds(load_tokenizer(ROOT / "figures" / "reference" / "tour" / "policy_sft"))

    def say(text):
        if "You found: 28" in text:
            return ANSWER
        found = "Norway" in text.partition("</tool_call>")[2]
        return "<think>x</think><answer>28</answer>" if found else call("search", query=["Norway"])

    with Toolbox(load_world("tour")) as toolbox:
        (done,) = AGENTS["doubter"](TextEngine(chat, say), toolbox, chat).run([TASK])
    assert done.answer == "29" and len(done.tool_results) == 1 and done.contexts.max() == 1


def callbacks():
    """The callback stops a run with high accuracy; build_callbacks finds it."""
    callback = build_callbacks(Config.load("ci"), None).parts["stop_when_solved"]
    for accuracy, stopped in ((0.5, False), (1.0, True)):
        state = StepState(0, Config.load("ci"), metrics={"accuracy": accuracy})
        callback.on_step_end(None, state)
        assert ("stopped" in state.metrics) == stopped


CHECKS = {
    "clips": clips,
    "tools": tools,
    "rewards": rewards,
    "worlds": worlds,
    "agents": agents,
    "callbacks": callbacks,
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            load_plugins(f"my_{name}")
            CHECKS[name]()
            os._exit(0)  # an exception would exit with a traceback and status 1
        if os.waitpid(child, 0)[1] == 0:
            print(name)
