"""The walk that docs/trace.md tells: one question of the tour from its page to its loss.

`python -m tests.trace_walk` writes the page; every value in it comes from the run here, of the
committed cold start (figures/reference/tour/policy_sft) in a group of eight.
"""

import copy
from pathlib import Path

import torch

from drlib.agents.react import ReAct
from drlib.config import ROOT
from drlib.files import write_atomic
from drlib.models.local_engine import LocalEngine
from drlib.questions.chains import Chain, search_task
from drlib.rewards.functions import exact_match
from drlib.training.batch import RolloutBatch, advantages_of
from drlib.training.distributed import Ranks
from drlib.training.learner import learn
from drlib.training.rollouts import limits_of, sample_rollouts
from tests.loop_examples import ColdStart, settings

PAGE, TEXT = ROOT / "docs" / "trace.md", Path(__file__).with_name("trace_walk.md")
# A question that the cold start answers now and then: its group has something to teach.
START, RELATIONS = "Austria", ("former currency", "code")
GROUP = 8


class Walk:
    """The eight stops, each a method that returns what is shown there, by name."""

    def __init__(self, start: ColdStart):
        self.start = start
        self.config = settings(rl__group=GROUP)

    def values(self) -> dict[str, str]:
        """Everything that the page shows, in the order of the stops."""
        stops = (
            self.page_and_question,
            self.prompt,
            self.rollouts,
            self.rewards_and_advantages,
            self.loss,
        )
        return {name: str(value) for stop in stops for name, value in stop().items()}

    def page_and_question(self) -> dict:
        """Stops 1 and 2: a chain of facts that starts on a page, asked about."""
        path = self.start.world.follow(START, RELATIONS)
        self.task = search_task(Chain(START, RELATIONS, path[-1]), self.start.world, wording=0)
        page = self.start.world.page(self.task.start)
        return {
            "page": page.text,
            "title": page.title,
            "question": self.task.question,
            "chain": " -> ".join([self.task.start, *path]),
            "relations": " -> ".join(self.task.relations),
            "answer": self.task.answer,
            "task_id": self.task.id,
        }

    def roll(self) -> list:
        """Eight tries at the task, rewarded, as a step of the stage `rl` makes them."""
        limits = limits_of(self.config)
        policy = self.start.policy.eval()
        engine = LocalEngine(policy, max_context=limits.context_tokens, lockstep=True)
        agent = ReAct(engine, self.start.toolbox, self.start.chat, limits)
        return sample_rollouts(agent, [self.task], {}, self.config, step=0)

    def prompt(self) -> dict:
        """Stop 3: the text that the policy is given, and its ids."""
        ids = self.start.chat.prompt(self.task.question)
        shown = self.start.chat.tokenizer.decode(ids)
        return {"prompt": shown, "prompt_ids": ids, "prompt_tokens": len(ids)}

    def rollouts(self) -> dict:
        """Stops 4 and 5: the first turn of the first try that is right, and what the tool said."""
        self.trajectories = self.roll()
        self.told = next(i for i, t in enumerate(self.trajectories) if t.reward == 1.0)
        first = self.trajectories[self.told]
        turn_1 = first.generated & (first.turns == 0)
        chances = [f"{p:.3f}" for p in torch.tensor(first.logprobs[turn_1]).exp().tolist()]
        result = first.tool_results[0]
        said = [m["content"] for m in first.messages if m["role"] == "assistant"]
        return {
            "try": self.told + 1,
            "turn": said[0],
            "turn_tokens": int(turn_1.sum()),
            "turn_chances": ", ".join(chances[:8]),
            "tool": f"{result.tool}({result.arguments})",
            "result": result.text,
            "later": "\n".join(said[1:]),
            "termination": first.termination.value,
            "tokens": len(first),
            "generated": int(first.generated.sum()),
        }

    def rewards_and_advantages(self) -> dict:
        """Stops 6 and 7: each try's answer, reward and advantage."""
        self.advantages_N, self.weights_N, _ = advantages_of(self.trajectories, self.config)
        for trajectory in self.trajectories:
            assert trajectory.reward == exact_match()(trajectory, self.task).value
        rows = [
            f"| {i} | {t.answer or 'none'} | {t.termination.value} | {len(t.tool_results)} "
            f"| {int(t.generated.sum())} | {t.reward:.0f} | {advantage:+.3f} |"
            for i, (t, advantage) in enumerate(zip(self.trajectories, self.advantages_N), 1)
        ]
        right = sum(t.reward == 1.0 for t in self.trajectories)
        others = f"{right - 1}/{GROUP - 1}"
        return {
            "group": "\n".join(rows),
            "right": right,
            "others": others,
            "advantage": f"1 - {others} = {float(self.advantages_N[self.told]):+.3f}",
        }

    def loss(self) -> dict:
        """Stop 8: the group as an update of its own, without the balance loss."""
        config = self.config.derive(trainer__balance_coef=0.0)
        model = copy.deepcopy(self.start.policy).train()
        share = RolloutBatch(self.trajectories, self.advantages_N, self.weights_N)
        row = learn(model, [share], config, Ranks())
        lengths_N = torch.tensor([float(t.generated.sum()) for t in self.trajectories])
        by_hand = -(self.advantages_N * lengths_N).sum() / lengths_N.sum()
        assert abs(row["loss"] - float(by_hand)) < 1e-4 and row["logp_gap_max"] < 1e-4
        squares = sum(float(p.grad.square().sum()) for p in model.parameters())
        return {
            "denominator": row["tokens"],
            "push": f"{float(self.advantages_N[self.told]) / row['tokens']:+.6f}",
            "loss": f"{row['loss']:+.4f}",
            "by_hand": f"{float(by_hand):+.4f}",
            "gradient": f"{squares**0.5:.2f}",
        }


def page(values: dict[str, str]) -> str:
    """The text with its values filled in."""
    text = TEXT.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"<<{name}>>", value)
    return text


if __name__ == "__main__":
    cold = ColdStart()
    print(write_atomic(PAGE, page(Walk(cold).values())))
    cold.close()
