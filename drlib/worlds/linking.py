"""Links in a file of a folder: by path and by name.

A path with a known suffix is an address. A *name* is resolved by `drlib.worlds.joining` when all
files are known: a wiki link ("[[Note]]", "[[Note|shown]]", "[[Note#Heading]]"), a path without
suffix ("guide/intro", "docs/"), or an rst label. A file's text therefore does not depend on other
files, and a new or deleted file changes only its own stamp.

Supported forms: [so](a.md), [so](<a b.md>), [so][label] with "[label]: a.md" anywhere in the file,
<a.md>, and [[so]]. Code fences contain no links.
"""

import json
import posixpath
import re
import unicodedata
from typing import NamedTuple
from urllib.parse import unquote

from drlib.worlds.reading import OUTLINES

FENCED = "\0"  # marks fenced lines while a file is cut; they contain no structure
WORDS = r"([^\[\]\n]{0,300})"
# A target may contain parentheses in pairs, as in "Rome_(city).md", or escaped.
UNPAIRED = r"[^()\s<>\\]{1,500}+|\\[()]|\\(?![()])"
PAIRED = rf"\((?:{UNPAIRED}|\((?:{UNPAIRED})*\))*\)"
LINK_TARGET = rf"(?:<([^<>\n]{{1,500}})>|((?:{UNPAIRED}|{PAIRED}){{1,500}}))"
LINK_TITLE = (
    r"(?:[ \t]+(?:\"[^\"\n]{0,300}\"|'[^'\n]{0,300}'|\([^()\n]{0,300}\))[ \t]*"
    r"|[ \t][^()\n]{0,300})?"
)
MARKDOWN_LINK = re.compile(rf"\[{WORDS}\]\([ \t]*{LINK_TARGET}{LINK_TITLE}\)")
REFERENCE = re.compile(rf"(?<!\[)\[{WORDS}\](?:\[([^\[\]\n]{{0,200}})\])?(?![\[(:\]])")
DEFINITION = re.compile(
    rf" {{0,3}}\[([^\[\]^\n][^\[\]\n]{{0,200}})\]:[ \t]+{LINK_TARGET}"
    r"(?:[ \t]+[\"'(].{0,300})?[ \t]*"
)
FILE_LINK = re.compile(r"<([^<>\s:@]{1,300}\.\w{2,5})>")
WIKI_LINK = re.compile(
    r"!?\[\[([^\[\]|#\n]{0,200})(?:#([^\[\]|\n]{0,200}))?(?:\\?\|([^\[\]\n]{0,200}))?\]\]"
)
NAMED = "~named "  # prefix of an unresolved name among a document's links


class Address(NamedTuple):
    """Target of a link: the title of a chunk, or a name that is resolved later."""

    to: str
    is_name: bool


def slug(heading: str) -> str:
    """Return the anchor of a heading as on GitHub: "Getting started!" -> "getting-started"."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") or "section"


def file_suffix(source: str) -> str:
    """Return the lower-case suffix: "guide/Intro.MD" -> ".md"."""
    return posixpath.splitext(source)[1].lower()


def find_definitions(text: str) -> dict[str, str]:
    """Return case-folded label -> target of the "[label]: target" lines of a file."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        match = DEFINITION.fullmatch(line) if line.lstrip().startswith("[") else None
        if match:
            found.setdefault(match[1].casefold(), match[2] or match[3])
    return found


def resolve_links(
    source: str, text: str, labels: dict[str, str]
) -> tuple[str, tuple[Address, ...]]:
    """Replace links inside the folder by addresses; return the text and the addresses."""
    found: dict[Address, None] = {}

    def render(words: str, address: Address | None, as_it_was: str) -> str:
        if address is None:
            return as_it_was
        found[address] = None
        return f"[{words}](folder:{address.to})"

    def render_reference(match: re.Match) -> str:
        target = labels.get((match[2] or match[1]).casefold())
        return render(match[1], link_target(source, target) if target else None, match[0])

    def render_line(line: str) -> str:
        if line.startswith(FENCED):
            return line
        if "[[" in line:
            line = WIKI_LINK.sub(
                lambda m: render(wiki_label(m), wiki_target(source, m), m[0]), line
            )
        line = MARKDOWN_LINK.sub(
            lambda m: render(m[1], link_target(source, m[2] or m[3]), m[0]), line
        )
        if labels and not DEFINITION.fullmatch(line):
            line = REFERENCE.sub(render_reference, line)
        if "<" in line:
            line = FILE_LINK.sub(lambda m: render(m[1], link_target(source, m[1]), m[0]), line)
        return line

    return "\n".join(map(render_line, text.split("\n"))), tuple(found)


def link_target(source: str, link: str) -> Address | None:
    """Resolve a link in `source`; None for other file types and outside the folder."""
    link = link.replace("\\(", "(").replace("\\)", ")")
    path, _, anchor = unicodedata.normalize("NFC", unquote(link)).partition("#")
    if re.match(r"[a-zA-Z][\w+.-]*:|//", path):
        return None
    is_name = False
    if path:
        base = "" if path.startswith("/") else posixpath.dirname(source)
        is_name = not file_suffix(path.rstrip("/")) and path.strip("./") != ""
        path = posixpath.normpath(posixpath.join(base, path.lstrip("/")))
    else:
        path = source
    if path.startswith("../") or (file_suffix(path) not in OUTLINES and not is_name):
        return None
    if path != source and file_suffix(path) in (".html", ".htm"):
        anchor = ""  # most anchors are at no heading, which is unknown here
    return Address(f"{path}#{anchor}" if anchor else path, is_name)


def wiki_target(source: str, match: re.Match) -> Address | None:
    """Resolve a wiki link in `source`: a name, or a section of the same file."""
    name, heading = match[1].strip().rstrip("\\"), match[2]
    anchor = f"#{slug(heading.rpartition('#')[2].strip())}" if heading else ""
    if match[0].startswith("!") and file_suffix(name) not in ("", *OUTLINES):
        return None  # an embedded picture
    if not name:
        return Address(f"{source}{anchor}", False) if anchor else None
    return Address(f"{name}{anchor}", True)


def wiki_label(match: re.Match) -> str:
    """Return the visible text of a wiki link."""
    return (match[3] or match[1] or match[2] or "").strip().rstrip("\\")


def encode_links(addresses: tuple[Address, ...]) -> tuple[str, ...]:
    """Encode addresses as the links of a document, with names marked."""
    return tuple(f"{NAMED}{to}" if is_name else to for to, is_name in addresses)


def decode_names(links: str) -> list[str]:
    """Return the names among a document's links, given as JSON."""
    return [
        link.removeprefix(NAMED)
        for link in (json.loads(links) if NAMED in links else ())
        if link.startswith(NAMED)
    ]
