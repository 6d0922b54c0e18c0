"""Read rollouts of other programs as trajectories.

`read_rollouts(path, tokenizer)` detects the format of a file (JSON lines, a JSON document or
Parquet, see `row_files`) from its fields, see `FORMATS`, and streams it. Missing values are filled
in as follows:

- Token ids: the text is tokenised turn by turn. Messages are rendered with the chat template
  (ChatML without one); assistant texts are unchanged. Tags in tool texts count as tags.
- Log-probabilities are NaN and entropies None; `rescoring.rescore` computes both. Alternatives are
  sorted and padded with -1 and -inf; an alternative without a unique id has id -1. The last
  alternative is dropped if it is the sampled token, because servers append that token.
- Tool results: one per turn, from messages with role "tool" and tags such as <tool_response>, see
  `chat_messages.extract_tool_results`.
- Answer: `prediction`, else the <answer> tag. Termination: `TERMINATION_WORDS` (the original word
  is kept in the metadata); for other words ANSWERED with an answer and FORMAT without.
- Reward: `reward` or `score`; null is "not judged", NaN is an error.

A rollout without tokens and a failed request are skipped. One warning at the end of the file counts
them, and the fields that were not understood (`ReadingNotes`).

`rollout_formats` converts rows to messages and tokens. Not supported: joining server logs into
conversations, images, streamed chunks, log-probabilities of prompts.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jinja2 import TemplateError

from drlib.analysis.chat_messages import extract_tool_results, is_observation, is_sampled
from drlib.analysis.reading_notes import EmptyRolloutError, ReadingNotes
from drlib.analysis.rollout_formats import (
    NOT_GIVEN,
    Rollout,
    TokenRun,
    decode_ids,
    find_failure,
    find_suspect_tags,
    iter_rollouts,
    read_logprob,
    to_number,
)
from drlib.analysis.row_files import iter_rows, repair_text
from drlib.chat.segments import find_gaps, mark_user_turns, segment_texts
from drlib.chat.template import load_any_tokenizer
from drlib.chat.tool_calls import Answer, parse
from drlib.trajectory import Segment, Termination, Trajectory, iter_trajectories
from drlib.validation import require

FORMATS = {  # required fields of a row, and the source; the first match is used
    "drlib": ("token_ids generated segments", "save_trajectories"),
    "trl": ("step prompt completion advantage", "GRPOTrainer; other float columns are rewards"),
    "verl": ("input output score", "rollout_data_dir, validation_data_dir"),
    "agent loop": ("prompt_ids response_ids", "verl; also response_mask, response_logprobs"),
    "vllm": ("prompt_token_ids outputs", "RequestOutput"),
    "openai": ("choices", "/v1/chat/completions and /v1/completions, with or without the request"),
    "tongyi": ("question messages prediction", "iterN.jsonl of Tongyi DeepResearch"),
    "messages": ("messages", "chats; also question, answer (reference), prediction, reward"),
    "sharegpt": ("conversations", "ShareGPT: from and value; also system, tools"),
    "atif": ("schema_version steps", "trajectory.json of Harbor (ATIF v1.0 to v1.8)"),
    "verifiers": ("prompt completion", "results.jsonl of verifiers; also answer, reward, info"),
    "verifiers traces": ("traces", "traces.jsonl of verifiers 0.4"),
}
TERMINATION_WORDS = {
    **{str(end): end for end in Termination},
    "answer": Termination.ANSWERED,  # from here on: Tongyi DeepResearch
    "generate an answer as token limit reached": Termination.ANSWERED,
    "format error: generate an answer as token limit reached": Termination.LENGTH,
    "no answer found after 2h30mins": Termination.WALL_CLOCK,
    "exceed available llm calls": Termination.TURNS,
    "max_turns_reached": Termination.TURNS,  # from here on: verifiers
    "max_turns": Termination.TURNS,
    "prompt_too_long": Termination.LENGTH,
    "max_total_completion_tokens_reached": Termination.LENGTH,
    "context_length": Termination.LENGTH,
    "timeout_reached": Termination.WALL_CLOCK,
    "timeout": Termination.WALL_CLOCK,
    "has_error": Termination.ENV_FAULT,
}
# fields of rows that are read, or that hold no text of the policy
_ROW_FIELDS = {
    *(field for fields, _ in FORMATS.values() for field in fields.split()),
    *("question", "answer", "right_answer", "ground_truth", "gts", "prediction", "reward", "score"),
    *("reward_parts", "termination", "finish_reason", "stop_condition", "is_truncated", "error"),
    *("tools", "tool_defs", "oai_tools", "request", "response", "object", "model", "usage"),
    *("response_mask", "response_logprobs", "prompt", "created", "system_fingerprint", "finished"),
    *("service_tier", "metrics", "timing", "info", "task", "system", "trajectory", "token_usage"),
    *("agent", "final_metrics", "rollout", "env", "group", "run", "ok", "top_logprobs", "errors"),
    *("temperature", "max_tokens", "stop", "index", "text", "message", "logprobs", "token_ids"),
    *("notes", "timestamp", "version", "extra", "costs", "citations", "confidence"),
}

_QUESTION = re.compile(
    r"(?:^|\n|<\|im_start\|>)user\n(.*?)(?:<\|im_end\|>|\n?(?:<\|im_start\|>)?assistant\n|$)", re.S
)


def read_rollouts(
    path: str | Path, tokenizer=None, *, format=None, notes: ReadingNotes | None = None
) -> Iterator[Trajectory]:
    """Read the trajectories of a file in any of `FORMATS`, a few rows at a time.

    Args:
        path: JSON lines, JSON or Parquet file.
        tokenizer: tokenizer of the model, its folder or hub id, or a `WordTokenizer` for words in
            place of tokens; not needed for drlib files.
        format: key of `FORMATS`; default: detected from the first row.
        notes: receives what was skipped and not understood; default: one warning at the end.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no rows, no rollouts, unknown format, no tokenizer; or an invalid row (the
            message has its number): truncated, an image, another tokenizer, mismatched lengths, a
            reward that is NaN.

    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; pass a file of rollouts")
    name = detect_format(path, format)
    if name == "drlib":
        return iter_trajectories(path)
    require(
        tokenizer is not None,
        f"{path} ({name}) must be read with the tokenizer of its model: pass tokenizer= "
        "(a tokenizer, its folder or its hub id)",
    )
    loaded = load_any_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    return _iter_trajectories(path, name, loaded, notes)


def detect_format(path: Path, format: str | None = None) -> str:
    """Return the key of `FORMATS` that fits the first row which is not a failed request."""
    first = None
    for _, row in _iter_rows(path, ReadingNotes(), 1):
        first = row
        fits = [name for name, (fields, _) in FORMATS.items() if row.keys() >= {*fields.split()}]
        name = format or next(iter(fits), None)
        if name in fits:
            return name
        if not find_failure(row):
            break
    require(first is not None, f"{path} has no rows; pass a file of rollouts")
    failure = find_failure(first)
    require(not failure, f"{path} has failed requests only, the last: {failure}")
    known = "\n".join(f"  {name}: {about[0]} ({about[1]})" for name, about in FORMATS.items())
    raise ValueError(
        f"the format of {path} is unknown or differs from format={format}: "
        f"its rows have {', '.join(first)}. Known formats:\n{known}"
    )


def _iter_rows(path: Path, notes: ReadingNotes, size: int = 16) -> Iterator[tuple[int, dict]]:
    """Yield rows numbered from 1; a server response is merged with its request and reward."""
    for n, row in iter_rows(path, notes, size):
        response = row.get("response")
        if isinstance(response, dict):  # server response, with or without its request
            body = response.get("body") or response
            if not isinstance(body, dict):
                body = {"error": f"the body is {str(body)[:80]!r}"}
            request = row.get("request")
            given = request if isinstance(request, dict) else {}
            beside = {k: v for k, v in row.items() if k not in ("request", "response")}
            row = given | {"error": None} | beside | body
        yield n, row


def _iter_trajectories(
    path: Path, name: str, tokenizer, notes: ReadingNotes | None
) -> Iterator[Trajectory]:
    """Yield the rollouts of all rows; raise ValueError with the number of an invalid row."""
    is_noted = notes is not None
    notes = notes or ReadingNotes()
    yield from convert_rows(_iter_rows(path, notes), path, name, tokenizer, notes)
    notes.require_rollouts(path)
    if not is_noted:
        notes.warn(path)


def convert_rows(
    rows: Iterable[tuple[int, dict]], path: Path, name: str, tokenizer, notes: ReadingNotes
) -> Iterator[Trajectory]:
    """Yield the rollouts of rows (number, fields) of a file; ids are "STEM-NUMBER".

    Args:
        path: names the file in ids and errors; it is not read.
        name: key of `FORMATS`.

    Raises:
        ValueError: an invalid row; the message has its number.

    """
    stem = repair_text(path.stem)
    for n, row in rows:
        try:
            _count_row_fields(row, notes)
            for k, rollout in enumerate(iter_rollouts(name, row, tokenizer, notes)):
                own_id = f"{stem}-{n}" if k == 0 else f"{stem}-{n}-{k}"
                try:
                    trajectory = _build_trajectory(own_id, rollout, tokenizer, notes)
                except EmptyRolloutError as error:
                    notes.skip("no sampled tokens or a failed request", f"first: row {n}: {error}")
                else:
                    yield trajectory
        except EmptyRolloutError as error:
            notes.skip("no sampled tokens or a failed request", f"first: row {n}: {error}")
        except KeyError as error:
            missing = f"no field {error}; the row has {', '.join(row)}"
            raise ValueError(f"{path}, row {n} ({name}): {missing}") from error
        except (LookupError, TypeError, AttributeError, ValueError, TemplateError) as error:
            raise ValueError(f"{path}, row {n} ({name}): {error}") from error


def _count_row_fields(row: dict, notes: ReadingNotes) -> None:
    """Count the fields of a row that are not read; numbers and ids are kept as metadata."""
    kept = {k for k, v in row.items() if isinstance(v, int | float) or k.endswith("id")}
    notes.count_unknown("", row, _ROW_FIELDS | kept)


def _build_trajectory(own_id: str, rollout: Rollout, tokenizer, notes: ReadingNotes) -> Trajectory:
    """Build a trajectory from the messages and token runs of a rollout."""
    row, messages = rollout.fields, rollout.messages
    parts = _drop_unanswered_parts(rollout.parts)
    ids_T = np.concatenate([np.asarray(part.ids, np.int32) for part in parts])
    lengths = [len(part.ids) for part in parts]
    sampled = np.array([part.sampled for part in parts])
    generated_T = np.repeat(sampled, lengths)
    turn_of_part = np.cumsum(sampled) - sampled  # observations belong to the following turn
    segments_T = segment_texts(decode_ids(tokenizer, ids_T), generated_T)
    results = extract_tool_results(messages)
    _mark_turns(segments_T, generated_T, messages, len(results))
    _note_rollout(parts, messages, notes)
    question = _find_question(row, messages)
    task = hashlib.sha256(question.encode()).hexdigest()[:12]
    step = int(to_number(row.get("step") or 0))
    answer, termination = _find_answer(row, messages)
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) or k.endswith("id")}
    about = {
        "question": question,
        "right_answer": _find_right_answer(row),
        "termination": _get_termination_word(row),
    }
    if isinstance(row.get("info"), dict):
        about["info"] = row["info"]
    return Trajectory(
        id=own_id,
        task_id=task,
        group_id=f"{task}-{step}",
        world_version="",
        policy_version=step,
        token_ids=ids_T,
        generated=generated_T,
        entropies=None,
        segments=segments_T,
        routed_experts=None,
        turns=np.repeat(turn_of_part, lengths).astype(np.uint16),
        versions=np.where(generated_T, step, 0).astype(np.int32),
        tool_results=results,
        termination=termination,
        answer=answer,
        reward=_get_reward(row),
        reward_parts=row.get("reward_parts") or {},
        messages=messages,
        metadata=numbers | about,
        **_collect_logprobs(parts, generated_T, notes),
    )


def _mark_turns(
    segments: np.ndarray, generated: np.ndarray, messages: Sequence[dict], results: int
) -> None:
    """Mark the turns of users and tools between sampled turns, for any template and tags."""
    turns = []
    for message in messages:
        role = "tool" if is_observation(message) else message["role"]
        if message["role"] == "assistant" and not is_sampled(message):
            role = "user"
        if role != "assistant" or message["content"]:  # an empty turn has no tokens
            turns.append(message | {"role": role})
    mark_user_turns(segments, generated, turns)
    responses = []  # gaps by tools, and whether they have a text
    for start, end in find_gaps(generated):
        gap = segments[start:end]  # a view
        seen = {*gap.tolist()}
        if seen != {Segment.TEMPLATE} and seen.isdisjoint((Segment.TOOL_RESPONSE, Segment.PROMPT)):
            gap[gap != Segment.TEMPLATE] = Segment.TOOL_RESPONSE  # in tags of other programs
            seen.add(Segment.TOOL_RESPONSE)
        if Segment.TOOL_RESPONSE in seen or Segment.PROMPT not in seen:
            responses.append((gap, Segment.TOOL_RESPONSE in seen))
    if len(responses) > results:  # template tokens without a result are no response
        for gap, has_text in responses:
            if not has_text:
                gap[:] = Segment.PROMPT


def _note_rollout(parts: Sequence[TokenRun], messages: Sequence[dict], notes: ReadingNotes) -> None:
    """Count the rollout, and tags of observations in its text if it has no observation."""
    first = [part.sampled for part in parts].index(True)
    observed = any(not part.sampled for part in parts[first:])
    texts = [] if observed else [m["content"] for m in messages if is_sampled(m)]
    notes.add_rollout(observed, {tag for text in texts for tag in find_suspect_tags(text)})


def _drop_unanswered_parts(parts: Sequence[TokenRun]) -> list[TokenRun]:
    """Return the non-empty parts up to the last sampled one."""
    kept = [part for part in parts if len(part.ids)]
    while kept and not kept[-1].sampled:
        kept.pop()
    if not kept:
        raise EmptyRolloutError("no sampled tokens: the row needs a non-empty assistant message")
    return kept


def _find_question(row: dict, messages: Sequence[dict]) -> str:
    """Return the field `question`, else the first user message without template markers."""
    if row.get("question"):
        return str(row["question"])
    content = next((m["content"] for m in messages if m["role"] == "user"), "")
    found = _QUESTION.search(content)
    return found[1] if found else content


def _find_right_answer(row: dict) -> str | None:
    """Return the reference answer of a row, if there is one."""
    for name in ("right_answer", "answer", "ground_truth", "gts"):
        if isinstance(row.get(name), str | int | float):
            return str(row[name])
    return None


def _get_termination_word(row: dict) -> str:
    """Return the termination word of a row, or ""."""
    word = row.get("termination") or row.get("finish_reason") or row.get("stop_condition")
    if not word and row.get("is_truncated") is True:
        word = Termination.LENGTH
    return str(word or "")


def _find_answer(row: dict, messages: Sequence[dict]) -> tuple[str | None, Termination]:
    """Return the answer of a rollout and its termination."""
    word = _get_termination_word(row)
    answer = row.get("prediction")
    if isinstance(answer, int | float):
        answer = str(answer)
    require(
        answer is None or isinstance(answer, str),
        f"the field prediction is {str(answer)[:60]!r}; use a text",
    )
    # Tongyi writes "No answer found", and the whole turn after a format error
    if not answer or answer.startswith("No answer found") or word.startswith("format error"):
        replies = [message["content"] for message in messages if is_sampled(message)]
        action = parse(replies[-1])
        answer = action.text if isinstance(action, Answer) else None
    termination = TERMINATION_WORDS.get(word.lower(), Termination.ANSWERED)
    if termination == Termination.ANSWERED and answer is None:
        termination = Termination.FORMAT
    return answer, termination


def _get_reward(row: dict) -> float | None:
    """Return the reward of a row, or None; raise ValueError if it is not a finite number."""
    reward = to_number(row.get("reward", row.get("score")))
    usable = reward is None or isinstance(reward, int | float) and math.isfinite(reward)
    require(usable, f"its reward is {reward!r}; use a finite number, or null if not judged")
    return None if reward is None else float(reward)


def _collect_logprobs(
    parts: Sequence[TokenRun], generated_T: np.ndarray, notes: ReadingNotes
) -> dict[str, np.ndarray]:
    """Return `logprobs` and, if there are alternatives, `top_ids` and `top_logprobs`."""
    values, tops = [], []
    for part in parts:
        scores = part.scores
        if scores is None:
            scores = [(math.nan if part.sampled else 0.0, ())] * len(part.ids)
        fits = len(scores) == len(part.ids)
        require(fits, f"{len(scores)} log-probabilities for {len(part.ids)} sampled tokens")
        for i, (value, alternatives) in zip(part.ids, scores):
            is_given = part.scores is not None and value is not NOT_GIVEN
            if is_given and not (type(value) is float and -100 < value <= 0):
                value = read_logprob(value, f"token {len(values)}")
                notes.repaired["log-probabilities without a value"] += math.isnan(value)
            best = sorted(alternatives, key=lambda one: -one[1])
            if best and best[-1][0] == i:  # servers append the sampled token
                best.pop()
            values.append(value)
            tops.append(best)
    found = {"logprobs": np.array(values, np.float32)}
    width = max(map(len, tops))
    if width:
        padding = (-1, -math.inf)
        table_TK2 = np.array([best + [padding] * (width - len(best)) for best in tops])
        logprobs_TK = np.where(generated_T[:, None], table_TK2[:, :, 1], 0)
        found["top_ids"] = table_TK2[:, :, 0].astype(np.int32)
        found["top_logprobs"] = logprobs_TK.astype(np.float32)
    return found
