"""Terms of the search index: words, their normal forms, and n-grams of scripts without spaces.

SQLite's tokenizer splits at every character that is no letter or digit. It indexes a sentence of
Chinese as one word and cuts a word of Hindi at each vowel sign. `derived_terms` therefore adds
terms for those words, and only for them:

- Text in scripts without spaces between words, and Korean, gives overlapping n-grams. The text is
  not segmented with a dictionary, since index and query would then have to agree on its words.
- Ligatures, full-width letters, digits of other scripts, soft hyphens, Hebrew points and Arabic
  marks are folded.

Not implemented: traditional and simplified Chinese, Arabic letter variants, stemming.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

STOP = frozenset("a an and are by for in is of on the to was what which who".split())
# English pronouns, determiners, prepositions, conjunctions, auxiliaries, negations and the parts of
# "don't". In a question they may be words of a name; in a longer text they are most of the words.
FUNCTION_WORDS = STOP.union(
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his"
    " himself she her hers herself it its itself they them their theirs themselves someone"
    " anyone this that these those some any each every either neither both all such no not nor"
    " only own other another same more most less least much many few several at from with"
    " without within into onto out off up down over under about above below before after between"
    " among through during until against as than like per via because if unless while when where"
    " why how whether although though since so then but or be been being am were do does did"
    " doing done have has had having can could will would shall should may might must here there"
    " again further once also just too very yet still already whom whose don t s d m ll re ve"
    " doesn didn isn aren wasn weren haven hasn hadn won wouldn couldn shouldn".split()
)
DOTTED_NAME = re.compile(r"(?<!\w)\w\w+(?:[._]\w+)+")  # (?<!\w): linear time on long words
WORD = re.compile(r"[^\W_]+")


def _marks(*ranges: tuple[int, int]) -> str:
    """Return the combining marks in the ranges of code points, ends included."""
    letters = (chr(code) for first, last in ranges for code in range(first, last + 1))
    return "".join(letter for letter in letters if unicodedata.category(letter)[0] == "M")


# Letters of scripts without spaces: Han, kana, Bopomofo, Yi; South-East Asia with vowel signs.
HANGUL = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97f\uac00-\ud7ff"
EAST = (
    "\u3005-\u3007\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u312f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff\U00020000-\U000323af"
)
SOUTH_EAST = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f"
    "\u1780-\u17d3\u17d7\u17dc\u17dd\u1950-\u19cf\u1a20-\u1a7c\u1b00-\u1b4c\ua980-\ua9c0"
    "\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f\uaa80-\uaadf"
)
# Default-ignorable characters, such as soft hyphens and direction marks, and the Arabic tatweel.
IGNORABLE = (
    "\u00ad\u034f\u061c\u0640\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f"
    "\ufeff\U000e0000-\U000e01ef"
)
# Marks that readers may leave out; in Indian and South-East Asian scripts they are vowels.
OPTIONAL_MARKS = _marks((0x300, 0x77F), (0x7EB, 0x8FF), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF))
OPTIONAL_MARKS += _marks((0x20D0, 0x20FF), (0xFB1E, 0xFB1E), (0xFE20, 0xFE2F))
VOWEL_SIGNS = _marks((0x780, 0x7EA), (0x900, 0x1AAF), (0x1B00, 0x1DBF), (0x302A, 0x309A))
VOWEL_SIGNS += _marks((0xA66F, 0xABFF), (0x10A00, 0x11FFF))
DROPPED = re.compile(f"[{IGNORABLE}{OPTIONAL_MARKS}]")
VOWEL_SIGN = re.compile(f"[{VOWEL_SIGNS}]")
# Superscripts, subscripts and fractions change a value: "10²" is not the name "102".
NO_SUPERSCRIPTS = re.compile("[^\xb2\xb3\xb9\xbc-\xbe\u2070-\u208e\u2150-\u215f\u2189]+")

# Characters that SQLite's tokenizer handles: Latin, Greek, Cyrillic, Hebrew, Arabic, symbols.
PLAIN = (
    "\0-\xa9\xab\xac\xae-\xb1\xb4\xb6-\xb8\xbb\xbf-\xde\xe0-\u0131\u0134-\u013e\u0141-\u0148"
    "\u014a-\u017e\u0180-\u01c3\u01cd-\u01f0\u01f4-\u02ff\u0370-\u03cf\u03d7-\u0482\u048a-\u0586"
    "\u0589-\u0590\u05be\u05c0\u05c3\u05c6\u05d0-\u060f\u061b\u061d-\u063f\u0641-\u064a"
    "\u066a-\u066f\u0671-\u0674\u0679-\u06d5\u10a0-\u10fb\u10fd-\u10ff\u1e00-\u1e99\u1ea0-\u1eff"
    "\u2010-\u2027\u2030-\u205e\u20a0-\u20cf\u2190-\u245f\u2500-\u2bff\u3000-\u3004\u3008-\u3020"
    "\ufffd\U0001f000-\U0001faff"
)
SUSPECT = re.compile(f"[^{PLAIN}]")
LETTER = rf"(?:[^\W_]|[{IGNORABLE}{OPTIONAL_MARKS}{VOWEL_SIGNS}])"
# `(?<!...)` and possessive repeats keep the time linear on long words
SUSPECT_WORD = re.compile(rf"(?<![^\W_])(?:(?=[^\W_])[{PLAIN}])*+[^{PLAIN}]{LETTER}*+")
LETTERS = re.compile(f"{LETTER}+")
RUN = re.compile(f"([{EAST}{HANGUL}]+)|([{SOUTH_EAST}]+)|[^{EAST}{HANGUL}{SOUTH_EAST}]+")
# Such scripts may be wrapped inside a word; Korean is wrapped at spaces.
WRAPPED = re.compile(f"(?<=[{EAST}{SOUTH_EAST}])[ \t]*\r?\n[ \t]*(?=[{EAST}{SOUTH_EAST}])")
LONG_QUERY = 64  # terms; a longer query is a text, such as a task or a letter
MAX_TERMS = 512  # largest number of terms of a query; the others are ignored
EAST_GRAM = 2  # characters of an n-gram; own_documents.md compares lengths
SOUTH_EAST_GRAM = 3


def fold(text: str) -> str:
    """Return the normal form for comparing words: NFKC, no optional marks, no case."""
    if text.isascii():
        return text.casefold()
    composed = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    bare = DROPPED.sub("", composed)
    return re.sub(r"[^\D0-9]", lambda digit: str(unicodedata.decimal(digit[0])), bare)


def fold_name(text: str) -> str:
    """Return the normal form for comparing names: as `fold`, but superscripts keep their value."""
    if SUSPECT.search(text) is None:
        return text.casefold()
    return NO_SUPERSCRIPTS.sub(lambda part: fold(part[0]), text)


@lru_cache(1 << 16)
def _pieces(word: str) -> tuple[tuple[str, int], ...]:
    """Return (run, length of its n-grams) of a word; 0 for a run that is one term."""
    found = []
    for folded in LETTERS.findall(fold(word)):
        for run in RUN.finditer(folded):
            size = EAST_GRAM if run[1] else SOUTH_EAST_GRAM if run[2] else 0
            if WORD.search(run[0]):
                found.append((run[0], size))
    return tuple(found)


def _suspect_words(text: str) -> Sequence[str]:
    """Return the words of a text that SQLite's tokenizer does not handle."""
    if text.isascii() or SUSPECT.search(text) is None:
        return ()
    return SUSPECT_WORD.findall(WRAPPED.sub("", text))


def derived_terms(text: str, title: str = "") -> str:
    """Return the additional terms of a text for the index, separated by spaces.

    The ends of a run are indexed as shorter n-grams, so that a prefix query finds any part of it.
    Words that SQLite finds in the text or its title anyway are left out.
    """
    suspect = _suspect_words(text)
    if not suspect:
        return ""
    # lower, not casefold: SQLite keeps ligatures and "ß"
    known = {word.lower() for word in WORD.findall(f"{title} {text}")}
    return " ".join(
        run[start : start + (size or len(run))]
        for word in suspect
        for run, size in _pieces(word)
        if size or run not in known
        for start in range(len(run) if size else 1)
    )


def search_terms(text: str) -> list[str]:
    """Return the terms of a query: dotted names such as `json.dumps`, words, and n-grams.

    Stop words are left out if there are others. A term that ends in "*" is a prefix.
    """
    suspect = [*_suspect_words(text)]
    if suspect:
        text = DROPPED.sub("", unicodedata.normalize("NFC", text))
        # SQLite cuts words at vowel signs: their fragments would match everywhere
        text = LETTERS.sub(lambda word: " " if VOWEL_SIGN.search(word[0]) else word[0], text)
    found = WORD.findall(text)
    rare = [word for word in found if word.casefold() not in STOP]
    terms = DOTTED_NAME.findall(text) + (rare or found)
    for word in suspect:
        for run, size in _pieces(word):
            if not size:
                terms.append(run)
            elif len(run) < size:
                terms.append(f"{run}*")
            else:
                terms += [run[i : i + size] for i in range(len(run) - size + 1)]
    return terms


def is_long(query: str) -> bool:
    """Return True if a query has more than `LONG_QUERY` different terms."""
    return len(set(search_terms(query))) > LONG_QUERY


def query_weights(text: str) -> dict[str, int]:
    """Return the different terms of a query with their weights, at most `MAX_TERMS`.

    Every term of a question has weight 1. In a query of more than `LONG_QUERY` terms, function
    words are left out and a term's weight is its number of occurrences, as in Okapi's BM25 with a
    large k3 (Robertson et al., TREC-3, 1994).
    """
    terms = search_terms(text)
    weights = dict.fromkeys(terms, 1)
    if len(weights) > LONG_QUERY:
        # lower, not casefold: SQLite keeps ligatures and "ß"
        counts = Counter(term.lower() for term in terms)
        content = {term: n for term, n in counts.items() if term not in FUNCTION_WORDS}
        weights = content or counts
    return dict(list(weights.items())[:MAX_TERMS])
