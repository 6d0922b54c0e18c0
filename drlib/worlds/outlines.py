"""Markdown from HTML with its structure, and fenced code.

`drlib.worlds.reading` uses this module in the subprocess that parses untrusted files, so it imports
only the standard library.
"""

import re

# Line starts that look like a heading, a fence, a rule or a table's rule.
LOOKS_LIKE_MARKDOWN = re.compile(r"(?m)^(?=[ \t]*(?:#|```|~~~|[-=|:][-=|: \t]{2,}$))")


def fenced(text: str) -> str:
    """Return `text` as a Markdown code block, whatever it contains."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}\n{text}\n{mark}"


def outline(soup) -> str:
    """Convert a parsed page to Markdown: headings with ids, links, fences, simple tables.

    Generated markup is marked with a zero byte; text that merely looks like markup is escaped.
    """
    for link in soup("a", href=True):
        target = re.sub(r"[\s()<>]", lambda m: f"%{ord(m[0]):02X}", link["href"])
        words = " ".join(link.get_text().split())
        link.replace_with("" if words in ("¶", "#") else f"[{words}]\0({target})")
    for fence in soup("pre"):
        text = fenced(fence.get_text()).replace("](", "]\0(")
        fence.replace_with("\n\0" + text.replace("\n", "\n\0") + "\n")
    for head in soup(re.compile("^h[1-6]$")):
        words = " ".join(head.get_text().split())
        name = head.get("id") or head.parent.get("id")
        anchor = f" {{#{name}}}" if name else ""
        head.replace_with(f"\n\n\0{'#' * int(head.name[1])} {words}{anchor}\n\n")
    _tables_to_markdown(soup)
    for block in soup(["p", "div", "li", "br", "dt", "dd", "section"]):
        block.append("\n")
    text = LOOKS_LIKE_MARKDOWN.sub(r"\\", soup.get_text())
    text = text.replace("](", "]\\(").replace("\0", "")
    return re.sub(r"\n\s*\n", "\n\n", text)


def _tables_to_markdown(soup) -> None:
    for row in soup("tr"):
        cells = [cell.get_text(" ").replace("|", "/") for cell in row(["th", "td"])]
        line = "|".join(" ".join(cell.split()) for cell in cells)
        is_head = row.th and not row.td
        rule = "\0" + "|---" * len(cells) + "|\n" if is_head else ""
        row.replace_with(f"\0|{line}|\n{rule}")
    for table in soup("table"):
        table.insert_before("\n\n")
        table.append("\n\n")
