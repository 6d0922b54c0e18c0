"""A hand-made world of 150 towns for the tests of the solver and of demonstrations."""

from drlib.synthesis.queries import Proj, to_text
from drlib.task import Task
from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store

TOWNS = [f"Town {i:03}" for i in range(150)]


def tiny():
    """Towns 0..149: in Bigland (all), on River r (i % 10), with Guild g (i % 7); people: 1000 + i.
    Town 5, 12 and 19 have a mill; Bigland's page has three parts."""
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
