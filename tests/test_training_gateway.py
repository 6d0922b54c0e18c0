"""Agents of other frameworks, trained through the gateway: real server, engine and OpenAI client.

The tiny policy after SFT is trained for a step. Its rollouts and gradient are compared with those
of an agent of drlib that does the same.

Run: python -m pytest tests/test_training_gateway.py
"""

import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import numpy as np
import pytest
import torch
from openai import (
    APIConnectionError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
)

from drlib.agents import Agent, ExternalAgent, Limits
from drlib.agents.context import IdContext
from drlib.agents.external import AgentFailed, EnvironmentFault
from drlib.agents.gateway import Gateway
from drlib.agents.request_queue import AgentEnd
from drlib.analysis.round_trip import measure_round_trip, recode_turns
from drlib.chat.chat_requests import RequestError, parse_request
from drlib.chat.model_template import TemplateIds
from drlib.chat.template import load_any_tokenizer
from drlib.chat.tool_calls import Answer, ToolCall, parse_native
from drlib.config import ROOT, Config
from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_model, load_policy
from drlib.rewards.functions import make_reward
from drlib.task import Task
from drlib.training import stages
from drlib.training.batch import prepare_batch
from drlib.training.distributed import Ranks
from drlib.training.external_rollouts import collect_external
from drlib.training.learner import LocalLearner, accumulate_gradients
from drlib.training.policy_age import Clock
from drlib.training.rollouts import judge_rollouts, rollout_limits
from drlib.training.run_folder import read_metrics
from drlib.trajectory import Termination, load_trajectories
from tests import openai_agent
from tests.agent_examples import TextEngine, make_trajectory
from tests.loop_examples import build_stages, cold_start, gradient_of, settings
from tests.rl_examples import a_tool_result, changed
from tests.stage_processes import build_stage, start_stage
from tests.template_examples import random_model, tokenizer_of
from tests.waiting import HANG_S

start = cold_start
QUESTIONS, SAMPLES = 3, 4
TOUR = ROOT / "figures/reference/tour"
TASK = Task("t", "What is the currency of Norway?", "Krone", "search", "cldr")


def connect(access, **options):
    return OpenAI(base_url=access.base_url, api_key=access.api_key, **options)


class OpenAIAgent(ExternalAgent):
    """The agent of tests/openai_agent.py."""

    def work(self, access):
        with connect(access) as client:
            return openai_agent.answer(client, access.task.question, access.call_tool)


class Function(ExternalAgent):
    """An agent given as a function of its access."""

    def __init__(self, function, *args, **options):
        super().__init__(*args, **options)
        self.function = function

    def work(self, access):
        return self.function(access)


class Twin(Agent):
    """The same steps as an agent of drlib; `orders` has those of the concurrent requests."""

    orders: dict[str, list[str]]

    def run_task(self, state):
        state.lead = IdContext(self.chat, "")  # cut turns do not end the rollout
        answer = yield from self.work(state)
        # the engine waits for every request of an external agent and for its end; equal waits give
        # equal batches, and so equal last bits
        yield state.submit(int)
        return answer

    def work(self, state):
        question, found = state.task.question, []
        context, first = state.begin(), None
        for _ in range(8):
            if len(context) >= self.limits.context_tokens:
                return None
            turn = yield context
            calls = [a for a in parse_native(turn.text) if isinstance(a, ToolCall)]
            if not calls:
                first = self.content(turn.text)
                break
            for call in calls:
                result = yield state.act(call)
                found.append(result.text)
                context.observe(result.text)
            if len(found) >= 2:
                text = openai_agent.SUMMARY.format(question=question, found=" ".join(found)[:200])
                context, found = state.begin(text), []
        else:
            return None
        check = openai_agent.CHECK.format(question=question, found=first)
        contents = {}
        for prompt in self.orders[state.name]:
            yield state.submit(int)
            turn = yield state.begin(prompt)
            contents[prompt] = self.content(turn.text)
        votes = [vote for vote in (first, contents[check], contents[question]) if vote]
        return max(votes, key=votes.count) if votes else None

    def content(self, text):
        actions = parse_native(text)
        if any(isinstance(action, ToolCall) for action in actions):
            return None
        return next((a.text for a in actions if isinstance(a, Answer)), text)


@pytest.fixture(scope="module")
def tasks(start, tmp_path_factory):
    trainer = start.step(settings(), tmp_path_factory.mktemp("runs") / "questions")
    found, _ = trainer.scheduler.draw(0, trainer.curriculum)
    real = [task for task in found if task.world == start.world.version]
    assert len(real) >= QUESTIONS
    return real[:QUESTIONS]


@pytest.fixture(scope="module")
def limits():
    return rollout_limits(settings())


def new_engine(start, limits, **options):
    context = limits.context_tokens
    return LocalEngine(start.policy.eval(), max_context=context, lockstep=True, **options)


@pytest.fixture(scope="module")
def pair(start, tasks, limits):
    """Return the judged rollouts of the OpenAI agent and of its twin."""
    torch.set_num_threads(1)
    made = []
    for kind in (OpenAIAgent, Twin):
        agent = kind(new_engine(start, limits), start.toolbox, start.chat, limits)
        if kind is Twin:
            agent.orders = {t.id: last_prompts(t) for t in made[0]}
        rollouts = agent.run(tasks, samples=SAMPLES, seed=5)
        judge = make_reward("exact_match")
        made.append(judge_rollouts(rollouts, [t for t in tasks for _ in range(SAMPLES)], judge))
    return made


def last_prompts(trajectory):
    """Return the user messages of the last two contexts in the order of their turns."""
    prompts = [m["content"] for m in trajectory.messages if m["role"] == "user"]
    return prompts[-2:]


# ---------------------------------------------------------------- the same as drlib's own loop


def test_rollouts_equal_those_of_an_agent_of_drlib(pair):
    for ours, theirs in zip(*pair, strict=True):
        assert_same_rollout(ours, theirs)
        turns = [[m for m in t.messages if m["role"] == "assistant"] for t in (ours, theirs)]
        assert turns[0] == turns[1]
    kinds = sum((Counter(t.metadata["requests"]) for t in map(count_only, pair[0])), Counter())
    assert kinds["append"] >= 5 and kinds["new"] > 3 * QUESTIONS * SAMPLES
    assert kinds["unknown_turns"] == kinds["lost"] == 0
    assert any("Summary of the work" in m["content"] for t in pair[0] for m in t.messages)


def assert_same_rollout(one, two):
    """Assert that all tokens, log-probabilities, results and rewards are bit-identical."""
    for name in (
        "token_ids",
        "generated",
        "logprobs",
        "entropies",
        "segments",
        "turns",
        "versions",
    ):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    for name in ("id", "group_id", "termination", "answer", "reward", "reward_parts"):
        assert getattr(one, name) == getattr(two, name), name
    assert (one.contexts is None) == (two.contexts is None)
    assert one.contexts is None or np.array_equal(one.contexts, two.contexts)
    calls = [[(r.tool, r.arguments, r.text, r.ok) for r in t.tool_results] for t in (one, two)]
    assert calls[0] == calls[1]


def count_only(trajectory):
    trajectory.metadata["requests"].pop("ignored", None)
    return trajectory


def test_gradient_equals_that_of_drlibs_own_loop(start, pair):
    """One GRPO step of the existing learner on both."""
    config = settings(rl__filter__overlong="keep")
    found = []
    for rollouts in pair:
        model = copy.deepcopy(start.policy)
        batch = prepare_batch([rollouts], config, 0, Ranks(), Clock())
        learner = LocalLearner(model, config, Ranks())
        parts = [learner.record(part) for part in batch.parts]
        metrics = accumulate_gradients(model, parts, config, Ranks())
        assert metrics["logp_gap"] < 1e-5 and metrics["trained_share"] > 0
        gradient = gradient_of(model)
        updated = learner.update(parts, 0)
        assert updated["updates"] == 1
        found.append((gradient, torch.cat([p.detach().flatten() for p in model.parameters()])))
    assert found[0][0].abs().max() > 0
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    before = torch.cat([p.detach().flatten() for p in start.policy.parameters()])
    assert not torch.equal(found[0][1], before)


# ---------------------------------------------------------------- recorded ids


class OddEngine(TextEngine):
    """Samples each turn as one token per character, which no tokenizer would choose.

    `limit` is the number of tokens after which a turn is cut.
    """

    def __init__(self, chat, say, limit=10**6):
        super().__init__(chat, say)
        self.prompts, self.limit = [], limit

    def converse(self, prompts, params, respond, *, keys=None, context=None):
        chat, encode = self.chat, self.chat.encode

        class Spelling:
            tokenizer, end_id = chat.tokenizer, chat.end_id

            @staticmethod
            def encode(text):
                tags = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>")
                for tag in (*tags, "</tool_call>"):
                    text = text.replace(tag, f"\0{tag}\0")
                pieces = [p if p in (*tags, "</tool_call>") else [*p] for p in text.split("\0")]
                flat = [x for p in pieces for x in ([p] if isinstance(p, str) else p)]
                return [token for piece in flat for token in encode(piece)]

        self.chat = Spelling
        try:
            super().converse(prompts, params, respond, keys=keys, context=context)
        finally:
            self.chat = chat


def converse(start, say, function, limits=None, chat=None, engine=TextEngine, tasks=(TASK,)):
    """Return the trajectories of an external agent `function` with a model `say`."""
    chat = chat or start.chat
    limits = limits or Limits(6, 200, 2000)
    agent = Function(function, engine(chat, say), start.toolbox, chat, limits)
    return agent.run(list(tasks))


def post(access, body, **options):
    """Send a request without OpenAI's client; return (status, reply)."""
    body = {"model": "any", "tools": openai_agent.TOOLS, **body}
    response = httpx.post(f"{access.base_url}/chat/completions", json=body, timeout=20, **options)
    return response.status_code, response.json()


def ask(access, *messages, **fields):
    """Return the assistant's message for messages given as texts of the user, or as dicts."""
    sent = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    status, reply = post(access, {"messages": sent, **fields})
    assert status == 200, reply
    return reply["choices"][0]["message"]


def observe(call, text):
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def call_text(query):
    call = {"name": "search", "arguments": {"query": [query]}}
    return f"<think>why</think><tool_call>{json.dumps(call)}</tool_call>"


def say_search(text):
    """Search first, then answer with the number of observations."""
    seen = text.count("<tool_response>")
    return call_text(f"q{seen}") if seen < 2 else f"<think>x</think><answer>{seen}</answer>"


def sampled(trajectory):
    return trajectory.token_ids[trajectory.generated].tolist()


def test_sampled_ids_are_kept_although_the_text_has_others(start):
    def work(access):
        first = ask(access, "Q")
        second = ask(access, "Q", first, observe(first["tool_calls"][0], "one"))
        third = ask(
            access,
            *("Q", first, observe(first["tool_calls"][0], "one")),
            *(second, observe(second["tool_calls"][0], "two")),
        )
        return third["content"]

    (found,) = converse(start, say_search, work, engine=OddEngine)
    assert found.answer == "2" and found.contexts is None
    text = start.chat.tokenizer.decode(sampled(found), skip_special_tokens=False)
    assert text == "".join([call_text("q0"), call_text("q1"), "<think>x</think><answer>2</answer>"])
    assert len(sampled(found)) > 1.5 * len(start.chat.encode(text))  # the control: other ids
    assert found.metadata["requests"]["append"] == 2
    # the same context by hand: prompt, turn, end, observation
    chat = start.chat
    prompt = chat.prompt("Q")
    turn = found.token_ids[len(prompt) :][: found.turns.tolist().count(0) - len(prompt)]
    after = [chat.end_id, *chat.tool_turn("one")]
    assert found.token_ids[: len(prompt)].tolist() == prompt
    at = len(prompt) + int(found.generated[found.turns == 0].sum())
    assert found.token_ids[at : at + len(after)].tolist() == after and len(turn) > 0


def test_branches_and_rewritten_histories_keep_ids_and_train_a_turn_once(start):
    def work(access):
        first = ask(access, "Q")
        call = first["tool_calls"][0]
        ask(access, "Q", first, observe(call, "one"))
        ask(access, "Q", first, observe(call, "other"))  # a branch after the first turn
        # as a framework that folds old results and keeps the turns
        ask(access, "Q and a note", first, observe(call, "omitted"))
        edited = {**first, "content": "edited"}
        return ask(access, "Q", edited, observe(call, "one"))["content"] or "none"

    (found,) = converse(start, say_search, work, engine=OddEngine)
    requests = found.metadata["requests"]
    assert (requests["append"], requests["branch"], requests["new"]) == (1, 1, 3)
    assert requests["unknown_turns"] == 1
    parts = [found.contexts == number for number in range(4)]
    turns = [sampled_in(found, inside) for inside in parts]
    text = start.chat.tokenizer.decode
    assert text(turns[0], skip_special_tokens=False) == call_text("q0") + call_text("q1")
    assert text(turns[1], skip_special_tokens=False) == call_text("q1")
    spelled = turns[0][: len(turns[0]) - len(turns[1])]
    for inside in parts[1:3]:
        ids, marks = found.token_ids[inside].tolist(), found.generated[inside].tolist()
        at = next(i for i in range(len(ids)) if ids[i : i + len(spelled)] == spelled)
        assert not any(marks[at : at + len(spelled)]), "it is trained in its own context only"
    ids = found.token_ids[parts[3]].tolist()
    edited = start.chat.encode("edited")
    assert any(ids[i : i + len(edited)] == edited for i in range(len(ids)))


def sampled_in(trajectory, inside):
    return trajectory.token_ids[inside & trajectory.generated].tolist()


def test_equal_messages_of_different_turns_are_told_apart(start):
    """Two samples with the same call and different thoughts; both are continued by their ids."""
    thoughts = iter("abcde")

    def say(text):
        return call_text("same").replace("why", next(thoughts))

    def work(access):
        first, second = ask(access, "Q"), ask(access, "Q")
        one, two = (message["tool_calls"][0] for message in (first, second))
        assert one["function"] == two["function"]
        ask(access, "Q", second, observe(two, "second"))
        ask(access, "Q", first, observe(one, "first"))
        return ask(access, "New question", first, observe(one, "first"))["content"] or "none"

    (found,) = converse(start, say, work)
    texts = [start.chat.tokenizer.decode(found.token_ids[found.contexts == i]) for i in range(3)]
    thoughts = [re.findall("<think>(.)</think>", text) for text in texts]
    assert thoughts == [["a", "d"], ["b", "c"], ["a", "e"]]
    assert "first" in texts[0] and "second" in texts[1]


def test_branch_keeps_the_turns_of_the_context_that_it_shares(start):
    """All answers are equal; only their places tell which thoughts belong to them."""
    thoughts = iter("abcd")

    def say(text):
        return f"<think>{next(thoughts)}</think><answer>same</answer>"

    def work(access):
        first = ask(access, "Q")
        ask(access, "Another question")
        ask(access, "Q", first, "Continue.")
        return ask(access, "Q", first, "Start again.")["content"]

    (found,) = converse(start, say, work)
    texts = [start.chat.tokenizer.decode(found.token_ids[found.contexts == i]) for i in range(3)]
    assert [re.findall("<think>(.)</think>", text) for text in texts] == [
        ["a", "c"],
        ["b"],
        ["a", "d"],
    ]
    assert found.metadata["requests"]["branch"] == 1


def test_parallel_calls_of_a_turn_and_tools_in_the_prompt():
    """A model whose tags are ordinary text may write several calls in one turn."""
    chat = TemplateIds(tokenizer_of("llama3_1"), tool_role="user")
    read = []

    def say(text):
        read.append(text)
        return call_text("a") + call_text("b") if len(read) == 1 else "Both are read."

    def work(access):
        system = {"role": "system", "content": "Be brief."}
        message = ask(access, system, "Q")
        assert message["reasoning_content"] == "why" and message["content"] is None
        one, two = message["tool_calls"]
        assert json.loads(two["function"]["arguments"]) == {"query": ["b"]}
        return ask(access, system, "Q", message, observe(one, "A"), observe(two, "B"))["content"]

    agent = Function(work, TextEngine(chat, say), None, chat, Limits(6, 400, 4000))
    (found,) = agent.run([TASK])
    assert found.answer == "Both are read." and found.contexts is None
    assert read[0].index("Be brief.") < read[0].index("<tools>") < read[0].index("Q")
    assert '"name": "search"' in read[0] and '"name": "python"' in read[0]
    later = read[1].partition(call_text("b"))[2]
    assert later.index("A\n</tool_response>") < later.index("B\n</tool_response>")
    assert [(r.tool, r.text, r.source) for r in found.tool_results] == [
        ("search", "A", "agent"),
        ("search", "B", "agent"),
    ]
    assert (
        found.generated.sum()
        == len(chat.encode(call_text("a") + call_text("b")))
        + 1
        + len(chat.encode("Both are read."))
        + 1
    )


def test_tools_of_a_request_are_rendered_by_a_native_template():
    tokenizer = tokenizer_of("qwen3_instruct_2507")
    schema = {"type": "function", "function": {"name": "unused", "parameters": {}}}
    chat, read = TemplateIds(tokenizer, [schema]), []

    def say(text):
        read.append(text)
        return "Yes."

    def work(access):
        ask(access, "Q")
        return ask(access, "Summarise.", tools=[])["content"]

    (found,) = Function(work, TextEngine(chat, say), None, chat, Limits(6, 99, 4000)).run([TASK])
    assert '"name": "search"' in read[0] and "unused" not in read[0]
    assert "search" not in read[1] and found.answer == "Yes."


def test_dense_model_with_its_own_template_gives_the_recorded_log_probabilities(tmp_path):
    """A random Llama in the local engine; its log-probabilities are computed again by hand."""
    folder = random_model(tmp_path, "llama")
    model = load_model(str(folder)).float().eval()
    chat = TemplateIds(load_any_tokenizer(folder), tool_role="user")
    limits = Limits(4, 12, 2000)

    def work(access):
        first = ask(access, "Q")
        # the random text has no call: an assistant's message is sent back as it came
        return ask(access, "Q", first, "And then?")["content"]

    engine = LocalEngine(model, slots=2, max_context=2000)
    found = Function(work, engine, None, chat, limits).run([TASK], samples=2)
    for trajectory in found:
        assert trajectory.metadata["requests"]["append"] == 1 and trajectory.contexts is None
        with torch.no_grad():
            logits_TV = model(torch.tensor(trajectory.token_ids[None]).long()).logits[0]
        logp_TV = logits_TV[:-1].log_softmax(-1)
        later = torch.tensor(trajectory.token_ids[1:]).long()
        logp_T = logp_TV.gather(1, later[:, None])[:, 0].numpy()
        mask = trajectory.generated[1:]
        assert 12 <= mask.sum() <= 24
        np.testing.assert_allclose(trajectory.logprobs[1:][mask], logp_T[mask], atol=2e-4)


def test_same_text_without_tools_is_raw_text(start):
    def work(access):
        raw = ask(access, "Q", tools=None)
        assert "tool_calls" not in raw and raw["content"] == call_text("q0")
        return ask(access, "Q", tools=openai_agent.TOOLS, tool_choice="none")["content"]

    (found,) = converse(start, say_search, work)
    assert found.answer == call_text("q0")


# ---------------------------------------------------------------- limits


def test_max_tokens_cuts_the_sample_of_the_unlimited_turn(start, tasks, limits):
    replies = []

    def work(access):
        body = {"messages": [{"role": "user", "content": access.task.question}], "tools": None}
        status, reply = post(access, {**body, "max_tokens": 3})
        replies.append(reply)
        content = reply["choices"][0]["message"]["content"]
        again = [*body["messages"], {"role": "assistant", "content": content}]
        again.append({"role": "user", "content": "Continue."})
        assert post(access, {**body, "messages": again, "max_tokens": 5})[0] == 200
        return "x"

    def unlimited(access):
        return ask(access, access.task.question, tools=None)["content"]

    found = []
    for function in (work, unlimited):
        agent = Function(function, new_engine(start, limits), start.toolbox, start.chat, limits)
        (trajectory,) = agent.run(tasks[:1], seed=1)
        found.append(trajectory)
    cut, whole = found
    (reply,) = replies
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["usage"]["prompt_tokens"] == len(start.chat.prompt(tasks[0].question))
    first = sampled_in(cut, cut.contexts == 0)
    assert len(first) == 3 and first == sampled(whole)[:3] and len(sampled(whole)) > 3
    assert np.array_equal(cut.logprobs[cut.contexts == 0][-3:], whole.logprobs[whole.generated][:3])
    assert len(sampled_in(cut, cut.contexts == 1)) == 5
    assert cut.metadata["requests"]["branch"] == 1 and cut.termination == Termination.ANSWERED


def test_full_context_is_an_openai_error_and_a_shorter_history_goes_on(start):
    long = "word " * 300

    def work(access, gives_up=False):
        with connect(access) as client:
            complete = client.chat.completions.create
            first = ask(access, "Q")
            call = first["tool_calls"][0]
            sent = [{"role": "user", "content": "Q"}, first, observe(call, long)]
            with pytest.raises(BadRequestError) as refused:
                complete(model="any", messages=sent, tools=openai_agent.TOOLS)
            assert refused.value.code == "context_length_exceeded"
            if gives_up:
                raise refused.value
            return ask(access, "Q", first, observe(call, "short"))["tool_calls"][0]["id"]

    limits = Limits(6, 60, 200)
    (found,) = converse(start, say_search, work, limits)
    assert found.termination == Termination.ANSWERED and found.metadata["requests"]["append"] == 1
    assert found.contexts is None and "word" not in start.chat.tokenizer.decode(found.token_ids)
    (found,) = converse(start, say_search, lambda access: work(access, True), limits)
    assert found.termination == Termination.LENGTH and found.answer is None
    assert len(sampled(found)) == len(start.chat.encode(call_text("q0")))


def test_limits_of_the_rollout_end_it(start):
    refused = []

    def work(access):
        messages = ["Q"]
        while True:
            status, reply = post(
                access,
                {
                    "messages": [
                        {"role": "user", "content": m} if isinstance(m, str) else m
                        for m in messages
                    ]
                },
            )
            if status != 200:
                refused.append((status, reply["error"]["code"]))
                return "an answer after the limit"
            message = reply["choices"][0]["message"]
            text = access.call_tool("search", {"query": [str(len(messages))]})
            messages += [message, observe(message["tool_calls"][0], text)]

    def say(text):
        return call_text("again")

    (found,) = converse(start, say, work, Limits(2, 200, 2000))
    assert found.termination == Termination.TURNS and found.answer is None
    assert refused == [(400, "rollout_ended")]
    assert [r.tool for r in found.tool_results][:2] == ["search", "search"]
    assert found.tool_results[0].source != "agent"  # with the facts of the real tool


# ---------------------------------------------------------------- faults


def test_faults_of_agents_are_excluded_and_never_scored(start):
    tasks = [Task(str(i), f"Q{i}", "1", "search", "cldr") for i in range(5)]
    free = threading.Event()

    def work(access):
        number = int(access.task.id)
        message = ask(access, access.task.question, tools=None)
        if number == 0:
            raise RuntimeError("my own bug")
        if number == 1:
            free.wait(60)  # the agent hangs
        return {2: 17, 3: None}.get(number, message["content"])

    engine = TextEngine(start.chat, lambda text: "1")
    agent = Function(work, engine, start.toolbox, start.chat, Limits(6, 9, 200), silence_s=8.0)
    found = agent.run(tasks)
    free.set()
    reasons = [t.termination for t in found]
    fault = Termination.ENV_FAULT
    assert reasons == [fault, fault, fault, Termination.TURNS, Termination.ANSWERED]
    assert "my own bug" in found[0].metadata["fault"] and "8 s" in found[1].metadata["fault"]
    assert "int" in found[2].metadata["fault"]
    judged = judge_rollouts(found, tasks, make_reward("exact_match"))
    assert [t.reward for t in judged] == [None, None, None, 0.0, 1.0]
    with pytest.raises(AgentFailed, match="without a request"):
        converse(start, say_search, lambda access: "an answer from nowhere")


def test_fault_of_a_tool_excludes_the_rollout_also_if_the_agent_goes_on(start):
    class Broken:
        schemas = []

        def submit(self, name, arguments, world=None):
            return type("Done", (), {"result": staticmethod(lambda: a_tool_result(True))})

    def work(access):
        ask(access, "Q")
        with pytest.raises(EnvironmentFault):
            access.call_tool("search", {"query": ["x"]})
        return "an answer"

    agent = Function(work, TextEngine(start.chat, say_search), Broken(), start.chat, Limits())
    (found,) = agent.run([TASK])
    assert found.termination == Termination.ENV_FAULT and found.answer is None
    assert found.tool_results[-1].env_fault


def slow_once():
    """Return a model whose first turn takes a second."""
    calls = []

    def say(text):
        calls.append(text)
        if len(calls) == 1:
            time.sleep(1.0)
        return f"<think>{len(calls)}</think><answer>{len(calls)}</answer>"

    return say, calls


@pytest.mark.parametrize("by_header", [True, False])
def test_a_repeated_request_gets_the_first_reply_and_is_recorded_once(start, by_header):
    say, calls = slow_once()

    def work(access):
        if by_header:  # OpenAI's client repeats by itself
            with connect(access, timeout=0.4, max_retries=8) as client:
                sent = [{"role": "user", "content": "Q"}]
                reply = client.chat.completions.create(
                    model="any", messages=sent, tools=openai_agent.TOOLS
                )
                return reply.choices[0].message.content
        body = {"model": "any", "tools": openai_agent.TOOLS}
        body["messages"] = [{"role": "user", "content": "Q"}]
        for _ in range(20):
            try:
                url = f"{access.base_url}/chat/completions"
                reply = httpx.post(url, json=body, timeout=0.4)
            except httpx.TimeoutException:
                continue
            return reply.json()["choices"][0]["message"]["content"]

    (found,) = converse(start, say, work)
    assert found.answer == "1" and len(calls) == 1
    assert found.metadata["requests"]["lost"] == 0 and found.contexts is None
    assert found.generated.any()


def test_a_turn_that_the_agent_never_got_is_not_trained(start):
    say, calls = slow_once()

    def work(access):
        with pytest.raises(httpx.TimeoutException):
            url = f"{access.base_url}/chat/completions"
            body = {"model": "any", "messages": [{"role": "user", "content": "Q"}]}
            httpx.post(url, json=body, timeout=0.2)
        return ask(access, "Another question")["content"]

    (found,) = converse(start, say, work)
    assert found.answer == "2" and len(calls) == 2 and found.metadata["requests"]["lost"] == 1
    text = start.chat.tokenizer.decode(sampled(found), skip_special_tokens=False)
    assert text == "<think>2</think><answer>2</answer>"


# ---------------------------------------------------------------- protocol

BAD_FIELDS = {
    "stream": True,
    "n": 2,
    "stop": ["\n"],
    "logprobs": True,
    "response_format": {"type": "json_object"},
    "tool_choice": "required",
    "max_tokens": 0,
    "tools": [{"type": "web_search"}],
    "messages": [],
}
USER, CALL = {"role": "user", "content": "Q"}, {"id": "c", "function": {"name": "f"}}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL]}
BAD_MESSAGES = [
    [{"role": "system", "content": "S"}],
    [{"role": "robot", "content": "S"}],
    [USER, {"role": "assistant", "content": "A"}],
    [USER, {"role": "system", "content": "S"}],
    [USER, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}, USER],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    [USER, {"role": "tool", "tool_call_id": "c", "content": "T"}],
    [USER, ASSISTANT, {"role": "tool", "tool_call_id": "c", "content": "T"}],  # no arguments
]


@pytest.mark.parametrize("field", BAD_FIELDS)
def test_unsupported_fields_are_named(field):
    body = {"messages": [USER], field: BAD_FIELDS[field]}
    with pytest.raises(RequestError) as refused:
        parse_request(json.dumps(body).encode())
    assert (refused.value.param, refused.value.status) == (field, 400)


@pytest.mark.parametrize("messages", BAD_MESSAGES)
def test_unreadable_messages_are_refused(messages):
    with pytest.raises(RequestError):
        parse_request(json.dumps({"messages": messages}).encode())


def test_messages_compare_by_meaning():
    call = {"id": "1", "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'}}
    other = {"id": "2", "function": {"name": "f", "arguments": '{"a":"\\u00e9","b":1}'}}
    texts = [" A ", [{"type": "text", "text": "A"}]]
    assistants = [
        {"role": "assistant", "content": text, "tool_calls": [each], "reasoning_content": str(n)}
        for n, (text, each) in enumerate(zip(texts, (call, other)))
    ]
    one, two = (
        parse_request(json.dumps({"messages": [USER, assistant, USER]}).encode()).messages
        for assistant in assistants
    )
    assert (
        one == two
        and one[1].render()
        == 'A<tool_call>{"name": "f", "arguments": {"a": "é", "b": 1}}</tool_call>'
    )
    assert parse_request(
        b'{"messages": [{"role": "user", "content": "Q"}], "top_k": 5}'
    ).ignored == {"top_k": 5}


@pytest.fixture
def gateway():
    with Gateway() as opened:
        yield opened


def test_errors_are_openai_error_objects(gateway):
    queue = gateway.open("r-0")
    url = f"{gateway.url('r-0')}/chat/completions"
    for data, param in ((b"{", None), (json.dumps({"messages": [USER], "n": 3}), "n")):
        response = httpx.post(url, content=data)
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] == "invalid_request_error"
        assert error["message"] and error["param"] == param
    assert httpx.get(f"{gateway.url('r-0')}/unknown").json()["error"]["type"]
    foreign = httpx.post(url, json={"messages": [USER]}, headers={"Origin": "http://site.example"})
    assert foreign.status_code == 403 and "error" in foreign.json()
    with OpenAI(base_url=gateway.url("r-9"), api_key="x", max_retries=0) as client:
        with pytest.raises(NotFoundError) as unknown:
            client.chat.completions.create(model="any", messages=[USER])
        assert unknown.value.code == "rollout_not_found"
        assert [model.id for model in client.models.list()] == ["policy"]
    with pytest.raises(ValueError, match="open already"):
        gateway.open("r-0")
    queue.close(RequestError("ended", code="rollout_ended"))
    assert httpx.post(url, json={"messages": [USER]}).json()["error"]["code"] == "rollout_ended"


def test_rollout_is_named_by_the_api_key_too(gateway):
    queue = gateway.open("r-1")
    seen = []

    def serve():
        event = queue.next().result(20)
        seen.append(event.request.messages[0].text)
        event.answer({"choices": [{"message": {"role": "assistant", "content": "Hi"}}]})

    thread = threading.Thread(target=serve)
    thread.start()
    with OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="r-1") as client:
        reply = client.chat.completions.create(model="any", messages=[USER])
    thread.join()
    assert reply.choices[0].message.content == "Hi" and seen == ["Q"]


def test_the_end_of_an_agent_comes_before_its_waiting_requests(gateway):
    queue = gateway.open("r-2")
    pending = queue.submit(json.dumps({"messages": [USER]}).encode(), False)
    queue.finish(AgentEnd("done"))
    assert queue.next().result(0).answer == "done"
    queue.close(RequestError("ended"))
    assert isinstance(pending.reply.exception(0), RequestError)


def test_rollouts_of_many_agents_are_sampled_together(start, limits):
    """Requests of different rollouts share the batches of the engine."""
    batches, engine = [], new_engine(start, limits)
    draw = engine._decoder.draw
    engine._decoder.draw = lambda *a: (batches.append(len(a[1])), draw(*a))[1]
    agent = Function(
        lambda access: ask(access, access.task.question)["content"] or "",
        *(engine, start.toolbox, start.chat, limits),
    )
    found = agent.run([TASK], samples=6)
    assert len(found) == 6 and max(batches) == 6
    assert engine.generate([start.chat.prompt("Q")], SamplingParams())[0].size > 0


# ---------------------------------------------------------------- kills


def test_killed_gateway_loses_no_rollout_and_repeats_none(tmp_path, monkeypatch):
    log = tmp_path / "requests"
    monkeypatch.setenv("EXTERNAL_LOG", str(log))
    check_killed_gateway(tmp_path, log, kills=4, steps=3)


def check_killed_gateway(tmp_path, log, kills, steps):
    """SIGKILL of the process with gateway, engine and learner, each time after some requests.

    The trained rollouts and the weights are bit-identical to those of an undisturbed run.

    Args:
        log: file with a line per request, named in the environment variable EXTERNAL_LOG.
    """
    config = settings(
        plugins="tests.external_plugin",
        rl__agent="openai_test",
        rl__steps=steps,
        rl__questions=2,
        rl__group=3,
        rl__save_rollouts=True,
        trainer__checkpoint_every=1,
    )
    finals = []
    for name in ("whole", "killed"):
        build_stages(("world",), config, tmp_path / name)
        finals.append(stages.folder("rl", config, tmp_path / name))
    done = build_stage("rl", config, tmp_path / "whole")
    assert done.returncode == 0, done.stderr[-3000:]
    total = len(log.read_text().splitlines())
    whole, final = finals
    partial, rng = final.with_name(final.name + ".partial"), random.Random(0)
    for number in range(kills):
        before = len(log.read_text().splitlines())
        after = rng.randint(1, total // steps)
        child = start_stage("rl", config, tmp_path / "killed", tmp_path / f"said{number}")
        while len(log.read_text().splitlines()) < before + after and child.is_alive():
            time.sleep(0.005)
        assert child.is_alive(), "it ended before it was killed"
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
        done = len(read_metrics(partial)) if (partial / "metrics.jsonl").exists() else 0
        files = {path.name for path in partial.glob("trajectories_*.parquet")}
        assert len(files) <= done + 1 and not final.exists()
    done = build_stage("rl", config, tmp_path / "killed")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(log.read_text().splitlines()) > 2 * total  # rollouts were lost and sampled again
    files = sorted(path.name for path in whole.glob("trajectories_*.parquet"))
    assert len(files) == steps
    for name in files:
        expected, found = (load_trajectories(folder / name) for folder in finals)
        for one, two in zip(expected, found, strict=True):
            assert_same_rollout(one, two)
        assert len({t.id for t in found}) == len(found) == 6
        assert {int(v) for t in found for v in t.versions[t.generated]} == {files.index(name)}
    models = [load_policy(folder / "policy")[0].state_dict() for folder in finals]
    assert all(torch.equal(value, models[1][key]) for key, value in models[0].items())


def test_clients_of_a_killed_gateway_get_errors_and_its_rollouts_are_unknown_later():
    with Gateway() as first:
        url, port = first.url("r-0"), first.port
        first.open("r-0")
        waiting = []

        def wait():
            with OpenAI(base_url=url, api_key="x", max_retries=0) as client:
                try:
                    client.chat.completions.create(model="any", messages=[USER])
                except (APIConnectionError, InternalServerError) as error:
                    waiting.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.5)
    thread.join(20)
    assert len(waiting) == 1
    with OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        with pytest.raises(APIConnectionError):
            client.chat.completions.create(model="any", messages=[USER])
        with Gateway(port), pytest.raises(NotFoundError) as unknown:
            client.chat.completions.create(model="any", messages=[USER])
    assert unknown.value.code == "rollout_not_found"


# ---------------------------------------------------------------- documentation and control

PAGE = (ROOT / "docs" / "external_agents.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, re.M | re.S))


def test_documented_loop_trains_a_few_steps(tmp_path):
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / "train_external.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert any(row[1] == "1" for row in rows) and all(float(row[2]) < 1e-4 for row in rows)


def test_collected_rollouts_are_judged_and_keep_their_groups(start):
    tasks = [Task(str(i), f"Q{i}", "1", "search", "cldr") for i in range(2)]
    found = collect_external(
        lambda access: ask(access, access.task.question)["content"],
        tasks,
        TextEngine(start.chat, lambda text: f"<answer>{int('Q0' in text)}</answer>"),
        start.chat,
        make_reward("exact_match"),
        samples=2,
        seed=3,
    )
    assert [(t.task_id, t.group_id, t.reward) for t in found] == [
        ("0", "3-0", 1.0),
        ("0", "3-0", 1.0),
        ("1", "3-1", 0.0),
        ("1", "3-1", 0.0),
    ]


def test_text_round_trip_changes_ids_and_log_probabilities(start):
    """The table of docs/external_agents.md, from the committed rollouts."""
    rollouts = load_trajectories(TOUR / "sft_sampled.parquet")
    found = measure_round_trip(rollouts, start.chat, start.policy, Config.load("laptop"))
    assert f"tour after SFT ({found.turns} turns)" in PAGE
    assert f"| {found.changed_turns:.1%} | {found.changed_contexts:.1%} |" in PAGE
    assert 0 < found.changed_lengths < found.changed_turns < found.changed_contexts < 0.2
    assert found.recorded_gap < 0.1 < 10 < found.changed_gap


def test_round_trip_of_one_turn_by_hand(start):
    chat = start.chat
    odd = [token for letter in "Oslo" for token in chat.encode(letter)]
    prompt, middle, last = chat.encode("Where? "), chat.encode("now "), chat.encode("there")
    ids = np.array([*prompt, *odd, *middle, *last], np.int32)
    spans = [len(prompt), len(odd), len(middle), len(last)]
    sampled_T, zeros_T = np.repeat([False, True, False, True], spans), np.zeros(len(ids))
    context = make_trajectory(sampled_T, zeros_T, zeros_T, [*zeros_T])
    context = changed(context, token_ids=ids)
    new, places = recode_turns(context, chat)
    whole = chat.encode("Oslo")
    assert new.token_ids.tolist() == [*prompt, *whole, *middle, *last]
    at = len(prompt) + len(whole)
    assert places == [(len(prompt), at), (at + len(middle), at + len(middle) + len(last))]
    assert new.generated.sum() == len(whole) + len(last) < len(odd) + len(last)
