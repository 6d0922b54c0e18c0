"""The pages that a reader goes through: no link leads nowhere, and README leads to every page.

Run: python -m pytest tests/test_docs_pages.py
"""

import re
import subprocess
from urllib.parse import unquote

import pytest

from drlib.config import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")


def linked(page):
    """Paths below the checkout that a page links to; those that lead out of it raise."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = set()
    for target in LINK.findall(text):
        if ":" in target or target.startswith("#"):  # an address, a page of a world, a heading
            continue
        path = (page.parent / unquote(target.partition("#")[0])).resolve()
        found.add(path.relative_to(ROOT.resolve()).as_posix())
    return found


@pytest.fixture(scope="module")
def committed():
    """Files that git tracks, and the folders that hold them."""
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
def test_every_link_leads_to_a_file_of_the_checkout(page, committed):
    assert linked(page) - committed == set()


def test_the_readme_leads_to_every_page():
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES} - {"README.md"}
    assert pages - linked(ROOT / "README.md") == set()
