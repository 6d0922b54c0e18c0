"""Rollouts of other programs as trajectories, so that people can bring their own.

`read_rollouts(path, tokenizer)` knows a file (JSON lines or Parquet) by its fields, see `FORMATS`,
and reads it as a stream. What a file lacks is filled in like this, and never guessed:

- Token ids: the file's, else its text, tokenised turn by turn: messages through the chat template
  (ChatML without one), assistants' words as they stand. A tag in a tool's text counts as a tag.
- Log-probabilities: NaN; entropies: None (`rescoring.rescore` makes both). Alternatives are sorted,
  shorter lists end in -1 and -inf, one whose text names no single id has -1. The last is left out
  if it was sampled: servers add that one, however improbable it is.
- Tool results: messages of the role tool and <tool_response> tags, one a turn (parallel calls':
  joined, under the first call). The message's ok, is_error, isError, status or error says whether
  it worked. Else a text without words or with "No results" at its start is "empty", and one that
  starts like an error ("Error", "KeyError", "Traceback", "[Python Interpreter Error") is one.
- The answer: `prediction`, else an <answer> tag. Termination: the words in `ENDS` (kept in the
  metadata); with any other, ANSWERED with an answer, FORMAT without.
- Reward: `reward` or `score`; null is "not judged", NaN an error.

Inside, a rollout is messages and parts (ids, sampled?, said): said is None or, for each token,
(log-probability, [(id, log-probability) of alternatives]).
Left out: joining a server's log into conversations, images, streamed chunks, prompts' log-probs.
"""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import TemplateError

from drlib.analysis.segments import mark_people, segments_of
from drlib.analysis.token_table import token_texts
from drlib.chat import load_any_tokenizer
from drlib.checks import require
from drlib.files import iter_json_lines
from drlib.format import END, Answer, ToolCall, parse, render_call
from drlib.trajectory import Termination, ToolResult, Trajectory, iter_trajectories

FORMATS = {  # the fields of a row, and whose they are; the first that fits is taken
    "drlib": ("token_ids generated segments", "save_trajectories"),
    "trl": ("step prompt completion advantage", "GRPOTrainer; other float columns are rewards"),
    "verl": ("input output score", "rollout_data_dir, validation_data_dir"),
    "agent loop": ("prompt_ids response_ids", "verl; also response_mask, response_logprobs"),
    "vllm": ("prompt_token_ids outputs", "RequestOutput"),
    "openai": ("choices", "/v1/chat/completions and /v1/completions, with or without the request"),
    "tongyi": ("question messages prediction", "iterN.jsonl of Tongyi DeepResearch"),
    "messages": ("messages", "chats; also question, answer (the right one), prediction, reward"),
}
ENDS = {
    **{str(end): end for end in Termination},
    "answer": Termination.ANSWERED,  # Tongyi DeepResearch's words
    "generate an answer as token limit reached": Termination.ANSWERED,
    "format error: generate an answer as token limit reached": Termination.LENGTH,
    "no answer found after 2h30mins": Termination.WALL_CLOCK,
    "exceed available llm calls": Termination.TURNS,
}

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.S)
_ERROR = re.compile(r"\[[\w ]*Error\]|Traceback \(|\{['\"]error['\"]:|[\w.]*(Error|Exception)\b")
_FLAGS = {"ok": (False,), "is_error": (True,), "isError": (True,), "status": ("error", "failed")}
_QUESTION = re.compile(
    r"(?:^|\n|<\|im_start\|>)user\n(.*?)(?:<\|im_end\|>|\n?(?:<\|im_start\|>)?assistant\n|$)", re.S
)
# what the environment wrote into an output, with or without the markers of ChatML
_OBSERVED = re.compile(
    r"((?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:\b(?:user|tool)\n)?"
    r"(?:<tool_response>.*?</tool_response>\s*)+"
    r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\n)?)",
    re.S,
)


def _encode(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _render(messages: list[dict], tokenizer, tools) -> list[str]:
    """The text up to the last assistant's turn: others' and assistants' words in turns."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    require(bool(turns), "no message of an assistant")
    # templates drop the thoughts of earlier turns: a mark stands for each turn meanwhile
    marked = [
        m | {"content": f"\ue000{i}\ue000"} if i in turns else m
        for i, m in enumerate(messages[: turns[-1]])
    ]
    text = tokenizer.apply_chat_template(
        marked,
        tools=tools,
        chat_template=tokenizer.chat_template or _CHATML,
        add_generation_prompt=True,
        tokenize=False,
    )
    pieces = re.split("\ue000(\\d+)\ue000", text)
    shown = pieces[1::2] == list(map(str, turns[:-1]))
    require(shown, "the tokenizer's chat template does not show every assistant's turn")
    pieces[1::2] = [messages[i]["content"] for i in turns[:-1]]
    return [*pieces, messages[turns[-1]]["content"]]


@lru_cache(100_000)
def _id_of(tokenizer, token: str | int) -> int:
    """-1 when no token has this text."""
    if isinstance(token, int) or token.startswith("token_id:"):
        return int(str(token).removeprefix("token_id:"))
    tried = [*_encode(tokenizer, token), tokenizer.convert_tokens_to_ids(token)]
    texts = {i: token_texts(tokenizer, [i])[0] for i in tried if i is not None}
    return next((i for i, text in texts.items() if text == token), -1)


def _ids_of(tokens: list[str], text: str, tokenizer) -> list[int]:
    for whole in (text, text + tokens[-1]):  # the only way where characters have several tokens
        ids = _encode(tokenizer, whole)
        if token_texts(tokenizer, ids).tolist() == tokens:
            return ids
    ids = [_id_of(tokenizer, token) for token in tokens]
    if -1 in ids:
        raise ValueError(
            f"{tokens[ids.index(-1)]!r} is no token of this tokenizer: the model has "
            "another tokenizer, or it is a part of a character: ask the server for "
            "return_token_ids"
        )
    return ids


def _plain(message: dict) -> dict:
    """The message with thoughts and calls written into its content, which is text."""
    message = {name: value for name, value in message.items() if value is not None}
    content, thought = message.get("content", ""), message.pop("reasoning_content", "")
    if not isinstance(content, str):
        content = "".join(block["text"] for block in content)
    content = (f"<think>{thought}</think>" if thought else "") + content
    for call in message.pop("tool_calls", ()):
        function = call.get("function", call)
        given = function["arguments"]
        given = json.loads(given) if isinstance(given, str) else given
        # Parquet writes null for the arguments of other calls
        given = {name: value for name, value in given.items() if value is not None}
        content += render_call(function["name"], given)
    return message | {"content": content}


def _said(parts: list[tuple], tokenizer) -> list[dict]:
    """The messages in the tokens: a prompt, then turns and what they were answered."""
    messages: list[dict] = []
    for ids, sampled, _ in parts:
        if len(ids) and not 0 <= min(ids) <= max(ids) < len(tokenizer):
            raise ValueError(
                f"ids from {min(ids)} to {max(ids)} do not fit the tokenizer's "
                f"{len(tokenizer)}: the model has another tokenizer"
            )
        role = "assistant" if sampled else "tool" if messages else "user"
        text = tokenizer.decode(ids, skip_special_tokens=False)
        messages.append({"role": role, "content": text.removesuffix(END)})
    return messages


def tool_results(messages: Sequence[dict]) -> list[ToolResult]:
    """One result for each assistant's turn that was responded to (module docstring)."""
    turns: list[tuple[str, list]] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            turns.append((content, []))
        elif turns:
            whole = [content] if message["role"] == "tool" else []
            turns[-1][1].extend((text, message) for text in _RESPONSE.findall(content) or whole)
    return [_result(said, got) for said, got in turns if got]


def _result(said: str, got: list[tuple[str, dict]]) -> ToolResult:
    action, text = parse(said), "\n".join(text for text, _ in got)
    error = next(filter(None, (_error(*one) for one in got)), None)
    tool, arguments = got[0][1].get("name", ""), {}
    if isinstance(action, ToolCall):
        tool, arguments = action.name, action.arguments
    elif error:
        tool = error = "format"
    return ToolResult(tool, arguments, text, error is None, error)


def _error(text: str, message: dict) -> str | None:
    told = message.get("error")
    for name, bad in _FLAGS.items():
        if name in message:
            return str(told or "error") if message[name] in bad else None
    if told or _ERROR.match(text):
        return str(told or "error")
    return "empty" if not text.strip() or text.startswith("No results") else None


def _rollouts(name: str, row: dict, tokenizer) -> Iterator[tuple[dict, list[dict], list[tuple]]]:
    """(fields, messages, parts) of the rollouts in a row."""
    if name == "trl":
        scores = {k: v for k, v in row.items() if isinstance(v, float) and not math.isnan(v)}
        scores.pop("advantage", None)
        row = row | {"reward": sum(scores.values()) if scores else None, "reward_parts": scores}
        if isinstance(row["prompt"], str):
            name, row = "verl", row | {"input": row["prompt"], "output": row["completion"]}
        else:
            name, row = "messages", row | {"messages": [*row["prompt"], *row["completion"]]}
    messages, pieces = [], []
    if name in ("messages", "tongyi"):
        if not row["messages"] and row.get("error"):
            warnings.warn(f"left out a rollout that failed: {row['error']}", stacklevel=4)
            return
        messages = [_plain(message) for message in row["messages"]]
        pieces = _render(messages, tokenizer, row.get("tools"))
    elif name == "verl":
        pieces = [row["input"], *_OBSERVED.split(row["output"])]
    parts = [(_encode(tokenizer, text), i % 2 == 1, None) for i, text in enumerate(pieces)]
    parts = _masked(row) if name == "agent loop" else parts
    if parts:
        yield row, messages or _said(parts, tokenizer), parts
        return
    for one in row["outputs"] if name == "vllm" else row["choices"]:
        parts = _answered(one, row, tokenizer)
        messages, text = _said(parts, tokenizer), (one.get("text") or "").strip("\ufffd \n")
        ways = (messages[-1]["content"], tokenizer.decode(parts[-1][0], skip_special_tokens=True))
        if not any(way.strip().startswith(text) for way in ways):
            raise ValueError(
                f"the ids are {ways[0][:60]!r} with this tokenizer, the file says "
                f"{text[:60]!r}: the model has another tokenizer"
            )
        yield row | one, messages, parts


def _masked(row: dict) -> list[tuple]:
    """The parts of an `agent loop`."""
    ids, parts = row["response_ids"], [(row["prompt_ids"], False, None)]
    mask, values = row.get("response_mask") or [1] * len(ids), row.get("response_logprobs")
    if len(mask) != len(ids) or values is not None and len(values) != len(ids):
        raise ValueError("response_ids, response_mask and response_logprobs differ in length")
    for sampled, run in groupby(range(len(ids)), key=lambda t: bool(mask[t])):
        at = list(run)
        said = [(values[t], ()) for t in at] if sampled and values is not None else None
        parts.append(([ids[t] for t in at], sampled, said))
    return parts


def _answered(one: dict, row: dict, tokenizer) -> list[tuple]:
    """The parts of an output of `vllm` or a choice of `openai`: a prompt and what was sampled."""
    ids, logs, message = one.get("token_ids"), one.get("logprobs") or {}, one.get("message")
    text = _plain(message)["content"] if message else one.get("text", "")
    # tokens, by text or id, with the sampled one's log-probability and the alternatives'
    if isinstance(logs, list):
        dicts = [
            {int(i): v["logprob"] if isinstance(v, dict) else v for i, v in at.items()}
            for at in logs
        ]
        found = [(i, at.get(i), at) for i, at in zip(chain(ids, repeat(None)), dicts)]
    elif message:
        found = [
            (
                at["token"],
                at["logprob"],
                {top["token"]: top["logprob"] for top in at.get("top_logprobs") or ()},
            )
            for at in logs.get("content") or ()
        ]
    else:
        tokens = logs.get("tokens") or []
        tops = logs.get("top_logprobs") or [None] * len(tokens)
        found = list(zip(tokens, logs.get("token_logprobs") or [], tops, strict=True))
    if ids is None:
        tokens = [token for token, *_ in found]
        ids = _ids_of(tokens, text, tokenizer) if found else _encode(tokenizer, text)
    said = [
        (value, [(_id_of(tokenizer, other), v) for other, v in (top or {}).items()])
        for _, value, top in found
    ]
    prompt = one.get("prompt_token_ids") or row.get("prompt_token_ids") or row.get("prompt")
    if not prompt and "messages" in row:
        asked = [*map(_plain, row["messages"]), {"role": "assistant", "content": ""}]
        prompt = "".join(_render(asked, tokenizer, row.get("tools")))
    require(
        bool(prompt),
        'no prompt: save {"request": .., "response": ..} as a line, or ask the '
        "server for return_token_ids",
    )
    prompt = _encode(tokenizer, prompt) if isinstance(prompt, str) else prompt
    return [(prompt, False, None), (ids, True, said or None)]


def read_rollouts(path: str | Path, tokenizer=None, *, format=None) -> Iterator[Trajectory]:
    """The trajectories of a file of any format in `FORMATS`, read a few rows at a time.

    tokenizer: of the model that made them, or its folder; only drlib's own files need none.
    format: a name in `FORMATS`; by default the fields of the first row decide.

    FileNotFoundError; ValueError: no rows, an unknown format, no tokenizer, or, with the row's
    number: truncated, no messages, another tokenizer, lengths that do not fit, NaN.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} to read rollouts from")
    _, first = next(_rows(path, 1), (0, {}))
    require(bool(first), f"{path} holds no rollouts: it has no rows")
    fits = [name for name, (fields, _) in FORMATS.items() if first.keys() >= {*fields.split()}]
    name = format or next(iter(fits), None)
    if name not in fits:
        known = "\n".join(f"  {name}: {about[0]} ({about[1]})" for name, about in FORMATS.items())
        raise ValueError(
            f"{path} is of no known format, or not of the one asked for ({format}): "
            f"its rows have {', '.join(first)}. Known are\n{known}"
        )
    if name == "drlib":
        return iter_trajectories(path)
    require(
        tokenizer is not None,
        f"{path} ({name}) can only be read with the tokenizer of its "
        "model, which gives ids or the texts of tokens: pass it or its folder",
    )
    loaded = load_any_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    return _trajectories(path, name, loaded)


def _rows(path: Path, size: int = 16) -> Iterator[tuple[int, dict]]:
    """Rows, numbered from 1; of a Parquet file `size` at a time."""
    if path.suffix == ".parquet":
        try:
            with pq.ParquetFile(path) as file:
                rows = (row for batch in file.iter_batches(size) for row in batch.to_pylist())
                yield from enumerate(rows, 1)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is truncated or no Parquet file ({error})") from error
        return
    for n, row in iter_json_lines(path):
        try:
            if isinstance(body := row.get("response"), dict):  # with its request or alone
                row = (row.get("request") or {}) | (body.get("body") or body)
        except AttributeError as error:
            raise ValueError(f"{path}, line {n} is no JSON object ({error})") from error
        yield n, row


def _trajectories(path: Path, name: str, tokenizer) -> Iterator[Trajectory]:
    for n, row in _rows(path):
        try:
            for k, rollout in enumerate(_rollouts(name, row, tokenizer)):
                yield _trajectory(f"{path.stem}-{n}" + f"-{k}" * (k > 0), *rollout, tokenizer)
        except (LookupError, TypeError, AttributeError, ValueError, TemplateError) as error:
            lost = f"no field {error}; the row has {', '.join(row)}"
            what = lost if isinstance(error, KeyError) else error
            raise ValueError(f"{path}, row {n} ({name}): {what}") from error


def _trajectory(own: str, row: dict, messages: list[dict], parts: list[tuple], tokenizer):
    parts = [part for part in parts if len(part[0])]
    while parts and not parts[-1][1]:  # read, but never answered to
        parts.pop()
    require(bool(parts), "nothing in it was sampled: no assistant's turn with a token")
    ids = np.concatenate([np.asarray(part[0], np.int32) for part in parts])
    lengths, sampled = [len(part[0]) for part in parts], np.array([part[1] for part in parts])
    generated, results = np.repeat(sampled, lengths), tool_results(messages)
    segments = segments_of(token_texts(tokenizer, ids), generated)
    mark_people(segments, generated, messages)
    asked = next((m["content"] for m in messages if m["role"] == "user"), "")
    question = row.get("question") or (_QUESTION.search(asked) or [0, asked])[1]
    right = next(
        (
            str(row[key])
            for key in ("right_answer", "answer", "ground_truth", "gts")
            if isinstance(row.get(key), str | int | float)
        ),
        None,
    )
    word = row.get("termination") or row.get("finish_reason") or ""
    answer, reward = row.get("prediction"), row.get("reward", row.get("score"))
    answer = str(answer) if isinstance(answer, int | float) else answer
    # Tongyi's words for no answer; after a format error, `prediction` is the whole turn
    if not answer or answer.startswith("No answer found") or word.startswith("format error"):
        action = parse(next(m["content"] for m in reversed(messages) if m["role"] == "assistant"))
        answer = action.text if isinstance(action, Answer) else None
    end = ENDS.get(word.lower(), Termination.ANSWERED)
    if end == Termination.ANSWERED and answer is None:
        end = Termination.FORMAT
    usable = reward is None or isinstance(reward, int | float) and math.isfinite(reward)
    require(usable, f"its reward is {reward!r}; give a number, or null where nobody judged")
    step, task = row.get("step") or 0, hashlib.sha256(question.encode()).hexdigest()[:12]
    rest = {k: v for k, v in row.items() if isinstance(v, int | float) or k.endswith("id")}
    return Trajectory(
        id=own,
        task_id=task,
        group_id=f"{task}-{step}",
        world_version="",
        policy_version=step,
        token_ids=ids,
        generated=generated,
        entropies=None,
        segments=segments,
        routed_experts=None,
        turns=np.repeat(np.cumsum(sampled) - sampled, lengths).astype(np.uint16),
        versions=np.where(generated, step, 0).astype(np.int32),
        tool_results=results,
        termination=end,
        answer=answer,
        reward=None if reward is None else float(reward),
        reward_parts=row.get("reward_parts") or {},
        messages=messages,
        metadata=rest | {"question": question, "right_answer": right, "termination": word},
        **_values(parts, generated),
    )


def _values(parts: list[tuple], generated: np.ndarray) -> dict[str, np.ndarray]:
    """logprobs and, where there are alternatives, top_ids and top_logprobs."""
    values, tops = [], []
    for ids, sampled, said in parts:
        known = [(math.nan if sampled else 0.0, ())] * len(ids) if said is None else said
        fits = len(known) == len(ids)
        require(fits, f"{len(known)} log-probabilities for {len(ids)} sampled tokens")
        for i, (value, top) in zip(ids, known):
            given = [value, *(v for _, v in top)]
            if said and (value in (None, -math.inf) or not all(v <= 1e-4 for v in given)):
                raise ValueError(f"the log-probabilities at token {len(values)} are {given}")
            best = sorted(top, key=lambda one: -one[1])
            values.append(value)
            tops.append(best[:-1] if best and best[-1][0] == i else best)
    out, width = dict(logprobs=np.array(values, np.float32)), max(map(len, tops))
    if width:
        table = np.array([best + [(-1, -math.inf)] * (width - len(best)) for best in tops])
        out["top_ids"] = table[:, :, 0].astype(np.int32)
        out["top_logprobs"] = np.where(generated[:, None], table[:, :, 1], 0).astype(np.float32)
    return out
