"""Whether a question is one that a person would ask: short, of one kind of thing at a time.

The engine's rules hold what a question means: one answer, no idle condition. Some that keep them
all are still nobody's: they hang on two things that happen to share a year, speak of "the courses
or people" of a team, go through one relation twice in a row, or need several sentences. Such a
question is put aside and given only where a world has no others.

Left out: whether the words are well chosen, which only a reader can say (figures/reference/data/
readings).
"""

from drlib.synthesis.checks import coincidences
from drlib.synthesis.derived import participle
from drlib.synthesis.phrases import Phrasebook
from drlib.synthesis.queries import (
    Extreme,
    Or,
    Proj,
    Query,
    constants,
    evaluate_query,
    walk,
)
from drlib.worlds.graph import inverse

MAX_WORDS = 36
MAX_NAMES = 3


def strangeness(query: Query, text: str, book: Phrasebook) -> int:
    """How much keeps a person from asking `query` in the words `text`; 0: nothing that we know."""
    words = text.removeprefix(f"{book.source}, ")
    faults = (
        len(words.split()) > MAX_WORDS,
        " step" in words,
        len(constants(query)) > MAX_NAMES,
        _repeats(query, book),
        coincidences(query, lambda part: evaluate_query(part, book.graph)) > 0,
        not all(_is_of_one_kind(part, book) for part in walk(query)),
    )
    return 2 * words.count(". ") + sum(faults)


def _repeats(query: Query, book: Phrasebook) -> bool:
    """Whether one relation follows itself ("extended by the class extended by"), or what is ranked
    has no noun for its rank ("the earliest released year"), or it says "or"."""
    for part in walk(query):
        if isinstance(part, Proj) and isinstance(part.of, Proj):
            is_value = not part.relation.endswith(" of")
            phrase = book.phrases[part.relation.removesuffix(" of")]
            back_again = inverse(part.relation) if is_value and not phrase.along else ""
            if part.of.relation in (part.relation, back_again):
                return True
        if isinstance(part, Or):
            return True
        if isinstance(part, Extreme) and participle(part.relation):
            return True
    return False


def _is_of_one_kind(query: Query, book: Phrasebook) -> bool:
    return len({book.kind(title) for title in evaluate_query(query, book.graph)}) < 2
