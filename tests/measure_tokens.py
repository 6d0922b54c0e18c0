"""Code density: Python tokens per line of code, by package and in total.

    python -m tests.measure_tokens                 drlib, by package
    python -m tests.measure_tokens FOLDER...       other folders of Python files

Tokens are counted as by Python's `tokenize` (names, numbers, brackets, operators, strings),
without comments, docstrings, line ends and indentation. A line of code has at least one token; a
multi-line string counts all its lines. Blank lines, comments and docstrings change neither number.

The reference is nanochat (karpathy/nanochat), whose package in the registry has no Python code.
Four of its files were counted by `count` on their published text (November 2026): the model
(nanochat/gpt.py up to its optimisers: 171 lines of code, 11.45 tokens a line), the engine without
its self-test (nanochat/engine.py: 199, 8.16), the loop of the RL script below its settings
(scripts/chat_rl.py: 164, 8.32) and nanochat/loss_eval.py (35, 9.06). Together: 569 lines, 9.25.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

NANOCHAT = 9.25  # tokens a line of code
FSTRING_START = getattr(tokenize, "FSTRING_START", None)
FSTRING_END = getattr(tokenize, "FSTRING_END", None)
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
    """Return (line, column) of the start of each docstring of a module, class or function."""
    starts = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0].value
            starts.add((text.lineno, text.col_offset))
    return starts


def count(source: str) -> tuple[int, int]:
    """Return (tokens, lines of code) of Python source text."""
    docstrings = docstring_starts(source)
    tokens, lines = 0, set()
    in_strings = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start in docstrings:
            continue
        lines.update(range(token.start[0], token.end[0] + 1))
        # since Python 3.12 an f-string is several tokens; it is counted as one
        in_strings -= token.type == FSTRING_END
        tokens += in_strings == 0 and token.type != FSTRING_END
        in_strings += token.type == FSTRING_START
    return tokens, len(lines)


def measure(files: Iterable[Path]) -> tuple[int, int]:
    """Return the sums of (tokens, lines of code) over Python files."""
    tokens, lines = 0, 0
    for path in files:
        more_tokens, more_lines = count(path.read_text(encoding="utf-8"))
        tokens += more_tokens
        lines += more_lines
    return tokens, lines


def package_files() -> dict[str, list[Path]]:
    """Return the files of each package of drlib; a single module is its own package."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "drlib").rglob("*.py")):
        package = path.relative_to(ROOT / "drlib").parts[0].removesuffix(".py")
        found.setdefault(package, []).append(path)
    return found


def main(folders: list[str]) -> None:
    groups = {folder: sorted(Path(folder).rglob("*.py")) for folder in folders} or package_files()
    groups["in all"] = [path for files in groups.values() for path in files]
    width = max(map(len, groups))
    print(f"{'':<{width}}  files  lines of code  tokens a line")
    for name, files in groups.items():
        tokens, lines = measure(files)
        density = tokens / max(1, lines)
        print(f"{name:<{width}}  {len(files):>5}  {lines:>13,}  {density:>13.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
