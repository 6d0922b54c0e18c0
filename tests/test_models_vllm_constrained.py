"""Constrained turns of real vLLM: in process, by token ids over HTTP, and by messages.

Skipped if vLLM is not installed.

Run: make test-vllm
"""

import re

import numpy as np
import pytest
import torch

from drlib.chat.model_template import TemplateIds
from drlib.chat.prompts import research_prompt
from drlib.chat.template import load_any_tokenizer
from drlib.chat.tool_calls import FormatError, parse
from drlib.endpoint import ChatEndpoint
from drlib.models.api_engine import ApiEngine
from drlib.models.engine import SamplingParams
from drlib.models.json_turns import JsonTurns
from drlib.models.moe import load_model
from drlib.models.turn_constraint import TurnConstraint
from drlib.models.vllm_engine import VllmEngine
from drlib.models.vllm_server import VllmServer
from tests.template_examples import random_model
from tests.test_models_turn_constraint import SCHEMAS, SIZES
from tests.vllm_examples import serving

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")
COUNT = 8
CONTEXT = 2048


# the tags of a random model are text (llama) or, for calls and thoughts, tokens (qwen3)
KINDS = ("llama", "qwen3")


def sample_turns(engine, chat):
    params = SamplingParams(max_tokens=1000, stop_ids=chat.stop_ids, seed=2)
    return engine.generate([chat.prompt("Who?")] * COUNT, params)


def check_turns(turns, chat, constraint, folder):
    """Check the format, and that log-probabilities are renormalised over the allowed tokens."""
    model = load_model(folder).float().eval()
    masks = constraint.create_masks(model.config.vocab_size)
    for turn in turns:
        assert turn.finish_reason == "stop"
        assert not isinstance(parse(chat.decode_turn(turn.token_ids)), FormatError)
        prompt, state = chat.prompt("Who?"), masks.copy()
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *turn.token_ids]])).logits[0]
        for step, token in enumerate(turn.token_ids):
            allowed = torch.from_numpy(state.allowed())
            logits = logits_TV[len(prompt) - 1 + step].masked_fill(~allowed, -torch.inf)
            gap = logits.log_softmax(-1)[token].item() - turn.logprobs[step]
            assert abs(gap) < 1e-3, (step, token)
            if step + 1 < len(turn.token_ids):
                state.accept(token)
    assert len({tuple(turn.token_ids) for turn in turns}) > 1


def chat_of(folder):
    chat = TemplateIds(load_any_tokenizer(folder), tool_role="user")
    return chat, TurnConstraint(chat, SCHEMAS, **SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_in_process(kind, tmp_path, monkeypatch):
    folder = random_model(tmp_path / kind, kind)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    chat, constraint = chat_of(folder)
    engine = VllmEngine(folder, max_context=CONTEXT, constraint=constraint)
    try:
        check_turns(sample_turns(engine, chat), chat, constraint, folder)
    finally:
        engine.close()


def test_vllm_server(tmp_path):
    folder = random_model(tmp_path / "qwen3", "qwen3")
    chat, constraint = chat_of(folder)
    with serving(model=folder, name="random") as url:
        endpoint = ChatEndpoint(url, "random", timeout_s=60)
        engine = VllmServer(endpoint, folder, max_context=CONTEXT, constraint=constraint)
        check_turns(sample_turns(engine, chat), chat, constraint, folder)
        free = VllmServer(endpoint, folder, max_context=CONTEXT)
        texts = [chat.decode_turn(turn.token_ids) for turn in sample_turns(free, chat)]
        assert all(isinstance(parse(text), FormatError) for text in texts)
        # a random model rarely closes a string, so only the start of its turns is known
        form = JsonTurns(SCHEMAS)
        messages = [
            {"role": "system", "content": research_prompt(SCHEMAS, is_json=True)},
            {"role": "user", "content": "Who?"},
        ]
        for api, is_json in (
            (ApiEngine(endpoint, message_format=form), True),
            (ApiEngine(endpoint), False),
        ):
            params = SamplingParams(max_tokens=40)
            turns = api.generate([messages] * COUNT, params)
            starts = [re.match(r'\{\s*"thought"\s*:\s*"|<think>', turn.text) for turn in turns]
            assert np.mean([start is not None for start in starts]) == is_json
