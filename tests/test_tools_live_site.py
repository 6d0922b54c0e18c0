"""World `live`: fetched once, questions from its facts, kept pages when the site is down.

Run: python -m pytest tests/test_tools_live_site.py
"""

import pytest

from drlib.cli import dataset
from drlib.config import Config
from drlib.tools import live_site
from drlib.training.planner import check_settings
from drlib.worlds import load_world
from tests.web_servers import OPEN, site

pytest.importorskip("trafilatura")

__all__ = ["site"]  # a fixture

PEOPLE = (("Ada", "Bergen", "Plane"), ("Grace", "Oslo", "Saw"), ("Alan", "Bergen", "Drill"))
TABLE = "".join(f"<tr><td>{a}</td><td>{b}</td><td>{c}</td></tr>" for a, b, c in PEOPLE)
TABLE = f"<table><tr><th>maker</th><th>town</th><th>tool</th></tr>{TABLE}</table>"


def small_site(site):
    site.page("/robots.txt", b"User-agent: *\nDisallow: /guide/secret\n", "text/plain")
    links = '<p><a href="makers.html">The makers</a> <a href="secret/plan">a plan</a></p>'
    start = site.page("/guide/", f"<h1>The guide</h1>{links}".encode())
    site.page("/guide/makers.html", f"<h1>Makers</h1><p>Who made what.</p>{TABLE}".encode())
    return start.replace("example.test", OPEN)


def load(start, place, **options):
    return load_world(f"live:{start}", folder=place, delay_s=0, private=True, **options)


def test_site_is_a_world_with_facts(site, tmp_path):
    start = small_site(site)
    world = load(start, tmp_path / "site")
    assert world.name == f"live:{start}"
    assert world.search("Makers", 1)[0].title.endswith("makers.md")
    assert any("Bergen" in world.graph.values(title, "town") for title in world.graph.nodes)
    requested = [path for _, path, _ in site.seen]
    assert requested == ["/robots.txt", "/guide/", "/guide/makers.html"]
    again = load(start, tmp_path / "site")
    assert again.version == world.version
    assert [path for _, path, _ in site.seen][3:] == ["/robots.txt"]  # no page twice


def test_unreachable_site_uses_the_kept_pages(site, tmp_path):
    start = small_site(site)
    world = load(start, tmp_path / "site")
    site.page("/robots.txt", b"", status=500)
    with pytest.warns(UserWarning, match="using the pages kept in .*site"):
        again = load(start, tmp_path / "site")
    assert again.version == world.version
    with pytest.raises(ConnectionError):
        load(start, tmp_path / "another")


def test_invalid_site_raises(tmp_path):
    with pytest.raises(ValueError, match="pass the address of a page"):
        load_world("live:nowhere", folder=tmp_path / "x")
    with pytest.raises(ValueError, match="unknown world 'live'"):
        load_world("live")


def test_each_site_has_its_own_folder():
    names = {
        live_site._folder_name(f"https://docs.example.org/{path}") for path in ("a/", "b/", "a/")
    }
    assert len(names) == 2 and all(name.startswith("docs.example.org-") for name in names)


def test_dataset_command_accepts_a_site(site, tmp_path, monkeypatch, capsys):
    """`drlib dataset --world live:URL` refuses the local network in one line."""
    monkeypatch.chdir(tmp_path)
    out = ["--out", str(tmp_path / "out"), "-n", "5"]
    assert dataset.main(["--world", f"live:{small_site(site)}", *out]) == 1
    assert "drlib dataset: " in capsys.readouterr().err


def test_training_on_a_live_site_is_refused():
    (fault,) = check_settings(Config.load("ci", world__name="live:https://docs.example.org/"))
    assert (
        "`drlib crawl https://docs.example.org/ FOLDER`, then set world.name=folder:FOLDER" in fault
    )
