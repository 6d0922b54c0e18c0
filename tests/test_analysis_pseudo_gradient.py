"""Loss of the answer along a trajectory: a scripted model, and brute force on real models.

Run: python -m pytest tests/test_analysis_pseudo_gradient.py
"""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rl_examples import a_trajectory
from torch import nn
from transformers import (
    DynamicCache,
)

from drlib.analysis.pseudo_gradient import (
    answer_losses,
    extract_bridge,
    pseudo_gradient,
)
from drlib.chat.segments import segment_tokens
from drlib.chat.template import ChatIds, load_tokenizer
from drlib.models.moe import load_policy
from drlib.trajectory import Segment, load_trajectories
from tests.policy_examples import real_model

TOUR = Path(__file__).parents[1] / "figures" / "reference" / "tour"


class ScriptedModel(nn.Module):
    """Model that gives each of the tokens 100 to 109 a probability of exp(-loss).

    The loss is `base` nats plus an effect of each visible token. The effects pass through a real
    key-value cache.
    """

    def __init__(self, effects=None, base=20.0, vocabulary=2048):
        super().__init__()
        self.table = nn.Embedding(vocabulary, 1)
        nn.init.zeros_(self.table.weight)
        for token, effect in (effects or {}).items():
            self.table.weight.data[token] = effect
        self.base = base
        self.config = SimpleNamespace(max_position_embeddings=4096)
        self.device = torch.device("cpu")
        self.token_counts = []
        self.eval()

    def get_input_embeddings(self):
        return self.table

    def forward(
        self,
        input_ids,
        past_key_values=None,
        attention_mask=None,
        position_ids=None,
        use_cache=True,
        logits_to_keep=0,
    ):
        cache = DynamicCache() if past_key_values is None else past_key_values
        new_B1S1 = self.table(input_ids)[:, None]
        effect_BC = cache.update(new_B1S1, new_B1S1, 0)[0][:, 0, :, 0]
        if attention_mask is not None:
            effect_BC = effect_BC * attention_mask
            # the position of a token is the number of tokens it sees before it
            before = attention_mask.cumsum(1)[:, -input_ids.shape[1] :] - 1
            assert torch.equal(position_ids, before)
        self.token_counts.append(input_ids.numel())
        loss_BS = self.base + effect_BC.cumsum(1)[:, -input_ids.shape[1] :]
        # ten tokens have this probability; the others share the rest
        p_BS = torch.exp(-loss_BS.double())
        size = len(self.table.weight)
        logits_BSV = torch.zeros(*p_BS.shape, size, dtype=torch.float64)
        logits_BSV[..., 100:110] = torch.log(p_BS / (1 - 10 * p_BS) * (size - 10))[..., None]
        return SimpleNamespace(logits=logits_BSV[:, -logits_to_keep:], past_key_values=cache)


def brute_force(model, context, ends, answer, bridge=()):
    losses = []
    for end in ends:
        ids = torch.tensor([[*context[:end], *bridge, *answer]])
        with torch.no_grad():
            logp = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)[0]
        places = range(ids.shape[1] - len(answer), ids.shape[1])
        losses.append(-sum(logp[at - 1, ids[0, at]].item() for at in places) / len(answer))
    return np.array(losses)


def random_ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 64, n).tolist()


# ---------------------------------------------------------------- losses after prefixes


@pytest.mark.parametrize("name", ["moe", "llama", "gpt2"])
@pytest.mark.parametrize("batch_tokens", [1, 300, 10**6])
def test_losses_after_a_shared_prefix_equal_full_passes(name, batch_tokens):
    model = real_model(name)
    context = random_ids(40)
    for weight in model.parameters():  # far from uniform, so that a wrong mask is visible
        weight.data *= 2.5
    ends = np.arange(1, 41)
    for bridge, answer in (([], [5]), ([7], [5, 6, 7]), ([1, 2, 3], [9, 9])):
        found = answer_losses(model, context, ends, answer, bridge, batch_tokens=batch_tokens)
        expected = brute_force(model, context, ends, answer, bridge)
        assert np.ptp(expected) > 0.3
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_prefixes_may_be_unordered_and_repeated():
    model = real_model("llama")
    context = random_ids(20)
    ends = [20, 3, 3, 1, 11]
    found = answer_losses(model, context, ends, [4, 5], [6])
    np.testing.assert_allclose(found, brute_force(model, context, ends, [4, 5], [6]), atol=1e-5)
    assert found[1] == found[2]


def test_prefix_is_computed_once():
    model = ScriptedModel()
    answer_losses(model, random_ids(300), range(1, 301), [100, 101], [1, 2], batch_tokens=2000)
    branches = 300 * 4  # last token of the prefix, bridge, answer without its last token
    assert sum(model.token_counts) == 299 + branches


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(answer_ids=[]), "the answer has no tokens"),
        (dict(prefix_ends=[]), "prefix_ends must have values in 1..10, got"),
        (dict(prefix_ends=[0]), "prefix_ends must have values in 1..10"),
        (dict(prefix_ends=[5, 11]), "prefix_ends must have values in 1..10"),
        (dict(answer_ids=[64]), "ids exceed the model's vocabulary of 64"),
        (dict(context_ids=random_ids(140), prefix_ends=[127]), "exceed the model's 128 positions"),
    ],
)
def test_invalid_arguments_are_rejected(change, message):
    arguments = dict(context_ids=random_ids(10), prefix_ends=[3], answer_ids=[1, 2]) | change
    with pytest.raises(ValueError, match=message):
        answer_losses(real_model("llama"), **arguments)


def test_unsupported_models_are_rejected():
    with pytest.raises(ValueError, match="MistralForCausalLM has sliding windows"):
        answer_losses(real_model("window"), random_ids(30), [20], [1])
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        answer_losses(real_model("llama").train(), random_ids(30), [20], [1])
    broken = real_model("llama")
    broken.lm_head.weight.data[5] = math.nan
    with pytest.raises(ValueError, match="a loss is not finite"):
        answer_losses(broken, random_ids(10), [3], [1])


# ---------------------------------------------------------------- along a trajectory


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TOUR / "policy_rl")


def rollout(tokenizer, *turns, right="MWK"):
    """Return a trajectory of sampled turns with the response "territory Kenya." between them."""
    chat = ChatIds(tokenizer)
    ids = chat.prompt("Tell me the code.")
    generated = [False] * len(ids)
    for i, turn in enumerate(turns):
        said = chat.encode(turn)
        between = chat.tool_turn("territory Kenya.") if i + 1 < len(turns) else []
        ids += [*said, *between]
        generated += [True] * len(said) + [False] * len(between)
    base = a_trajectory(tokens=len(ids) - 1)
    n = len(ids)
    ids = np.array(ids, np.int32)
    return replace(
        base,
        token_ids=ids,
        generated=np.array(generated),
        logprobs=np.zeros(n, np.float32),
        segments=segment_tokens(ids, tokenizer),
        metadata={"right_answer": right},
    )


CALL = '<tool_call>{"name": "search", "arguments": {"query": ["Kenya"]}}</tool_call><|im_end|>'
ANSWER = "<answer>MWK</answer><|im_end|>"
TURNS = (f"<think>First the code.</think>{CALL}", f"<think>I have it.</think>{ANSWER}")
# ScriptedModel can answer with these: ten tokens from 100 have the answer's probability
SAYABLE = range(100, 110)


@pytest.fixture
def answerable(tokenizer):
    """Return the tokenizer with answers of tokens that `ScriptedModel` can produce."""
    wrapped = SimpleNamespace(
        decode=tokenizer.decode,
        encode=lambda text, add_special_tokens: (
            list(SAYABLE[: len(text)])
            if text == "MWK"
            else tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ),
    )
    return wrapped


def thoughts_of(t):
    return np.flatnonzero(t.generated & (t.segments == Segment.THINK))


def starts_of(t):
    return np.flatnonzero(t.generated & ~np.roll(t.generated, 1))


def test_known_losses_are_recovered_at_every_point(tokenizer, answerable):
    t = rollout(tokenizer, *TURNS)
    effects = dict(zip(dict.fromkeys(t.token_ids.tolist()), np.linspace(-0.4, 0.5, 200)))
    for bridge in ("<think>", "</think>", "<answer>"):
        effects[tokenizer.convert_tokens_to_ids(bridge)] = 0.0
    effects |= dict.fromkeys(SAYABLE, 0.0)
    found = pseudo_gradient(ScriptedModel(effects), answerable, t)
    assert found.ends_P.tolist() == sorted([*starts_of(t), *(thoughts_of(t) + 1)])
    assert found.ends_P[found.starts_P].tolist() == starts_of(t).tolist()
    expected = [20 + sum(effects[i] for i in t.token_ids[:end].tolist()) for end in found.ends_P]
    np.testing.assert_allclose(found.losses_P, expected, atol=1e-4)


def test_delta_equals_the_effect_of_its_token(tokenizer, answerable):
    t = rollout(tokenizer, *TURNS)
    for planted in thoughts_of(t):
        ids = t.token_ids.copy()
        ids[planted] = 2000
        found = pseudo_gradient(ScriptedModel({2000: -1.5}), answerable, replace(t, token_ids=ids))
        (at,) = np.flatnonzero(np.abs(found.deltas_P) > 1e-3)
        assert (found.ends_P[at] - 1, found.starts_P[at]) == (planted, False)
        np.testing.assert_allclose(found.deltas_P[at], -1.5, atol=1e-4)
    assert np.isnan(found.deltas_P[0])


def test_response_delta_includes_its_call(tokenizer, answerable):
    t = rollout(tokenizer, *TURNS)
    ids = t.token_ids.copy()
    (call,), (response,) = (np.flatnonzero(t.segments == s)[:1] for s in (2, 3))
    ids[call], ids[response] = 2000, 2001
    model = ScriptedModel({2000: 0.25, 2001: -3.0})
    found = pseudo_gradient(model, answerable, replace(t, token_ids=ids))
    (at,) = np.flatnonzero(np.abs(found.deltas_P) > 1e-3)
    assert found.ends_P[at] == starts_of(t)[1] and found.starts_P[at]
    np.testing.assert_allclose(found.deltas_P[at], -2.75, atol=1e-4)


def test_without_thoughts_only_calls_and_responses_count(tokenizer, answerable):
    t = rollout(tokenizer, *TURNS)
    effects = dict.fromkeys(t.token_ids[t.segments == Segment.TOOL_RESPONSE].tolist(), -0.5)
    effects |= dict.fromkeys(t.token_ids[thoughts_of(t)].tolist(), -2.0)
    effects |= dict.fromkeys(t.token_ids[t.segments == Segment.ANSWER].tolist(), 9.0)  # comes later
    found = pseudo_gradient(ScriptedModel(effects, base=40), answerable, t, think=False)
    assert found.ends_P.tolist() == starts_of(t).tolist() and found.starts_P.all()
    left = [0.0 if i in thoughts_of(t) else effects.get(x, 0.0) for i, x in enumerate(t.token_ids)]
    expected = [40 + sum(left[:end]) for end in starts_of(t)]
    assert expected[1] < expected[0]
    np.testing.assert_allclose(found.losses_P, expected, atol=1e-4)
    thought = pseudo_gradient(ScriptedModel(effects, base=40), answerable, t, segments=()).deltas_P[
        1
    ]
    thoughts = sum(i < starts_of(t)[1] for i in thoughts_of(t))
    np.testing.assert_allclose(thought, found.deltas_P[1] - 2 * thoughts, atol=1e-4)


def test_stride_keeps_first_and_last_tokens_of_turns(tokenizer, answerable):
    t = rollout(tokenizer, *TURNS)
    first, second = (thoughts_of(t)[thoughts_of(t) // starts_of(t)[1] == i] for i in (0, 1))
    assert len(first) == len(second) == 4
    model = ScriptedModel()
    for stride, places in ((2, [1, 3]), (3, [2, 3]), (9, [3])):
        found = pseudo_gradient(model, answerable, t, stride=stride)
        expected = [*starts_of(t), *(first[places] + 1), *(second[places] + 1)]
        assert found.ends_P.tolist() == sorted(expected) and found.stride == stride
    found = pseudo_gradient(model, answerable, t, segments=())
    assert found.ends_P.tolist() == starts_of(t).tolist()


def test_no_points_after_the_answer(tokenizer, answerable):
    later = f"<think>So.</think>{ANSWER}"
    t = rollout(tokenizer, TURNS[1], later)
    found = pseudo_gradient(ScriptedModel(), answerable, t)
    assert found.ends_P.max() <= np.flatnonzero(t.segments == Segment.ANSWER)[0]


def test_bridge_closes_open_thoughts(tokenizer, answerable):
    t = rollout(tokenizer, *TURNS)
    seen = []
    model = ScriptedModel()
    model.register_forward_pre_hook(lambda m, a, kw: seen.append(kw["input_ids"]), with_kwargs=True)
    pseudo_gradient(model, answerable, t)
    ids = {tag: tokenizer.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>", "<answer>")}
    at_starts, inside = seen[1], seen[-1]
    tail = list(ids.values()) + list(SAYABLE[:2])
    assert at_starts[:, 1:].tolist() == [tail] * 2
    assert inside[:, 1:].tolist() == [tail[1:]] * len(thoughts_of(t))
    seen.clear()
    pseudo_gradient(model, answerable, t, bridge="It is ")
    assert seen[1][0, 1:-2].tolist() == tokenizer.encode("It is ", add_special_tokens=False)


def test_extracted_bridge_ends_before_the_answer(tokenizer):
    t = rollout(tokenizer, TURNS[0], f"<think>I have the code: MWK.</think>{ANSWER}")
    assert extract_bridge(tokenizer, t, "MWK") == "<think>I have the code: "
    with pytest.raises(ValueError, match="does not contain 'KES'"):
        extract_bridge(tokenizer, t, "KES")


def test_unmeasurable_trajectories_are_rejected(tokenizer):
    t = rollout(tokenizer, *TURNS)
    model = ScriptedModel()
    for changed, kwargs, message in (
        (replace(t, metadata={}), {}, "has no right_answer; pass answer="),
        (replace(t, generated=t.generated & False), {}, "needs a prompt and sampled tokens"),
        (replace(t, generated=t.generated | True), {}, "needs a prompt and sampled tokens"),
        (t, {"stride": 0}, "stride must be at least 1"),
        (t, {"answer": ""}, "the answer has no tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            pseudo_gradient(model, tokenizer, changed, **kwargs)
    with pytest.raises(ValueError, match="ids exceed the model's vocabulary"):
        pseudo_gradient(real_model("llama"), tokenizer, t)


def test_tour_policy_loss_drops_after_the_page_with_the_answer():
    model, tokenizer = load_policy(TOUR / "policy_rl")
    t = load_trajectories(TOUR / "rl_sampled.parquet")[0]
    words = extract_bridge(tokenizer, t, t.metadata["right_answer"])
    found = pseudo_gradient(model.eval(), tokenizer, t, bridge=words, segments=())
    assert found.losses_P[0] > 5 and found.losses_P[1] < 0.1
    texts = t.metadata["right_answer"], words
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    expected = brute_force(model, t.token_ids.tolist(), found.ends_P, *ids)
    np.testing.assert_allclose(found.losses_P, expected, atol=1e-4)
