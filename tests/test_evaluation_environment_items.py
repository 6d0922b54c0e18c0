"""`drlib evaluate tasks`: tasks of environments, verified by execution, with a scripted server.

Run: python -m pytest tests/test_evaluation_environment_items.py
"""

import json

import pytest

from drlib.chat.tool_calls import render_answer, render_call
from drlib.cli import main
from drlib.environments import load_environment
from drlib.evaluation.environment_items import draw_items
from drlib.rewards.judges import Verdict
from tests.scripted_server import Scripted
from tests.test_environments_harbor import write


def solve_some(messages):
    """Create the file if the task asks for it, else answer at once."""
    if len(messages) == 2 and "Make the file" in messages[-1]["content"]:
        return render_call("shell", {"command": "touch out"})
    return render_answer("done")


def evaluate(server, names, out, *more):
    command = ["evaluate", "tasks", names, "--out", str(out), "--calls", "3"]
    return main([*command, "--endpoint", server.url, "--model", "scripted", *more])


def read_report(out):
    return json.loads((out / "report.json").read_text())


def test_folders_of_harbor_are_run_and_verified(tmp_path, capsys):
    folder, out = tmp_path / "tasks", tmp_path / "out"
    write(folder, "solved")
    write(folder, "missed", **{"instruction.md": "Write a file.\n"})
    with Scripted(solve_some) as server:
        server.keep = True
        assert evaluate(server, f"harbor:{folder}", out) == 0
        assert '"shell"' in server.bodies[0]["messages"][0]["content"]
        assert server.asked == 3
        assert evaluate(server, f"harbor:{folder}", out) == 0 and server.asked == 3
    report = read_report(out)
    assert report["judge"] == "verified" and report["measures"]["accuracy"][0] == 0.5
    verdicts = {row["question"]: row["verdicts"] for row in report["rows"]}
    assert verdicts == {"solved": [Verdict.CORRECT], "missed": [Verdict.INCORRECT]}
    assert "| 2 x 1 |" in capsys.readouterr().out


def test_answers_to_protected_tasks_are_encrypted(tmp_path):
    folder, out = tmp_path / "tasks", tmp_path / "out"
    write(folder, "secret", **{"instruction.md": "Make the file out.\nBENCHMARK DATA canary 17\n"})
    with Scripted(solve_some) as server:
        assert evaluate(server, f"harbor:{folder}", out) == 0
    assert read_report(out)["measures"]["accuracy"][0] == 1
    for path in out.iterdir():
        assert b"Make the file" not in path.read_bytes()
        assert b"touch" not in path.read_bytes()


def test_held_out_tasks_of_environments_in_rounds(tmp_path):
    """A scripted model that answers at once changes no database and creates no file."""
    out = tmp_path / "out"
    with Scripted(lambda messages: render_answer("done")) as server:
        options = ("-n", "2", "-k", "2", "--temperature", "1")
        assert evaluate(server, "database:easy+terminal:easy", out, *options) == 0
        assert server.asked == 8
        assert evaluate(server, "database:easy", out, *options) == 1  # another run's folder
    rows = [json.loads(line) for line in (out / "round2.jsonl").read_text().splitlines()]
    assert {row["verified"] for row in rows} == {0.0}
    names = {task.id for task in load_environment("terminal:easy").tasks(2, 0, "test")}
    assert names < {row["task_id"] for row in rows} and len(rows) == 4


def test_a_broken_environment_is_no_wrong_answer(tmp_path, capsys):
    folder, out = tmp_path / "tasks", tmp_path / "out"
    write(folder, "broken", **{"tests/test.sh": "#!/bin/bash\ntrue\n"})
    write(folder, "solved")
    with Scripted(solve_some) as server:
        assert evaluate(server, f"harbor:{folder}", out) == 0
    measures = read_report(out)["measures"]
    assert measures["verdicts"]["judge_error"] == 1 and measures["accuracy"][0] == 1
    assert "writes no reward" in capsys.readouterr().err


def test_rows_without_a_score_are_not_judged(tmp_path):
    with pytest.raises(ValueError, match="name an environment"):
        draw_items("", 1, 0)
    with pytest.raises(ValueError, match="at least 1"):
        draw_items("terminal:easy", 0, 0)
    assert main(["evaluate", "tasks", "termnal", "--out", str(tmp_path / "out")]) == 1


@pytest.mark.parametrize("option", ["--native-tools", "--constrained"])
def test_options_that_fix_the_tools_are_refused(tmp_path, option, capsys):
    with Scripted(solve_some) as server:
        assert evaluate(server, "terminal:easy", tmp_path / "out", "-n", "1", option) == 1
        assert server.asked == 0
    assert option in capsys.readouterr().err
