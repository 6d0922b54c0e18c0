"""Real vLLM behind what synthesis asks of language models: questions, plans and verdicts, pass
rates, triples.

A random model says junk, which must end in a named reason and never in a kept question. Held to a
shape (vLLM's structured outputs) it says readable things at random, so that the code behind the
parsing is reached too. The tour's policy, behind a reasoning parser, researches for real. Skipped
where vLLM is not installed.

Run: make test-vllm
"""

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from drlib.agents import Limits, ReAct
from drlib.cli import craft as craft_command
from drlib.demonstrations.model_teacher import ModelTeacher
from drlib.endpoint import ChatEndpoint
from drlib.files import read_json_lines
from drlib.models.api_engine import ApiEngine
from drlib.questions.chains import chain_questions
from drlib.questions.crafting import WISHES, craft
from drlib.questions.escalation import (
    filter_by_gates,
    make_agent_solver,
    make_closed_book_solver,
    measure_pass_rates,
    rate_tasks,
)
from drlib.questions.replies import MAX_FAILED, Replies
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.worlds import load_world
from tests.template_examples import random_model
from tests.test_demonstrations_model_teacher import KNOWN, TASK
from tests.test_questions_crafting import make_memory
from tests.vllm_examples import serving

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")
# no reply is longer, and JSON has no blanks beside those that it must have
SHORT = ("--override-generation-config", '{"max_new_tokens": 256}')
SHORT += ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
TAGGED = {"extra_body": {"skip_special_tokens": False}}  # the tour's tags are special tokens
TOO_LONG = "word " * 6000  # for the models' positions
ASKED = [Task(f"t{i}", f"What is thing {i} called?", "Krone", "search", "w") for i in range(48)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("models") / "random", "qwen3")


@pytest.fixture(scope="module")
def url(place):
    with serving(*SHORT, model=place, name="random") as url:
        yield url


@pytest.fixture(scope="module")
def tour():
    with serving("--reasoning-parser", "qwen3") as url:
        yield url


def replies(url, path, *, model="random", **how):
    how = {"calls": 999, "max_tokens": 100, "pause_s": 0.01} | how
    return Replies(ChatEndpoint(url, model, timeout_s=60), path, **how)


def counted(url, *names):
    """The sum of what vLLM's own counters of these names say; of its answers without one."""
    names = [f"vllm:{name}_total" for name in names or ["request_success"]]
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0] in names)


def said_in(path):
    return [row["text"] for row in read_json_lines(path)] if path.exists() else []


def shaped(**of):
    """A JSON object with exactly these keys."""
    return {"type": "object", "properties": of, "required": [*of], "additionalProperties": False}


def as_json(schema, **options):
    """Options that hold a model to a schema."""
    named = {"name": "reply", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}} | options


def one_of(*said, **options):
    """Options that hold a model to one of these texts, by what only vLLM has."""
    return {"extra_body": {"structured_outputs": {"choice": said}}} | options


def test_drlib_craft_keeps_no_junk_and_counts_as_vllm_does(url, tmp_path, capsys):
    out = tmp_path / "made"
    command = ["--world", "tour", "-n", "8", "--url", url, "--model", "random", "--out", str(out)]
    before = counted(url)
    tokens = counted(url, "prompt_tokens", "generation_tokens")
    assert craft_command.main(command) == 1
    err = capsys.readouterr().err
    assert err == "drlib craft: no question was kept: {'it cannot be read': 8}\n"
    rows = read_json_lines(out / "replies.jsonl")
    assert len(rows) == counted(url) - before == sum(row["calls"] for row in rows) == 8
    used = counted(url, "prompt_tokens", "generation_tokens") - tokens
    assert sum(row["tokens"] for row in rows) == used > 0
    questions = read_json_lines(out / "questions.jsonl")
    assert sorted(one["style"] for one in questions) == sorted([*WISHES] * 2)
    assert all(one["reason"] and one["detail"] for one in questions)
    assert craft_command.main(command) == 1 and counted(url) - before == 8


def test_questions_of_the_right_shape_are_executed_and_read_again(url, tmp_path):
    """Kept questions follow from a statement and were confirmed by the reader."""
    three = {"type": "integer", "minimum": 1, "maximum": 3}
    made = shaped(
        question={"enum": ["Who is the captain of the Ottermaid?", "Is Ottermaid a tin whistle?"]},
        answer={"enum": ["Silvan Pookley", "tin whistle"]},
        statements={"type": "array", "items": three, "minItems": 2, "maxItems": 4},
        expression={"enum": ["1871 - 1839", "2 ** 9"]},
    )
    wishes = [("Ottermaid", style) for style in WISHES]
    found = []
    read = []
    for seed in range(12):
        how = {"temperature": 1.0, "seed": seed}
        writer = replies(url, tmp_path / f"w{seed}", max_tokens=300, options=as_json(made, **how))
        choice = one_of("Silvan Pookley", "UNKNOWN", **how)
        reader = replies(url, tmp_path / f"r{seed}", options=choice)
        found += craft(make_memory(), wishes, writer, reader, seed)
        read += said_in(tmp_path / f"r{seed}")
    reasons = {one.reason for one in found}
    assert len(reasons) >= 5 and "it cannot be read" not in reasons
    judged = [one for one in found if one.reason in ("", "asked before") or "reader" in one.reason]
    assert len(read) == len(judged) and {*read} == {"Silvan Pookley", "UNKNOWN"}
    kept = [one for one in found if not one.reason]
    assert {(one.answer, one.detail) for one in kept} == {("Silvan Pookley",) * 2}
    assert all(any("Silvan Pookley" in known.text for known in one.known) for one in kept)


def test_a_teacher_s_junk_and_an_unsure_judge_keep_no_row(url, tmp_path):
    teacher = ModelTeacher(replies(url, tmp_path / "junk"))
    rows = [*teacher.plans(TASK, KNOWN, [], 3), teacher.reasoning(TASK, KNOWN, [])]
    assert len(rows) == 4 and {row.judge for row in rows} == {"it cannot be read"}
    word = {"enum": ["Ottermaid", "captain", "whistle"]}
    query = {"type": "array", "items": word, "minItems": 1, "maxItems": 3}
    step = shaped(thought=word, tool={"const": "search"}, arguments=shaped(query=query))
    writer = replies(url, tmp_path / "w", options=as_json(step, temperature=1.0))
    ends = {"yes": "kept", "no: a guess": "the judge: no: a guess", "hm": "not judged: no verdict"}
    for verdict, end in ends.items():
        judge = replies(url, tmp_path / verdict[:2], options=one_of(verdict))
        rows = ModelTeacher(writer, judge).plans(TASK, KNOWN, [], 5)
        assert len(rows) > 1 and {row.judge for row in rows} == {end}


def test_a_prompt_that_is_too_long_costs_that_prompt_only(url, tmp_path):
    long = [Task(f"l{i}", f"{i} {TOO_LONG}", "Krone", "search", "w") for i in range(MAX_FAILED + 2)]
    asked = replies(url, tmp_path / "r", workers=1)
    assert measure_pass_rates([*long, ASKED[0]], make_closed_book_solver(asked), 1) == [None] * len(
        long
    ) + [0.0]
    *refused, last = read_json_lines(tmp_path / "r")
    assert all(row["failed"].startswith("HTTP 400") for row in refused) and not last["failed"]
    assert {(row["calls"], row["tokens"]) for row in refused} == {(1, 0)}
    assert asked.spent_tokens == last["tokens"] > 0


def test_the_tour_s_policy_is_rated_with_tools_and_from_memory(tour, tmp_path):
    world = load_world("tour")
    tasks = chain_questions(world, 24, "vllm")
    engine = ApiEngine(ChatEndpoint(tour, "tour", timeout_s=60), pause_s=0.01, options=TAGGED)
    limits = Limits(calls=6, turn_tokens=72, context_tokens=None)
    agent = ReAct(engine, Toolbox(world, results=2), limits=limits)
    asked = replies(tour, tmp_path / "r.jsonl", model="tour", max_tokens=72, options=TAGGED)
    solvers = {
        "closed_book": make_closed_book_solver(asked),
        "with_tools": make_agent_solver(agent),
    }
    found = rate_tasks(tasks, 2, folder=tmp_path, **solvers)
    kept, counts = filter_by_gates(found)
    assert {one.closed_book for one in found} | {one.with_tools for one in kept} <= {0.0, 0.5, 1.0}
    assert 6 <= len(kept) < len(tasks) == sum(counts.values())  # 16 of 24 on a CPU
    before = counted(tour)
    assert rate_tasks(tasks, 2, folder=tmp_path, **solvers) == found and counted(tour) == before
    # a question that the policy's positions do not hold ends its attempt, and no other
    long = Task("long", TOO_LONG, "Krone", "search", world.version)
    ends = [one.termination for one in agent.run([long, *kept], temperature=0.0)]
    assert ends[0] == "length" and "answered" in ends[1:]


def test_a_thought_without_an_end_is_a_reply_of_nothing(tour, tmp_path):
    """The reasoning parser gives no content then; more tries would end no other way."""
    asked = replies(tour, tmp_path / "r", model="tour", max_tokens=3, workers=1, options=TAGGED)
    number = MAX_FAILED + 2
    before = counted(tour)
    assert measure_pass_rates(ASKED[:number], make_closed_book_solver(asked), 1) == [0.0] * number
    rows = [(row["text"], row["failed"], row["calls"]) for row in read_json_lines(tmp_path / "r")]
    assert rows == [("", "", 1)] * number and counted(tour) - before == number


def test_nothing_unquoted_becomes_a_fact(url, tmp_path, monkeypatch):
    for number in range(16):
        text = f"Ada Lovelace wrote the first program. This is copy {number} for Charles Babbage."
        (tmp_path / f"{number}.txt").write_text(text)
    how = {"endpoint": url, "model": "random"}
    world = load_world(f"folder:{tmp_path}", **how)
    assert world.find("1.txt") and world.changes.skipped == {} and not world.find("Ada Lovelace")
    assert +world.extraction == {"junk": 16}
    who = {"enum": ["Ada Lovelace", "Charles Babbage"]}
    what = {"enum": ["first program", "Ada Lovelace"]}  # who is her own work is malformed
    quote = {"enum": ["Ada Lovelace wrote the first program", "Ada Lovelace wrote it all"]}
    row = shaped(subject=who, relation={"const": "work"}, object=what, evidence=quote)
    rows = {"type": "array", "items": row, "minItems": 2, "maxItems": 2}
    ask = ChatEndpoint.ask

    def list_two(self, messages, **options):
        number = int(messages[-1]["content"].split()[9])  # the copy's, so that no run is another
        held = as_json(rows, temperature=1.0, seed=number)
        return ask(self, messages, **options | held)

    monkeypatch.setattr(ChatEndpoint, "ask", list_two)
    world = load_world(f"folder:{tmp_path}", **how)
    assert world.extraction.total() == 16 * 2
    assert {*+world.extraction} == {"kept", "not quoted", "malformed"}
    facts = [fact for fact in world.graph.facts if fact[1] == "work"]
    assert facts == [("Ada Lovelace", "work", "first program")]


def test_a_killed_server_s_replies_stay(place, url, tmp_path, monkeypatch, capsys):
    path = tmp_path / "r.jsonl"
    how = {"workers": 4, "options": {"temperature": 0}}
    with ExitStack() as running, ThreadPoolExecutor(1) as pool:
        dying = running.enter_context(serving(*SHORT, model=place, name="random"))
        rating = pool.submit(
            measure_pass_rates, ASKED, make_closed_book_solver(replies(dying, path, **how)), 1
        )
        while not rating.done() and len(said_in(path)) < 6:
            time.sleep(0.01)
        running.close()
        rates = rating.result()
    rows = read_json_lines(path)
    kept = sum(not row["failed"] for row in rows)
    assert 6 <= kept == rates.count(0.0) < 48 == kept + rates.count(None)
    assert 0 < len(rows) - kept < MAX_FAILED + 4  # then nobody is asked any more
    before = counted(url)
    assert (
        measure_pass_rates(ASKED, make_closed_book_solver(replies(url, path, **how)), 1)
        == [0.0] * 48
    )
    assert counted(url) - before == 48 - kept and read_json_lines(path)[: len(rows)] == rows
    monkeypatch.setattr("drlib.questions.replies.LONGEST_PAUSE_S", 0.01)
    command = ["--world", "tour", "-n", "4", "--url", dying, "--model", "random"]
    assert craft_command.main([*command, "--out", str(tmp_path / "made")]) == 1
    err = capsys.readouterr().err
    assert "no question was kept: {'ConnectError" in err and err.count("\n") == 1
