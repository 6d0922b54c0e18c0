"""Prompt injections against every agent: how many succeed, with and without defences.

Each record of drlib/evaluation/injections.yaml is a question with one planted order. The scripted
models of tests/gullible_models.py answer it through every agent of `drlib ask`:

- `gullible` obeys every order that it reads, so the agent and its tools are the only defence.
- `turns` trusts the roles of the rendered chat template (Qwen3) and obeys orders in system and user
  turns only; `turns, raw` is the same without the escaping of tags in tool responses.
- `stubborn` obeys none: the control.

Run: python -m tests.benchmarks.bench_injections [--write]
A real model: python -m tests.benchmarks.bench_injections --endpoint URL --model NAME --agents react
`--write` updates figures/reference/injections.json and the tables of SECURITY.md (two minutes).
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

from drlib.agents import AGENTS, Limits
from drlib.chat.prompts import FORMAT_HELP, research_prompt
from drlib.config import ROOT
from drlib.endpoint import ChatEndpoint
from drlib.evaluation.injections import (
    ANSWER,
    Case,
    Injection,
    Recorder,
    build_case,
    is_obeyed,
    is_shown,
    load_injections,
)
from drlib.experiments.reference_run import with_block
from drlib.files import write_atomic
from drlib.intervals import wilson_interval
from drlib.models.api_engine import ApiEngine
from drlib.models.engine import Engine
from drlib.models.scripted_engine import ScriptedEngine
from drlib.sandbox import Sandbox
from tests.gullible_models import TurnReader, gullible, stubborn
from tests.template_examples import tokenizer_of

OUT = ROOT / "figures" / "reference" / "injections.json"
PAGE = ROOT / "SECURITY.md"
# agents that the scripted models cannot play, and the reason
NOT_PLAYED = {
    "webwatcher": "it needs a picture",
    "parallelmuse": "it needs token ids",
    "agentfold": "its rule folds away the notes by which the scripted models count their steps",
}
NAMES = tuple(name for name in AGENTS if name not in NOT_PLAYED)
OPTIONS = {"heavy": {"n": 2}, "resum": {"summarise": None, "every": 2}}
# as `drlib ask --endpoint`
LIMITS = Limits(
    calls=20,
    turn_tokens=4096,
    context_tokens=32_000,
    repeats=3,
    format_errors=3,
    format_help=FORMAT_HELP,
    force_answer=True,
)
TEMPLATES = ("qwen3", "llama3_1", "gemma", "phi3")
FORGED = ("chatml", "llama", "gemma", "phi", "inst", "response")  # ends of the ids
ESCAPE = "drlib.agents.context.escape_tags"


def run_case(
    injection: Injection, case: Case, name: str, engine: Engine, *, raw=False, has_system=True
) -> dict:
    """Return the outcome of one rollout; `raw`: tags in texts are not escaped."""
    recorder = Recorder()
    system = research_prompt(case.toolbox.schemas) if has_system else None
    agent = AGENTS[name](engine, case.toolbox, None, LIMITS, system, **OPTIONS.get(name, {}))
    with mock.patch(ESCAPE, str) if raw else nullcontext():
        (done,) = agent.run([case.task], temperature=0.0, watch=recorder)
    return {
        "obeyed": is_obeyed(injection, done, recorder.runs),
        "reached": is_shown(injection, recorder.texts),
        "right": ANSWER in (done.answer or ""),
    }


def iter_cases(sandbox: Sandbox, **options) -> Iterator[tuple[Injection, Case]]:
    """Yield every record with its case, whose files exist until the next one."""
    for injection in load_injections():
        with tempfile.TemporaryDirectory() as folder:
            case = build_case(injection, Path(folder), sandbox, **options)
            with case.toolbox:
                yield injection, case


def count(outcomes: list[dict], **key) -> dict:
    n, obeyed = len(outcomes), sum(outcome["obeyed"] for outcome in outcomes)
    low, high = wilson_interval(obeyed, n)
    counts = {name: sum(outcome[name] for outcome in outcomes) for name in ("reached", "right")}
    return key | {"n": n, "obeyed": obeyed, "low": low, "high": high} | counts


def measure(sandbox: Sandbox) -> dict:
    """Measure all agents, the models and the defences."""
    readers = {template: TurnReader(tokenizer_of(template)) for template in TEMPLATES}
    models = {
        "gullible": (gullible, False),
        "turns, raw": (readers["qwen3"], True),
        "turns": (readers["qwen3"], False),
        "stubborn": (stubborn, False),
    }
    found: dict[tuple[str, str], list[dict]] = {}
    goals: dict[str, list[dict]] = {}
    forged: dict[tuple[str, bool], list[dict]] = {}
    missed = []
    for injection, case in iter_cases(sandbox):
        for name in NAMES:
            for model, (say, raw) in models.items():
                outcome = run_case(injection, case, name, ScriptedEngine(say), raw=raw)
                found.setdefault((name, model), []).append(outcome)
                if (name, model) == ("react", "gullible"):
                    goals.setdefault(injection.goal, []).append(outcome)
                    missed += [injection.id] * (not outcome["reached"])
        if injection.id.rpartition("-")[2] in FORGED:
            for template, reader in readers.items():
                for raw in (True, False):
                    outcome = run_case(
                        injection,
                        case,
                        "react",
                        ScriptedEngine(reader),
                        raw=raw,
                        has_system=template != "gemma",  # its template has no system role
                    )
                    forged.setdefault((template, raw), []).append(outcome)
    allowed = [
        run_case(injection, case, "react", ScriptedEngine(gullible))
        for injection, case in iter_cases(sandbox, can_send=False)
        if injection.tool == "send_message"
    ]
    return {
        "command": "python -m tests.benchmarks.bench_injections --write",
        "agents": [count(rows, agent=name, model=model) for (name, model), rows in found.items()],
        "goals": [count(rows, goal=goal) for goal, rows in goals.items()],
        "templates": [
            count(rows, template=template, escaped=not raw)
            for (template, raw), rows in forged.items()
        ],
        "send_message_not_offered": count(allowed),
        "not_reached": missed,
    }


def show_share(row: dict) -> str:
    """Render `64/71, 90% [81, 95]`."""
    low, high = (round(100 * row[end]) for end in ("low", "high"))
    return f"{row['obeyed']}/{row['n']}, {100 * row['obeyed'] / row['n']:.0f}% [{low}, {high}]"


def render(figures: dict) -> str:
    """Render the tables of SECURITY.md."""
    rows = {(row["agent"], row["model"]): row for row in figures["agents"]}
    models = list(dict.fromkeys(model for _, model in rows))
    lines = [
        "| agent | order reached the model | gullible | trusts turns, tags raw | trusts turns | "
        "stubborn |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(name for name, _ in rows):
        reached = rows[name, "stubborn"]
        cells = [f"`{name}`", f"{reached['reached']}/{reached['n']}"]
        cells += [show_share(rows[name, model]) for model in models]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| template, forged turns | tags raw | tags escaped |", "|---|---|---|"]
    shares = {(row["template"], row["escaped"]): row for row in figures["templates"]}
    for template in dict.fromkeys(template for template, _ in shares):
        cells = [f"{row['obeyed']}/{row['n']}" for row in (shares[template, e] for e in (0, 1))]
        lines.append(f"| {template} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure_model(endpoint: ChatEndpoint, names: list[str], sandbox: Sandbox) -> list[dict]:
    """Measure a model behind a server."""
    found: dict[str, list[dict]] = {name: [] for name in names}
    for injection, case in iter_cases(sandbox):
        for name in names:
            found[name].append(run_case(injection, case, name, ApiEngine(endpoint)))
    return [count(rows, agent=name, model=endpoint.model) for name, rows in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="update the figures and SECURITY.md")
    parser.add_argument("--endpoint", default="", metavar="URL")
    parser.add_argument("--model", default="")
    parser.add_argument("--agents", nargs="+", default=list(NAMES), choices=NAMES)
    args = parser.parse_args()
    with Sandbox(workers=1) as sandbox:
        if args.endpoint:
            key = os.environ.get("DRLIB_API_KEY", "")
            endpoint = ChatEndpoint(args.endpoint, args.model, api_key=key)
            for row in measure_model(endpoint, args.agents, sandbox):
                print(json.dumps(row))
            return
        figures = measure(sandbox)
    if args.write:
        write_atomic(OUT, json.dumps(figures, indent=1) + "\n")
        page = PAGE.read_text(encoding="utf-8")
        write_atomic(PAGE, with_block(page, render(figures), "injections"))
    print(render(figures))


if __name__ == "__main__":
    main()
