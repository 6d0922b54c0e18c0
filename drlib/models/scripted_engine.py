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
            said = list(prompt)
            while said:
                done = self._turn(said, context)
                reply = respond(number, done)
                while isinstance(reply, Future):
                    reply = reply.result()
                if isinstance(reply, NewContext):
                    said = list(reply.prompt)
                elif reply is not None:
                    said += [{"role": "assistant", "content": done.text}, *reply]
                else:
                    said = []

    def _turn(self, said: list[dict], context: int | None) -> Completion:
        asked = to_openai_messages(said, by_server=False)
        self.requests.append(asked)
        text = truncate_after_action(self.say(asked))
        read = sum(len(message["content"].split()) for message in said)
        done = Completion(text=text, prompt_tokens=read, turn_tokens=len(text.split()))
        if context is not None and done.prompt_tokens + done.turn_tokens > context:
            done.finish_reason = "context"
        return done
