"""Links of the documentation pages: all of them resolve, and the README links to every page.

Run: python -m pytest tests/test_docs_pages.py
"""

import re
import subprocess
from urllib.parse import unquote

import pytest

from drlib.config import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")


def linked_paths(page):
    """Return the paths that a page links to; links out of the checkout raise."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = set()
    for target in LINK.findall(text):
        if ":" in target or target.startswith("#"):  # a URL, a page of a world, or a heading
            continue
        path = (page.parent / unquote(target.partition("#")[0])).resolve()
        found.add(path.relative_to(ROOT.resolve()).as_posix())
    return found


@pytest.fixture(scope="module")
def tracked_paths():
    """Return the files that git tracks, and the folders that contain them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = listed.stdout.splitlines()
    folders = {"/".join(file.split("/")[:n]) for file in files for n in range(file.count("/") + 1)}
    return {*files} | folders


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_points_to_a_tracked_file(page, tracked_paths):
    assert linked_paths(page) - tracked_paths == set()


def test_readme_links_to_every_page():
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES} - {"README.md"}
    assert pages - linked_paths(ROOT / "README.md") == set()
