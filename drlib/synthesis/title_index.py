"""The titles of a world that stand at a place of a text.

A text that is read back is asked this at every place where a name may stand, and a world has ten
thousand titles of a hundred lengths. They are looked up by their first letters and then by the
lengths that occur among those that begin so, which are few.

Left out: titles in another case or spelling: the texts are our own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

BEGINS = 4  # first letters by which titles are told apart


class TitleIndex:
    """`titles`: how each is said in texts -> the title."""

    def __init__(self, titles: Mapping[str, str]):
        self.titles = titles
        found: dict[str, set[int]] = defaultdict(set)
        for said in titles:
            found[said[:BEGINS] if len(said) >= BEGINS else ""].add(len(said))
        self._lengths = {begins: sorted(some, reverse=True) for begins, some in found.items()}

    def at(self, text: str, at: int) -> Iterator[tuple[str, int]]:
        """(title, where it ends) of all that begin `at` a place of `text` and end with a word, the
        longest first."""
        lengths = self._lengths.get(text[at : at + BEGINS], ())
        for length in (*lengths, *self._lengths.get("", ())):
            end = at + length
            title = self.titles.get(text[at:end]) if end <= len(text) else None
            if title is not None and not text[end : end + 1].isalnum():
                yield title, end
