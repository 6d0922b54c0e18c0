"""Replicas of a server: which gets a request. Real HTTP on loopback, no model.

The weights of replicas, and turns of a real model: tests/test_models_vllm.py.

Run: python -m pytest tests/test_models_vllm_server.py
"""

from contextlib import ExitStack, contextmanager

import pytest

from drlib.app.research import TOUR_POLICY
from drlib.config import Config
from drlib.endpoint import ChatEndpoint
from drlib.models.engine import SamplingParams
from drlib.models.replica_routing import ROUTERS
from drlib.models.vllm_server import VllmServer
from tests.scripted_server import Scripted

TURN, REPLY = [30, 31, 32], [40, 41]
ROLLOUTS, TURNS = 24, 5
PARAMS = SamplingParams(max_tokens=len(TURN))


class Replica(Scripted):
    """Completes every prompt by `TURN`, and counts the tokens that its cache lacks."""

    def __init__(self):
        super().__init__(lambda messages: "")
        self.whole = self.complete
        self.prompts, self.prefill, self.cached = [], 0, set()

    def complete(self, body):
        """Return the reply to a request for a completion of ids."""
        ids = tuple(body["prompt"])
        with self.lock:
            self.prompts.append(ids)
            known = next((n for n in range(len(ids), 0, -1) if ids[:n] in self.cached), 0)
            self.prefill += len(ids) - known
            self.cached |= {(ids + tuple(TURN))[:n] for n in range(1, len(ids) + len(TURN) + 1)}
        logprobs = {"token_logprobs": [-1.0] * len(TURN)}
        choice = {"token_ids": TURN, "logprobs": logprobs, "finish_reason": "length"}
        return {"choices": [choice], "usage": {}}


@contextmanager
def replicas(count):
    with ExitStack() as opened:
        yield [opened.enter_context(Replica()) for _ in range(count)]


def play(engine):
    """Play all rollouts, all with prompts of their own; return the turns of each."""
    turns = [0] * ROLLOUTS

    def respond(number, completion):
        assert completion.token_ids == TURN
        turns[number] += 1
        return REPLY if turns[number] < TURNS else None

    prompts = [[number + 100] * 20 for number in range(ROLLOUTS)]
    engine.converse(prompts, PARAMS, respond, keys=[7 * n for n in range(ROLLOUTS)])
    return turns


def served(router, count=3, **options):
    """Return the replicas after a run, and the engine."""
    with replicas(count) as servers:
        endpoints = [ChatEndpoint(server.url, "scripted") for server in servers]
        engine = VllmServer(endpoints, TOUR_POLICY, router=router, **options)
        assert play(engine) == [TURNS] * ROLLOUTS
        assert sum(len(server.prompts) for server in servers) == ROLLOUTS * TURNS
        return servers


NEW_TOKENS = ROLLOUTS * (20 + (TURNS - 1) * len(REPLY))  # without those that were sampled


@pytest.mark.parametrize("router", ["hash", "sticky", "cache_aware"])
def test_the_turns_of_a_rollout_reach_one_replica(router):
    servers = served(router)
    assert sum(server.prefill for server in servers) == NEW_TOKENS
    of = [{prompt[0] for prompt in server.prompts} for server in servers]
    assert sum(map(len, of)) == ROLLOUTS and all(of)


def test_random_replicas_read_contexts_again():
    assert sum(server.prefill for server in served("random")) > 1.5 * NEW_TOKENS


def test_sticky_replicas_are_balanced():
    assert {len(server.prompts) for server in served("sticky")} == {ROLLOUTS // 3 * TURNS}


def test_the_load_of_a_replica_is_its_requests_in_flight():
    """A router sees them: with one request at a time, every load is 0."""
    seen = []

    class Watch(ROUTERS["hash"]):
        def choose(self, rollout, ids, loads_N):
            seen.append(list(loads_N))
            return super().choose(rollout, ids, loads_N)

    ROUTERS.register("watch", Watch)
    try:
        served("watch", concurrency=1)
        assert seen == [[0, 0, 0]] * (ROLLOUTS * TURNS)
        seen.clear()
        served("watch", concurrency=4)
        assert max(map(sum, seen)) == 3 and all(min(loads) >= 0 for loads in seen)
    finally:
        del ROUTERS["watch"]


def test_replicas_and_routers_that_do_not_exist():
    endpoint = ChatEndpoint("http://127.0.0.1:1/v1", "scripted")
    with pytest.raises(ValueError, match="each once"):
        VllmServer([endpoint, endpoint], TOUR_POLICY)
    with pytest.raises(ValueError, match="sticky"):
        VllmServer([endpoint], TOUR_POLICY, router="stick")
    with pytest.raises(ValueError, match="router"):
        Config.load("laptop", **{"engine.router": "stick"})
