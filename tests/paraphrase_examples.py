"""Paraphrases by seed: questions said in other words, and questions that say something else.

A faithful text says the task's query by rules of its own: other verbs for each relation (`WAYS`),
other frames, other orders of the conditions, spans and shares in other words. A perturbed text says
another query in the same free way (a condition less, a constant of the same kind, a range moved by
one, "and" for "or", ..), or the same query with a name that must not be told. No list of the guard
is used here, and none of these is used there.

The same hand wrote guard and rules, so what the guard says of them is an upper bound;
tests/paraphrases_held_out.jsonl was written freely before there was a guard.
"""

import random
import re

from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    evaluate_query,
)
from drlib.synthesis.read_back import grammar_of

# relation: (noun of a value; of a thing with {x}; of a value whose thing is {x})
WAYS = {
    "currency": (
        "currency",
        ("pays with {x}", "has {x} as its currency", "uses {x} as money"),
        ("used in {x}", "that people in {x} pay with", "in use in {x}"),
    ),
    "former currency": (
        "former currency",
        ("once used {x}", "previously used {x}", "used {x} in former times"),
        ("formerly in use in {x}", "that {x} used previously"),
    ),
    "currency start year": (
        "year of adopting the present currency",
        ("took up its present currency in {x}", "adopted the currency it uses today in {x}"),
        ("in which {x} adopted the currency it has now", "when {x} adopted its current currency"),
    ),
    "currency end year": (
        "year of giving up a currency",
        ("abandoned a currency in {x}", "stopped using a currency in {x}"),
        ("in which {x} abandoned a currency", "when a currency was given up in {x}"),
    ),
    "official language": (
        "official language",
        ("has {x} as an official language", "gives {x} official status"),
        ("that is official in {x}", "with official status in {x}"),
    ),
    "regional language": (
        "regional official language",
        ("has a region where {x} is official", "gives {x} official status in one of its regions"),
        ("official in one of the regions of {x}", "that is regionally official in {x}"),
    ),
    "widely spoken language": (
        "language that at least 5% of the people speak",
        (
            "has at least 5% of its people speaking {x}",
            "is where 5% or more of the people speak {x}",
        ),
        (
            "which no fewer than 5% of the people in {x} speak",
            "that at least five percent of {x}'s people speak",
        ),
    ),
    "time zone": (
        "time zone",
        ("is at least partly in {x}", "observes {x} somewhere"),
        ("observed in {x}", "that is kept in {x}"),
    ),
    "clock time": (
        "clock time",
        ("keeps {x}", "runs on {x}"),
        ("kept in {x}", "that {x} follows"),
    ),
    "first weekday": (
        "first day of the week",
        ("starts its week on {x}", "has {x} as the first day of its week"),
        ("with which the week starts in {x}", "that opens the week in {x}"),
    ),
    "first weekend day": (
        "first day of the weekend",
        ("starts its weekend on {x}", "has its weekend from {x} on"),
        ("with which the weekend starts in {x}",),
    ),
    "script": (
        "script",
        ("is written with {x}", "uses {x} as its script"),
        ("in which {x} is written", "that {x} is written with"),
    ),
    "likely territory": (
        "likeliest home",
        ("is most likely at home in {x}", "most likely has its home in {x}"),
        ("where {x} is most likely at home", "that is the most likely home of {x}"),
    ),
    "introduction year": (
        "year of introduction",
        ("was brought in in {x}", "came into circulation in {x}"),
        ("that saw {x} introduced", "in which {x} was brought in"),
    ),
    "withdrawal year": (
        "year of withdrawal",
        ("was taken out of circulation in {x}", "was phased out in {x}"),
        ("that saw {x} withdrawn", "in which {x} was phased out"),
    ),
    "number of decimals": ("number of decimals", ("has {x} decimals",), ("of decimals of {x}",)),
    "parameter": (
        "parameter name",
        ("takes a parameter called {x}", "has {x} as a parameter"),
        ("that a parameter of {x} has", "of one of the parameters of {x}"),
    ),
    "number of parameters": (
        "number of parameters",
        ("has {x} as its number of parameters",),
        ("of parameters that {x} has",),
    ),
    "method": ("method", ("is where {x} is defined",), ("which {x} defines",)),
    "function": (
        "function",
        ("has {x} at its top level", "has the function {x}"),
        ("among the functions of {x}",),
    ),
    "class": ("class", ("is where {x} is declared",), ("that {x} declares",)),
    "exception": (
        "exception",
        ("has {x} as an exception of its own",),
        ("that is an exception of {x}",),
    ),
    "subclass": (
        "direct subclass",
        ("is the direct base of {x}", "is what {x} directly extends"),
        ("that directly extends {x}", "that is a direct subclass of {x}"),
    ),
    "raised exception": (
        "raised exception",
        ("can raise {x}", "throws {x}"),
        ("that {x} can raise", "thrown by {x}"),
    ),
    "imported module": (
        "imported module",
        ("has an import of {x}", "imports {x}"),
        ("that {x} imports", "imported by {x}"),
    ),
    "part": ("part", ("has {x} inside it", "contains {x}"), ("inside {x}", "contained in {x}")),
}
FRAMES = (
    "Which {noun} {verbs}?",
    "Could you tell me which {noun} {verbs}?",
    "I'm thinking of a {noun} that {verbs}. Which one is it?",
    "There's exactly one {noun} that {verbs}. What's it called?",
    "Please name the {noun} that {verbs}.",
)
COUNTS = ("How many {noun}s {verbs}?", "Count the {noun}s that {verbs}.")


class Speaker:
    """Says queries of one world in words drawn from `rng`."""

    def __init__(self, world, rng: random.Random):
        self.graph, self.rng = world.graph, rng
        self.book = grammar_of(world.graph, world.scheme).book
        self.source = self.book.source

    def text(self, query) -> str:
        """The whole question."""
        asked = query.of if isinstance(query, Count) else query
        frames = COUNTS if isinstance(query, Count) else FRAMES
        said = self.rng.choice(frames).format(noun=self.noun(asked), verbs=self.verbs(asked))
        if not self.source:
            return said
        lower = said if said.startswith("I'm") else said[0].lower() + said[1:]
        leads = (
            f"According to Unicode CLDR, {lower}",
            f"Going by Unicode CLDR, {lower}",
            f"{said[:-1]}, according to Unicode CLDR{said[-1]}",
        )
        return self.rng.choice(leads)

    def noun(self, query) -> str:
        kinds = {self.graph.nodes[t].kind for t in evaluate_query(query, self.graph)}
        if len(kinds) == 1 and "value" not in kinds:
            return kinds.pop()
        inner = query
        while isinstance(inner, And | Diff | Extreme | Or):
            inner = (
                inner.parts[0]
                if isinstance(inner, And | Or)
                else getattr(inner, "left", None) or inner.of
            )
        relation = getattr(inner, "relation", "")
        if relation in WAYS:
            return WAYS[relation][0]
        options = self.graph.adjacent.get(relation.removesuffix(" of"), {})
        return self.graph.nodes[next(iter(options))].kind if options else "thing"

    def verbs(self, query) -> str:
        """What is said of the things of `query`, after "which ...": its conditions."""
        if isinstance(query, And):
            parts = [self.verbs(part) for part in self.rng.sample(query.parts, len(query.parts))]
            return self.rng.choice((" and ", " and also ", ", and ")).join(parts)
        if isinstance(query, Or):
            return "either " + " or ".join(map(self.verbs, query.parts))
        if isinstance(query, Diff):
            left = self.verbs(query.left)
            if isinstance(query.right, str):
                return f"{left} but isn't {self.name(query.right)}"
            first, second = self.verbs(query.right), self.verbs(query.right)
            return self.rng.choice(
                (
                    f"{left}, with the exception of any that {first}",
                    f"{left}, other than those of which it is true that it {second}",
                )
            )
        if isinstance(query, Range):
            return self.span(query)
        if isinstance(query, Extreme):
            return f"is {self.thing(query)}"
        if isinstance(query, Proj):
            return self.look_up(query)
        return f"is {self.name(query)}"

    def look_up(self, query: Proj) -> str:
        relation = query.relation.removesuffix(" of")
        noun, of_thing, of_value = WAYS[relation]
        if query.relation == relation:
            said = self.rng.choice(of_value).format(x=self.thing(query.of))
            said = (
                re.sub("^(that|which) ", "", said) if re.match("(that|which) is ", said) else said
            )
            return said if said.startswith("is ") else f"is the one {said}"
        of = query.of
        if isinstance(of, Proj) and of.relation == relation and self.rng.random() < 0.8:
            return f"shares {self.a(noun)} with {self.thing(of.of)}"
        return self.rng.choice(of_thing).format(x=self.thing(of))

    def thing(self, query) -> str:
        """A noun phrase for a thing on the way."""
        if isinstance(query, str):
            return self.name(query)
        if isinstance(query, Or) and all(isinstance(part, str) for part in query.parts):
            return " or ".join(map(self.name, self.rng.sample(query.parts, len(query.parts))))
        if isinstance(query, Extreme):
            return self.extreme(query)
        if isinstance(query, Proj) and query.relation in WAYS:
            said = self.rng.choice(WAYS[query.relation][2]).format(x=self.thing(query.of))
            return f"{self.rng.choice(('the', 'a'))} {self.noun(query)} {said}"
        return f"{self.rng.choice(('the', 'a'))} {self.noun(query)} that {self.verbs(query)}"

    def extreme(self, query: Extreme) -> str:
        noun = WAYS[query.relation][0]
        is_year = "year" in query.relation
        words = ("latest", "earliest") if is_year else ("largest", "smallest")
        word = words[0] if query.most else words[1]
        return f"the one with the {word} {noun} of all that {self.verbs(query.of)}"

    def span(self, query: Range) -> str:
        low, high = query.low, query.high
        ways = [f"from {low} to {high}", f"between {low} and {high}"]
        if low % 10 == 0 and high == low + 9:
            ways.append(f"during the {low}s")
        said = self.rng.choice(WAYS[query.relation][1])
        said = said.replace("in {x}", "{x}") if said.endswith("in {x}") else said
        return said.format(x=self.rng.choice(ways))

    def name(self, title: str) -> str:
        """A name with or without what tells its kind."""
        said = self.book.name(title)
        return self.rng.choice(
            (said, re.sub("^the (class|method|function|module|exception|time zone) ", "", said))
        )

    @staticmethod
    def a(noun: str) -> str:
        return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
