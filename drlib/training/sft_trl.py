"""Supervised training by TRL: stages `cpt`, `sft` and `sft_continued` of `trainer.backend=trl`.

The rows are token ids put together as a rollout would (`drlib.demonstrations.actions`), never text that
is tokenised again, with labels on what the model wrote and -100 elsewhere; TRL leaves such labels
alone (a `completion_mask` it would silently ignore). Packing: several samples share a row, position
ids start again at each, and no attention mask is passed, so that they do not see each other; with
transformers' sdpa attention that holds on a CPU too (a test does), flash attention is not needed.

A stage draws what the local loop would: as many samples as its steps take. They are packed and
shuffled once, and `trainer.device_batch`, processes and accumulation share the rows of a step.

Tongyi DeepResearch's report (section 3.3) trains in two stages by length; in `train` a stage is a
dataset and the length of its rows (`drlib.demonstrations.episodes.length_stages` parts the
samples).

Left out: evaluation during training; Muon (the local loop's): TRL's optimizer is AdamW, with the
stage's `adam_lr`.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.demonstrations.actions import Sample, episode_sample
from drlib.models.moe import load_policy, save_policy
from drlib.training import stages
from drlib.training.data import WORLD_FILE, read_episodes
from drlib.training.distributed import Ranks
from drlib.training.model_setup import (
    build_chat,
    build_lora_config,
    find_policy,
    finish_unchanged,
    load_model_tokenizer,
    load_trainable_model,
    save_trained_model,
)
from drlib.training.pretrain import documents
from drlib.training.run_folder import RunFolder
from drlib.training.sft import WARMUP_STEPS, mixture
from drlib.training.trl import (
    balance_coefficient,
    build_arguments,
    disable_cudnn_attention,
    find_checkpoint,
    run_trainer,
)
from drlib.trajectory import Trajectory
from drlib.validation import require
from drlib.worlds import Names, SmallWorld

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
    disable_cudnn_attention()
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


def pretrain(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `cpt`: agentic continual pre-training; a real model may do without (`pretrain.steps=0`)."""
    stage = _Stage("cpt", "untrained", config, run_dir, ranks)
    if config.pretrain.steps == 0:
        return finish_unchanged(stage.run, stage.where, {})
    draw = documents(config, stage.names, stage.told.chat)
    return stage.train(
        lambda step: draw(f"{config.seed}-{step}-0"),
        steps=config.pretrain.steps,
        tokens=config.pretrain.batch_tokens,
        lr=config.pretrain.adam_lr,
        warmup=config.pretrain.warmup_steps,
    )


def sft(config: Config, run_dir: Path, ranks: Ranks | None = None, name: str = "sft") -> dict:
    """Stage `sft` (or `name`): the cold start on the attempts that `sft.filter` keeps."""
    stage = _Stage(name, stages.STAGES[name].inputs[0], config, run_dir, ranks)
    folder = stages.require_input(name, "demonstrations", config, run_dir.parents[1])
    episodes = read_episodes(folder, config.sft.filter)
    require(
        len(episodes) > 0,
        f"sft.filter={config.sft.filter!r} keeps no attempt of those in "
        f"{folder}: nobody answered one of these questions; set demonstrations.teacher=solver, or more attempts",
    )
    chat, system = stage.told
    draw, held = mixture(name, episodes, stage.names, chat, config, system)
    return stage.train(
        lambda step: draw(step, 0),
        steps=config.get(stages.STAGES[name].steps),
        tokens=config.sft.batch_tokens,
        lr=config.sft.adam_lr,
        warmup=WARMUP_STEPS,
        metrics={"pool": held},
    )


class _Stage:
    """What both stages begin with, and how they train."""

    def __init__(self, name: str, before: str, config: Config, run_dir: Path, ranks: Ranks | None):
        runs = run_dir.parents[1]
        self.config = config
        self.run = RunFolder(
            run_dir, stages.stage_settings(name, config), ranks, config.trainer.report_to
        )
        self.where = find_policy(stages.require_input(name, before, config, runs))
        self.tokenizer = load_model_tokenizer(self.where)
        self.told = build_chat(self.tokenizer, config)
        world = stages.require_input(name, "world", config, runs) / WORLD_FILE
        self.names = Names.from_world(SmallWorld.load(world))

    def train(
        self,
        draw: Callable[[int], Iterator[Sample]],
        *,
        steps: int,
        tokens: int,
        lr: float,
        warmup: int,
        metrics: dict | None = None,
    ) -> dict:
        """draw: step -> endless samples. tokens: of a step, over all processes."""
        config = self.config
        rows = tokens // config.trainer.pack_tokens
        require(rows > 0, f"a step of {tokens} tokens is less than one row: lower pack_tokens")
        samples = [sample for step in range(steps) for sample in _taken(draw(step), tokens)]
        dataset = sft_dataset(samples, self.told.chat, config.trainer.pack_tokens)
        args = build_arguments(
            SFTConfig,
            self.run,
            config,
            steps=steps,
            rows=rows,
            lr=lr,
            max_length=config.trainer.pack_tokens,
            packing=True,
            packing_strategy="bfd",
            warmup_steps=warmup,
            lr_scheduler_type="linear",
            router_aux_loss_coef=balance_coefficient(self.where, config),
        )
        checkpoint = find_checkpoint(Path(args.output_dir), self.run)
        model = load_trainable_model(self.where, checkpoint, config)
        trainer = SFTTrainer(
            model=model,
            args=args,
            train_dataset=dataset,
            processing_class=self.tokenizer,
            peft_config=build_lora_config(model, config),
        )
        last = run_trainer(self.run, trainer, checkpoint)
        return save_trained_model(self.run, trainer, self.tokenizer, config, last | (metrics or {}))


def _taken(samples: Iterator[Sample], tokens: int) -> Iterator[Sample]:
    """So many that they fill a step."""
    taken = 0
    while taken < tokens:
        sample = next(samples)
        taken += len(sample)
        yield sample
