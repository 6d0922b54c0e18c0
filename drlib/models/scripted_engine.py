"""An engine whose model is a function: what agents are tried and shown with, where no model runs.

It learned nothing and is no result. It stands in a model's place at the very end of the line: the
function gets the messages as a server would get them (pictures encoded, observations wrapped), and
says a turn. So all else is real: the agent, its limits, the tools, the record.

Left out: tokens; it is an engine that reads messages, and counts words in their place.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from drlib.chat.tool_calls import truncate_after_action
from drlib.models.api_engine import to_openai_messages
from drlib.models.engine import Completion, Engine, NewContext, Respond, SamplingParams


class ScriptedEngine(Engine):
    """Turns that `say` makes of messages ({"role", "content"}; a content with pictures is a list of
    parts, as in OpenAI's API); one conversation after the other.

    asked: all that `say` was given, in order, for who wants to see what a policy read.
    """

    reads = "messages"
    version = 0

    def __init__(self, say: Callable[[list[dict]], str]):
        self.say = say
        self.asked: list[list[dict]] = []

    def update_weights(self, model) -> None:
        """A function has none: TypeError."""
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
        """Run all requests to their end; see `LocalEngine.converse`. context: of words."""
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
        self.asked.append(asked)
        text = truncate_after_action(self.say(asked))
        read = sum(len(message["content"].split()) for message in said)
        done = Completion(text=text, prompt_tokens=read, turn_tokens=len(text.split()))
        if context is not None and done.prompt_tokens + done.turn_tokens > context:
            done.finish_reason = "context"
        return done
