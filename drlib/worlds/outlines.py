"""Markdown from HTML with its structure, and fenced code.

`drlib.worlds.reading` uses this module in the subprocess that parses untrusted files, so it imports
only the standard library.
"""

import re

# Line starts that look like a heading, a fence, a rule or a table's rule.
LOOKS_LIKE_MARKDOWN = re.compile(r"(?m)^(?=[ \t]*(?:#|```|~~~|[-=|:][-=|: \t]{2,}$))")
BREAK = "\1"  # an edge of a block: a line break if no whitespace is there
# Elements that separate words: of display block in the HTML Standard (15.3), boxes, and breaks.
BLOCKS = set(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li listing main menu "
    "nav ol optgroup option p plaintext pre search section summary table tbody td text tfoot th "
    "thead tr ul xmp audio br button canvas iframe img input object select svg textarea "
    "video".split()
)
SEPARATE = {"br", "img", "input", "table", "tbody", "td", "tfoot", "th", "thead", "tr"}  # anyway
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
CELLS = {"th", "td"}
LINES = {"p", "div", "li", "br", "dt", "dd", "section"}  # always end with a line break
SHOWN_AS_BLOCK = re.compile(
    r"display\s*:\s*(?:block|flex|flow-root|grid|inline-block|list-item|table)"
)


def fenced(text: str) -> str:
    """Return `text` as a Markdown code block, whatever it contains."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}\n{text}\n{mark}"


def named(node, names: set[str]) -> list:
    """Return the elements below `node` with one of `names`; faster than bs4's own filter."""
    return [inner for inner in node.descendants if inner.name in names]


def outline(soup) -> str:
    """Convert a parsed page to Markdown: headings with ids, links, fences, simple tables.

    Generated markup is marked with a zero byte; text that merely looks like markup is escaped.
    """
    _mark_blocks(soup)
    for link in [link for link in named(soup, {"a"}) if link.has_attr("href")]:
        target = re.sub(r"[\s()<>]", lambda m: f"%{ord(m[0]):02X}", link["href"])
        text = link.get_text()
        words = _one_line(text)
        edge = BREAK if BREAK in text else ""
        markup = "" if words in ("¶", "#") else f"[{words}]\0({target})"
        link.replace_with(f"{edge}{markup}{edge}")
    for fence in named(soup, {"pre"}):
        text = fenced(_lines(fence)).replace("](", "]\0(")
        fence.replace_with("\n\0" + text.replace("\n", "\n\0") + "\n")
    for head in named(soup, HEADINGS):
        words = _one_line(head.get_text())
        name = head.get("id") or head.parent.get("id")
        anchor = f" {{#{name}}}" if name else ""
        head.replace_with(f"\n\n\0{'#' * int(head.name[1])} {words}{anchor}\n\n")
    _tables_to_markdown(soup)
    for block in named(soup, LINES):
        block.append("\n")
    text = re.sub(rf"(?<=[^\s{BREAK}]){BREAK}+(?=\S)", "\n", soup.get_text()).replace(BREAK, "")
    text = LOOKS_LIKE_MARKDOWN.sub(r"\\", text)
    text = text.replace("](", "]\\(").replace("\0", "")
    return re.sub(r"\n\s*\n", "\n\n", text)


def separate_blocks(tree) -> None:
    """Put a line break at each edge of a block where an lxml tree has text without whitespace."""
    for block in tree.iter(*(BLOCKS - SEPARATE)):
        parent, before, after = block.getparent(), block.getprevious(), block.getnext()
        if len(block) and block[-1].tag == "code" and not block[-1].tail:
            block[-1].tail = "\n"  # trafilatura drops the block around code alone
        if parent is None:
            continue
        if before is None:
            parent.text = _ending_line(parent.text, parent)
        else:
            before.tail = _ending_line(before.tail, before)
        if block.tail and not block.tail[0].isspace():
            block.tail = f"\n{block.tail}"
        elif not block.tail and (parent if after is None else after).tag not in BLOCKS:
            block.tail = "\n"


def _ending_line(text: str | None, neighbour) -> str | None:
    """Return `text`, or the nothing between a block and an inline `neighbour`, with a line end."""
    if not text:
        return text if neighbour.tag in BLOCKS else "\n"
    return text if text[-1].isspace() else f"{text}\n"


def _mark_blocks(soup) -> None:
    """Put a `BREAK` at the edges of blocks, and readings of ruby text behind their word."""
    for ruby in named(soup, {"ruby"}):
        reading = "".join(part.extract().get_text() for part in ruby("rt"))
        for part in ruby("rp"):
            part.decompose()
        ruby.append(f"({reading})")
    for block in [node for node in soup.descendants if node.name and _is_block(node)]:
        before, after = block.previous_sibling, block.next_sibling
        in_block = block.parent.name in BLOCKS  # which has the same edge
        if not (in_block if before is None else before.name is None and before[-1:] == "\n"):
            block.insert_before(BREAK)
        if not (in_block if after is None else _starts_a_line(after)):
            block.insert_after(BREAK)


def _starts_a_line(node) -> bool:
    """Return True for a block or text after a line break."""
    return node.name in BLOCKS if node.name else node[:1] == "\n"


def _is_block(node) -> bool:
    return node.name in BLOCKS or SHOWN_AS_BLOCK.search(node.get("style", "")) is not None


def _one_line(text: str) -> str:
    return " ".join(text.replace(BREAK, " ").split())


def _lines(fence) -> str:
    """Return preformatted text; a break or a block starts a line."""
    for line_break in fence("br"):
        line_break.replace_with("\n")
    text = fence.get_text().strip(BREAK)
    return re.sub(rf"(?<=[^\n{BREAK}]){BREAK}+(?=[^\n])", "\n", text).replace(BREAK, "")


def _tables_to_markdown(soup) -> None:
    for row in named(soup, {"tr"}):
        cells = [_one_line(cell.get_text()).replace("|", "/") for cell in named(row, CELLS)]
        line = "|".join(cells)
        is_head = row.th and not row.td
        rule = "\0" + "|---" * len(cells) + "|\n" if is_head else ""
        row.replace_with(f"\0|{line}|\n{rule}")
    for table in named(soup, {"table"}):
        table.insert_before("\n\n")
        table.append("\n\n")
