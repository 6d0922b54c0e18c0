"""Rollout formats of other programs: conversion of rows to messages and token runs.

`iter_rollouts` converts a row in one of the formats of `inputs`. Token ids are those of the file;
without ids the text is tokenised turn by turn. Servers return log-probabilities and alternatives by
id or by token text; texts are converted to ids with the tokenizer.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import numpy as np

from drlib.analysis.chat_messages import (
    OBSERVATION_TAGS,
    flatten_message,
    is_sampled,
    load_json,
    render_turns,
)
from drlib.analysis.reading_notes import EmptyRolloutError, ReadingNotes
from drlib.analysis.record_formats import (
    Record,
    SampledTurn,
    convert_atif,
    convert_sharegpt,
    convert_verifiers,
    iter_traces,
    join_prompt,
    join_text_messages,
)
from drlib.chat.segments import token_texts
from drlib.chat.tool_calls import END
from drlib.chat.words import WordTokenizer
from drlib.validation import require

# Text of the environment inside an output: tagged, or a turn between two of the assistant.
_TURNS = [  # the header of another role up to the next header of the assistant
    r"<\|im_start\|>(?!assistant).*?(?:<\|im_start\|>assistant\n|\Z)",
    r"<\|start_header_id\|>(?!assistant).*?"
    r"(?:<\|start_header_id\|>assistant<\|end_header_id\|>\s*|\Z)",
    r"<start_of_turn>(?!model).*?(?:<start_of_turn>model\n|\Z)",
    r"<\|(?:observation|user|tool)\|>.*?(?:<\|assistant\|>\n?|\Z)",
    r"(?:<\|(?:call|end)\|>)?<\|start\|>(?!assistant).*?(?:<\|start\|>assistant|\Z)",
    r"\[TOOL_RESULTS\].*?\[/TOOL_RESULTS\]",
    r"<｜tool▁outputs▁begin｜>.*?<｜tool▁outputs▁end｜>(?:<｜Assistant｜>)?",
    r"<\|begin_search_result\|>.*?<\|end_search_result\|>",
    r"<\|begin_of_documents\|>.*?<\|end_of_documents\|>",
    r"ipython\n\n.*?(?:assistant\n\n|\Z)",  # Llama's roles without special tokens
    r"(?<=```)\s*```(?:tool_)?output\n.*?```",
]
# Ambiguous tags (ReSearch) and tags without an end (a truncated output) are the environment's only
# after a call or a role. A lookbehind needs texts of one length.
_AFTER = (
    r"(?<=</code>|</tool>|</call>)\s*",
    r"(?<=</search>|</python>)\s*",
    r"(?<=</tool_call>)\s*",
    r"\b(?:user|tool)\n",
)
for _n, _after in enumerate(_AFTER):
    _TURNS += [
        rf"{_after}<(?P<other{_n}>result|output|documents?)>.*?(?:</(?P=other{_n})>\s*|\Z)",
        rf"{_after}<(?P<open{_n}>{OBSERVATION_TAGS})>(?!.*?</(?P=open{_n})>).*\Z",
    ]
_OBSERVED = re.compile(
    "|".join(_TURNS)
    + r"|(?:\b(?:user|tool)\n)?"
    + rf"(?:<(?P<tag>{OBSERVATION_TAGS})>.*?</(?P=tag)>\s*)+"
    + r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\n)?",
    re.S,
)
_MAY_BE_OBSERVED = re.compile(
    rf"<\||_of_turn>|TOOL_RESULTS|<｜|ipython\n|```|<(?:{OBSERVATION_TAGS}|result|output|document)"
)
_TURN_END = re.compile(r"(?:<\|im_end\|>|<\|eo[tm]_id\|>|<end_of_turn>)\Z")
_TAGGED = re.compile(rf"<({OBSERVATION_TAGS})>")
_USER_TURN = re.compile(r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|)user\b")
_MARKERS = re.compile(  # around an observation without tags
    r"<\|start_header_id\|>\w+<\|end_header_id\|>|<\|im_start\|>\w*\n?|<\|[^|<>]*\|>"
    r"|<(?:start|end)_of_turn>(?:\w+\n)?|\[/?TOOL_RESULTS\]|<｜[^｜]*｜>|^ipython\n\n"
    r"|assistant\n\n$|</?(?:result|output|documents?)>|```(?:(?:tool_)?output\n)?"
)
# tags in a sampled text that may be the environment's
_SUSPECT_TAG = re.compile(
    rf"<({OBSERVATION_TAGS}|\w*(?:result|output|observ|document|passage|retriev|evidence|snippet"
    r"|response|context|interpreter)\w*)>.*?</\1>",
    re.S | re.I,
)
_PADDING = 512  # vocabularies of models are padded to a multiple of at most this number
_UNKNOWN_LOGPROB = -1000.0  # servers write -9999 or the lowest float for an unknown value
_CHOICE_FIELDS = {
    *("index", "message", "text", "token_ids", "logprobs", "finish_reason", "stop_reason"),
    *("prompt_token_ids", "cumulative_logprob", "matched_stop", "content_filter_results", "seed"),
}
# fields that some programs write as JSON text
_JSON_FIELDS = {
    *("messages", "conversations", "tools", "tool_defs", "steps", "outputs", "choices", "info"),
    *("traces", "trajectory", "prompt_ids", "response_ids", "response_mask", "response_logprobs"),
    *("prompt_token_ids", "agent", "task", "prompt", "completion"),
}
# no log-probability in the file; known by identity, as placeholders are read as math.nan
NOT_GIVEN = float("nan")
# for each token its log-probability, and the ids and log-probabilities of its alternatives
TokenScores = Sequence[tuple[float | None, Sequence[tuple[int, float]]]]


class TokenRun(NamedTuple):
    """Consecutive tokens that are either all sampled or all observed.

    Attributes:
        ids: token ids.
        sampled: True if the policy sampled them.
        scores: log-probabilities and alternatives of each token; None if unknown.

    """

    ids: Sequence[int]
    sampled: bool
    scores: TokenScores | None = None


class Rollout(NamedTuple):
    """Fields of a row, its plain-text messages and its token runs."""

    fields: dict
    messages: list[dict]
    parts: list[TokenRun]


def iter_rollouts(name: str, row: dict, tokenizer, notes: ReadingNotes) -> Iterator[Rollout]:
    """Yield the rollouts in a row; a server response may have several.

    Args:
        name: format, a key of `inputs.FORMATS`.
        row: fields of the row.
        tokenizer: tokenizer of the model.
        notes: counts what is not understood.

    Raises:
        EmptyRolloutError: the request failed, or no message is the assistant's.
        ValueError: invalid content.
        KeyError: a missing field. Other LookupErrors and TypeErrors: invalid structure.

    """
    row = _parse_json_fields(row)
    if name == "trl":
        name, row = _convert_trl(row)
    elif name == "verifiers":
        name, row = _convert_text_record(row)
    if name == "verl":
        pieces = split_observations(row["output"] or "")
        parts = _tokenize_turns([row["input"] or "", *pieces], tokenizer)
        messages = _decode_messages(parts, tokenizer, notes)
        _clean_observations(messages)
        yield Rollout(row, messages, parts)
    elif name == "agent loop":
        require(
            not isinstance(tokenizer, WordTokenizer),
            "the row has token ids instead of texts: pass the tokenizer of the model (--tokenizer)",
        )
        parts = _split_by_mask(row)
        yield Rollout(row, _decode_messages(parts, tokenizer, notes), parts)
    elif name in ("vllm", "openai"):
        field = "outputs" if name == "vllm" else "choices"
        choices = row.get(field)
        if not choices:
            raise EmptyRolloutError(find_failure(row) or f"the field {field} is empty")
        for one in choices:
            if not one:
                notes.skip("no sampled tokens or a failed request", "a choice is null")
                continue
            notes.count_unknown("choice.", one, _CHOICE_FIELDS)
            parts = _parse_choice(one, row, tokenizer, notes)
            messages = _decode_messages(parts, tokenizer, notes)
            _check_text(one, messages, parts, tokenizer)
            yield Rollout(row | one, messages, parts)
    elif name == "verifiers traces":
        for fields, nodes in iter_traces(row, notes):
            try:
                rollout = _build_trace(fields, nodes, tokenizer, notes)
            except EmptyRolloutError as error:
                notes.skip("no sampled tokens or a failed request", f"{error}")
                continue
            yield rollout
    else:
        yield _build_chat(row, *_convert_record(name, row, notes), tokenizer, notes)


def find_failure(row: dict) -> str:
    """Return the error of a failed request or rollout, "" without one."""
    error = row.get("error") or row.get("errors")
    if isinstance(error, dict):
        error = error.get("message") or error.get("error") or json.dumps(error)
    if isinstance(error, list):
        error = json.dumps(error)
    return str(error)[:200] if error else ""


def _convert_record(name: str, row: dict, notes: ReadingNotes) -> Record:
    """Convert a row of a chat format to messages, and the token ids of its turns."""
    if name == "sharegpt":
        return convert_sharegpt(row)
    if name == "atif":
        return convert_atif(row, notes)
    if name == "verifiers":
        return convert_verifiers(row)
    return row, []


def _build_chat(
    row: dict, fields: dict, turns: Sequence[SampledTurn], tokenizer, notes: ReadingNotes
) -> Rollout:
    """Build the rollout of a chat; without token ids its text is tokenised."""
    messages = _flatten_messages(fields["messages"] or (), notes)
    failure = find_failure(row)
    if failure and not any(map(is_sampled, messages)):
        raise EmptyRolloutError(failure)
    has_tokens = not isinstance(tokenizer, WordTokenizer)
    turns = turns if has_tokens else ()
    said = _split_message(messages)
    parts = None
    if len(turns) == sum(map(is_sampled, messages)):
        parts = _join_turns(turns, tokenizer)
    if parts is None:
        pieces = render_turns(messages, tokenizer, fields.get("tools"))
        if len(said) > 1:
            pieces[-1:] = said
        parts = _tokenize_turns(pieces, tokenizer)
        if len(turns) == len(parts) // 2:
            for i, turn in enumerate(turns):
                if turn.ids:
                    parts[2 * i + 1] = _build_turn(turn, tokenizer)
    if len(said) > 1:
        messages = [*messages[:-1], *_label_pieces(messages[-1], said)]
    elif has_tokens:
        _score_turns(parts, messages, tokenizer, notes)
    return Rollout(fields, messages, parts)


def _score_turns(
    parts: list[TokenRun], messages: Sequence[dict], tokenizer, notes: ReadingNotes
) -> None:
    """Add the log-probabilities of messages (field `logprobs`) to their turns, in place.

    A server's log-probabilities may cover the content only; other tokens of the turn get NaN.
    """
    turns = [message for message in messages if is_sampled(message)]
    sampled = [at for at, part in enumerate(parts) if part.sampled]
    if len(turns) != len(sampled):
        return
    for message, at in zip(turns, sampled):
        logs = message.get("logprobs")
        if logs and parts[at].scores is None:
            scored = _score_turn(parts[at], logs, tokenizer)
            if scored is None:
                notes.repaired["turns without log-probabilities, as their tokens are unclear"] += 1
            else:
                parts[at] = scored


def _score_turn(part: TokenRun, logs: Any, tokenizer) -> TokenRun | None:
    """Return the turn with log-probabilities; None if their tokens are not those of the turn."""
    logs = {"content": logs} if isinstance(logs, list) else logs
    if not isinstance(logs, dict) or not all(
        isinstance(e, dict) for e in logs.get("content") or ()
    ):
        return None
    entries = _parse_logprobs(logs, None, True)
    whole = tokenizer.decode(part.ids)
    for _ in range(2):  # the end token is in the log-probabilities, but not in the message
        text = "".join(str(entry.text) for entry in entries)
        at = whole.rfind(text) if text else -1
        if at >= 0 or not entries:
            break
        entries.pop()
    ids = _find_ids(entries, text, tokenizer) if at >= 0 else None
    if ids is None:
        return None
    before, after = encode(tokenizer, whole[:at]), encode(tokenizer, whole[at + len(text) :])
    unknown = (NOT_GIVEN, ())
    scores = [
        (entry.value, _list_alternatives(entry, i, tokenizer)) for i, entry in zip(ids, entries)
    ]
    ids = [*before, *ids, *after]
    return TokenRun(ids, True, [*[unknown] * len(before), *scores, *[unknown] * len(after)])


def _flatten_messages(chat: Sequence[Any], notes: ReadingNotes | None) -> list[dict]:
    """Return plain-text messages; null entries are left out."""
    require(
        isinstance(chat, list | tuple),
        f"the field messages is {str(chat)[:60]!r}; use a list of messages",
    )
    return [
        flatten_message(message, notes, f"messages[{i}]")
        for i, message in enumerate(chat)
        if message is not None
    ]


def _split_message(messages: list[dict]) -> list[str]:
    """Return the sampled and observed texts of a chat whose last message has the whole rollout.

    Text in <tool_response> tags is kept, because a policy may have invented it.
    """
    roles = [message["role"] for message in messages]
    if roles[-1:] != ["assistant"] or roles.count("assistant") > 1 or "tool" in roles:
        return []
    pieces = split_observations(messages[-1]["content"])
    return [] if any("<tool_response>" in piece for piece in pieces[1::2]) else pieces


def _label_pieces(message: dict, pieces: Sequence[str]) -> list[dict]:
    """Return messages for the sampled and observed texts of one message, without blank ones."""
    labelled = [
        message | {"role": "tool" if i % 2 else "assistant", "content": piece}
        for i, piece in enumerate(pieces)
        if piece.strip()
    ]
    _clean_observations(labelled)
    return labelled


def _clean_observations(messages: list[dict]) -> None:
    """Remove the markers around observations without tags; a user's turn is no observation."""
    for message in messages:
        content = message["content"]
        if message["role"] == "tool" and not _TAGGED.search(content):
            if _USER_TURN.search(content):
                message["role"] = "user"
            else:
                message["content"] = _MARKERS.sub("", content).strip()


def split_observations(text: str) -> list[str]:
    """Split an output into sampled and observed texts in turn, the first one sampled."""
    pieces, at = [""], 0
    if not _MAY_BE_OBSERVED.search(text):
        return [text]
    for found in _OBSERVED.finditer(text):
        # the end of the turn before belongs to the observation
        sampled = text[at : found.start()].rstrip()
        sampled = _TURN_END.sub("", sampled)
        observed = text[at + len(sampled) : found.end()]
        if len(pieces) > 1 and not sampled:  # two observations of one turn
            pieces[-2] += observed
        else:
            pieces[-1:] = [sampled, observed, ""]
        at = found.end()
    pieces[-1] = text[at:]
    return pieces


def find_suspect_tags(text: str) -> set[str]:
    """Return the tags in a sampled text that look like observations."""
    return {f"<{name}>" for name in _SUSPECT_TAG.findall(text)} if "</" in text else set()


def _parse_json_fields(row: dict) -> dict:
    """Return the row with the fields parsed that some programs write as JSON text."""
    texts = {k: v for k, v in row.items() if k in _JSON_FIELDS and isinstance(v, str)}
    for name, text in texts.items():
        value = load_json(text, None) if text.lstrip()[:1] in ("[", "{") else None
        if name in ("prompt", "completion"):  # a text may be JSON itself
            is_chat = isinstance(value, list) and value and isinstance(value[0], dict)
            value = value if is_chat and "role" in value[0] else None
        if name in ("tools", "tool_defs") and value is None:
            require(
                not text.strip(),
                f"the field {name} is {text[:60]!r}, which is not JSON: use a list of tool schemas",
            )
            row = row | {name: None}
        elif value is not None:
            row = row | {name: value}
    if isinstance(row.get("tools"), dict):
        row = row | {"tools": [row["tools"]]}
    return row


def _convert_trl(row: dict) -> tuple[str, dict]:
    """Convert a row of TRL completions to format "verl" or "messages"; return its name and row."""
    scores = {k: v for k, v in row.items() if isinstance(v, float) and not math.isnan(v)}
    scores.pop("advantage", None)
    row = row | {"reward": sum(scores.values()) if scores else None, "reward_parts": scores}
    prompt, completion = row["prompt"], row["completion"] or ""
    if isinstance(prompt, str) and isinstance(completion, str):
        return "verl", row | {"input": prompt, "output": completion}
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    return "messages", row | {"messages": join_prompt(prompt or (), completion)}


def _convert_text_record(row: dict) -> tuple[str, dict]:
    """Convert a `verifiers` row of texts to format "verl"; return the format and the row."""
    row = row | {k: join_text_messages(row[k]) for k in ("prompt", "completion")}
    metrics = row.get("metrics") or {}
    row["reward_parts"] = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
    if not row["completion"] and find_failure(row):
        raise EmptyRolloutError(find_failure(row))
    if isinstance(row["prompt"], str) and isinstance(row["completion"], str):
        return "verl", row | {"input": row["prompt"], "output": row["completion"]}
    return "verifiers", row


def _build_trace(fields: dict, nodes: list[dict], tokenizer, notes: ReadingNotes) -> Rollout:
    """Build the rollout of a branch of a `verifiers` trace, with its token ids if it has them."""
    if not nodes:
        raise EmptyRolloutError(find_failure(fields) or "a trace has no messages")
    chat = [node["message"] | ({} if node.get("sampled") else {"sampled": False}) for node in nodes]
    messages = _flatten_messages(chat, notes)
    has_ids = all(node.get("token_ids") for node in nodes)
    if not has_ids or isinstance(tokenizer, WordTokenizer):
        pieces = render_turns(messages, tokenizer, fields.get("tools"))
        return Rollout(fields, messages, _tokenize_turns(pieces, tokenizer))
    parts = []
    for node in nodes:
        ids = _read_ids(node["token_ids"], "token_ids", tokenizer)
        mask = node.get("mask") or [False] * len(ids)
        require(len(mask) == len(ids), "token_ids and mask of a node differ in length")
        values = iter(node.get("logprobs") or ())
        for sampled, run in groupby(range(len(ids)), key=lambda t: bool(mask[t])):
            at = list(run)
            scores = None
            if sampled and node.get("logprobs"):
                scores = [(next(values, None), ()) for _ in at]
            parts.append(TokenRun([ids[t] for t in at], sampled, scores))
    return Rollout(fields, messages, parts)


def _join_turns(turns: Sequence[SampledTurn], tokenizer) -> list[TokenRun] | None:
    """Join the ids of turns if each prompt continues the turn before; None if not."""
    parts: list[TokenRun] = []
    before: list[int] = []
    for turn in turns:
        if not turn.prompt_ids or not turn.ids:
            return None
        prompt = _read_ids(turn.prompt_ids, "prompt ids", tokenizer)
        if prompt[: len(before)] != before:
            return None  # the context was edited
        parts.append(TokenRun(prompt[len(before) :], False))
        parts.append(_build_turn(turn, tokenizer))
        before = [*prompt, *parts[-1].ids]
    return parts or None


def _build_turn(turn: SampledTurn, tokenizer) -> TokenRun:
    """Return the sampled ids of a turn with their log-probabilities."""
    ids = _read_ids(turn.ids, "completion ids", tokenizer)
    scores = [(value, ()) for value in turn.logprobs] if turn.logprobs else None
    return TokenRun(ids, True, scores)


def _read_ids(values: Sequence[Any], name: str, tokenizer) -> list[int]:
    """Return token ids as integers; raise ValueError if the tokenizer cannot have them."""
    ids = list(values)
    if not all(type(value) is int for value in ids):
        numbers = [to_number(value) for value in ids]
        for number in numbers:
            is_whole = isinstance(number, int | float) and math.isfinite(number) and number % 1 == 0
            require(is_whole, f"the field {name} has the id {number!r}; use integers")
        ids = [int(number) for number in numbers]
    if ids and not 0 <= min(ids) <= max(ids) < _pad_vocabulary(tokenizer):
        raise ValueError(
            f"ids from {min(ids)} to {max(ids)} exceed the tokenizer's {len(tokenizer)} tokens; "
            "pass the tokenizer of the model"
        )
    return ids


def to_number(value: Any) -> Any:
    """Return the number of a text such as "1.0", else the value."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _pad_vocabulary(tokenizer) -> int:
    """Return the largest size of the vocabulary of a model with this tokenizer."""
    return math.ceil(1.01 * len(tokenizer) / _PADDING) * _PADDING


def decode_ids(tokenizer, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the texts of `token_texts`; an id of a padded vocabulary gives U+FFFD."""
    ids = np.asarray(ids)
    padded = (ids >= len(tokenizer)) & (ids < _pad_vocabulary(tokenizer))
    if not padded.any():
        return token_texts(tokenizer, ids)
    texts = token_texts(tokenizer, np.where(padded, 0, ids))
    texts[padded] = "\ufffd"
    return texts


def _tokenize_turns(pieces: Sequence[str], tokenizer) -> list[TokenRun]:
    """Tokenise alternating observed and sampled texts, the first one observed."""
    return [TokenRun(encode(tokenizer, text), i % 2 == 1) for i, text in enumerate(pieces)]


def _split_by_mask(row: dict) -> list[TokenRun]:
    """Split an `agent loop` row into its prompt and the runs of its response mask."""
    ids = row["response_ids"] or []
    mask = row.get("response_mask") or [1] * len(ids)
    mask = [to_number(value) for value in mask]
    values = row.get("response_logprobs")
    if len(mask) != len(ids) or values is not None and len(values) != len(ids):
        raise ValueError("response_ids, response_mask and response_logprobs differ in length")
    parts = [TokenRun(row["prompt_ids"] or [], False)]
    for sampled, run in groupby(range(len(ids)), key=lambda t: bool(mask[t])):
        at = list(run)
        scores = None
        if sampled and values is not None:
            scores = [(values[t], ()) for t in at]
        parts.append(TokenRun([ids[t] for t in at], sampled, scores))
    return parts


def _decode_messages(parts: list[TokenRun], tokenizer, notes: ReadingNotes) -> list[dict]:
    """Decode token runs into messages: user, then assistant and tool in turn.

    The ids of the runs are checked, and converted to integers in place.
    """
    messages: list[dict] = []
    for i, part in enumerate(parts):
        ids = _read_ids(part.ids, "token ids", tokenizer)
        parts[i] = part._replace(ids=ids)
        if part.sampled:
            role = "assistant"
        else:
            role = "tool" if messages else "user"
        if ids and max(ids) >= len(tokenizer):
            notes.repaired["ids of a padded vocabulary"] += sum(i >= len(tokenizer) for i in ids)
            text = "".join(decode_ids(tokenizer, ids))
        else:
            text = tokenizer.decode(ids, skip_special_tokens=False)
        messages.append({"role": role, "content": text.removesuffix(END)})
    return messages


# ---------------------------------------------------------------------------------------------
# server responses


def _parse_choice(one: dict, row: dict, tokenizer, notes: ReadingNotes) -> list[TokenRun]:
    """Return the prompt and the sampled tokens of a `vllm` output or an `openai` choice."""
    message = one.get("message")
    if isinstance(message, str):
        message = {"role": "assistant", "content": message}
    text = flatten_message(message, notes)["content"] if message else one.get("text") or ""
    if isinstance(tokenizer, WordTokenizer):
        prompt = _find_prompt(one, row, tokenizer)
        if not isinstance(prompt, str):
            raise ValueError(
                "the prompt has token ids instead of texts: pass the tokenizer of the model "
                "(--tokenizer)"
            )
        return _tokenize_turns([prompt, text], tokenizer)
    ids = one.get("token_ids")
    if ids is not None:
        ids = _read_ids(ids, "token_ids", tokenizer)
    logprobs = _parse_logprobs(one.get("logprobs") or {}, ids, bool(message))
    while ids is None and logprobs and not logprobs[-1].text:
        logprobs.pop()  # an end token, whose text the server removed
    if ids is None and logprobs:
        ids = _find_ids(logprobs, text, tokenizer)
        if ids is None:
            notes.repaired["turns without log-probabilities, as their tokens are unclear"] += 1
            logprobs = []
    if ids is None:
        ids = encode(tokenizer, text)
    if not ids:
        return [TokenRun((), True)]
    scores = [
        (entry.value, _list_alternatives(entry, i, tokenizer))
        for i, entry in zip(chain(ids, repeat(-1)), logprobs)
    ]
    prompt = _find_prompt(one, row, tokenizer)
    return [
        TokenRun(prompt if not isinstance(prompt, str) else encode(tokenizer, prompt), False),
        TokenRun(ids, True, scores or None),
    ]


class _Entry(NamedTuple):
    """Log-probabilities at one token.

    Attributes:
        text: text of the sampled token, or its id.
        value: its log-probability; NaN if unknown.
        alternatives: (text or id, bytes, log-probability) of the alternatives.
        data: bytes of the sampled token; None if unknown.

    """

    text: str | int
    value: float
    alternatives: Sequence[tuple[str | int, bytes | None, float]]
    data: bytes | None = None


def _list_alternatives(entry: _Entry, sampled: int, tokenizer) -> list[tuple[int, float]]:
    """Return the ids and log-probabilities of the alternatives; -1 for an unknown token.

    Tokens with the same text are different tokens. One that replaced the sampled token, because the
    server uses texts as keys, is known by its value.
    """
    found: list[tuple[int, float]] = []
    has_sampled = collides = False
    for key, data, value in entry.alternatives:
        if math.isnan(value):
            continue
        i = _find_id(tokenizer, key, data)
        same_text = key == entry.text
        if not has_sampled and same_text and value == entry.value:
            i, has_sampled = sampled, True
        elif i == sampled and not isinstance(key, int) or i in {j for j, _ in found}:
            i = -1  # another token with the same text
        collides = collides or same_text
        found.append((i, value))
    if collides and not has_sampled and not math.isnan(entry.value):
        found.append((sampled, entry.value))
    return found


def read_logprob(value: Any, at: str) -> float:
    """Return a log-probability; NaN for null, NaN, -inf and the placeholders of servers.

    Raises:
        ValueError: the value is positive or no number.

    """
    number = math.nan if value is None else to_number(value)
    require(
        isinstance(number, int | float) and not number > 1e-4,
        f"the log-probability at {at} is {value!r}; use numbers up to 0, or null if unknown",
    )
    return math.nan if number <= _UNKNOWN_LOGPROB else float(number)


def _parse_logprobs(logs, ids: Sequence[int] | None, chat: bool) -> list[_Entry]:
    """Return the log-probabilities of each token.

    Args:
        logs: a list of dictionaries by id (vLLM outputs), or the `logprobs` of a server response.
        ids: token ids of vLLM outputs.
        chat: True for chat completions, False for text completions.
    """
    if isinstance(logs, list):
        count = len(ids or ())
        require(len(logs) == count, f"{len(logs)} log-probabilities for {count} sampled tokens")
        return [_parse_by_id(i, at, f"token {n}") for n, (i, at) in enumerate(zip(ids or (), logs))]
    if chat:
        return [
            _Entry(
                at["token"],
                read_logprob(at["logprob"], f"token {n}"),
                [
                    (top["token"], _get_bytes(top), read_logprob(top["logprob"], f"token {n}"))
                    for top in at.get("top_logprobs") or ()
                ],
                _get_bytes(at),
            )
            for n, at in enumerate(logs.get("content") or ())
        ]
    tokens = logs.get("tokens") or []
    values = logs.get("token_logprobs") or []
    tops = logs.get("top_logprobs") or [None] * len(tokens)
    return [
        _Entry(
            token,
            read_logprob(value, f"token {n}"),
            _list_by_text(top or {}, f"token {n}"),
        )
        for n, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True))
    ]


def _list_by_text(top: dict, where: str) -> list[tuple[str, None, float]]:
    """Return alternatives keyed by text; equal texts have overwritten each other."""
    found: list[tuple[str, None, float]] = [
        (key, None, read_logprob(value, where)) for key, value in top.items()
    ]
    if any(not key or "\ufffd" in key for key in top):
        found.append(("", None, -math.inf))  # a lost token may be more probable than the last
    return found


def _parse_by_id(sampled: int, at: dict | None, where: str) -> _Entry:
    """Return the log-probabilities at a token of a vLLM output, keyed by id."""
    if at is None:
        return _Entry(sampled, math.nan, [])
    values = {
        int(i): v.get("logprob") if isinstance(v, dict) else v
        for i, v in at.items()
        if v is not None or int(i) == sampled  # Parquet fills the keys of other tokens with null
    }
    require(
        sampled in values,
        f"the log-probability of the sampled id {sampled} is missing at {where}; it has those of "
        f"{[*values]}",
    )
    return _Entry(
        sampled,
        read_logprob(values[sampled], where),
        [(i, None, read_logprob(v, where)) for i, v in values.items()],
    )


def _get_bytes(entry: dict) -> bytes | None:
    """Return the bytes of a token of a chat completion; None if they are missing."""
    data = entry.get("bytes")
    return bytes(data) if data else None


def _find_prompt(one: dict, row: dict, tokenizer) -> str | Sequence[int]:
    """Return the prompt: ids of the response, or the text or messages of the request."""
    prompt = one.get("prompt_token_ids") or row.get("prompt_token_ids") or row.get("prompt")
    if isinstance(tokenizer, WordTokenizer):
        prompt = row.get("prompt") or prompt
    if not prompt and "messages" in row:
        messages = _flatten_messages(row["messages"], None)
        reply = {"role": "assistant", "content": ""}
        prompt = "".join(render_turns([*messages, reply], tokenizer, row.get("tools")))
    require(
        bool(prompt),
        'no prompt: save {"request": .., "response": ..} per line, or request '
        "return_token_ids from the server",
    )
    return prompt


def _check_text(one: dict, messages: list[dict], parts: Sequence[TokenRun], tokenizer) -> None:
    """Raise ValueError if the decoded ids differ from the text in the file."""
    text = (one.get("text") or "").strip("\ufffd \n")
    with_specials = messages[-1]["content"]
    without = tokenizer.decode(parts[-1].ids, skip_special_tokens=True)
    if not any(way.strip().startswith(text) for way in (with_specials, without)):
        raise ValueError(
            f"the ids decode to {with_specials[:60]!r} with this tokenizer, but the text in the "
            f"file is {text[:60]!r}; pass the tokenizer of the model"
        )


# ---------------------------------------------------------------------------------------------
# token texts to ids


def encode(tokenizer, text: str) -> list[int]:
    """Return the token ids of a text, without special tokens."""
    return tokenizer.encode(text, add_special_tokens=False)


def _find_ids(entries: Sequence[_Entry], text: str, tokenizer) -> list[int] | None:
    """Return the ids of tokens; `text` is their concatenation, possibly without the last.

    Returns:
        The ids; None if a token is a part of a character that its text does not identify.

    Raises:
        ValueError: another token is not in the vocabulary.

    """
    tokens = [entry.text for entry in entries]
    for whole in (text, f"{text}{tokens[-1]}"):  # needed if a character has several tokens
        ids = encode(tokenizer, whole)
        if token_texts(tokenizer, ids).tolist() == tokens:
            return ids
    ids = [_find_id(tokenizer, entry.text, entry.data) for entry in entries]
    unknown = [token for i, token in zip(ids, tokens) if i == -1]
    if unknown:
        named = next((token for token in unknown if token and "\ufffd" not in str(token)), None)
        require(
            named is None,
            f"{named!r} is not a token of this tokenizer, or is part of a character: pass the "
            "tokenizer of the model, or request return_token_ids",
        )
        return None
    return ids


@lru_cache(100_000)
def _find_id(tokenizer, token: str | int, data: bytes | None = None) -> int:
    """Return the id of the token with this text and bytes, or -1 if they do not identify one."""
    if isinstance(token, int) or token.startswith("token_id:"):
        return int(str(token).removeprefix("token_id:"))
    if "\ufffd" in token or not token:  # parts of characters, and tokens without a text
        return _find_id_of_bytes(tokenizer, data) if data else -1
    candidates = [*encode(tokenizer, token), tokenizer.convert_tokens_to_ids(token)]
    texts = {i: token_texts(tokenizer, [i])[0] for i in candidates if i is not None}
    return next((i for i, text in texts.items() if text == token), -1)


def _find_id_of_bytes(tokenizer, data: bytes) -> int:
    """Return the id of a byte-level token, or of a single byte (byte fallback), or -1."""
    names = ["".join(_BYTE_LEVEL[byte] for byte in data)]
    if len(data) == 1:
        names.append(f"<0x{data[0]:02X}>")
    vocabulary = _get_vocabulary(tokenizer)
    return next((vocabulary[name] for name in names if name in vocabulary), -1)


@lru_cache(4)
def _get_vocabulary(tokenizer) -> dict[str, int]:
    return tokenizer.get_vocab()


def _map_bytes() -> dict[int, str]:
    """Return the character of each byte in the vocabulary of a byte-level tokenizer (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    mapped = {byte: chr(byte) for byte in printable}
    return mapped | {byte: chr(256 + n) for n, byte in enumerate(others)}


_BYTE_LEVEL = _map_bytes()
