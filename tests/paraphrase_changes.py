"""Paraphrases by seed that ask something else, and those that do not; see `paraphrase_examples`."""

import random
import re
from dataclasses import replace
from typing import NamedTuple

from drlib.synthesis.clues import known_by
from drlib.synthesis.engine import synthesize_questions
from drlib.synthesis.proven import word_question
from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    canonical,
    constants,
    evaluate_query,
    from_text,
    substitute,
    to_text,
    walk,
)
from drlib.synthesis.read_back import grammar_of
from drlib.synthesis.rewriting import same_question
from drlib.task import Task
from tests.paraphrase_examples import WAYS, Speaker

SIBLINGS = {
    "official language": "regional language",
    "regional language": "widely spoken language",
    "widely spoken language": "official language",
    "currency": "former currency",
    "former currency": "currency",
    "currency start year": "currency end year",
    "currency end year": "currency start year",
    "introduction year": "withdrawal year",
    "withdrawal year": "introduction year",
    "first weekday": "first weekend day",
    "first weekend day": "first weekday",
    "parameter": "raised exception",
    "raised exception": "parameter",
    "imported module": "part",
    "subclass": "raised exception",
}


class Paraphrase(NamedTuple):
    """`text` for the question of `task`; `kind`: "faithful", or how its meaning was changed."""

    world: str
    task: Task
    text: str
    kind: str


# ------------------------------------------------------------------------- what changes a meaning


def less(query, world, rng):
    """A condition dropped."""
    spots = [part for part in walk(query) if isinstance(part, And)]
    if not spots:
        return None
    spot = rng.choice(spots)
    rest = list(spot.parts)
    rest.remove(rng.choice(rest))
    return substitute(query, spot, And(tuple(rest)) if len(rest) > 1 else rest[0])


def more(query, world, rng):
    """A condition added."""
    (answer,) = evaluate_query(query, world.graph)
    new = [row[0] for row in known_by(answer, world.graph) if row[0].of not in constants(query)]
    new = [part for part in new if part.relation.removesuffix(" of") in WAYS]
    return And((query, rng.choice(new))) if new and not isinstance(query, Count) else None


def sibling(query, world, rng):
    """A constant for another of its kind."""
    name = rng.choice(constants(query))
    others = [
        t for t in world.graph.kinds[world.graph.nodes[name].kind] if t not in constants(query)
    ]
    if name.isdigit():
        return substitute(query, name, str(int(name) + rng.choice((-1, 1))))
    return substitute(query, name, rng.choice(others))


def denied(query, world, rng):
    """A "not" added: what was a condition is an exception."""
    spots = [part for part in walk(query) if isinstance(part, And)]
    if not spots:
        return None
    spot = rng.choice(spots)
    gone = rng.choice(spot.parts)
    rest = [part for part in spot.parts if part != gone]
    left = And(tuple(rest)) if len(rest) > 1 else rest[0]
    return substitute(query, spot, Diff(left, gone))


def changed(query, rng, kind, change):
    """`query` with `change` done to one part of a kind."""
    spots = [part for part in walk(query) if isinstance(part, kind)]
    spots = [(part, new) for part in spots if (new := change(part)) is not None]
    return substitute(query, *rng.choice(spots)) if spots else None


def flipped(part: Extreme):
    return replace(part, most=not part.most)


def moved(part: Range, rng):
    step = rng.choice((-1, 1))
    return rng.choice((replace(part, low=part.low + step), replace(part, high=part.high + step)))


def other_relation(part: Proj):
    """The relation for another, and what shares its values for what shares those of the other."""
    relation, of = part.relation.removesuffix(" of"), part.of
    back, new = part.relation.endswith(" of"), SIBLINGS.get(relation)
    if new is None:
        return None
    if back and isinstance(of, Proj) and of.relation == relation:
        of = Proj(new, of.of)
    return Proj(f"{new} of" if back else new, of)


def turned(part: Proj):
    relation = part.relation.removesuffix(" of")
    if relation not in ("imported module", "subclass") or not isinstance(part.of, str):
        return None
    return Proj(relation if part.relation.endswith(" of") else f"{relation} of", part.of)


CHANGES = {
    "condition dropped": less,
    "condition added": more,
    "constant swapped": sibling,
    "not added": denied,
    "or to and": lambda q, w, r: changed(q, r, Or, lambda p: And(tuple(p.parts))),
    "and to or": lambda q, w, r: changed(q, r, And, lambda p: Or(p.parts)),
    "superlative dropped": lambda q, w, r: changed(q, r, Extreme, lambda p: p.of),
    "superlative flipped": lambda q, w, r: changed(q, r, Extreme, flipped),
    "range widened": lambda q, w, r: changed(q, r, Range, lambda p: replace(p, low=p.low - 10)),
    "range shifted": lambda q, w, r: changed(q, r, Range, lambda p: moved(p, r)),
    "relation changed": lambda q, w, r: changed(q, r, Proj, other_relation),
    "relation turned": lambda q, w, r: changed(q, r, Proj, turned),
    "exception dropped": lambda q, w, r: changed(q, r, Diff, lambda p: p.left),
    "exception required": lambda q, w, r: changed(q, r, Diff, lambda p: And((p.left, p.right))),
    "asked otherwise": lambda q, w, r: q.of if isinstance(q, Count) else Count(q),
}


def told_name(task: Task, world, rng, step: bool) -> str | None:
    """A name that must not be told: of the answer, or of a single thing on the way."""
    query = from_text(task.query)
    if not step:
        return task.answer
    sets = [evaluate_query(p, world.graph) for p in walk(query) if not isinstance(p, str)]
    found = sorted({next(iter(s)) for s in sets if len(s) == 1} - {task.answer})
    return rng.choice(found) if found else None


def perturbed(task: Task, world, rng, kind: str) -> str | None:
    """A text that does not ask the question of `task`; None: it has no such change."""
    speaker, query = Speaker(world, rng), from_text(task.query)
    if kind in ("hidden step named", "answer named"):
        name = told_name(task, world, rng, kind == "hidden step named")
        hint = rng.choice((" Think of {x}.", " The clue is {x}.", " It has to do with {x}."))
        return speaker.text(query) + hint.format(x=name) if name else None
    if kind == "share changed":
        text = speaker.text(query)
        new = re.sub("5%|five percent", rng.choice(("15%", "50%", "4%")), text)
        return new if new != text else None
    if kind == "bound turned":
        text = speaker.text(query)
        new = re.sub("at least (5|five)", r"at most \1", text).replace("5% or more", "5% or less")
        return new if new != text else None
    if kind == "or said and":
        text = speaker.text(query)
        new = re.sub(" or (?!more)", " and ", text.replace("either ", "both "))
        return new if any(isinstance(p, Or) for p in walk(query)) else None
    new = CHANGES[kind](query, world, rng)
    if new is None or same_question(new, query):
        return None
    if kind == "relation changed" and not evaluate_query(new, world.graph):
        return None  # a parameter that is raised
    return speaker.text(new)


KINDS = (
    *CHANGES,
    "hidden step named",
    "answer named",
    "share changed",
    "bound turned",
    "or said and",
)


def tasks_of(world, n: int, seed: int) -> list[Task]:
    """`n` questions of the engine, and from them some with a range and some that count."""
    tasks = [
        t
        for t in synthesize_questions(world, n, f"paraphrased-{seed}", max_share=0.2)
        if says_all(t.query)
    ]
    graph, grammar = world.graph, grammar_of(world.graph, world.scheme)
    more_tasks = []
    for number, task in enumerate(tasks[: n // 3]):
        query = from_text(task.query)
        years = sorted(graph.values(task.answer, "currency start year"))
        low = int(years[0]) // 10 * 10 if years else 0
        span = (low, low + 9) if number % 2 else (low + 2, low + 11)
        ranged = And((query, Range("currency start year", *span)))
        new = canonical(ranged) if years and evaluate_query(ranged, graph) else Count(query)
        (answer,) = evaluate_query(new, graph)
        text = word_question(new, grammar, "which")
        if text:
            made = replace(task, query=to_text(new), question=text, answer=answer)
            more_tasks.append(replace(made, aliases=() if answer != task.answer else task.aliases))
    return tasks + more_tasks


def says_all(text: str) -> bool:
    """Whether `WAYS` has words for all relations of a query."""
    parts = [part for part in walk(from_text(text)) if hasattr(part, "relation")]
    return all(part.relation.removesuffix(" of") in WAYS for part in parts)


def paraphrases(world, name: str, tasks, n: int, seed: int) -> list[Paraphrase]:
    """`n` faithful and `n` perturbed texts, kinds in turn as far as the questions have them."""
    rng = random.Random(f"paraphrases-{name}-{seed}")
    found = []
    for number in range(n):
        task = tasks[number % len(tasks)]
        text = Speaker(world, rng).text(from_text(task.query))
        found.append(Paraphrase(name, task, text, "faithful"))
    number = tries = 0
    while number < n:
        kind = KINDS[(number + tries) % len(KINDS)]
        text = perturbed(task := rng.choice(tasks), world, rng, kind)
        if text is None:
            tries += 1
            continue
        found.append(Paraphrase(name, task, text, kind))
        number += 1
    return found
