"""A web site as a world that is fetched when it is loaded: `load_world("live:https://docs.x.org/")`.

What the question engine needs is the whole of a site, not a page now and then, so loading crawls it
(`drlib.tools.crawl`: as a guest, within the start's folder, each page once) and reads the folder
that comes of it. Loading it again asks the site for its robots.txt and for the pages that are still
missing; where the site does not answer any more, what was kept before is the world, with a warning.
The web address of each file stands in `.crawl/pages.jsonl`.

Left out: pages that have changed since they were fetched (delete the folder to fetch them again),
sites that want a browser or a password.
"""

import hashlib
import re
import warnings
from pathlib import Path
from urllib.parse import urlsplit

from drlib.config import ROOT
from drlib.tools.crawl import KEPT, Crawl
from drlib.tools.fetch import PageReader
from drlib.worlds import Library, load_world

KEPT_SITES = ROOT / "runs" / "live"


def load(
    rest: str,
    index_path: Path | None = None,
    *,
    folder: str | Path | None = None,
    pages: int = 200,
    delay_s: float = 1.0,
    private: bool = False,
    **options,
) -> Library:
    """The site at the address `rest` as a `Library`.

    folder: where its pages are kept; None: one of its own in `runs/live`. pages, delay_s: see
    `Crawl`. private: whether the site may be on this machine's own network. options: those of
    "folder:PATH".

    ValueError: no web address, or a folder of something else. ConnectionError: the site cannot be
    read, and nothing was kept of it before.
    """
    place = Path(folder) if folder is not None else KEPT_SITES / _name_of(rest)
    reader = PageReader(allow_private=private)
    crawl = Crawl(rest, place, pages=pages, delay_s=delay_s, reader=reader)
    try:
        crawl.run()
    except ConnectionError as fault:
        if not _holds_pages(place):
            raise
        warnings.warn(f"live:{rest}: {fault}; the world is what {place} holds", stacklevel=2)
    library = load_world(f"folder:{place}", index_path, **options)
    library.name = f"live:{rest}"
    return library


def _name_of(address: str) -> str:
    """A folder's name for a site: its host, and a digest of the whole address."""
    host = re.sub(r"[^\w.-]", "_", urlsplit(address).netloc)
    return f"{host}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


def _holds_pages(folder: Path) -> bool:
    return any(
        path.is_file() and KEPT not in path.relative_to(folder).parts for path in folder.rglob("*")
    )
