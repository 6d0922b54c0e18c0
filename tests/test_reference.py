"""The committed reference run: its files are consistent, and its policies still work.

Run: python -m pytest tests/test_reference.py
"""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from drlib.agents import Limits, ReAct
from drlib.analysis import tour
from drlib.analysis.entropy import high_entropy_overlap, summarize_entropy
from drlib.analysis.reflection import reflection_lift
from drlib.analysis.rescoring import rescore
from drlib.analysis.token_table import token_statistics
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.evaluation.evaluate import rows_of
from drlib.evaluation.results import Results
from drlib.experiments.agent_comparison import AgentRecords
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.files import read_json_lines
from drlib.intervals import relative_rate_interval
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy
from drlib.questions.chains import chain_questions, split_answers
from drlib.sandbox import Sandbox
from drlib.task import is_correct
from drlib.tools import Toolbox
from drlib.training.callbacks import COLLAPSE
from drlib.training.packing import PackedBatch, score
from drlib.worlds import load_world

TOUR = Path(__file__).resolve().parents[1] / "figures" / "reference" / "tour"
RULES = ("keep", "exclude")  # for overlong rollouts


@pytest.fixture(scope="module")
def results():
    return Results.load(TOUR)


@pytest.fixture(scope="module")
def agents():
    """Yield the world, and the policies after SFT and after RL with real tools."""
    world = load_world("tour")
    config = Config.load("laptop")
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
    ):
        policies = {}
        for name in ("sft", "rl"):
            model, tokenizer = load_policy(TOUR / f"policy_{name}")
            engine = LocalEngine(model.eval(), max_context=config.rollout.max_context_tokens)
            limits = Limits(
                config.rollout.max_calls,
                config.rollout.max_turn_tokens,
                config.rollout.max_context_tokens,
            )
            policies[name] = model, ReAct(engine, toolbox, ChatIds(tokenizer), limits)
        yield world, policies


def overlong_at_the_end(rows):
    """Return the share of overlong rollouts in the last 20 steps."""
    return statistics.mean(row["overlong"] for row in rows[-20:])


def test_overlong_rule_of_the_tour_follows_the_ablation():
    """The decision rule was fixed before the ablation ran: three seeds of each arm."""
    arms = {rule: tour.TourRun.load(TOUR.parent / f"overlong_{rule}") for rule in RULES}
    assert all(arm.results.seeds == [0, 1, 2] for arm in arms.values())
    keep, exclude = (arms[rule].results for rule in RULES)
    _, low, _ = keep.gain("rl", "rl", "search", "sample", of=exclude)
    assert Config.load("laptop").rl.filter.overlong == ("keep" if low > 0 else "exclude")
    # the expected mechanism occurs: without a penalty, overlong rollouts become more frequent
    for seed in (0, 1, 2):
        kept_share, excluded_share = (
            overlong_at_the_end(arms[rule].curves["rl"][seed]) for rule in RULES
        )
        assert 2 * kept_share < excluded_share, seed


@pytest.mark.parametrize("folder", ["tour", "again"])
def test_rows_match_the_outcomes(folder):
    results = Results.load(TOUR.parent / folder)
    for (stage, seed), outcomes in results.outcomes.items():
        rows = [r for r in results.rows if (r["stage"], r["seed"]) == (stage, seed)]
        assert sorted(map(str, rows)) == sorted(map(str, rows_of(outcomes, stage, seed)))


@pytest.mark.parametrize("folder", ["tour", "again"])
def test_every_seed_has_every_curve(folder):
    for seed in Results.load(TOUR.parent / folder).seeds:
        for name in ("cpt", "sft", "sft_continued", "rl", "rl_random_reward"):
            lines = (TOUR.parent / folder / f"seed{seed}_{name}.jsonl").read_text().splitlines()
            steps = [json.loads(line)["step"] for line in lines]
            assert steps == sorted(set(steps)) and len(steps) > 10


def test_reference_run_supports_the_stated_results(results):
    """The claims of README and notebooks, as lower bounds."""
    for stage in ("untrained", "closed_book", "rl_random_reward"):
        for kind in ("python", "search"):
            correct, n = results.count(stage, kind, "sample")
            assert n and correct / n <= 0.03, (stage, kind)
    for kind, decoding, floor in (
        ("python", "sample", 0.85),
        ("search", "sample", 0.45),
        ("python", "greedy", 0.90),
        ("search", "greedy", 0.65),
    ):
        correct, n = results.count("rl", kind, decoding)
        assert correct / n >= floor, (kind, decoding, correct, n)
    assert results.seeds == [0, 1, 2, 3, 4]
    for kind, floor in ((None, 0.10), ("search", 0.15)):
        gain, low, _ = results.gain("rl", "sft_continued", kind, "sample")
        assert gain >= floor and low > 0, kind
        ours, theirs = (results.scores(s, kind, "sample") for s in ("rl", "sft_continued"))
        for seed in results.seeds:
            means = [statistics.mean(scores[seed].values()) for scores in (ours, theirs)]
            assert means[0] > means[1], (kind, seed, means)
    ratio, _, high = tour.error_ratio(results, "rl", "sft_continued")
    assert ratio <= 0.5 and high < 1, (ratio, high)
    assert results.accuracy("rl", "search", "greedy", hops=3)[0] >= 0.50
    sft_scores = results.scores("sft_continued", "search", "greedy", hops=3)
    shares = [statistics.mean(scores.values()) for scores in sft_scores.values()]
    assert statistics.mean(shares) <= 0.05, "fine-tuning alone stays near zero there"
    assert max(shares) < 0.10, "with every seed"
    assert results.gain("rl", "sft_continued", "search", "greedy", hops=3)[1] > 0
    assert results.gain("rl", "sft", "search", "pass@8")[1] > 0


def test_repeated_run_supports_the_stated_results(results):
    """README and notebook 00: search accuracy is reproduced; python accuracy is not compared."""
    again = tour.TourRun.load(TOUR.parent / "again").results
    assert again.seeds == results.seeds and again.made["recipe"] != results.made["recipe"]
    for name in ("evaluation_seed", "seed_written_down"):
        assert again.made[name] == results.made[name]
    for decoding in ("sample", "greedy"):
        difference, low, high = again.gain("rl", "rl", "search", decoding, of=results)
        assert abs(difference) < 0.02 and low < 0 < high, decoding
        assert again.gain("rl", "sft_continued", "search", decoding)[1] > 0
    assert again.gain("rl", "sft_continued", "search", "greedy", hops=3)[1] > 0
    low_seeds = []
    for run in (results, again):
        thirds = run.scores("rl", "search", "greedy", 3)
        low_seeds += [s for s, scores in thirds.items() if statistics.mean(scores.values()) < 0.05]
    assert len(low_seeds) == len(set(low_seeds)) == 2, "one seed of each run, and not the same"
    sums = again.scores("rl", "python", "sample")
    shares = sorted(statistics.mean(scores.values()) for scores in sums.values())
    assert shares[0] < 0.4 and shares[1] > 0.9, "one cold start cannot read its program's output"
    for stage in ("untrained", "closed_book", "rl_random_reward"):
        for kind in ("python", "search"):
            correct, n = again.count(stage, kind, "sample")
            assert n and correct / n <= 0.03, (stage, kind)


def test_resampling_reduces_tool_errors_in_training():
    """In every seed.

    Notebook 18 says that three seeds disagree on held-out questions. If this interval no longer
    contains 1, its text must say so.
    """
    roc = tour.TourRun.load(TOUR.parent / "resampling")
    plain = tour.TourRun.load(TOUR).only(roc.results.seeds)
    command = roc.results.command
    assert "rl.sampling.oversample=2" in command and "rl.sampling.resample=sample" in command
    assert roc.results.seeds == plain.results.seeds == sorted(roc.curves["rl"]) == [0, 1, 2]
    for key in ("positive_tool_errors", "tool_errors"):
        for seed, rows in roc.curves["rl"].items():
            ours, theirs = (
                sum(row[key] for row in last_rows[-50:])
                for last_rows in (rows, plain.curves["rl"][seed])
            )
            assert ours < theirs, (key, seed)
    ratio, low, high = relative_rate_interval(*roc.results.calls("rl"), *plain.results.calls("rl"))
    assert ratio < 1 and low < 1 < high


@pytest.mark.parametrize(
    ("file", "bars"),
    [
        ("cpu_float32", {"naive": 0.9, "trl_fused": 0.6, "liger": 0.85}),
        ("cpu_bfloat16", {"naive": 1.0}),
    ],
)
def test_committed_head_benchmarks_meet_their_limits(file, bars):
    """Medians of interleaved runs (committed results of tests/benchmarks/bench_head.py)."""
    rows = json.loads((TOUR.parent / "head" / f"{file}.json").read_text())["rows"]
    for arm, bar in bars.items():
        pairs = zip(rows["own_fused"], rows[arm], strict=True)
        shares = [own["wall_s"] / other["wall_s"] for own, other in pairs]
        assert statistics.median(shares) <= bar, (arm, shares)
    if file == "cpu_float32":
        peaks = [max(row["peak_mb"] for row in rows[arm]) for arm in ("own_fused", "naive")]
        assert peaks[0] <= 0.1 * peaks[1]


def test_trained_policy_beats_the_cold_start(agents):
    """Held-out questions that the reference run did not use; greedy, so the result is exact."""
    world, policies = agents
    side = split_answers(world)
    tasks = chain_questions(world, 24, 7, "test", hops={3: 1.0})
    assert all(side[t.answer] == "test" and t.hops == 3 for t in tasks)
    solved = {
        name: sum(is_correct(t.answer, q) for t, q in zip(agent.run(tasks, temperature=0.0), tasks))
        for name, (_, agent) in policies.items()
    }
    assert solved["rl"] >= 8 and solved["rl"] > solved["sft"], solved


def test_engine_and_trainer_agree_on_the_trained_policy(agents):
    world, policies = agents
    model, agent = policies["rl"]
    tasks = chain_questions(world, 6, 8, "test")
    trajectories = agent.run(tasks, samples=2, seed=3)
    batch = PackedBatch.pack([t.token_ids for t in trajectories])
    with torch.no_grad():
        scored = score(model, batch, batch.spread([t.generated for t in trajectories], torch.bool))
    behaviour = batch.spread([t.logprobs for t in trajectories], torch.float32)[scored.at_M]
    assert (scored.logp_M - behaviour).abs().mean() < 1e-6


@pytest.mark.parametrize("name", ["sft", "rl"])
def test_rollout_entropies_match_recomputed_ones(agents, name):
    world, policies = agents
    model, agent = policies[name]
    tasks = chain_questions(world, 10, 9, "test")
    tasks += chain_questions(world, 10, 9, "test", "python")
    trajectories = agent.run(tasks, seed=4)
    for before, after in zip(trajectories, rescore(model, trajectories), strict=True):
        assert np.abs(before.entropies - after.entropies).max() <= 1e-4
        assert np.abs(before.logprobs - after.logprobs).max() <= 1e-3


def test_committed_lifts_match_the_trajectories():
    rows = json.loads((TOUR.parent / "entropy" / "lifts.json").read_text())["rows"]
    assert [(r["seed"], r["stage"]) for r in rows] == [
        (seed, stage)
        for seed in (0, 1, 2)
        for stage in ("sft", "rl", "sft_continued", "rl_random_reward")
    ]
    for row in rows:
        if row["stage"] in ("sft", "rl"):
            # another summation order can flip a near tie of the router
            assert 5000 * row["tokens_beyond_1e-4"] < row["summary"]["tokens"]
            path = TOUR.parent / "entropy" / f"seed{row['seed']}_{row['stage']}.parquet"
            table = token_statistics(path)
            assert summarize_entropy(table) == pytest.approx(row["summary"])
            stored = [x for x in row["lifts"] if x["window"] == 8]
            for lift, kept in zip(reflection_lift(table, window=8), stored, strict=True):
                for name, value in vars(lift).items():
                    assert value == kept[name] or value == pytest.approx(kept[name]), name


def test_rescored_files_have_the_same_tokens():
    for seed in (0, 1, 2):
        rl, by_sft = (
            token_statistics(TOUR.parent / "entropy" / f"seed{seed}_{name}.parquet")
            for name in ("rl", "rl_by_sft")
        )
        found = high_entropy_overlap(by_sft, rl)
        assert 0.5 < found["overlap"] < 1 and sum(found["tokens"]) == len(rl)


def test_plain_transformers_loads_the_policy_without_drlib():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(TOUR / "policy_rl", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TOUR / "policy_rl")
    messages = [{"role": "user", "content": "What is the territory of Oslo?"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=40, do_sample=False)
    text = tokenizer.decode(out[0, ids["input_ids"].shape[1] :])
    assert text.startswith("<think>") and '"search"' in text and "Oslo" in text


def test_committed_sandbox_benchmark_meets_its_limits():
    bench = json.loads((TOUR.parent / "sandbox" / "bench.json").read_text())
    assert bench["level"] == "strong"
    times = {
        (r["code"], r["concurrency"]): r["times_subprocess"]
        for r in bench["summary"]
        if r["arm"] == "sandbox"
    }
    assert times["print", 1] >= 6 and times["sympy", 1] >= 15
    queue, memory = bench["queue"], bench["memory"]
    assert queue["calls"] == 10_000
    assert not (queue["lost"] or queue["answered_twice"] or queue["wrong"])
    assert memory["calls"] == 20_000 and memory["growth"]["files"] == 0
    assert memory["growth"]["parent_mb"] < 10 and memory["growth"]["children_mb"] < 10


def test_committed_sandbox_memory_is_within_limits():
    """Committed results of tests/test_sandbox_bounds.py, which also measures them as a test."""
    rows = json.loads((TOUR.parent / "sandbox" / "bounds.json").read_text())
    assert len(rows) >= 40
    for name, row in rows.items():
        assert row["strong"]["held_mb"] <= row["limit_mb"], name
        assert row["standard"]["held_mb"] <= row["limit_mb"], name


def test_committed_analysis_benchmark_meets_its_limits():
    """Committed results of tests/benchmarks/bench_analysis.py and bench_viewer.py."""
    rows = json.loads((TOUR.parent / "analysis" / "bench.json").read_text())["rows"]
    bench = {row["tokens"]: row for row in rows}
    assert bench[10**6]["wall_s"] < 60 and bench[10**6]["peak_mb"] < 1000
    assert bench[10**7]["peak_mb"] < 4000
    viewer = json.loads((TOUR.parent / "analysis" / "viewer.json").read_text())
    assert viewer["tokens"] == 30_000 and max(viewer["drawn_s"]) < 2


@pytest.mark.parametrize("world", ["cldr", "pydocs"])
def test_committed_question_benchmark_meets_its_limits(world):
    """Committed results of tests/benchmarks/bench_questions.py and bench_solver.py."""
    rows = json.loads((TOUR.parent / "data" / "questions.json").read_text())
    (row,) = (row for row in rows if row["world"] == world)
    if world == "cldr":
        assert row["timed"]["depth"] == 3 and row["timed"]["a_second"] >= 400
    for engine in ("sets", "sql"):
        rates = [v for k, v in row["verified"][engine].items() if k != "checked_a_second"]
        assert len(rates) == 6 and not any(rates)
    assert row["different"] == 5000 and row["answers_of_the_other_side"] == 0
    assert row["largest_answer_share"] <= 0.02
    layer = row["edges_after_expansion"]["layer"]
    assert layer == {"constant_constant": 0.0, "constant_target": 0.0}
    solver = json.loads((TOUR.parent / "data" / f"solver_{world}.json").read_text())
    assert solver["questions"] >= 400 and solver["calls"] == 60
    assert all(r["solved"] >= 0.85 and r["wrong"] == 0 for r in solver["rows"].values())


def test_committed_folder_benchmark_meets_its_limits():
    """Committed results of tests/benchmarks/bench_folder.py."""
    folder = json.loads((TOUR.parent / "data" / "folder.json").read_text())
    assert folder["total"] == 2000 and folder["first_load"]["wall_s"] < 60
    assert folder["second_load"]["read"] == 0 and len(folder["one_changed"]["read"]) == 1
    assert folder["200_searches"]["with_hits"] == 200
    assert folder["500_questions"]["faulty"] == {"sets": 0, "sql": 0}


@pytest.mark.parametrize("steps", [75, 150])
def test_committed_pretraining_lowers_the_sft_loss(steps):
    """Committed results of tests/benchmarks/make_cpt.py."""
    found = json.loads((TOUR.parent / "cpt" / "results.json").read_text())
    lower = 0
    for row in found["rows"]:
        none, agentic = (
            next(c for c in row["arms"][arm]["cold_starts"] if c["steps"] == steps)
            for arm in ("none", "agentic")
        )
        lower += agentic["loss"] < none["loss"]
        arm = row["arms"]["agentic"]
        assert arm["general_after_cpt"] <= 1.05 * arm["general_before"]
    assert [row["seed"] for row in found["rows"]] == [0, 1, 2] and lower >= 2
    assert "incomplete" not in found


def test_committed_bias_balances_better_than_the_loss():
    """Committed results of tests/benchmarks/make_balance.py."""
    found = json.loads((TOUR.parent / "balance" / "results.json").read_text())
    violations = {(row["arm"], row["seed"]): row["max_violation"] for row in found["rows"]}
    assert len(violations) == 3 * len(found["settings"]["arms"])
    for seed in (0, 1, 2):
        assert violations["bias 0.001", seed] < 0.1 < 0.6 < violations["loss", seed] < 0.7
        assert violations["nothing", seed] > 0.9


def test_no_committed_run_recovered_after_collapse():
    """Justification of `grpo.COLLAPSED_STEPS`.

    In all committed RL metrics, once the mean of five steps exceeds the limit, it stays above.
    """
    _, collapsed = COLLAPSE["unanswered"]
    runs = recovered = stopped_high = 0
    curves = [read_json_lines(path) for path in sorted(TOUR.parent.rglob("*.jsonl"))]
    for path in sorted(EXPERIMENTS.glob("*.parquet")):
        if path.stem == "strategies":
            curves += AgentRecords.load(path).curves.values()
            continue
        by_arm = ExperimentRecords.load(path).curves
        curves += [rows for by_seed in by_arm.values() for rows in by_seed.values()]
    for rows in curves:
        if not rows or not {"rollouts", "overlong", "out_of_turns"} <= rows[0].keys():
            continue
        shares = [row["overlong"] + row["out_of_turns"] for row in rows]
        above_limit = [
            statistics.mean(shares[max(0, i - 4) : i + 1]) > collapsed for i in range(len(shares))
        ]
        runs += 1
        stopped_high += above_limit[-1]
        recovered += any(
            before and not after for before, after in zip(above_limit, above_limit[1:])
        )
    assert runs >= 235 and stopped_high >= 10 and recovered == 0
