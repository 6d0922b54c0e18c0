"""How dense the code is: Python tokens a line of code, for each room and for the whole.

    python -m tests.measure_tokens                 drlib, room by room
    python -m tests.measure_tokens FOLDER...       any other folders of Python files

A token is what Python's `tokenize` calls one (a name, a number, a bracket, an operator, a string),
comments, docstrings, line ends and indentation apart. A line of code is a line that holds at least
one of them; a string over several lines holds all of them. Blank lines, comments and docstrings
therefore change neither number: only a statement that is packed or taken apart does.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstring_starts(source: str) -> set[tuple[int, int]]:
    """(line, column) where each docstring of a module, class or function begins."""
    starts = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0].value
            starts.add((text.lineno, text.col_offset))
    return starts


def count(source: str) -> tuple[int, int]:
    """(tokens, lines of code) of a Python source text."""
    docstrings = docstring_starts(source)
    tokens, lines = 0, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start in docstrings:
            continue
        tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    return tokens, len(lines)


def measure(files: Iterable[Path]) -> tuple[int, int]:
    """(tokens, lines of code) of Python files, added up."""
    tokens, lines = 0, 0
    for path in files:
        more_tokens, more_lines = count(path.read_text(encoding="utf-8"))
        tokens += more_tokens
        lines += more_lines
    return tokens, lines


def rooms() -> dict[str, list[Path]]:
    """The files of each room of drlib; a room that is one file is named by it."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "drlib").rglob("*.py")):
        room = path.relative_to(ROOT / "drlib").parts[0].removesuffix(".py")
        found.setdefault(room, []).append(path)
    return found


def main(folders: list[str]) -> None:
    groups = {folder: sorted(Path(folder).rglob("*.py")) for folder in folders} or rooms()
    groups["in all"] = [path for files in groups.values() for path in files]
    width = max(map(len, groups))
    print(f"{'':<{width}}  files  lines of code  tokens a line")
    for name, files in groups.items():
        tokens, lines = measure(files)
        print(f"{name:<{width}}  {len(files):>5}  {lines:>13,}  {tokens / max(1, lines):>13.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
