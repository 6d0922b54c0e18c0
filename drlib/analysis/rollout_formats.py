"""Rollout formats of other programs, read as messages and token segments.

`rollouts_of(format, row, tokenizer)` takes a row of a file in one of the formats of `inputs`. Ids
are the file's, else its text is tokenised turn by turn. Log-probabilities and alternatives are what
a server told, by ids or by the texts of tokens; the tokenizer then finds the ids.
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

# what the environment wrote into an output, with or without the markers of ChatML
_OBSERVED = re.compile(
    r"((?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:\b(?:user|tool)\n)?"
    r"(?:<tool_response>.*?</tool_response>\s*)+"
    r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\n)?)",
    re.S,
)
TokenScores = list[tuple[float | None, Sequence[tuple[int, float]]]]


class TokenRun(NamedTuple):
    """A run of tokens that the policy sampled, or that it read.

    said: None where nothing is known; else for each token its log-probability, and the ids and
    log-probabilities of its alternatives.
    """

    ids: Sequence[int]
    sampled: bool
    said: TokenScores | None = None


class Rollout(NamedTuple):
    """A row's fields, its messages (plain text) and its tokens in parts."""

    fields: dict
    messages: list[dict]
    parts: list[TokenRun]


def iter_rollouts(name: str, row: dict, tokenizer) -> Iterator[Rollout]:
    """The rollouts in a row of format `name`; a server's row may hold several.

    ValueError, KeyError and others for rows that are not what their format promises.
    """
    if name == "trl":
        name, row = _convert_trl(row)
    if name in ("messages", "tongyi"):
        if not row["messages"] and row.get("error"):
            warnings.warn(f"left out a rollout that failed: {row['error']}", stacklevel=4)
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
    """The format that a row of TRL's completions comes down to, and the row in it."""
    scores = {k: v for k, v in row.items() if isinstance(v, float) and not math.isnan(v)}
    scores.pop("advantage", None)
    row = row | {"reward": sum(scores.values()) if scores else None, "reward_parts": scores}
    if isinstance(row["prompt"], str):
        return "verl", row | {"input": row["prompt"], "output": row["completion"]}
    return "messages", row | {"messages": [*row["prompt"], *row["completion"]]}


def _tokenize_turns(pieces: Sequence[str], tokenizer) -> list[TokenRun]:
    """Texts that were read and sampled in turns, the first one read."""
    return [TokenRun(encode(tokenizer, text), i % 2 == 1) for i, text in enumerate(pieces)]


def _split_by_mask(row: dict) -> list[TokenRun]:
    """The parts of an `agent loop`: a prompt, and a response of which a mask was sampled."""
    ids = row["response_ids"]
    mask = row.get("response_mask") or [1] * len(ids)
    values = row.get("response_logprobs")
    if len(mask) != len(ids) or values is not None and len(values) != len(ids):
        raise ValueError("response_ids, response_mask and response_logprobs differ in length")
    parts = [TokenRun(row["prompt_ids"], False)]
    for sampled, run in groupby(range(len(ids)), key=lambda t: bool(mask[t])):
        at = list(run)
        said = None
        if sampled and values is not None:
            said = [(values[t], ()) for t in at]
        parts.append(TokenRun([ids[t] for t in at], sampled, said))
    return parts


def _decode_messages(parts: Sequence[TokenRun], tokenizer) -> list[dict]:
    """The messages in the tokens: a prompt, then turns and what they were answered."""
    messages: list[dict] = []
    for part in parts:
        if len(part.ids) and not 0 <= min(part.ids) <= max(part.ids) < len(tokenizer):
            raise ValueError(
                f"ids from {min(part.ids)} to {max(part.ids)} do not fit the tokenizer's "
                f"{len(tokenizer)}: the model has another tokenizer"
            )
        if part.sampled:
            role = "assistant"
        else:
            role = "tool" if messages else "user"
        text = tokenizer.decode(part.ids, skip_special_tokens=False)
        messages.append({"role": role, "content": text.removesuffix(END)})
    return messages


# ---------------------------------------------------------------------------------------------
# servers' responses


def _parse_choice(one: dict, row: dict, tokenizer) -> list[TokenRun]:
    """The parts of an output of `vllm` or a choice of `openai`: a prompt and what was sampled."""
    ids = one.get("token_ids")
    message = one.get("message")
    text = flatten_message(message)["content"] if message else one.get("text", "")
    told = _parse_logprobs(one.get("logprobs") or {}, ids, bool(message))
    if ids is None and told:
        ids = _find_ids([token for token, _, _ in told], text, tokenizer)
    elif ids is None:
        ids = encode(tokenizer, text)
    said = [
        (value, [(_find_id(tokenizer, other), v) for other, v in (alternatives or {}).items()])
        for _, value, alternatives in told
    ]
    return [
        TokenRun(_find_prompt_ids(one, row, tokenizer), False),
        TokenRun(ids, True, said or None),
    ]


def _parse_logprobs(logs, ids: Sequence[int] | None, chat: bool) -> list[tuple]:
    """(token, log-probability, {alternative: log-probability}) of each token, by text or id.

    logs: a list is vLLM's own output (a dictionary by ids for each token); else a server's, of a
    chat or of a completion.
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
    """The ids of what was asked: told by the server, or the request's text or messages."""
    prompt = one.get("prompt_token_ids") or row.get("prompt_token_ids") or row.get("prompt")
    if not prompt and "messages" in row:
        asked = [flatten_message(message) for message in row["messages"]]
        to_answer = {"role": "assistant", "content": ""}
        prompt = "".join(render_turns([*asked, to_answer], tokenizer, row.get("tools")))
    require(
        bool(prompt),
        'no prompt: save {"request": .., "response": ..} as a line, or ask the '
        "server for return_token_ids",
    )
    return encode(tokenizer, prompt) if isinstance(prompt, str) else prompt


def _check_text(one: dict, messages: list[dict], parts: Sequence[TokenRun], tokenizer) -> None:
    """ValueError where the ids are not the text that the file says."""
    text = (one.get("text") or "").strip("\ufffd \n")
    with_specials = messages[-1]["content"]
    without = tokenizer.decode(parts[-1].ids, skip_special_tokens=True)
    if not any(way.strip().startswith(text) for way in (with_specials, without)):
        raise ValueError(
            f"the ids are {with_specials[:60]!r} with this tokenizer, the file says "
            f"{text[:60]!r}: the model has another tokenizer"
        )


# ---------------------------------------------------------------------------------------------
# texts of tokens to ids


def encode(tokenizer, text: str) -> list[int]:
    """The ids of a text, and no others."""
    return tokenizer.encode(text, add_special_tokens=False)


def _find_ids(tokens: list[str], text: str, tokenizer) -> list[int]:
    """The ids of tokens whose texts a server told; `text` is all of them, perhaps but the last."""
    for whole in (text, text + tokens[-1]):  # the only way where characters have several tokens
        ids = encode(tokenizer, whole)
        if token_texts(tokenizer, ids).tolist() == tokens:
            return ids
    ids = [_find_id(tokenizer, token) for token in tokens]
    if -1 in ids:
        raise ValueError(
            f"{tokens[ids.index(-1)]!r} is no token of this tokenizer: the model has "
            "another tokenizer, or it is a part of a character: ask the server for "
            "return_token_ids"
        )
    return ids


@lru_cache(100_000)
def _find_id(tokenizer, token: str | int) -> int:
    """-1 when no token has this text."""
    if isinstance(token, int) or token.startswith("token_id:"):
        return int(str(token).removeprefix("token_id:"))
    tried = [*encode(tokenizer, token), tokenizer.convert_tokens_to_ids(token)]
    texts = {i: token_texts(tokenizer, [i])[0] for i in tried if i is not None}
    return next((i for i, text in texts.items() if text == token), -1)
