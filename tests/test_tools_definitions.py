"""Tool definitions agree between prompts, OpenAI's format and TRL's environments.

Run: python -m pytest tests/test_tools_definitions.py
"""

import inspect
import json
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from drlib.chat.template import train_tokenizer
from drlib.tools import TOOLS, Toolbox, trl_environment
from drlib.tools.backends import FunctionBackend
from drlib.worlds import Entity, SmallWorld, load_world

SCHEMAS = [tool.schema for tool in TOOLS.values()]
# as in the prompts of the committed runs
PROMPTS = [
    '{"name": "search", "description": "Search the world\'s pages. Give one or more queries.", '
    '"parameters": {"type": "object", "properties": {"query": {"type": "array", "items": '
    '{"type": "string"}, "minItems": 1}}, "required": ["query"]}}',
    '{"name": "visit", "description": "Read one or more pages found by search.", "parameters": '
    '{"type": "object", "properties": {"url": {"type": "array", "items": {"type": "string"}, '
    '"minItems": 1}, "goal": {"type": "string"}}, "required": ["url", "goal"]}}',
    '{"name": "python", "description": "Run a Python program; only what it prints is seen.", '
    '"parameters": {"type": "object", "properties": {"code": {"type": "string"}}, '
    '"required": ["code"]}}',
]


@pytest.fixture(scope="module")
def toolbox():
    def nothing(arguments, timeout_s):
        return []

    names = ("python", "google_scholar", "parse_file")
    backends = {name: [FunctionBackend("none", nothing)] for name in names}
    with Toolbox(load_world("tour"), backends=backends, calculator=True) as toolbox:
        yield toolbox


def methods(environment):
    """Return the tools that TRL finds in an environment."""
    found = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    names = [name for name, _ in found if name != "reset" and not name.startswith("_")]
    return [getattr(environment, name) for name in names]


def test_prompt_schemas_are_unchanged():
    assert [json.dumps(schema) for schema in SCHEMAS[:3]] == PROMPTS
    with Toolbox(load_world("tour")) as two:
        assert [json.dumps(schema) for schema in two.schemas] == PROMPTS[:2]


def test_tongyi_tools_have_tongyi_arguments():
    required = {s["name"]: s["parameters"]["required"] for s in SCHEMAS}
    assert required == {
        "search": ["query"],
        "visit": ["url", "goal"],
        "python": ["code"],
        "google_scholar": ["query"],
        "parse_file": ["files"],
        "calculator": ["expression"],
    }


def test_trl_derives_the_function_format(toolbox):
    derived = [get_json_schema(method) for method in methods(trl_environment(toolbox)())]
    ours = sorted((tool.function for tool in TOOLS.values()), key=lambda f: f["function"]["name"])
    assert [json.dumps(f) for f in derived] == [json.dumps(f) for f in ours]


def test_trl_trainer_accepts_the_environment(toolbox, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    shape = Qwen3Config(
        vocab_size=320,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    tokenizer = train_tokenizer(["tools and words"], 310)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text()  # one with tool calls
    row = {"prompt": [{"role": "user", "content": "x"}], "world": ""}
    trainer = GRPOTrainer(
        Qwen3ForCausalLM(shape),
        reward_funcs=lambda **_: None,
        processing_class=tokenizer,
        environment_factory=trl_environment(toolbox),
        train_dataset=Dataset.from_list([row] * 2),
        args=GRPOConfig(
            str(tmp_path),
            use_cpu=True,
            report_to=[],
            num_generations=2,
            per_device_train_batch_size=2,
        ),
    )
    assert [tool.__name__ for tool in trainer.tools] == sorted(tool.name for tool in TOOLS.values())
    definitions = {tool.name: tool.function for tool in TOOLS.values()}
    assert all(get_json_schema(tool) == definitions[tool.__name__] for tool in trainer.tools)
    calculator = next(tool for tool in trainer.tools if tool.__name__ == "calculator")
    assert calculator(expression="6 * 7") == "42"


def test_both_formats_have_the_same_parameters():
    for tool in TOOLS.values():
        short, full = tool.schema, tool.function["function"]
        assert (short["name"], short["description"]) == (full["name"], full["description"])
        assert short["parameters"]["required"] == full["parameters"]["required"]
        for name, kind in full["parameters"]["properties"].items():
            described = kind.pop("description")
            assert described and short["parameters"]["properties"][name].items() >= kind.items()


def test_chat_template_renders_methods_like_definitions(toolbox):
    tokenizer = train_tokenizer(["tools and words"], 310)
    chat = [{"role": "user", "content": "x"}]
    rendered = [
        tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
        for tools in (
            methods(trl_environment(toolbox)()),
            sorted((t.function for t in TOOLS.values()), key=lambda f: f["function"]["name"]),
        )
    ]
    assert rendered[0] == rendered[1] and "google_scholar" in rendered[0]


def test_environments_are_independent(toolbox):
    other = SmallWorld([Entity("Norway", "territory", {"currency": "Shell"})], "other")
    make_environment = trl_environment(toolbox, {other.version: other})
    first, second = make_environment(), make_environment()
    assert first.reset(prompt="?", world=other.version) is None
    assert "Shell" in first.search(query=["Norway"])
    assert "Krone" in second.search(query=["Norway"])
    assert second.calculator(expression="0.1 + 0.2") == "0.3"
    assert second.search(query="Norway") == "Error: query must be a list of strings."
    assert second.visit() == "Error: visit needs goal, a string."
    assert [r.tool for r in first.results] == ["search"]
    assert [r.ok for r in second.results] == [True, True, False, False]
    first.reset()
    assert first.results == [] and "Krone" in first.search(query=["Norway"])


def test_unknown_world_in_a_row_raises(toolbox):
    environment = trl_environment(toolbox)()
    environment.reset(world=toolbox.world.version)
    assert "Krone" in environment.search(query=["Norway"])
    with pytest.raises(ValueError, match="unknown world 'v9' in a row: add it to worlds"):
        environment.reset(world="v9")


def test_operation_limit_is_not_part_of_the_schemas(toolbox):
    environment = trl_environment(toolbox)()
    assert environment.search(query=["Norway"] * 11) == "Error: query may have 10 entries at most."
    assert environment.visit(url=["u"] * 11, goal="") == "Error: url may have 10 entries at most."
    assert environment.parse_file(files=["f"] * 11) == "Error: files may have 10 entries at most."
    assert environment.results[-1].error == "arguments" and not environment.results[-1].env_fault
    assert environment.search(query=["Norway"] * 10).count("=======") == 9
    assert "maxItems" not in json.dumps(SCHEMAS)


def test_only_available_tools_become_methods():
    with Toolbox(load_world("tour")) as two:
        assert {m.__name__ for m in methods(trl_environment(two)())} == {"search", "visit"}
