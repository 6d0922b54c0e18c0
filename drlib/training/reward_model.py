"""Training of an outcome model with TRL's RewardTrainer on pairs of judged rollouts.

A pair is a right and a wrong rollout of one question. The model is the policy with a new head of
one label, trained with the Bradley-Terry loss. A fifth of the questions is held out.
"""

import itertools
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from trl import RewardConfig, RewardTrainer

from drlib.chat.template import load_any_tokenizer
from drlib.models.moe import save_policy
from drlib.models.outcome_scorer import OutcomeScorer, start_outcome_model
from drlib.rewards.outcome_model import last_context
from drlib.trajectory import Trajectory
from drlib.validation import require

HELD_OUT = 5  # one question of so many
Pair = tuple[list[int], list[int]]  # token ids of a right and of a wrong rollout


def pair_rollouts(
    trajectories: Iterable[Trajectory], pairs_per_question: int = 4, seed: int = 0
) -> dict[str, list[Pair]]:
    """Return pairs of a right and a wrong rollout by question, drawn at random.

    Rollouts are right or wrong by `reward_parts["correct"]`, not by their reward.
    """
    groups: dict[str, tuple[list, list]] = defaultdict(lambda: ([], []))
    for trajectory in trajectories:
        if trajectory.reward is not None:
            side = 0 if trajectory.reward_parts["correct"] else 1
            groups[trajectory.group_id][side].append(last_context(trajectory))
    found = {}
    for name, (right, wrong) in sorted(groups.items()):
        pairs = list(itertools.product(right, wrong))
        random.Random(f"{seed}-{name}").shuffle(pairs)
        if pairs:
            found[name] = pairs[:pairs_per_question]
    return found


def train_outcome_model(
    trajectories: Iterable[Trajectory],
    start: str | Path,
    folder: str | Path,
    *,
    epochs: float = 3.0,
    lr: float = 3e-4,
    batch: int = 16,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> dict[str, float]:
    """Train an outcome model from the policy `start` and save it in `folder`.

    Args:
        trajectories: judged rollouts, several for each question.
        dtype: dtype of the saved weights.

    Returns:
        pairs, held_out_pairs, train_accuracy and held_out_accuracy: the share of pairs in which
        the right rollout scores higher.

    Raises:
        ValueError: too few questions have both right and wrong rollouts.
    """
    groups = list(pair_rollouts(trajectories, seed=seed).values())
    held = [pair for group in groups[::HELD_OUT] for pair in group]
    pairs = [pair for i, group in enumerate(groups) if i % HELD_OUT for pair in group]
    require(
        bool(pairs),
        f"{len(groups)} questions have right and wrong rollouts: sample more, at least two",
    )
    torch.manual_seed(seed)
    model, tokenizer = start_outcome_model(start), load_any_tokenizer(start)
    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as scratch:  # TRL's files
        args = RewardConfig(
            output_dir=scratch,
            num_train_epochs=epochs,
            learning_rate=lr,
            per_device_train_batch_size=batch,
            center_rewards_coefficient=0.01,  # keeps scores near 0, where the sigmoid is steep
            max_length=None,
            seed=seed,
            bf16=cuda,
            use_cpu=not cuda,
            gradient_checkpointing=cuda,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        columns = {"chosen_ids": [a for a, _ in pairs], "rejected_ids": [b for _, b in pairs]}
        trainer = RewardTrainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_dict(columns),
            processing_class=tokenizer,
        )
        trainer.train()
    scorer = OutcomeScorer(model, save_policy(model, tokenizer, folder, dtype))
    return {
        "pairs": len(pairs),
        "held_out_pairs": len(held),
        "train_accuracy": ranking_accuracy(scorer, pairs),
        "held_out_accuracy": ranking_accuracy(scorer, held),
    }


def ranking_accuracy(scorer: OutcomeScorer, pairs: Sequence[Pair]) -> float:
    """Return the share of pairs whose right rollout scores higher; ties count half."""
    points = [(scorer.score(a) - scorer.score(b)) for a, b in pairs]
    return sum(1.0 if p > 0 else 0.5 if p == 0 else 0.0 for p in points) / max(len(points), 1)
