"""Crawling a site into a folder: requested addresses, limits, resumption.

Run: python -m pytest tests/test_tools_crawl.py
"""

import subprocess
import sys
import time

import pytest

from drlib.files import read_json_lines
from drlib.tools.crawl import MAX_FAILED, Crawl
from drlib.worlds import load_world
from tests.web_servers import CLOSED, reader, site

pytest.importorskip("trafilatura")

__all__ = ["reader", "site"]  # fixtures

TABLE = "<table><tr><th>tool</th><th>maker</th></tr><tr><td>Plane</td><td>Ada</td></tr></table>"


def page(*links, body=""):
    return "".join(f'<p><a href="{link}">to</a></p>' for link in links).encode() + body.encode()


def small_site(site):
    """Create a guide of four pages and a PDF, with all kinds of links out of it."""
    site.page("/robots.txt", b"User-agent: *\nDisallow: /guide/secret\n", "text/plain")
    out = ("/other", "http://other.test/guide/x", "secret/plan", "mailto:a@b.c", "../guide2/y")
    home = b"<title>The guide</title>" + page("tools/", "old#part", "about.html", *out)
    start = site.page("/guide/", home)
    site.page("/guide/tools/", page("../", "../about.html#who", "?p=2", body=TABLE))
    site.page("/guide/tools/?p=2", b"<h1>More tools</h1><pre>[a](about.html)</pre>")
    site.page("/guide/about.html", b"<h1>About</h1><h2 id='who'>Who</h2>" + page("notes.txt"))
    site.page("/guide/old", status=301, Location="/guide/about.html")
    site.page("/guide/notes.txt", b"Notes.", "text/plain")
    return start


def list_requests(site):
    return [path for _, path, _ in site.seen]


def files_of(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and ".crawl" not in path.parts
    )


def test_site_becomes_a_world_and_nothing_else_is_requested(site, reader, tmp_path):
    ends = Crawl(small_site(site), tmp_path / "out", delay_s=0, reader=reader).run()
    assert ends == {"fetched": 6, "files written": 5}
    assert list_requests(site) == [
        "/robots.txt",
        "/guide/",
        "/guide/tools/",
        "/guide/old",
        "/guide/about.html",  # by the redirect
        "/guide/about.html",
        "/guide/tools/?p=2",
        "/guide/notes.txt",
    ]
    assert {headers["User-Agent"] for *_, headers in site.seen} == {"drlib"}
    more = next(name for name in files_of(tmp_path / "out") if "index-" in name)
    assert files_of(tmp_path / "out") == [
        "about.md".join(["guide/", ""]),
        "guide/index.md",
        "guide/notes.txt",
        more,
        "guide/tools/index.md",
    ]
    home = (tmp_path / "out/guide/index.md").read_text()
    assert home.startswith("# The guide\n")
    assert "[to](tools/index.md)" in home and "[to](about.md#part)" in home
    assert f"[to](http://example.test:{site.port}/guide/secret/plan)" in home
    assert "[a](about.html)" in (tmp_path / "out" / more).read_text()  # inside a fence: no link

    world = load_world(f"folder:{tmp_path / 'out'}")
    assert ("guide/index.md", "link", "guide/tools/index.md") in world.graph.facts
    assert ("guide/tools/index.md", "link", "guide/about.md#who") in world.graph.facts
    assert any(fact[1:] == ("maker", "Ada") for fact in world.graph.facts)


def test_crawl_resumes_and_writes_only_new_files(site, reader, tmp_path):
    start, out = small_site(site), tmp_path / "out"
    assert Crawl(start, out, pages=2, delay_s=0, reader=reader).run()["files written"] == 2
    before = (out / "guide/tools/index.md").stat().st_mtime_ns
    site.seen.clear()
    assert Crawl(start, out, pages=50, delay_s=0, reader=reader).run()["fetched"] == 4
    assert "/guide/" not in list_requests(site) and "/guide/tools/" not in list_requests(site)
    assert "[to](../about.md#who)" in (out / "guide/tools/index.md").read_text()
    # the link points to a file now
    assert (out / "guide/tools/index.md").stat().st_mtime_ns > before
    site.seen.clear()
    kept = {name: (out / name).stat().st_mtime_ns for name in files_of(out)}
    assert Crawl(start, out, delay_s=0, reader=reader).run() == {"files written": 0}
    assert list_requests(site) == ["/robots.txt"]
    assert kept == {name: (out / name).stat().st_mtime_ns for name in files_of(out)}


def test_delay_between_requests_and_retry_after(site, reader, tmp_path):
    replies = iter(
        [
            b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\n\r\n<p>it</p>",
        ]
    )
    times = []

    def busy_at_first(file):
        times.append(time.monotonic())
        file.write(next(replies))

    start = site.page("/", page("/busy"))
    site.raw["/busy"] = busy_at_first
    began = time.monotonic()
    ends = Crawl(start, tmp_path / "out", delay_s=0.2, reader=reader).run()
    assert ends["fetched"] == 2 and times[1] - times[0] >= 1
    assert times[0] - began >= 0.4  # robots.txt, then "/", then this one


def test_crawl_delay_of_the_site_is_obeyed(site, reader, tmp_path):
    times = []

    def at_once(kind, body):
        def reply(file):
            times.append(time.monotonic())
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            file.write(head.encode() + body)

        return reply

    site.raw["/robots.txt"] = at_once("text/plain", b"User-agent: *\nCrawl-delay: 1\n")
    site.raw["/"] = at_once("text/html", b"<p>it</p>")
    Crawl(site.page("/"), tmp_path / "out", delay_s=0, reader=reader).run()
    assert times[1] - times[0] >= 1


def test_faults_are_recorded_and_transient_ones_retried(site, reader, tmp_path, monkeypatch):
    monkeypatch.setattr("drlib.tools.crawl.ATTEMPTS", 1)
    inside = f"http://inside.test:{site.port}/"
    site.page("/in", status=302, Location=inside)
    site.page("/picture", b"x", "image/png")
    site.page("/later", status=500)
    start = site.page("/", page("/gone", "/in", "/picture", "/later"))
    ends = Crawl(start, tmp_path, delay_s=0, reader=reader).run()
    expected = {"fetched": 1, "not_found": 1, "refused": 2, "server": 1, "files written": 1}
    assert ends == expected
    assert not any(address == CLOSED for address, *_ in site.seen)
    rows = {
        row["url"].rpartition("/")[2]: row
        for row in read_json_lines(tmp_path / ".crawl/pages.jsonl")
        if "url" in row
    }
    assert "is not permitted" in rows["in"]["fault"] and "image/png" in rows["picture"]["fault"]
    site.page("/later", b"<p>now</p>")
    site.seen.clear()
    assert Crawl(start, tmp_path, delay_s=0, reader=reader).run()["fetched"] == 1
    assert list_requests(site) == ["/robots.txt", "/later"]


def test_crawl_stops_if_the_site_is_down(site, reader, tmp_path, monkeypatch):
    monkeypatch.setattr("drlib.tools.crawl.ATTEMPTS", 1)
    links = [f"/{number}" for number in range(9)]
    start = site.page("/", page(*links))
    for link in links:
        site.page(link, status=500)
    with pytest.raises(ConnectionError, match="5 pages in a row failed"):
        Crawl(start, tmp_path, delay_s=0, reader=reader).run()
    assert len(list_requests(site)) == 2 + MAX_FAILED and files_of(tmp_path) == ["index.md"]
    site.page("/robots.txt", status=500)
    site.seen.clear()
    with pytest.raises(ConnectionError, match="robots.txt cannot be read"):
        Crawl(start, tmp_path / "new", delay_s=0, reader=reader).run()
    assert list_requests(site) == ["/robots.txt"]


def test_invalid_input_is_rejected(site, reader, tmp_path):
    (tmp_path / "mine.md").write_text("x")
    for start, folder, how, message in (
        ("ftp://x", tmp_path / "a", {}, "pass the address of a page"),
        (site.page("/"), tmp_path, {}, "contains files of no crawl"),
        (site.page("/"), tmp_path / "a", {"pages": 0}, "pages=0"),
    ):
        with pytest.raises(ValueError, match=message):
            Crawl(start, folder, reader=reader, **how)
    Crawl(site.page("/"), tmp_path / "b", reader=reader)
    with pytest.raises(ValueError, match="contains a crawl of"):
        Crawl(site.page("/other"), tmp_path / "b", reader=reader)
    closed = site.page("/secret/")
    site.page("/robots.txt", b"User-agent: drlib\nDisallow: /secret/\n", "text/plain")
    with pytest.raises(ConnectionError, match="was kept: .*is not permitted"):
        Crawl(closed, tmp_path / "c", delay_s=0, reader=reader).run()


def test_crawl_command(site, tmp_path):
    small_site(site)
    start = f"http://{CLOSED}:{site.port}/guide/"
    command = [sys.executable, "-m", "drlib.cli", "crawl", start, str(tmp_path / "out")]
    done = subprocess.run([*command, "--delay", "0"], capture_output=True, text=True)
    assert done.returncode == 1 and "not on the public internet" in done.stderr
    again = [*command, "--delay", "0", "--private", "--pages", "2"]
    done = subprocess.run(again, capture_output=True, text=True)
    assert done.returncode == 0 and '"files written": 2' in done.stdout, done.stderr
