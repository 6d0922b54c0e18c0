"""Probe groups; each returns {value name: text}. Run in a subprocess per version by `compare`."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden.adapters import ADAPTERS, as_text, load

ODD = [
    "",
    "<think>",
    "<answer>a</answer>",
    "<tool_call>{}</tool_call>",
    '<tool_call>{"name": 1}',
    "<think>a</think>\n<answer></answer>",
    "\ud800",
    "plain text",
]
PROGRAMS = [
    *(f"print({a}**{b} % 97)" for a in range(2, 12) for b in (3, 17)),
    *(f"import math; print(math.{f}({x}))" for f in ("sqrt", "exp", "log") for x in (1, 2.5, 9)),
    *(f"import {name}; print({name}.__name__)" for name in ("json", "re", "sympy", "numpy")),
    *(f"import {name}" for name in ("socket", "torch", "requests", "ctypes", "subprocess")),
    "open('/etc/passwd').read()",
    "open('a.txt', 'w').write('x'); print(open('a.txt').read())",
    "1 / 0",
    "raise ValueError('x')",
    "print('x' * 5000)",
    "import os; os.fork()",
    "import os; os.system('true')",
    "while True: pass",
    "x = [0] * 10**10",
    "import sys; sys.exit(3)",
    "def f(): return f()\nf()",
    "print(1)\nprint(",
    "import time; time.sleep(60)",
]
START = {"rl_start": "figures/reference/tour/policy_sft", "processes": 1}
SMALL = START | {"rl_steps": 2, "rl_questions": 6, "rl_group": 4, "rl_lr": 0.002}
OFF_POLICY = {"rl_minibatches": 2}
RL_OPTIONS = [
    {},
    *({"rl_clip": clip} | OFF_POLICY for clip in ("cispo", "none", "double_sided")),
    *({"rl_advantage": a} for a in ("group_mean", "group_normalized", "batch_normalized")),
    {"rl_level": "sequence", "rl_aggregate": "sequence"} | OFF_POLICY,
    {"rl_aggregate": "constant", "rl_epsilon_high": 0.2} | OFF_POLICY,
    *(
        {"rl_correction": c, "rl_engine": "bfloat16"}
        for c in ("truncate", "mask", "icepop", "geometric")
    ),
    {"rl_kl_coef": 0.1, "rl_kl_estimator": "k1", "rl_kl_unbiased": "true"},
    {"rl_kl_coef": 0.1, "rl_kl_target": 0.01, "rl_reference_every": 1, "rl_reference_decay": 0.5},
    {"rl_overlong": "keep", "rl_overlong_buffer": 90},
    {"rl_hallucination": "exclude", "rl_drop_equal": "true"},
    {"rl_pipeline": "true", "rl_low_weight": 0.25},
    {"rl_oversample": 2, "rl_resample": "sample"},
    {"rl_oversample": 2, "rl_resample": "sort"},
    {"rl_draws": 2},
    {"rl_adaptive_group": "true"},
    {"rl_duplicate": "true"},
    *({"rl_routing": r} | OFF_POLICY for r in ("r2", "r3")),
    {"rl_staleness": 1, "rl_max_age": 1},
    {"rl_staleness": 1, "rl_repair_groups": "true", "rl_max_age": 1},
    {"rl_replay_groups": 2, "rl_replay_age": 4},
    {"rl_top_entropy": 0.2, "rl_entropy_tokens": "random"},
    {"rl_top_entropy": 0.5, "rl_denominator": "all"},
    {"rl_frugal_head": "true"},
    *({"rl_labels": labels} for labels in ("shuffled", "wrong")),
    {"rl_reward": "random"},
    {"rl_curriculum": "none", "rl_mixture": "exact"},
    {"rl_pool": 12, "rl_curation_every": 1},
    {"rl_pool": 12, "rl_stages": "three", "rl_steps": 3},
    {"rl_drift_factor": 0.5, "rl_world_change": 1},
    {"rl_trail_share": 0.5, "rl_agent": "iterresearch", "rl_baseline": "samples"},
    {"rl_reset_patience": 1, "rl_validate_every": 1, "rl_kl_coef": 0.1},
    {"rl_temperature": 1.3, "rl_python_share": 0.0, "rl_fictional_share": 1.0},
]
SFT_OPTIONS = [
    {},
    {"sft_loss_on": "all", "demonstration_filter": "funnel"},
    {"sft_rounds": "true", "sft_short_tokens": 200},
    {"sft_tool_use_share": 0.3, "sft_tool_use_users": "true"},
    {"teacher": "solver", "router_bias_rate": 0.01, "balance_coef": 0.0},
    {"skills": "memory", "teacher": "solver"},
    {"cpt_fas_share": 0.2, "cpt_has_share": 0.2, "questions": "engine"},
]
TRL_OPTIONS = [{}, {"rl_clip": "cispo"}, {"rl_advantage": "group_normalized"}]
TIMES = ("seconds", "rollout_seconds", "step_time")  # columns of metrics that depend on the clock


def probe_parser(adapter, data):
    """Parse recorded assistant turns and odd texts; the wording of errors is not compared."""
    import pyarrow.parquet as pq

    texts = list(ODD)
    for path in sorted(Path(data).glob("tour/*.parquet")):
        for messages in pq.read_table(path, columns=["messages"])["messages"].to_pylist():
            messages = json.loads(messages) if isinstance(messages, str) else messages
            texts += [m["content"] for m in messages if m["role"] == "assistant"]
    texts = list(dict.fromkeys(texts))
    assert len(texts) > 200, f"only {len(texts)} recorded turns were found"
    parse = load(adapter, "parser").parse
    values = {}
    for index, text in enumerate(texts):
        result = parse(text)
        kind = type(result).__name__
        values[str(index)] = kind if kind == "FormatError" else f"{kind} {as_text(result)}"
    return values


def probe_questions(adapter, data):
    """Synthesise 500 questions per world."""
    from drlib.worlds import load_world

    values = {}
    tern = Path(data).parents[1] / "notebooks" / "tern"
    for name in ("cldr", "pydocs", f"folder:{tern}"):
        tasks = load(adapter, "questions").synthesize_questions(load_world(name), 500, seed=3)
        for index, task in enumerate(tasks):
            values[f"{name.partition(':')[0]} {index}"] = f"{task.id} {task.question} {task.answer}"
    return values


def probe_sandbox(adapter, data):
    """Run programs and return what a policy would read."""
    from drlib.sandbox import Sandbox

    with Sandbox(timeout_s=2.0) as sandbox:
        return {code[:60]: sandbox.run(code).text for code in PROGRAMS}


def build_stages(adapter, cases):
    """Build stages by the version's own command; return metrics, weights and outcomes.

    A first run, which is discarded, fills the cache of compiled kernels: kernels loaded from it
    round differently (1e-7) than kernels that were compiled in the same process.
    """
    values = {}
    with tempfile.TemporaryDirectory() as runs:
        first = [*adapter.stage_command("rl", SMALL), "--profile=ci", f"--runs={runs}/first"]
        subprocess.run([sys.executable, *first], capture_output=True, check=True)
        for case, (stage, profile, settings) in cases.items():
            command = [*adapter.stage_command(stage, settings), f"--profile={profile}"]
            done = subprocess.run(
                [sys.executable, *command, f"--runs={runs}"],
                capture_output=True,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            if done.returncode:
                values[f"{case} failed"] = "failed"  # a refusal; its wording is not compared
                print(case, done.stderr[-300:], file=sys.stderr)
                continue
            folder = Path(done.stdout.splitlines()[-1].partition(":")[0])
            values |= {f"{case} {name}": v for name, v in read_stage(folder).items()}
    return values


def read_stage(folder: Path) -> dict[str, str]:
    """Return everything in a run folder that does not depend on clock, names or settings."""
    values = {}
    metrics = folder / "metrics.jsonl"
    for row in metrics.read_text().splitlines() if metrics.exists() else ():
        row = json.loads(row)
        for name, value in row.items():
            if name not in TIMES:
                text = value.hex() if isinstance(value, float) else json.dumps(value)
                values[f"step {row['step']} {name}"] = text
    for name in ("policy/model.safetensors", "outcomes.jsonl", "episodes.jsonl"):
        if (folder / name).exists():
            values[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return values


def probe_tour(adapter, data):
    """Build all stages of the tour with the ci profile and seed 0."""
    stages = ["cpt", "demonstrations", "sft", "rl", "sft_continued", "rl_random_reward"]
    of = ("untrained", "cpt", "sft", "sft_continued", "rl", "rl_random_reward", "closed_book")
    stages += [f"evaluate_{name}" for name in of]
    return build_stages(adapter, {stage: (stage, "ci", {}) for stage in stages})


def probe_laptop_rl(adapter, data):
    """Take 20 RL steps of the laptop profile."""
    settings = START | {"rl_steps": 20}
    return build_stages(adapter, {"rl": ("rl", "laptop", settings)})


def probe_rl_options(adapter, data):
    """Take RL steps with every option."""
    cases = {_title(c): ("rl", "ci", SMALL | c) for c in RL_OPTIONS}
    return build_stages(adapter, cases)


def probe_sft_options(adapter, data):
    """Train the cold start with its options."""
    cases = {_title(c): ("sft", "ci", {"processes": 1} | c) for c in SFT_OPTIONS}
    return build_stages(adapter, cases)


def probe_trl_options(adapter, data):
    """Take RL steps with the TRL learner."""
    trl = SMALL | {"trainer": "trl", "device_batch": 24}
    return build_stages(adapter, {_title(c): ("rl", "ci", trl | c) for c in TRL_OPTIONS})


def _title(case: dict) -> str:
    return " ".join(f"{name}={value}" for name, value in case.items()) or "default"


GROUPS = {
    "parser": probe_parser,
    "questions": probe_questions,
    "sandbox": probe_sandbox,
    "tour": probe_tour,
    "laptop_rl": probe_laptop_rl,
    "rl_options": probe_rl_options,
    "sft_options": probe_sft_options,
    "trl_options": probe_trl_options,
}

if __name__ == "__main__":
    name, root, data, out, *groups = sys.argv[1:]
    import drlib

    assert Path(drlib.__file__).resolve().is_relative_to(Path(root).resolve()), drlib.__file__
    found = {group: GROUPS[group](ADAPTERS[name], data) for group in groups}
    Path(out).write_text(json.dumps(found))
