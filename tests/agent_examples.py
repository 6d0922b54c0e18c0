"""Fixtures for agent tests: the world, tools and tokenizer of the tour, and scripted engines.

A test module aliases the fixtures, such as `chat = tour_chat`.
"""

from concurrent.futures import Future

import numpy as np
import pytest

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import ROOT
from drlib.models.engine import Completion, NewContext
from drlib.tools import Toolbox
from drlib.worlds import load_world
from tests.rl_examples import a_trajectory, changed


@pytest.fixture(scope="session")
def tour_world():
    return load_world("tour")


@pytest.fixture(scope="session")
def tour_chat():
    """Return the chat ids of the committed policy after SFT."""
    return ChatIds(load_tokenizer(ROOT / "figures/reference/tour/policy_sft"))


@pytest.fixture(scope="session")
def tour_toolbox():
    with Toolbox(load_world("tour"), results=2) as toolbox:
        yield toolbox


def make_trajectory(
    generated=(False, True), logprobs=(0, -1), segments=(0, 4), turns=None, **fields
):
    """Return a trajectory with these token columns."""
    columns = {
        "generated": np.array(generated, bool),
        "logprobs": np.array(logprobs, np.float32),
        "segments": np.array(segments, np.uint8),
        "turns": np.array(turns or [0] * len(generated), np.uint16),
    }
    return changed(a_trajectory(tokens=len(generated) - 1), **columns, **fields)


class ScriptedTurns:
    """Engine that returns the given turns; `None` is a turn that reached the token limit."""

    version = 3
    reads = "ids"

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


class TextEngine:
    """Engine of ids whose model is a function `say(context text) -> turn`.

    `read` lists its inputs in order. `rate(turn)` is the log-probability of its tokens. A context
    of more than `context` tokens ends as in the local engine.
    """

    version = 1
    reads = "ids"

    def __init__(self, chat, say, rate=lambda text: -0.5):
        self.chat, self.say, self.rate, self.read = chat, say, rate, []

    def converse(self, prompts, params, respond, *, keys=None, context=None):
        for i, prompt in enumerate(prompts):
            ids = list(prompt)
            while True:
                text = self.chat.tokenizer.decode(ids, skip_special_tokens=False)
                self.read.append(text)
                said = self.say(text)
                turn = self.chat.encode(said)
                stops = [at for at, token in enumerate(turn) if token in params.stop_ids]
                turn = turn[: stops[0] + 1] if stops else [*turn, self.chat.end_id]
                space = (context or 10**9) - len(ids)
                reason = "stop" if len(turn) <= space else "context"
                turn = turn[:space]
                ids += turn
                n = len(turn)
                reply = respond(i, Completion(turn, [self.rate(said)] * n, [0.25] * n, reason))
                while isinstance(reply, Future):
                    reply = reply.result()
                if isinstance(reply, NewContext):
                    ids = list(reply.prompt)
                elif reply is not None and context and len(ids) + len(reply) >= context:
                    assert respond(i, Completion(finish_reason="context")) is None
                    break
                elif reply is not None:
                    ids += reply
                else:
                    break
