"""A hand-made world of 150 towns and hand-made episodes, for tests of solvers and filters."""

from drlib.chat.tool_calls import parse, render_answer, render_call
from drlib.demonstrations.oracle import Episode
from drlib.questions.queries import Proj, to_text
from drlib.task import Task
from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store

TOWNS = [f"Town {i:03}" for i in range(150)]


def tiny():
    """Return the world: towns 0..149 in Bigland with rivers, guilds and people.

    Towns 5, 12 and 19 have a mill. Bigland's page has three parts.
    """
    facts = [
        (town, relation, value)
        for i, town in enumerate(TOWNS)
        for relation, value in (
            ("country", "Bigland"),
            ("river", f"River {i % 10}"),
            ("guild", f"Guild {i % 7}"),
            ("people", str(1000 + i)),
        )
    ]
    facts += [(TOWNS[i], "mill", "Old Mill") for i in (5, 12, 19)]
    facts += [("Bigland", "zone", "Zone North"), ("Bigland", "capital", "Town 019")]
    nodes = [Node(town, "town") for town in TOWNS] + [Node("Bigland", "country")]
    nodes += [Node(f"River {i}", "river") for i in range(10)]
    nodes += [Node(f"Guild {i}", "guild") for i in range(7)]
    nodes += [Node("Old Mill", "mill"), Node("Zone North", "zone")]
    pages = [Document(node.title, f"{node.title} is a {node.kind}.") for node in nodes]
    store = Store(None)
    store.update({"all": "1"}, lambda source: Part(pages, nodes, facts))
    return Library("tiny", store, "tiny")


MILLS = Proj("mill of", "Old Mill")
ON_5 = Proj("river of", "River 5")


def task(query, answer, question="Which one?"):
    return Task("t1", question, answer, "search", "tiny", query=to_text(query))


LOOK = render_call("search", {"query": ["Somalia"]})
SEEN = "1. [Somalia](tiny:Somalia)\nSomalia has the currency Somali Shilling. Its zone is 3."
GIVEN = Task("q", "Which currency?", "Somali Shilling", "search", "w", aliases=("Shilling",))
RIGHT = f"<think>I have it.</think>{render_answer('Somali Shilling')}"


def episode(*contents, task=GIVEN, roles=None):
    """Return an episode of alternating assistant and tool turns; the last turn has the answer."""
    example = Episode(task, None, None)
    roles = roles or ["tool" if at % 2 else "assistant" for at in range(len(contents))]
    example.messages += [{"role": r, "content": text} for r, text in zip(roles, contents)]
    example.answer = getattr(parse(contents[-1]), "text", None)
    return example
