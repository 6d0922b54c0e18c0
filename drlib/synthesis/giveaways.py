"""Whether one name gives another away: as whole words, or by a word's stem.

"New Zealand Dollar" says New Zealand, "Israeli New Shekel" says Israel, "Norwegian Krone" Norway.
The first is found in every name of both things, whole words in any case (`tells`). The second is
found between titles, which are what a question shows: every word of one title that says something
has a word of the same stem in the other (`hints`). Two words have the same stem when they are equal
or begin with the same `STEM` letters or more, which are at least `STEM_SHARE` of the shorter word,
accents left out. Words of fewer letters must be equal, and `PLAIN` words say nothing.

Of the 150,602 pairs of a territory with a currency, a language or a script of CLDR, the stems join
260 that whole words do not. A fact joins 193 of these too, nearly all rightly; of the other 67 some
are right ("Thai script" and Thailand), most are not ("Australian Dollar" and Austria, "Nigerian
Naira" and Niger): one pair in 2,500, and each costs no more than a question.
Left out: names that change their first letters ("Danish" and Denmark, "Swiss" and
Switzerland), and stems in the aliases, where six languages meet each other. A stemmer of words
(Porter's) takes Norwegian and Norway for two stems, as it cuts endings of one word class only.
"""

import re
import unicodedata
from functools import lru_cache

from drlib.worlds.graph import Graph, Node

STEM = 4  # letters that two words must begin with
STEM_SHARE = 0.6  # of the shorter word's letters
PLAIN = frozenset(  # words of many names that tell none of them; "franc" is not France
    "and city de east eastern franc great island islands la new north northern of old republic "
    "saint south southern st the union united west western".split()
)


@lru_cache(maxsize=1 << 18)
def leaks(answer: str, constant: str, graph: Graph, stems: bool = True) -> bool:
    """Whether a name of one says the other: as whole words, or with `stems` by a stem too."""
    return tells(answer, constant, graph) or (stems and hints(answer, constant))


def tells(answer: str, constant: str, graph: Graph) -> bool:
    """Whether a name of one holds a name of the other, as whole words."""
    one, two = graph.nodes.get(answer), graph.nodes.get(constant)
    return _tells(one or Node(answer, ""), two or Node(constant, ""))


@lru_cache(maxsize=1 << 18)
def _tells(one: Node, two: Node) -> bool:
    names, others = _names(one), _names(two)
    return any(name in other or other in name for name in names for other in others)


@lru_cache(maxsize=1 << 16)
def _names(node: Node) -> tuple[str, ...]:
    """Title and aliases as ` words with single spaces `, in one case."""
    names = (node.title, *node.aliases)
    words = {re.sub(r"[\W_]+", " ", f" {name.casefold()} ") for name in names}
    return tuple(sorted(words - {" "}))


def hints(a: str, b: str) -> bool:
    """Whether each word of one title that says something has its stem in the other."""
    (words, heads), (others, other_heads) = _words(a), _words(b)
    if heads.isdisjoint(other_heads):  # nearly always, and no stem is shared then
        return False
    return _all_in(words, others) or _all_in(others, words)


@lru_cache(maxsize=1 << 16)
def _words(title: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """(the words of `title` that say something, without accents; how the long ones begin)"""
    letters = unicodedata.normalize("NFKD", title.casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    found = tuple(word for word in re.findall(r"[^\W_]+", plain) if word not in PLAIN)
    return found, frozenset(word[:STEM] for word in found if _is_long(word))


def _is_long(word: str) -> bool:
    return len(word) >= STEM and not word.isdigit()


def _all_in(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return bool(words) and all(any(same_stem(word, other) for other in others) for word in words)


def same_stem(word: str, other: str) -> bool:
    """Whether two words in one case begin with the same stem."""
    if word == other:
        return True
    if not (_is_long(word) and _is_long(other)):
        return False
    shared = 0
    for one, two in zip(word, other):
        if one != two:
            break
        shared += 1
    return shared >= max(STEM, STEM_SHARE * min(len(word), len(other)))
