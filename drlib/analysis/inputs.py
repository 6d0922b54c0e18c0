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
- The answer: `prediction`, else an <answer> tag. Termination: the words in `TERMINATION_WORDS`
  (kept in the metadata); with any other, ANSWERED with an answer, FORMAT without.
- Reward: `reward` or `score`; null is "not judged", NaN an error.

`rollout_formats` turns rows into messages and tokens, `chat_messages` knows messages and results.
Left out: joining a server's log into conversations, images, streamed chunks, prompts' log-probs.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import TemplateError

from drlib.analysis.chat_messages import extract_tool_results
from drlib.analysis.rollout_formats import Rollout, TokenRun, iter_rollouts
from drlib.chat.segments import mark_user_turns, segment_texts, token_texts
from drlib.chat.template import load_any_tokenizer
from drlib.chat.tool_calls import Answer, parse
from drlib.files import iter_json_lines
from drlib.trajectory import Termination, Trajectory, iter_trajectories
from drlib.validation import require

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
TERMINATION_WORDS = {
    **{str(end): end for end in Termination},
    "answer": Termination.ANSWERED,  # Tongyi DeepResearch's words
    "generate an answer as token limit reached": Termination.ANSWERED,
    "format error: generate an answer as token limit reached": Termination.LENGTH,
    "no answer found after 2h30mins": Termination.WALL_CLOCK,
    "exceed available llm calls": Termination.TURNS,
}

_QUESTION = re.compile(
    r"(?:^|\n|<\|im_start\|>)user\n(.*?)(?:<\|im_end\|>|\n?(?:<\|im_start\|>)?assistant\n|$)", re.S
)


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
    _, first = next(_iter_rows(path, 1), (0, {}))
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
    return _iter_trajectories(path, name, loaded)


def _iter_rows(path: Path, size: int = 16) -> Iterator[tuple[int, dict]]:
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
            response = row.get("response")
            if isinstance(response, dict):  # a server's, with its request or alone
                request = row.get("request") or {}
                row = request | (response.get("body") or response)
        except AttributeError as error:
            raise ValueError(f"{path}, line {n} is no JSON object ({error})") from error
        yield n, row


def _iter_trajectories(path: Path, name: str, tokenizer) -> Iterator[Trajectory]:
    """The rollouts of all rows; ValueError names the row that cannot be read."""
    for n, row in _iter_rows(path):
        try:
            for k, rollout in enumerate(iter_rollouts(name, row, tokenizer)):
                own_id = f"{path.stem}-{n}" if k == 0 else f"{path.stem}-{n}-{k}"
                yield _build_trajectory(own_id, rollout, tokenizer)
        except KeyError as error:
            lost = f"no field {error}; the row has {', '.join(row)}"
            raise ValueError(f"{path}, row {n} ({name}): {lost}") from error
        except (LookupError, TypeError, AttributeError, ValueError, TemplateError) as error:
            raise ValueError(f"{path}, row {n} ({name}): {error}") from error


def _build_trajectory(own_id: str, rollout: Rollout, tokenizer) -> Trajectory:
    row, messages = rollout.fields, rollout.messages
    parts = _drop_unanswered_parts(rollout.parts)
    ids_T = np.concatenate([np.asarray(part.ids, np.int32) for part in parts])
    lengths = [len(part.ids) for part in parts]
    sampled = np.array([part.sampled for part in parts])
    generated_T = np.repeat(sampled, lengths)
    turn_of_part = np.cumsum(sampled) - sampled  # what is read before a turn belongs to it
    segments_T = segment_texts(token_texts(tokenizer, ids_T), generated_T)
    mark_user_turns(segments_T, generated_T, messages)
    question = _find_question(row, messages)
    task = hashlib.sha256(question.encode()).hexdigest()[:12]
    step = row.get("step") or 0
    answer, termination = _find_answer(row, messages)
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) or k.endswith("id")}
    about = {
        "question": question,
        "right_answer": _find_right_answer(row),
        "termination": _get_termination_word(row),
    }
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
        tool_results=extract_tool_results(messages),
        termination=termination,
        answer=answer,
        reward=_get_reward(row),
        reward_parts=row.get("reward_parts") or {},
        messages=messages,
        metadata=numbers | about,
        **_collect_logprobs(parts, generated_T),
    )


def _drop_unanswered_parts(parts: Sequence[TokenRun]) -> list[TokenRun]:
    """The parts that have tokens, without those that were read but never answered to."""
    kept = [part for part in parts if len(part.ids)]
    while kept and not kept[-1].sampled:
        kept.pop()
    require(bool(kept), "nothing in it was sampled: no assistant's turn with a token")
    return kept


def _find_question(row: dict, messages: Sequence[dict]) -> str:
    """The field, else what the user's first message asks, without a template's markers."""
    if row.get("question"):
        return row["question"]
    asked = next((m["content"] for m in messages if m["role"] == "user"), "")
    found = _QUESTION.search(asked)
    return found[1] if found else asked


def _find_right_answer(row: dict) -> str | None:
    for name in ("right_answer", "answer", "ground_truth", "gts"):
        if isinstance(row.get(name), str | int | float):
            return str(row[name])
    return None


def _get_termination_word(row: dict) -> str:
    """Return the termination recorded in the file."""
    return row.get("termination") or row.get("finish_reason") or ""


def _find_answer(row: dict, messages: Sequence[dict]) -> tuple[str | None, Termination]:
    """The rollout's answer, and how it ended."""
    word = _get_termination_word(row)
    answer = row.get("prediction")
    if isinstance(answer, int | float):
        answer = str(answer)
    # Tongyi's words for no answer; after a format error, `prediction` is the whole turn
    if not answer or answer.startswith("No answer found") or word.startswith("format error"):
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        action = parse(said[-1])
        answer = action.text if isinstance(action, Answer) else None
    termination = TERMINATION_WORDS.get(word.lower(), Termination.ANSWERED)
    if termination == Termination.ANSWERED and answer is None:
        termination = Termination.FORMAT
    return answer, termination


def _get_reward(row: dict) -> float | None:
    reward = row.get("reward", row.get("score"))
    usable = reward is None or isinstance(reward, int | float) and math.isfinite(reward)
    require(usable, f"its reward is {reward!r}; give a number, or null where nobody judged")
    return None if reward is None else float(reward)


def _collect_logprobs(parts: Sequence[TokenRun], generated_T: np.ndarray) -> dict[str, np.ndarray]:
    """logprobs and, where there are alternatives, top_ids and top_logprobs."""
    values, tops = [], []
    for part in parts:
        said = part.said
        if said is None:
            said = [(math.nan if part.sampled else 0.0, ())] * len(part.ids)
        fits = len(said) == len(part.ids)
        require(fits, f"{len(said)} log-probabilities for {len(part.ids)} sampled tokens")
        for i, (value, alternatives) in zip(part.ids, said):
            given = [value, *(v for _, v in alternatives)]
            if part.said and (value in (None, -math.inf) or not all(v <= 1e-4 for v in given)):
                raise ValueError(f"the log-probabilities at token {len(values)} are {given}")
            best = sorted(alternatives, key=lambda one: -one[1])
            if best and best[-1][0] == i:  # servers add the sampled one, however improbable it is
                best.pop()
            values.append(value)
            tops.append(best)
    found = {"logprobs": np.array(values, np.float32)}
    width = max(map(len, tops))
    if width:
        nothing = (-1, -math.inf)
        table_TK2 = np.array([best + [nothing] * (width - len(best)) for best in tops])
        logprobs_TK = np.where(generated_T[:, None], table_TK2[:, :, 1], 0)
        found["top_ids"] = table_TK2[:, :, 0].astype(np.int32)
        found["top_logprobs"] = logprobs_TK.astype(np.float32)
    return found
