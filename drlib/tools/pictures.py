"""Pictures that a policy can look at: an album, and the tools that search, cut and read in it.

A picture is named by a hash of its pixels, and a part of one by the picture's name and where it
lies (`ab12cd34.png#xywh=8,8,64,64`, the form of W3C's media fragments). So a name means the same
pixels in every attempt, nothing has to be kept when a part is cut out, and a tool's answer may be
cached like any other.

`image_search` goes from pixels to a thing of the world: it compares with the drawn emblems
(`drlib.worlds.emblems`), patch by patch, so that one other digit makes another thing, and a blank
or foreign picture finds nothing. WebWatcher (arXiv 2508.05748) has it among its five tools, and a
reader of text; `crop` is added here.

Left out: search by likeness in photographs, and readers of other fonts: register a tool of your own
for these (CONTRIBUTING.md, section 2).
"""

import base64
import hashlib
import io
import re
from collections.abc import Iterable

import numpy as np

from drlib.tools.definitions import Parameter, Tool
from drlib.validation import require
from drlib.worlds import World
from drlib.worlds.emblems import (
    SIZE,
    WHITE,
    Box,
    Emblem,
    Pixels,
    boxes_in,
    draw,
    emblems_of,
    read_numbers,
    resized,
)
from drlib.worlds.graph import VALUE

NOT_FOUND = "No results."
NO_TEXT = "No text."
NO_PICTURE = "Error: there is no picture {!r}; give a name that you were told."
NO_BOX = "Error: box is left,top,width,height in pixels, inside {} x {}, as in 8,8,64,64."
MAX_BYTES = 20_000_000  # of a picture that is read
MAX_PIXELS = 50_000_000
PATCH = 8  # pixels: the side of what is compared
NEAR = 20.0  # levels of 255: another digit changes its patch by twice as much
_HEAD = "data:image/png;base64,"
_PART = re.compile(r"(?P<whole>[^#]+)#xywh=(?P<box>[\d,]+)")
_BOX = re.compile(r"(\d{1,6}),(\d{1,6}),(\d{1,6}),(\d{1,6})")


class Album:
    """Pictures by name, and the emblems of a world's things, which `image_search` knows.

    world: its graph's nodes have emblems; None for pictures alone. ValueError: it has no graph.
    """

    def __init__(self, world: World | None = None):
        titles: Iterable[str] = ()
        if world is not None:
            require(world.graph is not None, f"{world.name} has no graph: nothing to draw")
            titles = [t for t, node in world.graph.nodes.items() if node.kind != VALUE]
        self.emblems: dict[str, Emblem] = emblems_of(titles)
        self._scheme = "" if world is None else f"{world.scheme}:"
        self._pictures: dict[str, Pixels] = {}
        self._titles = [*self.emblems]
        drawn = [draw(emblem) for emblem in self.emblems.values()]
        self._known = np.stack(drawn) if drawn else np.zeros((0, SIZE, SIZE, 3), np.uint8)
        self._means = _patches(self._known).mean(axis=(2, 4))

    def add(self, pixels: Pixels) -> str:
        """Take a picture, uint8 [H, W, 3]; returns its name, the same for the same pixels."""
        pixels = np.ascontiguousarray(pixels)
        good = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
        require(good and pixels.size > 0, f"a picture is uint8 [H, W, 3], not {pixels.shape}")
        key = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        name = f"{key[:12]}.png"
        self._pictures[name] = pixels
        return name

    def __contains__(self, name: object) -> bool:
        try:
            self.pixels(name)
        except (KeyError, TypeError):
            return False
        return True

    def pixels(self, name: str) -> Pixels:
        """The picture of a name, or the part of one, uint8 [H, W, 3]. KeyError: there is none."""
        if name in self._pictures:
            return self._pictures[name]
        part = _PART.fullmatch(name)
        whole = self._pictures[part["whole"]] if part else None
        box = None if whole is None else _box(part["box"], whole)
        if box is None:
            raise KeyError(name)
        left, top, width, height = box
        return whole[top : top + height, left : left + width]

    def thing_in(self, pixels: Pixels) -> str | None:
        """The title whose emblem the picture shows, None where it shows no one thing known."""
        boxes = boxes_in(pixels)
        if len(boxes) != 1 or not self._titles:
            return None
        left, top, width, height = boxes[0]
        shown = resized(pixels[top : top + height, left : left + width], SIZE, SIZE)
        # means cannot be further apart than their pixels: most things are told apart by these
        roughly = np.abs(self._means - _patches(shown[None]).mean(axis=(2, 4))).mean(axis=3)
        (near,) = np.nonzero(roughly.max(axis=(1, 2)) < NEAR)
        apart = np.abs(self._known[near] - shown.astype(np.int16))  # [things, 64, 64, 3]
        worst = _patches(apart).mean(axis=(2, 4, 5)).max(axis=(1, 2))  # of each, its worst patch
        if not len(near) or worst.min() >= NEAR:
            return None
        return self._titles[near[worst.argmin()]]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What a `Toolbox` with this album offers."""
        name = Parameter("image", "The name of a picture, or of a part that crop has named.")
        box = Parameter("box", "left,top,width,height in pixels, as in 8,8,64,64.")
        return (
            Tool("image_search", "Find what a picture shows.", (name,), run=self._search),
            Tool("crop", "Cut a part out of a picture and look at it.", (name, box), run=self.crop),
            Tool("read", "Read the numbers in a picture.", (name,), run=self._read),
        )

    def crop(self, image: str, box: str) -> str:
        """What the policy reads of a cut: the name of the part, and its size; or what is wrong."""
        if image not in self:
            return NO_PICTURE.format(image)
        pixels = self.pixels(image)
        cut = _box(box, pixels)
        if cut is None:
            return NO_BOX.format(pixels.shape[1], pixels.shape[0])
        left, top, width, height = cut
        part = _PART.fullmatch(image)
        if part:  # a part of a part is a part of the whole
            beyond = [int(number) for number in part["box"].split(",")]
            left, top, image = left + beyond[0], top + beyond[1], part["whole"]
        return f"{image}#xywh={left},{top},{width},{height} ({width} x {height} pixels)"

    def _search(self, image: str) -> str:
        if image not in self:
            return NO_PICTURE.format(image)
        title = self.thing_in(self.pixels(image))
        if title is None:
            return NOT_FOUND
        return f"1. [{title}]({self._scheme}{title})\n{self.emblems[title].caption}"

    def _read(self, image: str) -> str:
        if image not in self:
            return NO_PICTURE.format(image)
        return read_numbers(self.pixels(image)) or NO_TEXT


def _patches(pictures: np.ndarray) -> np.ndarray:
    """Emblems [N, 64, 64, 3] as patches [N, 8, 8 pixels, 8, 8 pixels, 3]."""
    return pictures.reshape(len(pictures), SIZE // PATCH, PATCH, SIZE // PATCH, PATCH, 3)


def _box(text: str, pixels: Pixels) -> Box | None:
    """A box as it is written, where it lies in the picture."""
    written = _BOX.fullmatch(text.replace(" ", ""))
    if written is None:
        return None
    left, top, width, height = (int(number) for number in written.groups())
    inside = left + width <= pixels.shape[1] and top + height <= pixels.shape[0]
    return (left, top, width, height) if inside and width and height else None


def to_png(pixels: Pixels) -> bytes:
    """The picture, uint8 [H, W, 3], as a PNG file."""
    from PIL import Image  # lazily: most toolboxes have no pictures

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def from_png(data: bytes) -> Pixels:
    """The pixels of a PNG file, uint8 [H, W, 3]; ValueError: it is none, or too large."""
    from PIL import Image

    require(len(data) <= MAX_BYTES, f"a picture of {len(data)} bytes, above {MAX_BYTES}")
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            require(image.width * image.height <= MAX_PIXELS, f"more than {MAX_PIXELS} pixels")
            flat = image.convert("RGBA")
            white = Image.new("RGBA", flat.size, (WHITE, WHITE, WHITE, 255))
            return np.array(Image.alpha_composite(white, flat).convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as fault:
        raise ValueError(f"no PNG picture: {fault}") from None


def to_data_url(pixels: Pixels) -> str:
    """The picture as an `image_url` of a chat message has it."""
    return _HEAD + base64.b64encode(to_png(pixels)).decode()


def from_data_url(url: str) -> Pixels:
    """The pixels behind a `to_data_url`, uint8 [H, W, 3]; ValueError: it is none."""
    require(url.startswith(_HEAD), f"no PNG as a data URL: {url[:40]!r}")
    return from_png(base64.b64decode(url.removeprefix(_HEAD)))
