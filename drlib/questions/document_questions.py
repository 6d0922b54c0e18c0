"""Questions about documents: chains of one to three hops, each step with a single result.

The engine asks for pages that several shared facts identify together, which small folders rarely
have. A chain needs one fact a hop: "Who is the head of the office in which Ada Brant works?" Every
step has exactly one value, so the answer is unique, and it may be a value instead of a page. With
`draw_chains` the facts are those of the graph: front matter, tables, lists, and what a model reads
from prose. With `draw_statement_questions` they are the statements of sentences.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache

from drlib.questions.chain_wording import is_address
from drlib.questions.checks import find_neighbours, names_overlap
from drlib.questions.phrases import TYPES, Phrasebook, load_words
from drlib.questions.queries import (
    Proj,
    Query,
    evaluate_query,
    list_constants,
    measure_depth,
)
from drlib.questions.statements import (
    DESCRIBED,
    GAP,
    Statement,
    Statements,
    is_statement,
)
from drlib.questions.wording import mentions
from drlib.worlds.graph import Graph
from drlib.worlds.triples import RESERVED_RELATIONS

Candidate = tuple[str, Query, str]  # answer, query, text ("": not worded yet)
Step = tuple[str, str]  # what a hop starts from, and its relation
MAX_ANSWER = 60  # characters
MAX_ANSWER_WORDS = 8
MAX_SENTENCE = 3  # words of an answer with a final stop
MAX_QUESTION_WORDS = 36
MAX_INNER_WORDS = 9  # of a description in the middle of a sentence
HOP_SHARES = (0.45, 0.35, 0.2)  # of the draws, by number of hops
NOT_ASKED = frozenset(load_words()["not_asked"].split())
NO_ANSWER = re.compile(
    r"(?i)(?:yes|no|true|false|none|n/?a|tbd|tba|tbc|unknown|various|other|see .*|ask .*|-+|–|—|"
    r"\?+|x|y|n|all|any|ok|done|open|optional|required|default|.*not available.*|"
    r".*\.(?:md|html?|txt|csv)(?:#.*)?|.*https?://.*)"
)
YEAR = re.compile(r"1\d{3}|20[0-3]\d")
MEASURE = re.compile(r"[<>≤≥~±+−-]?\s?[£$€]?\s?\d[\d.,/ ×x–-]*(?:\s?\S{1,12}){0,2}")
NO_START = re.compile(
    r"(?i)(?:overview|introduction|index|readme|home|notes?|faq|misc|general|\W*)"
)


def find_lookup_fault(answer: str, query: Query, text: str, graph: Graph, hops: int) -> str:
    """Return why a chain is not accepted, or an empty string.

    A chain must have at most `hops` hops and one answer, which the question does not mention, and
    no fact may join the answer directly with what the question names unless it is the only hop.
    """
    depth = measure_depth(query)
    if depth > hops:
        return "too deep"
    if evaluate_query(query, graph) != {answer}:
        return "not unique"
    if depth > 1 and find_neighbours(answer, graph) & {*list_constants(query)}:
        return "shortcut"
    if text and len(text.split()) > MAX_QUESTION_WORDS:
        return "too long"
    letters = re.sub(r"\W", "", answer).casefold()
    if len(letters) > 2 and letters in re.sub(r"\W", "", text).casefold():
        return "told"
    if text and any(mentions(text, name) for name in _list_names(answer, graph)):
        return "told"
    return ""


def _list_names(title: str, graph: Graph) -> list[str]:
    """Return the names of a thing, headings included, that are longer than two characters."""
    node = graph.nodes.get(title)
    names = [title, *(node.aliases if node else ()), *graph.values(title, "heading")]
    return [name for name in names if len(name) > 2]


# ------------------------------------------------------------------------------- chains of facts


def draw_chains(world, rng: random.Random, hops: int) -> Iterator[Candidate | None]:
    """Yield chains of facts; the answer is drawn first, so that all answers are equally likely.

    Args:
        world: has `graph` and `grammar`.
        rng: source of randomness.
        hops: largest number of hops.
    """
    graph, book = world.graph, world.grammar.book
    steps = _list_steps(graph, book)
    answers = sorted(answer for answer in steps if is_answer(answer, graph, book))
    if not answers:
        return
    while True:
        answer = rng.choice(answers)
        depth = rng.choices(range(1, hops + 1), HOP_SHARES[:hops])[0]
        yield _draw_chain(answer, depth, steps, world, rng)


def _draw_chain(
    answer: str, depth: int, steps: dict[str, list[Step]], world, rng: random.Random
) -> Candidate | None:
    """Return a chain of `depth` hops that ends at `answer`, or None if the draw fails."""
    graph, book = world.graph, world.grammar.book
    path, relations = [answer], []
    for _ in range(depth):
        known = [(start, name) for start, name in steps.get(path[-1], ()) if start not in path]
        known = [step for step in known if not _names_itself(*step, path[-1], graph)]
        if not known:
            return None
        start, relation = rng.choice(known)
        path.append(start)
        relations.append(relation)
    if MEASURE.fullmatch(path[-1]) and not YEAR.fullmatch(path[-1]):
        return None  # "the headset whose weight is 104 g"
    if not _is_start(path[-1], graph, book) or names_overlap(answer, path[-1], graph):
        return None
    # a value in the middle ("the date on which ...") joins things by chance
    if any(graph.is_value(title) for title in path[1:-1]):
        return None
    query: Query = path[-1]
    for relation in reversed(relations):
        query = Proj(relation, query)
    return answer, query, ""


@lru_cache(maxsize=4)
def _list_steps(graph: Graph, book: Phrasebook) -> dict[str, list[Step]]:
    """Return title -> the (start, relation) whose only value it is, in both directions."""
    found = defaultdict(list)
    for relation, rows in graph.adjacent.items():
        if not is_asked(relation.removesuffix(" of"), graph, book):
            continue
        for start, values in rows.items():
            if len(values) == 1:
                (value,) = values
                found[value].append((start, relation))
    return {title: sorted(some) for title, some in found.items()}


def _names_itself(start: str, relation: str, value: str, graph: Graph) -> bool:
    """Return True if a fact only names its thing: a project whose project is "Gannet"."""
    names = {name.casefold() for name in _list_names(start, graph)}
    if relation.removesuffix(" of").casefold() in (
        graph.nodes[start].kind,
        graph.nodes[value].kind,
    ):
        return names_overlap(start, value, graph)
    return bool(names & {name.casefold() for name in _list_names(value, graph)})


def is_asked(relation: str, graph: Graph, book: Phrasebook) -> bool:
    """Return True if people ask by `relation` and a phrase can be derived from its name."""
    if relation in RESERVED_RELATIONS or relation in TYPES or is_statement(relation):
        return False
    if relation.casefold() in NOT_ASKED or re.search(r"[?!:/]", relation):
        return False
    return book.phrases[relation].plain != "never"


def is_answer(title: str, graph: Graph, book: Phrasebook) -> bool:
    """Return True if people would accept `title` as an answer: short, and no remark or flag."""
    shown = title if graph.is_value(title) else book.display(title)
    if graph.nodes[title].kind == "entity" and " " not in title and title[0].islower():
        return False  # "the society"
    if shown.endswith(".") and len(shown.split()) > MAX_SENTENCE:
        return False
    if re.fullmatch(r"(?:The|the|A|Our) [a-z]+", shown):
        return False  # "The studio"
    if len(shown) > MAX_ANSWER or len(shown.split()) > MAX_ANSWER_WORDS or "_" in shown:
        return False
    return NO_ANSWER.fullmatch(shown) is None and graph.nodes[title].kind != "section"


def _is_start(title: str, graph: Graph, book: Phrasebook) -> bool:
    """Return True if a question can begin with `title`."""
    node = graph.nodes[title]
    if node.kind == "section":
        return False
    names = [*graph.values(title, "heading"), *node.aliases] or [title]
    return is_answer(title, graph, book) and not any(NO_START.fullmatch(name) for name in names)


# ------------------------------------------------------------------------------------ statements


def draw_statement_questions(
    statements: Statements, show: Callable[[str], str], rng: random.Random, hops: int
) -> Iterator[Candidate | None]:
    """Yield questions about statements: the subject, the value or the term is asked for.

    A further hop replaces a name by a description: "In which year was the museum that owes its
    existence to Ada Brant opened?"

    Args:
        statements: statements of a world.
        show: function from the title of a page to what a person calls it.
        rng: source of randomness.
        hops: largest number of hops.
    """
    described = defaultdict(list)
    for one in statements.statements:
        if one.relation == DESCRIBED:
            described[one.subject].append(one)
    if not statements.statements:
        return
    while True:
        one = rng.choice(statements.statements)
        asks_subject = GAP not in one.relation
        answer = one.subject if asks_subject else one.value
        if asks_subject and is_address(show(answer)):
            yield None
            continue
        query: Query
        query = (
            Proj(f"{one.relation} of", one.value)
            if asks_subject
            else Proj(one.relation, one.subject)
        )
        text = one.question
        if one.scope:
            page = show(one.scope.partition("#")[0])
            if is_address(page):
                yield None
                continue
            text = f'According to the page "{page}", {text[0].lower()}{text[1:]}'
        elif hops > 1 and rng.random() > HOP_SHARES[0]:
            harder = _add_hop(one, described, statements, rng)
            if harder is not None:
                query, text = harder
        yield answer, query, text


def _add_hop(
    one: Statement,
    described: dict[str, list[Statement]],
    statements: Statements,
    rng: random.Random,
) -> tuple[Query, str] | None:
    """Return query and text with a name replaced by a description, or None."""
    if one.relation == DESCRIBED:
        options = [(words, title) for words, title in one.mentions if described[title]]
    else:
        options = [(statements.names.get(one.subject, ""), one.subject)]
    options = [(words, title) for words, title in options if words and described[title]]
    if not options:
        return None
    words, title = rng.choice(options)
    other = rng.choice(described[title])
    clause = describe(other, statements)
    if other.sentence == one.sentence or not clause:
        return None
    article = rf"(?:\b[Tt]he )?{re.escape(words)}"
    text, count = re.subn(article, lambda _: clause, one.question)
    is_last = text.endswith((f"{clause}?", f"{clause}."))
    is_long = len(clause.split()) > MAX_INNER_WORDS or re.search(r",| and | since ", clause)
    if is_long and not is_last:
        return None  # the reader would not see where the description ends
    if count != 1 or f"{clause}'" in text or f"{clause}’" in text:
        return None
    inner = Proj(f"{DESCRIBED} of", other.value)
    if one.relation == DESCRIBED:
        return Proj(f"{one.value.replace(words, GAP)} of", inner), text
    return Proj(one.relation, inner), text


def describe(one: Statement, statements: Statements) -> str:
    """Return a noun phrase for the subject of a description, or an empty string."""
    subject = statements.all_subjects.get(one.subject)
    if subject is None or not (subject.is_person or subject.kind):
        return ""
    is_a = re.match(r"(?:is|was) (?:an?|the) (.+)", one.value)
    if is_a and not re.search(r"\band (?:is|was|has|had)\b", is_a[1]):
        return f"the {is_a[1]}"
    if subject.is_person:
        return f"the person who {one.value}"
    return f"the {subject.kind} that {one.value}"
