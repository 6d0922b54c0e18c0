"""`drlib ask`: an answer with sources, and one line for every failure.

The policy is the tour's, or a scripted one behind a real loopback server.


Run: python -m pytest tests/test_app.py
"""

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from drlib.app import AskOptions, ask
from drlib.app.research import TOUR_POLICY, AskError
from drlib.app.terminal import Trace, strip_controls
from drlib.chat.prompts import SUMMARISE
from drlib.chat.template import load_any_tokenizer
from drlib.chat.tool_calls import render_answer, render_call
from drlib.cli.ask import main
from drlib.tools.toolbox import HIT
from drlib.trajectory import Termination, ToolResult, load_trajectories
from tests.provider_examples import RECORDED, Replay
from tests.scripted_server import Scripted
from tests.template_examples import foreign_model
from tests.waiting import HANG_S

NORWAY = "What is the currency of Norway?"
LOOK = "<think>Look it up.</think>" + render_call("search", {"query": ["Norway"]})


def researcher(messages):
    last = messages[-1]["content"]
    if "<tool_response>" in last:
        return f"<think>There.</think>{render_answer('Norwegian Krone')}"
    return LOOK


def run_ask(capsys, *arguments):
    """Run the command and return (exit status, stdout, stderr)."""
    status = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def server_arguments(server):
    return ("--endpoint", server.url, "--model", server.model)


def test_a_ranking_of_the_world_can_be_chosen(capsys, tmp_path):
    """Only embeddings find the page: no word of the query is on it."""
    (tmp_path / "harbour.md").write_text("Ships and boats lie at the quay.")
    (tmp_path / "bakery.md").write_text("Bread and rolls are sold every morning.")
    queries = []

    def vessels(messages):
        queries.append(messages[-1]["content"])
        look = "<think>x</think>" + render_call("search", {"query": ["vessels"]})
        return look if len(messages) < 3 else f"<think>x</think>{render_answer('quay')}"

    for ranking in ("hybrid", "fts5"):
        with Scripted(vessels) as server:
            options = [*server_arguments(server), "--world", f"folder:{tmp_path}"]
            status, out, _ = run_ask(capsys, "Where?", *options, "--search", ranking)
        assert status == 0
        assert ("harbour.md" in queries[-1]) == (ranking == "hybrid")
    status, _, err = run_ask(capsys, NORWAY, "--world", "tour", "--search", "hybrid")
    assert status == 1 and "does not support engine 'hybrid'" in err


def test_tour_policy_answers_with_source_and_cost(capsys, tmp_path):
    saved = tmp_path / "asked.parquet"
    status, out, err = run_ask(capsys, NORWAY, "--save", saved)
    assert status == 0 and err == ""
    answer = next(line for line in out.splitlines() if line.startswith("Answer"))
    assert answer.split("  ")[1] == "Norwegian Krone"
    assert "search  ['Norway']" in out and "*- Norway  cldr:Norway" in out
    (kept,) = load_trajectories(saved)
    assert kept.answer == "Norwegian Krone" and kept.metadata["question"] == NORWAY
    assert f"{int(kept.generated.sum())} completion tokens" in out


@pytest.mark.parametrize(
    "agent", ["iterresearch", "heavy", "resum", "s3", "agentfold", "browseconf", "parallelmuse"]
)
def test_memory_agents_use_the_memory_policy(capsys, agent):
    sampled = ["--temperature", "0.1"] if agent == "parallelmuse" else []
    status, out, err = run_ask(capsys, NORWAY, "--agent", agent, *sampled)
    assert status == 0 and err == ""
    assert "Answer  Norwegian Krone" in out


def test_agents_name_what_they_need(capsys):
    status, out, err = run_ask(capsys, NORWAY, "--agent", "parallelmuse")
    assert (status, out) == (1, "") and "use a temperature above 0" in err
    with Scripted(researcher) as server:
        options = ("--agent", "parallelmuse", *server_arguments(server))
        status, out, err = run_ask(capsys, NORWAY, *options)
    assert (status, out) == (1, "") and "--agent parallelmuse: branches need" in err


def test_the_planner_uses_its_own_policy(capsys):
    status, out, err = run_ask(capsys, NORWAY, "--agent", "planner")
    assert status == 0 and err == ""
    assert "Answer  Norwegian Krone" in out and "delegate  " in out and "search  ['Norway']" in out


def test_the_planner_refuses_native_tools(capsys):
    with Scripted(researcher) as server:
        native = [*server_arguments(server), "--native-tools"]
        status, _, err = run_ask(capsys, NORWAY, "--agent", "planner", *native)
    assert status == 1 and "leave --native-tools out" in err


@pytest.mark.parametrize(
    "agent", ["react", "iterresearch", "heavy", "resum", "managed", "agentfold", "browseconf"]
)
def test_every_agent_runs_over_a_server(capsys, agent):
    def say(messages):
        text = messages[-1]["content"]
        if "researchers have worked" in text:
            return render_answer("Norwegian Krone")
        if "How likely" in text:  # BrowseConf
            return render_answer("95")
        if "Last observation: none" in text or ("Last observation" not in text):
            return researcher(messages)
        return "<report>Krone.</report>" + render_answer("Norwegian Krone")

    with Scripted(say) as server:
        status, out, err = run_ask(
            capsys, NORWAY, "--agent", agent, "--quiet", *server_arguments(server)
        )
    assert (status, out, err) == (0, "Norwegian Krone\n", "")
    assert server.asked == {"heavy": 2 * 4 + 1, "browseconf": 3}.get(agent, 2)


def test_tokens_and_cost_are_counted(capsys):
    with Scripted(researcher) as server:
        server.keep = True
        status, out, _ = run_ask(capsys, NORWAY, *server_arguments(server), "--prices", 1000, 2000)
    assert status == 0 and " cost" in out and "2 turns, 1 calls" in out
    head = server.bodies[0]["messages"][0]
    assert head["role"] == "system" and '"name": "search"' in head["content"]


def test_key_comes_from_the_environment_and_is_hidden(capsys, monkeypatch):
    monkeypatch.setenv("DRLIB_API_KEY", "very-secret")
    with Scripted(researcher, key="very-secret") as server:
        status, out, err = run_ask(capsys, NORWAY, *server_arguments(server))
    assert status == 0 and "very-secret" not in out + err


FAULTS = {
    "no key": (dict(key="right"), (), "HTTP 401 Unauthorized: no such key"),
    "wrong model": ({}, ("--model", "other"), "no model 'other'"),
    "always down": (dict(faults=lambda n: "500"), (), "HTTP 500 Internal Server Error: not now, 3"),
    "question too long": (dict(say=lambda m: None), (), "the limit of context or generated tokens"),
    "no world": ({}, ("--world", "atlantis"), "unknown world 'atlantis'"),
    "no answer": (dict(say=lambda m: LOOK), (), "the agent repeated the same tool call"),
    "model alone": ({}, ("--endpoint", ""), "--endpoint and --model must be given together"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_failures_are_one_line_and_status_one(capsys, name):
    options, arguments, words = FAULTS[name]
    with Scripted(**{"say": researcher, **options}) as server:
        status, out, err = run_ask(capsys, NORWAY, *server_arguments(server), "--quiet", *arguments)
    assert (status, out) == (1, "") and words in err
    assert err.startswith("drlib ask: ") and err.count("\n") == 1


def test_unreachable_server(capsys):
    with Scripted(researcher) as server:
        closed_server = server_arguments(server)
    status, _, err = run_ask(capsys, NORWAY, "--quiet", *closed_server)
    assert status == 1 and "Connect" in err and closed_server[1] in err


def test_only_a_written_file_is_named(capsys, tmp_path):
    saved = tmp_path / "asked.parquet"
    status, _, err = run_ask(capsys, NORWAY, "--world", "atlantis", "--save", saved)
    assert status == 1 and "what was done" not in err and not saved.exists()

    def revoked(messages):  # the key is revoked after the first turn
        server.key = "another"
        return researcher(messages)

    with Scripted(revoked) as server:
        status, _, err = run_ask(
            capsys, NORWAY, *server_arguments(server), "--quiet", "--save", saved
        )
    assert status == 1 and "HTTP 401" in err and f"the trajectory so far is in {saved}" in err
    (kept,) = load_trajectories(saved)
    assert [r.tool for r in kept.tool_results] == ["search"] and kept.metadata["interrupted"]


def test_broken_tool_is_named(capsys, monkeypatch):
    broken = ToolResult("search", {}, "Error: unavailable.", False, "server", env_fault=True)
    monkeypatch.setattr("drlib.tools.Toolbox.call", lambda *_, **__: broken)
    with Scripted(researcher) as server:
        status, _, err = run_ask(capsys, NORWAY, *server_arguments(server), "--quiet")
    assert status == 1 and "the tool search failed: Error: unavailable." in err


def test_trajectory_before_ctrl_c_is_saved(tmp_path):
    saved = tmp_path / "asked.parquet"

    def say(messages):
        if len(messages) > 3:
            time.sleep(30)
        return researcher(messages[:2])

    with Scripted(say) as server:
        command = [
            sys.executable,
            "-m",
            "drlib.cli",
            "ask",
            NORWAY,
            *server_arguments(server),
            "--save",
            str(saved),
        ]
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            # background jobs start with SIGINT ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        for line in child.stdout:
            if "reads" in line:
                break
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=HANG_S)
    assert (
        child.returncode == 130
        and err.strip() == f"drlib ask: interrupted; the trajectory so far is in {saved}"
    )
    (kept,) = load_trajectories(saved)
    assert kept.termination is Termination.WALL_CLOCK and kept.metadata["interrupted"]
    assert [r.tool for r in kept.tool_results] == ["search"]


def test_printed_text_is_not_interpreted():
    output = io.StringIO()
    trace = Trace(Console(file=output, highlight=False, soft_wrap=True, force_terminal=True))

    class At:
        name, has_native_tools = "0-0-0", False

    trace("turn", At, "<think>[red]x[/red] \x1b[2J</think><answer>y</answer>")
    trace("result", At, ToolResult("search", {}, "[link=file:///x]a\x07", True, ""))
    out = output.getvalue()
    assert "[red]x[/red]" in out and "[link=file:///x]a" in out
    assert "\x1b[2J" not in out and "\x07" not in out and strip_controls("a\tb\n") == "a\tb\n"


def test_sources_that_contain_the_answer_come_first():
    with Scripted(researcher) as server:
        setup = AskOptions(endpoint=server.url, model=server.model)
        done = ask(NORWAY, setup)
    assert done.sources[0].url == "cldr:Norway" and done.sources[0].supports
    assert [one.supports for one in done.sources] == sorted(
        (one.supports for one in done.sources), reverse=True
    )
    found = HIT.findall(done.trajectory.tool_results[0].text)
    assert len(found) == len(done.sources)
    with pytest.raises(AskError, match="unknown agent"):
        ask(NORWAY, AskOptions(agent="nobody"))
    with pytest.raises(ValueError, match="empty"):
        ask(" ", AskOptions())
    assert json.loads(json.dumps(done.usage))["calls"] == 1


def test_model_folder_runs_without_a_server(capsys):
    """The tour's policy through transformers gives the local engine's answer."""
    status, out, err = run_ask(capsys, NORWAY, "--folder", TOUR_POLICY, "--quiet")
    assert (status, out, err) == (0, "Norwegian Krone\n", "")


@pytest.mark.parametrize("extra_arguments", [[], ["--native-tools"]])
def test_foreign_model_uses_its_own_template(capsys, tmp_path, extra_arguments):
    """The untrained model gives no answer and the cause; its prompt uses its own template."""
    folder, saved = foreign_model(tmp_path / "model"), tmp_path / "asked.parquet"
    capsys.readouterr()
    options = [
        "--folder",
        folder,
        "--turn-tokens",
        8,
        "--calls",
        1,
        "--save",
        saved,
        *extra_arguments,
    ]
    status, _, err = run_ask(capsys, NORWAY, *options)
    assert status == 1 and err.startswith("drlib ask: no answer: ") and err.count("\n") == 1
    (kept,) = load_trajectories(saved)
    prompt = load_any_tokenizer(folder).decode(kept.token_ids[~kept.generated])
    assert (
        prompt.startswith("<|im_start|>system\n") and "You answer questions by research" in prompt
    )
    assert prompt.count('"name": "search"') + prompt.count('"name":"search"') == 1
    assert ("# Tools" in prompt) == bool(extra_arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--folder", "nowhere"], "no tokenizer 'nowhere'"),
        (["--folder", TOUR_POLICY, "--engine", "mlx"], "unknown engine 'mlx'"),
    ],
)
def test_missing_model_is_one_line(capsys, options, words):
    status, out, err = run_ask(capsys, NORWAY, *options)
    assert (status, out) == (1, "") and words in err and err.count("\n") == 1


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_missing_vllm_is_one_line(capsys):
    status, _, err = run_ask(capsys, NORWAY, "--folder", TOUR_POLICY, "--engine", "vllm")
    assert status == 1 and "vLLM is not installed" in err and err.count("\n") == 1


def test_live_search_replaces_the_world(capsys):
    """A loopback search server that replays a recorded response."""
    reply, hits = RECORDED["searxng"]
    prompts = []

    def model(messages):
        prompts.append(messages[-1]["content"])
        return render_answer("b") if "<tool_response>" in prompts[-1] else LOOK

    with Replay() as web, Scripted(model) as server:
        web.says(reply)
        options = [*server_arguments(server), "--search", f"searxng={web.url}"]
        status, out, err = run_ask(capsys, NORWAY, *options)
        web.shutdown()
    assert (status, err) == (0, "") and hits[0]["url"] in out and hits[0]["title"] in prompts[-1]
    assert "cldr:" not in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--search", "serper"], "live search requires --endpoint"),
        (["--search", "serper", "--folder", TOUR_POLICY], "SERPER_API_KEY"),
        (["--search", "searxng", "--folder", TOUR_POLICY], "needs base_url"),
        (["--search", "altavista", "--folder", TOUR_POLICY], "unknown provider 'altavista'"),
    ],
)
def test_invalid_live_search_is_one_line(capsys, monkeypatch, options, words):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    status, out, err = run_ask(capsys, NORWAY, *options)
    assert (status, out) == (1, "") and words in err and err.count("\n") == 1


def test_resum_model_writes_its_own_summary(capsys):
    def model(messages):
        if messages[-1]["content"] == SUMMARISE:
            return "<summary>It is the Norwegian Krone.</summary>"
        has_summary = "Summary of the work so far: It is the" in messages[1]["content"]
        look = render_call("search", {"query": [f"Norway {len(messages)}"]})
        return render_answer("Norwegian Krone") if has_summary else look

    with Scripted(model) as server:
        options = ["--agent", "resum", "--turn-tokens", 50, "--context-tokens", 600, "--quiet"]
        assert run_ask(capsys, NORWAY, *server_arguments(server), *options) == (
            0,
            "Norwegian Krone\n",
            "",
        )


def test_walk_starts_at_the_given_page(capsys):
    def model(messages):
        last = messages[-1]["content"]
        if "Is there anything on it" in last:
            return json.dumps({"usefulness": True, "information": "Norwegian Krone"})
        return json.dumps({"judge": "Norwegian Krone" in last, "answer": "Norwegian Krone"})

    with Scripted(model) as server:
        options = [*server_arguments(server), "--agent", "webwalker", "--quiet"]
        walked = run_ask(capsys, NORWAY, *options, "--start", "cldr:Norway")
        assert walked == (0, "Norwegian Krone\n", "") and server.asked == 2
        status, _, err = run_ask(capsys, NORWAY, *options)
        assert status == 1 and "--start" in err and err.count("\n") == 1
        assert run_ask(capsys, NORWAY, *server_arguments(server), "--start", "cldr:Norway")[0] == 1


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_tokens"])
def test_rejected_parameter_is_named_and_can_be_left_out(capsys, name):
    def reject(request):
        words = f"Unsupported parameter: '{name}'"
        return (400, {"error": {"message": words}}) if name in request else None

    with Scripted(lambda messages: "<answer>Oslo</answer>") as server:
        server.whole = reject
        arguments = (NORWAY, "--quiet", *server_arguments(server))
        if name != "max_tokens":  # it has another name
            status, _, err = run_ask(capsys, *arguments)
            assert status == 1 and f"--omit {name}" in err
        status, out, err = run_ask(capsys, *arguments, "--omit", f"seed,{name}")
        assert (status, out.strip(), err) == (0, "Oslo", "")
