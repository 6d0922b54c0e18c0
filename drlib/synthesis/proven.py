"""A question in sentences that is proved to ask its query and nothing else.

`drlib.synthesis.sentences` words, `drlib.synthesis.read_back` reads. A text is used only where all
its readings are the query; where one style leaves two meanings, another may not.

Left out: a choice among good texts: the first style that can be proved is taken.
"""

from collections.abc import Mapping

from drlib.synthesis.joins import in_one_form
from drlib.synthesis.queries import Query
from drlib.synthesis.read_back import Grammar, read_question
from drlib.synthesis.sentences import STYLES, Style, say


def word_question(
    query: Query, grammar: Grammar, style: Style, names: Mapping[Query, str] | None = None
) -> str | None:
    """`query` in sentences that are proved to mean it and nothing else, in `style` if that one can
    be proved; None: no style can.

    names: texts that stand for constants or unions of constants. What is proved then is the same
    question with the titles; it is said again with these texts in their places.
    """
    wanted = in_one_form(query)
    for tried in (style, *(other for other in STYLES if other != style)):
        text = say(query, grammar.book, tried)
        if text and _means(text, wanted, grammar):
            return say(query, grammar.book, tried, names) if names else text
    return None


def _means(text: str, wanted: Query, grammar: Grammar) -> bool:
    try:
        return read_question(text, grammar) == wanted
    except ValueError:  # it can be read in no way, or in several
        return False
