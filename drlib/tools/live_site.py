"""World `live`: a web site that is crawled when it is loaded.

    load_world("live:https://docs.x.org/")

Question synthesis needs a whole site, so loading crawls it (`drlib.tools.crawl`: within the start's
folder, each page once) and reads the resulting folder. Loading again requests robots.txt and
missing pages only. If the site does not answer, the pages kept before are the world, with a
warning. The web address of each file is in `.crawl/pages.jsonl`.

Not implemented: pages that changed since they were fetched (delete the folder to fetch them again),
sites that need a browser or a password.
"""

import hashlib
import re
import warnings
from pathlib import Path
from urllib.parse import urlsplit

from drlib.config import runs_folder
from drlib.tools.crawl import CACHE_FOLDER, Crawl
from drlib.tools.fetch import PageReader
from drlib.worlds import World, load_world


def load(
    rest: str,
    index_path: Path | None = None,
    *,
    folder: str | Path | None = None,
    pages: int = 200,
    delay_s: float = 1.0,
    private: bool = False,
    **options,
) -> World:
    """Load the site at the address `rest` as a world of its pages.

    Args:
        rest: address of the start page.
        index_path: file of the index; None: in memory.
        folder: where pages are kept; None: a folder in `runs/live`.
        pages: largest number of pages.
        delay_s: seconds between requests.
        private: allow a site in the local network.
        options: those of "folder:PATH".

    Raises:
        ValueError: no web address, or the folder contains something else.
        ConnectionError: the site cannot be read and no page was kept before.
    """
    place = Path(folder) if folder is not None else runs_folder() / "live" / _folder_name(rest)
    reader = PageReader(allow_private=private)
    crawl = Crawl(rest, place, pages=pages, delay_s=delay_s, reader=reader)
    try:
        crawl.run()
    except ConnectionError as fault:
        if not _holds_pages(place):
            raise
        warnings.warn(f"live:{rest}: {fault}; using the pages kept in {place}", stacklevel=2)
    library = load_world(f"folder:{place}", index_path, **options)
    library.name = f"live:{rest}"
    return library


def _folder_name(address: str) -> str:
    """Return a folder name for a site: its host and a digest of the whole address."""
    host = re.sub(r"[^\w.-]", "_", urlsplit(address).netloc)
    return f"{host}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


def _holds_pages(folder: Path) -> bool:
    return any(
        path.is_file() and CACHE_FOLDER not in path.relative_to(folder).parts
        for path in folder.rglob("*")
    )
