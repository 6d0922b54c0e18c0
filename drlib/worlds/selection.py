"""Select a small world from any world with a graph, for a tiny policy.

A large world has multi-valued relations, titles of any length, and more words than a small
tokenizer can represent. `select` keeps what a chain of hops needs: on each page the relations with
exactly one value, under names that can be asked for ("What is the *territory* of Norwegian
Krone?"), and as many pages as the tokenizer can name. A page is kept with everything that its facts
lead to, so no chain ends at the border of the selection. Pages from which chains of one, two and
three hops start alternate. Omitted facts are counted.

An inverse relation is named after the kind of its values ("currency of" is a "territory"). In a
folder a page is named by its heading and a table row by its first cell. A page and rows with one
name are one entity, and a value equal to such a name links to it. A dotted name is shortened while
it stays unique: `HTMLParser` instead of `html.parser.HTMLParser`. A small policy copies a name by
looking up its last word in the context, and names with equal beginnings mislead it.

Not included: relations that describe the structure of a folder, values contained in the title (the
module of `json.loads`), multi-valued relations, and the texts of pages.
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

# structure of a folder, no knowledge
STRUCTURE = ("link", "section", "heading", "table", "mentioned in")
KINDS = ("kind", "type", "category")  # relations whose value is a more specific kind than "page"
# relation -> name of its inverse, if a kind would be too vague
BACKWARDS = {"subclass": "base class"}
MAX_HOPS = 3
MAX_FACTS = 5  # per page, forward facts first: a search shows them on one line
MAX_PIECES = 12  # per title or value, which are read, written and searched for
MIN_CHAINS = 24  # per number of hops, the minimum for training
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
PIECE = re.compile(r"[^\W\d_]+ ?|\d|[^\w\s] ?|_")  # approximates the tokenizer on names
REMEDY = (
    "Facts of a folder come from front matter (`capital: Norwich`) and from tables with a header "
    "(a row is an entity, a column a relation), or, with an endpoint, from sentences. A value that "
    "equals the heading of another page links to it."
)


class Selection(NamedTuple):
    """A small world and its share of the large one.

    Args:
        world: the small world.
        candidates: pages of the large world with at least one usable fact.
        left_out: reason -> number of facts (too long a name, too rare a relation).
    """

    world: SmallWorld
    candidates: int  # pages of the large world that have a fact to ask for
    left_out: dict[str, int]  # why -> facts: too long a name, or too rare a relation


def select(
    world: World, pages: int, pieces: float, relations: int | None = None, seed: int = 0
) -> Selection:
    """Select a small world.

    Args:
        world: any world with a graph.
        pages: largest number of pages.
        pieces: largest number of different name pieces, a bound for the tokenizer.
        relations: largest number of relations, the most frequent first; None: all.
        seed: equal arguments give an equal selection.

    Raises:
        ValueError: the world has no graph or too few chains of hops; the message contains the
            remedy.
    """
    graph = world.graph
    if graph is None or not graph.facts:
        raise ValueError(
            f"world {world.name!r} has no facts, from which questions are made. {REMEDY}"
        )
    entities, left_out = _entities(graph, relations)

    # Add a page only together with everything that its facts lead to.
    kept: dict[str, Entity] = {}
    known: set[str] = set()
    for title in _order_by_depth(entities, random.Random(f"selection-{seed}")):
        group = _reachable(title, entities, kept)
        needed = {piece for entity in group.values() for piece in _pieces(entity)}
        if len(kept) + len(group) <= pages and len(known | needed) <= pieces:
            kept |= group
            known |= needed

    small = SmallWorld(kept.values(), world.name, scheme=world.scheme)
    for hops, found in enumerate(_chains(kept), 1):
        if found < MIN_CHAINS:
            raise ValueError(
                f"world {world.name!r} has {len(kept)} pages with single-valued facts and "
                f"{found} chains of {hops} hops; {MIN_CHAINS} are needed. {REMEDY}"
            )
    return Selection(small, len(entities), dict(left_out))


# ------------------------------------------------------------------------------ pages with facts


def _entities(graph: Graph, most: int | None) -> tuple[dict[str, Entity], Counter[str]]:
    """Return every page with its single-valued facts by name, and counts of omitted facts.

    most: number of relations to keep, the most frequent first.
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

    # Keep frequent relations: a small policy cannot distinguish relations it has rarely seen.
    # Facts with a linked value weigh 1.5 times as much, because they form chains.
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
    """Map name -> kind; if a page and table rows share a name, the page's kind."""
    kinds: dict[str, str] = {}
    for title, name in names.items():
        if name not in kinds or graph.nodes[title].kind == "page":
            kinds[name] = _kind(title, graph)
    return kinds


def _values(
    graph: Graph, names: Mapping[str, str]
) -> tuple[dict[str, dict[str, set[str]]], dict[str, set[str]]]:
    """Return (name -> relation -> all its values, name -> inverse relations)."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    backwards: dict[str, set[str]] = defaultdict(set)
    for title, name in names.items():
        for relation in graph.relations.get(title, ()):
            for value in graph.values(title, relation):
                shown_relation = _relation_name(relation, title, value, graph)
                if shown_relation and (value in names or graph.is_value(value)):
                    found[name][shown_relation].add(names.get(value, value))
                    if relation.endswith(" of"):
                        backwards[name].add(shown_relation)
    return found, backwards


def _names(graph: Graph) -> dict[str, str]:
    """Map titles to names: heading or first cell in a folder, else the title.

    Values that equal a name are included. A heading of several pages or sections ("History") names
    none of them.
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
    """Map dotted title -> its shortest unique suffix."""
    ends = {title: _ends(title) for title in titles}
    known = Counter(end for some in ends.values() for end in some)
    return {
        title: next((end for end in some if known[end] == 1), title)
        for title, some in ends.items()
        if len(some) > 1
    }


def _ends(title: str) -> list[str]:
    """Return `c`, `b.c` and `a.b.c` of a dotted name, or the title itself."""
    if not DOTTED.fullmatch(title):
        return [title]
    parts = title.split(".")
    return [".".join(parts[at:]) for at in reversed(range(len(parts)))]


def _kind(title: str, graph: Graph) -> str:
    """Return the kind of a node: as its page states, or that of the graph."""
    page_kinds = [value.casefold() for relation in KINDS for value in graph.values(title, relation)]
    return (
        page_kinds[0]
        if len(page_kinds) == 1 and page_kinds[0] != VALUE
        else graph.nodes[title].kind
    )


def _relation_name(relation: str, title: str, value: str, graph: Graph) -> str:
    """Return the name of a fact on a page; "" if it is not used in questions."""
    base = relation.removesuffix(" of")
    if base in STRUCTURE or base in KINDS:
        return ""
    if relation == base:
        # a column header such as "First lit" is used inside a question
        return base if base[1:2].isupper() else base[:1].lower() + base[1:]
    if base in BACKWARDS:
        return BACKWARDS[base]
    name = _kind(value, graph)
    # "the person of a person" would be unclear
    is_unclear = name in (VALUE, _kind(title, graph)) or name in graph.relations[title]
    return "" if is_unclear else name


# ------------------------------------------------------------------------------ which are kept


def _order_by_depth(entities: Mapping[str, Entity], rng: random.Random) -> list[str]:
    """Return titles in order of selection.

    Pages from which chains of three, two and one hops start alternate. Within these the order is
    random, but each end of a chain is used once before it is used again, so that answers differ.
    """
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
    """Return the values on a longest chain from `title`, at most `limit` of them."""
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
    """Return the page and everything its facts lead to, except pages already kept."""
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
    """Count the chains of 1, 2 and 3 hops that visit no page twice."""
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
