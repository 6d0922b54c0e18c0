"""Supervised fine-tuning by TRL's trainer: for models and machines beyond the tour's own loop.

The rows are token ids put together as a rollout would (`drlib.synthesis.actions`), never text that
is tokenised again, with labels on what the model wrote and -100 elsewhere; TRL leaves such labels
alone (a `completion_mask` it would silently ignore). Packing: several samples share a row, position
ids start again at each, and no attention mask is passed, so that they do not see each other; with
transformers' sdpa attention that holds on a CPU too (a test does), flash attention is not needed.

Tongyi DeepResearch's report (section 3.3) trains in two stages by length; a stage is a dataset and
the length of its rows (`drlib.synthesis.demonstrations.length_stages` parts the samples).

Left out: LoRA, evaluation during training (give them to `SFTTrainer` itself).
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from drlib.chat import ChatIds
from drlib.policy.moe import load_policy, save_policy
from drlib.synthesis.actions import Sample, episode_sample
from drlib.trajectory import Trajectory

IGNORED = -100  # the label of a token without loss


def sft_dataset(rows: Iterable, chat: ChatIds, max_tokens: int | None = None) -> Dataset:
    """`input_ids` and `labels` of `Sample`s, trajectories, episodes or messages, one row each.

    ValueError: no rows, or one has more than `max_tokens` (TRL would cut off its answer).
    """
    columns = {"input_ids": [], "labels": []}
    for number, row in enumerate(rows, 1):
        row = getattr(row, "record", row)  # of an episode: what was sampled
        if isinstance(row, Trajectory):
            row = Sample(tuple(row.token_ids.tolist()), tuple(row.generated.tolist()))
        elif not isinstance(row, Sample):
            row = episode_sample(getattr(row, "messages", row), chat)
        if max_tokens is not None and len(row) > max_tokens:
            raise ValueError(
                f"row {number} has {len(row)} tokens of {max_tokens}: raise the "
                "limit, or leave it out"
            )
        columns["input_ids"].append([*row.ids])
        columns["labels"].append([i if loss else IGNORED for i, loss in zip(row.ids, row.loss)])
    if not columns["labels"]:
        raise ValueError("no rows to train on: did the funnel reject all?")
    return Dataset.from_dict(columns)


def trainer_of(model, tokenizer, dataset: Dataset, length: int, folder: str, **options):
    """An `SFTTrainer` that packs rows of `length` tokens; `options` are fields of `SFTConfig`."""
    cuda = torch.cuda.is_available()
    settings = dict(
        output_dir=folder,
        max_length=length,
        packing=True,
        packing_strategy="bfd",
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        per_device_train_batch_size=1,
        bf16=cuda,
        use_cpu=not cuda,
        gradient_checkpointing=cuda,
    )
    args = SFTConfig(**settings | options)
    return SFTTrainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer)


def train(
    model_dir: str | Path, stages: Sequence[tuple[Sequence, int]], output_dir: str | Path, **options
) -> list[dict]:
    """Train a checkpoint through `stages` of (rows, tokens of a packed row); a Hugging Face folder
    comes out at `output_dir`, whole or not at all. Returns TRL's metrics of each stage.

    rows: what `sft_dataset` takes. options: fields of `SFTConfig`, of all stages. ValueError as
    `sft_dataset`; FileNotFoundError for a model without weights.
    """
    model, tokenizer = load_policy(model_dir)
    chat, metrics = ChatIds(tokenizer), []
    with tempfile.TemporaryDirectory() as scratch:  # TRL's own files
        for rows, length in stages:
            dataset = sft_dataset(rows, chat, length)
            trainer = trainer_of(model, tokenizer, dataset, length, scratch, **options)
            metrics.append(trainer.train().metrics)
    save_policy(model, tokenizer, output_dir)
    return metrics
