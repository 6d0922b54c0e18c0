"""The numbers of the teaching panels are those of the library, for many settings in a browser."""

import json
import math

import pytest
import torch

from drlib import notebook
from drlib.analysis.scaling_plots import simulate_asynchronous
from drlib.notebook.panels import FOLDER, PANELS, PagePanel
from drlib.rl.advantages import ADVANTAGES
from drlib.rl.clips import CLIPS
from drlib.rl.divergences import kl_estimate, weight_metrics
from drlib.rl.losses import LossConfig
from drlib.training.planner import Rates, Workload, step_time
from tests.browser import CHROMIUM, Browser

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; apt-get install chromium"
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """Return a browser with a page of all panels."""
    page = tmp_path_factory.mktemp("panels") / "all.html"
    parts = "".join(PagePanel(name).page() for name in PANELS)
    page.write_text(f'<meta charset="utf-8"><body style="color:#222">{parts}', encoding="utf-8")
    with Browser() as tab:
        tab.open(page.as_uri(), ready="document.querySelectorAll('[data-live]').length === 6")
        yield tab


def numbers(tab, panel, **values):
    """Set controls of a panel and return its exact numbers by name."""
    for name, value in values.items():
        control = f"document.getElementById('drlib-{panel}-{name}')"
        tab.js(
            f"{control}.value = {json.dumps(value)}; {control}.dispatchEvent(new Event('input'))"
        )
    shown = f"document.querySelectorAll('#drlib-{panel} [data-number]')"
    found = tab.js(f"[...{shown}].map((one) => [one.dataset.number, one.dataset.exact])")
    return {name: float(value) for name, value in found}


@needs_chromium
@pytest.mark.parametrize("clip", ["ppo", "double_sided", "cispo", "none"])
@pytest.mark.parametrize("advantage", [1, -1])
def test_clip_panel_shows_the_gradient_of_the_clip(tab, clip, advantage):
    for ratio in (0.3, 0.75, 1.0, 1.25, 1.45, 2.2):
        logp = torch.tensor([[math.log(0.4 * ratio)]], dtype=torch.float64, requires_grad=True)
        log_ratio = logp - math.log(0.4)
        config = LossConfig(clip=clip, epsilon_low=0.2, epsilon_high=0.4)
        advantages = torch.full((1, 1), float(advantage), dtype=torch.float64)
        CLIPS[clip](logp, log_ratio, advantages, config).sum().backward()
        of = {"clip": clip, "advantage": str(advantage), "ratio": ratio, "low": 0.2, "high": 0.4}
        assert numbers(tab, "clip", **of)["factor"] == pytest.approx(logp.grad.item(), abs=1e-6)


@needs_chromium
@pytest.mark.parametrize("estimator", ["leave_one_out", "group_mean", "group_normalized"])
@pytest.mark.parametrize(("correct", "partials"), [(0, 0), (1, 0), (3, 2), (2, 6), (8, 0)])
def test_advantage_panel_shows_the_estimators(tab, estimator, correct, partials):
    rewards = [1.0] * correct + [0.3] * partials + [0.0] * (8 - correct - partials)
    expected = ADVANTAGES[estimator](rewards, [0] * 8)
    of = {"estimator": estimator, "correct": correct, "partials": partials, "partial": 0.3}
    found = numbers(tab, "advantage", **of)
    ends = [found["first rollout"], found["last rollout"]]
    assert ends == pytest.approx([expected[0].item(), expected[-1].item()], abs=1e-6)
    assert found["sum"] == pytest.approx(expected.sum().item(), abs=1e-5)


@needs_chromium
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_panel_shows_the_estimators(tab, estimator):
    logits = torch.tensor([1.5, -0.5, 0.3], dtype=torch.float64)
    logp, reference = (
        logits.log_softmax(0),
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log(),
    )
    of = {"first": 1.5, "second": -0.5, "third": 0.3, "estimator": estimator}
    found = numbers(tab, "kl", **of)
    estimate = (logp.exp() * kl_estimate(logp, reference, estimator)).sum().item()
    assert found["mean of the estimator"] == pytest.approx(estimate)
    forward = torch.nn.functional.kl_div(reference, logp, log_target=True, reduction="sum")
    backward = torch.nn.functional.kl_div(logp, reference, log_target=True, reduction="sum")
    assert found["KL(π || reference)"] == pytest.approx(forward.item())
    assert found["KL(reference || π)"] == pytest.approx(backward.item())


@needs_chromium
@pytest.mark.parametrize(("age", "sigma"), [(1, 0.05), (4, 0.2), (16, 0.3)])
def test_staleness_panel_agrees_with_sampled_weights(tab, age, sigma):
    found = numbers(tab, "staleness", age=age, sigma=sigma, low=0.2, high=0.3)
    deviation = sigma * age**0.5
    normal = torch.distributions.Normal(-(deviation**2) / 2, deviation)
    grid = (torch.arange(2_000_000, dtype=torch.float64) + 0.5) / 2_000_000
    log_weight_BT = normal.icdf(grid)[None]
    ess = weight_metrics(log_weight_BT, torch.ones_like(log_weight_BT, dtype=torch.bool))["ess"]
    assert found["effective sample size"] == pytest.approx(ess, abs=2e-3)
    ratios = log_weight_BT.exp()
    outside = ((ratios < 0.8) | (ratios > 1.3)).double().mean().item()
    assert found["outside the range"] == pytest.approx(outside, abs=1e-5)


@needs_chromium
@pytest.mark.parametrize(("gap", "temperature"), [(0, 1), (1.2, 0.6), (2, 3)])
def test_entropy_panel_shows_the_entropy(tab, gap, temperature):
    logits = -gap * torch.arange(5, dtype=torch.float64) / temperature
    expected = torch.distributions.Categorical(logits=logits)
    found = numbers(tab, "entropy", gap=gap, temperature=temperature)
    assert found["entropy, nats"] == pytest.approx(expected.entropy().item())
    assert found["exp of the entropy"] == pytest.approx(expected.entropy().exp().item())
    assert found["largest probability"] == pytest.approx(expected.probs.max().item())


@needs_chromium
@pytest.mark.parametrize(("sample", "update"), [(10, 5), (4, 12), (20, 2)])
@pytest.mark.parametrize("engines", [1, 2, 4])
def test_scheduler_panel_agrees_with_the_planner(tab, sample, update, engines):
    rates = Rates(generate_tokens_s=1.0, train_tokens_s=1.0)
    time = step_time(Workload(sample, update), rates, engines=engines)
    of = {"sample": sample, "update": update, "engines": engines}
    in_turns = numbers(tab, "scheduler", **of, schedule="in turns")
    assert in_turns == {"seconds per step": pytest.approx(time.synchronous), "age of a batch": 0}
    found = numbers(tab, "scheduler", **of, schedule="side by side")
    assert found["seconds per step"] == pytest.approx(time.asynchronous, rel=0.05)
    trained = [span for span in simulate_asynchronous(time, 48) if span.what == "train"]
    assert found["age of a batch"] == trained[-1].age


@needs_chromium
def test_reset_restores_the_start(tab):
    start = numbers(tab, "entropy", gap=1, temperature=1)
    assert numbers(tab, "entropy", gap=3) != start
    tab.js("document.querySelector('#drlib-entropy button').click()")
    assert numbers(tab, "entropy") == start


# settings in which every control has an effect
ALL_MATTER = {
    "advantage": {"correct": 3, "partials": 2, "partial": 0.5},
    "clip": {"clip": "double_sided"},
}


@needs_chromium
@pytest.mark.parametrize("name", PANELS)
def test_every_control_changes_the_picture(tab, name):
    """Each control's extremes draw different pictures from some state, without an error."""
    pictures = f"document.querySelector('#drlib-{name} svg').innerHTML"
    controls = tab.js(
        f"[...document.querySelectorAll('#drlib-{name} input, #drlib-{name} select')]"
        ".map((one) => [one.id.split('-').pop(), one.min ?? '', one.max ?? '',"
        " one.options ? [...one.options].map((o) => o.value) : []])"
    )
    for control, low, high, options in controls:
        tab.js(f"document.querySelector('#drlib-{name} button').click()")
        numbers(tab, name, **ALL_MATTER.get(name, {}))
        seen = set()
        for value in options or (low, high):
            numbers(tab, name, **{control: value})
            seen.add(tab.js(pictures))
        assert len(seen) > 1, control
    assert tab.errors == [] and not [url for url in tab.requests if url.startswith("http")]


def test_output_has_a_picture_for_pages_without_scripts():
    output = notebook.show_panel("clip")._repr_html_()
    picture, script = output.split("<script>")
    assert 'src="data:image/png;base64,' in picture and "const PANELS" in script
    assert [(FOLDER / "panels" / f"{name}.png").exists() for name in PANELS] == [True] * 6


def test_unknown_panel_is_rejected():
    with pytest.raises(ValueError, match="did you mean 'clip'"):
        notebook.show_panel("clips")
