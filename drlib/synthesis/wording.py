"""Questions in English: a query of the algebra as one sentence, in several paraphrases.

Each node has its phrase, and a condition that stands inside another is in brackets wherever the
reader could attach it to the wrong noun: no conjunct is lost, and two queries do not read the same.
Words come from the graph: relation names ("currency", "currency of") and the kinds of nodes.
`names` lets a caller say a part in other words (`drlib.synthesis.obfuscation`).

A language model behind an OpenAI-compatible endpoint may say it better. It may also lie, so its
text is kept only if nothing that can be checked was lost or given away (WebShaper and WebSailor let
a model write the question and trust it). Left out: a check that no relation changed its meaning.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    constants,
    evaluate,
)
from drlib.worlds.graph import VALUE, Graph

FRAMES = (  # a question for one thing, a question for a number
    ("Which {kind} is the one {which}?", "How many {kinds} {which} are there?"),
    ("Find the {kind} {which}.", "Count the {kinds} {which}."),
    ("What is the name of the {kind} {which}?", "What is the number of {kinds} {which}?"),
    ("There is exactly one {kind} {which}. Name it.", "Give the number of {kinds} {which}."),
    ("I am looking for {a_kind} {which}. Which one is it?", "How many are the {kinds} {which}?"),
)
TEMPLATES = len(FRAMES)
STYLES = (  # R(x); the things whose R is x; the things whose R is something that ...
    ("that is {a} of {x}", "that has the {r} {x}", "that has {a} {x}"),
    ("that {x} has as {r}", "with the {r} {x}", "with {a} {x}"),  # of one thing or of many
)
RANKS = ("smallest", "largest")
PROMPT = (
    "Say this question in other words, as one paragraph. Keep every condition, every name and every"
    " number exactly. Do not answer it. Reply with the question alone.\n\n"
)


def render(
    query: Query, graph: Graph, template: int = 0, names: Mapping[Query, str] | None = None
) -> str:
    """`query` as an English question. template: 0..TEMPLATES - 1 (taken modulo TEMPLATES).

    names: texts for constants or unions of constants that stand in for their titles.
    """
    counted = isinstance(query, Count)
    writer = _Writer(graph, STYLES[counted or template % TEMPLATES % 2], names or {})
    kind, which = writer.kind(query), writer.which(query.of if counted else query)
    return FRAMES[template % TEMPLATES][counted].format(
        kind=kind, kinds=plural(kind), a_kind=article(kind), which=which
    )


class _Writer(NamedTuple):
    graph: Graph
    style: tuple[str, str, str]
    names: Mapping[Query, str]

    def kind(self, query: Query) -> str:
        """The noun for the answers of `query`: their one kind, else the relation, else "thing"."""
        inner = query.of if isinstance(query, Count | Extreme) else query
        nodes = [self.graph.nodes.get(title) for title in evaluate(inner, self.graph)]
        kinds = {node.kind if node else VALUE for node in nodes}
        if kinds == {VALUE} and isinstance(inner, Proj):
            return inner.relation.removesuffix(" of")
        return kinds.pop() if len(kinds) == 1 else "thing"

    def which(self, query: Query, alone: bool = True) -> str:
        """`query` as a clause ("that has the currency Euro"); not `alone`: others stand beside."""
        match query:
            case Proj(relation, of):
                r, back, x = relation.removesuffix(" of"), relation.endswith(" of"), self.named(of)
                form = self.style[back if x else 2 * back]
                if not x:
                    x = self.part(of, True, not alone or not back and self.style is STYLES[1])
                    x = x if back else f"{article(self.kind(of))} {x}"
                return form.format(r=r, a=article(r), x=x)
            case And(parts) | Or(parts):
                return (" and ", " or ")[isinstance(query, Or)].join(map(self.part, parts))
            case Diff(left, right):
                return f"{self.part(left)}, except any {self.part(right)}"
            case Range(relation, low, high):
                return f"with {article(relation)} {span(low, high)}"
            case Extreme(relation, of, most):
                ranks = ("earliest", "latest") if relation.endswith("year") else RANKS
                which = self.which(of) if alone else f"({self.which(of)})"
                return f"with the {ranks[most]} {relation} of any {self.kind(of)} {which}"
        return f"that is {self.named(query)}"

    def part(self, query: Query, alone: bool = False, brackets: bool = False) -> str:
        """A clause that stands beside others, or inside one; in brackets if that can be misread."""
        text = self.which(query, alone)
        return f"({text})" if brackets or isinstance(query, And | Or | Diff) else text

    def named(self, query: Query) -> str:
        """The text of what is named or counted, not described; "" for the rest."""
        if isinstance(query, Or):
            texts = [self.named(part) for part in query.parts]
            return self.names.get(query) or (" or ".join(texts) if all(texts) else "")
        if isinstance(query, Count):
            return f"(the number of {plural(self.kind(query))} {self.which(query.of)})"
        return self.names.get(query, query) if isinstance(query, str) else ""


def article(noun: str) -> str:
    """`noun` with "a" or "an" before it."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def plural(noun: str) -> str:
    """`territory` -> `territories`, `class` -> `classes`, `script` -> `scripts`."""
    noun = re.sub("(?<![aeiou])y$", "ie", noun)
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def span(low: int, high: int) -> str:
    """The whole numbers low..high in words; thirds of a decade as WebSailor names them."""
    parts = {(0, 9): "", (0, 3): "early ", (4, 6): "mid ", (7, 9): "late "}
    part = parts.get((low - low // 10 * 10, high - low // 10 * 10))
    if part is not None and 1000 <= low <= 2100:
        return f"in the {part}{low // 10 * 10}s"
    if low == 0:
        return f"of less than {high + 1}"
    return f"of {low}" if low == high else f"between {low} and {high}"


def says(text: str, name: str) -> bool:
    """Whether `name` stands in `text` as whole words and numbers (5 not in 1.5 or -5), any case."""
    before = r"(?<!\w)(?!(?<=\d[.,])\d|(?<=\W-)\d|(?<=^-)\d)"
    after = r"(?!\w|(?<=\d)[.,]\d)"
    return bool(re.search(before + re.escape(name) + after, text, re.IGNORECASE))


def rewrite(
    question: str,
    query: Query,
    endpoint: str,
    model: str,
    *,
    answers: Sequence[str],
    keep: Sequence[str] = (),
    key: str = "",
    timeout_s: float = 30.0,
) -> tuple[str, str]:
    """(`question` in the words of `model`, ""), or (`question`, what was wrong with them).

    endpoint: an OpenAI-compatible base URL ("http://localhost:8000/v1"). answers: the answer and
    its aliases, never shown to the model. keep: texts that must stay beside the constants (the
    `names` of an obfuscated question). A failing endpoint costs nothing but the reason.
    """
    try:
        chat = ChatEndpoint(endpoint, model, timeout_s=timeout_s, api_key=key)
        said = chat.ask([{"role": "user", "content": PROMPT + question}], temperature=0)
    except EndpointError as fault:
        return question, f"the endpoint failed: {fault}"
    if said is None:
        return question, "the endpoint's reply is no chat completion"
    text = " ".join(said.split())
    reason = flaw(text, question, [*constants(query), *keep], answers)
    return question if reason else text, reason


def flaw(text: str, question: str, keep: Sequence[str], answers: Sequence[str]) -> str:
    """What is wrong with `text` as another wording of `question`; "" if nothing is.

    keep: what must be in it if it is in `question`. answers: what must not.
    """
    lost = [name for name in keep if says(question, name) and not says(text, name)]
    told = [name for name in answers if name and says(text, name)]
    if lost or told:
        return f"it loses {lost[0]!r}" if lost else f"it tells the answer {told[0]!r}"
    if sorted(set(re.findall(r"\d+", text))) != sorted(set(re.findall(r"\d+", question))):
        return "its numbers are others"
    if not len(question) / 3 <= len(text) <= 2 * len(question) + 80:
        return f"it has {len(text)} characters for {len(question)}"
    if not text.isprintable():  # a name could hide behind a character of no width
        return "it holds characters that do not print"
    return "" if text.endswith(("?", ".")) else "it does not end like a question"
