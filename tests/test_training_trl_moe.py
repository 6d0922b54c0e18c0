"""Mixtures of experts in TRL's step: routing replay, metrics, the balance loss and errors.

The sampling engine is a policy whose routers differ slightly from the trainer's. Expected values
are computed row by row, without padding, with `drlib.models.routing_replay` alone.

Run: python -m pytest tests/test_training_trl_moe.py
"""

import math

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, LlamaConfig

from drlib.models.moe import load_policy
from drlib.models.routing_replay import record_routes, replay_routes
from drlib.rl.losses import LossConfig
from drlib.training.trl import Routing
from tests.trl_examples import (
    COMPLETION,
    EOS,
    GROUP,
    VOCABULARY,
    GradientRecorder,
    assert_equal_gradients,
    move_routers,
    named_gradients,
    save_checkpoint,
    trainer,
)

LENGTHS, REWARDS = (8, 5, 8, 3, 2, 8, 6, 8), [1.0, 0.0, 0.0, 0.5, 0.0, 1.0, 0.0, 0.0]
PROMPTS = [[3, 4, 5]] * GROUP + [[6]] * GROUP
MOVED = 0.05  # of the trainer's routers against the sampler's
OUT_OF_LOSS = (2, 7)  # cut off by the limit, and failed


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("policy") / "tiny", std=0.3)


def completions():
    g = torch.Generator().manual_seed(1)
    found = [torch.randint(3, VOCABULARY, (n,), generator=g).tolist() for n in LENGTHS]
    return [ids if len(ids) == COMPLETION else [*ids[:-1], EOS] for ids in found]


def score_row(model, ids, routes_TLK=None):
    """Return (log-probabilities of all tokens but the first, routes [T, L, k]) of one row.

    Args:
        routes_TLK: routes to replay in the forward pass.
    """
    with torch.no_grad(), record_routes(model) as recorder:
        if routes_TLK is None:
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        else:
            with replay_routes(model, torch.as_tensor(routes_TLK).int().transpose(0, 1)):
                logits = model(input_ids=torch.tensor([ids])).logits[0]
    logp = logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return logp, recorder.passes[0].transpose(0, 1)


class RouteEngine:
    """Rollout function with fixed completions, log-probabilities and routes of another policy."""

    def __init__(self, checkpoint, with_routes=True):
        self.model, _ = load_policy(checkpoint)
        self.rows = [prompt + ids for prompt, ids in zip(PROMPTS, completions())]
        scored = [score_row(self.model, row) for row in self.rows]
        self.logp = [logp[len(p) - 1 :] for p, (logp, _) in zip(PROMPTS, scored)]
        self.routes = [routes.numpy().astype(np.uint16) for _, routes in scored]
        self.with_routes = with_routes

    def __call__(self, prompts, trainer):
        given = {"routed_experts": list(self.routes)} if self.with_routes else {}
        sampled = {"completion_ids": completions(), "logprobs": [x.tolist() for x in self.logp]}
        return {"prompt_ids": [list(p) for p in PROMPTS]} | sampled | given


def reward(**_):
    return REWARDS


def make_trainer(checkpoint, tmp_path, engine, options=None, moved=MOVED, **ours):
    grpo_trainer = trainer(checkpoint, tmp_path, reward, options, rollout_func=engine, **ours)
    move_routers(grpo_trainer.model, moved)
    return grpo_trainer


def inputs():
    return [{"prompt": "t3 t4 t5"} for _ in range(GROUP)] + [{"prompt": "t6"} for _ in range(GROUP)]


def step(grpo_trainer):
    """Run a real step of `train`; return (gradients, log line)."""
    watch = GradientRecorder()
    grpo_trainer.add_callback(watch)
    grpo_trainer.train()
    return watch.gradients, grpo_trainer.state.log_history[0]


# ---------------------------------------------------------------- R2 and R3 in a real step


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("routing", ["r2", "r3"])
def test_replaying_own_routes_is_bit_identical(routing, checkpointing, checkpoint, tmp_path):
    """With equal engine and trainer, loss and gradients are the same with and without replay."""
    engine, found = RouteEngine(checkpoint), []
    options = {"gradient_checkpointing": checkpointing, "router_aux_loss_coef": 0.1}
    for mode in ("none", routing):
        grpo_trainer = make_trainer(checkpoint, tmp_path, engine, options, moved=0.0, routing=mode)
        found.append(step(grpo_trainer))
    (expected, usual), (gradients, line) = found
    assert gradients.keys() == expected.keys() and expected["model.layers.0.mlp.gate.weight"].any()
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
    assert line["train_loss"] == usual["train_loss"] and line["moe/rerouted"] == 0
    assert line["mismatch/max_logp_gap"] < 1e-5


def test_r3_reduces_the_mismatch_and_trains_the_router(checkpoint, tmp_path):
    engine, lines, gradients = RouteEngine(checkpoint), {}, {}
    for mode, recomputing in (("none", False), ("r3", False), ("r3", True)):
        options = {"gradient_checkpointing": recomputing}
        grpo_trainer = make_trainer(checkpoint, tmp_path, engine, options, routing=mode)
        gradients[mode, recomputing], lines[mode] = step(grpo_trainer)
    assert lines["r3"]["mismatch/max_logp_gap"] < 0.5 * lines["none"]["mismatch/max_logp_gap"]
    assert lines["r3"]["mismatch/kl"] < 0.2 * lines["none"]["mismatch/kl"]
    assert lines["r3"]["moe/rerouted"] > 0.05 and lines["none"]["moe/rerouted"] > 0.05
    kept, again = gradients["r3", False], gradients["r3", True]
    for layer in range(2):
        assert kept[f"model.layers.{layer}.mlp.gate.weight"].abs().max() > 1e-3
    assert_equal_gradients(again, kept)  # recomputation takes the same routes
    with pytest.raises(AssertionError):
        assert_equal_gradients(kept, gradients["none", False])


def test_batched_replay_matches_single_rows(checkpoint, tmp_path):
    """Covers padding on both sides and prompts of two lengths."""
    engine = RouteEngine(checkpoint)
    grpo_trainer = make_trainer(checkpoint, tmp_path, engine, moved=0.3, routing="r3")
    batch = grpo_trainer._generate_and_score_completions(inputs())
    with torch.no_grad():
        logp_BC = grpo_trainer._score_for_loss(grpo_trainer.model, batch).logp_BT
    for i, (row, prompt) in enumerate(zip(engine.rows, PROMPTS)):
        expected, _ = score_row(grpo_trainer.model, row, engine.routes[i])
        kept = int(batch["loss_weights"][i] > 0)
        logp_C = logp_BC[i, : len(row) - len(prompt)]
        torch.testing.assert_close(logp_C, kept * expected[len(prompt) - 1 :], rtol=0, atol=2e-6)
        without, _ = score_row(grpo_trainer.model, row)
        assert (expected - without).abs().max() > 1e-4  # replay does something in every row


@pytest.mark.parametrize("fault", ["layers swapped", "shifted by a token", "rows swapped"])
def test_misplaced_routes_show_in_the_gap(fault, checkpoint, tmp_path):
    """Routes of other tokens leave a gap, which the metric must show."""
    gaps = []
    for wrong in (False, True):
        engine = RouteEngine(checkpoint)
        if wrong and fault == "layers swapped":
            engine.routes = [routes[:, ::-1] for routes in engine.routes]
        elif wrong and fault == "shifted by a token":
            engine.routes = [np.roll(routes, 1, axis=0) for routes in engine.routes]
        elif wrong:
            engine.routes[0], engine.routes[2] = engine.routes[2], engine.routes[0]
        grpo_trainer = make_trainer(checkpoint, tmp_path, engine, moved=0.0, routing="r3")
        gaps.append(step(grpo_trainer)[1]["mismatch/max_logp_gap"])
    assert gaps[0] < 1e-5 and gaps[1] > 1e-3


# ---------------------------------------------------------------- several updates a batch


OFF_POLICY = {"steps_per_generation": 4, "per_device_train_batch_size": 2}


def test_r2_records_routes_in_the_old_logprob_pass(checkpoint, tmp_path):
    engine = RouteEngine(checkpoint, with_routes=False)
    grpo_trainer = make_trainer(checkpoint, tmp_path, engine, OFF_POLICY, routing="r2")
    passes = []
    grpo_trainer.model.register_forward_hook(lambda *_: passes.append(1))
    batch = grpo_trainer._generate_and_score_completions(inputs())
    assert len(passes) == 4  # of two rows each: the old log-probabilities' alone
    for i, row in enumerate(engine.rows):
        logp, routes_TLK = score_row(grpo_trainer.model, row)
        seen = torch.cat([batch["prompt_mask"][i], batch["completion_mask"][i]]).bool()
        assert torch.equal(batch["routes_BTLK"][i][seen], routes_TLK)
        assert (batch["routes_BTLK"][i] >= 0).all()  # padding has its record too
        completion = completions()[i]
        old = batch["old_per_token_logps"][i, : len(completion)]
        torch.testing.assert_close(old, logp[-len(completion) :], rtol=0, atol=2e-6)


def test_later_updates_replay_the_first_routes(checkpoint, tmp_path):
    engine = RouteEngine(checkpoint, with_routes=False)
    grpo_trainer = make_trainer(checkpoint, tmp_path, engine, OFF_POLICY, routing="r2")
    batch = grpo_trainer._generate_and_score_completions(inputs())
    move_routers(grpo_trainer.model, 0.5, seed=9)  # an update
    with torch.no_grad():
        scored = grpo_trainer._score_for_loss(grpo_trainer.model, batch)
    for i, row in enumerate(engine.rows):
        completion = completions()[i]
        seen = torch.cat([batch["prompt_mask"][i], batch["completion_mask"][i]]).bool()
        expected, own = score_row(grpo_trainer.model, row, batch["routes_BTLK"][i][seen])
        assert not torch.equal(own, batch["routes_BTLK"][i][seen])
        expected = expected[-len(completion) :] * (batch["loss_weights"][i] > 0)
        logp_C = scored.logp_BT[i, : len(completion)]
        torch.testing.assert_close(logp_C, expected, rtol=0, atol=2e-6)


def test_old_logprobs_use_engine_routes_under_r3(checkpoint, tmp_path):
    engine = RouteEngine(checkpoint)
    grpo_trainer = make_trainer(checkpoint, tmp_path, engine, OFF_POLICY, routing="r3")
    batch = grpo_trainer._generate_and_score_completions(inputs())
    for i, row in enumerate(engine.rows):
        completion = completions()[i]
        expected, _ = score_row(grpo_trainer.model, row, engine.routes[i])
        old = batch["old_per_token_logps"][i, : len(completion)]
        torch.testing.assert_close(old, expected[-len(completion) :], rtol=0, atol=2e-6)


def test_reference_uses_its_own_routes(checkpoint, tmp_path):
    """With PEFT the reference is the same model without its adapters."""
    adapters = LoraConfig(
        r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"]
    )
    engine = RouteEngine(checkpoint)
    grpo_trainer = trainer(
        checkpoint,
        tmp_path,
        reward,
        OFF_POLICY | {"beta": 0.1, "gradient_checkpointing": True},
        rollout_func=engine,
        peft_config=adapters,
        loss=LossConfig(kl_coef=0.1),
        routing="r3",
    )
    gates = [p for name, p in grpo_trainer.model.named_parameters() if "gate.weight" in name]
    with torch.no_grad():
        for gate in gates:
            gate += 0.3 * torch.randn(gate.shape, generator=torch.Generator().manual_seed(4))
    batch = grpo_trainer._generate_and_score_completions(inputs())
    base = grpo_trainer.model.get_base_model()
    for i, row in enumerate(engine.rows):
        completion = completions()[i]
        own, _ = score_row(base, row)
        replayed, _ = score_row(base, row, engine.routes[i])
        for name, expected in (("ref_per_token_logps", own), ("old_per_token_logps", replayed)):
            found = batch[name][i, : len(completion)]
            expected = expected[-len(completion) :]
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-6, msg=name)
    grpo_trainer._buffered_inputs = None
    line = step(grpo_trainer)[1]
    assert line["moe/rerouted"] > 0 and line["policy/kl"] > 0


# ---------------------------------------------------------------- metrics and the balance loss


def test_moe_metrics_by_hand(checkpoint, tmp_path):
    engine = RouteEngine(checkpoint)
    grpo_trainer = make_trainer(checkpoint, tmp_path, engine)
    counts_LE, entropies, differ, tokens = torch.zeros(2, 4), [], 0, 0
    for i, (row, given) in enumerate(zip(engine.rows, engine.routes)):
        if i in OUT_OF_LOSS:  # not run through the model
            continue
        out = grpo_trainer.model(input_ids=torch.tensor([row]), output_router_logits=True)
        _, routes_TLK = score_row(grpo_trainer.model, row)
        for layer, logits in enumerate(out.router_logits):
            for t, chosen in enumerate(routes_TLK[:, layer].tolist()):
                probability = logits[t].softmax(-1).tolist()
                entropies.append(-sum(p * math.log(p) for p in probability))
                for expert in chosen:
                    counts_LE[layer, expert] += 1
                differ += set(chosen) != set(given[t, layer].tolist())
                tokens += 1
    violation_L = counts_LE.amax(1) / counts_LE.mean(1) - 1
    gap = max(
        float((score_row(grpo_trainer.model, row)[0][len(p) - 1 :] - logp).abs().max())
        for i, (row, p, logp) in enumerate(zip(engine.rows, PROMPTS, engine.logp))
        if i not in OUT_OF_LOSS
    )
    line = step(grpo_trainer)[1]
    assert line["moe/max_violation"] == pytest.approx(float(violation_L.max()), rel=1e-5)
    assert line["moe/max_violation_mean"] == pytest.approx(float(violation_L.mean()), rel=1e-5)
    assert line["moe/router_entropy"] == pytest.approx(np.mean(entropies), rel=1e-5)
    assert line["moe/rerouted"] == pytest.approx(differ / tokens) and 0 < differ < tokens
    assert line["mismatch/max_logp_gap"] == pytest.approx(gap, rel=1e-4)
    # each micro-batch's, by k3 of what `policy_loss` reports
    assert line["mismatch/kl"] == pytest.approx(line["policy/mismatch_kl"])


def test_load_counts_replayed_experts(checkpoint, tmp_path):
    engine = RouteEngine(checkpoint)
    engine.routes = [np.zeros_like(r) + np.array([1, 2], np.uint16) for r in engine.routes]
    grpo_trainer = make_trainer(checkpoint, tmp_path, engine, routing="r3")
    assert step(grpo_trainer)[1]["moe/max_violation"] == pytest.approx(
        1.0
    )  # two of four, twice the mean


def test_balance_loss_matches_the_model(checkpoint, tmp_path):
    found = []
    for coefficient in (0.0, 0.5):
        options = {"router_aux_loss_coef": coefficient, "per_device_train_batch_size": 2 * GROUP}
        options |= {"gradient_accumulation_steps": 1}
        grpo_trainer = make_trainer(checkpoint, tmp_path, RouteEngine(checkpoint), options)
        found.append(step(grpo_trainer))
    (plain, silent), (balanced, line) = found
    model, _ = load_policy(checkpoint)
    move_routers(model, MOVED)
    rows = [pair for i, pair in enumerate(zip(PROMPTS, completions())) if i not in OUT_OF_LOSS]
    ids = torch.full((len(rows), 3 + COMPLETION), 2)
    seen = torch.zeros_like(ids)
    for i, (prompt, completion) in enumerate(rows):
        ids[i, 3 - len(prompt) : 3 + len(completion)] = torch.tensor(prompt + completion)
        seen[i, 3 - len(prompt) : 3 + len(completion)] = 1
    out = model(input_ids=ids, attention_mask=seen, output_router_logits=True)
    out.aux_loss.backward()
    expected = named_gradients(model)
    assert "aux_loss" not in silent and line["aux_loss"] == pytest.approx(out.aux_loss.item(), 1e-5)
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.gate.weight"
        assert expected[name].abs().max() > 1e-3
        torch.testing.assert_close(
            balanced[name] - plain[name], 0.5 * expected[name], rtol=0, atol=1e-6
        )


# ---------------------------------------------------------------- routes in a batch, refusals


def test_routes_are_aligned_with_their_tokens(checkpoint):
    model, _ = load_policy(checkpoint)
    routing = Routing(model, "r3")
    seen_BT = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    whole = np.arange(3 * 4).reshape(3, 2, 2).astype(np.uint16)
    fed = np.full((4, 2, 2), 2**16 - 1, np.uint16)  # the last token was not; and no record
    fed[1] = [[3, 2], [1, 0]]
    placed = routing.place([whole, fed.tolist()], seen_BT)
    none = [[-1, -1], [-1, -1]]
    assert placed[0].tolist() == [none, *whole.tolist(), none]
    assert placed[1].tolist() == [none, [[3, 2], [1, 0]], none, none, none]
    for given, message in (
        ([whole], "1 for 2 rows"),
        ([whole, whole], r"row 1: \[3, 2, 2\], need \[5, 2, 2\]"),
        ([whole[:, :1], fed], r"row 0: \[3, 1, 2\]"),
        (None, 'must return "routed_experts"'),
    ):
        with pytest.raises(ValueError, match=message):
            routing.place(given, seen_BT)
    assert Routing(model).place(None, seen_BT) is None


@pytest.mark.parametrize("mode", ["r2", "r3"])
def test_dense_model_is_rejected(mode, checkpoint, tmp_path):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16}
    dense = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    model = AutoModelForCausalLM.from_config(dense)
    with pytest.raises(ValueError, match=f'routing="{mode}" replays experts, and LlamaFor'):
        options = {"router_aux_loss_coef": None}
        trainer(checkpoint, tmp_path, reward, options, model=model, routing=mode)


def test_missing_routes_and_unknown_mode_are_rejected(checkpoint, tmp_path):
    grpo_trainer = make_trainer(
        checkpoint, tmp_path, RouteEngine(checkpoint, with_routes=False), routing="r3"
    )
    with pytest.raises(ValueError, match='the rollout function must return "routed_experts"'):
        grpo_trainer._generate_and_score_completions(inputs())
    with pytest.raises(ValueError, match='routing must be "none", "r2" or "r3", got \'r4\''):
        trainer(checkpoint, tmp_path, reward, routing="r4")
