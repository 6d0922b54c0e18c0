"""Pictures: names that identify pixels, and the tools based on pixels only.

Run: python -m pytest tests/test_tools_pictures.py
"""

import numpy as np
import pytest

from drlib.tools import TOOLS, Toolbox
from drlib.tools.definitions import Tool
from drlib.tools.pictures import (
    NO_PICTURE,
    NO_TEXT,
    NOT_FOUND,
    Album,
    from_data_url,
    from_png,
    to_data_url,
    to_png,
)
from drlib.worlds import load_world
from drlib.worlds.emblems import draw, make_sheet, sheet_boxes

WORLD = load_world("tour")
TITLES = [*WORLD.entities]


@pytest.fixture(scope="module")
def album():
    return Album(WORLD)


@pytest.fixture(scope="module")
def toolbox(album):
    with Toolbox(WORLD, results=2, pictures=album) as toolbox:
        yield toolbox


def drawn(album, title):
    return draw(album.emblems[title])


def test_name_identifies_pixels(album):
    name = album.add(drawn(album, "Norway"))
    assert name == album.add(drawn(album, "Norway").copy()) != album.add(drawn(album, "Peru"))
    assert (album.pixels(name) == drawn(album, "Norway")).all() and name in album
    flat = drawn(album, "Norway").reshape(32, 128, 3)
    assert album.add(flat) != name, "the shape is part of it"
    for unknown in ("no.png", f"{name}#xywh=0,0,65,64", f"{name}#xywh=0,0,0,9", f"{name}#x", 3):
        assert unknown not in album
    with pytest.raises(ValueError, match=r"uint8 \[H, W, 3\]"):
        album.add(np.zeros((4, 4)))


def test_identify_matches_exact_emblems_only(album):
    for title in TITLES[::7]:
        assert album.identify(drawn(album, title)) == title
        noisy = drawn(album, title).astype(int) + np.random.default_rng(0).integers(
            -6, 7, (64, 64, 1)
        )
        assert album.identify(np.clip(noisy, 0, 255).astype(np.uint8)) == title
    picture = drawn(album, "Norway")
    swapped = picture.copy()
    swapped[46:60, 8:32] = drawn(album, "Peru")[46:60, 8:32]  # two digits of another's
    assert album.identify(swapped) is None
    rows = np.arange(64).reshape(8, 8)[:, ::-1].ravel()  # every patch upside down, equal on average
    assert album.identify(picture[rows]) is None
    assert album.identify(np.full_like(picture, 255)) is None
    assert album.identify(picture[:, :40]) is None and album.identify(picture[:46]) is None
    assert Album().identify(picture) is None


def test_image_search_crop_and_read_work_together(album, toolbox):
    picture = album.add(make_sheet([drawn(album, title) for title in TITLES[:4]]))
    numbers = [album.emblems[title].number for title in TITLES[:4]]
    read = toolbox.call("read", {"image": picture})
    assert read.text.split() == numbers and read.ok
    assert toolbox.call("image_search", {"image": picture}).text == NOT_FOUND, "four things"
    for title, number, box in zip(TITLES, numbers, sheet_boxes(4)):
        cut = toolbox.call("crop", {"image": picture, "box": ",".join(map(str, box))})
        part, _, size = cut.text.partition(" ")
        assert size == "(64 x 64 pixels)" and part in album
        assert toolbox.call("read", {"image": part}).text == number
        found = toolbox.call("image_search", {"image": part})
        caption = album.emblems[title].caption
        assert found.text == f"1. [{title}]({WORLD.url(title)})\n{caption}"
        assert number in caption
    inner = toolbox.call("crop", {"image": part, "box": "0, 40, 64, 24"}).text.partition(" ")[0]
    assert inner == f"{picture}#xywh=80,120,64,24", "a part of a part is one of the whole"
    assert toolbox.call("read", {"image": inner}).text == numbers[3]


def test_errors_are_observations(album, toolbox):
    picture = album.add(drawn(album, "Norway"))
    for tool, more in (("image_search", {}), ("crop", {"box": "0,0,9,9"}), ("read", {})):
        assert toolbox.call(tool, {"image": "no.png"} | more).text == NO_PICTURE.format("no.png")
    for box in ("0,0,65,64", "60,0,5,5", "0,0,0,5", "-1,0,5,5", "1,2,3", "0;0;9;9", "9" * 50):
        text = toolbox.call("crop", {"image": picture, "box": box}).text
        assert text.startswith("Error: box is") and "inside 64 x 64" in text
    blank = album.add(np.full((9, 9, 3), 255, np.uint8))
    assert toolbox.call("read", {"image": blank}).text == NO_TEXT
    assert toolbox.call("image_search", {"image": blank}).text == NOT_FOUND
    assert toolbox.call("crop", {"image": picture}).error == "arguments"


def test_picture_tools_need_an_album(album, toolbox, monkeypatch):
    with Toolbox(WORLD) as plain:
        assert not {"image_search", "crop", "read"} & plain.tools.keys() and plain.pictures is None
    assert [*toolbox.tools] == ["search", "visit", "image_search", "crop", "read"]
    assert toolbox.schemas[3]["parameters"]["required"] == ["image", "box"]
    taken = Tool("read", "Reads.", (), run=lambda: "")
    monkeypatch.setitem(TOOLS, "read", taken)
    with pytest.raises(ValueError, match=r"\['read'\]"):
        Toolbox(WORLD, pictures=album)


def test_png_and_data_url_round_trip(album):
    picture = drawn(album, "Norway")
    assert (from_png(to_png(picture)) == picture).all()
    assert (from_data_url(to_data_url(picture)) == picture).all()
    for broken in (b"", b"no picture", to_png(picture)[:90]):
        with pytest.raises(ValueError, match="PNG"):
            from_png(broken)
    with pytest.raises(ValueError, match="not a data URL"):
        from_data_url("https://example.com/a.png")
