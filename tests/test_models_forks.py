"""Another temperature at forking tokens: which tokens change, and what is recorded of them.

Run: python -m pytest tests/test_models_forks.py
"""

import numpy as np
import pytest
import torch

from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.sampling import Forks, redraw_forks, sample
from drlib.training.grpo import check_rl_settings
from tests.loop_examples import cold_start, settings

start = cold_start


def test_only_forks_are_drawn_again_and_keep_the_policys_log_probability():
    """By hand: a sure row and a fork of two tokens with odds 3 : 1, which are 9 : 1 at 0.5."""
    logits_NV = torch.tensor([[5.0, 0.0, -9.0], [np.log(3.0), 0.0, -99.0]])
    uniforms_N = np.array([0.5, 0.8])
    drawn = tuple(x.numpy() for x in sample(logits_NV, torch.from_numpy(uniforms_N), 1.0, 1.0))
    assert drawn[0].tolist() == [0, 1]  # 0.8 is above 3/4,
    before = [x.copy() for x in drawn]
    ids, logps, entropies = redraw_forks(drawn, logits_NV, uniforms_N, 1.0, Forks(0.5, 0.5))
    assert ids.tolist() == [0, 0]  # and below 9/10
    assert logps[0] == before[1][0]
    assert logps[1] == pytest.approx(np.log(3 / 4), abs=1e-6)  # not of 9/10
    assert np.array_equal(entropies, before[2])


def test_shares_at_a_fork_are_those_of_its_temperature():
    logits_NV = torch.tensor([[1.0, 0.0, -1.0, 0.5]]).repeat(20_000, 1)
    uniforms_N = np.random.default_rng(0).random(20_000)
    drawn = tuple(x.numpy() for x in sample(logits_NV, torch.from_numpy(uniforms_N), 1.0, 1.0))
    ids, *_ = redraw_forks(drawn, logits_NV, uniforms_N, 1.0, Forks(0.1, 2.0))
    expected = (logits_NV[0] / 2.0).softmax(0)
    shares = np.bincount(ids, minlength=4) / len(ids)
    assert np.abs(shares - expected.numpy()).max() < 0.015


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_engine_changes_tokens_at_forks_only(start, temperature):
    """Up to the first fork a turn equals the turn without the option."""
    params = SamplingParams(temperature=temperature, max_tokens=24, seed=3)
    given = [[1, 5, 9], [4, 7, 7, 2]] * 8
    plain = LocalEngine(start.policy).generate(given, params)
    forks = Forks(1.0, 4.0)
    hot = LocalEngine(start.policy, forks=forks).generate(given, params)
    changed = 0
    for one, other in zip(plain, hot, strict=True):
        at = next((i for i, h in enumerate(one.entropies) if h >= forks.entropy), 24)
        assert one.token_ids[:at] == other.token_ids[:at]
        assert one.logprobs[:at] == pytest.approx(other.logprobs[:at], abs=1e-5)
        assert one.entropies[: at + 1] == pytest.approx(other.entropies[: at + 1], abs=1e-5)
        changed += one.token_ids != other.token_ids
    assert changed > 4
    # nothing forks above an entropy that no distribution has
    never = LocalEngine(start.policy, forks=Forks(99.0, 4.0)).generate(given, params)
    assert [c.token_ids for c in never] == [c.token_ids for c in plain]


def test_recorded_log_probabilities_are_the_training_policys(start, tmp_path):
    """The learner computes the same values, so the step counts as on-policy."""
    trainer = start.step(
        settings(rl__sampling__fork_temperature=3.0, rl__sampling__fork_entropy=0.3),
        tmp_path / "run",
    )
    row = trainer(0)
    assert row["logp_gap_max"] < 1e-3 and row["updates"] == 1
    usual = start.step(settings(), tmp_path / "usual")
    assert row["entropy"] != usual(0)["entropy"]


def test_greedy_turns_sample_their_forks(start):
    given = [[1, 5, 9]] * 12
    params = SamplingParams(temperature=0, max_tokens=24, seed=3)
    engine = LocalEngine(start.policy, forks=Forks(1.0, 3.0))
    assert len({tuple(c.token_ids) for c in engine.generate(given, params)}) > 1


def test_bad_options_are_refused(start):
    with pytest.raises(ValueError, match="entropy=-1 of forks"):
        Forks(-1, 1.0)
    with pytest.raises(ValueError, match="temperature=0 of forks"):
        Forks(1.0, 0)
    engine = LocalEngine(start.policy, forks=Forks(1.0, 2.0))
    with pytest.raises(ValueError, match="forks need top_p=1, got 0.9"):
        engine.generate([[1, 2]], SamplingParams(top_p=0.9))
    with pytest.raises(ValueError, match="fork_entropy has no effect"):
        check_rl_settings(settings(rl__sampling__fork_entropy=0.3))
    with pytest.raises(ValueError, match="fork_temperature is an option of the tiny policy"):
        check_rl_settings(
            settings(**{"rl.sampling.fork_temperature": 1.5, "model.path": "somewhere"})
        )
