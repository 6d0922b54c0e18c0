"""AgentScaler: domain recovery, gold states and trajectory filters.

Run: python -m pytest tests/test_demonstrations_agentscaler.py
"""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from drlib.chat.template import ChatIds, train_tokenizer
from drlib.chat.tool_calls import END, Answer, ToolCall, parse, render_call
from drlib.demonstrations.actions import episode_sample
from drlib.demonstrations.agentscaler import (
    DOMAINS,
    FILTERS,
    MAX_REPEATS,
    NGRAM,
    OPS,
    READS,
    TAU,
    Api,
    Domain,
    embed_parameters,
    filter_trajectories,
    find_domains,
    pass_hat_k,
    play,
    rejection,
    sample_task,
    tool_graph,
    toy_apis,
)
from tests.waiting import HANG_S

APIS = toy_apis()
DOMAINS_FOUND = [Domain(part) for part in find_domains(APIS)]
TASKS = [sample_task(domain, seed) for domain in DOMAINS_FOUND for seed in range(20)]
READING = [sample_task(domain, seed, ops=READS) for domain in DOMAINS_FOUND for seed in range(10)]
LIBRARY = DOMAINS_FOUND[0]


def nmi(left, right):
    """Return the normalised mutual information 2 I(X; Y) / (H(X) + H(Y)), in nats."""
    n, x, y = len(left), Counter(left), Counter(right)
    both = Counter(zip(left, right, strict=True))
    entropy = [-sum(c / n * math.log(c / n) for c in counts.values()) for counts in (x, y)]
    mutual = sum(c / n * math.log(n * c / (x[a] * y[b])) for (a, b), c in both.items())
    return 2 * mutual / sum(entropy)


def domain_recovery(tau=TAU, seed=0):
    place = {api.name: i for i, part in enumerate(find_domains(APIS, tau, seed)) for api in part}
    return nmi([api.domain for api in APIS], [place[api.name] for api in APIS])


# ---------------------------------------------------------------------------------------------
# tools and domains


def test_nmi_on_hand_computed_labels():
    assert nmi("aabb", "xxyy") == pytest.approx(1) and nmi("aabb", "xyxy") == pytest.approx(0)
    mutual = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    entropies = math.log(2) - 0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert nmi("aabb", "xxxy") == pytest.approx(2 * mutual / entropies)


def test_toy_apis_are_sixty_tools_in_six_domains():
    assert len(APIS) == len({api.name for api in APIS}) == 60
    assert set(Counter(api.domain for api in APIS).values()) == {10}
    words = [set(re.findall(r"\w+", line)) for line in DOMAINS.split("\n")]
    assert sum(map(len, words)) - len(set.union(*words)) >= 4
    assert sum(api.op in READS for api in APIS) == 24


@pytest.mark.parametrize("seed", range(5))
def test_louvain_recovers_the_domains_near_the_default_tau(seed):
    assert domain_recovery(seed=seed) >= 0.9
    assert all(domain_recovery(tau, seed) >= 0.9 for tau in (0.48, 0.54, 0.68))
    assert domain_recovery(0.2, seed) < 0.9  # shared words join domains below the threshold


def test_embedding_is_the_normalised_trigram_count():
    loan = Api("f", "get", "t", ("ab",), ("abc",))
    vector = embed_parameters(loan, 4096)  # <ab ab> and <ab abc bc>
    assert sorted(vector[vector > 0] ** 2) == pytest.approx([1 / 7, 1 / 7, 1 / 7, 4 / 7])


def test_tool_graph_edges_are_cosines_above_tau():
    graph = tool_graph(APIS, 0.55)
    assert list(graph) == [*range(60)]
    for i, j in itertools.combinations(range(60), 2):
        cosine = float(embed_parameters(APIS[i]) @ embed_parameters(APIS[j]))
        assert graph.has_edge(i, j) == (cosine > 0.55)
        if cosine > 0.55:
            assert graph[i][j]["weight"] == pytest.approx(cosine)
    assert len(find_domains(APIS, 1.0)) == 60  # without edges every tool is its own domain


# ---------------------------------------------------------------------------------------------
# tasks


def test_gold_calls_reproduce_the_gold_state():
    for task in TASKS + READING:
        results, final_hash = task.run(task.calls)
        assert final_hash == task.final_hash and all(worked for worked, _ in results)
        assert task.writes == (task.run([])[1] != final_hash)
    assert 80 < sum(task.writes for task in TASKS) < 120 and not any(t.writes for t in READING)
    assert len({t.request for t in TASKS}) > 110 and len({len(t.calls) for t in TASKS}) >= 5
    assert sum(task.calls[-1].name.startswith("remove") for task in TASKS) < 40  # various endings


def test_each_step_uses_the_previous_result():
    for task in TASKS + READING:
        shown = [json.loads(text) for _, text in task.run(task.calls)[0]]
        assert 2 <= len(task.calls) <= 8
        assert len({call.name for call in task.calls}) == len(task.calls)
        for i, call in enumerate(task.calls[1:]):
            keys = task.domain.apis[call.name].keys
            assert any(shown[i].get(key) == call.arguments[key] for key in keys)


def test_walk_ends_at_its_limit_or_without_a_next_tool():
    for n, seed in itertools.product((2, 5, 8), range(5)):
        assert len(sample_task(LIBRARY, seed, max_steps=n, min_steps=n).calls) == n
    pair = Domain([LIBRARY.apis["get_book"], LIBRARY.apis["get_loan"]])
    for seed in range(5):
        names = [call.name for call in sample_task(pair, seed, max_steps=8).calls]
        assert names == ["get_loan", "get_book"]  # a book's fields feed no other tool here


def solve_from_text(task):
    """Return the calls derived only from the request and the tool results."""
    tools = {(OPS[a.op].said, a.table): a.name for a in task.domain.apis.values()}
    calls, shown = [], []
    with closing(task.domain.open(task.seed)) as db:
        for step in re.fullmatch("Please (.*)[.]", task.request)[1].split("; then "):
            verb, table, said = re.fullmatch(r"(.+) (\w+) with (.+)", step).groups()
            arguments = {}
            for part in said.split(", "):
                name, step_of, value = re.fullmatch(r"(.+?) (?:of step (\d+)|(\S+))", part).groups()
                name = name.replace(" ", "_")
                arguments[name] = shown[int(step_of) - 1][name] if step_of else value
            calls.append(ToolCall(tools[verb, table], arguments))
            worked, text = task.domain.call(db, calls[-1].name, arguments)
            shown.append(json.loads(text))
    return calls


def test_request_determines_the_calls():
    for task in TASKS + READING:
        assert solve_from_text(task) == [*task.calls]


# ---------------------------------------------------------------------------------------------
# trajectories and filters


def test_messages_use_the_common_format():
    for task in TASKS[:20]:
        actions = [parse(m["content"]) for m in play(task) if m["role"] == "assistant"]
        assert tuple(actions[:-1]) == task.calls and isinstance(actions[-1], Answer)
        assert all(set(m) == {"role", "content"} for m in play(task))


def test_sample_has_loss_on_assistant_turns_only():
    messages = play(TASKS[3])
    texts = [m["content"] for m in messages]
    chat = ChatIds(train_tokenizer(texts, 420))
    sample = episode_sample(messages, chat)
    learned = [i for i, loss in zip(sample.ids, sample.loss, strict=True) if loss]
    written = "".join(m["content"] + END for m in messages if m["role"] == "assistant")
    assert chat.tokenizer.decode(learned) == written
    schemas = [api.tool.schema for api in LIBRARY.apis.values()]
    assert "set_book" in chat.tokenizer.decode(chat.prompt("?", tools=schemas))


def test_gold_trajectories_pass():
    pairs = [(task, play(task)) for task in TASKS + READING]
    kept, report = filter_trajectories(iter(pairs))
    assert kept == pairs
    assert report == {"given": 180, "kept": 180, **dict.fromkeys(FILTERS, 0)}


@pytest.mark.parametrize("task", TASKS[::10] + READING[::10])
def test_recovery_from_a_failed_call_passes(task):
    name, arguments = task.calls[0].name, task.calls[0].arguments
    broken = [ToolCall("get_moon", {}), ToolCall(name, {}), ToolCall(name, arguments | {"x": "1"})]
    if task.domain.apis[name].op != "add":  # an add accepts any values
        broken.append(ToolCall(name, dict.fromkeys(arguments, "none")))
    for call in broken:
        messages = play(task, [call, *task.calls])
        assert messages[2]["content"].startswith("Error: ")
        assert rejection(task, messages) == ""


def test_wrong_missing_and_extra_writes_fail_the_state_filter():
    tested = Counter()
    for task in TASKS:
        for i, call in enumerate(task.calls):
            op, column = task.domain.apis[call.name].op, [*call.arguments][-1]
            wrong = ToolCall(call.name, call.arguments | {column: "wrong"})
            for other in [[]] if op == "remove" else [[], [wrong]]:
                calls = [*task.calls[:i], *other, *task.calls[i + 1 :]]
                if op in READS or task.run(calls)[1] == task.final_hash:
                    continue  # the state is unchanged: the written row is removed later
                assert rejection(task, play(task, calls)) == "state"
                tested[op, len(other)] += 1
    assert len(tested) == 5 and min(tested.values()) >= 10
    for task in READING[::10]:
        name = next(n for n, api in task.domain.apis.items() if api.op == "set")
        key, column = task.domain.apis[name].params
        extra = ToolCall(name, {key: "1", column: "wrong"})
        assert rejection(task, play(task, [*task.calls, extra])) == "state"


def test_reordered_reads_fail_the_exact_match():
    for task in READING:
        swapped = play(task, task.calls[::-1])
        assert rejection(task, swapped) == "exact match"
        assert task.run(task.calls[::-1])[1] == task.final_hash


def test_missing_and_extra_reads_fail_the_exact_match():
    task = READING[0]
    for calls in (task.calls[:-1], [*task.calls, task.calls[0]], []):
        assert rejection(task, play(task, calls)) == "exact match"


def test_reads_are_ignored_if_a_task_writes():
    task = next(t for t in TASKS if any(t.domain.apis[c.name].op in READS for c in t.calls))
    writes = [c for c in task.calls if task.domain.apis[c.name].op not in READS]
    assert rejection(task, play(task, writes)) == ""
    read = next(c for c in task.calls if task.domain.apis[c.name].op in READS)
    assert rejection(task, play(task, [read, *task.calls])) == ""


def test_turns_that_do_not_alternate_are_invalid():
    task = TASKS[0]
    good = play(task)
    user, call, seen, *_, last = good
    bad = {
        "nothing": [],
        "no user": good[1:],
        "no answer": good[:-1],
        "only a question": [user],
        "two questions": [user, *good],
        "no observation": [user, call, *good[3:]],
        "observation twice": [user, call, seen, *good[2:]],
        "answer too early": [*good, call, seen],
        "two answers": [*good, last],
        "not a call": [user, {**call, "content": "Hm."}, *good[2:]],
        "answer in the middle": [user, {**call, "content": last["content"]}, *good[2:]],
        "imagined": [user, {**call, "content": f"{call['content']}<tool_response>"}, *good[2:]],
        "a system turn": [{"role": "system", "content": "Help."}, *good],
    }
    for name, messages in bad.items():
        assert rejection(task, messages) == "turns", name


def test_repetition_is_measured_in_n_grams():
    task = next(task for task in TASKS if task.calls[0].name == "get_book")
    first, *rest = task.calls
    call = f"<think>Use get_book.</think>{render_call(first.name, first.arguments)}"
    assert (len(call.split()), NGRAM, MAX_REPEATS) == (6, 8, 3)
    # n equal calls of 6 words, then another call: the 8-gram from a call's start occurs n - 1 times
    verdicts = [rejection(task, play(task, [*[first] * n, *rest])) for n in (1, 4, 5, 9)]
    assert verdicts == ["", "", "repetition", "repetition"]
    others = [ToolCall("get_book", {"book_id": str(i)}) for i in range(1, 9)]
    assert rejection(task, play(task, [*others, *task.calls])) == ""  # like calls, other values


def test_invented_observation_is_invalid():
    messages = play(TASKS[0])
    messages[2] = {"role": "tool", "content": '{"made": "up"}'}
    assert rejection(TASKS[0], messages) == "observation"


def test_report_counts_each_reason():
    task, reading = TASKS[0], READING[0]
    pairs = [
        (task, play(task)),
        (task, []),
        (task, play(task, [])),
        (task, play(task)[:-1]),
        (reading, play(reading, reading.calls[::-1])),
        (reading, play(reading)),
    ]
    kept, report = filter_trajectories(pairs)
    assert kept == [pairs[0], pairs[5]]
    assert report == {
        "given": 6,
        "kept": 2,
        "turns": 2,
        "repetition": 0,
        "observation": 0,
        "state": 1,
        "exact match": 1,
    }


# ---------------------------------------------------------------------------------------------
# pass^k


@pytest.mark.parametrize(
    "n, c, k, expected",
    [
        (5, 3, 1, 3 / 5),
        (5, 3, 2, 3 / 10),
        (5, 3, 3, 1 / 10),
        (5, 3, 4, 0),
        (4, 4, 4, 1),
        (8, 6, 2, 15 / 28),
        (1, 0, 1, 0),
    ],
)
def test_pass_hat_k_on_hand_computed_numbers(n, c, k, expected):
    assert pass_hat_k(n, c, k) == pytest.approx(expected)
    draws = [*itertools.combinations([True] * c + [False] * (n - c), k)]
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_hat_k_is_unbiased():
    p, n = 0.7, 6
    for k in range(1, n + 1):
        chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
        mean = sum(chance * pass_hat_k(n, c, k) for c, chance in enumerate(chances))
        assert mean == pytest.approx(p**k)


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1)])
def test_pass_hat_k_rejects_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_hat_k(n, c, k)


PROGRAM = """
import hashlib
from drlib.demonstrations.agentscaler import *
domains = [Domain(part) for part in find_domains(toy_apis())]
tasks = [sample_task(d, s, ops=o) for d in domains for s in range(5) for o in (tuple(OPS), READS)]
text = repr([(d.name, d.sources) for d in domains] + [(t.final_hash, play(t)) for t in tasks])
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_output_does_not_depend_on_the_hash_seed():
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[1],
        )
        for hash_seed in ("0", "1", "77")
    ]
    found = [process.communicate(timeout=HANG_S)[0] for process in running]
    assert len(found[0]) == 65 and found == [found[0]] * 3
