"""Scores of answers in files, of any agent: one JSON-lines file per round.

A row has `question`, `answer` (text, number, or list of accepted answers) and `prediction` (null
without an answer), as Tongyi DeepResearch's `iter1.jsonl`, `iter2.jsonl`, ... and
`drlib.agents.answer_file` write them. Optional are `id` or `task_id`, `aliases`, `error`, and for
further measures `messages`, `usage`, `termination`, `confidence` (percent) and `citations`. A row
with an `error`, or whose judge failed, is excluded and counted; it is not a wrong answer.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drlib.chat.tool_calls import ToolCall, parse_native
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.evaluation.sealing import unseal_row
from drlib.files import iter_json_lines
from drlib.rewards.judges import Judge, Judgement, Verdict
from drlib.tools import TOOLS
from drlib.validation import require

FAILED = ("[failed]",)  # predictions of runs that ended with an exception
OTHER_TOOLS = ("PythonInterpreter", "google_scholar", "format")  # Tongyi's, and unparsed calls
CATEGORIES = ("category", "topic", "problem_topic", "level", "type", "difficulty_level")
_STATED = re.compile(r"confidence\W*[:：]\W*(\d+(?:\.\d+)?)\s*[%％]", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([%％]?)\s*")
# the list at the end of a report of `drlib.agents.webweaver`
_SOURCES = re.compile(r"^## Sources\s*\n(.*)\Z", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(r"^\d+\. \[(.*)\]\((.*)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    """Resources of one answer; None is unknown.

    Attributes:
        calls: tool calls.
        tools: calls by tool.
        read_tokens: prompt tokens, summed over requests.
        said_tokens: sampled tokens.
        cost: in the currency of the prices.
    """

    calls: int | None = None
    tools: Mapping[str, int] = field(default_factory=dict)
    read_tokens: float | None = None
    said_tokens: float | None = None
    cost: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class AnswerRow:
    """An agent's answer to one question.

    Attributes:
        key: id of the question, or a hash of its text.
        golds: accepted answers.
        prediction: the agent's answer; None without one.
        error: cause if the run failed; then there is nothing to judge.
        confidence: stated by the agent, 0..1; None without one.
        cited: names of each cited source (title, URL); None if the row has no citations.
        required: names of the documents that the benchmark requires.
        line: of the file, from 1; 0 without a file.
        protected: of a protected benchmark: no text may be written.
        verified: score in [0, 1] by the task's environment; None: the answer must be judged.
    """

    key: str
    question: str = field(repr=False)
    golds: tuple[str, ...] = field(repr=False)
    prediction: str | None = field(repr=False)
    error: str = field(default="", repr=False)
    confidence: float | None = None
    usage: Usage = Usage()
    termination: str = ""
    category: str = field(default="", repr=False)
    cited: tuple[frozenset[str], ...] | None = field(default=None, repr=False)
    required: frozenset[str] = field(default=frozenset(), repr=False)
    line: int = 0
    protected: bool = False
    verified: float | None = None


@dataclass(frozen=True)
class JudgedAnswers:
    """Judgements of R rounds of the same Q questions.

    Attributes:
        keys: the questions, in the order of the first file.
        judgements: [R][Q].
        rows: [R][Q].
    """

    keys: tuple[str, ...]
    judgements: tuple[tuple[Judgement, ...], ...] = field(repr=False)
    rows: tuple[tuple[AnswerRow, ...], ...]


def read_answers(path: str | Path, items: Sequence[BenchmarkItem] = ()) -> list[AnswerRow]:
    """Read the rows of one round.

    Args:
        items: questions of a benchmark; a row then needs only `id` or `question`, and `prediction`,
            and the correct answers are the benchmark's.

    Raises:
        ValueError: a row lacks a field or repeats a question; the message names file and line.
    """
    rows: dict[str, AnswerRow] = {}
    asked = Counter(item.question for item in items)
    known = {item.question: item for item in items if asked[item.question] == 1}
    known |= {item.id: item for item in items}
    for number, data in iter_json_lines(path):
        where = f"{path}, line {number}"
        require(isinstance(data, dict), f"{where} is no JSON object")
        fields = {str(name).lower(): value for name, value in data.items()}
        if items:
            fields |= _find_item(fields, known, where)
        require(
            "sealed" not in fields or bool(items),
            f"{where} is encrypted: give the benchmark and its file (--benchmark, --source)",
        )
        row = _read_row(fields, where, number)
        require(row.key not in rows, f"{where} repeats the question {row.key!r} of an earlier line")
        rows[row.key] = row
    require(bool(rows), f"{path} has no rows")
    return list(rows.values())


def _find_item(
    fields: dict[str, Any], known: Mapping[str, BenchmarkItem], where: str
) -> dict[str, Any]:
    """Return question, answers, id and category of the benchmark's question of a row."""
    names = [str(fields[name]) for name in ("task_id", "id", "question") if fields.get(name)]
    item = next((known[name] for name in names if name in known), None)
    require(item is not None, f"{where} answers no question of the benchmark: give its id or text")
    opened = unseal_row(fields, item.question) if "sealed" in fields else {}
    answers = {"answer": list(item.answers), "aliases": None}
    about = item.meta | (info if isinstance(info := item.meta.get("info"), dict) else {})
    found = {name: about.get(name) for name in (*CATEGORIES, *_REQUIRED)}
    found |= {"task_id": item.id, "question": item.question, "protected": item.protected}
    return opened | found | answers


def _read_row(fields: dict[str, Any], where: str, line: int) -> AnswerRow:
    for name in ("question", "answer", "prediction"):
        require(name in fields or (name == "prediction" and "error" in fields), _lacks(where, name))
    question, answer = fields["question"], fields["answer"]
    require(isinstance(question, str) and bool(question.strip()), _lacks(where, "question"))
    listed = [*(answer if isinstance(answer, list) else [answer]), *(fields.get("aliases") or [])]
    golds = tuple(str(one).strip() for one in listed if one is not None)
    verified = _read_verified(fields.get("verified"), where)
    needs_gold = verified is None and not fields.get("error")
    has_gold = bool(golds) and all(golds)
    require(has_gold or not needs_gold, f"{where} has an empty answer: give the correct one")
    prediction = fields.get("prediction")
    require(
        prediction is None or isinstance(prediction, str | int | float),
        f"{where}: prediction must be a text or null",
    )
    text = None if prediction is None else str(prediction)
    error = str(fields.get("error") or "")
    if text is not None and text.strip().lower() in FAILED:
        error = error or "the run failed"
    ident = fields.get("task_id", fields.get("id"))
    key = hash_question(question) if ident is None else str(ident)
    categories = [fields[name] for name in CATEGORIES if fields.get(name) not in (None, "")]
    return AnswerRow(
        key,
        question,
        golds,
        text,
        error,
        confidence=_read_confidence(fields.get("confidence"), text or "", where),
        usage=_read_usage(fields, where),
        termination=str(fields.get("termination") or ""),
        category=str(categories[0]) if categories else "",
        cited=_read_citations(fields.get("citations"), text or "", where),
        required=_read_required(fields),
        line=line,
        protected=bool(fields.get("protected")),
        verified=verified,
    )


def _read_verified(value: Any, where: str) -> float | None:
    """Return the score of an environment; None without one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(
        value is None or (is_number and 0 <= value <= 1),
        f"{where}: verified is {value!r}: give a score from 0 to 1",
    )
    return None if value is None else float(value)


def _lacks(where: str, name: str) -> str:
    return f"{where} lacks {name!r}: a row needs question, answer and prediction"


def _read_confidence(value: Any, prediction: str, where: str) -> float | None:
    """Return a confidence as a share: of the field in percent, else of "Confidence: 87%"."""
    if value is None or value == "":
        found = _STATED.findall(prediction)
        percent = float(found[-1]) if found else None
        return None if percent is None or percent > 100 else percent / 100
    whole = _PERCENT.fullmatch(str(value))
    stated = _STATED.findall(str(value))
    if isinstance(value, str) and whole is None and not stated:
        return None  # such as "high"
    percent = float(whole[1] if whole else stated[-1]) if whole or stated else math.nan
    is_share = whole is not None and not whole[2] and 0 < percent < 1
    require(
        0 <= percent <= 100 and not is_share,
        f"{where}: confidence is {value!r}: give percent from 0 to 100, such as 87",
    )
    return percent / 100


_COUNTS = {  # attribute of `Usage` -> names in files
    "read_tokens": ("read_tokens", "prompt_tokens", "input_tokens"),
    "said_tokens": ("said_tokens", "completion_tokens", "output_tokens"),
    "cost": ("cost",),
    "seconds": ("seconds",),
}


def _read_usage(fields: dict[str, Any], where: str) -> Usage:
    """Return the resources of a row, from `usage` and, for calls, from `messages`."""
    given, messages = fields.get("usage") or {}, fields.get("messages")
    costs = fields.get("costs") or {}  # of `agents.batch_answers`: also of an agent's researchers
    for name, value in (("usage", given), ("costs", costs)):
        require(isinstance(value, dict), f"{where}: {name} must be an object")
    given = {"calls": costs.get("calls"), "said_tokens": costs.get("sampled")} | given
    given = {name: value for name, value in given.items() if value is not None}
    counts = {}
    for name, names in _COUNTS.items():
        value = next((given[one] for one in names if given.get(one) is not None), None)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        require(
            value is None or (is_number and math.isfinite(value) and value >= 0),
            f"{where}: usage has {name} {value!r}: give a number from 0",
        )
        counts[name] = value
    tools = given.get("tools")
    if tools is None and messages:
        is_chat = isinstance(messages, list) and all(isinstance(one, dict) for one in messages)
        require(is_chat, f"{where}: messages must be a list of objects")
        tools = _count_calls(messages)
    require(
        tools is None or (isinstance(tools, dict) and all(type(n) is int for n in tools.values())),
        f"{where}: usage has tools {tools!r}: give the number of calls of each tool",
    )
    if tools and fields.get("protected"):  # a policy may write a name of its own
        names = Counter()
        for name, n in tools.items():
            names[name if name in (*TOOLS, *OTHER_TOOLS) else "other"] += n
        tools = dict(names)
    calls = given.get("calls", None if tools is None else sum(tools.values()))
    require(
        calls is None or (type(calls) is int and calls >= 0),
        f"{where}: usage has calls {calls!r}: give a whole number from 0",
    )
    return Usage(calls, tools or {}, **counts)


def _count_calls(messages: Sequence[dict[str, Any]]) -> dict[str, int] | None:
    """Count the calls of a conversation by tool; None if it has results of unknown calls."""
    found: Counter[str] = Counter()
    has_results = False
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        if message.get("role") != "assistant":
            has_results |= message.get("role") in ("tool", "function")
            has_results |= "<tool_response>" in text
        elif listed := message.get("tool_calls"):
            for call in listed:
                nested = call.get("function", call) if isinstance(call, dict) else {}
                name = nested.get("name") if isinstance(nested, dict) else None
                found[str(name or "unknown")] += 1
        else:
            actions = parse_native(text) if "<tool_call>" in text else []
            # a call that cannot be parsed is one, as in `drlib.trajectory`
            found.update(one.name if isinstance(one, ToolCall) else "format" for one in actions)
    return None if has_results and not found else dict(found)


_REQUIRED = ("required_documents", "supporting_facts", "wiki_links")


def _read_required(fields: dict[str, Any]) -> frozenset[str]:
    """Return the titles or addresses of the documents that a benchmark requires."""
    value = next((fields[name] for name in _REQUIRED if fields.get(name) is not None), None)
    if isinstance(value, dict):  # supporting facts of the hub: titles and sentences as columns
        value = value.get("title")
    if not isinstance(value, list | tuple):
        return frozenset()
    titles = [one[0] if isinstance(one, list | tuple) and one else one for one in value]
    return frozenset(str(title).strip().casefold() for title in titles)


def _read_citations(value: Any, prediction: str, where: str) -> tuple[frozenset[str], ...] | None:
    """Return the names of each cited source: of the field, else of a report's list of sources."""
    if value is None:
        listed = _SOURCES.search(prediction)
        value = _SOURCE.findall(listed[1]) if listed else None
    if value is None:
        return None
    require(isinstance(value, list), f"{where}: citations must be a list of titles or URLs")
    sources = []
    for one in value:
        if isinstance(one, dict):
            one = (one.get("title"), one.get("url"))
        names = one if isinstance(one, list | tuple) else (one,)
        sources.append(frozenset(str(name).strip().casefold() for name in names if name))
    return tuple(dict.fromkeys(sources))


def hash_question(question: str) -> str:
    """Return a short hash, under which results name a question without its text."""
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def judge_files(
    paths: Sequence[str | Path],
    judge: Judge,
    workers: int = 1,
    progress: Callable[[Judgement], object] | None = None,
    items: Sequence[BenchmarkItem] = (),
) -> JudgedAnswers:
    """Judge the answers in `paths`, one file per round.

    Args:
        workers: judgements at the same time, for a judge on a server.
        progress: called with each finished judgement.
        items: see `read_answers`; the judgements are in their order, else in that of the first
            file.

    Raises:
        ValueError: the rounds ask other questions or have other correct answers.
    """
    require(bool(paths), "name at least one file of answers")
    rounds = [{row.key: row for row in read_answers(path, items)} for path in paths]
    first = rounds[0]
    if items:  # a file has the answers in the order in which they were finished
        first = {item.id: first[item.id] for item in items if item.id in first}
    for path, rows in zip(paths[1:], rounds[1:]):
        missing, more = sorted(first.keys() - rows.keys()), sorted(rows.keys() - first.keys())
        require(
            not missing and not more,
            f"{path} asks other questions than {paths[0]}: {len(missing)} are missing "
            f"({missing[:3]}), {len(more)} are new ({more[:3]}); score them apart",
        )
        other = [key for key, row in rows.items() if row.golds != first[key].golds]
        require(not other, f"{path}: the answer of {other[:1]} differs from that in {paths[0]}")

    def work(row: AnswerRow) -> Judgement:
        if row.error:
            found = Judgement(Verdict.JUDGE_ERROR, row.error)
        elif row.verified is not None:
            verdict = Verdict.CORRECT if row.verified == 1 else Verdict.INCORRECT
            found = Judgement(verdict, "verified by execution", row.verified)
        else:
            found = judge(row.question, row.prediction, row.golds)
        if progress is not None:
            progress(found)
        return found

    rows = [rows[key] for rows in rounds for key in first]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        judged = list(pool.map(work, rows)) if workers > 1 else list(map(work, rows))
    return JudgedAnswers(
        tuple(first),
        tuple(_split(judged, len(first))),
        tuple(_split(rows, len(first))),
    )


def _split(values: list, size: int) -> Iterator[tuple]:
    for start in range(0, len(values), size):
        yield tuple(values[start : start + size])
