"""An engine behind any OpenAI-compatible server: chat completions, many conversations at a time.

A server is not to be relied on: replies are late, cut, malformed or refused for a while. Each turn
is asked for again, with longer and longer pauses; a turn that never comes ends its conversation
with a completion of reason "fault", and the others go on. What no second try would mend (a wrong
key, an unknown model) is raised at once.

Tools go in as text (`tools=None`: the system prompt has them, and the turn has `<tool_call>`) or by
the server's own means (`tools`: their schemas; its `tool_calls` become the same `<tool_call>`). A
reasoning parser's text becomes the turn's thought.

A message's `pictures` (data URLs) go as OpenAI's `image_url` parts, to a model that sees.

Left out: weights (a server has its own), streaming.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from drlib.chat.tool_calls import ToolCall, parse, render_call, truncate_after_action
from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.models.engine import Completion, Engine, NewContext, Respond, SamplingParams

STOP = ("<tool_response>",)  # what a policy that imagines the world writes next
TOO_LONG = ("context length", "context_length", "too long", "maximum input")
FINISHED = {"stop": "stop", "tool_calls": "stop", "length": "length", "content_filter": "stop"}
LONGEST_PAUSE_S = 30.0
POLL_S = 0.2


class ApiEngine(Engine):
    """Turns of the model behind `endpoint`.

    Args:
        concurrency: conversations that run at the same time.
        attempts: for each turn, 1 for none but the first.
        pause_s: before the second try; doubled each time, up to 30 s, by up to half at random.
        tools: functions (`Tool.function`), for a server that calls tools by its own means.
        prices: of a million tokens read and of a million tokens said.
        options: of every request, such as `{"extra_body": {"top_k": 20}}`. vLLM leaves special
            tokens out of what it says: a model whose tags are some, as those of the tour's policy
            are, needs `{"extra_body": {"skip_special_tokens": False}}`.
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
    ):
        if concurrency < 1 or attempts < 1:
            raise ValueError(f"concurrency={concurrency} and attempts={attempts} start at 1")
        self.endpoint = endpoint
        self.concurrency = concurrency
        self.attempts = attempts
        self.pause_s = pause_s
        self.tools = tools
        self.prices = prices
        self.options = options or {}

    def update_weights(self, model) -> None:
        """A server's weights are its own: TypeError."""
        raise TypeError("the weights are the server's: train with an engine that takes them")

    def converse(
        self,
        prompts: Sequence[Sequence[dict]],
        params: SamplingParams,
        respond: Respond,
        *,
        keys: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        """Run all requests to their end, turn by turn; see `LocalEngine.converse`.

        `respond` is called in the threads of the conversations, for each of them in order. context:
        tokens that a conversation may have, as the server counts them.
        EndpointError: the server refuses for good; conversations that run are ended first.
        """
        keys = list(range(len(prompts)) if keys is None else keys)
        todo = iter(range(len(prompts)))
        lock = threading.Lock()
        over: list[BaseException] = []  # why no conversation goes on

        def work() -> None:
            while not over:
                with lock:
                    number = next(todo, None)
                if number is None:
                    return
                try:
                    self._conversation(
                        number, prompts[number], params, respond, keys, context, over
                    )
                except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                    over.append(error)

        # daemons: a request that hangs must not keep a program from ending
        threads = [
            threading.Thread(target=work, daemon=True, name=f"drlib-api-{number}")
            for number in range(min(self.concurrency, len(prompts)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(POLL_S)  # so that Ctrl-C is heard
        except KeyboardInterrupt as stop:
            over.append(stop)
            raise
        if over:
            raise over[0]

    def _conversation(self, number, prompt, params, respond, keys, context, over) -> None:
        said = list(prompt)
        rng = random.Random(f"{params.seed}-{keys[number]}")
        while not over:
            done = self._turn(said, params, rng)
            if context is not None and done.prompt_tokens + done.turn_tokens > context:
                done.finish_reason = "context"
            reply = respond(number, done)
            while isinstance(reply, Future):
                reply = reply.result()
            if reply is None:
                return
            if isinstance(reply, NewContext):
                said = list(reply.prompt)
            else:
                said += [{"role": "assistant", "content": done.text}, *reply]

    def _turn(self, said: list[dict], params: SamplingParams, rng: random.Random) -> Completion:
        """One turn, asked for until it comes."""
        options = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_tokens,
            "seed": rng.getrandbits(31),
            "stop": list(STOP),
            **({"tools": list(self.tools)} if self.tools else {}),
            **self.options,
        }
        messages = to_openai_messages(said, by_server=bool(self.tools))

        def ask() -> Completion:
            return self._completion(self.endpoint.complete(messages, **options))

        return retry_request(ask, self.attempts, self.pause_s, rng)

    def _completion(self, reply: Any) -> Completion:
        """A reply as ours. LookupError, TypeError, ValueError: it is no chat completion."""
        choice = reply["choices"][0]
        usage = reply.get("usage") or {}
        if not isinstance(choice, dict) or not isinstance(usage, dict):
            raise TypeError("choices and usage are no objects")
        read, written = (int(usage.get(f"{of}_tokens") or 0) for of in ("prompt", "completion"))
        reason = FINISHED.get(choice.get("finish_reason") or "stop")
        if reason is None:
            raise ValueError(f"finish_reason {choice['finish_reason']!r}")
        return Completion(
            finish_reason=reason,
            text=truncate_after_action(message_text(choice["message"])),
            prompt_tokens=read,
            turn_tokens=written,
            cost=(read * self.prices[0] + written * self.prices[1]) / 1e6,
        )


def retry_request(
    ask: Callable[[], Completion], attempts: int, pause_s: float, rng: random.Random
) -> Completion:
    """What `ask` returns, asked again where a server fails for a while, with longer and longer
    pauses; a completion of reason "fault" where it never comes, of reason "context" where the
    server finds the prompt too long.

    ask: raises LookupError, TypeError or ValueError for a reply that cannot be read.
    EndpointError: what no second try would mend.
    """
    fault = ""
    for attempt in range(attempts):
        try:
            return ask()
        except EndpointError as error:
            fault, wait_s = str(error), error.retry_after_s
            if error.status == 400 and any(words in fault.lower() for words in TOO_LONG):
                return Completion(finish_reason="context")
            if not error.is_transient:
                raise
        except (LookupError, TypeError, ValueError) as error:
            fault, wait_s = f"a malformed reply ({type(error).__name__}: {error})", 0.0
        if attempt + 1 < attempts:
            longer_s = pause_s * 2**attempt * (1 + rng.random() / 2)
            time.sleep(min(max(longer_s, wait_s), LONGEST_PAUSE_S))
    return Completion(finish_reason="fault", fault=f"{fault}, {attempts} times")


def message_text(message: dict) -> str:
    """A server's message as one text: its reasoning as a thought, its calls as `<tool_call>`, a
    refusal as what it says. TypeError: it has none of these."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    text = message.get("content")
    if text is None:
        text = message.get("refusal")
    calls = message.get("tool_calls") or ()
    has_thought = isinstance(thought, str) and thought
    has_more = isinstance(text, str) or calls
    if not has_thought and not has_more:
        raise TypeError("the message has no content")
    said = f"<think>{thought.strip()}" if has_thought else ""
    if has_thought and has_more:  # otherwise the thought was cut
        said += "</think>"
    said += text or ""
    for call in calls:
        function = call["function"]
        try:
            said += render_call(function["name"], json.loads(function["arguments"]))
        except ValueError:  # the policy's fault, and it is to read so: parse() says why
            said += f"<tool_call>{function['arguments']}</tool_call>"
    return said


def to_openai_messages(said: Sequence[dict], by_server: bool) -> list[dict]:
    """Our messages as a server takes them: an observation as a user's `<tool_response>`, or, where
    the server calls tools by its own means, as the response to a call's id. (A call that a limit
    has left without a response is text: a server refuses one that nobody answers.) Pictures of such
    a response, which may have none, come as a user's message behind it."""
    sent: list[dict] = []
    calls = 0
    followers = [*(message["role"] for message in said[1:]), ""]
    for message, follower in zip(said, followers, strict=True):
        role, text = message["role"], message["content"]
        pictures = message.get("pictures", ())
        if role == "assistant" and by_server and follower == "tool":
            action = parse(text)
            if isinstance(action, ToolCall):
                calls += 1
                function = {"name": action.name, "arguments": json.dumps(action.arguments)}
                called = {"id": f"call-{calls}", "type": "function", "function": function}
                thought = text.partition("<tool_call>")[0]
                sent.append({"role": role, "content": thought, "tool_calls": [called]})
                continue
        if role == "tool" and by_server and sent and sent[-1].get("tool_calls"):
            sent.append({"role": role, "content": text, "tool_call_id": f"call-{calls}"})
            if pictures:
                sent.append({"role": "user", "content": _seen("", pictures)})
        elif role == "tool":
            wrapped = f"<tool_response>\n{text}\n</tool_response>"
            sent.append({"role": "user", "content": _seen(wrapped, pictures)})
        else:
            sent.append({"role": role, "content": _seen(text, pictures)})
    return sent


def _seen(text: str, urls: Sequence[str]) -> str | list[dict]:
    """A message's content: the text, or, where there are pictures, the text and these as parts."""
    if not urls:
        return text
    words = [{"type": "text", "text": text}] if text else []
    return words + [{"type": "image_url", "image_url": {"url": url}} for url in urls]
