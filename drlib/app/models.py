"""Who speaks in `drlib ask`: an engine, its chat, what it is told, and its limits.

Four ways to a model: the tour's policy (nothing named; for agents that forget, the one that was
taught to write reports and summaries), any model behind an OpenAI-compatible server (`endpoint` and
`model`: messages go there, the server's template makes ids of them), a model in a folder (`folder`:
by transformers, or by vLLM in this process), and both (ids go to a vLLM server; the folder's
tokenizer makes them).
"""

import os
from contextlib import ExitStack
from typing import Any, NamedTuple

from drlib.agents import Limits
from drlib.agents.prompts import research_prompt
from drlib.app.options import AskError, Setup
from drlib.chat.template import ChatIds, load_any_tokenizer
from drlib.config import ROOT, Config
from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.models.api_engine import ApiEngine
from drlib.models.engine import Engine
from drlib.tools import Toolbox

REFERENCE = ROOT / "figures" / "reference"
TOUR_POLICY = REFERENCE / "tour" / "policy_rl"
# The tour's other policy, which was taught what these agents ask: reports, summaries, merging.
MEMORY_POLICY = REFERENCE / "agents" / "policy"
WITH_MEMORY = ("iterresearch", "heavy", "resum", "s3")
MERGER_TOKENS = 640  # of the context that holds several reports
MEMORY_CALLS = 16
RESULTS = 5  # of a search, for a model that reads more than a line


class Speaker(NamedTuple):
    """What an agent is made of, beside its toolbox."""

    engine: Engine
    chat: Any
    limits: Limits
    system: str | None


def results_of(setup: Setup) -> int:
    """How many results a search shows."""
    named = setup.endpoint or setup.folder
    return RESULTS if named else Config.load("laptop").search_results


def speaker(setup: Setup, toolbox: Toolbox, opened: ExitStack) -> Speaker:
    """The model that `setup` names; what must be closed is entered in `opened`. AskError: there is
    none, or it cannot do what is asked."""
    try:
        if setup.folder:
            return _in_a_folder(setup, toolbox, opened)
        if setup.endpoint:
            return _behind_a_server(setup, toolbox)
    except (ValueError, OSError, ModuleNotFoundError, EndpointError) as error:
        raise AskError(str(error)) from None
    return _the_tour_s(setup)


def _behind_a_server(setup: Setup, toolbox: Toolbox) -> Speaker:
    engine = ApiEngine(
        _endpoint(setup),
        tools=_functions(toolbox) if setup.native else None,
        prices=setup.prices,
        attempts=3,
    )
    return Speaker(engine, None, _limits(setup), _told(setup, toolbox))


def _in_a_folder(setup: Setup, toolbox: Toolbox, opened: ExitStack) -> Speaker:
    from drlib.chat.model_template import TemplateIds, is_ours

    tokenizer = load_any_tokenizer(setup.folder)
    engine = _engine_of_ids(setup, opened)
    limits = _limits(setup, engine.max_context)
    if is_ours(tokenizer):
        return Speaker(engine, ChatIds(tokenizer), limits, None)
    if setup.native:
        chat = TemplateIds(tokenizer, _functions(toolbox))
    else:
        chat = TemplateIds(tokenizer, tool_role="user")
    return Speaker(engine, chat, limits, _told(setup, toolbox))


def _engine_of_ids(setup: Setup, opened: ExitStack) -> Engine:
    if setup.endpoint:
        from drlib.models.vllm_server import VllmServer

        return VllmServer(_endpoint(setup), setup.folder, attempts=3)
    if setup.engine == "vllm":
        from drlib.models.vllm_engine import VllmEngine

        engine = VllmEngine(setup.folder, dtype="auto")
        opened.callback(engine.close)
        return engine
    from drlib.models.transformers_engine import TransformersEngine

    return TransformersEngine(setup.folder)


def _the_tour_s(setup: Setup) -> Speaker:
    from drlib.models.local_engine import LocalEngine
    from drlib.models.moe import load_policy

    config = Config.load("laptop")
    has_memory = setup.agent in WITH_MEMORY
    model, tokenizer = load_policy(MEMORY_POLICY if has_memory else TOUR_POLICY)
    context = MERGER_TOKENS if setup.agent == "heavy" else config.max_context_tokens
    engine = LocalEngine(model.eval(), max_context=context, slots=setup.runs)
    calls = MEMORY_CALLS if has_memory else config.max_calls
    limits = Limits(calls, config.max_turn_tokens, context)
    return Speaker(engine, ChatIds(tokenizer), limits, None)


def _endpoint(setup: Setup) -> ChatEndpoint:
    key = setup.api_key or os.environ.get("DRLIB_API_KEY", "")
    return ChatEndpoint(setup.endpoint, setup.model, timeout_s=setup.seconds, api_key=key)


def _functions(toolbox: Toolbox) -> list[dict]:
    return [tool.function for tool in toolbox.tools.values()]


def _told(setup: Setup, toolbox: Toolbox) -> str:
    """The system prompt; the tools are in it where nothing else tells them."""
    return research_prompt(() if setup.native else toolbox.schemas)


def _limits(setup: Setup, longest: int | None = None) -> Limits:
    """longest: context of the model, tokens."""
    context = setup.context_tokens if longest is None else min(setup.context_tokens, longest)
    return Limits(
        calls=setup.calls,
        turn_tokens=setup.turn_tokens,
        context_tokens=context,
        seconds=setup.seconds,
        repeats=3,
        force_answer=True,
    )
