"""Why a world gives fewer questions than were asked for, and what would help.

A page can be asked for when it shares two facts or more with other pages and is the only one that
has them all. So the account goes from the pages (how many can be asked for) over the draws (what
came of them) to the facts (which of them several pages share), and ends with what to do.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from drlib.task import Task
from drlib.worlds.graph import Graph

SHOWN = 4  # reasons and relations that are named, most frequent first
FOLDER_RELATIONS = ("link", "section", "heading")  # what every folder with headings and links has
RARE = 0.01  # a reason of fewer draws is not worth a word
DRAW_OUTCOMES = {  # what may come of a draw; other keys of a tally are faults of the query
    "no draft": "no few facts that tell the page from all others",
    "too few look-ups": "a question of fewer look-ups than wanted",
    "max_effort": "a question with more pages to read than max_effort",
    "max_share": "an answer that has its share of the questions",
    "asked before": "a question that is there already",
    "no wording": "a query that no sentence says in one meaning",
}


@dataclass
class Tally:
    """`answers`: pages that can be asked for; `quota`: questions that one of them may have;
    `reasons`: why draws gave no question (a key of `DRAW_OUTCOMES`, or a fault of
    `drlib.synthesis.checks`) -> how many did."""

    answers: int
    quota: int
    reasons: Counter[str] = field(default_factory=Counter)


def shortage(world, n: int, tasks: Sequence[Task], tally: Tally) -> str:
    """The account of a call for `n` questions of `world` that gave the fewer `tasks`."""
    graph = world.graph
    if graph is None or not graph.facts:
        lines = [
            f"world {world.name!r} has no graph: nothing joins its pages, so it gives 0 of {n} "
            "questions."
        ]
    else:
        lines = [
            f"{world.name} gives only {len(tasks)} of {n} questions.",
            _about_pages(graph, tally),
            *_about_draws(tasks, tally),
            _about_facts(graph),
        ]
    skipped = getattr(getattr(world, "changes", None), "skipped", None)
    if skipped:
        lines.append(f"Files left out: {len(skipped)} (world.changes.skipped says why).")
    return "\n".join([*lines, _remedies(world, tasks, tally)])


def _about_pages(graph: Graph, tally: Tally) -> str:
    pages = sum(not graph.is_value(title) for title in graph.nodes)
    bare = sum(title not in graph.neighbours for title in graph.nodes)
    text = (
        f"Pages: {pages}, of which {tally.answers} can be asked for here (a page can, when it "
        "shares two facts or more with others and is the only one that has them all)"
    )
    return f"{text}; {bare} have no fact at all." if bare else f"{text}."


def _about_draws(tasks: Sequence[Task], tally: Tally) -> list[str]:
    """Nothing where no page can be asked for: then nothing was drawn."""
    lines = []
    if tasks:
        ((answer, times),) = Counter(task.answer for task in tasks).most_common(1)
        lines.append(
            f"Different answers: {len({task.answer for task in tasks})}, each of at most "
            f"{tally.quota} questions (max_share); the most frequent, {answer!r}, of {times}."
        )
    total = tally.reasons.total()
    if total:
        named = []
        for reason, count in tally.reasons.most_common(SHOWN):
            outcome = DRAW_OUTCOMES.get(reason, f"a question with the fault {reason!r}")
            if count >= RARE * total:
                named.append(f"{outcome} ({count / total:.0%})")
        lines.append(f"Draws that gave nothing new: {total}. They met {', '.join(named)}.")
    return lines


def _about_facts(graph: Graph) -> str:
    """Facts by relation, and how many of each have a value that another page has as well."""
    counts = Counter(relation for _, relation, _ in graph.facts)
    named = []
    for relation, count in counts.most_common(SHOWN):
        holders = graph.adjacent.get(f"{relation} of", {}).values()
        shared = sum(len(some) for some in holders if len(some) > 1)
        named.append(f"{count} {relation} ({shared} shared)")
    more = len(counts) - SHOWN
    named += [f"{more} other relations"] if more > 0 else []
    return f"Facts, and those whose value several pages have: {', '.join(named)}."


def _remedies(world, tasks: Sequence[Task], tally: Tally) -> str:
    """What would give more questions: other pages, other settings, or a smaller wish."""
    todo = []
    graph = world.graph
    if graph is None or not graph.facts or getattr(world, "scheme", "") == "folder":
        todo += _folder_remedies(graph)
    knobs = [name for name in ("max_share", "max_effort") if tally.reasons[name]]
    if tally.answers:
        todo.append(f"allow more: {', '.join([*knobs, 'width'])}")
    if tasks:
        todo.append("ask for fewer")
    return f"What helps: {'; '.join(todo)}."


def _folder_remedies(graph: Graph | None) -> list[str]:
    relations = {relation for _, relation, _ in graph.facts} if graph is not None else set()
    todo = []
    if not relations:
        todo.append(
            "write the pages as Markdown, rst or HTML with links or tables (plain text, PDF and "
            "docx give pages without facts)"
        )
    elif "link" not in relations:
        todo.append("link the pages to each other, as in [soil](soil.md)")
    else:
        todo.append("link more pages to each other")
    if relations <= {*FOLDER_RELATIONS}:
        todo.append(
            "give them front matter (author:, year:, tags:) or tables, a row a thing, whose values "
            "come back on several pages"
        )
    todo.append("let a model read facts: load_world(..., endpoint=URL, model=NAME)")
    return todo
