"""An engine that says given lines, so that every branch of an agent is met."""

from concurrent.futures import Future

from drlib.policy.engine import Completion


class Lines:
    """Says the given lines, a turn each; `None` is a turn that ran into the token limit."""

    version = 3

    def __init__(self, chat, lines):
        self.chat, self.lines = chat, lines

    def converse(self, prompts, params, respond, *, keys=None, context=None):
        for i in range(len(prompts)):
            for line in self.lines:
                ids = self.chat.encode(line or "no end")
                ids += [self.chat.end_id] if line else []
                stops = [i for i, token in enumerate(ids) if token in params.stop_ids]
                ids = ids[: stops[0] + 1] if stops else ids
                n = len(ids)
                done = Completion(ids, [-0.5] * n, [0.25] * n, "stop" if line else "length")
                reply = respond(i, done)
                if isinstance(reply, Future):
                    reply = reply.result()
                if reply is None:
                    break
