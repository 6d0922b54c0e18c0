"""Constrained turns: every sampled turn is valid, with the renormalised log-probabilities.

Run: python -m pytest tests/test_models_turn_constraint.py
"""

import sys

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from drlib.app.research import TOUR_POLICY
from drlib.chat.model_template import TemplateIds
from drlib.chat.template import ChatIds, load_any_tokenizer
from drlib.chat.tool_calls import Answer, FormatError, ToolCall, parse
from drlib.chat.turn_grammar import ITEMS, build_turn_grammar
from drlib.models.engine import SamplingParams
from drlib.models.moe import load_policy
from drlib.models.transformers_engine import TransformersEngine
from drlib.models.turn_constraint import TurnConstraint
from drlib.tools import TOOLS
from tests.template_examples import tokenizer_of

TOOL_NAMES = ("search", "visit", "python")
SCHEMAS = [TOOLS[name].schema for name in TOOL_NAMES]
SIZES = {"text_characters": 30, "string_characters": 20}
TURNS = 24
TOKENS = 1500  # more than the longest turn of SIZES


def chat_of(kind):
    """Return a chat: tags are special tokens (drlib), added tokens (qwen3) or text (llama3_1)."""
    if kind == "drlib":
        return ChatIds(load_any_tokenizer(str(TOUR_POLICY)))
    return TemplateIds(tokenizer_of(kind), tool_role="user")


def random_llama(chat, padding=0):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(chat.tokenizer) + padding,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).eval()


def sample_turns(chat, model, constraint, temperature=1.0, count=TURNS):
    params = SamplingParams(
        temperature=temperature, max_tokens=TOKENS, stop_ids=chat.stop_ids, seed=3
    )
    engine = TransformersEngine(model, batch=count, constraint=constraint)
    return engine.generate([chat.prompt("Who?", system=None)] * count, params)


@pytest.mark.parametrize("kind", ["drlib", "qwen3", "llama3_1"])
def test_every_turn_of_a_random_model_is_valid(kind):
    chat = chat_of(kind)
    model = random_llama(chat, padding=40)  # ids without a token, as many models have
    turns = sample_turns(chat, model, TurnConstraint(chat, SCHEMAS, **SIZES))
    assert {turn.finish_reason for turn in turns} == {"stop"}
    actions = [parse(chat.decode_turn(turn.token_ids)) for turn in turns]
    assert [action for action in actions if isinstance(action, FormatError)] == []
    calls = [action for action in actions if isinstance(action, ToolCall)]
    assert calls and any(isinstance(action, Answer) for action in actions)
    for call in calls:
        required = TOOLS[call.name].schema["parameters"]["required"]
        assert call.name in TOOL_NAMES and list(call.arguments) == required
        lists = [value for value in call.arguments.values() if isinstance(value, list)]
        assert all(0 < len(values) <= ITEMS for values in lists)
    free = sample_turns(chat, model, None)
    texts = [chat.decode_turn(turn.token_ids) for turn in free]
    assert all(isinstance(parse(text), FormatError) for text in texts)


VALID = (
    "<think>I see.</think>\n<answer>Oslo</answer>",
    "<think></think><answer>17,500 (2 > 1)</answer>",
    '<think>Look.</think>\n<tool_call>\n{"name": "search", "arguments": {"query": ["a b", "c"]}}\n'
    "</tool_call>",
    '<tool_call>{"name": "python", "arguments": {"code": "print(1 < 2)\\nx = \\"\u00e9\\""}}'
    "</tool_call>",
)
INVALID = (
    "Oslo",
    "<think>I see.</think>Oslo",
    "<answer> </answer>",
    '<tool_call>{"name": "google", "arguments": {"query": ["a"]}}</tool_call>',
    '<tool_call>{"name": "search", "arguments": {"query": []}}</tool_call>',
    '<tool_call>{"name": "search", "arguments": {"query": ["\\ud800"]}}</tool_call>',
    '<tool_call>{"name": "search", "arguments": {"query": ["a"], "k": 2}}</tool_call>',
)


@pytest.mark.parametrize("kind", ["drlib", "qwen3", "llama3_1"])
def test_usual_turns_are_allowed_token_by_token(kind):
    """A thought may end at any place, not only at its maximum length."""
    chat = chat_of(kind)
    size = len(chat.tokenizer)
    masks = TurnConstraint(chat, SCHEMAS).create_masks(size)

    def is_allowed(text):
        state = masks.copy()
        for token in [*chat.encode(text), chat.end_id]:
            if not state.allowed()[token]:
                return False
            if token != chat.end_id:
                state.accept(token)
        return True

    assert [text for text in VALID if not is_allowed(text)] == []
    assert not any(isinstance(parse(text), FormatError) for text in VALID)
    assert [text for text in INVALID if is_allowed(text)] == []


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_first_log_probability_is_renormalised_over_tokens_that_open_a_turn(temperature):
    """By hand: the turn starts with <think>, <tool_call> or <answer>."""
    chat = chat_of("llama3_1")
    model = random_llama(chat)
    turns = sample_turns(chat, model, TurnConstraint(chat, SCHEMAS, **SIZES), temperature, 4)
    texts = [chat.tokenizer.decode([i]) for i in range(len(chat.tokenizer))]
    special = {i for i, t in chat.tokenizer.added_tokens_decoder.items() if t.special}
    openings = ("<think>", "<tool_call>", "<answer>")
    allowed = [
        i
        for i, text in enumerate(texts)
        if i not in special and text and any(tag.startswith(text) for tag in openings)
    ]
    with torch.no_grad():
        logits = model(torch.tensor([chat.prompt("Who?")])).logits[0, -1]
    expected = (logits[allowed] / (temperature or 1)).log_softmax(-1)
    entropy = -(expected.exp() * expected).sum().item()
    for turn in turns:
        at = allowed.index(turn.token_ids[0])
        assert turn.logprobs[0] == pytest.approx(expected[at].item(), abs=1e-5)
        assert turn.entropies[0] == pytest.approx(entropy, abs=1e-4)
        assert np.isfinite(turn.entropies).all() and np.isfinite(turn.logprobs).all()
    if temperature == 0:
        assert turns[0].token_ids[0] == allowed[int(expected.argmax())]


def test_valid_turns_of_a_trained_policy_are_unchanged():
    model, tokenizer = load_policy(TOUR_POLICY)
    chat = ChatIds(tokenizer)
    prompt = chat.prompt("What is the currency of Norway?")
    params = SamplingParams(temperature=0, max_tokens=72, stop_ids=chat.stop_ids)
    constraint = TurnConstraint(chat, [TOOLS["search"].schema])
    (free,) = TransformersEngine(model.eval()).generate([prompt], params)
    (turn,) = TransformersEngine(model, constraint=constraint).generate([prompt], params)
    assert turn.token_ids == free.token_ids
    assert isinstance(parse(chat.decode_turn(turn.token_ids)), ToolCall)
    # fewer alternatives, so no token is less likely
    assert (np.array(turn.logprobs) >= np.array(free.logprobs) - 1e-5).all()
    assert sum(turn.logprobs) > sum(free.logprobs)


def test_open_thought_is_continued():
    """Some templates write <think> themselves: then the turn must not open another one."""
    chat = chat_of("llama3_1")
    chat.assistant_start = [*chat.assistant_start, *chat.encode("<think>\n")]
    constraint = TurnConstraint(chat, SCHEMAS, **SIZES)
    turns = sample_turns(chat, random_llama(chat), constraint, count=8)
    for turn in turns:
        text = chat.decode_turn(turn.token_ids)
        assert text.count("</think>") == 1 and "<think>" not in text
        assert not isinstance(parse("<think>\n" + text), FormatError)


def test_gguf_tokenizer_is_read_by_its_last_decoder():
    """The converted file of smol decodes in four steps; ids and texts are unchanged."""
    from tokenizers import decoders

    chat = chat_of("llama3_1")
    steps = [decoders.ByteFallback(), decoders.Fuse(), decoders.ByteLevel()]
    chat.tokenizer.backend_tokenizer.decoder = decoders.Sequence(steps)
    turns = sample_turns(chat, random_llama(chat), TurnConstraint(chat, SCHEMAS, **SIZES), count=8)
    texts = [chat.decode_turn(turn.token_ids) for turn in turns]
    assert not any(isinstance(parse(text), FormatError) for text in texts)


def test_grammar_without_tools_allows_only_answers():
    chat = chat_of("llama3_1")
    turns = sample_turns(chat, random_llama(chat), TurnConstraint(chat, [], **SIZES), count=8)
    assert all(isinstance(parse(chat.decode_turn(turn.token_ids)), Answer) for turn in turns)
    assert "tool_call" not in build_turn_grammar([])


def test_schemas_of_other_tools_are_closed_and_bounded():
    nested = {
        "type": "object",
        "properties": {
            "filters": {
                "type": "array",
                "items": {"anyOf": [{"type": "string"}, {"type": "string", "enum": ["x" * 90]}]},
            },
            "deep": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
        "required": ["filters"],
    }
    grammar = build_turn_grammar(
        [{"name": "find", "parameters": nested}], string_characters=7, text_characters=5
    )
    assert grammar.count('"additionalProperties": false') == 3
    assert grammar.count("{0,7}") == 2 and f'"maxItems": {ITEMS}' in grammar
    assert nested["properties"]["filters"].keys() == {"type", "items"}  # not changed in place


def test_missing_library_is_named(monkeypatch):
    chat = chat_of("llama3_1")
    model, constraint = random_llama(chat), TurnConstraint(chat, SCHEMAS)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*drlib\[constrained\]"):
        TransformersEngine(model, constraint=constraint)


def test_unsupported_schema_is_an_error():
    chat = chat_of("llama3_1")
    odd = {"type": "string", "pattern": "(?=a)b"}
    tool = {"name": "odd", "parameters": {"type": "object", "properties": {"x": odd}}}
    with pytest.raises(ValueError, match="llguidance cannot constrain"):
        TransformersEngine(random_llama(chat), constraint=TurnConstraint(chat, [tool]))
