"""Supervised training with TRL: stages `cpt`, `sft` and `sft_continued` of trainer.backend=trl.

Rows are token ids assembled as in a rollout (`drlib.demonstrations.actions`), never re-tokenised
text. Labels are -100 except on the model's own tokens; TRL would silently ignore a
`completion_mask`. Several samples are packed into a row with restarting position ids and without an
attention mask, so that they do not see each other; with transformers' sdpa attention this holds on
CPUs, too (tested).

A stage draws as many samples as the local loop would, packs and shuffles them once, and divides the
rows of a step among micro-batches and processes. Training in two stages of length (Tongyi
DeepResearch, section 3.3): pass several datasets to `train`.

Not supported: evaluation during training; Muon (TRL uses AdamW with adam_lr).
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
from drlib.demonstrations.oracle import Episode
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

IGNORED = -100  # label of a token without loss


def sft_dataset(rows: Iterable, chat: ChatIds, max_tokens: int | None = None) -> Dataset:
    """Build `input_ids` and `labels` from samples, trajectories, episodes or messages.

    Raises:
        ValueError: no rows, or a row exceeds `max_tokens` (TRL would truncate its answer).
    """
    columns: dict[str, list] = {"input_ids": [], "labels": []}
    for number, row in enumerate(rows, 1):
        if isinstance(row, Episode) and row.record is not None:
            row = row.record  # with the sampled tokens
        if isinstance(row, Trajectory):
            row = Sample(tuple(row.token_ids.tolist()), tuple(row.generated.tolist()))
        elif not isinstance(row, Sample):
            row = episode_sample(getattr(row, "messages", row), chat)
        if max_tokens is not None and len(row) > max_tokens:
            raise ValueError(
                f"row {number} has {len(row)} tokens, more than max_tokens={max_tokens}: raise it"
            )
        columns["input_ids"].append([*row.ids])
        columns["labels"].append([i if loss else IGNORED for i, loss in zip(row.ids, row.loss)])
    if not columns["labels"]:
        raise ValueError("no rows to train on: check the filter of the demonstrations")
    return Dataset.from_dict(columns)


def create_sft_trainer(model, tokenizer, dataset: Dataset, length: int, folder: str, **options):
    """Create an `SFTTrainer` with packed rows of `length` tokens; options: `SFTConfig` fields."""
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
    """Train a checkpoint through `stages` of (rows, tokens per packed row); return TRL's metrics.

    A Hugging Face folder is written atomically to `output_dir`.

    Args:
        stages: rows as for `sft_dataset`.
        options: fields of `SFTConfig`, for all stages.

    Raises:
        ValueError: see `sft_dataset`.
        FileNotFoundError: the model has no weights.
    """
    model, tokenizer = load_policy(model_dir)
    chat, metrics = ChatIds(tokenizer), []
    with tempfile.TemporaryDirectory() as scratch:  # TRL's files
        for rows, length in stages:
            dataset = sft_dataset(rows, chat, length)
            trainer = create_sft_trainer(model, tokenizer, dataset, length, scratch, **options)
            metrics.append(trainer.train().metrics)
    save_policy(model, tokenizer, output_dir)
    return metrics


def pretrain(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Run stage `cpt`: agentic continual pre-training; pretrain.steps=0 keeps the model."""
    stage = _Stage("cpt", "untrained", config, run_dir, ranks)
    if config.pretrain.steps == 0:
        return finish_unchanged(stage.run, stage.where, {})
    draw = documents(config, stage.names, stage.chat_setup.chat)
    return stage.train(
        lambda step: draw(f"{config.seed}-{step}-0"),
        steps=config.pretrain.steps,
        tokens=config.pretrain.batch_tokens,
        lr=config.pretrain.adam_lr,
        warmup=config.pretrain.warmup_steps,
    )


def sft(config: Config, run_dir: Path, ranks: Ranks | None = None, name: str = "sft") -> dict:
    """Run stage `sft` (or `name`): cold start on the rollouts that sft.filter keeps."""
    stage = _Stage(name, stages.STAGES[name].inputs[0], config, run_dir, ranks)
    folder = stages.require_input(name, "demonstrations", config, run_dir.parents[1])
    episodes = read_episodes(folder, config.sft.filter)
    require(
        len(episodes) > 0,
        f"sft.filter={config.sft.filter!r} keeps no demonstration in {folder}: none is correct; "
        "set demonstrations.teacher=solver, or raise demonstrations.rollouts",
    )
    chat, system = stage.chat_setup
    draw, pool_size = mixture(name, episodes, stage.names, chat, config, system)
    return stage.train(
        lambda step: draw(step, 0),
        steps=config.get(stages.STAGES[name].steps),
        tokens=config.sft.batch_tokens,
        lr=config.sft.adam_lr,
        warmup=WARMUP_STEPS,
        metrics={"pool": pool_size},
    )


class _Stage:
    """Setup shared by the supervised stages, and their training."""

    def __init__(self, name: str, before: str, config: Config, run_dir: Path, ranks: Ranks | None):
        runs = run_dir.parents[1]
        self.config = config
        self.run = RunFolder(
            run_dir, stages.stage_settings(name, config), ranks, config.trainer.report_to
        )
        self.where = find_policy(stages.require_input(name, before, config, runs))
        self.tokenizer = load_model_tokenizer(self.where)
        self.chat_setup = build_chat(self.tokenizer, config.model.tool_format)
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
        """Train; return the metrics of the last step.

        Args:
            draw: step -> endless samples.
            tokens: tokens of a step, over all processes.
        """
        config = self.config
        rows = tokens // config.trainer.pack_tokens
        require(
            rows > 0, f"a step of {tokens} tokens is shorter than a row: lower trainer.pack_tokens"
        )
        samples = [sample for step in range(steps) for sample in _take(draw(step), tokens)]
        dataset = sft_dataset(samples, self.chat_setup.chat, config.trainer.pack_tokens)
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
            router_aux_loss_coef=balance_coefficient(self.where, config.trainer.balance_coef),
        )
        checkpoint = find_checkpoint(Path(args.output_dir), self.run)
        model = load_trainable_model(self.where, checkpoint, config)
        trainer = SFTTrainer(
            model=model,
            args=args,
            train_dataset=dataset,
            processing_class=self.tokenizer,
            peft_config=build_lora_config(model, config.trainer.lora_rank),
        )
        last = run_trainer(self.run, trainer, checkpoint)
        return save_trained_model(self.run, trainer, self.tokenizer, config, last | (metrics or {}))


def _take(samples: Iterator[Sample], tokens: int) -> Iterator[Sample]:
    """Yield samples until they fill a step."""
    count = 0
    while count < tokens:
        sample = next(samples)
        count += len(sample)
        yield sample
