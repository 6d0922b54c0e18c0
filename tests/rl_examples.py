"""Synthetic rollouts and batches of log-probabilities for tests of `rl`."""

import dataclasses

import numpy as np
import torch

from drlib.rl.losses import policy_loss
from drlib.trajectory import Segment, Termination, ToolResult, Trajectory

CLIPS = ["ppo", "double_sided", "cispo", "none"]
F64 = torch.float64


def a_tool_result(env_fault=False):
    return ToolResult(
        tool="search",
        arguments={"query": ["x"]},
        text="1. x",
        ok=not env_fault,
        error="backend down" if env_fault else None,
        latency_s=0.1,
        attempts=1,
        source="index",
        cache_hit=False,
        degraded=False,
        env_fault=env_fault,
    )


def a_trajectory(
    termination=Termination.ANSWERED, answer="x", reward=0.0, faults=0, tokens=4, name="r-0"
):
    generated = np.arange(tokens + 1) > 0
    zeros = np.zeros(tokens + 1)
    return Trajectory(
        id=name,
        task_id="t-1",
        group_id="g-0",
        world_version="w",
        policy_version=0,
        token_ids=zeros.astype(np.int32),
        generated=generated,
        logprobs=zeros.astype(np.float32),
        entropies=None,
        segments=np.full(tokens + 1, Segment.ANSWER, dtype=np.uint8),
        turns=zeros.astype(np.uint16),
        versions=zeros.astype(np.int32),
        routed_experts=None,
        tool_results=[a_tool_result(i < faults) for i in range(2)],
        termination=termination,
        answer=answer,
        reward=reward,
        reward_parts={},
        messages=[],
        metadata={},
    )


def changed(trajectory, **changes):
    return dataclasses.replace(trajectory, **changes)


def a_format_error(reason="think is not closed."):
    return dataclasses.replace(
        a_tool_result(),
        tool="format",
        arguments={},
        text=f"Error: {reason}",
        ok=False,
        error="format",
    )


def a_batch(seed=0, sequences=6, tokens=7, shift=0.3):
    """Return a random off-policy batch: logp (leaf), behaviour, advantages, ragged mask."""
    rng = torch.Generator().manual_seed(seed)
    behaviour_BT = -torch.rand(sequences, tokens, generator=rng, dtype=torch.float64) * 3
    noise_BT = torch.randn(sequences, tokens, generator=rng, dtype=torch.float64)
    logp_BT = (behaviour_BT + shift * noise_BT).requires_grad_()
    advantages_B = torch.randn(sequences, generator=rng, dtype=torch.float64)
    mask_BT = torch.rand(sequences, tokens, generator=rng) < 0.6
    return logp_BT, behaviour_BT, advantages_B, mask_BT


def gradient(logp_BT, *args, **kwargs):
    leaf = logp_BT.detach().clone().requires_grad_()
    policy_loss(leaf, *args, **kwargs)[0].backward()
    return leaf.grad


def logs(*rows):
    """Return the logarithms, [B, T]."""
    return torch.tensor(rows, dtype=F64).log()


def two_policies(seed, actions=6):
    """Return a policy's logits (leaf), its log-probabilities, and another policy's."""
    rng = torch.Generator().manual_seed(seed)
    logits_V = torch.randn(actions, generator=rng, dtype=F64).requires_grad_()
    other_V = torch.randn(actions, generator=rng, dtype=F64).log_softmax(0)
    return logits_V, logits_V.log_softmax(0), other_V


def derivative(value, leaf):
    return torch.autograd.grad(value, leaf, retain_graph=True)[0]
