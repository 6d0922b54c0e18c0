"""Writes figures/reference/entropy: what the tour's policies thought, before and after RL.

For each seed of the tour's reference run and each policy (after SFT, after RL, and the two
controls: SFT continued with RL's compute, RL with random rewards): one sampled rollout of every
held-out question of the evaluation, with real tools. Entropies are those of the rollout; they are
compared with those recomputed from the checkpoint, and the largest difference is written down.
RL's tokens are also run through the policy before RL, and the first seed's last rollouts keep
alternatives and experts, for the viewer.

Run, after `make reference` (or with its runs folder elsewhere), 6 minutes on 2 cores:
    PYTHONPATH=. python tests/benchmarks/make_entropy.py --runs runs
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from drlib.agents import ReAct
from drlib.analysis.entropy import summarize_entropy
from drlib.analysis.reflection import reflection_lift
from drlib.analysis.rescoring import rescore
from drlib.analysis.token_table import judge_outcome, token_statistics
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.evaluation.evaluate import held_out
from drlib.files import write_atomic
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.rollouts import rollout_limits
from drlib.trajectory import load_trajectories, save_trajectories
from drlib.worlds import load_world

STAGES = ("sft", "rl", "sft_continued", "rl_random_reward")
WINDOWS = (4, 8, 64)
VIEWED = 48


def rollouts(model, tokenizer, config, tasks, toolbox):
    """One sampled trajectory a question, judged; without latencies, so that bytes are equal."""
    engine = LocalEngine(model.eval(), max_context=config.rollout.max_context_tokens, lockstep=True)
    agent = ReAct(engine, toolbox, ChatIds(tokenizer), rollout_limits(config))
    done = agent.run(tasks, temperature=1.0, seed=config.evaluation.seed)
    return [
        replace(
            t,
            reward=judge_outcome(t),
            tool_results=[replace(result, latency_s=0.0) for result in t.tool_results],
        )
        for t in done
    ]


def lifts(trajectories) -> list[dict]:
    table = token_statistics(trajectories)
    rows = []
    for window in WINDOWS:
        try:
            rows += [vars(x) | {"window": window} for x in reflection_lift(table, window=window)]
        except ValueError as error:  # a collapsed control may call no tool at all
            rows.append({"window": window, "status": "all", "undefined": str(error)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("figures/reference/entropy"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    world = load_world("tour")
    for seed in args.seeds:
        config = Config.load("laptop", seed=seed)
        tasks = held_out(world, config)
        before = load_policy(stages.folder("sft", config, args.runs) / "policy")[0].eval()
        with (
            Sandbox() as sandbox,
            Toolbox(world, sandbox, results=config.rollout.search_results) as tools,
        ):
            for stage in STAGES:
                model, chat = load_policy(stages.folder(stage, config, args.runs) / "policy")
                made = rollouts(model, chat, config, tasks, tools)
                again = list(rescore(model.eval(), made))
                gaps = np.concatenate(
                    [np.abs(a.entropies - b.entropies)[a.generated] for a, b in zip(made, again)]
                )
                gap = float(gaps.max())
                rows.append(
                    {
                        "seed": seed,
                        "stage": stage,
                        "recomputed_within": gap,
                        "tokens_beyond_1e-4": int((gaps > 1e-4).sum()),
                        "right": float(np.mean([t.reward for t in made])),
                        "summary": summarize_entropy(token_statistics(made)),
                        "lifts": lifts(made),
                    }
                )
                print(seed, stage, f"largest difference {gap:.1e}", flush=True)
                if stage in STAGES[:2]:
                    save_trajectories(args.out / f"seed{seed}_{stage}.parquet", made)
                if stage == "rl":
                    by_sft = list(rescore(before, made))
                    save_trajectories(args.out / f"seed{seed}_rl_by_sft.parquet", by_sft)
                    if seed == args.seeds[0]:
                        some = made[-VIEWED:]
                        for name, of in (("rl", model), ("sft", before)):
                            seen = rescore(of, some, top_k=5, experts=True)
                            save_trajectories(args.out / f"viewer_{name}.parquet", seen)
    assert all(len(load_trajectories(p)) for p in args.out.glob("*.parquet"))
    command = "PYTHONPATH=. python tests/benchmarks/make_entropy.py"
    text = json.dumps({"command": command, "rows": rows}, indent=0)
    write_atomic(args.out / "lifts.json", text + "\n")


if __name__ == "__main__":
    main()
