"""Links of one file of a folder: those that say a path, and those that say a name.

A path with a known suffix is an address as it stands. A *name* is an address too, which
`drlib.worlds.joining` makes lead somewhere when all files are known: a wiki link ("[[Note]]",
"[[Note|shown]]", "[[Note#Heading]]"), a path without suffix ("guide/intro", "docs/"), a label of
rst. So a file's text does not depend on which other files there are, and one that comes or goes
changes no stamp but its own.

Links are written [so](a.md), [so](<a b.md>), [so][label] with "[label]: a.md" anywhere in the file,
<a.md>, or [[so]]. Nothing in a fence is a link.
"""

import json
import posixpath
import re
from typing import NamedTuple
from urllib.parse import unquote

from drlib.worlds.reading import OUTLINES

FENCED = "\0"  # before each line of a fence while a file is cut: nothing in it is structure
WORDS = r"([^\[\]\n]{0,300})"
LINK_TARGET = r"(?:<([^<>\n]{1,500})>|([^()\s<>]{1,500}))"
MARKDOWN_LINK = re.compile(rf"\[{WORDS}\]\([ \t]*{LINK_TARGET}(?:[ \t][^()\n]{{0,300}})?\)")
REFERENCE = re.compile(rf"(?<!\[)\[{WORDS}\](?:\[([^\[\]\n]{{0,200}})\])?(?![\[(:\]])")
DEFINITION = re.compile(
    rf" {{0,3}}\[([^\[\]^\n][^\[\]\n]{{0,200}})\]:[ \t]+{LINK_TARGET}"
    r"(?:[ \t]+[\"'(].{0,300})?[ \t]*"
)
FILE_LINK = re.compile(r"<([^<>\s:@]{1,300}\.\w{2,5})>")
WIKI_LINK = re.compile(
    r"!?\[\[([^\[\]|#\n]{0,200})(?:#([^\[\]|\n]{0,200}))?(?:\\?\|([^\[\]\n]{0,200}))?\]\]"
)
NAMED = "~named "  # before a name among the links of a document, which is no title


class Address(NamedTuple):
    """What a link means: a chunk's title, or a name that is to lead to one."""

    to: str
    is_name: bool


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub writes it: "Getting started!" -> "getting-started"."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") or "section"


def suffix_of(source: str) -> str:
    """ "guide/Intro.MD" -> ".md" """
    return posixpath.splitext(source)[1].lower()


def definitions(text: str) -> dict[str, str]:
    """Label, in one case -> target of the "[label]: target" lines of a file."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        match = DEFINITION.fullmatch(line) if line.lstrip().startswith("[") else None
        if match:
            found.setdefault(match[1].casefold(), match[2] or match[3])
    return found


def linked(source: str, text: str, labels: dict[str, str]) -> tuple[str, tuple[Address, ...]]:
    """The text, its links inside the folder made addresses, and these."""
    found: dict[Address, None] = {}

    def shown(words: str, address: Address | None, as_it_was: str) -> str:
        if address is None:
            return as_it_was
        found[address] = None
        return f"[{words}](folder:{address.to})"

    def of_reference(match: re.Match) -> str:
        target = labels.get((match[2] or match[1]).casefold())
        return shown(match[1], target_of(source, target) if target else None, match[0])

    def in_line(line: str) -> str:
        if line.startswith(FENCED):
            return line
        if "[[" in line:
            line = WIKI_LINK.sub(lambda m: shown(wiki_words(m), of_wiki(source, m), m[0]), line)
        line = MARKDOWN_LINK.sub(lambda m: shown(m[1], target_of(source, m[2] or m[3]), m[0]), line)
        if labels and not DEFINITION.fullmatch(line):
            line = REFERENCE.sub(of_reference, line)
        if "<" in line:
            line = FILE_LINK.sub(lambda m: shown(m[1], target_of(source, m[1]), m[0]), line)
        return line

    return "\n".join(map(in_line, text.split("\n"))), tuple(found)


def target_of(source: str, link: str) -> Address | None:
    """What a link in `source` means; None for other types and outside the folder."""
    path, _, anchor = unquote(link).partition("#")
    if re.match(r"[a-zA-Z][\w+.-]*:|//", path):
        return None
    is_name = False
    if path:
        base = "" if path.startswith("/") else posixpath.dirname(source)
        is_name = not suffix_of(path.rstrip("/")) and path.strip("./") != ""
        path = posixpath.normpath(posixpath.join(base, path.lstrip("/")))
    else:
        path = source
    if path.startswith("../") or (suffix_of(path) not in OUTLINES and not is_name):
        return None
    if path != source and suffix_of(path) in (".html", ".htm"):
        anchor = ""  # most stand at no heading, which cannot be seen from here
    return Address(f"{path}#{anchor}" if anchor else path, is_name)


def of_wiki(source: str, match: re.Match) -> Address | None:
    """What a wiki link in `source` means: a name, or a section of the same file."""
    name, heading = match[1].strip().rstrip("\\"), match[2]
    anchor = f"#{slug(heading.rpartition('#')[2].strip())}" if heading else ""
    if match[0].startswith("!") and suffix_of(name) not in ("", *OUTLINES):
        return None  # a picture, shown
    if not name:
        return Address(f"{source}{anchor}", False) if anchor else None
    return Address(f"{name}{anchor}", True)


def wiki_words(match: re.Match) -> str:
    """What a reader sees of a wiki link."""
    return (match[3] or match[1] or match[2] or "").strip().rstrip("\\")


def as_links(addresses: tuple[Address, ...]) -> tuple[str, ...]:
    """Addresses as the links of a document, names marked as such."""
    return tuple(f"{NAMED}{to}" if is_name else to for to, is_name in addresses)


def names_in(links: str) -> list[str]:
    """The names among a document's links, as the store keeps them."""
    return [
        link.removeprefix(NAMED)
        for link in (json.loads(links) if NAMED in links else ())
        if link.startswith(NAMED)
    ]
