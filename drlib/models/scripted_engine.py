"""An engine whose model is a Python function, for tests and demonstrations of agents.

The function receives the messages that a server would receive (pictures encoded, observations
wrapped) and returns a turn; agent, limits, tools and records are the real ones. It reads messages
and counts words in place of tokens.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from drlib.chat.tool_calls import truncate_after_action
from drlib.models.api_engine import to_openai_messages
from drlib.models.engine import Completion, Engine, NewContext, Respond, SamplingParams


class ScriptedEngine(Engine):
    """Turns returned by `say(messages)`, one conversation after the other.

    Attributes:
        requests: the messages of all calls of `say`, in order.
    """

    reads = "messages"
    version = 0

    def __init__(self, say: Callable[[list[dict]], str]):
        self.say = say
        self.requests: list[list[dict]] = []

    def update_weights(self, model) -> None:
        """Raise TypeError: a function has no weights."""
        raise TypeError("a scripted engine has no weights")

    def converse(
        self,
        prompts: Sequence[Sequence[dict]],
        params: SamplingParams,
        respond: Respond,
        *,
        keys: Sequence[int] | None = None,
        context: int | None = None,
    ) -> None:
        """Run all conversations; see `LocalEngine.converse`. context: limit in words."""
        for number, prompt in enumerate(prompts):
            messages = list(prompt)
            while messages:
                completion = self._turn(messages, context)
                reply = respond(number, completion)
                while isinstance(reply, Future):
                    reply = reply.result()
                if isinstance(reply, NewContext):
                    messages = list(reply.prompt)
                elif reply is not None:
                    messages += [{"role": "assistant", "content": completion.text}, *reply]
                else:
                    messages = []

    def _turn(self, messages: list[dict], context: int | None) -> Completion:
        request = to_openai_messages(messages, by_server=False)
        self.requests.append(request)
        text = truncate_after_action(self.say(request))
        read = sum(len(message["content"].split()) for message in messages)
        completion = Completion(text=text, prompt_tokens=read, turn_tokens=len(text.split()))
        if context is not None and completion.prompt_tokens + completion.turn_tokens > context:
            completion.finish_reason = "context"
        return completion
