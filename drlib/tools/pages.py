"""The pages that a tool's result showed, read back out of the text that the policy read."""

import re
from dataclasses import dataclass

from drlib.trajectory import ToolResult

HIT = re.compile(r"^\d+\. \[(?P<title>.+?)\]\((?P<url>.+?)\)\n(?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A page, or the part of it, that stood in a result; `url` is the title of a page visited."""

    title: str
    url: str
    text: str


def pages_shown(result: ToolResult) -> list[Shown]:
    """The hits of a search and the pages of a visit; none where the call failed."""
    if not result.ok:
        return []
    shown = [Shown(hit["title"], hit["url"], hit["text"]) for hit in HIT.finditer(result.text)]
    urls = result.arguments.get("url", ()) if result.tool == "visit" else ()
    urls = [urls] if isinstance(urls, str) else urls
    return shown + [Shown(url, url, result.text) for url in urls]
