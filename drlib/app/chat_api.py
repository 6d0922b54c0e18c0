"""OpenAI's chat completions for a research agent: requests to questions, events to chunks.

The thoughts, calls and results of the agent are the reasoning of the reply, the answer with its
sources is the content.
"""

import time
import uuid
from typing import Any

from drlib.validation import require

MODEL = "drlib"


def read_question(body: Any) -> tuple[str, bool, bool]:
    """Return (question, stream, include usage) of a request.

    The question is the last user message. Earlier messages are put before it as text, since each
    question is researched anew.

    Raises:
        ValueError: the request has no question.
    """
    require(isinstance(body, dict), "the body must be a JSON object")
    messages = body.get("messages")
    require(isinstance(messages, list), "messages must be a list")
    turns = []
    for message in messages:
        require(isinstance(message, dict), "a message must be a JSON object")
        text = _read_content(message.get("content"))
        if message.get("role") in ("user", "assistant") and text.strip():
            turns.append((message["role"], text.strip()))
    require(bool(turns) and turns[-1][0] == "user", "the last message must be the user's question")
    *earlier, (_, question) = turns
    if earlier:
        lines = [f"{role}: {text}" for role, text in earlier]
        question = "Earlier in this conversation:\n" + "\n".join(lines) + f"\n\n{question}"
    options = body.get("stream_options")
    wants_usage = isinstance(options, dict) and options.get("include_usage") is True
    return question, body.get("stream") is True, wants_usage


def _read_content(content: Any) -> str:
    """Return the text of a message; pictures are not supported."""
    if content is None or isinstance(content, str):
        return content or ""
    require(isinstance(content, list), "content must be a text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        require(kind == "text", f"content of type {kind!r} is not supported: send text")
        texts.append(str(part.get("text", "")))
    return "\n".join(texts)


def render_trace(line: dict) -> str:
    """Return an event as a line of reasoning."""
    run = f"{line['run']} " if line["run"] else ""
    return f"{run}{line['head']}: {' '.join(line['text'].split())}\n"


def render_answer(line: dict) -> str:
    """Return the answer with its opened pages."""
    opened = [source for source in line["sources"] if source["opened"]]
    sources = "\n".join(f"- [{source['title']}]({source['url']})" for source in opened)
    return line["answer"] + (f"\n\nSources:\n{sources}" if sources else "")


def usage(line: dict) -> dict[str, int]:
    """Return the tokens of a research in OpenAI's names."""
    prompt, completion = (line["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def error(message: str, kind: str) -> dict:
    """Return an error as OpenAI's clients expect it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class Reply:
    """The parts of one reply, with a common id and time."""

    def __init__(self):
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        self._head |= {"model": MODEL}

    def chunk(self, delta: dict, finish_reason: str | None = None) -> dict:
        """Return a chunk of a stream."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self, line: dict) -> dict:
        """Return the last chunk, if the client asked for the usage."""
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
        return chunk | {"usage": usage(line)}

    def whole(self, reasoning: str, line: dict) -> dict:
        """Return a reply without streaming."""
        message = {"role": "assistant", "content": render_answer(line)}
        message["reasoning_content"] = reasoning
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(line),
        }
