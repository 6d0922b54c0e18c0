"""A TRL trainer inside a run folder: what it is told, its lines of metrics, kills and checkpoints.

TRL and accelerate bring the loop, the processes, FSDP2, mixed precision and checkpoints; the run
folder brings what every stage of drlib has: built under another name and renamed when complete, a
line of metrics a step, resumed from the last whole checkpoint by the same command.

A checkpoint that a kill cut short lacks `trainer_state.json`, which is written last: it is deleted.
Lines of steps after the checkpoint are dropped and made again, as in the local loop.
"""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import DistributedType, PartialState
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint

from drlib.config import Config
from drlib.files import append_json_line, write_atomic
from drlib.training.distributed import Ranks
from drlib.training.optim import SKIPPED, GradientWatch
from drlib.training.run_folder import METRICS, Interrupted, RunFolder, polite_signals, read_metrics
from drlib.validation import require

Arguments = TypeVar("Arguments", bound=TrainingArguments)
CHECKPOINTS = "trl"  # their folder in the run folder
STATE = "trainer_state.json"
KEPT_CHECKPOINTS = 2  # a kill while one is written leaves the other


def trainer_arguments(
    kind: type[Arguments],
    run: RunFolder,
    config: Config,
    *,
    steps: int,
    rows: int,
    lr: float,
    **more: Any,
) -> Arguments:
    """The arguments of a TRL trainer, `kind` (SFTConfig or GRPOConfig): what both are told alike,
    and `more`. rows: of one optimizer step, over all processes.

    ValueError: the rows cannot be shared evenly; sharding without a GPU or without processes.
    """
    at_once = config.trainer.device_batch * run.ranks.size
    require(
        rows % at_once == 0,
        f"{rows} rows a step cannot be shared by {run.ranks.size} processes with "
        f"trainer.device_batch={config.trainer.device_batch}: give a number that divides them",
    )
    attend_without_cudnn()
    cuda = torch.cuda.is_available()
    options: dict[str, Any] = {
        "output_dir": str(run.path / CHECKPOINTS),
        "max_steps": steps,
        "per_device_train_batch_size": config.trainer.device_batch,
        "gradient_accumulation_steps": rows // at_once,
        "learning_rate": lr,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": config.model.dtype == "bfloat16",
        "use_cpu": not cuda,
        "gradient_checkpointing": config.trainer.gradient_checkpointing,
        "seed": config.seed,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": config.trainer.checkpoint_every,
        "save_total_limit": KEPT_CHECKPOINTS,
        "report_to": [],  # `StepLines` shows the lines, as the local loop does
        "disable_tqdm": True,
    }
    if config.trainer.fsdp:
        require(
            run.ranks.size > 1,
            "trainer.fsdp=true shards over processes: set processes to 2 or more",
        )
        options["fsdp"] = True
        options["fsdp_config"] = {"version": 2}
        if config.trainer.gradient_checkpointing:  # FSDP2 has its own, which gathers a layer once
            options["gradient_checkpointing"] = False
            options["fsdp_config"]["activation_checkpointing"] = True
    arguments = kind(**options, **more)
    if config.trainer.fsdp and not cuda:
        _let_accelerate_shard_on_a_cpu(arguments)
    return arguments


def _let_accelerate_shard_on_a_cpu(arguments: TrainingArguments) -> None:
    """Accelerate looks at a request to shard only where the processes have devices, and drops it
    without a word elsewhere. Gloo shards as well: for tests of what eight GPUs will run."""
    _ = arguments.device  # its set-up forgets what was said before
    PartialState()._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def balance_of(where: str, config: Config) -> float:
    """The weight of the experts' load-balancing loss; the model at `where` has none if dense."""
    has_experts = hasattr(AutoConfig.from_pretrained(where), "num_experts")
    return config.trainer.balance_coef if has_experts else 0.0


def attend_without_cudnn() -> None:
    """Leave attention to torch's other kernels, in this process, from now on.

    torch prefers cuDNN's on Hopper, whose backward pass in half precision gives NaN where there is
    a mask and a row has 128 n + 64 tokens (torch's issue 196678; seen here on an H200 with torch
    2.11: figures/reference/gpu/cudnn).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def gradient_is_finite(model: nn.Module, ranks: Ranks) -> bool:
    """In all processes; of a sharded model each looks at its own part."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    parts = [g.to_local() if isinstance(g, DTensor) else g for g in found]
    own = torch.stack([g.isfinite().all() for g in parts]).all() if parts else torch.tensor(True)
    return ranks.sum({"broken": float(not own)})["broken"] == 0


class StepLines(TrainerCallback):
    """A line of metrics a step, and a polite end at Ctrl-C: a checkpoint at the step's end.

    A step whose gradient is not finite is not taken, and its line says so under "skipped".

    is_dead: whether nothing asked for an update in this step, which is then not taken: the
    balance loss and the optimizer's momentum alone would move the weights.
    """

    def __init__(self, run: RunFolder, is_dead: Callable[[], bool]):
        self.run = run
        self.is_dead = is_dead
        self.asked = False
        self._watch = GradientWatch()
        self._skipped: dict = {}  # what the step's line says of it
        self._old: dict = {}
        self._seconds = 0.0  # of the last step

    def on_train_begin(self, args, state, control, **_):
        log = self.run.path / METRICS
        if self.run.ranks.first and log.exists():
            lines = log.read_bytes().splitlines(keepends=True)
            write_atomic(log, b"".join(lines[: state.global_step]))
        self._shown = self.run.reporter(state.global_step)
        self._old = {each: signal.signal(each, self._ask) for each in polite_signals()}

    def _ask(self, *_) -> None:
        self.asked = True

    def on_step_begin(self, args, state, control, **_):
        self._began = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **_):
        if self.run.ranks.first and "loss" in (logs or {}):
            row = {"step": state.global_step, **logs, **self._skipped, "seconds": self._seconds}
            append_json_line(self.run.path / METRICS, row)
            self._shown.show(state.global_step, row)

    def on_step_end(self, args, state, control, **_):
        self._seconds = round(time.perf_counter() - self._began, 3)
        if self.run.ranks.sum({"asked": float(self.asked)})["asked"] > 0:
            self.asked = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        wanted = not self.is_dead()
        is_finite = not wanted or gradient_is_finite(model, self.run.ranks)
        self._skipped = {} if self._watch.usable(is_finite) else {"skipped": SKIPPED}
        if not wanted or not is_finite:
            model.zero_grad(set_to_none=True)  # and the optimizer leaves every weight alone

    def on_train_end(self, args, state, control, **_):
        self._shown.close()
        for each, handler in self._old.items():
            signal.signal(each, handler)


def train_in(
    run: RunFolder,
    trainer,
    checkpoint: str | None,
    is_dead: Callable[[], bool] = lambda: False,
) -> dict:
    """Train to the end, from `checkpoint` where there is one; the last line of metrics.

    is_dead: as of `StepLines`.

    Interrupted: somebody asked to stop, and a checkpoint was written.
    """
    lines = StepLines(run, is_dead)
    trainer.add_callback(lines)
    trainer.train(resume_from_checkpoint=checkpoint)
    if lines.asked:
        raise Interrupted
    run.ranks.barrier()  # the first one has written its last line
    return read_metrics(run.path)[-1]


def last_checkpoint(folder: Path, run: RunFolder) -> str | None:
    """The newest whole checkpoint; those that a kill cut short are deleted."""
    if run.ranks.first and folder.is_dir():
        for each in folder.glob("checkpoint-*"):
            if not _is_whole(each):
                shutil.rmtree(each)
    run.ranks.barrier()
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def _is_whole(checkpoint: Path) -> bool:
    try:
        TrainerState.load_from_json(str(checkpoint / STATE))
    except (OSError, ValueError):
        return False
    return True
