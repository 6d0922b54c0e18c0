"""World `hub`: Hugging Face data sets as worlds, such as Wikipedia and multi-hop contexts.

Supported schemas: wikimedia/wikipedia (title, text), HotpotQA and 2WikiMultihopQA (context),
MuSiQue (paragraphs). With these contexts a policy searches the pages from which a benchmark's
questions were written. `hub:PATH` reads a parquet, json or jsonl file, or a folder of them, without
network; `hub:NAME` streams from the hub.

Paragraphs with one title form one page. The relation `mentions` links titles that occur in a text,
longest match first. Not implemented: the questions (`drlib.evaluation`), and other spellings of a
title.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store, one_line

WANTED = "title and text (Wikipedia), context (HotpotQA, 2Wiki) or paragraphs (MuSiQue)"
SUFFIXES = (".parquet", ".json", ".jsonl")
MAX_TITLE_WORDS = 8  # longest title that is matched in texts
TITLE_WORD = re.compile(r"\w+")


def load(
    rest: str,
    index_path: Path | None = None,
    *,
    config: str | None = None,
    split: str = "train",
    data_files: str | Sequence[str] = (),
    limit: int = 20_000,
) -> Library:
    """Load the first `limit` rows of a data set.

    Args:
        rest: name on the hub, or a path of files.
        index_path: file of the index; None: in memory.
        config: configuration of the data set, such as "20231101.simple" of wikimedia/wikipedia.
        split: split of the data set.
        data_files: files to read instead.
        limit: number of rows.

    Files are read again when they change, a data set of the hub only when these arguments change.

    Raises:
        ValueError: the data cannot be read, or its columns match no supported schema.
    """
    path = Path(rest)
    files = [data_files] if isinstance(data_files, str) else list(data_files)
    if not files and path.exists():
        files = _files_at(path)
        if not files:
            suffixes = ", ".join(SUFFIXES)
            raise ValueError(f"hub:{rest}: no non-empty {suffixes} file found")
    existing = [Path(file).stat() for file in files if Path(file).exists()]
    states = [(state.st_size, state.st_mtime_ns, state.st_ctime_ns) for state in existing]
    store = Store(index_path, f"hub:{path.resolve() if path.exists() else rest}")
    stamp = json.dumps([1, config, split, limit, files, states])
    store.update({rest: stamp}, lambda _: read_pages(_rows(rest, config, split, files, limit)))
    return Library(f"hub:{rest}", store, "hub")


def _files_at(path: Path) -> list[str]:
    """List the data files at `path`: parquet files if there are any, else the others."""
    paths = [found for found in sorted(path.rglob("*")) or [path] if found.suffix in SUFFIXES]
    found = [str(path) for path in paths if path.stat().st_size]
    return [file for file in found if file.endswith(".parquet")] or found


def _rows(
    rest: str, config: str | None, split: str, files: list[str], limit: int
) -> Iterator[dict]:
    from datasets import load_dataset  # slow import

    if files:
        rest = "parquet" if files[0].endswith(".parquet") else "json"
        config, split = None, "train"
    try:
        rows = load_dataset(rest, config, split=split, data_files=files or None, streaming=True)
        yield from islice(rows, limit)
    except (OSError, ValueError, RuntimeError) as error:
        what = f"hub:{rest}{files or ''} cannot be read ({error})"
        raise ValueError(f"{what}; download its files and pass hub:PATH") from error


def read_pages(rows: Iterable[dict]) -> Part:
    """Convert rows to pages, with `mentions` as facts."""
    pages: dict[str, dict[str, None]] = {}
    for row in rows:
        try:
            for title, text in _paragraphs(row):
                name = one_line(title) if title and text else ""
                if name:
                    pages.setdefault(name, {})[text.strip()] = None
        except (LookupError, TypeError, ValueError, AttributeError):
            found = ", ".join(row)
            raise ValueError(f"unknown schema with columns {found}: expected {WANTED}") from None
    documents, facts = [], []
    for title, texts in pages.items():
        text = "\n\n".join(texts)
        names = tuple(name for name in _mentioned(text, pages) if name != title)
        documents.append(Document(title, text, names))
        facts += [(title, "mentions", name) for name in names]
    return Part(documents, [Node(title, "article") for title in pages], facts)


def _paragraphs(row: dict) -> Iterable[tuple[str, str]]:
    """Return (title, text) of the paragraphs in a row of any supported schema."""
    if "paragraphs" in row:
        return [(one["title"], one["paragraph_text"]) for one in row["paragraphs"]]
    if "context" not in row:
        return [(row["title"], row["text"])]
    context = row["context"]
    if isinstance(context, str):
        context = json.loads(context)
    if isinstance(context, dict):
        context = zip(context["title"], context["sentences"])
    return [(title, " ".join(map(str.strip, sentences))) for title, sentences in context]


def _mentioned(text: str, titles: Container[str]) -> list[str]:
    """Return the capitalised titles of at most `MAX_TITLE_WORDS` words in `text`, in order."""
    words = list(TITLE_WORD.finditer(text))
    found: dict[str, None] = {}
    end = 0  # end of the last match
    for number, word in enumerate(words):
        start = word.start()
        if start < end or word[0][0].islower():
            continue
        ends = [last.end() for last in reversed(words[number : number + MAX_TITLE_WORDS])]
        name = next((text[start:end] for end in ends if text[start:end] in titles), "")
        if name:
            found[name] = None
            end = start + len(name)
    return list(found)
