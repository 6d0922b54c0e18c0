"""Text round trip: the negative control of token-in-token-out.

A server that keeps the text of a conversation decodes the sampled ids and encodes the text again.
A tokenizer has many ids for one text, and a policy samples all of them, so other ids may be trained
than those that were sampled (GLM-5, arXiv 2602.15763, section 4.1).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from drlib.config import Config
from drlib.training.learner import record
from drlib.training.rollouts import split_all_contexts
from drlib.trajectory import Trajectory
from drlib.validation import require


class RoundTrip(NamedTuple):
    """Effect of the text round trip on the policy's turns.

    Attributes:
        turns, contexts: number of both.
        changed_turns, changed_contexts: share with other ids.
        changed_lengths: share of turns with another number of ids: their stored log-probabilities
            belong to no token.
        recorded_gap: nats; mean |log p(turn) - stored log p(turn)| on the recorded ids.
        changed_gap: nats; the same for turns with other ids, log p being that of the new ids.
        history_gap: nats; the same for turns with equal ids after a turn with other ids.
    """

    turns: int
    contexts: int
    changed_turns: float
    changed_contexts: float
    changed_lengths: float
    recorded_gap: float
    changed_gap: float
    history_gap: float


def measure_round_trip(
    trajectories: Sequence[Trajectory], chat: Any, model: Any, config: Config
) -> RoundTrip:
    """Decode and encode all sampled turns, and score both versions.

    Args:
        trajectories: sampled by `model`, with their log-probabilities.
        chat: `ChatIds` or `TemplateIds` of the model.
        model: the policy.
        config: rl.temperature of the rollouts, and rollout.max_context_tokens.

    Raises:
        ValueError: there is no sampled turn.
    """
    contexts, _ = split_all_contexts(trajectories)
    recoded = [recode_turns(context, chat) for context in contexts]
    before = record(model.eval(), contexts, config)
    after = record(model.eval(), [context for context, _ in recoded], config)
    rows = []  # per turn: other ids, other length, other ids before it, stored, before, after
    for old, (new, new_spans), old_T, new_T in zip(contexts, recoded, before, after):
        has_changed = False
        for (a, b), (c, d) in zip(find_turns(old.generated), new_spans):
            differs = not np.array_equal(old.token_ids[a:b], new.token_ids[c:d])
            sums = old.logprobs[a:b].sum(), old_T[a:b].sum(), new_T[c:d].sum()
            rows.append((differs, b - a != d - c, has_changed, *sums))
            has_changed |= differs
    require(bool(rows), "no trajectory has a sampled turn")
    differs, lengths, after_change, stored, old_sums, new_sums = np.array(rows, float).T
    differs, gaps = differs > 0, np.abs(new_sums - stored)
    is_later = (after_change > 0) & ~differs
    changed = [not np.array_equal(a.token_ids, b.token_ids) for a, (b, _) in zip(contexts, recoded)]
    return RoundTrip(
        len(rows),
        len(contexts),
        float(differs.mean()),
        float(np.mean(changed)),
        float(lengths.mean()),
        float(np.abs(old_sums - stored).mean()),
        float(gaps[differs].mean()) if differs.any() else 0.0,
        float(gaps[is_later].mean()) if is_later.any() else 0.0,
    )


def find_turns(generated: np.ndarray) -> list[tuple[int, int]]:
    """Return (start, end) of each run of sampled tokens."""
    change = np.diff(generated.astype(np.int8), prepend=0, append=0)
    return list(zip(np.flatnonzero(change > 0).tolist(), np.flatnonzero(change < 0).tolist()))


def recode_turns(context: Trajectory, chat: Any) -> tuple[Trajectory, list[tuple[int, int]]]:
    """Return a context after the text round trip of its sampled turns, and their new spans."""
    ids: list[int] = []
    spans, end = [], 0
    for start, stop in find_turns(context.generated):
        ids += context.token_ids[end:start].tolist()
        turn = chat.encode(
            chat.tokenizer.decode(context.token_ids[start:stop], skip_special_tokens=False)
        )
        spans.append((len(ids), len(ids) + len(turn)))
        ids, end = ids + turn, stop
    ids += context.token_ids[end:].tolist()
    generated = np.zeros(len(ids), bool)
    for start, stop in spans:
        generated[start:stop] = True
    zeros = np.zeros(len(ids))
    return (
        replace(
            context,
            token_ids=np.array(ids, np.int32),
            generated=generated,
            logprobs=zeros.astype(np.float32),
            entropies=None,
            segments=zeros.astype(np.uint8),
            turns=zeros.astype(np.uint16),
            versions=zeros.astype(np.int32),
            routed_experts=None,
            top_ids=None,
            top_logprobs=None,
        ),
        spans,
    )
