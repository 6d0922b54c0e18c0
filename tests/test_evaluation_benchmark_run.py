"""`drlib evaluate BENCHMARK`: an agent's answers to a benchmark, with kills, faults and a budget.

The kill test at the size of docs/evaluation.md: KILLED_QUESTIONS=1000 KILLS=5 (five minutes). Run:
python -m pytest tests/test_evaluation_benchmark_run.py
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from drlib.agents import Limits, ReAct
from drlib.app.research import AskOptions
from drlib.chat.tool_calls import render_answer, render_call
from drlib.cli import main
from drlib.config import Config
from drlib.endpoint import ChatEndpoint
from drlib.evaluation.answer_files import read_answers
from drlib.evaluation.benchmark_run import BenchmarkRun, describe, estimate
from drlib.evaluation.benchmarks import BenchmarkItem, load_benchmark
from drlib.evaluation.evaluate import held_out
from drlib.evaluation.sealing import seal_row, unseal_row
from drlib.files import read_json_lines, write_json_lines
from drlib.models.api_engine import ApiEngine
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training.data import load_training_world
from drlib.trajectory import Termination
from tests.scripted_server import Scripted
from tests.test_evaluation_benchmarks import FIXTURES, hotpot, whole
from tests.test_evaluation_protected import assert_no_texts_below
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = int(os.environ.get("KILLED_QUESTIONS", "40"))
KILLS = int(os.environ.get("KILLS", "2"))
IN_FLIGHT = 16


def number_of(messages):
    question = next(m["content"] for m in messages if m["role"] == "user")
    return int(question.split("number ")[1].split()[0].rstrip("?"))


def search_then_answer(messages):
    """Search once, then answer; every third answer is wrong."""
    number = number_of(messages)
    if not any(m["role"] == "tool" or "<tool_response>" in m["content"] for m in messages[2:]):
        return render_call("search", {"query": [f"number {number}"]})
    return render_answer("wrong" if number % 3 == 0 else f"value {number}")


def write_questions(folder, count):
    rows = [
        {"id": f"q{n}", "question": f"What is number {n}?", "answer": f"value {n}"}
        for n in range(count)
    ]
    return write_json_lines(folder / "questions.jsonl", rows)


def write_notes(folder):
    notes = folder / "notes"
    notes.mkdir()
    for n in range(3):
        (notes / f"page {n}.md").write_text(f"# page {n}\n\nThe number {n} is odd.\n")
    return f"folder:{notes}"


def options(server, questions, out, *more):
    endpoint = ("--endpoint", server.url, "--model", "scripted")
    return ["generic", "--source", str(questions), "--out", str(out), *endpoint, *more]


def rows_of(out, number=1):
    return {row["task_id"]: row for row in read_json_lines(out / f"round{number}.jsonl")}


def test_killed_run_equals_an_uninterrupted_one(tmp_path):
    """Three rounds of questions from a server with faults, killed at random times."""
    count, rounds = QUESTIONS, 3
    questions, world = write_questions(tmp_path, count), write_notes(tmp_path)
    more = ("--world", world, "-k", str(rounds), "--temperature", "1", "--seconds", "60")
    draws = random.Random(0)
    faults = {n: draws.choice(("429", "500", "cut")) for n in range(9, 20 * count, 40)}
    reports = {}
    for name, kills in (("whole", 0), ("killed", KILLS)):
        out = tmp_path / name
        with Scripted(search_then_answer, faults.get) as server:
            server.keep = True
            line = [sys.executable, "-m", "drlib.cli", "evaluate"]
            line += options(server, questions, out, *more)
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            stops = sorted(draws.sample(range(20, count * rounds - 20), kills))
            for stop in stops:
                kill_after(stop, out, line, environment)
                assert finished(out) < count * rounds
            done = subprocess.run(line, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert f"| questions x rounds | {count} x 3 |" in done.stdout
            asked = Counter(len(body["messages"]) > 2 for body in server.bodies)
            bad = sum(n for fault, n in server.made.items() if fault)
        # two calls an answer; a kill repeats at most the 16 questions in flight
        assert sum(asked.values()) <= 2 * count * rounds + bad + kills * IN_FLIGHT * 2
        assert sum(asked.values()) >= 2 * count * rounds
        reports[name] = json.loads((out / "report.json").read_text())
        for number in range(1, rounds + 1):
            rows = rows_of(out, number)
            assert len(rows) == count
            assert all(row["usage"]["turns"] == 2 for row in rows.values())
    whole, killed = (reports[name] for name in ("whole", "killed"))
    accuracy = whole["measures"]["accuracy"]
    assert killed["measures"]["accuracy"] == accuracy, "also the interval"
    wrong = len(range(0, count, 3))
    assert accuracy[0] == pytest.approx(1 - wrong / count)
    assert killed["rows"] == whole["rows"]
    assert [row["question"] for row in whole["rows"]] == [f"q{n}" for n in range(count)]
    kept = ("prediction", "termination", "messages")
    for number in range(1, rounds + 1):
        left, right = rows_of(tmp_path / "whole", number), rows_of(tmp_path / "killed", number)
        assert left.keys() == right.keys()
        assert all(left[q][name] == right[q][name] for q in left for name in kept)


def kill_after(stop, out, line, environment):
    """Start the command and kill it once the folder has `stop` answers."""
    child = subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: finished(out) >= stop or child.poll() is not None)
    child.send_signal(signal.SIGKILL)
    child.wait()


def finished(out):
    return sum(path.read_bytes().count(b"\n") for path in out.glob("round*.jsonl"))


def evaluate(server, questions, out, *more):
    return main(["evaluate", *options(server, questions, out, *more)])


def test_documents_of_the_questions_become_the_world(tmp_path, capsys):
    """An agent that answers half of the questions; the pages are found, nothing is asked twice."""
    source, out = hotpot(tmp_path, 8), tmp_path / "out"
    seen = []

    def say(messages):
        if len(messages) <= 2:
            return render_call("search", {"query": ["river flows"]})
        seen.append(messages[-1]["content"])
        question = next(m["content"] for m in messages if m["role"] == "user")
        number = int(question.split("Number ")[1].split("?")[0])
        return render_answer(str(number) if number % 2 else "none")

    with Scripted(say) as server:
        command = ["evaluate", "hotpotqa", "--source", str(source), "--out", str(out)]
        command += ["--endpoint", server.url, "--model", "scripted"]
        assert main(command) == 0
        assert "| 8 x 1 |" in capsys.readouterr().out
        assert all("It flows." in text for text in seen) and len(seen) == 8
        assert main(command) == 0 and server.asked == 16
        assert main([*command, "--world", "none", "--temperature", "1"]) == 1
        assert "options differ" in capsys.readouterr().err
        assert server.asked == 16
    report = json.loads((out / "report.json").read_text())
    assert report["judge"] == "squad" and report["measures"]["accuracy"][0] == 0.5


def test_a_later_round_keeps_the_earlier_ones(tmp_path, capsys):
    questions, out = write_questions(tmp_path, 3), tmp_path / "out"
    more = ("--world", "none", "--temperature", "1")
    with Scripted(lambda m: render_answer(f"value {number_of(m)}")) as server:
        assert evaluate(server, questions, out, *more, "-n", "2") == 0 and server.asked == 2
        assert evaluate(server, questions, out, *more, "-k", "2") == 0 and server.asked == 6
        server.keep = True
        assert evaluate(server, questions, out, *more, "-k", "3") == 0 and server.asked == 9
    assert "| 3 x 3 |" in capsys.readouterr().out
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert all('"python"' in prompt and '"search"' not in prompt for prompt in prompts)


def test_rounds_have_other_seeds(tmp_path):
    questions, out = write_questions(tmp_path, 4), tmp_path / "out"
    more = ("--world", "none", "--temperature", "1", "-k", "2")
    with Scripted(lambda m: render_answer("x")) as server:
        server.keep = True
        assert evaluate(server, questions, out, *more) == 0
    assert len({body["seed"] for body in server.bodies}) == 8


def test_budget_stops_before_the_next_questions(tmp_path, capsys):
    """Each answer costs 1: 16 questions may start for a budget of 10, and none after them."""
    questions, out = write_questions(tmp_path, 40), tmp_path / "out"
    more = ("--world", "none", "--prices", "0", "1e6", "--budget")

    def priced(body):
        message = {
            "role": "assistant",
            "content": render_answer(f"value {number_of(body['messages'])}"),
        }
        usage = {"prompt_tokens": 100, "completion_tokens": 1}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

    with Scripted(None) as server:
        server.whole = priced
        assert evaluate(server, questions, out, *more, "10") == 1
        assert server.asked == 16 and "budget of 10.0 is spent (16.00)" in capsys.readouterr().err
        assert evaluate(server, questions, out, *more, "16") == 1 and server.asked == 16
        assert evaluate(server, questions, out, *more, "17") == 1 and server.asked == 32
        capsys.readouterr()
        assert evaluate(server, questions, out, *more, "17", "--dry-run") == 0
        shown = capsys.readouterr().out
        assert "as the 32 finished answers" in shown
        assert "| answers | 8 |" in shown and "| tokens of prompts | 800 |" in shown
        assert "| cost | 8.00 |" in shown and server.asked == 32
        assert evaluate(server, questions, out, *more, "99") == 0 and server.asked == 40
    assert evaluate(server, questions, out, "--world", "none", "--budget", "3") == 1
    assert "--budget needs --prices" in capsys.readouterr().err


def test_dry_run_writes_and_asks_nothing(tmp_path, capsys):
    questions, out = write_questions(tmp_path, 5), tmp_path / "out"
    with Scripted(None) as server:
        limits = ("--calls", "2", "--turn-tokens", "10", "--context-tokens", "100")
        more = ("--world", "none", "-k", "2", "--temperature", "1", "--prices", "1e4", "1e6")
        assert evaluate(server, questions, out, *more, *limits, "--dry-run") == 0
        assert server.asked == 0 and not out.exists()
    shown = capsys.readouterr().out
    # 10 answers of at most 2 calls, an answer and a forced answer
    assert "| answers | 10 |" in shown and "| turns | 40 |" in shown
    assert "| tokens of prompts | 4,000 |" in shown and "| tokens of replies | 400 |" in shown
    assert "| cost | 440.00 |" in shown  # 4,000 at 0.01 and 400 at 1


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ((), "no documents of its own"),
        (("--world", "none", "-k", "2"), "2 rounds at temperature 0"),
        (("--world", "none", "-k", "0"), "rounds=0"),
        (("--world", "none", "-n", "0"), "no questions"),
        (("--world", "none", "--judge", "llm"), "--judge-endpoint"),
        (("--world", "none", "--judge", "unknown"), "unknown"),
    ],
)
def test_options_that_do_not_fit_ask_nothing(more, cause, tmp_path, capsys):
    questions, out = write_questions(tmp_path, 2), tmp_path / "out"
    with Scripted(None) as server:
        assert evaluate(server, questions, out, *more) == 1
        assert cause in capsys.readouterr().err and server.asked == 0
    assert not list(out.glob("round*"))


def test_a_failed_run_is_no_wrong_answer(tmp_path, capsys):
    """A server that refuses one question: excluded and counted, and asked again the next time."""
    questions, out = write_questions(tmp_path, 4), tmp_path / "out"
    broken = [True]

    def whole_reply(body):
        if number_of(body["messages"]) == 2 and broken:
            return 500, {"error": {"message": "not now"}}
        return None

    with Scripted(lambda m: render_answer(f"value {number_of(m)}")) as server:
        server.whole = whole_reply
        assert evaluate(server, questions, out, "--world", "none") == 0
        captured = capsys.readouterr()
        assert "3 correct, 0 incorrect, 0 not_attempted, 1 judge_error" in captured.out
        assert "HTTP 500" in captured.err or "500" in captured.err
        asked = server.asked
        broken.clear()
        assert evaluate(server, questions, out, "--world", "none") == 0
        assert server.asked == asked + 1
    assert "4 correct" in capsys.readouterr().out


def test_attachments_are_read_by_the_agent(tmp_path, capsys):
    row = FIXTURES["gaia"][2]
    row = row | {"file_name": "table.csv"}
    source = whole(tmp_path / "metadata.json", [row])
    (tmp_path / "table.csv").write_text("town,people\nLund,91940\n")
    seen = []

    def say(messages):
        if len(messages) <= 2:
            seen.append(messages[-1]["content"])
            return render_call("parse_file", {"files": ["table.csv", "metadata.json"]})
        seen.append(messages[-1]["content"])
        return render_answer("unknown")

    with Scripted(say) as server:
        command = ["evaluate", "gaia", "--source", str(source), "--out", str(tmp_path / "out")]
        command += ["--endpoint", server.url, "--model", "scripted", "--world", "none"]
        assert main(command) == 0
    assert "table.csv" in seen[0] and "91940" in seen[1]
    assert "Final answer" not in seen[1], "the file of the answers is beside the attachments"


def test_questions_with_an_image_are_left_out(tmp_path, capsys):
    write, file, row, _ = FIXTURES["hle"]
    rows = [row | {"id": "a", "image": ""}, row | {"id": "b", "image": "data:image/png;base64,xx"}]
    source, out = write(tmp_path / file, rows), tmp_path / "out"
    with Scripted(lambda m: render_answer("x")) as server:
        command = [
            "evaluate",
            "hle",
            "--source",
            str(source),
            "--out",
            str(out),
            "--judge",
            "rules",
        ]
        command += ["--endpoint", server.url, "--model", "scripted", "--world", "none"]
        assert main(command) == 0 and server.asked == 1
    assert "1 questions with an image are left out" in capsys.readouterr().err
    assert list(rows_of(out)) == ["a"]


# ---------------------------------------------------------------- protected benchmarks


def test_protected_answers_are_encrypted(tmp_path, capsys):
    """The agent repeats question and answer; no file has them, and the answers are judged."""
    write, file, row, _ = FIXTURES["browsecomp"]
    source, out = write(tmp_path / file, [row]), tmp_path / "out"
    (item,) = load_benchmark("browsecomp", source)

    def say(messages):
        if len(messages) <= 2:
            return render_call("python", {"code": f"print({item.question!r})"})
        return f"<think>{item.question}</think>{render_answer(item.answers[0])}"

    with Scripted(say) as server:
        command = ["evaluate", "browsecomp", "--source", str(source), "--out", str(out)]
        command += ["--endpoint", server.url, "--model", "scripted", "--world", "none"]
        command += ["--judge", "rules", "-k", "2", "--temperature", "1"]
        assert main(command) == 0 and server.asked == 4
        assert main(command) == 0 and server.asked == 4
    captured = capsys.readouterr()
    assert "2 correct" in captured.out
    assert item.question not in captured.out + captured.err
    assert_no_texts_below(tmp_path)
    sealed = rows_of(out)[item.id]
    assert set(sealed) == {"task_id", "termination", "usage", "sealed"}
    (answer,) = read_answers(out / "round1.jsonl", [item])
    assert answer.prediction == item.answers[0]
    with pytest.raises(ValueError, match="encrypted: give the benchmark"):
        read_answers(out / "round1.jsonl")


def test_sealed_rows(tmp_path):
    row = {"task_id": "1", "termination": "answered", "usage": {"turns": 1}, "prediction": "Lund"}
    sealed = seal_row(row, "Which town?")
    assert unseal_row(sealed, "Which town?") == row
    assert "Lund" not in json.dumps(sealed)
    # no stream is used twice: equal rows have different texts
    assert seal_row(row, "Which town?")["sealed"] != sealed["sealed"]
    for other in ("Which town", ""):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            unseal_row(sealed, other)
    for damaged in ("", "A" * 8, sealed["sealed"][:-8], None, 7, "é"):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            unseal_row(sealed | {"sealed": damaged}, "Which town?")


# ---------------------------------------------------------------- the run's own rules


def test_answers_of_another_run_are_refused(tmp_path):
    run = BenchmarkRun([BenchmarkItem("1", "q", ("a",))], tmp_path / "out", 1, "none")
    run.claim({"benchmark": "x", "options": {"model": "a"}, "prices": (1.0, 2.0)})
    run.claim({"benchmark": "x", "options": {"model": "a"}, "prices": (1.0, 2.0)})
    with pytest.raises(ValueError, match="options differ"):
        run.claim({"benchmark": "x", "options": {"model": "b"}, "prices": (1.0, 2.0)})
    (tmp_path / "out" / "run.json").unlink()
    write_json_lines(tmp_path / "out" / "round1.jsonl", [])
    with pytest.raises(ValueError, match="answers without run.json"):
        run.claim({"benchmark": "x"})


def test_tasks_that_are_verified_by_execution_are_refused(tmp_path, capsys):
    source = tmp_path / "swebench.jsonl"
    source.write_text("{}")
    with Scripted(None) as server:
        command = ["evaluate", "swebench", "--source", str(source), "--out", str(tmp_path / "out")]
        assert main([*command, "--endpoint", server.url, "--model", "m", "--world", "none"]) == 1
        assert server.asked == 0
    assert "verified by running" in capsys.readouterr().err


def test_items_without_answers_are_refused(tmp_path):
    items = [BenchmarkItem("1", "q", ("a",)), BenchmarkItem("2", "q", ())]
    with pytest.raises(ValueError, match=r"1 items have no answer .*\['2'\]"):
        BenchmarkRun(items, tmp_path, 1, "none")


def test_what_changes_no_answer_may_change(tmp_path):
    source = write_questions(tmp_path, 2)
    options = AskOptions(endpoint="http://x", model="m", api_key="secret")
    first = describe("generic", source, options)
    for name, value in (("prices", (1.0, 2.0)), ("api_key", "other")):
        assert describe("generic", source, replace(options, **{name: value})) == first
    assert "secret" not in json.dumps(first)
    for name, value in (("temperature", 0.5), ("world", "cldr"), ("model", "n"), ("seconds", 1.0)):
        assert describe("generic", source, replace(options, **{name: value})) != first
    write_questions(tmp_path, 3)
    assert describe("generic", source, options) != first


def test_estimate_without_answers_is_what_the_limits_allow(tmp_path):
    run = BenchmarkRun([BenchmarkItem("1", "q", ("a",))], tmp_path, 2, "none")
    found = estimate(run, calls=3, turn_tokens=50, context_tokens=100)
    expected = {"answers": 2, "measured": 0, "turns": 10, "read_tokens": 1000, "said_tokens": 200}
    assert found == expected


def test_estimate_counts_what_is_missing(tmp_path):
    items = [BenchmarkItem(str(n), "q", ("a",)) for n in range(3)]
    run = BenchmarkRun(items, tmp_path, 2, "none")
    usage = {"turns": 4, "read_tokens": 100, "said_tokens": 10}
    rows = [
        {"task_id": "0", "termination": "answered", "usage": usage},
        {"task_id": "1", "termination": "env_fault", "usage": usage | {"turns": 9}},
        {"task_id": "other", "termination": "answered", "usage": usage | {"turns": 9}},
    ]
    path = write_json_lines(run.files[0], rows)
    path.write_text(path.read_text() + '{"task_id": "2", "term')  # a killed run
    found = estimate(run, calls=1, turn_tokens=1, context_tokens=1)
    assert found == {
        "answers": 5,
        "measured": 1,
        "turns": 20,
        "read_tokens": 500,
        "said_tokens": 50,
    }


def test_waiting_for_the_server_is_not_the_time_of_an_answer(tmp_path):
    """One rollout at a time: the last begins after 5 s, above the limit of 3 s per rollout."""
    tasks = [Task(f"t{n}", f"What is number {n}?", "", "search", "none") for n in range(10)]
    with Scripted(search_then_answer, delay_s=0.25) as server, Toolbox(None) as toolbox:
        engine = ApiEngine(ChatEndpoint(server.url, "scripted"), concurrency=1)
        agent = ReAct(engine, toolbox, limits=Limits(seconds=3.0))
        began = time.monotonic()
        found = agent.run(tasks)
        took = time.monotonic() - began
    assert took >= 10 * 2 * 0.25
    assert {t.termination for t in found} == {Termination.ANSWERED}
    spent = [t.metadata["usage"]["seconds"] for t in found]
    assert all(2 * 0.25 <= each < 3 for each in spent), "the first turn counts, the queue does not"


def test_held_out_questions_become_a_benchmark(tmp_path, capsys):
    """The questions of `drlib evaluate rl`, answered by their own answers: all correct."""
    path, config = tmp_path / "q.jsonl", Config.load("ci", evaluation__questions=6)
    command = ["evaluate", "questions", "--profile", "ci", "--evaluation.questions", "6"]
    assert main([*command, "--out", str(path)]) == 0
    tasks = held_out(load_training_world(config)[0], config)
    items = load_benchmark("generic", path)
    assert len(items) == len(tasks) == 12
    for item, task in zip(items, tasks):
        assert (item.id, item.question) == (task.id, task.question)
        assert item.answers == (task.answer, *task.aliases)
        assert item.meta == {"category": task.category}
    answers = write_json_lines(
        tmp_path / "a.jsonl", [{"id": task.id, "prediction": task.answer} for task in tasks]
    )
    capsys.readouterr()
    scoring = ["evaluate", "answers", str(answers), "--benchmark", "generic"]
    assert main([*scoring, "--source", str(path)]) == 0
    assert "12 correct" in capsys.readouterr().out
    assert main(["evaluate", "questions", "--profile", "none", "--out", str(path)]) == 1
    assert "none" in capsys.readouterr().err
