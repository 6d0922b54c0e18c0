"""Synthesis with a real vLLM server: questions, plans and verdicts, pass rates, triples.

A random model returns junk, which must end in a stated reason and never in a kept question. With
structured outputs it returns well-formed random replies, so that the code after parsing runs too.
The tour's policy, behind a reasoning parser, does real research. Skipped without vLLM.

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
# limits the length of replies and forbids optional blanks in JSON
SHORT = ("--override-generation-config", '{"max_new_tokens": 256}')
SHORT += ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')
TAGGED = {"extra_body": {"skip_special_tokens": False}}  # the tour's tags are special tokens
TOO_LONG = "word " * 6000  # exceeds the models' positions
TASKS = [Task(f"t{i}", f"What is thing {i} called?", "Krone", "search", "w") for i in range(48)]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("models") / "random", "qwen3")


@pytest.fixture(scope="module")
def url(model_folder):
    with serving(*SHORT, model=model_folder, name="random") as url:
        yield url


@pytest.fixture(scope="module")
def tour():
    with serving("--reasoning-parser", "qwen3") as url:
        yield url


def replies(url, path, *, model="random", **options):
    options = {"calls": 999, "max_tokens": 100, "pause_s": 0.01} | options
    return Replies(ChatEndpoint(url, model, timeout_s=60), path, **options)


def read_counters(url, *names):
    """Return the sum of vLLM's counters of these names, or of its successful requests."""
    names = [f"vllm:{name}_total" for name in names or ["request_success"]]
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0] in names)


def texts_in(path):
    return [row["text"] for row in read_json_lines(path)] if path.exists() else []


def object_schema(**of):
    """Return the schema of a JSON object with exactly these keys."""
    return {"type": "object", "properties": of, "required": [*of], "additionalProperties": False}


def json_options(schema, **options):
    """Return options that constrain a model to a schema."""
    named = {"name": "reply", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}} | options


def choice_options(*choices, **options):
    """Return options that constrain a model to one of these texts, with a vLLM-only feature."""
    return {"extra_body": {"structured_outputs": {"choice": choices}}} | options


def test_craft_rejects_junk_and_counts_as_vllm(url, tmp_path, capsys):
    out = tmp_path / "made"
    command = ["--world", "tour", "-n", "8", "--url", url, "--model", "random", "--out", str(out)]
    before = read_counters(url)
    tokens = read_counters(url, "prompt_tokens", "generation_tokens")
    assert craft_command.main(command) == 1
    err = capsys.readouterr().err
    assert err == "drlib craft: no question was kept: {'it cannot be read': 8}\n"
    rows = read_json_lines(out / "replies.jsonl")
    assert len(rows) == read_counters(url) - before == sum(row["calls"] for row in rows) == 8
    used = read_counters(url, "prompt_tokens", "generation_tokens") - tokens
    assert sum(row["tokens"] for row in rows) == used > 0
    questions = read_json_lines(out / "questions.jsonl")
    assert sorted(one["style"] for one in questions) == sorted([*WISHES] * 2)
    assert all(one["reason"] and one["detail"] for one in questions)
    assert craft_command.main(command) == 1 and read_counters(url) - before == 8


def test_well_formed_questions_are_executed_and_reread(url, tmp_path):
    """Kept questions follow from a statement and were confirmed by the reader."""
    three = {"type": "integer", "minimum": 1, "maximum": 3}
    question_schema = object_schema(
        question={"enum": ["Who is the captain of the Ottermaid?", "Is Ottermaid a tin whistle?"]},
        answer={"enum": ["Silvan Pookley", "tin whistle"]},
        statements={"type": "array", "items": three, "minItems": 2, "maxItems": 4},
        expression={"enum": ["1871 - 1839", "2 ** 9"]},
    )
    wishes = [("Ottermaid", style) for style in WISHES]
    found = []
    reader_texts = []
    for seed in range(12):
        sampling = {"temperature": 1.0, "seed": seed}
        writer = replies(
            url,
            tmp_path / f"w{seed}",
            max_tokens=300,
            options=json_options(question_schema, **sampling),
        )
        choice = choice_options("Silvan Pookley", "UNKNOWN", **sampling)
        reader = replies(url, tmp_path / f"r{seed}", options=choice)
        found += craft(make_memory(), wishes, writer, reader, seed)
        reader_texts += texts_in(tmp_path / f"r{seed}")
    reasons = {one.reason for one in found}
    assert len(reasons) >= 5 and "it cannot be read" not in reasons
    judged = [one for one in found if one.reason in ("", "asked before") or "reader" in one.reason]
    assert len(reader_texts) == len(judged) and {*reader_texts} == {"Silvan Pookley", "UNKNOWN"}
    kept = [one for one in found if not one.reason]
    assert {(one.answer, one.detail) for one in kept} == {("Silvan Pookley",) * 2}
    assert all(any("Silvan Pookley" in known.text for known in one.known) for one in kept)


def test_invalid_plans_and_unsure_verdicts_are_not_kept(url, tmp_path):
    teacher = ModelTeacher(replies(url, tmp_path / "junk"))
    rows = [*teacher.plans(TASK, KNOWN, [], 3), teacher.reasoning(TASK, KNOWN, [])]
    assert len(rows) == 4 and {row.judge for row in rows} == {"it cannot be read"}
    word = {"enum": ["Ottermaid", "captain", "whistle"]}
    query = {"type": "array", "items": word, "minItems": 1, "maxItems": 3}
    step = object_schema(
        thought=word, tool={"const": "search"}, arguments=object_schema(query=query)
    )
    writer = replies(url, tmp_path / "w", options=json_options(step, temperature=1.0))
    outcomes = {
        "yes": "kept",
        "no: a guess": "the judge: no: a guess",
        "hm": "not judged: no verdict",
    }
    for verdict, end in outcomes.items():
        judge = replies(url, tmp_path / verdict[:2], options=choice_options(verdict))
        rows = ModelTeacher(writer, judge).plans(TASK, KNOWN, [], 5)
        assert len(rows) > 1 and {row.judge for row in rows} == {end}


def test_overlong_prompt_fails_alone(url, tmp_path):
    long = [Task(f"l{i}", f"{i} {TOO_LONG}", "Krone", "search", "w") for i in range(MAX_FAILED + 2)]
    client = replies(url, tmp_path / "r", workers=1)
    assert measure_pass_rates([*long, TASKS[0]], make_closed_book_solver(client), 1) == [
        None
    ] * len(long) + [0.0]
    *refused, last = read_json_lines(tmp_path / "r")
    assert all(row["failed"].startswith("HTTP 400") for row in refused) and not last["failed"]
    assert {(row["calls"], row["tokens"]) for row in refused} == {(1, 0)}
    assert client.spent_tokens == last["tokens"] > 0


def test_tour_policy_is_rated_with_and_without_tools(tour, tmp_path):
    world = load_world("tour")
    tasks = chain_questions(world, 24, "vllm")
    engine = ApiEngine(ChatEndpoint(tour, "tour", timeout_s=60), pause_s=0.01, options=TAGGED)
    limits = Limits(calls=6, turn_tokens=72, context_tokens=None)
    agent = ReAct(engine, Toolbox(world, results=2), limits=limits)
    client = replies(tour, tmp_path / "r.jsonl", model="tour", max_tokens=72, options=TAGGED)
    solvers = {
        "closed_book": make_closed_book_solver(client),
        "with_tools": make_agent_solver(agent),
    }
    found = rate_tasks(tasks, 2, folder=tmp_path, **solvers)
    kept, counts = filter_by_gates(found)
    assert {one.closed_book for one in found} | {one.with_tools for one in kept} <= {0.0, 0.5, 1.0}
    assert 6 <= len(kept) < len(tasks) == sum(counts.values())  # 16 of 24 on a CPU
    before = read_counters(tour)
    assert (
        rate_tasks(tasks, 2, folder=tmp_path, **solvers) == found and read_counters(tour) == before
    )
    # a question that exceeds the policy's positions ends only its own rollout
    long = Task("long", TOO_LONG, "Krone", "search", world.version)
    ends = [one.termination for one in agent.run([long, *kept], temperature=0.0)]
    assert ends[0] == "length" and "answered" in ends[1:]


def test_unclosed_thought_gives_an_empty_reply(tour, tmp_path):
    """The reasoning parser then gives no content, and retries would not change that."""
    client = replies(tour, tmp_path / "r", model="tour", max_tokens=3, workers=1, options=TAGGED)
    number = MAX_FAILED + 2
    before = read_counters(tour)
    assert measure_pass_rates(TASKS[:number], make_closed_book_solver(client), 1) == [0.0] * number
    rows = [(row["text"], row["failed"], row["calls"]) for row in read_json_lines(tmp_path / "r")]
    assert rows == [("", "", 1)] * number and read_counters(tour) - before == number


def test_unquoted_extractions_are_not_facts(url, tmp_path, monkeypatch):
    for number in range(16):
        text = f"Ada Lovelace wrote the first program. This is copy {number} for Charles Babbage."
        (tmp_path / f"{number}.txt").write_text(text)
    options = {"endpoint": url, "model": "random"}
    world = load_world(f"folder:{tmp_path}", **options)
    assert world.find("1.txt") and world.changes.skipped == {} and not world.find("Ada Lovelace")
    assert +world.extraction == {"junk": 16}
    who = {"enum": ["Ada Lovelace", "Charles Babbage"]}
    what = {"enum": ["first program", "Ada Lovelace"]}  # who is her own work is malformed
    quote = {"enum": ["Ada Lovelace wrote the first program", "Ada Lovelace wrote it all"]}
    row = object_schema(subject=who, relation={"const": "work"}, object=what, evidence=quote)
    rows = {"type": "array", "items": row, "minItems": 2, "maxItems": 2}
    ask = ChatEndpoint.ask

    def list_two(self, messages, **options):
        number = int(messages[-1]["content"].split()[9])  # the copy's, so that no run is another
        held_options = json_options(rows, temperature=1.0, seed=number)
        return ask(self, messages, **options | held_options)

    monkeypatch.setattr(ChatEndpoint, "ask", list_two)
    world = load_world(f"folder:{tmp_path}", **options)
    assert world.extraction.total() == 16 * 2
    assert {*+world.extraction} == {"kept", "not quoted", "malformed"}
    facts = [fact for fact in world.graph.facts if fact[1] == "work"]
    assert facts == [("Ada Lovelace", "work", "first program")]


def test_replies_survive_a_killed_server(model_folder, url, tmp_path, monkeypatch, capsys):
    path = tmp_path / "r.jsonl"
    options = {"workers": 4, "options": {"temperature": 0}}
    with ExitStack() as running, ThreadPoolExecutor(1) as pool:
        dying = running.enter_context(serving(*SHORT, model=model_folder, name="random"))
        rating = pool.submit(
            measure_pass_rates, TASKS, make_closed_book_solver(replies(dying, path, **options)), 1
        )
        while not rating.done() and len(texts_in(path)) < 6:
            time.sleep(0.01)
        running.close()
        rates = rating.result()
    rows = read_json_lines(path)
    kept = sum(not row["failed"] for row in rows)
    assert 6 <= kept == rates.count(0.0) < 48 == kept + rates.count(None)
    assert 0 < len(rows) - kept < MAX_FAILED + 4  # then no further requests are sent
    before = read_counters(url)
    assert (
        measure_pass_rates(TASKS, make_closed_book_solver(replies(url, path, **options)), 1)
        == [0.0] * 48
    )
    assert read_counters(url) - before == 48 - kept and read_json_lines(path)[: len(rows)] == rows
    monkeypatch.setattr("drlib.questions.replies.LONGEST_PAUSE_S", 0.01)
    command = ["--world", "tour", "-n", "4", "--url", dying, "--model", "random"]
    assert craft_command.main([*command, "--out", str(tmp_path / "made")]) == 1
    err = capsys.readouterr().err
    assert "no question was kept: {'ConnectError" in err and err.count("\n") == 1
