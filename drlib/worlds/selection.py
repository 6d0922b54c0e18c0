"""A small world out of any world with a graph: what a tiny policy can be asked about.

A large world has relations with many values, titles of any length, and more words than a small
tokenizer has pieces. `select` keeps what a chain of look-ups needs: of each page the relations that
have exactly one value there, under names that can be asked for ("What is the *territory* of
Norwegian Krone?"), and of the pages as many as the tokenizer can name. A page is kept with all that
its facts lead to, so no chain ends where the selection does; pages from which chains of one, two
and three look-ups start come in turn. What is left out is counted.

A relation read backwards is called by the kind of its values ("currency of" is a "territory"). In a
folder a page is called by its heading and a row of a table by its first cell; a page and rows of
one name are one entity, and a value that is such a name is a link to it. What has a dotted name is
called as people call it who know where they are: `HTMLParser`, not `html.parser.HTMLParser`, as far
as that names one thing only. A small policy copies a name by looking where its last word stood
before, and names that begin alike lead it astray.

Left out: relations that say how a folder is built, values that stand in the title (the module of
`json.loads`), whatever has several values, and the pages' texts.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import NamedTuple

from drlib.worlds.graph import VALUE, Graph
from drlib.worlds.small import Entity, SmallWorld
from drlib.worlds.world import World

STRUCTURE = ("link", "section", "heading", "table", "mentioned in")  # of a folder: no knowledge
KINDS = ("kind", "type", "category")  # relations whose value is a better kind than "page"
BACKWARDS = {"subclass": "base class"}  # relation -> its name backwards, if a kind says too little
MAX_HOPS = 3
MAX_FACTS = 5  # of a page, its own before those read backwards: a search shows them on one line
MAX_PIECES = 12  # of a title or value: it is read, written and searched for
MIN_CHAINS = 24  # of each number of look-ups; with fewer there is nothing to train on
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
PIECE = re.compile(r"[^\W\d_]+ ?|\d|[^\w\s] ?|_")  # about what the tokenizer makes of a name
REMEDY = (
    "Facts of a folder come from front matter (`capital: Norwich`) and from tables with a header "
    "(a row is a thing, a column a relation), or, with an endpoint, from sentences; a value that "
    "is the heading of another page leads on to it."
)


class Selection(NamedTuple):
    """A small world, and how much of the large one it is."""

    world: SmallWorld
    candidates: int  # pages of the large world that have a fact to ask for
    left_out: dict[str, int]  # why -> facts: too long a name, or too rare a relation


def select(
    world: World, pages: int, pieces: int, relations: int | None = None, seed: int = 0
) -> Selection:
    """At most `pages` pages of `world`, whose names need at most `pieces` different pieces, with
    facts of at most `relations` relations; the same arguments give the same selection.

    ValueError: the world has no graph, or no chains of look-ups; it says what is missing.
    """
    graph = world.graph
    if graph is None or not graph.facts:
        raise ValueError(
            f"world {world.name!r} has texts and no facts, and questions are made from facts. "
            f"{REMEDY}"
        )
    entities, left_out = _entities(graph, relations)

    # What fits is taken whole: a page with all that its facts lead to, or nothing.
    kept: dict[str, Entity] = {}
    known: set[str] = set()
    for title in _in_turn(entities, random.Random(f"selection-{seed}")):
        group = _reachable(title, entities, kept)
        needed = {piece for entity in group.values() for piece in _pieces(entity)}
        if len(kept) + len(group) <= pages and len(known | needed) <= pieces:
            kept |= group
            known |= needed

    small = SmallWorld(kept.values(), world.name, scheme=world.scheme)
    for hops, found in enumerate(_chains(kept), 1):
        if found < MIN_CHAINS:
            raise ValueError(
                f"world {world.name!r} has {len(kept)} pages with facts that have one value, and "
                f"{found} chains of {hops} look-ups; {MIN_CHAINS} are needed. {REMEDY}"
            )
    return Selection(small, len(entities), dict(left_out))


# ------------------------------------------------------------------------------ pages with facts


def _entities(graph: Graph, most: int | None) -> tuple[dict[str, Entity], Counter[str]]:
    """Every page with its facts of one value, by name; and how many facts were left out, why.

    most: how many relations there are at all, the most frequent.
    """
    names = _names(graph)
    kinds = _kinds(graph, names)
    found, backwards = _values(graph, names)
    left_out = Counter(facts_with_long_names=0)
    facts: dict[str, dict[str, str]] = {}
    for name, relations in sorted(found.items()):
        facts[name] = {}
        own_first = sorted(relations.items(), key=lambda row: (row[0] in backwards[name], row))
        for relation, values in own_first:
            value = min(values)
            is_given_away = value.casefold() in name.casefold()
            if len(values) > 1 or is_given_away:
                continue
            if max(len(PIECE.findall(text)) for text in (name, value)) > MAX_PIECES:
                left_out["facts_with_long_names"] += 1
            else:
                facts[name][relation] = value

    # Relations are words, too: what a small policy has seen a few times it does not tell apart.
    # A fact that leads on counts half as much again, for chains are made of them.
    uses: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for some in facts.values():
        uses.update(some.keys())
        weights.update({relation: 3 if facts.get(value) else 2 for relation, value in some.items()})
    kept = sorted(weights, key=lambda relation: (-weights[relation], relation))[:most]
    rare = uses.keys() - kept
    left_out["facts_of_rare_relations"] = sum(uses[relation] for relation in rare)

    entities = {}
    for name, some in facts.items():
        shown = [(relation, value) for relation, value in some.items() if relation in kept]
        if shown:
            entities[name] = Entity(name, kinds[name], dict(shown[:MAX_FACTS]))
    return entities, left_out


def _kinds(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """Name -> kind; where a page and rows of tables share a name, the page's."""
    kinds: dict[str, str] = {}
    for title, name in names.items():
        if name not in kinds or graph.nodes[title].kind == "page":
            kinds[name] = _kind(title, graph)
    return kinds


def _values(
    graph: Graph, names: Mapping[str, str]
) -> tuple[dict[str, dict[str, set[str]]], dict[str, set[str]]]:
    """(name -> relation as it is asked for -> all its values, name -> relations read backwards)."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    backwards: dict[str, set[str]] = defaultdict(set)
    for title, name in names.items():
        for relation in graph.relations.get(title, ()):
            for value in graph.values(title, relation):
                asked = _asked(relation, title, value, graph)
                if asked and (value in names or graph.is_value(value)):
                    found[name][asked].add(names.get(value, value))
                    if relation.endswith(" of"):
                        backwards[name].add(asked)
    return found, backwards


def _names(graph: Graph) -> dict[str, str]:
    """What the nodes with pages are called: in a folder by heading and first cell, else by title;
    and the values that are, letter by letter, such a name.

    A heading that several pages or sections have ("History") names none of them.
    """
    wanted: dict[str, list[str]] = defaultdict(list)
    names = {}
    short = _short_names(graph.nodes)
    for title, node in graph.nodes.items():
        headings = graph.values(title, "heading")
        if graph.values(title, "table"):
            names[title] = node.aliases[0]
        elif headings:
            wanted[min(headings)].append(title)
        elif node.kind != VALUE:
            names[title] = short.get(title, title)
    for heading, titles in wanted.items():
        of_pages = [title for title in titles if graph.nodes[title].kind == "page"]
        alone = of_pages if len(of_pages) == 1 else titles
        if len(alone) == 1:
            names[alone[0]] = heading
    called = {*names.values()}
    linked = [title for title in graph.nodes if graph.is_value(title) and title in called]
    return names | {title: title for title in linked}


def _short_names(titles: Iterable[str]) -> dict[str, str]:
    """Dotted title -> its shortest end that is no other title and no end of another one."""
    ends = {title: _ends(title) for title in titles}
    known = Counter(end for some in ends.values() for end in some)
    return {
        title: next((end for end in some if known[end] == 1), title)
        for title, some in ends.items()
        if len(some) > 1
    }


def _ends(title: str) -> list[str]:
    """`c`, `b.c` and `a.b.c` of a dotted name; of any other the title itself."""
    if not DOTTED.fullmatch(title):
        return [title]
    parts = title.split(".")
    return [".".join(parts[at:]) for at in reversed(range(len(parts)))]


def _kind(title: str, graph: Graph) -> str:
    """The kind of a node: what its page says, or that of its graph."""
    told = [value.casefold() for relation in KINDS for value in graph.values(title, relation)]
    return told[0] if len(told) == 1 and told[0] != VALUE else graph.nodes[title].kind


def _asked(relation: str, title: str, value: str, graph: Graph) -> str:
    """The name of a fact on a page; "" where nobody asks for it."""
    base = relation.removesuffix(" of")
    if base in STRUCTURE or base in KINDS:
        return ""
    if relation == base:
        # "First lit" stands over a column: here it comes into the middle of a question
        return base if base[1:2].isupper() else base[:1].lower() + base[1:]
    if base in BACKWARDS:
        return BACKWARDS[base]
    name = _kind(value, graph)
    # "The person of a person" would tell nobody what is meant
    is_unclear = name in (VALUE, _kind(title, graph)) or name in graph.relations[title]
    return "" if is_unclear else name


# ------------------------------------------------------------------------------ which are kept


def _in_turn(entities: Mapping[str, Entity], rng: random.Random) -> list[str]:
    """The titles in the order in which they are tried: one from which chains of three look-ups
    start, one of two, one of one, and again; within these by lot, but one for each end of a chain
    before another for the same end, so that answers differ."""
    by_depth: dict[int, list[tuple[int, str]]] = {hops: [] for hops in range(MAX_HOPS, 0, -1)}
    earlier: Counter[tuple[int, str]] = Counter()
    for title in rng.sample(sorted(entities), len(entities)):
        longest = _longest_chain(title, entities, MAX_HOPS)
        hops, end = len(longest), longest[-1]
        by_depth[hops].append((earlier[hops, end], title))
        earlier[hops, end] += 1
    ordered = [
        [title for _, title in sorted(some, key=lambda row: row[0])] for some in by_depth.values()
    ]
    turns = zip_longest(*ordered)
    return [title for turn in turns for title in turn if title is not None]


def _longest_chain(title: str, entities: Mapping[str, Entity], limit: int) -> tuple[str, ...]:
    """The values on a longest chain of look-ups from `title`, at most `limit` of them."""
    if title not in entities or limit == 0:
        return ()
    chains = [
        (value, *_longest_chain(value, entities, limit - 1))
        for value in entities[title].facts.values()
    ]
    return max(chains, key=len)


def _reachable(
    title: str, entities: Mapping[str, Entity], kept: Mapping[str, Entity]
) -> dict[str, Entity]:
    """The page and all that its facts lead to, but for what is kept already."""
    group: dict[str, Entity] = {}
    todo = [title]
    while todo:
        here = todo.pop()
        if here in entities and here not in group and here not in kept:
            group[here] = entities[here]
            todo += entities[here].facts.values()
    return group


def _pieces(entity: Entity) -> set[str]:
    texts = (entity.title, *entity.facts.values())
    return {piece for text in texts for piece in PIECE.findall(text)}


def _chains(entities: Mapping[str, Entity]) -> list[int]:
    """How many chains of 1, 2 and 3 look-ups there are that meet no page twice."""
    found = []
    paths = [(title,) for title in entities]
    for _ in range(MAX_HOPS):
        paths = [
            (*path, value)
            for path in paths
            if path[-1] in entities
            for value in entities[path[-1]].facts.values()
            if value not in path
        ]
        found.append(len(paths))
    return found
