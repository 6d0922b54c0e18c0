"""The funnel rejects bad rollouts at the right stage and measures seeking efficiency.

Rollouts are hand-made, or made by the solver in a hand-made world.

Run: python -m pytest tests/test_demonstrations_funnel.py
"""

import dataclasses

import pytest

from drlib.chat.tool_calls import render_answer, render_call
from drlib.demonstrations.funnel import FUNNEL_STAGES, Funnel, seeking
from drlib.demonstrations.oracle import Episode
from drlib.demonstrations.solver import Solver
from drlib.questions.queries import And, Count, Diff, Extreme, Proj, find_required
from drlib.tools import Toolbox
from tests.solver_examples import GIVEN, LOOK, MILLS, ON_5, RIGHT, SEEN, episode, task, tiny


@pytest.fixture(scope="module")
def world():
    return tiny()


@pytest.fixture(scope="module")
def toolbox(world):
    with Toolbox(world, calculator=True) as tools:
        yield tools


def search(n, thought="I look."):
    return f"<think>{thought}</think>{render_call('search', {'query': [f'Somalia {n}']})}"


LOOP = "I must look at it again and again and once more now."
BAD = {
    "says nothing": ("format", episode("I wonder.", SEEN, RIGHT)),
    "broken call": ("format", episode('<tool_call>{"name": "search"</tool_call>', SEEN, RIGHT)),
    "invents a response": (
        "format",
        episode(f"{LOOK}<tool_response>{SEEN}</tool_response>", SEEN, RIGHT),
    ),
    "never answers": ("format", episode(LOOK, SEEN)),
    "goes on": ("format", episode(RIGHT, SEEN, RIGHT)),
    "wrong": ("correct", episode(LOOK, SEEN, render_answer("Euro"))),
    "guessed": ("grounded", episode(LOOK, "No results.", RIGHT)),
    "part of a word": (
        "grounded",
        episode(
            LOOK,
            "Somalia and 1960.",
            render_answer("Mali"),
            task=dataclasses.replace(GIVEN, answer="Mali"),
        ),
    ),
    "same call twice": ("redundant", episode(LOOK, SEEN, LOOK, SEEN, RIGHT)),
    "loops in thought": (
        "redundant",
        episode(*[x for n in range(4) for x in (search(n, LOOP), SEEN)], RIGHT),
    ),
    "no tool at all": ("grounded", episode(RIGHT)),
    "too long": ("bounds", episode(LOOK, SEEN + " word" * 40_000, RIGHT)),
}


def test_bad_rollouts_are_rejected_at_their_stage():
    assert len(BAD) == 12
    for name, (stage, rollout) in BAD.items():
        verdict = Funnel().fault(rollout)
        assert verdict is not None and verdict[0] == stage, (name, verdict)


def test_report_counts_every_stage():
    good = episode(LOOK, SEEN, RIGHT)
    kept, report = Funnel().run([good, *[rollout for _, rollout in BAD.values()], good])
    assert kept == [good, good] and list(report) == list(FUNNEL_STAGES)
    assert [(r["in"], r["kept"]) for r in report.values()] == [
        (14, 9),
        (9, 8),
        (8, 5),
        (5, 3),
        (3, 2),
        (2, 2),
    ]
    assert report["format"]["reasons"] == {
        "goes on after its answer": 1,
        "no answer": 1,
        "no tool call or answer.": 1,
        "policy wrote a tool response.": 1,
        "tool call is not valid JSON.": 1,
    }
    assert report["redundant"]["reasons"] == {"identical call": 1, "repeats itself": 1}


def test_alias_must_be_observed():
    assert Funnel().fault(episode(LOOK, SEEN, render_answer("shilling."))) is None
    odd = dataclasses.replace(GIVEN, aliases=("Scellino",))
    hidden = episode(LOOK, SEEN, render_answer("Scellino"), task=odd)
    assert Funnel().fault(hidden) == ("grounded", "answer never seen")


def task_with_answer(answer):
    return dataclasses.replace(GIVEN, answer=answer, aliases=())


def test_echoed_text_is_not_evidence(toolbox):
    """Headers repeat the goal, calls repeat their arguments, and failed calls contain any text."""
    printed = render_call("python", {"code": "print('Somali Shilling')"})
    verdict = ("grounded", "answer never seen")
    assert Funnel().fault(episode(LOOK, "Nothing.", printed, "Somali Shilling", RIGHT)) == verdict
    self_query = render_call("search", {"query": ["Somali Shilling"]})
    assert Funnel().fault(episode(self_query, SEEN, RIGHT)) == verdict
    assert (
        Funnel().fault(episode(self_query, SEEN, LOOK, SEEN, RIGHT)) is None
    )  # the second shows it
    assert Funnel().fault(episode(LOOK, f"Error: {SEEN}", RIGHT)) == verdict
    town, guild = And((MILLS, ON_5)), {"url": ["tiny:Guild 1"], "goal": "Is it Town 007?"}
    guess = Episode(task(town, "Town 007"), toolbox, None)
    assert "Town 007" in guess.call("I guess.", "visit", guild)
    assert Funnel().fault(guess.finish("So.", "Town 007")) == verdict
    lost = Episode(task(town, "Town 005"), toolbox, None)
    lost.call("I guess.", "visit", {"url": ["tiny:No Town 005"], "goal": "x"})
    assert Funnel().fault(lost.finish("So.", "Town 005")) == verdict
    mill = {"url": ["tiny:Old Mill"], "goal": "Is it Town 005?"}  # the page contains the answer
    right = Episode(task(town, "Town 005"), toolbox, None)
    right.call("I read.", "visit", mill)
    assert Funnel().fault(right.finish("So.", "Town 005")) is None
    right.tool_results[0].ok = False
    assert Funnel().fault(right) == verdict


@pytest.mark.parametrize(
    "shown, seen",
    [
        ("1.5 high", False),
        ("15 of them", False),
        ("-5 low", False),
        ("(-5)", False),
        ("1,5", False),
        ("5.25", False),
        ("5,000", False),
        ("there are 5.", True),
        ("5, or so", True),
        ("from 2-5", True),
        ("= 5", True),
        ("x5", False),
    ],
)
def test_number_inside_another_is_not_evidence(shown, seen):
    verdict = Funnel().fault(episode(LOOK, shown, render_answer("5"), task=task_with_answer("5")))
    assert (verdict is None) == seen
    negative = Funnel().fault(
        episode(LOOK, "at -5 or -1.5", render_answer("-5"), task=task_with_answer("-5"))
    )
    assert negative is None


def test_text_after_the_first_action_is_rejected():
    verdict, end = ("format", "goes on after its action"), "<|im_end|>\n"
    more = f"{LOOK} The page says Somali Shilling. {render_answer('Somali Shilling')}"
    for turns in (
        (more, SEEN, RIGHT),
        (LOOK + LOOK, SEEN, RIGHT),
        (LOOK + "So.", SEEN, RIGHT),
        (LOOK, SEEN, RIGHT + " or perhaps the Euro."),
    ):
        assert Funnel().fault(episode(*turns)) == verdict
    assert Funnel().fault(episode(f"{LOOK}\n{end}", SEEN, RIGHT + end)) is None


def test_argument_order_does_not_distinguish_calls():
    one, two = ({"url": ["u"], "goal": "g"}, {"goal": "g", "url": ["u"]})
    calls = [render_call("visit", arguments) for arguments in (one, two)]
    assert calls[0] != calls[1]
    twice = episode(calls[0], SEEN, calls[1], SEEN, RIGHT)
    assert Funnel().fault(twice) == ("redundant", "identical call")


def test_bounds_of_websailor():
    def rollout(n):
        return episode(*[x for i in range(n) for x in (search(i), SEEN)], RIGHT)

    funnel = Funnel(min_calls=6, max_calls=8)
    assert funnel.fault(rollout(5)) == ("bounds", "too few calls")
    assert funnel.fault(rollout(6)) is None is funnel.fault(rollout(8))
    assert funnel.fault(rollout(9)) == ("bounds", "too many calls")
    size = sum(len(m["content"]) for m in rollout(6).messages)
    assert Funnel(max_tokens=size, size=len).fault(rollout(6)) is None
    assert Funnel(max_tokens=size - 1, size=len).fault(rollout(6)) == ("bounds", "too long")


# ---------------------------------------------------------------- ISR, ISE, soft F


def test_required_entities_of_a_query(world):
    graph = world.graph
    query = And((MILLS, ON_5))  # the constants and the answer; the other mills are not required
    assert find_required(query, graph) == {"Old Mill", "River 5", "Town 005"}
    nested = Proj("zone", Proj("country", query))
    assert find_required(nested, graph) == {
        "Zone North",
        "Bigland",
        "Town 005",
        "Old Mill",
        "River 5",
    }
    assert find_required(Extreme("people", MILLS, True), graph) == {
        "Old Mill",
        "Town 005",
        "Town 012",
        "Town 019",
    }
    assert find_required(Count(MILLS), graph) == find_required(
        Extreme("people", MILLS, True), graph
    ) | {"3"}
    assert find_required(Diff(MILLS, ON_5), graph) == {"Old Mill", "Town 012", "Town 019"}


def test_isr_and_ise_by_hand(world, toolbox):
    rollout = episode(LOOK, SEEN, search(1), "Nothing here.", RIGHT)
    assert seeking(rollout, {"Somalia", "Somali Shilling", "Mali", "Kenya"}) == (0.5, 2.0)
    assert seeking(episode(RIGHT), {"Kenya"}) == (0.0, 1.0)  # no call: counted as one
    solved = Solver(toolbox).solve(task(And((MILLS, ON_5)), "Town 005"))
    isr, ise = seeking(solved, find_required(And((MILLS, ON_5)), world.graph))
    assert isr == 1.0 and ise == 3 / len(solved.tool_results)
    lazy = Funnel(graph=world.graph, min_ise=ise + 0.01)
    assert lazy.fault(solved) == ("efficient", "low ISE")
    assert Funnel(graph=world.graph, min_isr=1.0, min_ise=ise).fault(solved) is None
    blind = episode(LOOK, "Town 005", render_answer("Town 005"), task=solved.task)
    assert Funnel(graph=world.graph, min_isr=0.5).fault(blind) == ("efficient", "low ISR")
