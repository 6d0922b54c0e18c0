"""The question engine: from an answer backwards to a question that has only this answer.

An answer is drawn, explained and expanded (`drlib.synthesis.expansion`); what comes out is made
harder (`drlib.synthesis.upgrades`) and kept only when it passes every check.

Questions are split by answer, so that a policy cannot learn test answers from training questions,
and no answer may have more than `max_share` of the questions, so that none is a good guess.
"""

import math
import random
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from drlib.synthesis.checks import coincidences, effort, first_fault, next_to
from drlib.synthesis.clues import can_be_asked_for, is_explained
from drlib.synthesis.derived import TYPES
from drlib.synthesis.expansion import Bars, deepened, draft
from drlib.synthesis.plainness import MAX_CONDITIONS, plain_part, strangeness
from drlib.synthesis.proven import word_question
from drlib.synthesis.queries import Query, canonical, constants, depth, evaluate_query, to_text
from drlib.synthesis.questions import Split, short_digest
from drlib.synthesis.read_back import grammar_of
from drlib.synthesis.sentences import STYLES, Style
from drlib.synthesis.shortage import Tally, shortage
from drlib.synthesis.upgrades import OPERATORS
from drlib.synthesis.wording import TEMPLATES, render_question
from drlib.task import Task
from drlib.worlds.graph import VALUE, Graph
from drlib.worlds.triples import RESERVED_RELATIONS

# Misses in a row, at one depth, until an answer stands back there, and until it is given up (in the
# small worlds by which policies were trained, not `strict`, none stands back).
MISSES_AN_ANSWER = (8, 100)
PLAIN_MISSES = (32, 400)  # the same where a question must be plain as well
Wording = Literal["sentences", "brackets"]
UPGRADE_COUNTS = (0, 1, 1, 2)  # how many operators a question gets: one of these is drawn
NUMBERS_IN_PLAIN = 0.2  # of the draws for plain ones, those in which equal years may come up
ASKED: tuple[Style, ...] = ("which", "what")  # of plain ones; others where these will not do
COINCIDENCE_SHARE = 0.05  # of the questions, those that may hang on an equal number


class _Rules(NamedTuple):
    """What a question must be like, and the graph that it is asked about: its facts may be some of
    those of `whole`, by which the question is checked."""

    graph: Graph
    whole: Graph
    width: int
    max_effort: float
    strict: bool
    plain: bool


class _Told(NamedTuple):
    """How questions are put, and whether those that a person would ask come first."""

    wording: Wording
    plain: bool


class _Answers:
    """Of each depth the answers that may still give a question.

    An answer that a few draws in a row miss stands back until no other is left at that depth, and
    again when they are twice and four times as many: such answers would take most of all draws.
    One that many miss is given up. `patience`: (few, a power of two; many).
    """

    def __init__(self, answers: list[str], shares: Mapping[int, float], patience: tuple[int, int]):
        self.live = {hops: list(answers) for hops, share in shares.items() if share > 0}
        self.standing_back: dict[int, list[str]] = {hops: [] for hops in self.live}
        self.few, self.many = patience
        self.misses: Counter[tuple[int, str]] = Counter()

    def depth_left(self, wanted: int) -> int | None:
        """The depth nearest to the `wanted` one at which an answer is left; None: none is."""
        for hops, answers in self.live.items():
            if not answers:
                answers += self.standing_back[hops]
                self.standing_back[hops] = []
        left = [hops for hops, answers in self.live.items() if answers]
        return min(left, key=lambda hops: (abs(hops - wanted), hops), default=None)

    def missed(self, hops: int, spot: int, has_its_share: bool) -> None:
        """A draw for the answer at `spot` gave nothing."""
        answers = self.live[hops]
        answer = answers[spot]
        self.misses[hops, answer] += 1
        misses = self.misses[hops, answer]
        is_given_up = has_its_share or misses >= self.many
        stands_back = misses >= self.few and misses & (misses - 1) == 0
        if not (is_given_up or stands_back):
            return
        if not is_given_up:
            self.standing_back[hops].append(answer)
        answers[spot] = answers[-1]
        answers.pop()


def side_of(answer: str) -> Split:
    """The side of the split to which questions with this answer belong, one in four to `test`."""
    return "train" if int(short_digest(f"side of {answer.casefold()}"), 16) % 4 else "test"


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
    """`n` verified questions of `world`, all different, or as many as it gives; the same seed gives
    the same list. Where there are fewer, a warning says why, what the world lacks, and what to do.

    Args:
        depth: look-ups that follow each other, at most. width: conditions of the answer, at most.
        split: one side alone (`side_of` the answer); None: both.
        max_share: of `n`, the questions that may have the same answer (one always may).
        max_effort: pages that a solver may have to read.
        hops: the share of each depth, 2 and more; by default a depth's share grows with it. When
            one depth has run out, the others take its place.
        asked: titles that may be asked for (say, the train answers of another split); None: all.
        at_least: fewer questions than this are no use to the caller.
        wording: "sentences" for readers and large models, each proved to have one meaning
            (`drlib.synthesis.proven`); "brackets" are the few words that a tiny policy learns.
        structure: ask about links, sections, headings and tables of a folder's pages as well
            (`drlib.worlds.triples.OWN`): they join pages and say nothing of what these are about.
        strict: no constant near the answer, no name that hints at it, few equal numbers
            (`drlib.synthesis.checks.faults`); small worlds have not enough facts for that.
        plain: of questions in sentences prefer those that a person would ask
            (`drlib.synthesis.plainness`): one sentence, no "or", nothing that hangs on an equal
            year. Others are given only where a world has too few of these.
    ValueError: fewer than `at_least`, with what the warning would say; or impossible settings.
    """
    shares = hops or {d: d for d in range(2, depth + 1)}
    if n < 1 or width < 2 or not shares or min(shares) < 2:
        raise ValueError(
            f"n must be at least 1, width and depths 2: {n=}, {width=}, {dict(shares)}"
        )
    graph = asked_about(world.graph, structure)
    left_out = len(world.graph.facts) - len(graph.facts) if graph is not None else 0
    if plain and graph is not None:
        graph = plain_part(graph, grammar_of(world.graph, world.scheme).book)
    titles = sorted(graph.nodes) if graph is not None and graph.facts else []
    answers = [
        title
        for title in titles
        if split in (None, side_of(title))
        and (asked is None or title in asked)
        and not graph.is_value(title)
        and can_be_asked_for(title, graph)
        and (not strict or is_explained(title, graph, width, max_effort < math.inf))
    ]
    told = _Told(wording, plain and wording == "sentences")
    rules = _Rules(graph, world.graph, width, max_effort, strict, told.plain)
    tally = Tally(len(answers), max(1, int(max_share * n)), structure_left_out=left_out)
    rng = random.Random(f"engine-{split}-{seed}")
    wanted = rng.choices(list(shares), list(shares.values()), k=n)
    left = _Answers(answers, shares, _patience(strict, told.plain))
    tasks = _draw_all(world, left, wanted, rng, rules, tally, told)
    if len(tasks) < n:
        why = shortage(world, n, tasks, tally)
        if len(tasks) < at_least:
            raise ValueError(f"{why}\n{at_least} questions are needed here.")
        warnings.warn(why, stacklevel=2)
    return tasks


def asked_about(graph: Graph | None, structure: bool) -> Graph | None:
    """`graph` with the facts that questions may be about."""
    of_structure = {*RESERVED_RELATIONS, *TYPES}
    if graph is None or structure or not any(fact[1] in RESERVED_RELATIONS for fact in graph.facts):
        return graph
    pages = [node for node in graph.nodes.values() if node.kind != VALUE]
    return Graph(pages, [fact for fact in graph.facts if fact[1] not in of_structure])


def _patience(strict: bool, plain: bool) -> tuple[int, int]:
    """Misses until an answer stands back, and until it is given up; the same where none does."""
    few, many = PLAIN_MISSES if plain else MISSES_AN_ANSWER
    return (few if strict else many), many


def _draw_all(
    world,
    left: _Answers,
    wanted: list[int],
    rng: random.Random,
    rules: _Rules,
    tally: Tally,
    told: _Told,
) -> list[Task]:
    """A question of each of the `wanted` depths, until no answer is left. The answers that are
    `left` are used up here; `tally` counts the draws that gave nothing."""
    used: Counter[str] = Counter()
    tasks: dict[str, Task] = {}
    spare: list[tuple[int, str, Query, str, str]] = []  # that nobody would ask, if there are better
    by_coincidence = 0
    while len(tasks) < len(wanted):
        hops = left.depth_left(wanted[len(tasks)])
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
            question = _question(query, world, rng.randrange(TEMPLATES), told)
            strange = _strangeness(query, world, question) if told.plain and question else 0
            if strange:
                spare.append((strange, answer, query, text, question))
                question, reason = "", "not plain"
            elif not question:
                reason = "no wording"
            if question:
                tasks[text] = question_task(world, answer, query, question)
                used[answer] += 1
                by_coincidence += coincides
                left.misses[hops, answer] = 0
                continue
        tally.reasons[reason or "asked before"] += 1
        left.missed(hops, spot, used[answer] >= tally.quota)
    _fill(tasks, spare, world, len(wanted), used, tally.quota)
    return list(tasks.values())


def _fill(
    tasks: dict[str, Task],
    spare: list[tuple[int, str, Query, str, str]],
    world,
    n: int,
    used: Counter[str],
    quota: int,
) -> None:
    """Add to `tasks`, up to `n`, what is least strange of the questions that were put aside."""
    for _, answer, query, text, question in sorted(spare, key=lambda row: row[0]):
        if len(tasks) < n and used[answer] < quota and text not in tasks:
            tasks[text] = question_task(world, answer, query, question)
            used[answer] += 1


def _strangeness(query: Query, world, question: str) -> int:
    return strangeness(query, question, grammar_of(world.graph, world.scheme).book)


def _coincides(query: Query, graph: Graph) -> bool:
    return coincidences(query, lambda part: evaluate_query(part, graph)) > 0


def _draw_query(
    answer: str, rng: random.Random, hops: int, rules: _Rules, numbers: bool
) -> tuple[Query | None, str]:
    """(a verified query of `hops` look-ups for `answer`, canonical, ""), or (None, why this draw
    found none). Not `numbers`: it is to hang on no equal number."""
    graph, strict = rules.graph, rules.strict
    names = [] if rules.plain else rng.sample(sorted(OPERATORS), rng.choice(UPGRADE_COUNTS))
    listed = rules.max_effort < math.inf
    least = max(2, hops - bool(names))
    vague = not rules.plain
    width = min(rules.width, MAX_CONDITIONS) if rules.plain else rules.width
    query = draft(answer, graph, rng, least, width, strict, listed, numbers, vague)
    if query is None:
        return None, "no draft"
    fault = _fault(query, graph, rules)
    if fault:
        return None, fault
    bars = Bars(next_to(answer, graph), numbers=not numbers)
    for name in [*names, "deepen"]:
        if name == "deepen" and depth(query) == hops:
            continue
        if name == "deepen" and strict:
            harder = deepened(query, graph, rng, bars)
            fault = "" if harder is None else _fault(harder, graph, rules)
            if fault:
                continue
        else:
            harder = OPERATORS[name](query, graph, rng, strict)
        if harder and depth(harder) <= hops and effort(harder, graph) <= rules.max_effort:
            query = harder
    if depth(query) != hops:
        return None, fault or "too few look-ups"
    if rules.whole is not graph:  # whose facts may be shorter ways, and make its pages longer
        fault = _fault(query, rules.whole, rules)
        if fault:
            return None, fault
    return canonical(query), ""


def _fault(query: Query, graph: Graph, rules: _Rules) -> str:
    """What is wrong with `query`; "" if nothing is."""
    fault = first_fault(query, graph, rules.strict)
    if not fault and effort(query, graph) > rules.max_effort:
        return "max_effort"
    return fault


def _question(query: Query, world, number: int, told: _Told) -> str:
    """`query` in words, in one of several styles; "" if no wording is proved to mean it alone."""
    if told.wording == "brackets":
        return render_question(query, world.graph, number)
    grammar = grammar_of(world.graph, world.scheme)
    styles = ASKED if told.plain else STYLES
    return word_question(query, grammar, styles[number % len(styles)]) or ""


def question_task(world, answer: str, query: Query, question: str) -> Task:
    """The task that asks `question`, which says `query` and has one `answer`, a page of `world`."""
    hops, text = depth(query), to_text(query)
    return Task(
        f"search-h{hops}-{short_digest(f'{world.version}|{text}')}",
        question,
        answer,
        "search",
        world.version,
        hops,
        aliases=world.graph.nodes[answer].aliases,
        query=text,
        conditions=len(constants(query)),
    )
