"""Search recall by language, on Django's translations or on other folders; a script.

A page is `MESSAGES` consecutive messages of the package `django` (pip), the same ones in each
language. `--folder ja=PATH` adds a folder of files of any type that is read, e.g. the manual of a
Debian package. Two kinds of queries, seeded:

- `phrase`: 3 to 8 consecutive words of a page. In scripts without spaces these are as many
  characters as such words have (`WORD_LENGTH`).
- `word`: one word that occurs on at most five pages. In scripts without spaces and in Korean,
  whose words end in particles, it is the first `WORD_LENGTH` characters.

A query is found if its page is among the first five hits. `index` is the size of the index file
divided by that of the text in UTF-8; `loading_s` and `searches_s` are CPU seconds.

Run: pip install django; python -m tests.benchmarks.bench_recall [--folder ja=PATH] [--queries 500]
"""

import argparse
import importlib.util
import json
import random
import re
import tempfile
import time
from pathlib import Path

from babel.messages.pofile import read_po

from drlib.worlds import load_world

LANGUAGES = ("en", "de", "ja", "zh_Hans", "th", "ar", "ru", "ko", "he", "hi")
WORD_LENGTH = {"ja": 2, "zh": 2, "ko": 2, "th": 5, "lo": 5, "km": 5, "my": 5}
WITHOUT_SPACES = ("ja", "zh", "th", "lo", "km", "my")
MESSAGES = 3
TOP = 5


def read_messages() -> dict[str, list[str]]:
    """Return language -> messages of Django that are translated into all languages."""
    spec = importlib.util.find_spec("django")
    if spec is None:
        raise SystemExit("django is not installed: pip install django, or pass only --folder")
    found: dict[str, dict[tuple, str]] = {language: {} for language in LANGUAGES}
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("locale/*/LC_MESSAGES/*.po")):
        language = path.parts[-3]
        if language not in found:
            continue
        with path.open("rb") as file:
            for message in read_po(file):
                key, text = message.id, message.string
                key, text = (one[0] if isinstance(one, tuple) else one for one in (key, text))
                if key and (text or language == "en"):
                    plain = re.sub(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]*>", "", text or key)
                    found[language][(path.parts[-5], path.name, key)] = " ".join(plain.split())
    common = sorted(set.intersection(*map(set, found.values())))
    return {language: [texts[key] for key in common] for language, texts in found.items()}


def write_pages(folder: Path, messages: list[str]) -> None:
    for number in range(0, len(messages), MESSAGES):
        text = "\n\n".join(messages[number : number + MESSAGES])
        (folder / f"{number // MESSAGES:04}.txt").write_text(text, encoding="utf-8")


def make_queries(pages: dict[str, str], language: str, n: int) -> dict[str, list[tuple[str, str]]]:
    """Return kind -> (query, title) of `n` queries of each kind."""
    rng = random.Random(f"recall-{language}")
    titles = sorted(pages)
    length = WORD_LENGTH.get(language[:2])
    is_spaced = language[:2] not in WITHOUT_SPACES
    found: dict[str, list[tuple[str, str]]] = {"phrase": [], "word": []}
    for _ in range(100 * n):
        title = rng.choice(titles)
        parts, size = pages[title].split(), rng.randint(3, 8)
        runs = re.findall(r"[^\W\d_a-zA-Z]\w*", pages[title])
        if is_spaced and len(parts) >= size:
            start = rng.randint(0, len(parts) - size)
            found["phrase"].append((" ".join(parts[start : start + size]), title))
        elif not is_spaced:
            size *= length
            long = [
                run for run in re.findall(r"[^a-zA-Z()\[\]]+", " ".join(parts)) if len(run) >= size
            ]
            if long:
                text = rng.choice(long)
                start = rng.randint(0, len(text) - size)
                found["phrase"].append((text[start : start + size], title))
        if length is None:
            runs = re.findall(r"[^\W\d_]{4,}", pages[title])
            word = rng.choice(runs) if runs else ""
            is_rare = sum(word in re.findall(r"\w+", text) for text in pages.values()) <= TOP
        else:
            text = pages[title]
            starts = [m.start() for m in re.finditer(rf"[^\W\da-zA-Z]\S{{{length - 1}}}", text)]
            if is_spaced:
                starts = [start for start in starts if start == 0 or text[start - 1].isspace()]
            start = rng.choice(starts) if starts else 0
            word = text[start : start + length]
            if re.search(r"[\s!-/:-@\u3000-\u3004\u3008-\u3020\uff01-\uff0f]|[a-zA-Z]", word):
                continue
            is_rare = sum(word in text for text in pages.values()) <= TOP
        if word and is_rare:
            found["word"].append((word, title))
        if min(map(len, found.values())) >= n:
            break
    return {kind: some[:n] for kind, some in found.items()}


def measure(language: str, folder: Path, n: int) -> dict:
    with tempfile.TemporaryDirectory() as place:
        index = Path(place, "index")
        start = time.process_time()
        world = load_world(f"folder:{folder}", index)
        row = {"language": language, "pages": len(world)}
        row["loading_s"] = round(time.process_time() - start, 2)
        pages = dict(world.store.rows("SELECT title, text FROM pages"))
        size = sum(len(text.encode()) for text in pages.values())
        row |= {"text_kb": size // 1024, "index": round(index.stat().st_size / size, 1)}
        start = time.process_time()
        for kind, queries in make_queries(pages, language, n).items():
            hits = [
                title in [hit.title for hit in world.search(query, TOP)] for query, title in queries
            ]
            row[kind] = round(sum(hits) / len(hits), 3) if hits else None
        row["searches_s"] = round(time.process_time() - start, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", nargs="*", default=[], metavar="LANGUAGE=PATH")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--no-django", action="store_true", help="only the folders")
    args = parser.parse_args()
    for language, messages in ({} if args.no_django else read_messages()).items():
        with tempfile.TemporaryDirectory() as place:
            write_pages(Path(place), messages)
            print(json.dumps(measure(language, Path(place), args.queries)), flush=True)
    for named in args.folder:
        language, _, path = named.partition("=")
        print(json.dumps(measure(language, Path(path), args.queries)), flush=True)


if __name__ == "__main__":
    main()
