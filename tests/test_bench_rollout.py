"""The sampling benchmark: counts by hand, and the speeds reported in docs/.

Run: python -m pytest tests/test_bench_rollout.py
"""

import argparse
import json

import pytest

from drlib.config import ROOT
from drlib.models.local_engine import LocalEngine
from tests.benchmarks.bench_rollout import PAD, by_engine, by_transformers, summary, workload

SPEED = ROOT / "figures" / "reference" / "speed"
SMALL = argparse.Namespace(requests=6, prompt_min=3, prompt_max=9)


def test_ratio_is_the_median_cpu_time_ratio():
    def round_of(ours, theirs):
        return {
            "LocalEngine": {"wall": 1.0, "cpu": ours},
            "other": {"wall": 9.0, "cpu": theirs},
        }

    found = summary([round_of(8.0, 2.0), round_of(9.0, 3.0), round_of(5.0, 2.0)])
    assert found["other"]["ratio"] == 3.0 and found["other"]["ratio_range"] == [2.5, 4.0]
    assert found["other"]["tokens_per_cpu_s"] == 2.0
    assert found["LocalEngine"]["ratio"] == 1.0


def test_both_engines_count_tokens_up_to_the_stop():
    """Count one token per request if every token is a stop, and all if none is."""
    model, prompts, _ = workload(SMALL, head_dim=16)
    engine = LocalEngine(model, slots=4, max_context=20)
    all_tokens = list(range(1, model.config.vocab_size))
    for stops, tokens in ((all_tokens, 6), ([PAD + 1], 6 * 5)):
        assert by_engine(engine, prompts, stops, 5)(0) == tokens
        assert by_transformers(model, prompts, stops, 5, batch=4)(0) == tokens


def read_page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("other, at_least", [("transformers", 6.0), ("vLLM graphs", 1.8)])
def test_docs_report_the_measured_sampling_speed(other, at_least):
    found = json.loads((SPEED / "rollout.json").read_text())[other]["engines"][other]
    low, high = found["ratio_range"]
    assert found["ratio"] >= at_least
    assert f"| {found['ratio']:.1f} [{low:.1f}, {high:.1f}] |" in read_page("agents.md")


def test_docs_report_the_measured_step_speed():
    found = json.loads((SPEED / "step.json").read_text())["ratios"]
    step = found["step"]
    assert step["median"] >= 3.5
    ratio = f"{step['median']:.1f} [{step['least']:.1f}, {step['most']:.1f}]"
    assert f"| {ratio} |" in read_page("own_model.md")
