"""Router biases: selection and gates, engine, checkpoint, training loops.

Run: python -m pytest tests/test_models_router_bias.py
"""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import build_policy, load_policy, save_policy
from drlib.models.packed import packed_forward
from drlib.models.router_bias import (
    add_router_bias,
    get_router_biases,
    max_violation,
    pop_expert_load,
    update_router_biases,
)
from drlib.models.routing_replay import record_routes, replay_routes
from drlib.models.transformers_engine import TransformersEngine
from drlib.training import policies
from drlib.training.distributed import Ranks
from drlib.training.packing import PackedBatch, balance_loss, score
from drlib.training.planner import check_settings
from drlib.training.run_folder import read_metrics
from tests.loop_examples import build_stages, build_world, cold_start, settings
from tests.policy_examples import SMALL, real_model

start = cold_start


def plain_policy(std=0.3, seed=0):
    """Return a policy whose routers prefer some experts."""
    model = build_policy(SMALL, seed=seed, init="plain").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.normal_(0, std, generator=generator)
    return model


def biased_policy(scale=0.2, **changes):
    """Return the same policy with biases that move many tokens."""
    model = add_router_bias(plain_policy(**changes))
    generator = torch.Generator().manual_seed(1)
    for layer in model.model.layers:
        layer.mlp.gate.bias_E.normal_(0, scale, generator=generator)
    return model


def make_ids(batch=3, tokens=12):
    return torch.randint(0, 64, (batch, tokens), generator=torch.Generator().manual_seed(0))


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


# ---------------------------------------------------------------- the router


def test_zero_or_equal_biases_do_not_matter():
    model, ids = plain_policy(), make_ids()
    same = add_router_bias(model)
    assert torch.equal(logits(same, ids), logits(model, ids))
    assert get_router_biases(model) is None and get_router_biases(same).tolist() == [[0.0] * 8] * 2
    for layer in same.model.layers:
        layer.mlp.gate.bias_E += 0.125
    assert torch.equal(logits(same, ids), logits(model, ids))
    assert add_router_bias(same) is same


def test_bias_affects_selection_but_not_gates():
    """Probabilities .4 .3 .2 .1, and +.25 for the last: it is selected with the first."""
    router = add_router_bias(plain_policy()).model.layers[0].mlp.gate
    router.weight.data.zero_()
    router.weight.data[:4, 0] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    router.weight.data[4:, 0] = -50.0
    router.bias_E[3] = 0.25
    x_NH = torch.zeros(1, SMALL.hidden)
    x_NH[0, 0] = 1.0
    _, gates, chosen = router(x_NH)
    assert chosen.tolist() == [[0, 3]]
    assert gates[0].tolist() == pytest.approx([0.8, 0.2])


def test_router_gradients_come_from_selected_gates_only():
    model, ids = biased_policy().train(), make_ids()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    routers = [layer.mlp.gate for layer in model.model.layers]
    assert all(router.weight.grad.abs().max() > 0 for router in routers)
    assert not any(router.bias_E.requires_grad for router in routers)


def test_replaying_recorded_routes_is_bit_identical():
    model, ids = biased_policy(), make_ids()
    with record_routes(model) as recorder:
        native = logits(model, ids)
    with replay_routes(model, recorder.passes):
        assert torch.equal(logits(model, ids), native)
    assert not torch.equal(native, logits(plain_policy(), ids))


def test_other_models_are_rejected():
    with pytest.raises(ValueError, match="this is a llama: set trainer.router_bias_rate=0"):
        add_router_bias(real_model("llama"))


# ---------------------------------------------------------------- the load


def test_only_training_passes_count_as_load():
    model, ids = biased_policy(), make_ids()
    logits(model, ids)
    model(input_ids=ids, use_cache=False)  # an evaluation that could have a gradient
    assert pop_expert_load(model).sum() == 0
    model.train()
    logits(model, ids)  # a model in training mode without gradients
    assert pop_expert_load(model).sum() == 0
    with record_routes(model) as recorder:
        model(input_ids=ids, use_cache=False)
        model(input_ids=ids[:1], use_cache=False)
    load = pop_expert_load(model)
    assert load.sum(1).tolist() == [2 * (3 + 1) * 12] * 2  # two experts a token
    chosen = torch.cat(recorder.passes, dim=1).long()
    assert load.tolist() == [torch.bincount(x.flatten(), minlength=8).tolist() for x in chosen]
    assert pop_expert_load(model).sum() == 0  # reset by the first call


def test_bias_updates_by_hand_and_wrong_shapes():
    model = add_router_bias(plain_policy())
    load = torch.tensor([[8, 4, 4, 0, 4, 4, 4, 4], [1, 1, 1, 1, 1, 1, 1, 1]])
    update_router_biases(model, load, rate=0.5)
    expected = [[-0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0], [0.0] * 8]
    assert get_router_biases(model).tolist() == expected
    assert max_violation(load) == pytest.approx((8 / 4 - 1) / 2)
    with pytest.raises(ValueError, match=r"load_LE is \[1, 8\], the biases are \[2, 8\]"):
        update_router_biases(model, load[:1], rate=0.5)


def test_bias_updates_balance_the_load():
    model, ids = add_router_bias(plain_policy()).train(), make_ids(batch=4, tokens=24)
    violations = []
    for _ in range(40):
        model(input_ids=ids, use_cache=False)
        load = pop_expert_load(model)
        violations.append(max_violation(load))
        update_router_biases(model, load, rate=0.003)
    assert violations[-1] < violations[0] / 2


def test_balance_loss_counts_biased_selections():
    """Two tokens, both at .75 and .25; the bias sends them to the second expert."""
    logits_NE = torch.log(torch.tensor([[0.75, 0.25], [0.75, 0.25]]))
    bias_LE = torch.tensor([[0.0, 0.6]])
    assert balance_loss([logits_NE], 1).item() == pytest.approx(2 * 0.75)
    assert balance_loss([logits_NE], 1, bias_LE).item() == pytest.approx(2 * 0.25)
    model, batch = biased_policy(), PackedBatch.pack([range(12)])
    with torch.no_grad():
        _, of_layers = packed_forward(model, batch.ids_N, batch.lengths)
        scored = score(model, batch, torch.ones(12, dtype=torch.bool))
    assert torch.equal(scored.balance, balance_loss(of_layers, 2, get_router_biases(model)))
    assert scored.balance != balance_loss(of_layers, 2)


# ---------------------------------------------------------------- engines and checkpoints


@pytest.mark.parametrize("engine_class", [LocalEngine, TransformersEngine])
def test_engine_samples_with_the_latest_biases(engine_class):
    model = add_router_bias(plain_policy())
    engine = engine_class(model, max_context=64)
    prompts = [list(range(9)), list(range(20, 32)), *([i] * 5 for i in range(1, 40))]
    params = SamplingParams(max_tokens=8, seed=3)

    def largest_gap():
        gap = 0.0
        for prompt, completion in zip(prompts, engine.generate(prompts, params)):
            ids = prompt + completion.token_ids
            scored = logits(model, torch.tensor([ids]))[0, :-1].log_softmax(-1)
            at = range(len(prompt) - 1, len(ids) - 1)
            theirs = torch.tensor([scored[t, ids[t + 1]].item() for t in at])
            gap = max(gap, float((theirs - torch.tensor(completion.logprobs)).abs().max()))
        return gap

    assert largest_gap() < 1e-5
    model.load_state_dict(biased_policy().state_dict())
    engine.update_weights(model)
    assert largest_gap() < 1e-5


def test_checkpoint_keeps_biases_and_needs_drlib(tmp_path):
    model, ids = biased_policy(), make_ids()
    folder = save_policy(model, None, tmp_path / "policy")
    reloaded, _ = load_policy(folder)
    assert torch.equal(get_router_biases(reloaded), get_router_biases(model))
    assert torch.equal(logits(reloaded, ids), logits(model, ids))
    automatic = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(get_router_biases(automatic), get_router_biases(model))
    read = f"import transformers as t; t.AutoModelForCausalLM.from_pretrained({str(folder)!r})"
    alone = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
    assert alone.returncode != 0 and "qwen3_moe_router_bias" in alone.stderr


def test_checkpoint_loads_in_a_process_without_other_models(tmp_path):
    """transformers caches on the parent class whether experts can be set."""
    folder = save_policy(biased_policy(), None, tmp_path / "policy")
    read = f"from drlib.models.moe import load_policy; load_policy({str(folder)!r})"
    subprocess.run([sys.executable, "-c", read], check=True)


# ---------------------------------------------------------------- training stages


def test_pretraining_updates_biases_for_the_next_stage(tmp_path):
    config = settings(trainer__router_bias_rate=0.01, trainer__balance_coef=0.0, pretrain__steps=4)
    folders = build_stages(("world", "untrained", "cpt"), config, tmp_path)
    rows = read_metrics(folders["cpt"])
    assert all(row["max_violation"] > 0 for row in rows)
    policy, _ = load_policy(folders["cpt"] / "policy")
    biases = get_router_biases(policy)
    steps = biases / 0.01
    assert 0 < biases.abs().max() <= 0.04 + 1e-6  # four steps of at most the rate
    torch.testing.assert_close(steps, steps.round(), atol=1e-3, rtol=0)
    model = policies.begin_stage("sft", "cpt", config, tmp_path / "sft" / "sft-1", Ranks()).model
    assert torch.equal(get_router_biases(model), biases)


def test_zero_rate_adds_no_biases(tmp_path):
    config = settings(pretrain__steps=2)
    folders = build_stages(("world", "untrained", "cpt"), config, tmp_path)
    assert not any("max_violation" in row for row in read_metrics(folders["cpt"]))
    assert get_router_biases(load_policy(folders["cpt"] / "policy")[0]) is None


def test_rl_step_updates_biases_and_the_engine(start, tmp_path):
    build_world(tmp_path)
    config = settings(rl__lr=1e-3, trainer__router_bias_rate=0.05)
    step = start.step(config, tmp_path / "run", add_router_bias(start.policy))
    n_updates = 0
    for number in range(3):
        before = get_router_biases(step.model).clone()
        row, _ = step.step(number)
        change = (get_router_biases(step.model) - before).abs()
        assert ("max_violation" in row) == (row["updates"] == 1) == bool(change.max() > 0)
        assert change.max() <= 0.05 + 1e-6
        assert row["logp_gap"] < 1e-5
        n_updates += row["updates"]
    assert n_updates >= 2


def test_trl_stages_reject_router_biases():
    config = settings(trainer__backend="trl", trainer__router_bias_rate=0.01)
    assert any(
        "trainer.router_bias_rate needs trainer.backend=local" in fault
        for fault in check_settings(config)
    )
