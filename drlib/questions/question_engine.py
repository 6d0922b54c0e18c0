"""Question engine: draw an answer, build a query that only it fulfils, and word the question.

An answer is explained and expanded (`expansion`), made harder (`upgrades`) and kept if the query
passes every check (`checks`). Questions are split by answer, and `max_share` limits the questions
with one answer. If a world has too few questions, a report explains why and what to change.
`ConditionQuestions` are the engine's questions about small worlds that short searches can solve.
"""

import math
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from drlib.questions.chains import Split, digest_text, split_answers
from drlib.questions.checks import (
    count_coincidences,
    find_first_fault,
    find_neighbours,
    measure_effort,
)
from drlib.questions.expansion import Bars, add_hop, draft_query, has_explanation, is_identifiable
from drlib.questions.phrases import TYPES, format_date
from drlib.questions.plainness import MAX_CONDITIONS, measure_strangeness, select_plain_facts
from drlib.questions.queries import (
    Query,
    canonicalise,
    evaluate_query,
    list_constants,
    measure_depth,
    to_text,
)
from drlib.questions.read_back import load_grammar, word_question
from drlib.questions.search_plan import can_solve
from drlib.questions.sentences import STYLES, Style
from drlib.questions.upgrades import OPERATORS
from drlib.questions.wording import TEMPLATES, render_question
from drlib.task import Task
from drlib.worlds import SmallWorld
from drlib.worlds.graph import VALUE, Graph, inverse
from drlib.worlds.triples import RESERVED_RELATIONS

SHOWN = 4  # most frequent reasons and relations that a report lists
FOLDER_RELATIONS = ("link", "section", "heading")  # structural relations of every folder
LONGEST_REASON = 120  # characters of the reason for a skipped file
RARE = 0.01  # rarer reasons, as a share of the failed draws, are not reported
DRAW_OUTCOMES = {  # reasons of failed draws; the other keys of a tally are faults of the query
    "no draft": "no small set of facts that identifies the page",
    "too few hops": "fewer hops than requested",
    "max_effort": "a question with more pages to read than max_effort",
    "max_share": "an answer that has its share of the questions",
    "asked before": "a question that is there already",
    "no wording": "a query without an unambiguous wording",
}


@dataclass
class Tally:
    """Counters of one call of the engine.

    Attributes:
        answers: number of pages that can be asked for.
        quota: largest number of questions with one answer.
        reasons: failed draws by reason, a key of `DRAW_OUTCOMES` or a fault of `checks`.
        structure_left_out: number of structural facts (links, sections) that were excluded.
    """

    answers: int
    quota: int
    reasons: Counter[str] = field(default_factory=Counter)
    structure_left_out: int = 0


def explain_shortage(world, n: int, tasks: Sequence[Task], tally: Tally) -> str:
    """Return the report for a call that gave fewer than `n` questions."""
    graph = world.graph
    if graph is None or not graph.facts:
        lines = [
            f"world {world.name!r} has no graph: it has not one fact, and nothing joins its pages, "
            f"so it gives 0 of {n} questions."
        ]
    else:
        lines = [
            f"{world.name} gives only {len(tasks)} of {n} questions.",
            _describe_pages(graph, tally),
            *_describe_draws(tasks, tally),
            _describe_facts(graph),
        ]
    if tally.structure_left_out:
        lines.append(
            f"Of these {len(graph.facts)} facts {tally.structure_left_out} are the folder's own "
            "(links, sections, headings, tables), and not asked about unless structure=True."
        )
    skipped = getattr(getattr(world, "changes", None), "skipped", None)
    if skipped:
        lines.append(_describe_files(skipped))
    return "\n".join([*lines, _describe_remedies(world, tasks, tally)])


def _describe_pages(graph: Graph, tally: Tally) -> str:
    """Describe the pages and how many can be asked for."""
    pages = sum(not graph.is_value(title) for title in graph.nodes)
    bare = sum(title not in graph.neighbours for title in graph.nodes)
    text = (
        f"Pages: {pages}, of which {tally.answers} can be asked for here (a page can, when it "
        "shares two facts or more with others and is the only one that has them all)"
    )
    return f"{text}; {bare} have no fact at all." if bare else f"{text}."


def _describe_draws(tasks: Sequence[Task], tally: Tally) -> list[str]:
    """Describe the failed draws; empty if no page can be asked for."""
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


def _describe_facts(graph: Graph) -> str:
    """Describe the facts by relation, with the number whose value other pages share."""
    counts = Counter(relation for _, relation, _ in graph.facts)
    named = []
    for relation, count in counts.most_common(SHOWN):
        holders = graph.adjacent.get(f"{relation} of", {}).values()
        shared = sum(len(some) for some in holders if len(some) > 1)
        named.append(f"{count} {relation} ({shared} shared)")
    more = len(counts) - SHOWN
    named += [f"{more} other relations"] if more > 0 else []
    text = f"Facts, and those whose value several pages have: {', '.join(named)}."
    kinds = {kind: len(titles) for kind, titles in graph.kinds.items() if kind != VALUE}
    most = sorted(kinds, key=lambda kind: (-kinds[kind], kind))
    things = [f"{kinds[kind]} {kind}" for kind in most[:SHOWN]]
    things += [f"{len(most) - SHOWN} other kinds"] if len(most) > SHOWN else []
    return f"{text} They are about, by kind: {', '.join(things)}. {_describe_clues(graph)}"


def _describe_clues(graph: Graph) -> str:
    """Describe the relations with values shared by several things."""
    counts = {
        relation: sum(len(some) for some in holders.values() if len(some) > 1)
        for relation, holders in graph.adjacent.items()
    }
    clues = sorted((r for r in counts if counts[r]), key=lambda r: (-counts[r], r))
    if not clues:
        return "So nothing can be asked: no two of them have a value in common."
    named = [inverse(relation) for relation in clues[:SHOWN]]
    more = f" and {len(clues) - SHOWN} more" if len(clues) > SHOWN else ""
    return f"So questions can go by: {', '.join(named)}{more}."


def _describe_files(skipped: Mapping[str, str]) -> str:
    """Describe the skipped files by reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, reason in sorted(skipped.items()):
        found[reason.split("; ")[0][:LONGEST_REASON]].append(name)
    most = sorted(found.items(), key=lambda row: (-len(row[1]), row[0]))
    named = [f"{len(names)} ({names[0]!r:.80}: {reason})" for reason, names in most[:SHOWN]]
    more = [f"{len(most) - SHOWN} other reasons"] if len(most) > SHOWN else []
    listed = ", ".join([*named, *more])
    return f"Files left out: {len(skipped)} (world.changes.skipped says why): {listed}."


def _describe_remedies(world, tasks: Sequence[Task], tally: Tally) -> str:
    """Describe what gives more questions: pages, settings, or a smaller request."""
    todo = []
    graph = world.graph
    if graph is None or not graph.facts or getattr(world, "scheme", "") == "folder":
        todo += _list_folder_remedies(graph)
    knobs = [name for name in ("max_share", "max_effort") if tally.reasons[name]]
    if tally.structure_left_out:
        todo.append("ask about links and sections too (structure=True)")
    if tally.answers:
        todo.append(f"allow more: {', '.join([*knobs, 'width'])}")
    if tasks:
        todo.append("ask for fewer")
    return f"What helps: {'; '.join(todo)}."


def _list_folder_remedies(graph: Graph | None) -> list[str]:
    """List changes to a folder that give more questions."""
    relations = {relation for _, relation, _ in graph.facts} if graph is not None else set()
    todo = []
    if not relations:
        todo.append(
            "write the pages as Markdown, rst or HTML with links or tables, or put a csv, xlsx or "
            "json table beside them (plain text, PDF and docx give pages without facts)"
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


# Consecutive failed draws at one depth until an answer is postponed, and until it is removed. In
# small worlds (not `strict`) no answer is postponed, since policies were trained with their draws.
MISSES_AN_ANSWER = (8, 100)
PLAIN_MISSES = (32, 400)  # the same for plain questions
Wording = Literal["sentences", "brackets"]
UPGRADE_COUNTS = (0, 1, 1, 2)  # number of operators of a question: one of these is drawn
NUMBERS_IN_PLAIN = 0.2  # share of the draws for plain questions that may use equal years
PLAIN_STYLES: tuple[Style, ...] = ("which", "what")  # preferred styles of plain questions
COINCIDENCE_SHARE = 0.05  # largest share of questions that depend on an equal number


class _Rules(NamedTuple):
    """Requirements of a question.

    Attributes:
        graph: the facts that questions are about.
        whole: all facts, by which questions are checked.
    """

    graph: Graph
    whole: Graph
    width: int
    max_effort: float
    strict: bool
    plain: bool


class _Presentation(NamedTuple):
    """Wording of the questions, and whether plain ones are preferred."""

    wording: Wording
    plain: bool


class _Answers:
    """Remaining answers for each depth.

    An answer is postponed after `few` consecutive failed draws until no other answer is left, and
    again after twice and four times as many; otherwise such answers would take most draws. After
    `many` failures it is removed. `patience` is (few, a power of two; many).
    """

    def __init__(self, answers: list[str], shares: Mapping[int, float], patience: tuple[int, int]):
        self.live = {hops: list(answers) for hops, share in shares.items() if share > 0}
        self.postponed: dict[int, list[str]] = {hops: [] for hops in self.live}
        self.few, self.many = patience
        self.misses: Counter[tuple[int, str]] = Counter()

    def choose_depth(self, wanted: int) -> int | None:
        """Return the depth nearest to `wanted` with an answer left, or None."""
        for hops, answers in self.live.items():
            if not answers:
                answers += self.postponed[hops]
                self.postponed[hops] = []
        left = [hops for hops, answers in self.live.items() if answers]
        return min(left, key=lambda hops: (abs(hops - wanted), hops), default=None)

    def record_miss(self, hops: int, spot: int, has_its_share: bool) -> None:
        """Record a failed draw for the answer at index `spot`."""
        answers = self.live[hops]
        answer = answers[spot]
        self.misses[hops, answer] += 1
        misses = self.misses[hops, answer]
        is_given_up = has_its_share or misses >= self.many
        is_postponed = misses >= self.few and misses & (misses - 1) == 0
        if not (is_given_up or is_postponed):
            return
        if not is_given_up:
            self.postponed[hops].append(answer)
        answers[spot] = answers[-1]
        answers.pop()


def choose_side(answer: str) -> Split:
    """Return the split of an answer; one in four belongs to "test"."""
    return "train" if int(digest_text(f"side of {answer.casefold()}"), 16) % 4 else "test"


def synthesize_questions(
    world,
    n: int,
    seed: int | str,
    *,
    depth: int = 3,
    width: int = 3,
    split: Split | None = None,
    max_share: float = 0.02,
    max_effort: float = 60,
    hops: Mapping[int, float] | None = None,
    asked: Collection[str] | None = None,
    at_least: int = 0,
    wording: Wording = "sentences",
    structure: bool = False,
    strict: bool = True,
    plain: bool = False,
) -> list[Task]:
    """Return `n` verified, distinct questions; the same seed gives the same list.

    If the world has fewer, a warning explains why and what to change.

    Args:
        world: the world to ask about.
        n: number of questions.
        seed: seed of all draws.
        depth: largest number of hops.
        width: largest number of conditions on the answer.
        split: "train" or "test" (see `choose_side`); None: both.
        max_share: largest share of `n` with one answer (at least one question).
        max_effort: largest number of pages that a solver must read.
        hops: share of each depth (2 or more); default: proportional to the depth. An exhausted
            depth is replaced by the others.
        asked: titles that may be answers; None: all.
        at_least: smallest acceptable number of questions.
        wording: "sentences" for natural language with a proved meaning (`read_back`); "brackets"
            for the structured wording that a tiny policy learns.
        structure: also ask about links, sections, headings and tables of folder pages.
        strict: also check nearness, name stems and coincidences (`checks.find_faults`); small
            worlds have too few facts for this.
        plain: prefer questions that a person would ask (`plainness`); requires "sentences".

    Raises:
        ValueError: there are fewer than `at_least` questions, or a setting is invalid.
    """
    shares = hops or {d: d for d in range(2, depth + 1)}
    if n < 1 or width < 2 or not shares or min(shares) < 2:
        raise ValueError(
            f"{n=}, {width=} or depths {dict(shares)} too small: n starts at 1, the others at 2"
        )
    graph = select_facts(world.graph, structure)
    left_out = len(world.graph.facts) - len(graph.facts) if graph is not None else 0
    if plain and graph is not None:
        graph = select_plain_facts(graph, load_grammar(world.graph, world.scheme).book)
    titles = sorted(graph.nodes) if graph is not None and graph.facts else []
    answers = [
        title
        for title in titles
        if split in (None, choose_side(title))
        and (asked is None or title in asked)
        and not graph.is_value(title)
        and is_identifiable(title, graph)
        and (not strict or has_explanation(title, graph, width, max_effort < math.inf))
    ]
    presentation = _Presentation(wording, plain and wording == "sentences")
    rules = _Rules(graph, world.graph, width, max_effort, strict, presentation.plain)
    tally = Tally(len(answers), max(1, int(max_share * n)), structure_left_out=left_out)
    rng = random.Random(f"engine-{split}-{seed}")
    wanted = rng.choices(list(shares), list(shares.values()), k=n)
    left = _Answers(answers, shares, _choose_patience(strict, presentation.plain))
    tasks = _draw_all(world, left, wanted, rng, rules, tally, presentation)
    if len(tasks) < n:
        why = explain_shortage(world, n, tasks, tally)
        if len(tasks) < at_least:
            raise ValueError(f"{why}\nat_least={at_least} questions are required.")
        warnings.warn(why, stacklevel=2)
    return tasks


def select_facts(graph: Graph | None, structure: bool) -> Graph | None:
    """Return `graph` without structural facts unless `structure` is set."""
    of_structure = {*RESERVED_RELATIONS, *TYPES}
    if graph is None or structure or not any(fact[1] in RESERVED_RELATIONS for fact in graph.facts):
        return graph
    pages = [node for node in graph.nodes.values() if node.kind != VALUE]
    return Graph(pages, [fact for fact in graph.facts if fact[1] not in of_structure])


def _choose_patience(strict: bool, plain: bool) -> tuple[int, int]:
    """Return the misses before an answer is postponed and before it is removed."""
    few, many = PLAIN_MISSES if plain else MISSES_AN_ANSWER
    return (few if strict else many), many


def _draw_all(
    world,
    left: _Answers,
    wanted: list[int],
    rng: random.Random,
    rules: _Rules,
    tally: Tally,
    presentation: _Presentation,
) -> list[Task]:
    """Draw a question for each wanted depth until no answer is left, and count failures in
    `tally`.
    """
    used: Counter[str] = Counter()
    tasks: dict[str, Task] = {}
    spare: list[
        tuple[int, str, Query, str, str]
    ] = []  # strange questions, used if too few are plain
    by_coincidence = 0
    while len(tasks) < len(wanted):
        hops = left.choose_depth(wanted[len(tasks)])
        if hops is None:
            break
        spot = rng.randrange(len(left.live[hops]))
        answer = left.live[hops][spot]
        query, reason = None, "max_share"
        if used[answer] < tally.quota:
            numbers = not rules.strict or by_coincidence < COINCIDENCE_SHARE * len(wanted)
            if rules.plain:
                numbers = numbers and rng.random() < NUMBERS_IN_PLAIN
            query, reason = _draw_query(answer, rng, hops, rules, numbers)
        coincides = query is not None and rules.strict and _coincides(query, rules.graph)
        if coincides and not numbers:
            query, reason = None, "coincidence"
        text = to_text(query) if query is not None else ""
        if query is not None and text not in tasks:
            question = _word_query(query, world, rng.randrange(TEMPLATES), presentation)
            strange = (
                _measure_strangeness(query, world, question)
                if presentation.plain and question
                else 0
            )
            if strange:
                spare.append((strange, answer, query, text, question))
                question, reason = "", "not plain"
            elif not question:
                reason = "no wording"
            if question:
                tasks[text] = make_question_task(world, answer, query, question)
                used[answer] += 1
                by_coincidence += coincides
                left.misses[hops, answer] = 0
                continue
        tally.reasons[reason or "asked before"] += 1
        left.record_miss(hops, spot, used[answer] >= tally.quota)
    _add_spare(tasks, spare, world, len(wanted), used, tally.quota)
    return list(tasks.values())


def _add_spare(
    tasks: dict[str, Task],
    spare: list[tuple[int, str, Query, str, str]],
    world,
    n: int,
    used: Counter[str],
    quota: int,
) -> None:
    """Fill `tasks` up to `n` with the least strange questions that were set aside."""
    for _, answer, query, text, question in sorted(spare, key=lambda row: row[0]):
        if len(tasks) < n and used[answer] < quota and text not in tasks:
            tasks[text] = make_question_task(world, answer, query, question)
            used[answer] += 1


def _measure_strangeness(query: Query, world, question: str) -> int:
    """Return the strangeness of a worded query."""
    return measure_strangeness(query, question, load_grammar(world.graph, world.scheme).book)


def _coincides(query: Query, graph: Graph) -> bool:
    """Return True if a condition depends on an equal number."""
    return count_coincidences(query, lambda part: evaluate_query(part, graph)) > 0


def _draw_query(
    answer: str, rng: random.Random, hops: int, rules: _Rules, numbers: bool
) -> tuple[Query | None, str]:
    """Return a verified canonical query and an empty string, or None and the reason.

    With `numbers` False no condition may depend on an equal number.
    """
    graph, strict = rules.graph, rules.strict
    names = [] if rules.plain else rng.sample(sorted(OPERATORS), rng.choice(UPGRADE_COUNTS))
    listed = rules.max_effort < math.inf
    least = max(2, hops - bool(names))
    vague = not rules.plain
    width = min(rules.width, MAX_CONDITIONS) if rules.plain else rules.width
    query = draft_query(answer, graph, rng, least, width, strict, listed, numbers, vague)
    if query is None:
        return None, "no draft"
    fault = _find_fault(query, graph, rules)
    if fault:
        return None, fault
    bars = Bars(find_neighbours(answer, graph), numbers=not numbers)
    for name in [*names, "deepen"]:
        if name == "deepen" and measure_depth(query) == hops:
            continue
        if name == "deepen" and strict:
            harder = add_hop(query, graph, rng, bars)
            fault = "" if harder is None else _find_fault(harder, graph, rules)
            if fault:
                continue
        else:
            harder = OPERATORS[name](query, graph, rng, strict)
        if (
            harder
            and measure_depth(harder) <= hops
            and measure_effort(harder, graph) <= rules.max_effort
        ):
            query = harder
    if measure_depth(query) != hops:
        return None, fault or "too few hops"
    if rules.whole is not graph:  # the other facts may be shortcuts and make pages longer
        fault = _find_fault(query, rules.whole, rules)
        if fault:
            return None, fault
    return canonicalise(query), ""


def _find_fault(query: Query, graph: Graph, rules: _Rules) -> str:
    """Return the fault of `query`, or an empty string."""
    fault = find_first_fault(query, graph, rules.strict)
    if not fault and measure_effort(query, graph) > rules.max_effort:
        return "max_effort"
    return fault


def _word_query(query: Query, world, number: int, presentation: _Presentation) -> str:
    """Return the wording of `query`, or an empty string if no wording is proved to be
    unambiguous.
    """
    if presentation.wording == "brackets":
        return render_question(query, world.graph, number)
    grammar = load_grammar(world.graph, world.scheme)
    styles = PLAIN_STYLES if presentation.plain else STYLES
    return word_question(query, grammar, styles[number % len(styles)]) or ""


def make_question_task(
    world, target: str, query: Query, question: str, graph: Graph | None = None
) -> Task:
    """Return the task of a worded query.

    The answer is what a person calls `target`; its title in the graph stays an alias.

    Args:
        world: the world of the question.
        target: node that the query finds.
        query: the query.
        question: its wording.
        graph: the facts of the query; None: those of the world.
    """
    graph = graph or world.graph
    hops, text = measure_depth(query), to_text(query)
    answer = target
    if world.scheme == "folder":
        answer = load_grammar(world.graph, world.scheme).book.display(target)
        answer = (graph.is_value(target) and format_date(target)) or answer
    names = dict.fromkeys([target, *graph.nodes[target].aliases])
    return Task(
        f"search-h{hops}-{digest_text(f'{world.version}|{text}')}",
        question,
        answer,
        "search",
        world.version,
        hops,
        aliases=tuple(name for name in names if name != answer),
        query=text,
        conditions=len(list_constants(query)),
        answer_type="auto" if graph.is_value(target) else "text",
        page=target if target != answer else "",
    )


CHAINS = ("h1", "h2", "h3")
CONDITIONS = ("c2", "c3")
DEPTH = 2  # hops
POOL_SIZE = 1500  # questions requested for a whole world
SMALL_POOL_SIZE = 16  # questions requested for a temporary world
MAX_SHARE = 0.02  # largest share of questions with one answer in a whole world
MAX_EFFORT = 30  # pages


def _choose_side(title: str, of_value: dict[str, Split]) -> Split:
    """Return the split of `title`: that of the chains, or its own if no chain ends there."""
    return of_value.get(title) or choose_side(title)


class ConditionQuestions:
    """Engine questions of a small world that short searches can solve.

    Both wordings give the same questions if all of them can be worded in natural language.

    Args:
        world: the world to ask about.
        split: "train" or "test", shared with the chains; None: both.
        results: pages shown per search.
        max_calls: largest number of searches (`rollout.max_calls`).
        drawn: number of questions requested from the engine.
        seed: seed of all draws.
        wording: "sentences" or "brackets".
    """

    def __init__(
        self,
        world: SmallWorld,
        split: Split | None,
        results: int = 2,
        max_calls: int = 6,
        drawn: int = POOL_SIZE,
        seed: int | str = 0,
        wording: Wording = "brackets",
    ):
        of_value = split_answers(world) if split else {}
        asked = {title for title in world.entities if _choose_side(title, of_value) == split}
        with warnings.catch_warnings():
            # fewer questions are expected: all that exist are requested
            warnings.simplefilter("ignore")
            found = synthesize_questions(
                world,
                drawn,
                seed,
                depth=DEPTH,
                max_share=max(MAX_SHARE, 2 / drawn),
                max_effort=MAX_EFFORT,
                asked=asked if split else None,
                wording=wording,
                strict=False,  # in a small world nearly all things are near each other
                structure=True,
            )
        self.refused = 0  # questions that short searches cannot solve
        self._tasks: dict[str, dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
        for task in found:
            if task.skill in CONDITIONS and can_solve(task, world, results, max_calls):
                self._tasks[task.skill][task.answer].append(task)
            else:
                self.refused += 1

    @property
    def skills(self) -> list[str]:
        """Return the members of `CONDITIONS` that the world has questions for."""
        return sorted(self._tasks)

    def all(self, skill: str | None = None) -> list[Task]:
        """Return all questions, or those of one skill."""
        skills = self.skills if skill is None else [skill]
        by_answer = [self._tasks.get(name, {}) for name in skills]
        return [task for some in by_answer for tasks in some.values() for task in tasks]

    def draw(self, skill: str, rng: random.Random) -> Task:
        """Draw an answer and then a question with this answer."""
        answer = rng.choice(sorted(self._tasks[skill]))
        return rng.choice(self._tasks[skill][answer])
