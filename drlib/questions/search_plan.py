"""Search plans: the sequence of searches that answers a question in a small world.

A search shows the facts of the pages that it finds. Two steps suffice: read a *value* (search a
title, read one fact) and find a *holder* (search several facts, take the page that has all). A
chain needs values only; an engine question resolves its constants and ends with a holder. Unions,
differences and numbers are not supported.
"""

import re
from typing import NamedTuple

from drlib.questions.queries import And, Proj, Query, evaluate_query, from_text, walk
from drlib.task import Task
from drlib.worlds import SmallWorld

_RESULT = re.compile(r"^\d+\. \[(?P<title>.*?)\]\(.*?\)\n(?P<facts>.*)$", re.MULTILINE)
_CHAIN = re.compile(r"(?:What is|Find|Tell me) the (?P<chain>.+)[?.]")

Pages = dict[str, list[str]]  # title -> facts of the pages shown by a search


class SearchStep(NamedTuple):
    """Search of a plan.

    Attributes:
        names: titles, or indices of the earlier steps that found them.
        relations: one relation per name.
        is_holder: True to find the page with all these facts, False to read the value of one.
    """

    names: tuple[str | int, ...]
    relations: tuple[str, ...]
    is_holder: bool = False

    def titles(self, found: list[str]) -> list[str]:
        """Return the names with indices replaced by what the earlier steps found."""
        return [found[name] if isinstance(name, int) else name for name in self.names]

    def query(self, titles: list[str]) -> str:
        """Return the search text."""
        if not self.is_holder:
            return titles[0]
        return "; ".join(f"{r} {title}" for r, title in zip(self.relations, titles))

    def read(self, pages: Pages, titles: list[str]) -> str | None:
        """Return the result of the step on the shown pages, or None if they lack it."""
        if self.is_holder:
            needed = {f"{r} {title}" for r, title in zip(self.relations, titles)}
            return next((page for page, facts in pages.items() if needed <= {*facts}), None)
        return find_value(self.relations[0], titles[0], pages)


def plan_searches(task: Task) -> list[SearchStep]:
    """Return the searches that `task` needs, each after the searches it depends on.

    Raises:
        ValueError: the task is no search question or needs unsupported operations.
    """
    if task.relations:
        names = [task.start, *range(task.hops - 1)]
        return [SearchStep((name,), (relation,)) for name, relation in zip(names, task.relations)]
    if not task.query:
        raise ValueError(f"task {task.id} has neither relations nor a query: pass a search task")
    steps: list[SearchStep] = []
    _add_steps(from_text(task.query), steps)
    return steps


def _add_steps(query: Query, steps: list[SearchStep]) -> str | int:
    """Append the steps of `query`; return its title or the index of its last step."""
    if isinstance(query, str):
        return query
    parts = query.parts if isinstance(query, And) else (query,)
    if not all(isinstance(part, Proj) for part in parts):
        raise ValueError(
            f"searches cannot answer {query}: only intersections of projections are supported"
        )
    are_backwards = [part.relation.endswith(" of") for part in parts]
    if len(parts) > 1 and not all(are_backwards):
        raise ValueError(f"one condition of {query} already identifies its answer")
    names = tuple([_add_steps(part.of, steps) for part in parts])
    relations = tuple(part.relation.removesuffix(" of") for part in parts)
    steps.append(SearchStep(names, relations, is_holder=all(are_backwards)))
    return len(steps) - 1


def can_solve(task: Task, world: SmallWorld, results: int, max_calls: int) -> bool:
    """Return True if a plan of at most `max_calls` searches with `results` pages answers `task`.

    Each step must have one result, and only the last may show the page of the answer.
    """
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
        is_early = number < len(steps) and task.target in pages
        if value is None or is_early:
            return False
        found.append(value)
    return found[-1] == task.target


def parse_pages(observation: str) -> Pages:
    """Return title -> facts of the pages in a search observation."""
    return {hit["title"]: split_facts(hit["facts"]) for hit in _RESULT.finditer(observation)}


def split_facts(snippet: str) -> list[str]:
    """Return the facts of a snippet, each as "relation value"."""
    return snippet.rstrip(".").split("; ")


def find_value(relation: str, title: str, pages: Pages) -> str | None:
    """Return the value of `relation` on the page of `title`, or None."""
    head = f"{relation} "
    for shown, facts in pages.items():
        if shown.casefold() != title.casefold():
            continue
        for fact in facts:
            if fact.startswith(head):
                return fact.removeprefix(head)
    return None


def answer_chain(question: str, pages: Pages) -> str | None:
    """Answer a chain question ("What is the script of the language of Norway?") from `pages`,
    or return None.
    """
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
