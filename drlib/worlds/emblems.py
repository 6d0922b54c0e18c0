"""Drawn pictures: an emblem for each thing of a world, a coloured shape over a number.

Photographs would need a vision model and binary files. An emblem is drawn by rule from a hash of
the title, so its pixels identify the thing, are equal on every machine, and reveal nothing else.
Several emblems on one sheet make a picture in which a policy must locate one. `read_numbers` reads
the digits by comparing each glyph with the font, and marks glyphs that are cut off.

Not implemented: letters, mixed scales within a sheet, pictures from elsewhere.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drlib.validation import require

Pixels = NDArray[np.uint8]  # uint8 [height, width, 3], red green blue
Box = tuple[int, int, int, int]  # left, top, width, height, in pixels

SIZE = 64  # pixels, width and height
MARGIN = 8  # pixels between and around the emblems of a sheet
WHITE, FRAME, INK = 255, 200, 0
DARK = 64  # ink is below this in all three channels
ROOM = 44  # rows of the shape, above the number
SCALE = 2  # pixels per dot of a digit
DIGITS = 4
COLOURS = {
    "red": (204, 51, 51),
    "orange": (230, 140, 30),
    "yellow": (225, 200, 50),
    "green": (60, 150, 70),
    "teal": (50, 170, 170),
    "blue": (60, 100, 200),
    "purple": (145, 80, 180),
    "grey": (150, 150, 150),
}
SHAPES = ("circle", "ring", "square", "diamond", "triangle", "cross")
# five dots wide, seven high
_FONT = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
}
_DOTS = {digit: np.array([[*row] for row in rows.split()]) == "1" for digit, rows in _FONT.items()}
_HEIGHT, _WIDTH = _DOTS["0"].shape
_ALIKE = 0.9  # share of matching dots that identifies a digit


@dataclass(frozen=True)
class Emblem:
    """Contents of an emblem; `number` has four digits."""

    shape: str
    colour: str
    number: str

    @property
    def caption(self) -> str:
        """Description in words."""
        return f"a {self.colour} {self.shape} over the number {self.number}"


def make_emblem(title: str, salt: int = 0) -> Emblem:
    """Derive an emblem from a hash of the title; another `salt` gives another emblem."""
    drawn = hashlib.sha256(f"emblem|{salt}|{title}".encode()).digest()
    return Emblem(
        SHAPES[drawn[0] % len(SHAPES)],
        [*COLOURS][drawn[1] % len(COLOURS)],
        f"{int.from_bytes(drawn[2:6]) % 10**DIGITS:0{DIGITS}d}",
    )


def assign_emblems(titles: Iterable[str]) -> dict[str, Emblem]:
    """Assign a different emblem to each title.

    On a collision, the alphabetically later title gets the next salt.

    Raises:
        ValueError: more titles than emblems.
    """
    titles = sorted(set(titles))
    most = len(SHAPES) * len(COLOURS) * 10**DIGITS // 2
    require(
        len(titles) <= most,
        f"{len(titles)} titles exceed the {most} different emblems: use a smaller world",
    )
    found: dict[str, Emblem] = {}
    taken: set[Emblem] = set()
    for title in titles:
        salt = 0
        while (emblem := make_emblem(title, salt)) in taken:
            salt += 1
        taken.add(emblem)
        found[title] = emblem
    return found


def draw(emblem: Emblem) -> Pixels:
    """Draw an emblem as uint8 [64, 64, 3]: shape, number and a thin frame on white."""
    pixels = np.full((SIZE, SIZE, 3), WHITE, np.uint8)
    pixels[:ROOM][_shape(emblem.shape)] = COLOURS[emblem.colour]
    step = SCALE * (_WIDTH + 1)
    left, top = (SIZE - DIGITS * step) // 2, ROOM + 2
    for at, digit in enumerate(emblem.number):
        dots = _DOTS[digit].repeat(SCALE, 0).repeat(SCALE, 1)
        place = pixels[top : top + SCALE * _HEIGHT, left + at * step :][:, : SCALE * _WIDTH]
        place[dots] = INK
    pixels[[0, -1]] = pixels[:, [0, -1]] = FRAME
    return pixels


def _shape(name: str) -> np.ndarray:
    """Return the mask of a shape, bool [44, 64]."""
    y, x = np.mgrid[:ROOM, :SIZE]
    y, x = y - (ROOM - 1) / 2 - 1, x - (SIZE - 1) / 2
    far = np.hypot(x, y)
    masks = {
        "circle": far < 17,
        "ring": (far < 18) & (far > 10),
        "square": np.maximum(abs(x), abs(y)) < 15,
        "diamond": abs(x) + abs(y) < 19,
        "triangle": (y < 15) & (y > -17) & (abs(x) < (y + 17) * 0.6),
        "cross": (np.minimum(abs(x), abs(y)) < 5) & (np.maximum(abs(x), abs(y)) < 17),
    }
    return masks[name]


def make_sheet(pictures: Sequence[Pixels], columns: int = 2) -> Pixels:
    """Place emblems on white, `columns` in a row, in reading order."""
    boxes = sheet_boxes(len(pictures), columns)
    right = max(left + width for left, _, width, _ in boxes) + MARGIN
    bottom = max(top + height for _, top, _, height in boxes) + MARGIN
    pixels = np.full((bottom, right, 3), WHITE, np.uint8)
    for picture, (left, top, width, height) in zip(pictures, boxes, strict=True):
        pixels[top : top + height, left : left + width] = picture
    return pixels


def sheet_boxes(n: int, columns: int = 2) -> list[Box]:
    """Return the boxes of the `n` emblems of a sheet, in reading order."""
    step = SIZE + MARGIN
    corners = [(MARGIN + at % columns * step, MARGIN + at // columns * step) for at in range(n)]
    return [(left, top, SIZE, SIZE) for left, top in corners]


def find_boxes(pixels: Pixels) -> list[Box]:
    """Return the boxes of the separate marks on white, in reading order; [] for a blank picture."""
    marked = np.any(pixels < WHITE, axis=2)
    return [
        (left, top, right - left, bottom - top)
        for top, bottom in _runs(marked.any(axis=1))
        for left, right in _runs(marked[top:bottom].any(axis=0))
    ]


def read_numbers(pixels: Pixels) -> str:
    """Read the drawn digits, one line per row of numbers.

    An unknown glyph, such as one that is cut off, is "?". A picture without ink gives "".
    """
    ink = np.all(pixels < DARK, axis=2)
    lines = [_line(ink[top:bottom]) for top, bottom in _runs(ink.any(axis=1))]
    return "\n".join(lines)


def _line(ink: np.ndarray) -> str:
    """Return the digits of a row of glyphs, with a space between numbers."""
    dot = len(ink) / _HEIGHT  # pixels
    text, end = "", None
    for left, right in _runs(ink.any(axis=0)):
        far = end is not None and left - end > 3 * dot
        text += " " * far + _digit(ink[:, left:right], dot)
        end = right
    return text


def _digit(glyph: np.ndarray, dot: float) -> str:
    """Return the digit whose dots match the glyph best, or "?"."""
    best, alike = "?", _ALIKE
    for digit, dots in _templates().items():
        if round(glyph.shape[1] / dot) != dots.shape[1]:
            continue
        share = (resize(glyph, *dots.shape) == dots).mean()
        if share >= alike:
            best, alike = digit, share
    return best


@lru_cache
def _templates() -> dict[str, np.ndarray]:
    """Return the digits without empty columns at their sides."""
    return {digit: dots[:, dots.any(axis=0)] for digit, dots in _DOTS.items()}


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize a picture [H, W, ...] by nearest neighbour."""
    rows = ((np.arange(height) + 0.5) * pixels.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * pixels.shape[1] / width).astype(int)
    return pixels[rows][:, columns]


def _runs(marked: ArrayLike) -> list[tuple[int, int]]:
    """Return (begin, end) of each run of True in bool [L]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
