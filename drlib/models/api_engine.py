"""Engine for OpenAI-compatible servers: chat completions, many conversations at a time.

Each turn is retried with exponential back-off. If all retries fail, its conversation ends with a
completion of reason "fault" and the others continue. So does a conversation whose prompt the server
refuses after it has accepted others. Permanent errors (a wrong key, an unknown model) are raised at
once.

Tools are passed as text (`tools=None`: in the system prompt, called by `<tool_call>`) or natively
(`tools`: their schemas; the server's `tool_calls` are converted to `<tool_call>`). The text of a
reasoning parser becomes the turn's thought, in which tags are escaped. A message's `pictures` (data
URLs) are sent as OpenAI's `image_url` parts. Weights cannot be updated.
"""

import json
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from drlib.chat.server_messages import (
    ServerCall,
    ServerMessage,
    read_choice,
    read_message,
    read_usage,
)
from drlib.chat.tool_calls import (
    ToolCall,
    escape_tags,
    escape_thought,
    mask_call_strings,
    parse,
    parse_native,
    render_call,
    truncate_after_action,
)
from drlib.endpoint import PROMPT_STATUSES, ChatEndpoint, EndpointError
from drlib.models.engine import Completion, Engine, NewContext, Respond, SamplingParams
from drlib.models.json_turns import JsonTurns

STOP = ("<tool_response>",)  # written next by a policy that invents observations
# finish reasons of servers; all others mean that the turn is complete
TRUNCATED = re.compile(
    r"length|max(imum)?_?(tokens|length|output_tokens|new_tokens|completion_tokens)"
    r"|model_length|(token|output)_limit(_reached)?|incomplete"
)
CONTEXT_FULL = re.compile(r".*context.*")
REFUSED = re.compile(
    r".*(content_?filter|safety|refus|recitation|prohibited|blocklist|spii|guardrail|moderation"
    r"|sensitive|policy).*"
)
FAILED = re.compile(r"error|fail(ed|ure)|abort(ed)?|cancel(l)?ed|.*(timeout|overload|_error).*")
LONGEST_PAUSE_S = 30.0
POLL_S = 0.2


@dataclass(frozen=True)
class MessageFormat:
    """Form of messages that a model was trained on, where it differs from drlib's.

    Args:
        opening, closing: text around a thought, which may end or start with a line break. Inside
            drlib, thoughts are always in `<think></think>`.
        is_open: the chat template writes `opening`, so that a turn starts behind it.
        question: text of the first user message, with {question}.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    is_open: bool = False
    question: str = "{question}"

    def read(self, message: ServerMessage, is_complete: bool = True) -> ServerMessage:
        """Return a server's message with drlib's tags."""
        text = message.text
        if text is not None:
            text = text.replace(self.opening.strip(), "<think>")
            text = text.replace(self.closing.strip(), "</think>")
        return message._replace(text=text)

    @property
    def margins(self) -> tuple[str, str]:
        """Text between the tags and a thought that the server sent separately."""
        return (
            self.opening.removeprefix(self.opening.strip()),
            self.closing.removesuffix(self.closing.strip()),
        )

    def write(self, messages: Sequence[dict]) -> list[dict]:
        """Return OpenAI's messages in the model's form."""
        written = []
        is_first = True
        for message in messages:
            content = message["content"]
            if message["role"] == "user" and is_first and isinstance(content, str):
                content = self.question.replace("{question}", content)
            is_first &= message["role"] != "user"
            if message["role"] == "assistant":
                content = self._write_turn(content)
            written.append(message | {"content": content})
        return written

    def _write_turn(self, text: str) -> str:
        text = text.replace("<think>", self.opening.strip())
        text = text.replace("</think>", self.closing.strip())
        if not self.is_open:
            return text.strip()
        return text if text.startswith(self.opening) else self.opening + text


class ApiEngine(Engine):
    """Turns of the model behind `endpoint`.

    Args:
        endpoint: address, model and key.
        concurrency: conversations that run at the same time.
        attempts: maximum number of requests per turn.
        pause_s: seconds before the second request; doubled each time up to 30 s, plus up to half of
            it at random.
        tools: schemas (`Tool.function`), for native tool calls.
        prices: (prompt, completion), per million tokens.
        options: added to every request, such as `{"extra_body": {"top_k": 20}}`. vLLM omits special
            tokens from its text: if the model's tags are special tokens, as those of the tour's
            policy, pass `{"extra_body": {"skip_special_tokens": False}}`.
        message_format: the form of messages that the model was trained on; None: as in drlib.
            `JsonTurns` (drlib.models.json_turns) constrains the turns.
        example: turns of a worked example, sent between the system prompt and the question.

    Raises:
        ValueError: concurrency or attempts below 1.
    """

    reads = "messages"
    version = 0

    def __init__(
        self,
        endpoint: ChatEndpoint,
        *,
        concurrency: int = 16,
        attempts: int = 5,
        pause_s: float = 0.5,
        tools: Sequence[dict] | None = None,
        prices: tuple[float, float] = (0.0, 0.0),
        options: dict[str, Any] | None = None,
        message_format: MessageFormat | JsonTurns | None = None,
        example: Sequence[dict] = (),
    ):
        if concurrency < 1 or attempts < 1:
            raise ValueError(
                f"concurrency={concurrency} and attempts={attempts} must be at least 1"
            )
        self.endpoint = endpoint
        self.concurrency = concurrency
        self.attempts = attempts
        self.pause_s = pause_s
        self.tools = tools
        self.prices = prices
        self.options = options or {}
        self.message_format = message_format
        if isinstance(message_format, JsonTurns):
            self.options = self.options | message_format.options
        self.example = list(example)
        self.has_native_tools = bool(tools)
        self._has_replied = False  # the server accepts requests of this kind

    def update_weights(self, model) -> None:
        """Raise TypeError: the server's weights cannot be updated."""
        raise TypeError("the weights are the server's: train with an engine that accepts updates")

    def converse(
        self,
        prompts: Sequence[Sequence[dict]],
        params: SamplingParams,
        respond: Respond,
        *,
        keys: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        """Run all conversations, turn by turn; see `LocalEngine.converse`.

        `respond` is called in the threads of the conversations, in order for each of them.

        Args:
            context: maximum tokens per conversation, as counted by the server.

        Raises:
            EndpointError: a permanent error; running conversations are stopped first.
        """
        keys = list(range(len(prompts)) if keys is None else keys)
        todo = iter(range(len(prompts)))
        lock = threading.Lock()
        failures: list[BaseException] = []  # stop all conversations

        def work() -> None:
            while not failures:
                with lock:
                    number = next(todo, None)
                if number is None:
                    return
                try:
                    self._conversation(
                        number, prompts[number], params, respond, keys, context, failures
                    )
                except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                    failures.append(error)

        # daemon threads: a hanging request must not block exit
        threads = [
            threading.Thread(target=work, daemon=True, name=f"drlib-api-{number}")
            for number in range(min(self.concurrency, len(prompts)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(POLL_S)  # with a timeout, so that Ctrl-C is handled
        except KeyboardInterrupt as stop:
            failures.append(stop)
            raise
        if failures:
            raise failures[0]

    def _conversation(self, number, prompt, params, respond, keys, context, failures) -> None:
        history = list(prompt)
        ids: dict[str, tuple[str, ...]] = {}  # of the server's calls, by the text of the turn
        rng = random.Random(f"{params.seed}-{keys[number]}")
        while not failures:
            completion = self._turn(history, params, rng)
            if context is not None and completion.prompt_tokens + completion.turn_tokens > context:
                completion.finish_reason = "context"
            if any(completion.call_ids):
                ids[completion.text] = completion.call_ids
            reply = respond(number, completion)
            while isinstance(reply, Future):
                reply = reply.result()
            if reply is None:
                return
            if isinstance(reply, NewContext):
                history = [_with_call_ids(message, ids) for message in reply.prompt]
            else:
                turn = {"role": "assistant", "content": completion.text}
                history += [_with_call_ids(turn, ids), *reply]

    def _turn(self, history: list[dict], params: SamplingParams, rng: random.Random) -> Completion:
        """Request one turn, with retries."""
        options = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_tokens,
            "seed": rng.getrandbits(31),
            "stop": list(STOP),
            **({"tools": list(self.tools)} if self.tools else {}),
            **self.options,
        }
        head = sum(1 for _ in takewhile(lambda message: message["role"] == "system", history))
        messages = to_openai_messages(
            [*history[:head], *self.example, *history[head:]], by_server=bool(self.tools)
        )
        if self.message_format is not None:
            messages = self.message_format.write(messages)

        def ask() -> Completion:
            return self._completion(self.endpoint.complete(messages, **options))

        started = time.monotonic()
        try:
            completion = retry_request(ask, self.attempts, self.pause_s, rng)
        except EndpointError as error:
            if error.status not in PROMPT_STATUSES or not self._has_replied:
                raise
            # others were accepted, so the cause is this conversation
            return Completion(finish_reason="fault", fault=str(error))
        completion.seconds = time.monotonic() - started
        self._has_replied |= completion.finish_reason in ("stop", "length")
        return completion

    def _completion(self, reply: Any) -> Completion:
        """Convert a reply. ValueError: not a chat completion."""
        choice = read_choice(reply)
        written_reason = _normalise_reason(choice.get("finish_reason"))
        if FAILED.fullmatch(written_reason):
            raise ValueError(f"finish_reason {choice['finish_reason']!r}")
        message = read_message(choice)
        if REFUSED.fullmatch(written_reason) and not (message.text or message.calls):
            fault = f"the server refused the content: finish_reason {choice['finish_reason']!r}"
            return Completion(finish_reason="fault", fault=fault)
        reason = "stop"
        if CONTEXT_FULL.fullmatch(written_reason):
            reason = "context"
        elif TRUNCATED.fullmatch(written_reason):
            reason = "length"
        if self.message_format is not None:
            message = self.message_format.read(message, is_complete=reason == "stop")
        read, written = read_usage(reply)
        text = render_message(message, self.message_format)
        return Completion(
            finish_reason=reason,
            text=text if message.calls else truncate_after_action(text),
            prompt_tokens=read,
            turn_tokens=written,
            cost=(read * self.prices[0] + written * self.prices[1]) / 1e6,
            call_ids=tuple(call.id for call in message.calls),
        )


def _normalise_reason(reason: Any) -> str:
    """Return a finish reason in lower case with underscores; TGI wraps it in an object."""
    reason = reason.get("type") if isinstance(reason, dict) else reason
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", reason) if isinstance(reason, str) else ""
    return re.sub(r"[\s-]+", "_", words.strip()).lower()


def _with_call_ids(message: dict, ids: dict[str, tuple[str, ...]]) -> dict:
    """Return a message of the policy with the server's ids of its calls, if there are any."""
    known = ids.get(message["content"]) if message["role"] == "assistant" else None
    return message | {"call_ids": known} if known else message


MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def retry_request(
    ask: Callable[[], Completion], attempts: int, pause_s: float, rng: random.Random
) -> Completion:
    """Call `ask` until it returns, with exponential back-off.

    Returns a completion of reason "fault" after `attempts` failures or if the server refuses the
    content, of reason "context" if it refuses the prompt as too long.

    Args:
        ask: raises one of `MALFORMED` for a malformed reply.

    Raises:
        EndpointError: a permanent error.
    """
    fault = ""
    for attempt in range(attempts):
        try:
            return ask()
        except EndpointError as error:
            fault, wait_s = str(error), error.retry_after_s
            if error.is_too_long:
                return Completion(finish_reason="context")
            if error.is_filtered:
                refusal = f"the server refused the content: {fault}"
                return Completion(finish_reason="fault", fault=refusal)
            if not error.is_transient:
                raise
        except MALFORMED as error:
            fault, wait_s = f"a malformed reply ({type(error).__name__}: {error})", 0.0
        if attempt + 1 < attempts:
            longer_s = pause_s * 2**attempt * (1 + rng.random() / 2)
            time.sleep(min(max(longer_s, wait_s), LONGEST_PAUSE_S))
    return Completion(finish_reason="fault", fault=f"{fault}, {attempts} times")


def render_message(message: ServerMessage, form: MessageFormat | JsonTurns | None = None) -> str:
    """Convert a server's message to one text: reasoning as thought, calls as `<tool_call>`.

    Tags in the reasoning are escaped, and those in the content if they would hide a native call, so
    that the text is parsed as the server divided it.

    Raises:
        TypeError: the message has no content.
    """
    has_thought = bool(message.thought)
    has_content = message.text is not None or message.calls
    if not has_thought and not has_content:
        raise TypeError("the message has no content")
    before, after = form.margins if form else ("", "")
    thought = escape_thought(message.thought).strip()
    opening = f"<think>{before}{thought}" if has_thought else ""
    if has_thought and has_content:  # otherwise the thought was truncated
        opening += f"{after}</think>"
    text = message.text or ""
    calls = [_render_native_call(call) for call in message.calls]
    if calls and parse(opening + text + calls[0]) != parse(calls[0]):
        text = escape_tags(text)
    # half surrogate pairs can be neither sent nor saved
    joined = opening + text + "".join(calls)
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _render_native_call(call: ServerCall) -> str:
    """Render a call; arguments that are no JSON are an error of the policy, found by `parse`."""
    try:
        if not isinstance(call.arguments, str):
            return render_call(call.name, call.arguments)
        return f"<tool_call>{escape_tags(call.arguments)}</tool_call>"
    except ValueError:  # NaN or infinity
        return f"<tool_call>{escape_tags(str(call.arguments))}</tool_call>"


def to_openai_messages(messages: Sequence[dict], by_server: bool) -> list[dict]:
    """Convert messages to OpenAI's format.

    An observation becomes a user's `<tool_response>`, or, with native tools (`by_server`), the
    response to a call's id: the server's (`call_ids`), or nine letters and digits, as some servers
    require. The calls of a turn are answered in order. Calls without a response (cut by a limit)
    are left out or stay text, because servers reject them. Pictures of native responses are sent in
    a user message after the turn's last response.
    """
    sent: list[dict] = []
    ids: set[str] = set()
    shown: list[str] = []  # pictures of the last turn's responses
    waiting: list[str] = []  # ids of the last turn's calls without a response
    for at, message in enumerate(messages):
        role, text = message["role"], message["content"]
        pictures = message.get("pictures", ())
        if role == "assistant" and by_server:
            replies = takewhile(lambda later: later["role"] == "tool", messages[at + 1 :])
            actions = parse_native(text)[: sum(1 for _ in replies)]
            called = [action for action in actions if isinstance(action, ToolCall)]
            waiting = []
            if called and called == actions:
                known = (*message.get("call_ids", ()), *[""] * len(called))
                for own, _ in zip(known, called):
                    waiting.append(own if own and own not in ids else f"call{len(ids) + 1:05d}")
                    ids.add(waiting[-1])
                calls = [_native_call(*pair) for pair in zip(waiting, called)]
                content = mask_call_strings(text).find("<tool_call>")
                sent.append({"role": role, "content": text[:content], "tool_calls": calls})
                continue
        if role == "tool" and waiting:
            sent.append({"role": role, "content": text, "tool_call_id": waiting.pop(0)})
            shown += pictures
            if shown and not waiting:
                sent.append({"role": "user", "content": _content("", shown)})
                shown = []
        elif role == "tool":
            wrapped = f"<tool_response>\n{text}\n</tool_response>"
            sent.append({"role": "user", "content": _content(wrapped, pictures)})
        else:
            sent.append({"role": role, "content": _content(text, pictures)})
    return sent


def _native_call(ident: str, call: ToolCall) -> dict:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": ident, "type": "function", "function": function}


def _content(text: str, urls: Sequence[str]) -> str | list[dict]:
    """Return a message's content: the text, or text and image parts."""
    if not urls:
        return text
    words = [{"type": "text", "text": text}] if text else []
    return words + [{"type": "image_url", "image_url": {"url": url}} for url in urls]
