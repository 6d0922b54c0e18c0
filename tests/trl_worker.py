"""One of two processes of TRL steps: `torchrun -m tests.trl_worker CHECKPOINT OUT HOW:ROUTING ..`.

HOW: "ddp" as TRL has it on two CPUs; "fsdp2", accelerate's own sharding and recomputation of the
model (accelerate ignores FSDP settings without a GPU, so they are applied here); "fsdp2_bf16" with
its mixed precision. Writes the whole gradients, the log-probabilities in the loss and the metrics
of each.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_apply_ac, fsdp2_prepare_model
from torch.nn.parallel import DistributedDataParallel

from drlib.training.distributed import leave_at_once
from tests.test_training_trl_moe import GROUP, MOVED, REWARDS, Engine, inputs
from tests.trl_examples import move_routers, trainer


def wrapped(made, how):
    if how == "ddp":
        return DistributedDataParallel(made.model)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, activation_checkpointing=True, auto_wrap_policy="transformer_based_wrap"
    )
    if how == "fsdp2_bf16":
        plugin.set_mixed_precision("bf16")
    made.accelerator.state.fsdp_plugin = plugin
    return fsdp2_prepare_model(made.accelerator, fsdp2_apply_ac(made.accelerator, made.model))


def gradients(model):
    found = {}
    for name, p in model.named_parameters():
        gradient = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        found[name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")] = gradient
    return found


def step(checkpoint: str, out: str, how: str, routing: str) -> None:
    engine = Engine(Path(checkpoint))
    made = trainer(
        Path(checkpoint),
        Path(out),
        lambda **_: REWARDS[own],
        {"gradient_accumulation_steps": 1},
        rollout_func=lambda *known: {k: v[own] for k, v in engine(*known).items()},
        routing=routing,
    )
    first = made.accelerator.process_index * GROUP
    own = slice(first, first + GROUP)
    move_routers(made.model, MOVED)
    model = wrapped(made, how)
    batch = made._generate_and_score_completions(inputs()[own])
    scored = []
    score = made._score_for_loss
    made._score_for_loss = lambda *known: scored.append(score(*known)) or scored[-1]
    with ExitStack() as made._until_backward:
        made._compute_loss(model, batch).backward()
    whole = gradients(model)
    metrics = made.routing.metrics(made._sum_over_processes)
    if made.accelerator.is_main_process:
        logp_BC = scored[0].logp_BT.detach()
        torch.save((whole, logp_BC, metrics), Path(out, f"{how}_{routing}.pt"))


if __name__ == "__main__":
    for case in sys.argv[3:]:
        step(*sys.argv[1:3], *case.split(":"))
    torch.distributed.barrier()
    leave_at_once()
