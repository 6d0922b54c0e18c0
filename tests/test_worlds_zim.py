"""World `zim`: Kiwix files written with libzim's Creator."""

import sys

import pytest

pytest.importorskip("trafilatura")

from drlib.worlds import load_world


def test_missing_libzim_error_names_licence_and_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "libzim", None)
    monkeypatch.setitem(sys.modules, "libzim.reader", None)
    with pytest.raises(ImportError, match=r'pip install "drlib\[zim\]" .*GPL-3.0-or-later'):
        load_world(f"zim:{tmp_path / 'a.zim'}")


writer = pytest.importorskip("libzim.writer")

PAGES = {
    "A/Oslo": (
        "Oslo",
        "<h1>Oslo</h1><p>Capital of <a href='./Norway#x'>Norway</a>, near "
        "<a href='../A/Kristiania'>itself</a> and <a href='Nowhere'>nowhere</a>, "
        "<a href='https://example.org'>far</a>.</p><script>evil()</script>",
    ),
    "A/Norway": (
        "Norway",
        "<p>Its capital is <a href='Kristiania'>Kristiania</a> (<a href='Sk%C3%A5l'>skål</a>).</p>",
    ),
    "A/Skål": ("Skål", "<p>A toast.</p>"),
    "A/Oslo_2": ("Oslo", "<p>A town in Minnesota.</p>"),
}


class Article(writer.Item):
    def __init__(self, path, title, html, mime="text/html"):
        super().__init__()
        self.path, self.title, self.html, self.mime = path, title, html, mime

    def get_path(self):
        return self.path

    def get_title(self):
        return self.title

    def get_mimetype(self):
        return self.mime

    def get_contentprovider(self):
        return writer.StringProvider(self.html)

    def get_hints(self):
        return {writer.Hint.FRONT_ARTICLE: self.mime == "text/html"}


def make(path, pages):
    with writer.Creator(path).config_indexing(True, "eng") as creator:
        creator.set_mainpath("A/Oslo")
        for name, (title, html) in pages.items():
            creator.add_item(Article(name, title, f"<html><body>{html}</body></html>"))
        creator.add_item(Article("I/style.css", "", "p {}", "text/css"))
        creator.add_redirection("A/Kristiania", "Kristiania", "A/Oslo", {})
        creator.add_redirection("A/Christiania", "Christiania", "A/Kristiania", {})
        for name in ("Title", "Language", "Creator", "Publisher", "Name", "Description"):
            creator.add_metadata(name, "eng")
        creator.add_metadata("Date", "2026-01-01")
    return path


@pytest.fixture
def file(tmp_path):
    return make(tmp_path / "wiki.zim", PAGES)


def test_articles_links_and_redirects(file, tmp_path):
    world = load_world(f"zim:{file}", tmp_path / "index.sqlite")
    assert len(world) == 4 and world.changes.skipped == {}
    assert set(world.graph.facts) == {
        ("Oslo", "link", "Norway"),
        ("Norway", "link", "Oslo"),
        ("Norway", "link", "Skål"),
    }
    assert world.graph.nodes["Oslo"].aliases == ("Christiania", "Kristiania")
    text = world.page("zim:Oslo").text
    assert "Capital of [Norway](zim:Norway), near [itself](zim:Oslo) and nowhere" in text
    assert "evil" not in text and world.links("Norway") == ("Oslo", "Skål")
    assert world.search("kristiania")[0].title == "Oslo"
    assert world.search("Minnesota")[0].title == "Oslo (A/Oslo_2)"


def test_index_is_rebuilt_for_another_file(file, tmp_path):
    index = tmp_path / "index.sqlite"
    first = load_world(f"zim:{file}", index)
    again = load_world(f"zim:{file}", index)
    assert again.changes[:3] == ([], [], []) and again.version == first.version
    file.unlink()
    make(file, {**PAGES, "A/Rome": ("Rome", "<p>In Italy.</p>")})
    assert load_world(f"zim:{file}", index).changes.updated == ["wiki.zim"]


def test_limit_counts_articles(file):
    world = load_world(f"zim:{file}", limit=2)
    assert len(world) == 2 and world.find("Norway") and world.find("Oslo")


def test_non_zim_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="zim:.*not a ZIM file"):
        load_world(f"zim:{tmp_path / 'none.zim'}")
    (tmp_path / "text.zim").write_text("not a zim file")
    with pytest.raises(ValueError, match="not a ZIM file"):
        load_world(f"zim:{tmp_path / 'text.zim'}")


def test_unparsable_article_does_not_stop_the_others(file, monkeypatch):
    from drlib.worlds import zim

    monkeypatch.setattr(zim, "TIMEOUT_S", 1e-4)
    world = load_world(f"zim:{file}")
    assert len(world) == 4 and "could not be read: timeout" in world.page("Oslo").text
