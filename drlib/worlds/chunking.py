"""Cut a file of a folder into chunks and extract facts without a model.

A chunk is at most `CHUNK` characters of a section. Its title is an address: the first chunk of a
file is named after the file ("guide/intro.md"), a section adds its anchor
("guide/intro.md#install"), and a long section continues as "guide/intro.md#install (2)". A link
therefore names its target without reading the other file, and a changed file changes one source of
the index.

Facts: `link` (between chunks), `section`, `heading`, a file's front matter, and tables. Each row of
a table is a node whose kind is the header of the first column. Each other column is a relation;
<br> separates several values in a cell. Links by name, and values that name a page or row, are
resolved when all files are known (`drlib.worlds.joining`).

Not implemented: rst tables.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from drlib.worlds.front_matter import read_front_matter
from drlib.worlds.graph import VALUE, Fact, Node
from drlib.worlds.linking import (
    FENCED,
    MARKDOWN_LINK,
    WIKI_LINK,
    encode_links,
    file_suffix,
    find_definitions,
    link_target,
    resolve_links,
    slug,
    wiki_target,
)
from drlib.worlds.outlines import fenced
from drlib.worlds.reading import TABLES, clean, drop_data
from drlib.worlds.sheets import BETWEEN_VALUES, HAS_LETTER
from drlib.worlds.store import Document, Part, one_line
from drlib.worlds.triples import relation_name

CHUNK = 4_000  # characters
CELL = 80  # characters of a table cell or front-matter value that is a fact
LONGEST_CELL = 10_000  # characters of a cell of a csv file; above CELL it is no fact
# front-matter keys with names of the page
NAMING = ("title", "name", "alias", "aliases", "id", "slug")
LONGEST_HEADING = 500  # characters of a heading
FLAT = (".txt", ".pdf", ".docx")  # files without markup
HEADING = re.compile(r"(#{1,6})[ \t]+([^{]*[^{#\s])[ \t#]*(?:\{#([^\s{}]*)\})?\s*")
UNDERLINE = re.compile(r"([!-/:-@[-`{-~])\1{2,}\s*")
NO_HEADINGS = tuple("|>- \t\0")  # such lines are no heading, even if underlined
FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")
MDX_IMPORT = re.compile(r"(?m)\A(?:[ \t]*\n|(?:import|export)[ \t].*(?:\n|\Z))+")
RST_DOC = re.compile(r":doc:`(?:([^`<>\n]{1,200}) <)?([^`<>\s]{1,300})>?`")
RST_REF = re.compile(r":ref:`(?:([^`<>\n]{1,200}) <)?([^`<>\n]{1,200})>?`")
RST_LABEL = re.compile(r"\.\. _`?([^`:\n]{1,200})`?:\s*")
RST_LINK = re.compile(r"`([^`<>\n]{1,200}) <([^`<>\s]{1,500})>`_")
TABLE_RULE = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?)?\s*")
LIST_ITEM = re.compile(r" {0,3}[-*+] +\S")
# "- Key: value", the key of one to four words and perhaps bold, with or without the colon
KEY_VALUE = re.compile(
    r" {0,3}[-*+] +(\*\*|__)?([^\W\d_][^\s:*_|]*(?: [^\s:*_|]+){0,3})"
    r"(?:(?:\*\*|__)?:|:(?:\*\*|__)) +(\S.*)"
)
LONGEST_VALUE = 8  # words of a list's value; longer ones are sentences
GENERIC_HEADERS = {
    *(VALUE, "page", "section", "", "name", "title", "item", "entry", "key", "id", "identifier"),
    *("no", "no.", "number", "nr", "#", "row", "label", "code", "full name", "designation"),
    *("type", "kind", "class", "category", "who"),
}
PERSON_HEADERS = frozenset("name|full name|who|person|employee|staff|member|contact".split("|"))
# tables of two columns whose rows are properties of the page
PROPERTY_HEADERS = frozenset(
    "property properties attribute field spec specification feature parameter characteristic key "
    "detail fact what feature figure benefit fee limit charge cost metric measure setting "
    "term".split()
) | {""}
VALUE_HEADERS = frozenset(
    "value values data detail details specification content amount amounts rate limit fee".split()
) | {""}
# a first column that does not name the rows, and a later one that does
OTHER_COLUMNS = frozenset(
    "author authors date year week day no nr id sku code number # index rank position when".split()
) | {"article no", "article number", "item no", "part no", "published"}
NAMING_COLUMNS = frozenset("name title product item model book paper article course event".split())
# headers of tables whose other columns are things
TURNED_HEADERS = frozenset(
    "property properties attribute spec specification characteristic feature aspect".split()
)
# sections that describe the page's subject
ABOUT_PAGE = re.compile(
    r"(?i)(?:technical |key |quick |at a )?(?:specifications?|specs?|data|facts?|details?|overview|"
    r"properties|profile|summary|glance|about|information|info|general|dimensions)"
)
PERSON = re.compile(
    r"[A-Z][\w’'-]+(?: [A-Z]\.)?(?: (?:van|de|von|der|da|del))?(?: [A-Z][\w’'-]+){1,2}"
)
PERSON_SHARE = 0.8  # of the rows of a table of persons
PLURAL = re.compile(r"(?:(?<=[^aeiou])(ie)s|(?<=ss|ch|sh)es|(?<=x)es|(?<=[^su'])s)$")
DETERMINERS = ("our", "the", "all", "my", "list", "of")
PIECE = re.compile(rf"(?s).{{1,{CHUNK}}}(?:\n|\Z)|.{{{CHUNK}}}")  # cut at line ends if possible


def chunk_file(source: str, text: str) -> Part:
    """Cut one file into documents, nodes and facts.

    Args:
        source: path of the file relative to the folder.
        text: its Markdown, rst or plain text.
    """
    text = drop_data(re.sub("\r\n?", "\n", text).replace(FENCED, ""))
    file = _FileChunks(source, find_definitions(text))
    if file.is_flat:
        file.names += _first_line(text)
        file.add_section(Section(0, "", "", [text]))
    else:
        rows, kept, text = _front_matter(source, text)
        file.names += [value for relation, value in rows if relation.casefold() in NAMING]
        file.facts += [(source, *row) for row in rows]
        if file_suffix(source) == ".mdx":
            text = MDX_IMPORT.sub("", text)  # so that a heading comes first
        first, *others = _sections(text, is_rst=file_suffix(source) == ".rst")
        tops = [section.heading for section in others if section.level == 1]
        if first.level > 1 and len(tops) == 1:  # a menu comes before the page's own heading
            file.page_heading = _clean_heading(tops[0])
        file.add_section(first._replace(lines=[*(FENCED + line for line in kept), *first.lines]))
        for section in others:
            file.add_section(section)
    return file.part()


def _clean_heading(heading: str) -> str:
    """Return a heading without markup."""
    return MARKDOWN_LINK.sub(r"\1", heading).replace("`", "").strip("* ")


def _first_line(text: str) -> list[str]:
    """Return the first line of a plain text if it looks like a title."""
    first, _, rest = text.strip().partition("\n")
    is_title = 0 < len(first) <= CELL and first[-1] not in ".:;,!?" and first[:1].isupper()
    return [first.strip()] if is_title and rest.startswith("\n") else []


class Section(NamedTuple):
    """A section of a file; level 1 is the highest, level 0 is text before any heading."""

    level: int
    heading: str
    anchor: str | None
    lines: list[str]
    labels: tuple[str, ...] = ()  # rst labels that links use


class _FileChunks:
    """Documents, nodes and facts collected from one file."""

    def __init__(self, source: str, labels: dict[str, str]):
        self.source = source
        self.names: list[str] = []  # names that links may use
        self.page_heading = ""  # if it is not the first one
        self._labels = labels  # link definitions
        self.is_flat = file_suffix(source) in FLAT
        self.documents: list[Document] = []
        self.nodes: list[Node] = []
        self.facts: list[Fact] = []
        self._taken = {source: 0}  # title -> number of further requests for it
        self._above: list[tuple[int, str]] = []  # (level, title) of the enclosing sections

    def part(self) -> Part:
        """Return the collected data, without links to missing sections of this file."""
        own = f"{self.source}#"
        targets = {value for _, relation, value in self.facts if relation == "link"}
        nowhere = {to for to in targets if to.startswith(own) and to not in self._taken}
        facts = [fact for fact in self.facts if one_line(fact[2]) and fact[2] not in nowhere]
        return Part(self.documents, self.nodes, facts)

    def add_section(self, section: Section) -> None:
        heading = _clean_heading(section.heading)
        body = "\n".join(section.lines).strip()
        title = self.source
        if self._above:
            title = self._unique_title(f"{self.source}#{section.anchor or slug(heading)}")
            while len(self._above) > 1 and self._above[-1][0] >= section.level:
                self._above.pop()
            _, parent = self._above[-1]
            self.facts.append((parent, "section", title))
        self._above.append((section.level, title))
        named = self.page_heading if title == self.source and self.page_heading else heading
        self.facts.append((title, "heading", named))
        names = [*section.labels]
        if title == self.source:
            names += [*([] if self.is_flat else [named]), *self.names]
        names = [name for name in names if HAS_LETTER.search(name) and len(name) <= CELL]
        self._add_pieces(title, heading, body, tuple(dict.fromkeys(map(one_line, names))))
        if not self.is_flat:
            about = self.source if ABOUT_PAGE.fullmatch(heading) else title
            self._add_tables(title, heading, body, about)
            self.facts += [(about, *pair) for pair in _list_facts(self.source, body)]

    def _add_pieces(self, title: str, heading: str, body: str, names: tuple[str, ...]) -> None:
        pieces = PIECE.findall(body) or [""]
        titles = [title, *(self._unique_title(f"{title} ({n})") for n in range(2, len(pieces) + 1))]
        for number, (name, piece) in enumerate(zip(titles, pieces, strict=True), 1):
            shown, targets = piece, ()
            if not self.is_flat:
                shown, targets = resolve_links(self.source, piece, self._labels)
            ways = [to for to, is_name in targets if not is_name]
            self.facts += [(name, "link", target) for target in ways if target != name]
            shown = f"{heading}\n\n{shown.replace(FENCED, '').strip()}".strip()
            links = encode_links(targets)
            if number < len(pieces):
                following = titles[number]
                shown += f"\n\nContinues at [{following}](folder:{following})."
                links += (following,)
            self.documents.append(Document(name, shown, links))
            kind = "page" if name == self.source else "section"
            self.nodes.append(Node(name, kind, names if number == 1 else ()))

    def _add_tables(self, title: str, heading: str, body: str, about: str) -> None:
        rows = [*_turn_tables(_table_rows(self.source, body))]
        names_people = _are_persons([first for _, first, _ in rows])
        for header, first, cells in rows:
            if _is_property(self.source, header, first, cells):
                relation = relation_name(first)
                self.facts += [(about, relation, v) for _, v in cells if len(v) <= CELL]
                continue
            stem = posixpath.splitext(posixpath.basename(self.source))[0]
            columns = {column.casefold() for column, _ in cells}
            kind = _row_kind(header, columns, heading, stem)
            if header.casefold() in PERSON_HEADERS and names_people:
                kind = "person"
            name = self._unique_title(f"{title}: {first}")
            text = f"{first}, in a table of [{title}](folder:{title})."
            long = [f"{column}: {cell}" for column, cell in cells if len(cell) > CELL]
            self.documents.append(Document(name, "\n\n".join([text, *long])))
            self.nodes.append(Node(name, kind, (first,)))
            self.facts.append((name, "table", title))
            self.facts += [(name, column, cell) for column, cell in cells if len(cell) <= CELL]

    def _unique_title(self, name: str) -> str:
        """Reserve and return `name`, or the first free one of "name-1", "name-2", ..."""
        found = name
        while found in self._taken:
            self._taken[name] += 1
            found = f"{name}-{self._taken[name]}"
        self._taken[found] = 0
        return found


# --------------------------------------------------------------------------------------- sections


def _sections(text: str, is_rst: bool) -> list[Section]:
    """Return the sections of Markdown or rst; text before the first heading is a section."""
    if is_rst:
        text = RST_REF.sub(lambda m: f"[[{m[2]}|{m[1] or m[2]}]]", text)
        text = RST_DOC.sub(lambda m: f"[{m[1] or m[2]}]({m[2]}.rst)", text)
        text = RST_LINK.sub(r"[\1](\2)", text)
    cutter = _Cutter(is_rst)
    for line in text.split("\n"):
        cutter.add(line)
    before, *rest = cutter.sections
    return [before, *rest] if not rest or "".join(before.lines).strip() else rest


class _Cutter:
    """Cut a file into sections line by line."""

    def __init__(self, is_rst: bool):
        self.sections = [Section(0, "", "", [])]
        self._is_rst = is_rst
        self._labels: list[str] = []  # labels of the next section
        self._fence = ""  # opening mark of the current fence
        # level by underline character; in rst, in order of first use
        self._levels = {} if is_rst else {"=": 1, "-": 2}

    def add(self, line: str) -> None:
        lines = self.sections[-1].lines
        label = RST_LABEL.fullmatch(line) if self._is_rst and line.startswith(".. _") else None
        if label:
            self._labels.append(label[1])
        elif self._is_fenced(line):
            lines.append(FENCED + line)
        elif len(line) > LONGEST_HEADING or not self._starts_a_section(line, lines):
            lines.append(line)

    def _is_fenced(self, line: str) -> bool:
        """Return True for a line of a code fence, including its first and last line."""
        mark = None if self._is_rst else FENCE.match(line)
        if not self._fence:
            self._fence = mark[1] if mark else ""
            return mark is not None
        if mark and mark[1].startswith(self._fence) and not mark[2].strip():
            self._fence = ""
        return True

    def _starts_a_section(self, line: str, lines: list[str]) -> bool:
        """Start a new section if the line is a heading or underlines the previous line."""
        heading = None if self._is_rst else HEADING.fullmatch(line)
        if heading:
            self.sections.append(Section(len(heading[1]), heading[2], heading[3], []))
            return True
        rule = UNDERLINE.fullmatch(line)
        if not rule or not lines or not lines[-1] or lines[-1].startswith(NO_HEADINGS):
            return False
        fits = len(line) >= len(lines[-1]) if self._is_rst else rule[1] in self._levels
        if not fits:
            return False
        level = self._levels.setdefault(rule[1], len(self._levels) + 1)
        self.sections.append(Section(level, lines.pop(), "", [], tuple(self._labels)))
        self._labels.clear()
        if lines and UNDERLINE.fullmatch(lines[-1]):
            lines.pop()  # the heading has an overline, too
        return True


# ------------------------------------------------------------------------- tables and front matter


def _table_rows(source: str, body: str) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield (header of the first column, first cell, [(column, cell), ...]) of each row.

    Only clean tables are read.
    """
    for is_piped, lines in groupby(body.split("\n"), _is_piped):
        lines = [line.strip().removeprefix("|").removesuffix("|") for line in lines]
        rules = [number for number, line in enumerate(lines) if TABLE_RULE.fullmatch(f"|{line}|")]
        if not is_piped or len(lines) < 3 or rules != [1]:  # a second rule means two tables
            continue
        head, _, *rows = [
            [_cell(source, cell) for cell in re.split(r"(?<!\\)\|", line)] for line in lines
        ]
        longest = CELL if file_suffix(source) not in TABLES else LONGEST_CELL
        named = _find_naming_column(head, rows)
        head, *rows = [[row[named], *row[:named], *row[named + 1 :]] for row in (head, *rows)]
        columns = [relation_name(column) for column in head]
        if _is_clean(columns, rows, longest):
            for first, *cells in rows:
                pairs = zip(columns[1:], cells, strict=True)
                yield columns[0], first, [(name, v) for name, cell in pairs for v in _values(cell)]


Row = tuple[str, str, list[tuple[str, str]]]


def _turn_tables(rows: Iterable[Row]) -> Iterator[Row]:
    """Turn tables of properties: with the columns "Property, Lamp, Torch" the rows are lamps."""
    for (header, columns), some in groupby(rows, lambda row: (row[0], _columns(row))):
        is_turned = header.casefold() in TURNED_HEADERS and len(columns) > 1
        if not is_turned or {column.casefold() for column in columns} & VALUE_HEADERS:
            yield from some
            continue
        cells = [(relation_name(first), dict(pairs)) for _, first, pairs in some]
        for column in columns:
            yield "", column, [(name, row[column]) for name, row in cells if column in row and name]


def _columns(row: Row) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column for column, _ in row[2]))


def _find_naming_column(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the index of the column that names the rows: the first one, or "Product" after an id.

    Rows are not named by a number, a person or a date if a later column has their name.
    """
    header = re.sub(r"[\W_]+", " ", head[0]).strip().casefold() if head else ""
    is_other = header in OTHER_COLUMNS or header.split()[-1:] in (["no"], ["number"], ["id"])
    if not is_other or any(len(row) != len(head) for row in rows):
        return 0
    for number, column in enumerate(head[1:], 1):
        cells = [row[number] for row in rows]
        is_unique = len(set(cells) - {""}) == len(rows)
        if column.casefold() in NAMING_COLUMNS and is_unique and all(map(HAS_LETTER.search, cells)):
            return number
    return 0


def _is_property(source: str, header: str, first: str, cells: list[tuple[str, str]]) -> bool:
    """Return True if a row gives a property of the page and its value, not a thing."""
    columns = {column.casefold() for column, _ in cells}
    words = {*re.findall(r"[a-z]+", header.casefold())}
    words = {PLURAL.sub(lambda m: "y" if m[1] else "", word) for word in words} or {""}
    is_pair = bool(words & PROPERTY_HEADERS) and len(columns) == 1
    is_named = relation_name(first) != "" and not relation_name(first).endswith(" of")
    return is_pair and columns <= VALUE_HEADERS and is_named and file_suffix(source) not in TABLES


def _are_persons(names: Sequence[str]) -> bool:
    """Return True if most names of a table's rows are two or three capitalised words."""
    found = [PERSON.fullmatch(name) is not None for name in names]
    return len(found) > 1 and sum(found) >= PERSON_SHARE * len(found)


def _row_kind(header: str, columns: set[str], *titles: str) -> str:
    """Return the kind of a table's rows: its first header, or the noun of a plural title.

    "Name" is no kind, but a table "Offices" has offices. The kinds of pages are reserved.
    """
    kind = header.casefold().replace("_", " ")
    if kind in ("title", "book") and columns & {"author", "authors"}:
        return "paper" if columns & {"journal", "conference", "venue"} else "book"
    if kind not in GENERIC_HEADERS:
        return kind
    for title in titles:
        words = re.findall(r"[^\W\d_]+", title.rpartition(":")[2].casefold())
        words = [word for word in words if word not in DETERMINERS]
        noun = PLURAL.sub(lambda m: "y" if m[1] else "", words[-1]) if words else ""
        if len(words) <= 3 and noun != (words or [""])[-1] and noun not in GENERIC_HEADERS:
            return " ".join([*words[:-1], noun])
    return "table row"


def _list_facts(source: str, body: str) -> Iterator[tuple[str, str]]:
    """Yield (relation, value) of lists whose items are all "Key: value" with different keys.

    A list with a sentence is prose, and so is one of a single item, unless its key is bold.
    """
    for is_item, lines in groupby(body.split("\n"), lambda line: bool(LIST_ITEM.match(line))):
        if not is_item:
            continue
        items = [KEY_VALUE.fullmatch(line.rstrip(" \\")) for line in lines]
        pairs = [(relation_name(m[2]), _cell(source, m[3])) for m in items if m]
        keys = {relation for relation, _ in pairs}
        is_marked = any(m and m[1] for m in items)
        is_prose = any(len(value.split()) > LONGEST_VALUE for _, value in pairs)
        if len(keys) == len(items) >= 2 - is_marked and not is_prose:
            yield from (pair for pair in pairs if pair[0] and 0 < len(pair[1]) <= CELL)


def _values(cell: str) -> list[str]:
    """Split a cell into its values, which are separated by a line break."""
    return [value.strip() for value in cell.split(BETWEEN_VALUES)]


def _is_piped(line: str) -> bool:
    return "|" in line and not line.startswith(FENCED)


def _is_clean(columns: Sequence[str], rows: Sequence[Sequence[str]], longest: int) -> bool:
    """Return True if rows match the header, cells are short, and columns and first cells unique."""
    firsts = {row[0] for row in rows}
    if len({*columns} - {""}) != len(columns) or len(columns) < 2:
        return False
    if len(firsts - {""}) != len(rows):
        return False
    if max((len(first) for first in firsts), default=0) > CELL:
        return False
    return all(len(row) == len(columns) and max(map(len, row)) <= longest for row in rows)


def _cell(source: str, text: str) -> str:
    """Return the chunk or name that a cell links to, or its text."""
    wiki = WIKI_LINK.fullmatch(text.strip())
    link = MARKDOWN_LINK.fullmatch(text.strip())
    target = wiki_target(source, wiki) if wiki else link and link_target(source, link[2] or link[3])
    if target:
        return target.to
    words = MARKDOWN_LINK.sub(r"\1", text).replace("\\|", "|").strip(" `*_\t")
    return one_line(words)


def _quote_wiki_link(value: object) -> object:
    """Restore an unquoted wiki link in front matter, which YAML parses as a nested list."""
    inner = value
    while isinstance(inner, list) and len(inner) == 1:
        (inner,) = inner
    return f"[[{inner}]]" if isinstance(inner, str) and inner is not value else value


def _front_matter(source: str, text: str) -> tuple[list[tuple[str, str]], list[str], str]:
    """Parse the front matter.

    Returns:
        (relation, value) of each short top-level value; the lines as a code block if some of it is
        no fact; and the text after it.
    """
    found, block, text = read_front_matter(text, file_suffix(source))
    rows = []
    kept: list[str] = []
    for key, values in found.items():
        for value in map(_quote_wiki_link, values if isinstance(values, list) else [values]):
            relation = relation_name(key)
            words = one_line(clean(value)) if isinstance(value, str) else ""
            words = _cell(source, words) if "](" in words or "[[" in words else words
            if relation and words and len(words) <= CELL:
                rows.append((relation, words))
            elif value:
                kept = fenced(block).split("\n")
    return rows, kept, text
