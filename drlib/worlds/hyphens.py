"""Join words that were hyphenated at the end of a line.

A hyphen may also belong to the word. It is kept if the text has the word with it elsewhere, in
compounds ("state-of-the-art"), addresses, and between letters and digits or capitals ("COVID-19").
"""

import re

HYPHENS = ("-", "\u2010", "\u00ad")
GAP = 4  # lines between which a page may end
LONGEST = 100  # characters of a hyphenated word
FIRST_PART = re.compile(r"(\S*?)((?:\w+-)*\w+)([-\u2010\u00ad])")
LINE_START = re.compile(r"\s*(\w+)(\S*)\s*")
WORD = re.compile(r"\w+(?:-\w+)*")
# "two- and three-fold"
CONJUNCTIONS = {"and", "or", "und", "oder", "et", "ou", "y", "o", "e", "en", "of", "bis", "to"}


def join_hyphenated(text: str) -> str:
    """Move the second part of each hyphenated word to the line, or page, of its first part."""
    if not re.search(r"\w[-\u2010\u00ad][ \t]*\n", text):
        return text
    words = {word.lower() for word in WORD.findall(text)}
    lines = text.split("\n")
    done: list[str] = []
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        parts: list[str] = []
        blanks: list[str] = []
        while end := _line_end(line):
            to = next((to for to in range(at, min(at + GAP, len(lines))) if lines[to].strip()), at)
            start = LINE_START.match(lines[to]) if to < len(lines) else None
            joined = start and _join(end, start[1], words, is_adjacent=to == at)
            if not joined:
                break
            line = line.rstrip()
            parts.append(line[: len(line) - len(end[0])])
            line = joined + start[2]
            lines[to] = lines[to][start.end() :]
            if lines[to]:
                break
            blanks += lines[at:to]
            at = to + 1  # the whole line was moved; the word may go on
        done += ["".join([*parts, line]), *blanks]
    return "\n".join(done)


def _line_end(line: str) -> re.Match | None:
    """Match the last word of a line that ends with a hyphen."""
    line = line.rstrip()
    if not line.endswith(HYPHENS):
        return None
    word = line[-LONGEST:].split()[-1]
    return FIRST_PART.fullmatch(word)


def _join(end: re.Match, tail: str, words: set[str], is_adjacent: bool) -> str:
    """Return the joined word, or "" if the two parts are no word."""
    before, head, mark = end.groups()
    last = head.rpartition("-")[2]
    both = last.isalpha() and tail.isalpha()
    is_lower = both and not any(letter.isupper() for letter in last[-1] + tail)
    if not is_adjacent and not is_lower:  # a page's header follows
        return ""
    whole, kept = f"{before}{head}{tail}", f"{before}{head}-{tail}"
    if mark == "\u00ad" or (last + tail).lower() in words:
        return whole
    if tail.lower() in CONJUNCTIONS:
        return ""
    is_word = is_lower or (both and len(last) > 1 and (last + tail).isupper())
    is_compound = len(last) == 1 or last != head or set(before) & set("/@._=")
    return whole if is_word and not is_compound and f"{head}-{tail}".lower() not in words else kept
