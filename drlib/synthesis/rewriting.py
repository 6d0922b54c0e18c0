"""Questions said as people say them, by a language model that is not trusted: back translation.

The templates of `drlib.synthesis.wording` lose nothing and sound like it. WebShaper (arXiv
2507.15061) and WebSailor (2507.02592) let a model write the question and believe it. Here a second
call must undo the first: the model that sees only the new text and the world's relations writes the
query down, and where that is not the task's query (`same_question`), the text has changed the
question and the old one stays. Before that, `drlib.synthesis.guard` refuses what it sees to say
more, less or something else than the query, which costs no call.

The first call never sees the answer, nor what stands between. The second never sees the question,
so that it cannot agree out of politeness. What comes of each task has a reason (`Rewriting.counts`)
and no task is lost.

Left out: a text that two readers read in two ways, one of them ours; the kind of thing that is
asked for ("which town"), which is in no query; worlds with more relations than a prompt holds (the
server refuses them); questions without a query, or with names that stand in for the query's.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from drlib.synthesis.guard import Guard
from drlib.synthesis.queries import (
    And,
    Diff,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    canonical,
    closed_parts,
    evaluate_query,
    from_text,
    rebuilt,
    to_text,
    walk,
)
from drlib.synthesis.replies import Replies, prompt
from drlib.synthesis.wording import says
from drlib.task import Task
from drlib.validation import require
from drlib.worlds.graph import Graph

WORD = """\
You edit questions for a quiz. Say the user's question as a careful person would ask it, in one or
two plain sentences that end with a question mark or a full stop.
Keep every condition, with its "and", "or", "except" and every superlative; add none. Keep names,
numbers and spans of years exactly as they are written. Name nothing that the question does not
name, even if you know it. Do not answer. Reply with the new question alone."""
READ = """\
You translate questions about a collection of facts into queries. A query is a name in double
quotes, or one of these lists, where Q is again a query and R a relation in double quotes:
["proj", R, Q]  everything that a member of Q has as R. ["proj", "river", "Bonn"] is the rivers of
  Bonn; a relation read backwards has " of" behind it: ["proj", "river of", "Rhine"] is everything
  whose river is the Rhine. A number or a year is a name, too: ["proj", "founding year of", "1248"].
["and", Q, Q, ...]  what is in all of them. ["or", Q, Q, ...]  what is in one of them.
["diff", Q, Q]  what is in the first and not in the second.
["range", R, low, high]  what has a number as R from low to high, both included, without quotes.
  "In the 1990s" is 1990, 1999; in the early ones 1990, 1993; in the mid ones 1994, 1996; in the
  late ones 1997, 1999; "of less than 8" is 0, 7.
["extreme", R, Q, true]  the member of Q with the largest or latest R; with false, the smallest or
  earliest.
["count", Q]  how many members Q has.
Say what the question says and nothing else: the kind of thing that is asked for ("which town") is
no condition. Use the relations below and the names as the question writes them. Reply with the
query as JSON and nothing else.
Relations (what has it: what it then has):
"""
KINDS_SHOWN = 4  # of a relation's ends


class Outcome(NamedTuple):
    """What came of a task. `reason`: why it has its old question, "" for a new one; `text`: what
    the model said last; `detail`: the reason with names and numbers."""

    task: Task
    reason: str = ""
    text: str = ""
    detail: str = ""


class Rewriting(NamedTuple):
    """The outcome of each task, in order."""

    outcomes: list[Outcome]

    @property
    def tasks(self) -> list[Task]:
        """All tasks, with a new question where one was found."""
        return [outcome.task for outcome in self.outcomes]

    @property
    def counts(self) -> dict[str, int]:
        """How many were rewritten, and how many were not, by reason."""
        reasons = Counter(outcome.reason or "rewritten" for outcome in self.outcomes)
        return dict(reasons.most_common())


class Rewriter:
    """Rewrites questions of `world`.

    writer: the replies of the model that words. reader: of the one that reads back; None: the same
    model, which is not the same call. tries: wordings of a question, until one passes.
    ValueError: `world` has no graph.
    """

    def __init__(self, world, writer: Replies, reader: Replies | None = None, tries: int = 1):
        require(tries >= 1, f"{tries=} starts at 1")
        require(world.graph is not None, f"{world.name} has no graph: nothing can be read back")
        self.graph: Graph = world.graph
        self.writer, self.reader, self.tries = writer, reader or writer, tries
        self._guard = Guard(self.graph, getattr(world, "scheme", ""))
        self._names = _Names(self.graph)
        self._relations = describe_relations(self.graph)

    def rewrite(self, tasks: Sequence[Task]) -> Rewriting:
        """Every task, in order, with its new question or its old one."""
        return Rewriting(self.writer.each(self.rewritten, tasks))

    def rewritten(self, task: Task) -> Outcome:
        """What comes of one task."""
        if not task.query:
            return Outcome(task, "no query", detail="the task has no query to read back")
        query = from_text(task.query)
        outcome = Outcome(task)
        for number in range(self.tries):
            outcome = self._once(task, query, number)
            if not outcome.reason or outcome.reason.startswith(("budget", "not asked")):
                break
        return outcome

    def _once(self, task: Task, query: Query, number: int) -> Outcome:
        said = self.writer.ask(_to_word(task.question, query, self._relations), seed=number)
        if said.failed:
            return _refused(task, "", said.failed)
        text = _plain(said.text)
        if not text:
            return _refused(task, text, "it is empty")
        hidden = hidden_names(task, query, self.graph)
        wrong = self._guard.refusal(text, task.question, query, hidden)
        if wrong:
            return _refused(task, text, wrong)
        read = self.reader.ask(_to_read(text, self._relations), temperature=0)
        if read.failed:
            return _refused(task, text, read.failed)
        try:
            back = read_query(read.text, self.graph, self._names)
        except ValueError as error:
            return Outcome(task, "it cannot be read back", text, str(error))
        if not same_question(back, query):
            return Outcome(task, "it asks something else", text, to_text(back))
        return Outcome(replace(task, question=text), "", text)


def hidden_names(task: Task, query: Query, graph: Graph) -> list[str]:
    """The names that a question must not tell: of the answer, and of each single thing on the way
    to it; without those that it tells already."""
    found = {task.answer, *task.aliases}
    for part in closed_parts(query):
        titles = evaluate_query(part, graph) if not isinstance(part, str) else ()
        if len(titles) == 1:
            (title,) = titles
            found |= {title, *(graph.nodes[title].aliases if title in graph.nodes else ())}
    return sorted(name for name in found if name and not says(task.question, name))


def describe_relations(graph: Graph) -> dict[str, str]:
    """Each relation and between what kinds of things it stands, as `name (kinds: kinds)`."""
    ends = defaultdict(lambda: (set(), set()))
    for subject, relation, value in graph.facts:
        ends[relation][0].add(graph.nodes[subject].kind)
        ends[relation][1].add(graph.nodes[value].kind)

    def some(kinds: set[str]) -> str:
        more = ", .." if len(kinds) > KINDS_SHOWN else ""
        return ", ".join(sorted(kinds)[:KINDS_SHOWN]) + more

    return {name: f'"{name}" ({some(a)}: {some(b)})' for name, (a, b) in sorted(ends.items())}


def read_query(said: str, graph: Graph, names: "_Names | None" = None) -> Query:
    """The query in a model's reply, its names as the graph's titles.

    ValueError: there is none, or a relation or a name that the graph does not have.
    """
    said = said.rpartition("</think>")[2]
    start, end = said.find("["), said.rfind("]")
    if start < 0 or end < start:
        raise ValueError(f"no query in the reply {said[:80]!r}")
    query = from_text(said[start : end + 1])
    for part in walk(query):
        relation = getattr(part, "relation", None)
        if relation is not None and relation not in graph.adjacent:
            raise ValueError(f"a relation that is not there: {relation!r}")
    return _renamed(query, names or _Names(graph))


def same_question(a: Query, b: Query) -> bool:
    """Whether two queries ask the same by the rules of sets alone, whatever the facts are: order,
    nesting and repetition (`canonical`), R(A or B) = R(A) or R(B), (A - B) - C = A - (B or C), and
    (A - B) and C = (A and C) - B."""
    return _settled(a) == _settled(b)


def _settled(query: Query) -> Query:
    """One form for queries that `same_question` takes for the same."""
    query = canonical(rebuilt(query, _settled))
    match query:
        case Proj(relation, Or(parts)):
            return canonical(Or(tuple(Proj(relation, part) for part in parts)))
        case Diff(Diff(left, right), more):
            return Diff(left, canonical(Or((right, more))))
        case And(parts) if cut := [part for part in parts if isinstance(part, Diff)]:
            kept = [part.left if isinstance(part, Diff) else part for part in parts]
            removed = tuple(part.right for part in cut)
            return Diff(canonical(And(tuple(kept))), canonical(Or(removed)))
    return query


class _Names:
    """The title behind a name as a text writes it: the title itself, in any case, or the alias of
    one thing alone."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._titles: dict[str, set[str]] = defaultdict(set)
        self._aliases: dict[str, set[str]] = defaultdict(set)
        for node in graph.nodes.values():
            self._titles[_folded(node.title)].add(node.title)
            for alias in node.aliases:
                self._aliases[_folded(alias)].add(node.title)

    def title(self, name: str) -> str:
        """ValueError: nothing is called so, or several things are."""
        if name in self._graph.nodes:
            return name
        found = self._titles.get(_folded(name)) or self._aliases.get(_folded(name)) or ()
        if len(found) != 1:
            raise ValueError(f"{len(found)} things are called {name!r}")
        return next(iter(found))


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def _renamed(query: Query, names: _Names) -> Query:
    if isinstance(query, str):
        return names.title(query)
    return rebuilt(query, lambda part: _renamed(part, names))


def _to_word(question: str, query: Query, relations: dict[str, str]) -> list[dict[str, str]]:
    """The prompt of the first call: the question and what its relations mean, nothing else."""
    parts = [part for part in walk(query) if isinstance(part, Proj | Range | Extreme)]
    used = sorted({part.relation.removesuffix(" of") for part in parts})
    meant = "\n".join(relations[name] for name in used if name in relations)
    told = f"Question: {question}\n\nRelations in it (what has it: what it then has):\n{meant}"
    return prompt(WORD, told)


def _to_read(text: str, relations: dict[str, str]) -> list[dict[str, str]]:
    """The prompt of the second call: the text and all relations of the world."""
    known = READ + "\n".join(relations.values())
    return prompt(known, text)


def _plain(said: str) -> str:
    """What the model said without its thoughts and the quotation marks around it."""
    text = " ".join(said.rpartition("</think>")[2].split())
    return text[1:-1].strip() if re.fullmatch(r'"[^"]*"', text) else text


def _refused(task: Task, text: str, why: str) -> Outcome:
    """The old question; `why` without names and numbers is what is counted."""
    reason = re.sub(r"""'.*'|".*"|\d+(\.\d+)?""", "..", why)
    return Outcome(task, reason, text, why)
