"""A solver that answers through tools only: a proof of solvability, and a teacher.

`Solver` compiles a task's query to calls (search, visit, read facts, follow them, intersect) and
reads only tool results. It lists the smallest branch first. A large set is not listed; its
candidates' pages are checked instead. Mistakes are sampled at seeded rates; each is visible in an
observation and corrected by the next call.

Not supported: questions without a query (the tour's, see `oracle`), pages that do not list their
facts.
"""

import random
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from drlib.demonstrations.oracle import Episode
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    Var,
    bind,
    from_text,
    list_constants,
    list_subqueries,
    measure_depth,
    parse_numbers,
)
from drlib.task import Task
from drlib.tools.toolbox import SEPARATOR, Toolbox
from drlib.worlds.graph import inverse
from drlib.worlds.library import next_part, read_facts

# how often an opportunity of each mistake is taken
MISTAKES = {"query": 0.1, "page": 0.1, "empty": 0.05, "arguments": 0.05, "python": 0.3}
REGRETS = ("That did not help.", "Not that.", "A mistake.")
NAMES_SPELT = 8  # in a thought
UNKNOWN = 10**6  # more than anybody reads
# a page's address holds its title; the bound keeps a long line of brackets from taking for ever
_LINK = re.compile(r"\[([^\n]{1,200}?)\]\(([^\s:]{1,40}:\1)\)")
_PAGE = re.compile(r"(?:^|\n=======\n)The useful information in (.+) for user goal .*")


class Stuck(Exception):
    """The solver has used its calls, or cannot list a query because a value has no page."""


class Solver:
    """Solves tasks that have a `query`, in a world whose pages show their facts (`Library`).

    Args:
        max_calls: per rollout.
        batch: queries or pages per call, 1 to 10.
        mistakes: kind (one of `MISTAKES`, which is a good choice) -> rate; none by default.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        max_calls: int = 60,
        batch: int = 5,
        mistakes: Mapping[str, float] | None = None,
    ):
        self.mistakes = dict(mistakes or {})
        unknown = sorted(self.mistakes.keys() - MISTAKES.keys())
        if unknown:
            raise ValueError(f"unknown mistakes {unknown}: known are {sorted(MISTAKES)}")
        self.toolbox = toolbox
        self.max_calls = max_calls
        self.batch = batch

    def solve(self, task: Task, seed: int = 0) -> Episode:
        """Solve one task; the same seed gives the same episode. The answer is None if the calls do
        not suffice. ValueError: the task has no query.
        """
        if not task.query:
            raise ValueError(f"task {task.id} has no query: use drlib.demonstrations.oracle.Oracle")
        hand = _Hand(self, task, random.Random(f"solver-{seed}-{task.id}"))
        try:
            found = hand.answers(from_text(task.query))
        except Stuck:
            return hand.episode
        if len(found) == 1:
            hand.episode.finish(f"{hand.note}That is the answer.", *found)
        return hand.episode


class _Hand:
    """State of one rollout: facts read so far, and the next calls."""

    def __init__(self, solver: Solver, task: Task, rng: random.Random):
        self.episode = Episode(task, solver.toolbox, None)
        self.solver = solver
        self.rng = rng
        self.links: dict[str, str] = {}  # title -> address, of pages that were shown
        self.facts: dict[str, dict[str, list[str]]] = {}  # what was read, {} for no page
        self.rest: dict[str, str] = {}  # title -> address of the next part
        self.hits: dict[str, Collection[str]] = {}  # query -> titles
        self.note = ""  # what the next thought begins with

    def call(self, thought: str, name: str, arguments: dict) -> str:
        """Make one call and return its observation; `Stuck` if it exceeds the budget."""
        if len(self.episode.tool_results) >= self.solver.max_calls:
            raise Stuck
        text = self.episode.call(self.note + thought, name, arguments)
        self.note = ""
        self.links |= _LINK.findall(text)
        return text

    def slip(self, kind: str, name: str, arguments: dict) -> None:
        """Make a wrong call at the rate of `kind`; the next call corrects it."""
        if self.rng.random() < self.solver.mistakes.get(kind, 0):
            self.call("I try this.", name, arguments)
            self.note = f"{self.rng.choice(REGRETS)} "

    def search(self, queries: list[str]) -> str:
        """Search for all `queries` and return the observation."""
        name = queries[0]
        self.slip("arguments", "search", {"query": name})  # a text where a list belongs
        self.slip("query", "search", {"query": [name[: (len(name) + 1) // 2]]})
        if not self.facts:  # not twice: an identical call is no demonstration
            self.slip("empty", "search", {"query": [""]})
        return self.call(f"I look for {name_list(queries)}.", "search", {"query": queries})

    def visit(self, titles: list[str]) -> None:
        """Read the next part of each page, which `self.rest` names."""
        others = sorted(self.links.keys() - self.facts.keys())
        if others:
            wrong = self.links[self.rng.choice(others)]
            self.slip("page", "visit", {"url": [wrong], "goal": name_list(titles)})
        urls = [self.rest.pop(title) for title in titles]
        arguments = {"url": urls, "goal": name_list(titles)}
        text = self.call(f"I read {name_list(titles)}.", "visit", arguments)
        _, *parts = _PAGE.split(text)  # address, page, address, page, ...
        pages = dict(zip(parts[::2], parts[1::2]))
        for title, url in zip(titles, urls):
            page = pages.get(url, "")
            for relation, values in read_facts(page).items():
                self.facts[title].setdefault(relation, []).extend(values)
                self.facts |= {value: {} for value in values if value not in self.links}  # no page
            more = next_part(page)
            if more:
                self.rest[title] = more

    def read(self, titles: Iterable[str], relation: str = "") -> dict[str, frozenset[str]]:
        """Return the values of `relation` on the pages of `titles`, reading further parts as
        needed.
        """
        titles = sorted(titles)
        self.find([title for title in titles if title not in self.facts])

        def goes_on(title: str) -> bool:  # relations stand in order
            return title in self.rest and relation >= max(self.facts[title], default="")

        while more := [title for title in titles if goes_on(title)]:
            for some in self.batches(more):
                self.visit(some)
        return {title: frozenset(self.facts[title].get(relation, ())) for title in titles}

    def find(self, fresh: list[str]) -> None:
        """Search for the pages of unread titles, and keep those to visit."""
        unseen = [title for title in fresh if title not in self.links]
        for some in self.batches(unseen):
            shown = self.search(some).split(SEPARATOR)
            for title, result in zip(some, shown):
                self.hits[title] = dict(_LINK.findall(result)).keys()
        for title in fresh:
            self.facts[title] = {}
            if title in self.links:
                self.rest[title] = self.links[title]

    def batches(self, titles: list[str]) -> list[list[str]]:
        size = self.solver.batch
        return [titles[at : at + size] for at in range(0, len(titles), size)]

    def cost(self, query: Query) -> int:
        """Estimate the number of titles to list, from the pages read so far."""
        match query:
            case Var():  # what was chosen is known by then
                return 1
            case str():
                return UNKNOWN if query in self.facts and query not in self.links else 1
            case Proj(relation, str(title)) if self.facts.get(title):
                return len(self.facts[title].get(relation, ())) or UNKNOWN
            case Proj(_, of):
                return min(10 * self.cost(of), UNKNOWN)
            case And(parts):
                return min(map(self.cost, parts))
        return (
            sum(map(self.cost, list_subqueries(query))) or UNKNOWN
        )  # a range alone cannot be listed

    def answers(self, query: Query) -> set[str]:
        """Return the listed answers of `query`."""
        match query:
            case str():
                return {query}
            case Proj(relation, of):
                return self.projected(relation, self.answers(of))
            case And(parts):
                self.read(
                    {name for p in parts if measure_depth(p) <= 1 for name in list_constants(p)}
                )
                found = self.intersection(sorted(parts, key=self.cost))
                self.note = f"Left: {name_list(found)}. "
                return found
            case Or(parts):
                return set().union(*map(self.answers, parts))
            case Diff(left, right):
                found = self.answers(left)
                return found - self.among(right, found)
            case Extreme(relation, of, most):
                return self.extreme(relation, self.answers(of), most)
            case Count(of):
                found = sorted(self.answers(of))
                self.compute(f"len({found!r})", "+".join("1" * len(found)))
                return {str(len(found))}
            case Exists(name, among, of):
                chosen = [bind(of, name, title) for title in sorted(self.answers(among))]
                return set().union(*map(self.answers, chosen))
        raise Stuck  # a range alone, or anything

    def projected(self, relation: str, start: set[str]) -> set[str]:
        """Return the values of `relation` at the members of `start`, read or searched for."""
        found = set().union(*self.read(start, relation).values())
        for value in sorted(start - self.links.keys()):
            found |= self.holders(value, inverse(relation))
        self.note = f"{name_list(start)}, {relation}: {name_list(found)}. "
        return found

    def extreme(self, relation: str, found: set[str], most: bool) -> set[str]:
        """Return the members of `found` with the largest or smallest number of `relation`."""
        shown = self.read(found, relation)
        ranked = sorted((n, title) for title, some in shown.items() for n in parse_numbers(some))
        function = "max" if most else "min"
        values = ", ".join(str(n) for n, _ in ranked)
        self.compute(f"{function}({ranked!r})", f"{function}({values})")
        best = ranked[-1 if most else 0][0] if ranked else None
        return {title for n, title in ranked if n == best}

    def holders(self, value: str, relation: str) -> set[str]:
        """Return the pages that a search for a value without a page returned and that show it."""
        hits = self.hits.get(value, ())
        if not 0 < len(hits) < self.solver.toolbox.results:  # perhaps more have it
            raise Stuck
        return {t for t, some in self.read(hits, relation).items() if value in some}

    def intersection(self, parts: list[Query]) -> set[str]:
        """List the first of `parts` that can be listed; keep answers shared by the others."""
        first, *others = parts
        try:
            found = self.answers(first)
        except Stuck:
            if not others:
                raise
            found, others = self.intersection(others), [first]
        return self.among(And(tuple(others)), found)

    def among(self, query: Query, found: set[str]) -> set[str]:
        """Return the members of `found` that answer `query`, from their own pages if that is
        cheaper than listing the query.
        """
        match query:
            case And(parts):
                for part in sorted(parts, key=self.cost):
                    found = self.among(part, found)
                return found
            case Range(relation, low, high):
                shown = self.read(found, relation).items()
                return {
                    t for t, some in shown if any(low <= n <= high for n in parse_numbers(some))
                }
            case Proj(relation, of) if found <= self.links.keys():
                if self.cost(of) <= len(found - self.facts.keys()):
                    with suppress(Stuck):
                        return found & self.answers(query)
                shown = self.read(found, inverse(relation))
                right = self.among(of, set().union(*shown.values()))
                return {title for title, some in shown.items() if some & right}
        return found & self.answers(query)

    def compute(self, program: str, expression: str) -> None:
        """Compute the expression with a tool, if there is one and it has not been done."""
        tools = self.solver.toolbox.tools
        if "python" in tools:
            name, given = "python", {"code": f"print({program})"}
        elif "calculator" in tools:
            name, given = "calculator", {"expression": expression}
        else:
            return
        if given in [result.arguments for result in self.episode.tool_results]:
            return
        if name == "python":
            self.slip("python", name, {"code": f"print(total({program}))"})
        self.call("I compute it.", name, given)


def name_list(titles: Iterable[str]) -> str:
    """Return the first titles in order, and how many more there are."""
    titles = sorted(titles)
    shown = ", ".join(titles[:NAMES_SPELT]) or "nothing"
    more = len(titles) - NAMES_SPELT
    return f"{shown} and {more} more" if more > 0 else shown
