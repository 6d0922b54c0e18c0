"""Trajectories with planted entropies, for the tests of `drlib.analysis`."""

import numpy as np

from drlib.trajectory import Segment, Termination, ToolResult, Trajectory

STATUS = {
    "ok": (True, "", "found it"),
    "error": (False, "error", "Error: no"),
    "empty": (False, "empty", ""),
}


def rollout(name, turns, statuses=(), **fields):
    """Return a trajectory: a prompt of 3 tokens, then `turns` with 4-token responses between them.

    turns: entropies of each turn's tokens; all are thoughts with ids 100, 101, ... in order.
    statuses: status of the response after each turn but the last.
    """
    entropies = [0.0] * 3
    generated = [False] * 3
    segments = [0] * 3
    at_turn = [0] * 3
    for i, turn in enumerate(turns):
        if i:
            tags = [Segment.TEMPLATE, Segment.TOOL_RESPONSE, Segment.TEMPLATE, Segment.TEMPLATE]
            if statuses[i - 1] == "empty":
                tags[1] = Segment.TEMPLATE
            entropies += [0.0] * 4
            generated += [False] * 4
            segments += tags
            at_turn += [i] * 4
        entropies += list(turn)
        generated += [True] * len(turn)
        segments += [Segment.THINK] * len(turn)
        at_turn += [i] * len(turn)
    n = len(entropies)
    sampled = np.array(generated)
    ids = np.where(sampled, 99 + np.cumsum(sampled), 7).astype(np.int32)
    results = [ToolResult("search", {}, STATUS[s][2], *STATUS[s][:2]) for s in statuses]
    values = dict(
        id=name,
        task_id="q",
        group_id="g",
        world_version="w",
        policy_version=0,
        token_ids=ids,
        generated=sampled,
        logprobs=np.where(sampled, -0.5, 0).astype(np.float32),
        entropies=np.array(entropies, np.float32),
        segments=np.array(segments, np.uint8),
        turns=np.array(at_turn, np.uint16),
        versions=np.zeros(n, np.int32),
        routed_experts=None,
        tool_results=results,
        termination=Termination.ANSWERED,
        answer="Oslo",
        reward=None,
        reward_parts={},
        messages=[],
        metadata={},
    )
    return Trajectory(**{**values, **fields})
