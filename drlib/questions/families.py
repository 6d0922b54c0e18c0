"""Question families: the synthesis recipes that a data set draws from.

Five families are named after their recipes; `vague` is WebSailor with other words. Two more are for
documents: chains of facts, and statements of prose (`document_questions`). Each draws blocks of
questions. A block depends only on world, family, block number and seed, so a data set can be
resumed. Every question is an executed query with one answer and no fault (`checks`, for documents
`find_lookup_fault`), an effort of at most `MAX_EFFORT` pages, and natural-language wording that is
proved to have its meaning, or structured wording where none is. `EXCLUDED_RECIPES` gives the
recipes that are not families.
"""

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import NamedTuple

from drlib.questions.chain_wording import ChainWriter, load_overrides
from drlib.questions.checks import count_coincidences, find_first_fault, measure_effort
from drlib.questions.document_questions import (
    draw_chains,
    draw_statement_questions,
    find_lookup_fault,
)
from drlib.questions.expansion import draft_query, is_identifiable
from drlib.questions.plainness import measure_strangeness, select_plain_facts
from drlib.questions.queries import (
    Proj,
    Query,
    canonicalise,
    evaluate_query,
    from_text,
    measure_depth,
    to_text,
    walk,
)
from drlib.questions.question_engine import (
    COINCIDENCE_SHARE,
    Wording,
    make_question_task,
    select_facts,
    synthesize_questions,
)
from drlib.questions.read_back import load_grammar, word_question
from drlib.questions.sentences import STYLES
from drlib.questions.statements import load_statements
from drlib.questions.vague_words import VAGUE_WORDS
from drlib.questions.webdancer import e2hqa
from drlib.questions.websailor import (
    OBFUSCATIONS,
    Predicate,
    draw_hard_question,
    select_rare_seeds,
)
from drlib.questions.websailor_v2 import (
    draw_dense_subgraph,
    draw_focuses,
    find_bridge_question,
    find_cyclic_question,
)
from drlib.questions.wording import TEMPLATES, mentions, render_question
from drlib.registry import suggest_name
from drlib.task import Task
from drlib.worlds.graph import Graph

MAX_EFFORT = 60  # largest effort in pages, as in the engine
MISSES = 400  # failed draws in a row until a family is exhausted
PLAIN_MISSES = 4000  # the same for plain questions, about one in hundreds of draws
FOCUSES = 12  # answers drawn in one dense subgraph, as many as it has pages
EXCLUDED_RECIPES = {
    "webwalker": "asks about generated sites, not about a world",
    "webwatcher": "asks about pictures",
    "agentscaler": "makes tasks for tools over databases, not questions",
    "agentfounder": "makes text for pre-training, not questions",
    "webdancer's CRAWLQA": "asks about links between pages, which are no facts of the graph",
}
OF_DOCUMENTS = ("chain", "prose", "engine")  # default families of a user's own documents
DOCUMENT_SCHEMES = ("folder:", "live:", "wiki")

Candidate = tuple[str, Query, str] | None  # answer, query, text ("": not worded yet)


class Family(NamedTuple):
    """A synthesis recipe.

    Attributes:
        draws: function of (world, rng, hops) that yields candidates without end; None: the engine
            and the families of documents, which draw whole blocks.
        help: description for the command line.
    """

    draws: Callable[..., Iterator[Candidate]] | None
    help: str


class Block(NamedTuple):
    """Questions with their wording.

    Attributes:
        questions: tasks with "sentences" or "brackets".
        note: why there are fewer than requested; empty otherwise.
    """

    questions: list[tuple[Task, Wording]]
    note: str


def draw_block(
    family: str,
    world,
    n: int,
    seed: int,
    block: int,
    hops: int,
    structure: bool = False,
    plain: bool = False,
) -> Block:
    """Draw up to `n` verified questions with different queries.

    Args:
        family: key of `FAMILIES`.
        world: the world to ask about.
        n: number of questions.
        seed: seed of the data set.
        block: number of the block.
        hops: largest number of hops.
        structure: ask also about links, sections and similar facts of folder pages.
        plain: ask as a person would; the engine fills up with other questions (see
            `synthesize_questions`), the other families do not.

    Raises:
        ValueError: the family is unknown.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: {suggest_name(family, FAMILIES)}")
    if family in LOOKUPS:
        return _draw_lookups(family, world, n, random.Random(f"{family}-{seed}-{block}"), hops)
    draws = FAMILIES[family].draws
    if draws is None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tasks = synthesize_questions(
                world, n, f"{seed}-{block}", depth=max(2, hops), structure=structure, plain=plain
            )
        if plain and world.scheme == "folder":
            tasks = [task for task in tasks if _is_natural(task, world)]
        note = "\n".join(str(one.message) for one in caught) if len(tasks) < n else ""
        return Block([(task, "sentences") for task in tasks], note)
    graph = select_facts(world.graph, structure)
    if graph is None or not graph.facts or not _list_identifiable(graph):
        return Block(
            [], "no page can be an answer: no two facts identify one; add facts that pages share"
        )
    rng = random.Random(f"{family}-{seed}-{block}")
    grammar = load_grammar(world.graph, world.scheme)
    if plain:
        graph = select_plain_facts(graph, grammar.book)
    source = SimpleNamespace(graph=graph, search=world.search, grammar=grammar)
    return _collect(draws(source, rng, hops), world, n, rng, hops, plain)


def _collect(
    draws: Iterator[Candidate],
    world,
    n: int,
    rng: random.Random,
    hops: int,
    plain: bool,
) -> Block:
    """Collect `n` valid questions; stop after `MISSES` consecutive failures."""
    questions: dict[str, tuple[Task, Wording]] = {}
    reasons: Counter[str] = Counter()
    misses = by_coincidence = 0
    ask = partial(evaluate_query, graph=world.graph)
    for found in draws:
        reason = "no draft"
        if found is not None:
            answer, query, vague = found
            query = canonicalise(query)
            reason = _find_fault(answer, query, world.graph, hops)
            coincides = count_coincidences(query, ask) > 0
            if coincides and by_coincidence >= COINCIDENCE_SHARE * n:
                reason = "coincidence"
            if to_text(query) in questions:
                reason = "asked before"
        if not reason:
            worded: tuple[str, Wording]
            worded = (vague, "sentences") if vague else _word_query(query, world, rng)
            text, wording = worded
            if any(mentions(text, name) for name in (answer, *world.graph.nodes[answer].aliases)):
                reason = "told"
            elif plain and (wording == "brackets" or _is_strange(query, text, world)):
                reason = "not plain"
        if reason:
            reasons[reason] += 1
            misses += 1
        else:
            questions[to_text(query)] = make_question_task(world, answer, query, text), wording
            by_coincidence += coincides
            misses = 0
        if len(questions) == n or misses == (PLAIN_MISSES if plain else MISSES):
            break
    if len(questions) == n:
        return Block([*questions.values()], "")
    outcomes = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(4))
    note = f"a block gave {len(questions)} of {n}; draws met: {outcomes or 'nothing at all'}"
    return Block([*questions.values()], note)


def _is_natural(task: Task, world) -> bool:
    """Return True if a person would ask a question about documents in these words."""
    book = load_grammar(world.graph, world.scheme).book
    relations = ChainWriter(book).relations
    query = from_text(task.query)
    named = [part.relation.removesuffix(" of") for part in walk(query) if isinstance(part, Proj)]
    return (
        all(relations[name].form and relations[name].words != "since" for name in named)
        and "table row" not in task.question
        and not _is_strange(query, task.question, world)
    )


def make_writer(world) -> ChainWriter:
    """Return the writer of the chains of a world, with its user's words."""
    book = load_grammar(world.graph, world.scheme).book
    return ChainWriter(book, load_statements(world), load_overrides(world))


def _draw_lookups(family: str, world, n: int, rng: random.Random, hops: int) -> Block:
    """Draw up to `n` chains of facts or questions about statements."""
    if world.graph is None:
        return Block([], "the world has no facts and no links")
    statements = load_statements(world)
    grammar = load_grammar(world.graph, world.scheme)
    writer = make_writer(world)
    graph = world.graph if family == "chain" else statements.graph
    if family == "chain":
        draws = draw_chains(SimpleNamespace(graph=graph, grammar=grammar), rng, hops)
    else:
        draws = draw_statement_questions(statements, grammar.book.display, rng, hops)
    questions: dict[str, tuple[Task, Wording]] = {}
    reasons: Counter[str] = Counter()
    misses = 0
    for found in draws:
        reason = "no draft"
        if found is not None:
            answer, query, text = found
            if not text and isinstance(query, Proj):
                text = writer.write(query)
            reason = find_lookup_fault(answer, query, text, graph, hops)
            if not text:
                reason = "no wording"
            elif to_text(query) in questions:
                reason = "asked before"
            if not reason:
                task = make_question_task(world, answer, query, text, graph)
                questions[to_text(query)] = task, "sentences"
        reasons[reason] += bool(reason)
        misses = misses + 1 if reason else 0
        if len(questions) == n or misses == MISSES:
            break
    note = ""
    if len(questions) < n:
        outcomes = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common(4))
        note = f"a block gave {len(questions)} of {n}; draws met: {outcomes or 'nothing at all'}"
    return Block([*questions.values()], note)


def choose_families(world: str) -> tuple[str, ...]:
    """Return the default families of a world by its name: documents, or a large graph."""
    if world.startswith(DOCUMENT_SCHEMES):
        return OF_DOCUMENTS
    return tuple(family for family in FAMILIES if family not in (*LOOKUPS, *ON_REQUEST))


def _is_strange(query: Query, text: str, world) -> bool:
    """Return True if no person would ask the question in these words."""
    return measure_strangeness(query, text, load_grammar(world.graph, world.scheme).book) > 0


def _word_query(query: Query, world, rng: random.Random) -> tuple[str, Wording]:
    """Return the wording and its kind: natural language if it can be proved, else structured."""
    number = rng.randrange(TEMPLATES)
    grammar = load_grammar(world.graph, world.scheme)
    text = word_question(query, grammar, STYLES[number % len(STYLES)])
    if text:
        return text, "sentences"
    return render_question(query, world.graph, number), "brackets"


def _find_fault(answer: str, query: Query, graph: Graph, hops: int) -> str:
    """Return why the query is not accepted, or an empty string."""
    if measure_depth(query) > hops:
        return "too deep"
    if evaluate_query(query, graph) != {answer}:
        return "not unique"
    if measure_effort(query, graph) > MAX_EFFORT:
        return "max_effort"
    return find_first_fault(query, graph)


@lru_cache(maxsize=4)
def _list_identifiable(graph: Graph) -> tuple[str, ...]:
    """Return the pages that several facts together identify."""
    pages = (title for title in graph.nodes if not graph.is_value(title))
    return tuple(title for title in pages if is_identifiable(title, graph))


# ------------------------------------------------------------------------------------ families


def _draft_verified(
    answers: Sequence[str], graph: Graph, rng: random.Random, hops: int
) -> tuple[str, Query] | tuple[None, None]:
    """Return one of `answers` with a faultless query, or (None, None) if this draw found none."""
    answer = rng.choice(answers)
    query = draft_query(answer, graph, rng, hops)
    if query is None or find_first_fault(query, graph):
        return None, None
    return answer, query


def _draw_webshaper(world, rng: random.Random, hops: int) -> Iterator[Candidate]:
    """Yield layer-wise expansions: intersections of projections, which triples can express."""
    while True:
        answers = _list_identifiable(world.graph)
        answer, query = _draft_verified(answers, world.graph, rng, rng.randint(2, hops))
        yield (answer, query, "") if query is not None else None


def _draw_webdancer(world, rng: random.Random, hops: int) -> Iterator[Candidate]:
    """Yield E2HQA questions: the hardest round that is within the requested depth."""
    while True:
        answer = rng.choice(_list_identifiable(world.graph))
        easy = draft_query(answer, world.graph, rng, 1)
        rounds = e2hqa(easy, world.graph, rng, rng.randint(2, 2 * hops)) if easy else []
        harder = [query for query in rounds[1:] if 2 <= measure_depth(query) <= hops]
        yield (answer, harder[-1], "") if harder else None


def _draw_websailor(
    world, rng: random.Random, hops: int, operators: Sequence[Callable] = OBFUSCATIONS
) -> Iterator[Candidate]:
    """Yield obfuscated questions about rare things that a search of ten results does not solve."""
    rare = select_rare_seeds(_list_identifiable(world.graph), world.graph)
    resolved: dict[Predicate, bool] = {}  # clues recur, so the results are cached
    while True:
        answer, query = _draft_verified(rare, world.graph, rng, rng.randint(2, hops))
        hard = None
        if query is not None:
            hard = draw_hard_question(
                query, world, world.grammar, rng, resolved=resolved, operators=operators
            )
        yield (answer, hard[1].query, hard[0]) if hard else None


def _draw_websailor_v2(world, rng: random.Random, hops: int) -> Iterator[Candidate]:
    """Yield cycles and bridges of dense subgraphs; stop if random walks find no such subgraph."""
    while True:
        try:
            subgraph = draw_dense_subgraph(world.graph, rng, FOCUSES)
        except ValueError:  # the graph is too sparse for this family
            return
        for focus in dict.fromkeys(draw_focuses(subgraph, FOCUSES, rng)):
            query = find_cyclic_question(subgraph, focus, world.graph)
            if query is None:
                bridged = find_bridge_question(subgraph, focus, world.graph)
                query = bridged[0] if bridged else None
            yield (focus, query, "") if query is not None else None


FAMILIES = {
    "engine": Family(None, "the plain question engine: conditions, expansion, harder by operators"),
    "webdancer": Family(_draw_webdancer, "E2HQA: an easy question made harder round by round"),
    "webshaper": Family(
        _draw_webshaper, "layer-wise expansion; each has its formalisation in triples"
    ),
    "websailor": Family(
        _draw_websailor, "facts said vaguely, until a search does not find the answer"
    ),
    "websailor_v2": Family(_draw_websailor_v2, "cycles and bridges of dense subgraphs"),
    "vague": Family(
        partial(_draw_websailor, operators=VAGUE_WORDS),
        "facts said by vague words: part of a century, third of the numbers, start of a name",
    ),
    "chain": Family(None, "chains of one to three facts, each with a single value"),
    "prose": Family(None, "statements of sentences: subjects, dates, names, numbers, definitions"),
}
LOOKUPS = ("chain", "prose")
ON_REQUEST = ("vague",)  # families that no world has by default
