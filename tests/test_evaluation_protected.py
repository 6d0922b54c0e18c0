"""Texts of protected benchmarks in the files and outputs of real commands, searched byte by byte.

Run: python -m pytest tests/test_evaluation_protected.py
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drlib.cli import main
from drlib.evaluation.benchmarks import load_benchmark
from tests.scripted_server import Scripted
from tests.test_evaluation_benchmarks import ANSWER, FIXTURES, QUESTION, lines
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[1]
PROTECTED = sorted(name for name, fixture in FIXTURES.items() if fixture[3].get("protected"))
PLUGIN = """
from drlib import register

@register.judge("broken")
def broken():
    def judge(question, prediction, golds):
        raise KeyError(f"{question} {golds}")
    return judge
"""


def forms(text):
    """Return forms of a text in a file: plain, escaped in JSON or Python, and its beginning."""
    return {form.encode() for form in (text, json.dumps(text)[1:-1], ascii(text)[1:-1], text[:12])}


def find_texts(content):
    return [form for text in (QUESTION, ANSWER) for form in forms(text) if form in content]


def assert_no_texts_below(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert not find_texts(path.read_bytes()), path
        assert not find_texts(os.fsencode(path)), path


def repeat(messages):
    """Judge a request, and repeat the complete prompt in the reason."""
    return "\n".join(message["content"] for message in messages) + "\nverdict: incorrect"


def hesitate(messages):
    return f"Hm: {messages[-1]['content']}"


def test_the_search_finds_texts(tmp_path):
    for form in (QUESTION.encode(), json.dumps({"a": ANSWER}).encode(), repr([ANSWER]).encode()):
        (tmp_path / "a").write_bytes(b"x" * 100 + form + b"x")
        with pytest.raises(AssertionError):
            assert_no_texts_below(tmp_path)


def test_commands_write_no_texts_of_browsecomp(tmp_path):
    """Own home, working and temporary folders, in which every file is searched afterwards."""
    folders = {name: tmp_path / name for name in ("home", "work", "temporary")}
    for folder in folders.values():
        folder.mkdir()
    write, file, row, _ = FIXTURES["browsecomp"]
    source = write(folders["work"] / file, [row])
    assert load_benchmark("browsecomp", source)[0].question == QUESTION
    answers = lines(folders["work"] / "a.jsonl", [{"id": "row 1", "prediction": "Z"}])
    (folders["work"] / "my_broken.py").write_text(PLUGIN)
    environment = os.environ | {
        "HOME": str(folders["home"]),
        "XDG_CACHE_HOME": str(folders["home"] / "cache"),
        "TMPDIR": str(folders["temporary"]),
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "127.0.0.1,localhost",
    }

    def run(*command):
        done = subprocess.run(
            [sys.executable, "-m", "drlib.cli", "evaluate", *map(str, command)],
            cwd=folders["work"],
            env=environment,
            capture_output=True,
            timeout=HANG_S,
        )
        assert not find_texts(done.stdout + done.stderr), done.stderr
        return done.returncode, (done.stdout + done.stderr).decode()

    score = ("answers", answers, "--benchmark", "browsecomp", "--source", source, "--judge")
    code, shown = run(*score, "rules", "--out", "report.json", "--against", answers)
    assert code == 1 and "only 1 questions" in shown  # the message of the comparison
    code, shown = run(*score, "rules", "--out", "report.json")
    assert code == 0 and "1 x 1" in shown
    with Scripted(repeat) as server:
        options = ("--endpoint", server.url, "--model", "scripted", "--cache", "verdicts.jsonl")
        code, shown = run(*score, "llm", *options, "--out", "model.json")
        assert code == 0 and "1 incorrect" in shown and server.asked == 1
    with Scripted(hesitate) as server:
        options = ("--endpoint", server.url, "--model", "scripted", "--cache", "errors.jsonl")
        code, shown = run(*score, "llm", *options)
        assert code == 1 and "reasons are hidden" in shown
    code, shown = run(*score, "table")
    assert code == 1 and "its message is hidden" in shown
    code, shown = run(*score, "broken", "--plugins", "my_broken")
    assert code == 1 and "the judge failed (KeyError)" in shown
    code, shown = run("pages", "browsecomp", "--source", source, "--out", "pages")
    assert code == 1 and "protected" in shown
    names = {path.name for path in folders["work"].iterdir()}
    assert {"report.json", "model.json", "verdicts.jsonl"} <= names and "pages" not in names
    cached = [json.loads(line) for line in (folders["work"] / "verdicts.jsonl").open()]
    assert [{*row} for row in cached] == [{"key", "verdict"}]
    assert len(cached[0]["key"]) == 64 and int(cached[0]["key"], 16)
    assert_no_texts_below(tmp_path)


@pytest.mark.parametrize("name", PROTECTED)
def test_scores_of_protected_benchmarks_have_no_texts(name, tmp_path, capfd, monkeypatch):
    write, file, row, _ = FIXTURES[name]
    (tmp_path / "source").mkdir()
    (tmp_path / "work").mkdir()
    source = write(tmp_path / "source" / file, [row])
    (item,) = load_benchmark(name, source)
    assert (item.question, item.answers) == (QUESTION, (ANSWER,))
    monkeypatch.chdir(tmp_path / "work")
    lines(Path("a.jsonl"), [{"id": item.id, "prediction": "Z"}])
    command = ["evaluate", "answers", "a.jsonl", "--benchmark", name, "--source", str(source)]
    with Scripted(repeat) as server:
        command += [
            "--judge",
            "llm",
            "--endpoint",
            server.url,
            "--model",
            "scripted",
            "--cache",
            "c",
        ]
        assert main([*command, "--out", "report.json"]) == 0
        assert main([*command, "--out", "again.json"]) == 0 and server.asked == 1  # from the cache
    assert main(["evaluate", "pages", name, "--source", str(source), "--out", "pages"]) == 1
    shown = capfd.readouterr()
    assert not find_texts((shown.out + shown.err).encode())
    assert_no_texts_below(tmp_path / "work")
