"""What must be looked up to answer a question in a small world: one search after the other.

A small world's search shows the facts of the pages it finds, forwards only. So a question is
answered by two moves. A *value*: search for a title, read one of its facts. A *holder*: search for
some facts together, and among the pages found take the one that has them all. A chain is values
alone; a question of the engine (`drlib.questions.queries`) resolves its constants first and ends
with the holder of all conditions.

Left out: what searches of a few results cannot answer (unions, differences, numbers, descriptions
that several things fit): `plan_searches` refuses the first three, `can_solve` finds the last.
"""

import re
from typing import NamedTuple

from drlib.questions.queries import And, Proj, Query, evaluate_query, from_text, walk
from drlib.task import Task
from drlib.worlds import SmallWorld

_RESULT = re.compile(r"^\d+\. \[(?P<title>.*?)\]\(.*?\)\n(?P<facts>.*)$", re.MULTILINE)
_CHAIN = re.compile(r"(?:What is|Find|Tell me) the (?P<chain>.+)[?.]")

Pages = dict[str, list[str]]  # the title of each page that a search shows -> its facts


class SearchStep(NamedTuple):
    """One search. names: titles, or the numbers of the earlier look-ups that found them.
    relations: as many. is_holder: who has all these facts, and not the value of the one."""

    names: tuple[str | int, ...]
    relations: tuple[str, ...]
    is_holder: bool = False

    def titles(self, found: list[str]) -> list[str]:
        """The names, with what the earlier look-ups `found` in place of their numbers."""
        return [found[name] if isinstance(name, int) else name for name in self.names]

    def query(self, titles: list[str]) -> str:
        """What to search for."""
        if not self.is_holder:
            return titles[0]
        return "; ".join(f"{r} {title}" for r, title in zip(self.relations, titles))

    def read(self, pages: Pages, titles: list[str]) -> str | None:
        """What was looked for, on the pages that a search shows; None: they do not say."""
        if self.is_holder:
            needed = {f"{r} {title}" for r, title in zip(self.relations, titles)}
            return next((page for page, facts in pages.items() if needed <= {*facts}), None)
        return find_value(self.relations[0], titles[0], pages)


def plan_searches(task: Task) -> list[SearchStep]:
    """The searches that `task` needs, each after those that it rests on. ValueError: it is no
    search question, or asks what searches of facts do not answer."""
    if task.relations:
        names = [task.start, *range(task.hops - 1)]
        return [SearchStep((name,), (relation,)) for name, relation in zip(names, task.relations)]
    if not task.query:
        raise ValueError(f"task {task.id} has neither a chain of relations nor a query")
    steps: list[SearchStep] = []
    _add_steps(from_text(task.query), steps)
    return steps


def _add_steps(query: Query, steps: list[SearchStep]) -> str | int:
    """Add to `steps` what `query` needs; returns its title, or the number of the last step."""
    if isinstance(query, str):
        return query
    parts = query.parts if isinstance(query, And) else (query,)
    if not all(isinstance(part, Proj) for part in parts):
        raise ValueError(f"searches of facts do not answer {query}")
    are_backwards = [part.relation.endswith(" of") for part in parts]
    if len(parts) > 1 and not all(are_backwards):
        raise ValueError(f"one condition of {query} already tells its answer")
    names = tuple([_add_steps(part.of, steps) for part in parts])
    relations = tuple(part.relation.removesuffix(" of") for part in parts)
    steps.append(SearchStep(names, relations, is_holder=all(are_backwards)))
    return len(steps) - 1


def can_solve(task: Task, world: SmallWorld, results: int, max_calls: int) -> bool:
    """Whether searches that show `results` pages answer `task` in `rollout.max_calls` at most: each step
    finds the one thing that it can be, and only the last shows the answer's page."""
    try:
        steps = plan_searches(task)
    except ValueError:
        return False
    on_the_way = [part.of for part in walk(from_text(task.query)) if isinstance(part, Proj)]
    is_straight = all(len(evaluate_query(query, world.graph)) == 1 for query in on_the_way)
    if not is_straight or len(steps) > max_calls:
        return False
    found: list[str] = []
    for number, step in enumerate(steps, 1):
        titles = step.titles(found)
        hits = world.search(step.query(titles), results)
        pages = {hit.title: split_facts(hit.snippet) for hit in hits}
        value = step.read(pages, titles)
        is_early = number < len(steps) and task.answer in pages
        if value is None or is_early:
            return False
        found.append(value)
    return found[-1] == task.answer


def parse_pages(observation: str) -> Pages:
    """The pages of a search observation: title -> its facts."""
    return {hit["title"]: split_facts(hit["facts"]) for hit in _RESULT.finditer(observation)}


def split_facts(snippet: str) -> list[str]:
    """The facts that a small world shows on a line, each as `relation value`."""
    return snippet.rstrip(".").split("; ")


def find_value(relation: str, title: str, pages: Pages) -> str | None:
    """The value of `relation` on the page of `title`; None: the pages do not say."""
    head = f"{relation} "
    for shown, facts in pages.items():
        if shown.casefold() != title.casefold():
            continue
        for fact in facts:
            if fact.startswith(head):
                return fact.removeprefix(head)
    return None


def answer_chain(question: str, pages: Pages) -> str | None:
    """What `pages` alone say to a chain's question ("What is the script of the language of
    Norway?"): a reader that never guesses. None: they do not say, or it is no such question."""
    asked = _CHAIN.fullmatch(question.strip())
    words = asked["chain"].split(" of ") if asked else []
    for at in range(1, len(words)):
        title = " of ".join(words[at:])
        relations = [word.removeprefix("the ") for word in words[:at]]
        for relation in reversed(relations):
            title = find_value(relation, title, pages) if title else None
        if title:
            return title
    return None
