"""Entropies: agreement with a plain softmax, valid bounds, and masks of the exact size.

Run: python -m pytest tests/test_analysis_entropy.py
"""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Qwen3MoeForCausalLM,
)

from drlib.analysis import entropy_plots
from drlib.analysis.entropy import (
    entropy_bounds,
    high_entropy,
    high_entropy_overlap,
    select_top_share,
    summarize_entropy,
)
from drlib.analysis.rescoring import rescore
from drlib.analysis.token_table import find_responses, judge_outcome, token_statistics
from drlib.models.moe import PolicyShape, build_policy
from drlib.models.routing_replay import record_routes
from drlib.trajectory import (
    Segment,
    ToolResult,
    load_trajectories,
    save_trajectories,
    select_tokens,
)
from tests.analysis_examples import rollout

TOUR = "figures/reference/tour"
SMALL = dict(
    vocab_size=150,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=48,
    max_position_embeddings=64,
)


def build_model(kind):
    torch.manual_seed(0)
    if kind == "policy":
        shape = PolicyShape(vocab_size=150, hidden=32, layers=2, heads=2, experts=4)
        return build_policy(shape, 0, "plain").eval()
    own = {
        "gpt2": dict(vocab_size=150, n_embd=32, n_layer=2, n_head=2, n_positions=64),
        "gemma2": {**SMALL, "head_dim": 16, "final_logit_softcapping": 0.5},
    }
    config = AutoConfig.for_model(kind, **own.get(kind, SMALL))
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # far from uniform, so that entropies differ
        parameter.data.mul_(4)
    return model


def rollouts(seed=0, sizes=((5, 3), (9,), (2, 8, 4))):
    rng = np.random.default_rng(seed)
    trajectories = [
        rollout(f"t{i}", [[0.0] * n for n in turns], ["ok"] * (len(turns) - 1))
        for i, turns in enumerate(sizes)
    ]
    return [
        replace(t, token_ids=rng.integers(150, size=len(t)).astype(np.int32)) for t in trajectories
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kind", ["policy", "llama", "gpt2", "gemma2"])
def test_rescored_values_equal_a_plain_softmax(kind, temperature):
    """gemma2 caps its logits, so hidden states times the output matrix would be wrong."""
    model = build_model(kind)
    for top_k in (0, 3):
        found = list(
            rescore(model, rollouts(), temperature=temperature, top_k=top_k, batch_tokens=30)
        )
        for before, after in zip(rollouts(), found):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor(before.token_ids.tolist())[None]).logits[0]
            logp = (logits.double() / temperature).log_softmax(-1)
            for t in np.flatnonzero(before.generated):
                expected = logp[t - 1]
                own = expected[before.token_ids[t]].item()
                assert after.logprobs[t] == pytest.approx(own, abs=1e-4)
                h = -(expected.exp() * expected).sum()
                assert after.entropies[t] == pytest.approx(h.item(), abs=1e-4)
                if top_k:
                    values, ids = expected.topk(top_k)
                    assert after.top_ids[t].tolist() == ids.tolist()
                    assert after.top_logprobs[t] == pytest.approx(values.numpy(), abs=1e-4)
            assert not after.entropies[~before.generated].any()
            assert (after.top_ids is None) == (top_k == 0)


def test_batching_does_not_change_experts_or_entropies():
    model = build_model("policy")
    assert isinstance(model, Qwen3MoeForCausalLM)
    together = list(rescore(model, rollouts(), experts=True))
    for t, alone in zip(together, rollouts()):
        with torch.no_grad(), record_routes(model) as routes:
            model(input_ids=torch.tensor(alone.token_ids.tolist())[None])
        assert t.routed_experts.shape == (len(alone), 2, 2)
        assert np.array_equal(t.routed_experts, routes.passes[0].transpose(0, 1).numpy())
    each = [next(rescore(model, [t], experts=True)) for t in rollouts()]
    for a, b in zip(together, each):
        assert a.entropies == pytest.approx(b.entropies, abs=1e-6)


def test_rescoring_leaves_no_hooks_or_gradient_state():
    model = build_model("policy")
    streams = [rescore(model, rollouts(), experts=True, batch_tokens=1) for _ in "ab"]
    for _ in zip(*streams):
        assert torch.is_grad_enabled() and not model.model._forward_pre_hooks
    next(rescore(model, rollouts(), experts=True))  # abandoned before its end
    assert torch.is_grad_enabled() and not model.model._forward_pre_hooks


def test_first_token_without_context_is_excluded():
    t = rollouts()[0]
    (found,) = rescore(build_model("policy"), [replace(t, generated=np.ones(len(t), bool))])
    assert np.isnan(found.entropies[0]) and np.isfinite(found.entropies[1:]).all()
    table = token_statistics([found])
    assert (
        table.position.tolist() == list(range(1, 15)) and summarize_entropy(table)["tokens"] == 14
    )


def test_invalid_rescoring_options_are_rejected():
    model = build_model("llama")
    for options, message in (
        (dict(temperature=0.0), "above 0, got 0.0"),
        (dict(top_k=151), "0..150"),
        (dict(temperature=math.nan), "above 0, got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            next(rescore(model, rollouts(), **options))
    with pytest.raises(ValueError, match=r"training mode; call model.eval\(\) first"):
        next(rescore(model.train(), rollouts()))
    nothing = rollout("none", [])
    nothing = select_tokens(nothing, np.zeros(len(nothing), bool))
    assert len(next(rescore(model.eval(), [nothing], top_k=2))) == 0


def test_output_head_with_a_bias_is_exact():
    model = build_model("llama")
    model.lm_head.bias = torch.nn.Parameter(torch.linspace(-3, 3, 150))
    (t, *_), (found, *_) = rollouts(), rescore(model, rollouts())
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(t.token_ids.tolist())[None]).logits[0].double()
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    at = np.flatnonzero(t.generated)
    assert found.entropies[at] == pytest.approx(entropy[at - 1].numpy(), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(token_ids=np.full(15, 150, np.int32)), "t0 has ids beyond .* of 150: .*same tok"),
        (dict(token_ids=np.full(15, -2, np.int32)), "t0 has ids beyond"),
    ],
)
def test_ids_of_another_tokenizer_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        list(rescore(build_model("llama"), [replace(rollouts()[0], **changes)]))


def test_trajectory_beyond_the_model_positions_is_rejected():
    with pytest.raises(ValueError, match="t0 has 73 tokens, the model 64 positions"):
        list(rescore(build_model("llama"), rollouts(sizes=((70,),))))


# ---------------------------------------------------------------------------------------------
# bounds


def test_bounds_by_hand():
    low, high, tail = entropy_bounds(np.log([[0.5, 0.3], [0.25, 0.15]]), vocabulary=4)
    known = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3))
    assert low[0] == pytest.approx(known - 0.2 * math.log(0.2))  # all of it in one token
    assert high[0] == pytest.approx(known - 2 * 0.1 * math.log(0.1))  # two alike
    assert tail == pytest.approx([0.2, 0.6])
    # at most 0.15 each: 0.6 needs four tokens, the vocabulary has two left; the bounds never cross
    assert low[1] <= high[1]


def test_bounds_hold_and_are_exact_for_the_full_vocabulary():
    rng = np.random.default_rng(0)
    for scale in (0.5, 2.0, 6.0):
        logits = rng.normal(size=(300, 500)) * scale
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        entropy = -(np.exp(logp) * logp).sum(1)
        ordered = -np.sort(-logp, axis=1)
        last = np.zeros(300)
        for k in (1, 5, 20, 499):
            low, high, tail = entropy_bounds(ordered[:, :k], 500)
            top = ordered[:, :k]
            log_tail = np.log(np.maximum(tail, 1e-99))
            simple = -(np.exp(top) * top).sum(1) - tail * log_tail
            assert (low <= entropy + 1e-9).all() and (entropy <= high + 1e-9).all()
            assert (low >= simple - 1e-9).all() and (low >= last - 1e-9).all()
            last = low
        low, high, tail = entropy_bounds(ordered, 500)
        assert low == pytest.approx(entropy) and high == pytest.approx(entropy) and not tail.any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[-0.1, math.nan]], "NaN"),
        ([[0.5]], "positive"),
        ([[-0.1, -0.1]], "more than 1"),
        ([-0.1], r"must have shape \[N, K\]"),
        ([[-3.0] * 5], r"K in 1\.\.4 .vocabulary."),
    ],
)
def test_invalid_top_k_values_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        entropy_bounds(np.array(values), 4)


# ---------------------------------------------------------------------------------------------
# token table


def test_token_table_by_hand(tmp_path):
    trajectories = [
        rollout("a", [[1, 2], [3], [4, 5]], ["error", "empty"], reward=1.0),
        rollout("b", [[6, 7]], metadata={"right_answer": "Rome"}),
    ]
    save_trajectories(tmp_path / "t.parquet", trajectories)
    table = token_statistics(tmp_path / "t.parquet")
    assert table.names == ["a", "b"] and table.right_M.tolist() == [1, 0]
    assert table.row.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert table.entropy.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert table.position.tolist() == [3, 4, 9, 14, 15, 3, 4]
    assert table.turn.tolist() == [0, 0, 1, 2, 2, 0, 0]
    assert table.offset.tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert table.since.tolist() == [-1, -1, 0, 0, 1, -1, -1]
    assert table.status.tolist() == [0, 0, 2, 3, 3, 0, 0]
    assert table.starts().tolist() == [0, 5, 7]
    assert find_responses(trajectories[0]) == [(5, 9, "error"), (10, 14, "empty")]


def test_table_columns_match_real_trajectories():
    for name in ("sft_sampled", "rl_greedy"):
        loaded = load_trajectories(f"{TOUR}/{name}.parquet")
        table = token_statistics(f"{TOUR}/{name}.parquet")
        assert len(table) == sum(int(t.generated.sum()) for t in loaded)
        for row, t in enumerate(loaded):
            mine = table.row == row
            assert np.array_equal(table.token_id[mine], t.token_ids[t.generated])
            first_turns = np.unique(table.turn[mine][table.offset[mine] == 0])
            assert len(first_turns) == t.turns[t.generated].max() + 1
            # every turn but the first follows one response
            assert len(find_responses(t)) == len(first_turns) - 1 <= len(t.tool_results)
            later = table.turn[mine] > 0
            assert np.array_equal(table.since[mine][later], table.offset[mine][later])
            assert (table.since[mine][~later] == -1).all()


def test_user_turns_are_not_tool_responses():
    t = rollout("a", [[1], [2], [3]], ["ok", "ok"])
    segments = t.segments.copy()
    segments[5] = Segment.PROMPT  # the first "response" is a user turn
    only = [ToolResult("search", {}, " ", True, "")]
    spoken = replace(t, segments=segments, tool_results=only)
    assert find_responses(spoken) == [(9, 13, "empty")]
    more = [*only, ToolResult("search", {}, "Error: no", False, "error")]  # no turn follows it
    assert find_responses(replace(spoken, tool_results=more)) == [(9, 13, "empty")]
    segments[10] = Segment.TEMPLATE  # the response has no text
    empty_first = replace(spoken, segments=segments[::1].copy())
    assert find_responses(empty_first) == [(9, 13, "empty")]
    after = token_statistics(
        [
            replace(
                t,
                segments=np.where(np.arange(len(t)) == 10, Segment.PROMPT, t.segments).astype(
                    np.uint8
                ),
            )
        ]
    )
    assert after.since.tolist() == [-1, 0, -1], "a person's words end what a response began"
    with pytest.raises(ValueError, match="trajectory a: 2 tool responses for 1 tool results"):
        find_responses(replace(t, tool_results=only))


def test_outcomes():
    t = rollout("a", [[1]])
    assert math.isnan(judge_outcome(t)) and judge_outcome(replace(t, reward=0.2)) == 0
    assert judge_outcome(replace(t, metadata={"right_answer": "oslo"})) == 1
    assert judge_outcome(replace(t, answer=None, metadata={"right_answer": "oslo"})) == 0


def test_invalid_input_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="0 trajectories without a sampled token"):
        token_statistics([])
    silent = rollout("a", [[1]])
    silent = replace(
        silent, generated=np.zeros(4, bool), logprobs=np.zeros(4, np.float32), entropies=None
    )
    with pytest.raises(ValueError, match="1 trajectories without a sampled token"):
        token_statistics([silent])
    with pytest.raises(ValueError, match="the id 'a' occurs 2 times"):
        token_statistics([rollout("a", [[1]]), rollout("a", [[1]])])
    with pytest.raises(ValueError, match="1 of 1 tokens have no entropy .*trajectory a, token 3"):
        high_entropy(token_statistics([rollout("a", [[1]], entropies=None)]))
    path = tmp_path / "t.parquet"
    save_trajectories(path, [rollout("a", [[1]])])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="t.parquet is truncated or damaged"):
        token_statistics(path)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_top_share_is_exact_and_ties_go_to_the_first(share):
    rng = np.random.default_rng(1)
    for n in (0, 1, 5, 15, 100):
        values = rng.integers(4, size=n).astype(np.float32)
        ordered = sorted(range(n), key=lambda i: (-values[i], i))
        expected = sorted(ordered[: math.ceil(share * n - 1e-9)])
        assert select_top_share(values, share).tolist() == expected
    assert len(select_top_share(np.arange(15.0), 0.2)) == 3  # 0.2 * 15 is a little more than 3


def test_scopes_and_segments():
    table = token_statistics(
        [rollout("a", [[0.1, 0.2, 0.3, 0.4, 0.5]]), rollout("b", [[1, 2, 3, 4, 5]])]
    )
    by = {
        scope: np.flatnonzero(high_entropy(table, 0.4, scope)).tolist()
        for scope in ("trajectory", "batch", "fixed")
    }
    assert by == {"trajectory": [3, 4, 8, 9], "batch": [6, 7, 8, 9], "fixed": [5, 6, 7, 8, 9]}
    within = np.arange(10) < 7
    assert np.flatnonzero(high_entropy(table, 0.4, within=within)).tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="share must be in 0..1, got 1.2"):
        high_entropy(table, 1.2)


def test_masks_work_beyond_the_size_where_torch_quantile_fails():
    values = np.zeros(2**24 + 5, np.float32)
    values[7::9] = 1
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(torch.from_numpy(values), 0.8)
    assert len(select_top_share(values, 0.2)) == math.ceil(0.2 * len(values))


def test_overlap_by_hand():
    base = token_statistics([rollout("a", [[5, 4, 3, 2, 1, 0, 0, 0, 0, 0]])])
    other = token_statistics([rollout("a", [[5, 0, 3, 9, 1, 0, 0, 0, 0, 0]])])
    found = high_entropy_overlap(base, other, share=0.2, bins=2)
    assert found["overlap"] == 0.5  # tops: tokens 0, 1 and tokens 3, 0
    assert found["base"] == [0, 3] and found["tokens"] == [5, 5]
    assert found["change"] == pytest.approx([0, (0 - 4 + 0 + 7 + 0) / 5])
    assert high_entropy_overlap(base, base)["overlap"] == 1
    with pytest.raises(ValueError, match="different tokens: run one file through both models"):
        high_entropy_overlap(
            base, token_statistics([rollout("b", [[5, 4, 3, 2, 1, 0, 0, 0, 0, 0]])])
        )


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def test_squared_scores_of_two_tokens(ax):
    entropy_plots.plot_squared_scores(ax)
    points = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.lines[1:]]
    for (entropy, square), p in zip(points, (0.01, 0.1, 0.5), strict=True):
        assert entropy == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
        assert square == pytest.approx(1 - p * p - (1 - p) ** 2)


def test_cumulative_share_starts_with_the_highest_entropy(ax):
    entropy_plots.plot_cumulative_share(ax, np.array([0.1, 0.9]), np.array([1.0, 3.0]), 0.2)
    assert ax.lines[0].get_xydata().tolist() == [[50, 75], [100, 100]]


def test_effects_have_their_intervals(ax):
    entropy_plots.plot_effects(ax, {"top_20": (-1.0, -9.0, 6.0)})
    interval, point = ax.lines[:2]
    assert list(interval.get_xdata()) == [-9.0, 6.0] and list(point.get_xdata()) == [-1.0]


@pytest.mark.parametrize("top", [True, False])
def test_drawn_selection_is_that_of_the_loss(top):
    trajectory = load_trajectories(f"{TOUR}/sft_sampled.parquet")[0]
    figure = entropy_plots.draw_selection(trajectory, [], 0.2, top)
    bars = np.array([bar.get_height() for bar in figure.axes[1].patches]) > 0
    entropies = trajectory.entropies[trajectory.generated] * (1 if top else -1)
    assert not bars[~trajectory.generated].any()
    assert bars.sum() == math.ceil(0.2 * len(entropies))
    assert entropies[bars[trajectory.generated]].min() >= np.sort(entropies)[-bars.sum()]
    plt.close(figure)
