"""A language model that words questions and reads them back: faithful, or with one mistake each.

`Model.say` is given to `tests.scripted_server.Scripted`. What it words is the template of a query,
its mistakes are the template of ANOTHER query, and what it reads back is the query of the text as
it stands: a reader that does not lie about what a text says.
"""

import threading
from types import SimpleNamespace

from query_examples import small_graph

from drlib.synthesis.checks import answer_of
from drlib.synthesis.queries import And, Diff, Extreme, Or, Proj, Range, constants, depth, to_text
from drlib.synthesis.rewriting import READ, WORD
from drlib.synthesis.wording import render_question
from drlib.task import Task

GRAPH = small_graph()
WORLD = SimpleNamespace(name="small", version=GRAPH.version, graph=GRAPH)
RIN, SAVA = Proj("river of", "Rin"), Proj("river of", "Sava")
NORD, SUND = Proj("region of", "Nord"), Proj("region of", "Sund")
TENS, EARLY = Range("founding year", 1410, 1419), Range("founding year", 1410, 1413)

QUERIES = {
    "decade": And((EARLY, RIN)),  # Alba
    "both": And((RIN, SUND)),  # Borg
    "either": And((Or((RIN, SAVA)), NORD)),  # Alba
    "first": Extreme("founding year", SUND, False),  # Borg
    "chain": Proj("length", Proj("river", "Cove")),  # 940, by Sava
    "not": Diff(RIN, NORD),  # Borg
    "short": And((Range("length", 0, 57), Proj("river", "Borg"))),  # Rin
}
# what the text says that the model makes of the question, where it is another query
WRONG = {
    "decade": And((TENS, RIN)),
    "both": Diff(RIN, SUND),
    "either": And((RIN, SAVA, NORD)),
    "first": SUND,
    "not": And((RIN, NORD)),
}
# how the guard refuses each of them
REFUSED = {
    "decade": "its numbers are others",
    "both": "it excepts or denies something",
    "either": "it loses an alternative",
    "first": "it loses a superlative",
    "not": "it loses an exception",
}
TURNED = Diff(NORD, RIN)  # of "not": the words of its text in other places


def task_of(name):
    query = QUERIES[name]
    answer = answer_of(query, GRAPH)
    return Task(
        f"search-{name}",
        render_question(query, GRAPH),
        answer,
        "search",
        GRAPH.version,
        depth(query),
        aliases=GRAPH.nodes[answer].aliases,
        query=to_text(query),
        conditions=len(constants(query)),
    )


TASKS = {name: task_of(name) for name in QUERIES}


def worded(query):
    """The faithful wording of the model."""
    return render_question(query, GRAPH, 3)


class Model:
    """says: question's name -> the text that it gets (a faithful one by default); reads: text -> a
    reply (the query of the text by default); hangs: questions that are never answered."""

    def __init__(self, says=None, reads=None, hangs=()):
        self.says, self.reads, self.hangs = says or {}, reads or {}, hangs
        self.over = threading.Event()
        self.worded, self.read = [], []  # names, texts
        queries = [*QUERIES.values(), *WRONG.values(), TURNED]
        self.meant = {worded(query): to_text(query) for query in queries}

    def say(self, messages):
        system, user = (message["content"] for message in messages)
        if system == WORD:
            name = next(name for name, task in TASKS.items() if task.question in user)
            self.worded.append(name)
            if name in self.hangs:
                self.over.wait(20)
            return self.says.get(name, worded(QUERIES[name]))
        assert system.startswith(READ)
        self.read.append(user)
        return self.reads.get(user, f"<think>a query</think>{self.meant.get(user, 'what?')}")
