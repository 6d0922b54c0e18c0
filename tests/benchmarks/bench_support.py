"""RaML's support-set sweep on the tour's policy: accuracy against rollouts trained on a question.

A question's rollouts are the support set of its task (RaML, arXiv 2505.19815). From the tour's cold
start, GRPO rolls out `rl.group` (8) a question as usual and computes advantages over all of them,
but only m random ones enter the loss (`support_set`). Arms of one seed see the same questions as
long as their policies have learned the same skills. Every arm takes the same number of updates, so
a smaller m also means fewer tokens a step: that is the trade the sweep looks at.

Accuracy: held-out questions, half python and half search, at temperature 1 and greedily. The row
"m": 0 is the cold start itself. Rows are kept arm by arm: started again, it goes on.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_support.py [--steps 20] [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from drlib.agents.react import ReAct
from drlib.analysis.pseudo_gradient import support_set
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.evaluation.evaluate import ask, held_out
from drlib.files import write_atomic
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training.batch import RolloutBatch, compute_advantages
from drlib.training.distributed import Ranks
from drlib.training.learner import FINAL_LR, accumulate_gradients
from drlib.training.optim import Optimizers, schedule
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollouts import rollout_limits, sample_rollouts
from drlib.worlds import Names, load_world

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "figures" / "reference" / "tour" / "policy_sft"
OUT = ROOT / "figures" / "reference" / "entropy" / "support.json"


def train(model, agent, m: int, config: Config, world) -> dict:
    """`rl.steps` GRPO steps on m rollouts a question; what was trained on."""
    optimizers = Optimizers.adam(model, config.rl.lr)
    curriculum = Curriculum(SKILLS)
    questions = QuestionScheduler(config, world, Names.from_world(world))
    ranks = Ranks()
    tokens = 0
    for step in range(config.rl.steps):
        tasks, worlds = questions.draw(step, curriculum)
        trajectories = sample_rollouts(agent, tasks, worlds, config, step)
        advantages, weights, _ = compute_advantages(trajectories, config)
        kept = support_set([t.group_id for t in trajectories], m, seed=1000 * config.seed + step)
        weights = weights * kept
        share = RolloutBatch(trajectories, advantages, weights)
        row = accumulate_gradients(model.train(), [share], config, ranks)
        ranks.sum_gradients(model)
        factor = schedule(step, config.rl.steps, config.rl.warmup_steps, 0.5, FINAL_LR)
        optimizers.step(factor)
        agent.engine.update_weights(model.eval())
        right = [(t.metadata["skill"], t.reward_parts["correct"]) for t in trajectories]
        curriculum.update(right)
        tokens += row["tokens"]
    return {"train_accuracy": sum(r for _, r in right) / len(right), "tokens": tokens}


def arm(m: int, config: Config, world, toolbox) -> dict:
    """One row: train with m rollouts a question (0: not at all), then ask held-out questions."""
    started = time.process_time()
    model, tokenizer = load_policy(START)
    engine = LocalEngine(model.eval(), max_context=config.rollout.max_context_tokens, lockstep=True)
    agent = ReAct(engine, toolbox, ChatIds(tokenizer), rollout_limits(config))
    row = {"m": m, "seed": config.seed} | (train(model, agent, m, config, world) if m else {})
    tasks = held_out(world, config)
    outcomes, _, _ = ask(agent, tasks, list(range(len(tasks))), config)
    for kind in ("python", "search"):
        some = [o for o in outcomes if o.kind == kind]
        row |= {
            f"{kind}_n": len(some),
            f"{kind}_greedy": sum(o.greedy for o in some),
            f"{kind}_sampled": sum(sum(o.samples) for o in some),
        }
    return row | {"cpu_s": round(time.process_time() - started, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--support", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--questions", type=int, default=24, help="a step")
    parser.add_argument("--eval-questions", type=int, default=100, help="of each kind")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    settings = dict(
        rl__steps=args.steps,
        rl__questions=args.questions,
        evaluation__questions=args.evaluation.questions,
        evaluation__samples=4,
    )
    old = json.loads(args.out.read_text()) if args.out.exists() else {"settings": settings}
    if old["settings"] != settings:
        parser.error(f"{args.out} was made with {old['settings']}: delete it or give another --out")
    rows = old.get("rows", [])
    config = Config.load("laptop", **settings)
    world = load_world(config.world.name)
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
    ):
        for seed, m in ((seed, m) for seed in args.seeds for m in args.support):
            done = any(row["m"] == m and (m == 0 or row["seed"] == seed) for row in rows)
            if done:
                continue
            rows.append(arm(m, config.derive(seed=seed), world, toolbox))
            lines = ",\n".join(json.dumps(row) for row in rows)
            text = f'{{"settings": {json.dumps(settings)}, "rows": [\n{lines}\n]}}\n'
            write_atomic(args.out, text)
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
