"""Data sets of the Hugging Face hub as worlds: Wikipedia, and the contexts of multi-hop questions.

Known are the schemas of wikimedia/wikipedia (title, text), HotpotQA and 2WikiMultihopQA (context)
and MuSiQue (paragraphs). With the contexts, a search over the very pages that a benchmark's
questions were written about needs no network once the files are there: `hub:PATH` reads a parquet,
json or jsonl file, or a folder of them, `hub:NAME` streams from the hub.

Paragraphs of one title make one page. `mentions` is a title that stands in a text, the longest
first. Left out: the questions (`drlib.evals`), and links that the text writes otherwise.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from drlib.worlds.graph import Node
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store, one_line

WANTED = "title and text (Wikipedia), context (HotpotQA, 2Wiki) or paragraphs (MuSiQue)"
KINDS = (".parquet", ".json", ".jsonl")
LONGEST, WORD = 8, re.compile(r"\w+")  # words of a title that is looked for in texts


def load(
    rest: str,
    index_path: Path | None = None,
    *,
    config: str | None = None,
    split: str = "train",
    data_files: str | list[str] = (),
    limit: int = 20_000,
) -> Library:
    """The first `limit` rows of the data set `rest`, or of the files at that path or `data_files`.

    `config` is for example "20231101.simple" of wikimedia/wikipedia. Files are read again when they
    change, a data set of the hub only when these arguments do. ValueError: it cannot be had, or its
    columns are of no known schema.
    """
    files, path = [data_files] if isinstance(data_files, str) else list(data_files), Path(rest)
    if not files and path.exists():
        found = [p for p in sorted(path.rglob("*")) or [path] if p.suffix in KINDS]
        found = [str(p) for p in found if p.stat().st_size]
        # beside parquet files, json only describes them
        files = [file for file in found if file.endswith(KINDS[0])] or found
        if not files:
            raise ValueError(f"hub:{rest}: no {', '.join(KINDS)} file there, or only empty ones")
    there = [Path(file).stat() for file in files if Path(file).exists()]
    states = [(s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in there]
    store = Store(index_path, f"hub:{path.resolve() if path.exists() else rest}")
    stamp = json.dumps([1, config, split, limit, files, states])
    store.update({rest: stamp}, lambda _: read(_rows(rest, config, split, files, limit)))
    return Library(f"hub:{rest}", store, "hub")


def _rows(rest: str, config: str | None, split: str, files: list, limit: int) -> Iterator[dict]:
    from datasets import load_dataset  # slow to import

    if files:
        kind = "parquet" if files[0].endswith(".parquet") else "json"
        rest, config, split = kind, None, "train"
    try:
        rows = load_dataset(rest, config, split=split, data_files=files or None, streaming=True)
        yield from islice(rows, limit)
    except (OSError, ValueError, RuntimeError) as error:
        what = f"hub:{rest}{files or ''} cannot be read ({error})"
        raise ValueError(f"{what}; download its files and give hub:PATH") from error


def read(rows: Iterable[dict]) -> Part:
    """The pages of `rows`, and `mentions` as their facts."""
    pages: dict[str, dict[str, None]] = {}
    for row in rows:
        try:
            for title, text in _paragraphs(row):
                if title and text and (title := one_line(title)):
                    pages.setdefault(title, {})[text.strip()] = None
        except (LookupError, TypeError, ValueError, AttributeError):
            found = ", ".join(row)
            raise ValueError(f"unknown schema: found columns {found}; wanted {WANTED}") from None
    documents, facts = [], []
    for title, texts in pages.items():
        text = "\n\n".join(texts)
        names = tuple(name for name in _mentioned(text, pages) if name != title)
        documents.append(Document(title, text, names))
        facts += [(title, "mentions", name) for name in names]
    return Part(documents, [Node(title, "article") for title in pages], facts)


def _paragraphs(row: dict) -> Iterable[tuple[str, str]]:
    """(title, text) of the paragraphs in a row of any known schema."""
    if "paragraphs" in row:
        return [(one["title"], one["paragraph_text"]) for one in row["paragraphs"]]
    if "context" not in row:
        return [(row["title"], row["text"])]
    context = json.loads(row["context"]) if isinstance(row["context"], str) else row["context"]
    pairs = zip(context["title"], context["sentences"]) if isinstance(context, dict) else context
    return [(title, " ".join(map(str.strip, sentences))) for title, sentences in pairs]


def _mentioned(text: str, titles: Iterable[str]) -> list[str]:
    """The titles of at most `LONGEST` words that stand in `text`, capitalised, in their order."""
    words, found, past = list(WORD.finditer(text)), {}, 0
    for number, word in enumerate(words):
        if word.start() >= past and not word[0][0].islower():
            names = (
                text[word.start() : last.end()]
                for last in reversed(words[number : number + LONGEST])
            )
            if name := next((name for name in names if name in titles), ""):
                found[name], past = None, word.start() + len(name)
    return list(found)
