"""Read rollouts of other programs as trajectories.

`read_rollouts(path, tokenizer)` detects the format of a file (JSON lines or Parquet) from its
fields, see `FORMATS`, and streams it. Missing values are filled in as follows:

- Token ids: the text is tokenised turn by turn. Messages are rendered with the chat template
  (ChatML without one); assistant texts are unchanged. Tags in tool texts count as tags.
- Log-probabilities are NaN and entropies None; `rescoring.rescore` computes both. Alternatives are
  sorted and padded with -1 and -inf; an alternative without a unique id has id -1. The last
  alternative is dropped if it is the sampled token, because servers append that token.
- Tool results: one per turn, from messages with role "tool" and <tool_response> tags, see
  `chat_messages.extract_tool_results`.
- Answer: `prediction`, else the <answer> tag. Termination: `TERMINATION_WORDS` (the original word
  is kept in the metadata); for other words ANSWERED with an answer and FORMAT without.
- Reward: `reward` or `score`; null is "not judged", NaN is an error.

`rollout_formats` converts rows to messages and tokens. Not supported: joining server logs into
conversations, images, streamed chunks, log-probabilities of prompts.
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

FORMATS = {  # required fields of a row, and the source; the first match is used
    "drlib": ("token_ids generated segments", "save_trajectories"),
    "trl": ("step prompt completion advantage", "GRPOTrainer; other float columns are rewards"),
    "verl": ("input output score", "rollout_data_dir, validation_data_dir"),
    "agent loop": ("prompt_ids response_ids", "verl; also response_mask, response_logprobs"),
    "vllm": ("prompt_token_ids outputs", "RequestOutput"),
    "openai": ("choices", "/v1/chat/completions and /v1/completions, with or without the request"),
    "tongyi": ("question messages prediction", "iterN.jsonl of Tongyi DeepResearch"),
    "messages": ("messages", "chats; also question, answer (reference), prediction, reward"),
}
TERMINATION_WORDS = {
    **{str(end): end for end in Termination},
    "answer": Termination.ANSWERED,  # from here on: Tongyi DeepResearch
    "generate an answer as token limit reached": Termination.ANSWERED,
    "format error: generate an answer as token limit reached": Termination.LENGTH,
    "no answer found after 2h30mins": Termination.WALL_CLOCK,
    "exceed available llm calls": Termination.TURNS,
}

_QUESTION = re.compile(
    r"(?:^|\n|<\|im_start\|>)user\n(.*?)(?:<\|im_end\|>|\n?(?:<\|im_start\|>)?assistant\n|$)", re.S
)


def read_rollouts(path: str | Path, tokenizer=None, *, format=None) -> Iterator[Trajectory]:
    """Read the trajectories of a file in any of `FORMATS`, a few rows at a time.

    Args:
        path: JSON lines or Parquet file.
        tokenizer: tokenizer of the model, or its folder; not needed for drlib files.
        format: key of `FORMATS`; default: detected from the first row.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no rows, unknown format, no tokenizer; or an invalid row (the message has its
            number): truncated, no messages, another tokenizer, mismatched lengths, NaN.

    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; pass a file of rollouts")
    _, first = next(_iter_rows(path, 1), (0, {}))
    require(bool(first), f"{path} has no rows; pass a file of rollouts")
    fits = [name for name, (fields, _) in FORMATS.items() if first.keys() >= {*fields.split()}]
    name = format or next(iter(fits), None)
    if name not in fits:
        known = "\n".join(f"  {name}: {about[0]} ({about[1]})" for name, about in FORMATS.items())
        raise ValueError(
            f"the format of {path} is unknown or differs from format={format}: "
            f"its rows have {', '.join(first)}. Known formats:\n{known}"
        )
    if name == "drlib":
        return iter_trajectories(path)
    require(
        tokenizer is not None,
        f"{path} ({name}) must be read with the tokenizer of its model: pass tokenizer= "
        "(a tokenizer or its folder)",
    )
    loaded = load_any_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    return _iter_trajectories(path, name, loaded)


def _iter_rows(path: Path, size: int = 16) -> Iterator[tuple[int, dict]]:
    """Yield rows numbered from 1; reads Parquet files `size` rows at a time."""
    if path.suffix == ".parquet":
        try:
            with pq.ParquetFile(path) as file:
                rows = (row for batch in file.iter_batches(size) for row in batch.to_pylist())
                yield from enumerate(rows, 1)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} is truncated or not a Parquet file ({error})") from error
        return
    for n, row in iter_json_lines(path):
        try:
            response = row.get("response")
            if isinstance(response, dict):  # server response, with or without its request
                request = row.get("request") or {}
                row = request | (response.get("body") or response)
        except AttributeError as error:
            raise ValueError(f"{path}, line {n} is not a JSON object ({error})") from error
        yield n, row


def _iter_trajectories(path: Path, name: str, tokenizer) -> Iterator[Trajectory]:
    """Yield the rollouts of all rows; raise ValueError with the number of an invalid row."""
    for n, row in _iter_rows(path):
        try:
            for k, rollout in enumerate(iter_rollouts(name, row, tokenizer)):
                own_id = f"{path.stem}-{n}" if k == 0 else f"{path.stem}-{n}-{k}"
                yield _build_trajectory(own_id, rollout, tokenizer)
        except KeyError as error:
            missing = f"no field {error}; the row has {', '.join(row)}"
            raise ValueError(f"{path}, row {n} ({name}): {missing}") from error
        except (LookupError, TypeError, AttributeError, ValueError, TemplateError) as error:
            raise ValueError(f"{path}, row {n} ({name}): {error}") from error


def _build_trajectory(own_id: str, rollout: Rollout, tokenizer) -> Trajectory:
    """Build a trajectory from the messages and token runs of a rollout."""
    row, messages = rollout.fields, rollout.messages
    parts = _drop_unanswered_parts(rollout.parts)
    ids_T = np.concatenate([np.asarray(part.ids, np.int32) for part in parts])
    lengths = [len(part.ids) for part in parts]
    sampled = np.array([part.sampled for part in parts])
    generated_T = np.repeat(sampled, lengths)
    turn_of_part = np.cumsum(sampled) - sampled  # observations belong to the following turn
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
    """Return the non-empty parts up to the last sampled one."""
    kept = [part for part in parts if len(part.ids)]
    while kept and not kept[-1].sampled:
        kept.pop()
    require(bool(kept), "no sampled tokens: the row needs a non-empty assistant message")
    return kept


def _find_question(row: dict, messages: Sequence[dict]) -> str:
    """Return the field `question`, else the first user message without template markers."""
    if row.get("question"):
        return row["question"]
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
    return row.get("termination") or row.get("finish_reason") or ""


def _find_answer(row: dict, messages: Sequence[dict]) -> tuple[str | None, Termination]:
    """Return the answer of a rollout and its termination."""
    word = _get_termination_word(row)
    answer = row.get("prediction")
    if isinstance(answer, int | float):
        answer = str(answer)
    # Tongyi writes "No answer found", and the whole turn after a format error
    if not answer or answer.startswith("No answer found") or word.startswith("format error"):
        replies = [message["content"] for message in messages if message["role"] == "assistant"]
        action = parse(replies[-1])
        answer = action.text if isinstance(action, Answer) else None
    termination = TERMINATION_WORDS.get(word.lower(), Termination.ANSWERED)
    if termination == Termination.ANSWERED and answer is None:
        termination = Termination.FORMAT
    return answer, termination


def _get_reward(row: dict) -> float | None:
    """Return the reward of a row, or None; raise ValueError if it is not a finite number."""
    reward = row.get("reward", row.get("score"))
    usable = reward is None or isinstance(reward, int | float) and math.isfinite(reward)
    require(usable, f"its reward is {reward!r}; use a finite number, or null if not judged")
    return None if reward is None else float(reward)


def _collect_logprobs(parts: Sequence[TokenRun], generated_T: np.ndarray) -> dict[str, np.ndarray]:
    """Return `logprobs` and, if there are alternatives, `top_ids` and `top_logprobs`."""
    values, tops = [], []
    for part in parts:
        scores = part.scores
        if scores is None:
            scores = [(math.nan if part.sampled else 0.0, ())] * len(part.ids)
        fits = len(scores) == len(part.ids)
        require(fits, f"{len(scores)} log-probabilities for {len(part.ids)} sampled tokens")
        for i, (value, alternatives) in zip(part.ids, scores):
            given = [value, *(v for _, v in alternatives)]
            if part.scores and (value in (None, -math.inf) or not all(v <= 1e-4 for v in given)):
                raise ValueError(f"the log-probabilities at token {len(values)} are {given}")
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
