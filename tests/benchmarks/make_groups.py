"""Writes figures/reference/groups/sft.parquet: groups of rollouts, sampled as in training.

The tour's policy after SFT answers the 24 questions of one step, 16 rollouts each, with real tools
and the recipe's rewards. Notebooks 18 and 19 filter, resample and weight these rollouts.

Run, about half a minute on 2 cores:
    PYTHONPATH=. python tests/benchmarks/make_groups.py
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from drlib.agents import ReAct
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollouts import rollout_limits, sample_rollouts
from drlib.trajectory import save_trajectories
from drlib.worlds import Names, load_world


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--policy", default="figures/reference/tour/policy_sft")
    parser.add_argument("--out", type=Path, default=Path("figures/reference/groups/sft.parquet"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = Config.load("laptop", rl__questions=args.questions, rl__group=args.group)
    world = load_world("tour")
    tasks, worlds = QuestionScheduler(config, world, Names.from_world(world)).draw(
        0, Curriculum(SKILLS)
    )
    policy, tokenizer = load_policy(args.policy)
    limit = config.rollout.max_context_tokens
    engine = LocalEngine(policy.eval(), slots=64, lockstep=True, max_context=limit)
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as tools,
    ):
        agent = ReAct(engine, tools, ChatIds(tokenizer), rollout_limits(config))
        rollouts = sample_rollouts(agent, tasks, worlds, config, 0)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # without latencies, so that bytes are equal
    save_trajectories(
        args.out,
        [
            replace(t, tool_results=[replace(result, latency_s=0.0) for result in t.tool_results])
            for t in rollouts
        ],
    )


if __name__ == "__main__":
    main()
