"""Pictures that a policy can inspect: an album, and the tools image_search, crop and read.

A picture is named by a hash of its pixels, and a part of it by the picture's name and position
(`ab12cd34.png#xywh=8,8,64,64`, W3C media fragments). A name thus means the same pixels in every
rollout, cropping needs no storage, and results can be cached.

`image_search` maps pixels to a thing of the world. It compares patches with the drawn emblems
(`drlib.worlds.emblems`), so one different digit is another thing, and a blank or foreign picture
matches nothing. It is one of the five tools of WebWatcher (arXiv 2508.05748), as is text reading;
`crop` is an addition.

Not implemented: similarity search in photographs and other fonts; register a custom tool for these
(CONTRIBUTING.md, section 2).
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
    assign_emblems,
    draw,
    find_boxes,
    read_numbers,
    resize,
)
from drlib.worlds.graph import VALUE

NOT_FOUND = "No results."
NO_TEXT = "No text."
NO_PICTURE = "Error: there is no picture {!r}; give a name that you were told."
NO_BOX = "Error: box is left,top,width,height in pixels, inside {} x {}, as in 8,8,64,64."
MAX_BYTES = 20_000_000  # of a PNG file
MAX_PIXELS = 50_000_000
PATCH = 8  # pixels, side of a compared patch
NEAR = 20.0  # of 255 levels; another digit changes its patch by twice as much
_HEAD = "data:image/png;base64,"
_PART = re.compile(r"(?P<whole>[^#]+)#xywh=(?P<box>[\d,]+)")
_BOX = re.compile(r"(\d{1,6}),(\d{1,6}),(\d{1,6}),(\d{1,6})")


class Album:
    """Pictures by name, and the emblems of a world's things for `image_search`.

    Args:
        world: nodes of its graph have emblems; None for pictures only.

    Raises:
        ValueError: the world has no graph.
    """

    def __init__(self, world: World | None = None):
        titles: Iterable[str] = ()
        if world is not None:
            require(world.graph is not None, f"world {world.name} has no graph to draw emblems for")
            titles = [t for t, node in world.graph.nodes.items() if node.kind != VALUE]
        self.emblems: dict[str, Emblem] = assign_emblems(titles)
        self._scheme = "" if world is None else f"{world.scheme}:"
        self._pictures: dict[str, Pixels] = {}
        self._titles = [*self.emblems]
        drawn = [draw(emblem) for emblem in self.emblems.values()]
        self._known = np.stack(drawn) if drawn else np.zeros((0, SIZE, SIZE, 3), np.uint8)
        self._means = _patches(self._known).mean(axis=(2, 4))

    def add(self, pixels: Pixels) -> str:
        """Add a picture, uint8 [H, W, 3]; return its name, which depends on the pixels only."""
        pixels = np.ascontiguousarray(pixels)
        good = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
        require(
            good and pixels.size > 0,
            f"a picture must be uint8 [H, W, 3], got {pixels.dtype} {pixels.shape}",
        )
        key = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        name = f"{key[:12]}.png"
        self._pictures[name] = pixels
        return name

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self.pixels(name)
        except KeyError:
            return False
        return True

    def pixels(self, name: str) -> Pixels:
        """Return the pixels of a picture or part, uint8 [H, W, 3].

        Raises:
            KeyError: unknown name.
        """
        if name in self._pictures:
            return self._pictures[name]
        part = _PART.fullmatch(name)
        whole = self._pictures[part["whole"]] if part else None
        box = None if whole is None else _parse_box(part["box"], whole)
        if box is None:
            raise KeyError(name)
        left, top, width, height = box
        return whole[top : top + height, left : left + width]

    def identify(self, pixels: Pixels) -> str | None:
        """Return the title whose emblem the picture shows; None if it is not exactly one."""
        boxes = find_boxes(pixels)
        if len(boxes) != 1 or not self._titles:
            return None
        left, top, width, height = boxes[0]
        shown = resize(pixels[top : top + height, left : left + width], SIZE, SIZE)
        # Filter by patch means first: their distance is a lower bound of the pixel distance.
        roughly = np.abs(self._means - _patches(shown[None]).mean(axis=(2, 4))).mean(axis=3)
        (near,) = np.nonzero(roughly.max(axis=(1, 2)) < NEAR)
        apart = np.abs(self._known[near] - shown.astype(np.int16))  # [things, 64, 64, 3]
        worst = _patches(apart).mean(axis=(2, 4, 5)).max(axis=(1, 2))  # worst patch of each
        if not len(near) or worst.min() >= NEAR:
            return None
        return self._titles[near[worst.argmin()]]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools of this album for a `Toolbox`."""
        name = Parameter("image", "The name of a picture, or of a part that crop has named.")
        box = Parameter("box", "left,top,width,height in pixels, as in 8,8,64,64.")
        return (
            Tool("image_search", "Find what a picture shows.", (name,), run=self._search),
            Tool("crop", "Cut a part out of a picture and look at it.", (name, box), run=self.crop),
            Tool("read", "Read the numbers in a picture.", (name,), run=self._read),
        )

    def crop(self, image: str, box: str) -> str:
        """Return the observation of a crop: name and size of the part, or the error."""
        if image not in self:
            return NO_PICTURE.format(image)
        pixels = self.pixels(image)
        cut = _parse_box(box, pixels)
        if cut is None:
            return NO_BOX.format(pixels.shape[1], pixels.shape[0])
        left, top, width, height = cut
        part = _PART.fullmatch(image)
        if part:  # express a part of a part relative to the whole
            beyond = [int(number) for number in part["box"].split(",")]
            left, top, image = left + beyond[0], top + beyond[1], part["whole"]
        return f"{image}#xywh={left},{top},{width},{height} ({width} x {height} pixels)"

    def _search(self, image: str) -> str:
        if image not in self:
            return NO_PICTURE.format(image)
        title = self.identify(self.pixels(image))
        if title is None:
            return NOT_FOUND
        return f"1. [{title}]({self._scheme}{title})\n{self.emblems[title].caption}"

    def _read(self, image: str) -> str:
        if image not in self:
            return NO_PICTURE.format(image)
        return read_numbers(self.pixels(image)) or NO_TEXT


def _patches(pictures: np.ndarray) -> np.ndarray:
    """Split emblems [N, 64, 64, 3] into patches [N, 8, 8 pixels, 8, 8 pixels, 3]."""
    return pictures.reshape(len(pictures), SIZE // PATCH, PATCH, SIZE // PATCH, PATCH, 3)


def _parse_box(text: str, pixels: Pixels) -> Box | None:
    """Parse a box; None if it is invalid or outside the picture."""
    written = _BOX.fullmatch(text.replace(" ", ""))
    if written is None:
        return None
    left, top, width, height = (int(number) for number in written.groups())
    inside = left + width <= pixels.shape[1] and top + height <= pixels.shape[0]
    return (left, top, width, height) if inside and width and height else None


def to_png(pixels: Pixels) -> bytes:
    """Encode a picture, uint8 [H, W, 3], as PNG."""
    from PIL import Image  # imported here because most toolboxes have no pictures

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def from_png(data: bytes) -> Pixels:
    """Decode a PNG file to uint8 [H, W, 3].

    Raises:
        ValueError: no PNG, or too large.
    """
    from PIL import Image

    require(len(data) <= MAX_BYTES, f"the picture has {len(data)} bytes, the limit is {MAX_BYTES}")
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            require(
                image.width * image.height <= MAX_PIXELS,
                f"the picture has more than {MAX_PIXELS} pixels",
            )
            flat = image.convert("RGBA")
            white = Image.new("RGBA", flat.size, (WHITE, WHITE, WHITE, 255))
            return np.array(Image.alpha_composite(white, flat).convert("RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as fault:
        raise ValueError(f"not a PNG picture: {fault}") from None


def to_data_url(pixels: Pixels) -> str:
    """Encode the picture as the `image_url` of a chat message."""
    return _HEAD + base64.b64encode(to_png(pixels)).decode()


def from_data_url(url: str) -> Pixels:
    """Decode a `to_data_url` to uint8 [H, W, 3].

    Raises:
        ValueError: no such URL.
    """
    require(url.startswith(_HEAD), f"not a data URL of a PNG: {url[:40]!r}")
    return from_png(base64.b64decode(url.removeprefix(_HEAD)))
