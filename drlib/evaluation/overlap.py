"""Contamination: do training files contain benchmark questions, or their answers with a name?

Three matches per question: the whole question; a shared n-gram of 13 words (GPT-3's size), of 8 for
questions of fewer than 13 words; an answer and a name of the question in the same training row.
Words are compared without case; a character of Chinese or Japanese is a word. A match is a reason
to look, not a proof: questions from one template share n-grams, and pages contain answers.
"""

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from drlib.evaluation.answer_files import hash_question
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.files import iter_json_lines
from drlib.questions.quality import LONG_NGRAM, SHORT_NGRAM
from drlib.validation import require

_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # scripts without spaces between words
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_QUOTED = re.compile(r"[\"“«「『《](.{2,80}?)[\"”»」』》]")
_SENTENCE_END = re.compile(r"[.?!]\s+")
_STEM = ("'s", "’s")  # endings that are no part of a name
# capitalised at the start of a sentence without being a name
_NO_NAMES = frozenset(
    """
    a according after all among an and are as at before between by can consider did do does during
    each find for from give given had has have he her his how i identify if in is it its list name
    of on one our please provide she tell that the their there these they this those to under until
    using was were what when where which while who whom whose why with
    """.split()
)
_COMMON = frozenset("yes no true false none unknown".split())  # answers that are in any text
_SHORTEST = 3  # characters of an answer that is searched for

Words = tuple[str, ...]


def overlap(questions: Sequence[BenchmarkItem], files: Iterable[str | Path]) -> dict[str, Any]:
    """Search training files for the questions of a benchmark.

    Args:
        questions: of a benchmark, or held out.
        files: JSON lines, JSON or Parquet, with any fields; a row is a document. Texts in lists and
            objects, also those stored as JSON text, are searched.

    Returns:
        "questions"; "files": name -> rows; "verbatim", "ngram" and "answer_and_name": number of
        questions with a match; "unsearched": questions without a name, or with an answer that is in
        any text (a yes, or fewer than three characters), for which "answer_and_name" cannot match;
        "matches": id, hash and first place ("FILE:ROW") of each match. No texts.

    Raises:
        ValueError: no questions, or a file that cannot be read; the message names it.
    """
    require(bool(questions), "there are no questions: pass at least one")
    wholes: dict[Words, set[int]] = defaultdict(set)  # question -> places among the questions
    grams: dict[Words, set[int]] = defaultdict(set)  # the same of n-grams
    phrases: dict[Words, set[int]] = defaultdict(set)  # and of answers and names
    answers, names = [], []
    for i, item in enumerate(questions):
        question = split_words(item.question)
        if question:
            wholes[question].add(i)
        for gram in _list_ngrams(question, _choose_size(len(question))):
            grams[gram].add(i)
        answers.append({split_words(text) for text in item.answers if _is_telling(text)} - {()})
        names.append(_find_names(item.question) - answers[-1])
        for phrase in answers[-1] | names[-1]:
            phrases[phrase].add(i)
    phrase_index = _index_by_word(phrases)
    indexes = {
        "verbatim": (wholes, _index_by_word(wholes)),
        "ngram": (grams, _index_by_word(grams)),
    }
    found: dict[str, dict[int, str]] = {kind: {} for kind in (*indexes, "answer_and_name")}
    rows_of: dict[str, int] = {}
    for path in map(Path, files):
        number = 0
        for number, row in enumerate(_iter_rows(path), 1):
            texts = [split_words(text) for text in _iter_texts(row)]
            place = f"{path.name}:{number}"
            for kind, (places, index) in indexes.items():
                for i in {i for phrase in _find_phrases(texts, index) for i in places[phrase]}:
                    found[kind].setdefault(i, place)
            here = _find_phrases(texts, phrase_index)
            for i in {i for phrase in here for i in phrases[phrase]}:
                if answers[i] & here and names[i] & here:
                    found["answer_and_name"].setdefault(i, place)
        rows_of[path.name] = rows_of.get(path.name, 0) + number
    require(bool(rows_of), "there are no training files: pass at least one")
    matched = sorted({i for places in found.values() for i in places})
    return {
        "questions": len(questions),
        "files": rows_of,
        **{kind: len(places) for kind, places in found.items()},
        "unsearched": sum(not (a and n) for a, n in zip(answers, names)),
        "matches": [
            {
                "id": questions[i].id,
                "question": hash_question(questions[i].question),
                **{kind: places[i] for kind, places in found.items() if i in places},
            }
            for i in matched
        ],
    }


def render_overlap(found: dict[str, Any]) -> str:
    """Return the counts as a Markdown table."""
    total, rows = found["questions"], sum(found["files"].values())
    titles = {
        "verbatim": "whole question in a row",
        "ngram": f"n-gram in a row ({LONG_NGRAM} words; {SHORT_NGRAM} for short questions)",
        "answer_and_name": "answer and a name of the question in one row",
    }
    lines = [
        ("questions", f"{total}"),
        ("training rows", f"{rows} in {len(found['files'])} files"),
        *((title, f"{found[kind]} ({found[kind] / total:.1%})") for kind, title in titles.items()),
        ("no name or no telling answer", f"{found['unsearched']}"),
    ]
    return "\n".join(["| overlap | value |", "|---|---|", *(f"| {a} | {b} |" for a, b in lines)])


def split_words(text: str) -> Words:
    """Return the words of a text, without case and compatibility forms."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _choose_size(length: int) -> int:
    return LONG_NGRAM if length >= LONG_NGRAM else min(length, SHORT_NGRAM)


def _list_ngrams(words: Words, n: int) -> set[Words]:
    return {words[i : i + n] for i in range(len(words) - n + 1)} if n else set()


def _is_telling(answer: str) -> bool:
    """Return True if an answer is so rare that its occurrence means something."""
    return len("".join(split_words(answer))) >= _SHORTEST and answer.casefold() not in _COMMON


def _find_names(question: str) -> set[Words]:
    """Return the names in a question: quoted texts, and runs of capitalised words."""
    found = {split_words(text) for text in _QUOTED.findall(question)}
    for sentence in _SENTENCE_END.split(question):
        run: list[str] = []
        for word in [*sentence.split(), ""]:
            bare = word.strip("\"'“”‘’«»()[]{},;:.?!…")
            if bare[:1].isupper() and (run or bare.casefold() not in _NO_NAMES):
                run.append(next((bare.removesuffix(s) for s in _STEM if bare.endswith(s)), bare))
            elif run:
                found.add(split_words(" ".join(run)))
                run = []
            if run and word[-1:] in ",;:)":  # a list of names
                found.add(split_words(" ".join(run)))
                run = []
    return found - {()}


def _index_by_word(phrases: Iterable[Words]) -> dict[str, dict[int, set[Words]]]:
    """Return the phrases by first word and length."""
    index: dict[str, dict[int, set[Words]]] = defaultdict(lambda: defaultdict(set))
    for phrase in phrases:
        index[phrase[0]][len(phrase)].add(phrase)
    return index


def _find_phrases(texts: Sequence[Words], index: dict[str, dict[int, set[Words]]]) -> set[Words]:
    """Return the phrases of the index that occur in a text."""
    return {
        words[i : i + length]
        for words in texts
        for i, word in enumerate(words)
        if word in index
        for length, some in index[word].items()
        if words[i : i + length] in some
    }


def _iter_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a training file."""
    if path.suffix == ".parquet":
        try:
            with pq.ParquetFile(path) as file:
                # token ids are no texts
                columns = [f.name for f in file.schema_arrow if not _is_numeric_list(f.type)]
                for batch in file.iter_batches(64, columns=columns):
                    yield from batch.to_pylist()
        except pa.ArrowException as error:
            raise ValueError(f"{path} is no readable Parquet file: {error}") from error
    elif path.suffix == ".json":
        try:
            data = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no readable JSON file: {error}") from error
        yield from data if isinstance(data, list) else [data]
    else:
        require(path.suffix == ".jsonl", f"{path}: give a .jsonl, .json or .parquet file")
        yield from (row for _, row in iter_json_lines(path))


def _is_numeric_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and not pa.types.is_nested(kind.value_type) and not _is_text(kind.value_type)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _iter_texts(value: Any) -> Iterator[str]:
    """Yield the texts and single numbers of a value; JSON in a text is read."""
    if isinstance(value, str):
        inner = None
        if value[:1] in "[{" and value:
            try:
                inner = json.loads(value)
            except (ValueError, RecursionError):
                inner = None
        if isinstance(inner, dict | list):
            yield from _iter_texts(inner)
        else:
            yield value
    elif isinstance(value, dict):
        for inside in value.values():
            yield from _iter_texts(str(inside) if type(inside) in (int, float) else inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _iter_texts(inside)
