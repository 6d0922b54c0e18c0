"""Worker process of TRL steps, with the arguments CHECKPOINT OUT MODE:ROUTING ..

MODE is "ddp" (TRL's default on two CPUs), "fsdp2" (accelerate's sharding and recomputation) or
"fsdp2_bf16" (with mixed precision). Accelerate ignores FSDP settings without a GPU, so they are
applied here. Writes the full gradients, the log-probabilities in the loss and the metrics per case.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
from torch.nn.parallel import DistributedDataParallel

from drlib.training.distributed import leave_at_once
from tests.test_training_trl_moe import GROUP, MOVED, REWARDS, RouteEngine, inputs
from tests.trl_examples import move_routers, trainer


def wrap_model(grpo_trainer, mode):
    if mode == "ddp":
        return DistributedDataParallel(grpo_trainer.model)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, activation_checkpointing=True, auto_wrap_policy="transformer_based_wrap"
    )
    if mode == "fsdp2_bf16":
        plugin.set_mixed_precision("bf16")
    grpo_trainer.accelerator.state.fsdp_plugin = plugin
    return fsdp2_prepare_model(
        grpo_trainer.accelerator, fsdp2_apply_ac(grpo_trainer.accelerator, grpo_trainer.model)
    )


def gradients(model):
    found = {}
    for name, p in model.named_parameters():
        gradient = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        found[name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")] = gradient
    return found


def step(checkpoint: str, out: str, mode: str, routing: str) -> None:
    engine = RouteEngine(Path(checkpoint))
    grpo_trainer = trainer(
        Path(checkpoint),
        Path(out),
        lambda **_: REWARDS[rows],
        {"gradient_accumulation_steps": 1},
        rollout_func=lambda *arguments: {k: v[rows] for k, v in engine(*arguments).items()},
        routing=routing,
    )
    first = grpo_trainer.accelerator.process_index * GROUP
    rows = slice(first, first + GROUP)
    move_routers(grpo_trainer.model, MOVED)
    model = wrap_model(grpo_trainer, mode)
    batch = grpo_trainer._generate_and_score_completions(inputs()[rows])
    scored = []
    score = grpo_trainer._score_for_loss
    grpo_trainer._score_for_loss = lambda *arguments: scored.append(score(*arguments)) or scored[-1]
    with ExitStack() as grpo_trainer._until_backward:
        grpo_trainer._compute_loss(model, batch).backward()
    full_gradients = gradients(model)
    metrics = grpo_trainer.routing.metrics(grpo_trainer._sum_over_processes)
    if grpo_trainer.accelerator.is_main_process:
        logp_BC = scored[0].logp_BT.detach()
        torch.save((full_gradients, logp_BC, metrics), Path(out, f"{mode}_{routing}.pt"))


def main() -> None:
    """Take the steps of the cases on the command line, on this rank."""
    for case in sys.argv[3:]:
        step(*sys.argv[1:3], *case.split(":"))
    torch.distributed.barrier()
    leave_at_once()
