"""Merged policies: mergekit on our folders against sums by hand, and refused settings.

Run: python -m pytest tests/test_training_merge.py
"""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from drlib.config import TOUR, Config
from drlib.models.moe import build_policy, load_policy, save_policy
from drlib.training import build, merge, stages
from drlib.training.model_setup import load_model, load_model_tokenizer
from tests.loop_examples import build_stages, flat
from tests.policy_examples import SMALL
from tests.template_examples import random_model

ENTRIES = "model.layers.0.self_attn.q_norm.weight"  # eight weights of the small policy


@pytest.fixture(scope="module")
def tokenizer():
    return load_model_tokenizer(str(TOUR / "policy_sft"))


@pytest.fixture
def save(tmp_path, tokenizer):
    """Return a function that saves a small policy whose ENTRIES are changed by these numbers."""
    model = build_policy(SMALL, seed=3, init="plain")

    def save(name, changes):
        with torch.no_grad():
            model.get_parameter(ENTRIES).copy_(1 + torch.tensor(changes, dtype=torch.float32))
        save_policy(model, tokenizer, tmp_path / name, torch.float32)
        return tmp_path / name

    return save


def merged(tmp_path, policies, method, weights, **options):
    """Return the changes of ENTRIES after a merge."""
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    merge.merge_folders(policies, out, method, weights, **options)
    return load_file(out / "model.safetensors")[ENTRIES] - 1


A = [4.0, -3.0, 0.5, 0.1, 2.0, 0.0, 1.0, -0.2]
B = [-1.0, -1.0, 3.0, 0.2, 2.5, 0.3, -2.0, 0.1]


def test_linear_and_task_arithmetic_by_hand(save, tmp_path):
    zero, a, b = save("zero", [0.0] * 8), save("a", A), save("b", B)
    A_8, B_8 = torch.tensor(A), torch.tensor(B)
    found = merged(tmp_path, [a, b], "linear", [1.0, 3.0])
    torch.testing.assert_close(found, (A_8 + 3 * B_8) / 4)
    same = save("same", A)
    torch.testing.assert_close(merged(tmp_path, [a, same], "linear", [1.0, 1.0]), A_8)
    found = merged(tmp_path, [a, b], "task_arithmetic", [1.0, 0.5], base=zero)
    torch.testing.assert_close(found, A_8 + 0.5 * B_8)
    torch.testing.assert_close(merged(tmp_path, [b], "task_arithmetic", [1.0], base=zero), B_8)


def test_ties_trims_elects_a_sign_and_averages_the_agreeing(save, tmp_path):
    """density 0.5 keeps the four largest entries of each task vector."""
    zero, a, b = save("zero", [0.0] * 8), save("a", A), save("b", B)
    # trimmed:   a = 4, -3, 0, 0, 2, 0, 1, 0      b = -1, 0, 3, 0, 2.5, 0, -2, 0 or 0, -1, ...
    # (the entries -1 and -1 of b tie for its fourth place)
    found = merged(tmp_path, [a, b], "ties", [1.0, 1.0], base=zero, density=0.5)
    expected = torch.tensor([4.0, -3.0, 3.0, 0.0, 2.25, 0.0, -2.0, 0.0])
    if found[1] == -2:  # the tie kept the second entry
        expected[1] = -2.0
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        merged(tmp_path, [a], "ties", [1.0], base=zero, density=1.0), torch.tensor(A)
    )


def test_dare_drops_rescales_and_keeps_the_mean(save, tmp_path):
    zero, a = save("zero", [0.0] * 8), save("a", A)
    A_8, mean_8 = torch.tensor(A), torch.zeros(8)
    n = 40
    for seed in range(n):
        found = merged(tmp_path, [a], "dare", [1.0], base=zero, density=0.5, seed=seed)
        kept = found != 0
        torch.testing.assert_close(found[kept], 2 * A_8[kept])
        mean_8 += found / n
    # the standard deviation of the mean of n draws is |a| / sqrt(n)
    assert ((mean_8 - A_8).abs() <= 4 * A_8.abs() / n**0.5).all()
    again = merged(tmp_path, [a], "dare", [1.0], base=zero, density=0.5, seed=n - 1)
    assert torch.equal(again, found), "the seed fixes the dropped entries"


def small_config(**changes):
    both = f"{TOUR / 'policy_sft'},{TOUR / 'policy_rl'}"
    changes = {"merge.policies": both, "evaluation.questions": 4, "processes": 1, **changes}
    return Config.load("ci", **changes)


def test_merged_folder_is_a_policy_that_is_evaluated(tmp_path):
    config = small_config()
    folders = build_stages(("world", "merge", "evaluate_merge"), config, tmp_path)
    policy, tokenizer = load_policy(folders["merge"] / "policy")
    ends = [load_policy(TOUR / name)[0] for name in ("policy_sft", "policy_rl")]
    torch.testing.assert_close(flat(policy), (flat(ends[0]) + flat(ends[1])) / 2)
    own = load_model_tokenizer(str(TOUR / "policy_sft"))
    assert tokenizer.get_vocab() == own.get_vocab()
    rows = json.loads((folders["evaluate_merge"] / "rows.json").read_text())
    assert {row["stage"] for row in rows} == {"merge"} and sum(row["n"] for row in rows) > 0


def test_weights_and_folders_name_the_run(tmp_path):
    usual = stages.folder("merge", small_config(), tmp_path)
    copy = shutil.copytree(TOUR / "policy_rl", tmp_path / "elsewhere")
    moved = small_config(**{"merge.policies": f"{TOUR / 'policy_sft'},{copy}"})
    assert stages.folder("merge", moved, tmp_path) == usual, "the path of equal weights"
    turned = small_config(**{"merge.policies": f"{TOUR / 'policy_rl'},{TOUR / 'policy_sft'}"})
    weighted = small_config(**{"merge.weights": "1,2"})
    for other in (turned, weighted):
        assert stages.folder("merge", other, tmp_path) != usual


def test_dense_model_is_merged(tmp_path):
    random_model(tmp_path / "a", "llama")
    model = load_model(str(tmp_path / "a"), torch.float32)
    first = flat(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    save_policy(model, load_model_tokenizer(str(tmp_path / "a")), tmp_path / "b", torch.float32)
    merge.merge_folders([tmp_path / "a", tmp_path / "b"], tmp_path / "out", "linear", [1.0, 1.0])
    found = flat(load_model(str(tmp_path / "out"), torch.float32))
    torch.testing.assert_close(found, first + 0.25)


SFT = str(TOUR / "policy_sft")
REFUSED = [
    ({"merge.policies": ""}, "merge.policies is empty"),
    ({"merge.policies": "nowhere"}, "there is no policy in .*nowhere; pass the folder `policy`"),
    ({"merge.method": "ties"}, "merge.method=ties needs merge.base"),
    ({"merge.base": SFT}, "linear has no base: leave out merge.base"),
    ({"merge.weights": "1,2,3"}, "merge.weights='1,2,3' must be 2 numbers"),
    ({"merge.weights": "1,x"}, "merge.weights='1,x' must be 2 numbers"),
    ({"merge.density": 0.0}, "merge.density"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        merge.check_merge(small_config(**changes))


def test_other_tokenizers_and_shapes_are_refused(save, tmp_path):
    random_model(tmp_path / "llama", "llama")
    with pytest.raises(ValueError, match=r"llama has another tokenizer than .*: merge policies"):
        merge.check_merge(small_config(**{"merge.policies": f"{SFT},{tmp_path / 'llama'}"}))
    small = save("small", A)
    with pytest.raises(ValueError, match="mergekit cannot merge .*; merge policies of one"):
        merge.merge_folders([small, TOUR / "policy_sft"], tmp_path / "out", "linear", [1.0, 1.0])


def test_missing_extra_names_the_remedy(tmp_path, monkeypatch):
    build_stages(("world",), small_config(), tmp_path)
    monkeypatch.setitem(sys.modules, "mergekit.merge", None)
    with pytest.raises(ModuleNotFoundError, match="merging needs mergekit: pip install"):
        build.build("merge", small_config(), tmp_path)
