"""Settings: one flat set of names for YAML files, notebooks and stages.

Names are flat (`rl_steps`, not `rl.steps`) so that the same word works in a papermill parameter
file, on a command line and in a README table. A typo must never run with a default.

A setting is declared once, here: its default, what it means, and the stages that read it. A
stage's folder carries a hash of the settings declared for it and for all stages before it, and
while it is built it can read no other (`Config.read_by`): a setting that somebody forgot to
declare stops the stage instead of quietly reusing a folder that was made with another value.

The profiles (`drlib.profiles`) are sets of settings: `ci` takes seconds and proves that every stage
runs; `laptop` takes minutes and learns; `gpu1` and `gpu8` train a real model.
"""

import dataclasses
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from drlib.profiles import PROFILES
from drlib.registry import suggest_name
from drlib.rl_settings import RLSettings
from drlib.settings import setting

ROOT = Path(__file__).resolve().parents[1]  # of the checkout: figures/, notebooks/, runs/


POLICY = "untrained"
PATHS = ("folder", "zim")  # worlds whose name goes on with a path
OF_A_MODEL = (POLICY, "cpt", "sft", "rl", "demonstrations", "evaluate")
TRAINED = ("cpt", "sft", "rl")
ROLLOUTS = ("demonstrations", "rl", "evaluate")  # the stages in which somebody uses the tools


@dataclass(frozen=True)
class Config(RLSettings):
    """All settings of a run. Units are in the names; shares are in 0..1."""

    profile: str = setting("laptop", "the name of these settings, and of their folder in runs/")
    processes: int = setting(2, "single-threaded data-parallel processes")
    plugins: str = setting("", "modules to import before a stage runs, separated by commas")
    seed: int = setting(
        0, "of everything that is drawn", "untrained", "demonstrations", "cpt", "sft", "rl"
    )
    world: str = setting(
        "tour", "what can be looked up (a path in it: from the repository unless absolute)", "world"
    )
    world_pages: int = setting(800, "pages kept of a larger world", "world")
    world_relations: int = setting(12, "relations kept of it, those of most facts", "world")
    world_endpoint: str = setting(
        "", "an OpenAI-compatible server that reads the facts in a folder's sentences", "world"
    )
    world_model: str = setting("", "the model that it is asked for", "world")
    vocabulary: int = setting(2048, "tokens of the tokenizer", "world", POLICY)
    questions: Literal["chains", "engine"] = setting(
        "chains",
        'search questions ("engine": those of several conditions too, drlib.synthesis.conditions)',
        "world",
        "cpt",
        *ROLLOUTS,
    )
    question_wording: Literal["brackets", "sentences"] = setting(
        "brackets",
        "how the engine's questions are said: in few words, or as people would say them",
        "world",
        "cpt",
        *ROLLOUTS,
    )
    skills: Literal["react", "memory"] = setting(
        "react",
        'what the policy learns ("memory": reports, summaries, trails too, drlib.synthesis.skills)',
        "world",
        "cpt",
        "demonstrations",
        "sft",
    )

    # A real model instead of the small one that is made here, and what trains and serves it.
    model: str = setting(
        "", "its folder or hub id (none: the small policy is made)", POLICY, *ROLLOUTS
    )
    trainer: Literal["local", "trl"] = setting(
        "local", 'who trains ("trl": TRL, PEFT and accelerate, any model)', *OF_A_MODEL
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "in which a model is held and computed", *OF_A_MODEL
    )
    model_tools: Literal["prompt", "template"] = setting(
        "prompt", "what tells it its tools: a system prompt, or its own template", *OF_A_MODEL
    )
    lora_rank: int = setting(0, "of the adapters that are trained (0: all weights)", *TRAINED)
    fsdp: bool = setting(False, "shard the weights over the processes (FSDP2)", *TRAINED)
    gradient_checkpointing: bool = setting(
        False, "compute activations again in the backward pass", *TRAINED
    )
    device_batch: int = setting(1, "rows of a micro-batch, of each process", *TRAINED)
    pack_tokens: int = setting(4096, "of a row that samples share", "cpt", "sft")
    engine: Literal["local", "hf", "vllm", "server"] = setting(
        "local", "who generates, of the rooms of drlib.models", *ROLLOUTS
    )
    engine_url: str = setting("", "where the vLLM server of engine=server is")
    engine_gap: float = setting(1e-4, "nats that its log-probabilities may be off the trainer's")
    engine_memory_share: float = setting(0.4, "of a GPU, for a vLLM beside the trainer")
    report_to: Literal["none", "tensorboard", "trackio"] = setting(
        "none", "where metrics are shown, beside metrics.jsonl"
    )

    hidden: int = setting(128, "width of the residual stream", POLICY)
    layers: int = setting(4, "layers", POLICY)
    heads: int = setting(4, "query heads a layer", POLICY)
    kv_heads: int = setting(2, "key-value heads a layer", POLICY)
    head_dim: int = setting(32, "width of a head", POLICY)
    experts: int = setting(8, "experts a layer", POLICY)
    experts_per_token: int = setting(2, "experts that a token is sent to", POLICY)
    expert_hidden: int = setting(64, "inner width of an expert", POLICY)
    init: Literal["induction", "plain"] = setting("induction", "the initial weights", POLICY)

    search_results: int = setting(2, "results that a search shows", "cpt", "sft", *ROLLOUTS)
    max_calls: int = setting(6, "tool calls of a rollout", *ROLLOUTS)
    max_turn_tokens: int = setting(72, "tokens of a turn", *ROLLOUTS)
    max_context_tokens: int = setting(448, "tokens of a rollout, prompt included", *ROLLOUTS)

    balance_coef: float = setting(
        0.01, "weight of the experts' load-balancing loss", "cpt", "sft", "rl"
    )
    router_bias_rate: float = setting(
        0.0,
        "that balances experts by a bias, a step (drlib.models.router_bias)",
        "cpt",
        "sft",
        "rl",
    )
    checkpoint_every: int = setting(20, "steps from checkpoint to checkpoint", "cpt", "sft", "rl")

    cpt_steps: int = setting(600, "steps of agentic pre-training", "cpt")
    cpt_batch_tokens: int = setting(3808, "a step's, over all processes", "cpt")
    cpt_muon_lr: float = setting(0.02, "learning rate of the hidden matrices", "cpt")
    cpt_adam_lr: float = setting(1e-3, "learning rate of all else", "cpt")
    cpt_warmup_steps: int = setting(20, "steps of linear warm-up", "cpt")
    cpt_decay_share: float = setting(0.4, "of the steps, over which the rate falls to 0", "cpt")

    cpt_fas_share: float = setting(
        0.0,
        "of the documents: AgentFounder's first-order rows (drlib.synthesis.action_rows)",
        "cpt",
    )
    cpt_fas_questions: Literal["graph", "memory"] = setting(
        "graph", "first-order rows are of all facts, or of what attempts have seen", "cpt"
    )
    cpt_has_share: float = setting(0.0, "of the documents: its higher-order rows", "cpt")
    cpt_has_alternatives: Literal["anywhere", "read"] = setting(
        "anywhere", "what higher-order rows offer beside the real step", "cpt"
    )

    demonstrations: int = setting(600, "attempts of the teacher", "demonstrations")
    teacher: Literal["flawed", "solver", "model"] = setting(
        "flawed",
        "who demonstrates: one that guesses and gives up, one that does not, or the model itself",
        "demonstrations",
    )
    attempts: int = setting(4, "of the model at each question", "demonstrations")
    demonstration_filter: Literal["correct", "funnel", "none"] = setting(
        "correct", 'which attempts are trained on ("funnel": drlib.synthesis.funnel)', "sft"
    )
    sft_loss_on: Literal["own", "all"] = setting(
        "own", "tokens with loss: the policy's own, or questions and tool responses too", "sft"
    )
    sft_rounds: bool = setting(
        False, "each attempt also as rounds with a managed context (Tongyi DeepResearch)", "sft"
    )
    sft_short_tokens: int = setting(
        0, "of an attempt of the first of two length stages (0: one stage)", "sft"
    )
    sft_tool_use_share: float = setting(
        0.0, "of the samples: AgentScaler's tool use in made environments", "sft"
    )
    sft_tool_use_users: bool = setting(
        False, "its users speak several times and must be asked (drlib.synthesis.users)", "sft"
    )
    sft_steps: int = setting(250, "steps of the cold start", "sft")
    sft_batch_tokens: int = setting(3808, "a step's, over all processes", "sft")
    sft_muon_lr: float = setting(0.006, "learning rate of the hidden matrices", "sft")
    sft_adam_lr: float = setting(1.2e-3, "learning rate of all else", "sft")
    sft_replay_share: float = setting(0.3, "of the samples, from pre-training", "sft")
    sft_continued_steps: int = setting(
        1100, "steps of the control: as much compute as RL has", "sft_continued"
    )

    eval_questions: int = setting(200, "questions of each kind", "evaluate")
    eval_samples: int = setting(8, "answers a question at temperature 1", "evaluate")
    eval_seed: int = setting(
        574959,  # drawn before the last change of the recipe, in a commit of its own
        "of the held-out questions and of the answers",
        "evaluate",
    )

    @staticmethod
    def load(profile: str, **overrides) -> "Config":
        """The settings of `profile` with `overrides`; ValueError names what is unknown or wrong."""
        if profile not in PROFILES:
            raise ValueError(f"unknown profile {profile!r}: {suggest_name(profile, PROFILES)}")
        return Config(profile=profile).derive(**PROFILES[profile] | overrides)

    def derive(self, **changes) -> "Config":
        """These settings with `changes`, checked like `load`."""
        kinds = get_type_hints(Config)
        for name, value in changes.items():
            if name not in kinds:
                raise ValueError(f"unknown parameter {name!r}: {suggest_name(name, kinds)}")
            if type(getattr(Config, name)) is float and type(value) is int:
                changes[name] = float(value)
            fault = _fault(name, changes[name], kinds[name])
            if fault:
                raise ValueError(f"parameter {name!r} must {fault}")
        return dataclasses.replace(self.whole(), **changes)

    def pick(self, *names: str) -> dict:
        """The settings of these names."""
        return {name: getattr(self, name) for name in names}

    @property
    def world_name(self) -> str:
        """`world` with its path, where it has one, made absolute."""
        kind, _, rest = self.world.partition(":")
        return f"{kind}:{ROOT / Path(rest).expanduser()}" if kind in PATHS else self.world

    def whole(self) -> "Config":
        """All settings, where `read_by` left only some to read."""
        return self

    def read_by(self, stages: Iterable[str]) -> "Config":
        """The same, of which only what is declared for `stages` (or for none) can be read."""
        values = {field.name: getattr(self.whole(), field.name) for field in SETTINGS}
        some = _Readable(**values)
        object.__setattr__(some, "_stages", frozenset(stages))
        return some


SETTINGS = dataclasses.fields(Config)
_STAGES_OF = {field.name: field.metadata["stages"] for field in SETTINGS}


class _Readable(Config):
    """A Config that refuses what is not declared for the stage that is being built."""

    def __getattribute__(self, name: str):
        declared = _STAGES_OF.get(name, ())
        if declared and not object.__getattribute__(self, "_stages") & {*declared}:
            raise AttributeError(
                f"this stage reads the setting {name!r}, which is declared for {declared}: its "
                "folder would not change with it. Declare it in drlib/config.py"
            )
        return object.__getattribute__(self, name)

    def whole(self) -> Config:
        values = {name: object.__getattribute__(self, name) for name in _STAGES_OF}
        return Config(**values)


def declared_for(stage: str) -> list[str]:
    """The names of the settings that `stage` reads itself."""
    return [name for name, stages in _STAGES_OF.items() if stage in stages]


def _fault(name: str, value, annotation) -> str:
    """What is wrong with a setting's value, or ""."""
    kind = type(getattr(Config, name))  # of the default: a Literal's values have one type
    if type(value) is not kind:
        return f"be {kind.__name__}, got {type(value).__name__} ({value!r})"
    if kind in (int, float) and value < 0:
        return f"not be negative, got {value}"
    if kind is float and name.endswith("_share") and value > 1:
        return f"be a share in 0..1, got {value}"
    choices = get_args(annotation) or _registered(name)
    if choices and value not in choices:
        return f"be one of {tuple(choices)}, got {value!r}"
    return ""


def _registered(name: str) -> tuple:
    """The choices of a setting whose values are registered by name; () where any will do.

    The registry lies in a lower room, so it is named in the declaration and imported only here,
    when somebody sets the setting.
    """
    (place,) = (field.metadata["choices"] for field in SETTINGS if field.name == name)
    if not place:
        return ()
    module, _, registry = place.partition(":")
    return tuple(getattr(importlib.import_module(module), registry))
