"""Rollout formats of other programs: conversion of rows to messages and token runs.

`iter_rollouts` converts a row in one of the formats of `inputs`. Token ids are those of the file;
without ids the text is tokenised turn by turn. Servers return log-probabilities and alternatives by
id or by token text; texts are converted to ids with the tokenizer.
"""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby, repeat
from typing import NamedTuple

from drlib.analysis.chat_messages import flatten_message, render_turns
from drlib.chat.segments import token_texts
from drlib.chat.tool_calls import END
from drlib.validation import require

# text of the environment inside an output, with or without ChatML markers
_OBSERVED = re.compile(
    r"((?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:\b(?:user|tool)\n)?"
    r"(?:<tool_response>.*?</tool_response>\s*)+"
    r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\n)?)",
    re.S,
)
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


def iter_rollouts(name: str, row: dict, tokenizer) -> Iterator[Rollout]:
    """Yield the rollouts in a row; a server response may have several.

    Args:
        name: format, a key of `inputs.FORMATS`.
        row: fields of the row.
        tokenizer: tokenizer of the model.

    Raises:
        ValueError: invalid content.
        KeyError: a missing field. Other LookupErrors and TypeErrors: invalid structure.

    """
    if name == "trl":
        name, row = _convert_trl(row)
    if name in ("messages", "tongyi"):
        if not row["messages"] and row.get("error"):
            warnings.warn(f"skipped a failed rollout: {row['error']}", stacklevel=4)
            return
        messages = [flatten_message(message) for message in row["messages"]]
        pieces = render_turns(messages, tokenizer, row.get("tools"))
        yield Rollout(row, messages, _tokenize_turns(pieces, tokenizer))
    elif name == "verl":
        parts = _tokenize_turns([row["input"], *_OBSERVED.split(row["output"])], tokenizer)
        yield Rollout(row, _decode_messages(parts, tokenizer), parts)
    elif name == "agent loop":
        parts = _split_by_mask(row)
        yield Rollout(row, _decode_messages(parts, tokenizer), parts)
    else:
        for one in row["outputs"] if name == "vllm" else row["choices"]:
            parts = _parse_choice(one, row, tokenizer)
            messages = _decode_messages(parts, tokenizer)
            _check_text(one, messages, parts, tokenizer)
            yield Rollout(row | one, messages, parts)


def _convert_trl(row: dict) -> tuple[str, dict]:
    """Convert a row of TRL completions to format "verl" or "messages"; return its name and row."""
    scores = {k: v for k, v in row.items() if isinstance(v, float) and not math.isnan(v)}
    scores.pop("advantage", None)
    row = row | {"reward": sum(scores.values()) if scores else None, "reward_parts": scores}
    if isinstance(row["prompt"], str):
        return "verl", row | {"input": row["prompt"], "output": row["completion"]}
    return "messages", row | {"messages": [*row["prompt"], *row["completion"]]}


def _tokenize_turns(pieces: Sequence[str], tokenizer) -> list[TokenRun]:
    """Tokenise alternating observed and sampled texts, the first one observed."""
    return [TokenRun(encode(tokenizer, text), i % 2 == 1) for i, text in enumerate(pieces)]


def _split_by_mask(row: dict) -> list[TokenRun]:
    """Split an `agent loop` row into its prompt and the runs of its response mask."""
    ids = row["response_ids"]
    mask = row.get("response_mask") or [1] * len(ids)
    values = row.get("response_logprobs")
    if len(mask) != len(ids) or values is not None and len(values) != len(ids):
        raise ValueError("response_ids, response_mask and response_logprobs differ in length")
    parts = [TokenRun(row["prompt_ids"], False)]
    for sampled, run in groupby(range(len(ids)), key=lambda t: bool(mask[t])):
        at = list(run)
        scores = None
        if sampled and values is not None:
            scores = [(values[t], ()) for t in at]
        parts.append(TokenRun([ids[t] for t in at], sampled, scores))
    return parts


def _decode_messages(parts: Sequence[TokenRun], tokenizer) -> list[dict]:
    """Decode token runs into messages: user, then assistant and tool in turn."""
    messages: list[dict] = []
    for part in parts:
        if len(part.ids) and not 0 <= min(part.ids) <= max(part.ids) < len(tokenizer):
            raise ValueError(
                f"ids from {min(part.ids)} to {max(part.ids)} exceed the tokenizer's "
                f"{len(tokenizer)} tokens; pass the tokenizer of the model"
            )
        if part.sampled:
            role = "assistant"
        else:
            role = "tool" if messages else "user"
        text = tokenizer.decode(part.ids, skip_special_tokens=False)
        messages.append({"role": role, "content": text.removesuffix(END)})
    return messages


# ---------------------------------------------------------------------------------------------
# server responses


def _parse_choice(one: dict, row: dict, tokenizer) -> list[TokenRun]:
    """Return the prompt and the sampled tokens of a `vllm` output or an `openai` choice."""
    ids = one.get("token_ids")
    message = one.get("message")
    text = flatten_message(message)["content"] if message else one.get("text", "")
    logprobs = _parse_logprobs(one.get("logprobs") or {}, ids, bool(message))
    if ids is None and logprobs:
        ids = _find_ids([token for token, _, _ in logprobs], text, tokenizer)
    elif ids is None:
        ids = encode(tokenizer, text)
    scores = [
        (value, [(_find_id(tokenizer, other), v) for other, v in (alternatives or {}).items()])
        for _, value, alternatives in logprobs
    ]
    return [
        TokenRun(_find_prompt_ids(one, row, tokenizer), False),
        TokenRun(ids, True, scores or None),
    ]


def _parse_logprobs(logs, ids: Sequence[int] | None, chat: bool) -> list[tuple]:
    """Return (token, log-probability, {alternative: log-probability}) per token, by text or id.

    Args:
        logs: a list of dictionaries by id (vLLM outputs), or the `logprobs` of a server response.
        ids: token ids of vLLM outputs.
        chat: True for chat completions, False for text completions.
    """
    if isinstance(logs, list):
        by_id = [
            {int(i): v["logprob"] if isinstance(v, dict) else v for i, v in at.items()}
            for at in logs
        ]
        return [(i, at.get(i), at) for i, at in zip(chain(ids, repeat(None)), by_id)]
    if chat:
        return [
            (
                at["token"],
                at["logprob"],
                {top["token"]: top["logprob"] for top in at.get("top_logprobs") or ()},
            )
            for at in logs.get("content") or ()
        ]
    tokens = logs.get("tokens") or []
    values = logs.get("token_logprobs") or []
    tops = logs.get("top_logprobs") or [None] * len(tokens)
    return list(zip(tokens, values, tops, strict=True))


def _find_prompt_ids(one: dict, row: dict, tokenizer) -> Sequence[int]:
    """Return the prompt ids from the response, or from the text or messages of the request."""
    prompt = one.get("prompt_token_ids") or row.get("prompt_token_ids") or row.get("prompt")
    if not prompt and "messages" in row:
        messages = [flatten_message(message) for message in row["messages"]]
        reply = {"role": "assistant", "content": ""}
        prompt = "".join(render_turns([*messages, reply], tokenizer, row.get("tools")))
    require(
        bool(prompt),
        'no prompt: save {"request": .., "response": ..} per line, or request '
        "return_token_ids from the server",
    )
    return encode(tokenizer, prompt) if isinstance(prompt, str) else prompt


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


def _find_ids(tokens: list[str], text: str, tokenizer) -> list[int]:
    """Return the ids of token texts; `text` is their concatenation, possibly without the last."""
    for whole in (text, text + tokens[-1]):  # needed if a character has several tokens
        ids = encode(tokenizer, whole)
        if token_texts(tokenizer, ids).tolist() == tokens:
            return ids
    ids = [_find_id(tokenizer, token) for token in tokens]
    if -1 in ids:
        raise ValueError(
            f"{tokens[ids.index(-1)]!r} is not a token of this tokenizer, or is part of a "
            "character: pass the tokenizer of the model, or request return_token_ids"
        )
    return ids


@lru_cache(100_000)
def _find_id(tokenizer, token: str | int) -> int:
    """Return the id of the token with this text, or -1."""
    if isinstance(token, int) or token.startswith("token_id:"):
        return int(str(token).removeprefix("token_id:"))
    candidates = [*encode(tokenizer, token), tokenizer.convert_tokens_to_ids(token)]
    texts = {i: token_texts(tokenizer, [i])[0] for i in candidates if i is not None}
    return next((i for i, text in texts.items() if text == token), -1)
