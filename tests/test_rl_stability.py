"""Stability components on scripted metrics: decisions by hand, and resumption."""

import copy
import json
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from drlib.rl.divergences import kl_estimate
from drlib.rl.stability import (
    AdaptiveLearningRate,
    DriftDetector,
    EmergencyStop,
    HistogramShift,
    KLController,
    PageHinkley,
    ReferenceReset,
    sync_reference,
)

# ---------------------------------------------------------------- KL control


def test_kl_coefficient_doubles_and_halves_outside_the_band():
    control = KLController(coef=0.1, target=0.02)
    seen = [control.update(kl) for kl in (0.03, 0.031, 0.02, 0.0134, 0.0133, -0.001)]
    assert seen == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.1, 0.05])


def test_kl_coefficient_stays_in_range():
    control = KLController(coef=1e-6, target=1.0)
    assert control.update(0.0) == 1e-6
    assert [control.update(9.0) for _ in range(40)][-1] == 1e3


def kl_of_optimal_policy(coef):
    """Return KL(pi* || ref) of the maximiser pi* ~ ref exp(r / coef) of E[r] - coef KL."""
    reference, reward = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.0, 1.0, 0.5])
    policy = torch.softmax(reference.log() + reward / coef, -1)
    return float((policy * (policy / reference).log()).sum())


@pytest.mark.parametrize("start", [5.0, 0.02])
def test_kl_controller_converges_to_its_target(start):
    control, coef = KLController(coef=start, target=0.1), start
    for _ in range(500):
        coef = control.update(kl_of_optimal_policy(coef))
    # a doubling changes this KL by up to 4, so it may overshoot the band
    assert 0.1 / 6 < kl_of_optimal_policy(coef) < 0.6


# ---------------------------------------------------------------- reference


def decisions(component, inputs):
    return [component.update(value) for value in inputs]


def test_reference_resets_on_stagnation():
    reset = ReferenceReset(patience=2, min_delta=0.01)
    # better; equal; within delta -> reset (best 0.509 from here); better; worse; no score; worse
    curve = [0.50, 0.51, 0.509, 0.60, 0.55, None, 0.58, 0.585, 0.58]
    expected = [None, None, "stagnation", None, None, None, "stagnation", None, "stagnation"]
    assert decisions(reset, curve) == expected


def test_reference_resets_periodically():
    reset = ReferenceReset(patience=9, every=4)
    curve = [0.5, 0.4, 0.39, 0.35, 0.3, None, None, None]
    assert decisions(reset, curve) == [None, None, None, "period"] * 2
    assert reset.state["best"] == 0.35


class Tiny(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(5, 4, generator=generator))
        self.bias = nn.Parameter(torch.randn(5, generator=generator))
        self.register_buffer("seen", torch.tensor(seed))

    def forward(self, x):
        return torch.log_softmax(x @ self.weight.T + self.bias, -1)


def trained(seed=0, steps=3):
    model = Tiny(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(9))
    for _ in range(steps):
        optimizer.zero_grad()
        (-model(x)[:, 0].mean()).backward()
        optimizer.step()
    model.seen += 7
    return model, optimizer, x


def test_reset_clears_kl_and_adam_state():
    policy, optimizer, x = trained()
    reference = Tiny()
    before = copy.deepcopy(policy.state_dict())
    exact = (policy(x).exp() * (policy(x) - reference(x))).sum(-1)
    assert exact.min() > 1e-4 and len(optimizer.state) == 2
    sync_reference(reference, policy, optimizer)
    assert torch.equal(policy(x), reference(x))
    for kind in ("k1", "k2", "k3"):
        kl = kl_estimate(policy(x), reference(x), kind)
        assert torch.equal(kl, torch.zeros_like(kl))
    assert len(optimizer.state) == 0 and optimizer.state_dict()["state"] == {}
    assert reference.seen == 7
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_after_reset_adam_is_new_and_kl_targets_the_reference():
    policy, optimizer, x = trained()
    reference = Tiny()
    sync_reference(reference, policy, optimizer)
    twin = copy.deepcopy(policy)
    new_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.05)
    for model, adam in ((policy, optimizer), (twin, new_optimizer)):
        adam.zero_grad()
        (-model(x)[:, 1].mean()).backward()
        adam.step()
    assert torch.equal(policy.weight, twin.weight)
    distance = (policy.weight - reference.weight).norm()
    for _ in range(200):
        loss = (policy(x).exp() * (policy(x) - reference(x))).sum(-1).mean()
        policy.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter -= 0.5 * parameter.grad
    assert loss < 1e-4 and (policy.weight - reference.weight).norm() < distance


def ema(reference, policy, decay):
    """Return a one-tensor reference after `sync_reference`."""
    old, new = nn.ParameterList([reference.clone()]), nn.ParameterList([policy.clone()])
    sync_reference(old, new, decay=decay)
    return old[0].detach()


def test_moving_average_by_hand_and_at_its_limits():
    a, b = torch.tensor([1.0, 3.0]), torch.tensor([2.0, -1.0])
    assert torch.allclose(ema(a, b, 0.75), torch.tensor([1.25, 2.0]))
    assert torch.equal(ema(a, b, 0.0), b) and torch.equal(ema(a, b, 1.0), a)
    assert ema(a, b.bfloat16(), 0.5).dtype == torch.float32
    # after n updates towards a constant, decay ** n of the distance is left
    x = a
    for _ in range(10):
        x = ema(x, b, 0.9)
    assert torch.allclose(x - b, 0.9**10 * (a - b), atol=1e-6)


def test_soft_update_mixes_weights_and_keeps_the_optimizer():
    policy, optimizer, _ = trained()
    reference, old = Tiny(), Tiny()
    sync_reference(reference, policy, decay=0.4)
    assert torch.allclose(reference.bias, 0.4 * old.bias + 0.6 * policy.bias)
    assert reference.seen == 7 and len(optimizer.state) == 2


def test_mismatching_models_are_rejected_without_changes():
    policy, optimizer, _ = trained()
    with pytest.raises(ValueError, match="shapes"):
        sync_reference(nn.Linear(4, 6), policy, optimizer)
    reference = Tiny()
    before = [p.clone() for p in reference.parameters()]
    with pytest.raises(AttributeError):  # an optimizer needs a state
        sync_reference(reference, policy, optimizer, object())
    assert all(torch.equal(a, b) for a, b in zip(before, reference.parameters()))
    with pytest.raises(ValueError, match="share a tensor"):
        sync_reference(policy, policy, optimizer)
    with pytest.raises(ValueError, match="decay"):
        sync_reference(Tiny(), policy, optimizer, decay=1.5)
    assert len(optimizer.state) == 2


# ---------------------------------------------------------------- responses


def test_adaptive_learning_rate_by_hand():
    rate = AdaptiveLearningRate(factor=0.5, hold=2, recovery=4)
    alarms = [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    # 0.75 is in force at the second alarm: 0.375, held for 2 steps, then up by 0.15625 a step
    low, part = 0.375, 0.625 / 4
    back = [low + part, low + 2 * part, low + 3 * part, 1, 1]
    expected = [1, 0.5, 0.5, 0.625, 0.75, low, low, *back]
    assert decisions(rate, alarms) == pytest.approx(expected)
    assert decisions(AdaptiveLearningRate(0.5, 9, 9), [1] * 3) == [0.5, 0.25, 0.125]
    low = decisions(AdaptiveLearningRate(0.1, 9, 9), [1] * 4)
    assert low == pytest.approx([0.1, 0.01, 0.01, 0.01]), "never below the floor"


@given(
    st.lists(st.booleans(), max_size=60), st.floats(0.05, 1), st.integers(1, 6), st.integers(1, 6)
)
@settings(max_examples=60)
def test_adaptive_learning_rate_stays_in_bounds(alarms, factor, hold, recovery):
    rate = AdaptiveLearningRate(factor, hold, recovery)
    scales = decisions(rate, [*alarms, *[False] * (hold + recovery)])
    assert all(0 < scale <= 1 for scale in scales) and scales[-1] == 1


def test_emergency_stop_reason_and_hysteresis():
    stop = EmergencyStop({"unanswered": (0.3, 0.6)}, window=1, patience=2)
    # an untrained policy is not a collapse; between the limits nothing changes once stopped
    rates = [0.9, 0.9, 0.9, 0.4, 0.2, 0.7, 0.5, 0.7, 0.7, 0.7, 0.5, None, 0.2, 0.7, 0.7]
    reasons = [stop.update({"unanswered": rate}) for rate in rates]
    stopped = [bool(reason) for reason in reasons]
    assert stopped == [False] * 8 + [True] * 4 + [False] * 2 + [True]
    assert reasons[8].startswith("unanswered has been above 0.6 for 2 steps")
    never_fine = EmergencyStop({"unanswered": (0.3, 0.6)}, window=1, patience=2)
    assert [never_fine.update({"unanswered": rate}) for rate in (0.9, 0.4, 0.9, 0.9)] == [None] * 4


def test_emergency_stop_uses_the_window_mean():
    stop = EmergencyStop({"format": (0.2, 0.5)}, window=4, patience=1)
    rates = [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]  # means 0, 0, 1/3, 1/2, 3/4, 3/4
    assert [bool(stop.update({"format": rate})) for rate in rates] == [False] * 4 + [True] * 2
    both = EmergencyStop({"a": (0.2, 0.5), "b": (0.2, 0.5)}, window=1, patience=1)
    both.update({"a": 0.0, "b": 0.0})
    assert both.update({"a": 0.9, "b": 0.9}).count("; ") == 1
    with pytest.raises(ValueError, match="lack 'b'"):
        both.update({"a": 0.0})


# ---------------------------------------------------------------- all components


def test_components_are_off_by_default():
    noise = [random.Random(5).uniform(-9, 9) for _ in range(300)]
    assert decisions(KLController(), noise) == [0.0] * 300
    assert decisions(KLController(coef=0.1), [*noise, math.nan]) == [0.1] * 301
    assert decisions(ReferenceReset(), noise) == [None] * 300
    assert decisions(PageHinkley(), noise) == [None] * 300
    assert decisions(HistogramShift(), [noise] * 3) == [None] * 3
    assert decisions(AdaptiveLearningRate(), [True] * 300) == [1.0] * 300
    assert DriftDetector().update({"reward": 1.0}) == []
    assert decisions(EmergencyStop(), [{"unanswered": 1.0}] * 30) == [None] * 30


def detector():
    shape = HistogramShift(0.2, window=6, bins=2)
    return DriftDetector({"x": PageHinkley(0.1, 1.0, warmup=2), "shape": shape})


COMPONENTS = {
    "kl": (lambda: KLController(0.1, 0.5), lambda x: x),
    "reset": (lambda: ReferenceReset(2, 0.05, 7), lambda x: x if x < 0.8 else None),
    "means": (lambda: PageHinkley(0.05, 0.8, 3), lambda x: x),
    "shapes": (lambda: HistogramShift(0.3, 8, 3), lambda x: [x, x * x, 0.0]),
    "detector": (detector, lambda x: {"x": x, "shape": [x, 1 - x]}),
    "rate": (lambda: AdaptiveLearningRate(0.5, 2, 3), lambda x: x > 0.8),
    "stop": (lambda: EmergencyStop({"x": (0.4, 0.5)}, 3, 2), lambda x: {"x": x}),
}


@pytest.mark.parametrize("name", COMPONENTS)
@given(stream=st.lists(st.floats(0, 1), min_size=1, max_size=60), cut=st.integers(0, 60))
@settings(max_examples=30)
def test_resumed_component_makes_the_same_decisions(name, stream, cut):
    make, shaped = COMPONENTS[name]
    inputs = [shaped(x) for x in stream]
    whole = make()
    expected = decisions(whole, inputs)
    first, second = make(), make()
    before = decisions(first, inputs[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + decisions(second, inputs[cut:]) == expected
    assert second.state_dict() == whole.state_dict()


def test_saved_state_is_a_copy_and_is_validated():
    monitor = HistogramShift(0.3, 8, 3)
    saved = monitor.state_dict()
    monitor.update([1.0, 2.0])
    assert saved == HistogramShift(0.3, 8, 3).state_dict()
    with pytest.raises(ValueError, match="HistogramShift keeps"):
        monitor.load_state_dict({"reference": []})
    with pytest.raises(ValueError, match="the detector monitors"):
        detector().load_state_dict(DriftDetector({"x": PageHinkley()}).state_dict())
    shared = PageHinkley(0.1, 1.0)
    two = DriftDetector(dict.fromkeys("xy", shared))
    two.update({"x": 3.0, "y": None})
    assert shared.state["n"] == 0  # the detector copied it
    assert [two.monitors[name].state["n"] for name in "xy"] == [1, 0]  # one copy per signal


BAD = [
    (KLController, {"coef": -1.0}, "coef"),
    (KLController, {"target": 0.1}, "adaptive coefficient"),
    (KLController, {"coef": 0.1, "target": -1.0}, "target"),
    (KLController, {"coef": math.nan}, "coef"),
    (ReferenceReset, {"patience": 0}, "patience"),
    (ReferenceReset, {"min_delta": -0.1}, "min_delta"),
    (PageHinkley, {"delta": -1.0}, "delta"),
    (PageHinkley, {"threshold": 0.0}, "threshold"),
    (HistogramShift, {"above": 0.0}, "above"),
    (HistogramShift, {"bins": 1}, "bins"),
    (DriftDetector, {"memory": 1.0}, "memory"),
    (AdaptiveLearningRate, {"factor": 0.0}, "factor"),
    (AdaptiveLearningRate, {"factor": 1.5}, "factor"),
    (AdaptiveLearningRate, {"hold": 0}, "hold"),
    (EmergencyStop, {"limits": {"x": (0.6, 0.3)}}, "x: 0 < fine"),
    (EmergencyStop, {"patience": 0}, "patience"),
]


@pytest.mark.parametrize(("component", "settings", "words"), BAD)
def test_invalid_settings_are_rejected(component, settings, words):
    with pytest.raises(ValueError, match=words):
        component(**settings)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_metrics_are_rejected(value):
    with pytest.raises(ValueError, match="KL divergence is"):
        KLController(0.1, 0.1).update(value)
    with pytest.raises(ValueError, match="validation score is"):
        ReferenceReset(2).update(value)
    with pytest.raises(ValueError, match="reward is"):
        DriftDetector().update({"reward": value})
    with pytest.raises(ValueError, match="x is"):
        EmergencyStop({"x": (0.1, 0.2)}).update({"x": value})
    with pytest.raises(ValueError, match="watched value"):
        HistogramShift().update([value])
