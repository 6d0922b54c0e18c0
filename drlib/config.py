"""Configuration: nested dataclasses, YAML profiles and recipes, dotted overrides.

A setting is declared once with its default, its help text and the stages that read it. A stage's
folder is named by a hash of these settings. While a stage is built, reading any other setting
raises (`Config.restrict`), so a missing declaration cannot cause a stale folder to be reused.

Later sources override earlier ones: defaults, `drlib/profiles/NAME.yaml`,
`drlib/recipes/NAME.yaml`, and overrides such as `--rl.lr 2e-4` (command line) or `rl__lr=2e-4`
(Python).
"""

import argparse
import dataclasses
import difflib
import hashlib
import importlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from drlib.registry import load_plugins, suggest_name

ROOT = Path(__file__).resolve().parents[1]  # the checkout: figures/, notebooks/
TOUR = ROOT / "figures" / "reference" / "tour"  # the committed reference run
AGAIN = TOUR.with_name("again")  # the same recipe, trained by a later commit
# between worlds, as in cldr+folder:notes
WORLD_JOINT = re.compile(r"\+(?=(?:tour|cldr|pydocs)(?:\+|$)|[a-z]+:)")
PATH_WORLDS = ("folder", "zim")  # kinds of world whose name contains a path
NO_WORLD = "none"  # of evaluation.world: no questions about a world
SMOL = "smol"  # SmolLM2-135M-Instruct, installed by `drlib convert smol`
SMOL_READER = "smol-reader"  # the same with the committed adapter, installed with it
WORLD_SETTINGS = (
    "world.name",
    "evaluation.world",
    "evaluation.documents",
    "demonstrations.documents",
    "rl.curriculum.documents",
)
# settings with policy folders: one, or several such as A,B or python=A,search=B
POLICY_SETTINGS = (
    "demonstrations.policy",
    "rl.start",
    "distill.start",
    "distill.teachers",
    "merge.policies",
    "merge.base",
)
STORED_ROLLOUTS = "rl.off_policy.rollouts"  # setting with a Parquet file or the folder of a run
PATH_SETTINGS = (*WORLD_SETTINGS, "model.path", *POLICY_SETTINGS, STORED_ROLLOUTS)
TRAINING_STAGES = ("cpt", "sft", "rl")
ROLLOUT_STAGES = ("demonstrations", "rl", "evaluate")  # stages that use the tools
MODEL_STAGES = ("untrained", "cpt", "sft", "rl", "merge", "demonstrations", "evaluate")


def setting(default: Any, help: str, *stages: str, choices: str = "") -> Any:
    """Declare a setting.

    Args:
        default: value without a profile, recipe or override.
        help: description with the unit.
        stages: stages that read the setting (`Stage.reads` in drlib.training.stages); none if it
            does not affect results.
        choices: registry of the allowed values as "module:NAME"; not needed for a Literal type.
    """
    return field(default=default, metadata={"help": help, "stages": stages, "choices": choices})


@dataclass(frozen=True)
class WorldConfig:
    """The document collection that the tools search."""

    name: str = setting(
        "tour", "collection, such as tour, folder:PATH or the mixture cldr+pydocs", "world"
    )
    pages: int = setting(800, "pages kept of larger collections, in equal parts", "world")
    relations: int = setting(12, "relations kept, those with the most facts", "world")
    endpoint: str = setting(
        "", "OpenAI-compatible server that extracts facts from a folder's sentences", "world"
    )
    reader: str = setting("", "model name at world.endpoint", "world")
    vocabulary: int = setting(
        2048, "tokens of the tokenizer; 0: none, model.path has its own", "world", "untrained"
    )


@dataclass(frozen=True)
class QuestionsConfig:
    """Question synthesis."""

    source: Literal["chains", "engine"] = setting(
        "chains",
        "search questions: chains of hops, or the query engine's with several conditions",
        "world",
        "cpt",
        *ROLLOUT_STAGES,
    )
    wording: Literal["brackets", "sentences"] = setting(
        "brackets",
        "structured or natural-language wording of the engine's questions",
        "world",
        "cpt",
        *ROLLOUT_STAGES,
    )
    skills: Literal["react", "memory", "delegation"] = setting(
        "react",
        "skills to train; memory adds reports, summaries and trails, delegation a planner and "
        "its workers",
        "world",
        "cpt",
        "demonstrations",
        "sft",
    )


@dataclass(frozen=True)
class ModelConfig:
    """The policy: the small Mixture-of-Experts model, or any Hugging Face causal LM."""

    path: str = setting(
        "",
        "folder or hub id of a causal LM; empty: the small policy is created",
        "untrained",
        *ROLLOUT_STAGES,
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "dtype of weights and computation", *MODEL_STAGES
    )
    tool_format: Literal["prompt", "template", "brief"] = setting(
        "prompt",
        "describe the tools in a system prompt or through the chat template, or only name them",
        *MODEL_STAGES,
    )
    hidden: int = setting(128, "width of the residual stream", "untrained")
    layers: int = setting(4, "number of layers", "untrained")
    heads: int = setting(4, "query heads per layer", "untrained")
    kv_heads: int = setting(2, "key-value heads per layer", "untrained")
    head_dim: int = setting(32, "width of a head", "untrained")
    experts: int = setting(8, "experts per layer", "untrained")
    experts_per_token: int = setting(2, "experts per token", "untrained")
    expert_hidden: int = setting(64, "inner width of an expert", "untrained")
    init: Literal["induction", "plain"] = setting(
        "induction", "initial weights; induction heads copy earlier tokens", "untrained"
    )


@dataclass(frozen=True)
class TrainerConfig:
    """Optimisation of weights, in every training stage."""

    backend: Literal["local", "trl"] = setting(
        "local", "training code: drlib's, or TRL with PEFT and accelerate", *MODEL_STAGES
    )
    lora_rank: int = setting(0, "rank of LoRA adapters; 0 trains all weights", *TRAINING_STAGES)
    fsdp: bool = setting(False, "shard the weights over the processes (FSDP2)", *TRAINING_STAGES)
    gradient_checkpointing: bool = setting(
        False, "recompute activations in the backward pass", *TRAINING_STAGES
    )
    device_batch: int = setting(1, "sequences per micro-batch and process", *TRAINING_STAGES)
    pack_tokens: int = setting(4096, "tokens of a packed row", "cpt", "sft")
    micro_batch_tokens: int = setting(
        0, "tokens of a micro-batch of the local learner; 0: six full contexts", "rl"
    )
    balance_coef: float = setting(
        0.01, "weight of the load-balancing loss of the experts", *TRAINING_STAGES
    )
    router_bias_rate: float = setting(
        0.0, "step size of loss-free load balancing (drlib.models.router_bias)", *TRAINING_STAGES
    )
    checkpoint_every: int = setting(20, "steps between checkpoints", *TRAINING_STAGES)
    report_to: Literal["none", "tensorboard", "trackio"] = setting(
        "none", "where metrics are shown in addition to metrics.jsonl"
    )


@dataclass(frozen=True)
class EngineConfig:
    """The engine that generates rollouts."""

    name: str = setting(
        "local", "engine: local, hf, vllm, server or a registered one", *ROLLOUT_STAGES
    )
    url: str = setting(
        "", "address of the vLLM server, or of its replicas with commas (engine.name=server)"
    )
    router: Literal["hash", "sticky", "cache_aware", "random"] = setting(
        "hash", "how requests are distributed over the replicas in engine.url"
    )
    max_mismatch: float = setting(
        1e-4, "allowed difference of log-probabilities to the trainer, nats"
    )
    memory_share: float = setting(0.4, "share of GPU memory for a vLLM next to the trainer")


@dataclass(frozen=True)
class RolloutConfig:
    """Limits of a rollout."""

    tool_latency_ms: float = setting(
        0.0, "time that every call of a tool takes longer, to study scheduling", "rl"
    )
    search_results: int = setting(2, "results per search", "cpt", "sft", *ROLLOUT_STAGES)
    max_calls: int = setting(6, "tool calls per rollout", *ROLLOUT_STAGES)
    max_turn_tokens: int = setting(72, "tokens per turn", *ROLLOUT_STAGES)
    max_context_tokens: int = setting(448, "tokens per rollout, prompt included", *ROLLOUT_STAGES)


@dataclass(frozen=True)
class PretrainConfig:
    """Agentic continual pre-training."""

    steps: int = setting(600, "optimizer steps", "cpt")
    batch_tokens: int = setting(3808, "tokens per step over all processes", "cpt")
    muon_lr: float = setting(0.02, "learning rate of hidden matrices (Muon)", "cpt")
    adam_lr: float = setting(1e-3, "learning rate of all other weights (AdamW)", "cpt")
    warmup_steps: int = setting(20, "steps of linear warm-up", "cpt")
    decay_share: float = setting(0.4, "share of the steps over which the rate decays to 0", "cpt")
    first_order_share: float = setting(0.0, "share of AgentFounder's first-order documents", "cpt")
    first_order_questions: Literal["graph", "memory"] = setting(
        "graph", "first-order documents about all facts, or about facts seen in rollouts", "cpt"
    )
    higher_order_share: float = setting(
        0.0, "share of AgentFounder's higher-order documents", "cpt"
    )
    higher_order_alternatives: Literal["anywhere", "read"] = setting(
        "anywhere",
        "alternatives offered by higher-order documents: any entity, or entities on read pages",
        "cpt",
    )


@dataclass(frozen=True)
class DemonstrationsConfig:
    """The teacher's rollouts for the cold start."""

    count: int = setting(600, "questions given to the teacher", "demonstrations")
    teacher: Literal["flawed", "solver", "model"] = setting(
        "flawed",
        "teacher: one that guesses and gives up, the exact solver, or a model",
        "demonstrations",
    )
    rollouts: int = setting(
        4, "rollouts per question (demonstrations.teacher=model)", "demonstrations"
    )
    policy: str = setting(
        "",
        "policy folder of the teacher (demonstrations.teacher=model); empty: the initial model",
        "demonstrations",
    )
    documents: str = setting(
        "",
        "more worlds, whose pages a teacher searches and reads, such as wiki+folder:PATH",
        "demonstrations",
    )
    document_questions: int = setting(200, "questions about each of them", "demonstrations")
    environments: str = setting(
        "",
        "environments whose scripted solutions are demonstrated, as NAME+NAME; the tiny "
        "policy's tokenizer has their words",
        "world",
        "demonstrations",
    )
    environment_tasks: int = setting(100, "tasks of each of them", "demonstrations")


@dataclass(frozen=True)
class SFTConfig:
    """The supervised cold start."""

    filter: Literal["correct", "funnel", "none"] = setting(
        "correct",
        "demonstrations to train on: correct ones, those that pass every filter, or all",
        "sft",
    )
    loss_on: Literal["own", "all"] = setting(
        "own", "tokens with loss: the policy's own, or observations too", "sft"
    )
    rounds: bool = setting(
        False,
        "add each demonstration as rounds with a managed context (Tongyi DeepResearch)",
        "sft",
    )
    short_tokens: int = setting(
        0, "maximum length in the first of two length stages; 0: one stage", "sft"
    )
    tool_use_share: float = setting(
        0.0, "share of AgentScaler's tool use in generated environments", "sft"
    )
    tool_use_users: bool = setting(False, "tool use with simulated users of several turns", "sft")
    reflection_share: float = setting(
        0.0, "share of demonstrated turns with imitated reflection (control of VLAA)", "sft"
    )
    steps: int = setting(250, "optimizer steps", "sft")
    batch_tokens: int = setting(3808, "tokens per step over all processes", "sft")
    muon_lr: float = setting(0.006, "learning rate of hidden matrices (Muon)", "sft")
    adam_lr: float = setting(1.2e-3, "learning rate of all other weights (AdamW)", "sft")
    replay_share: float = setting(0.3, "share of pre-training documents in the batches", "sft")
    continued_steps: int = setting(1100, "steps of the control with RL's compute", "sft_continued")


@dataclass(frozen=True)
class RLLossConfig:
    """Policy loss (drlib.rl.losses)."""

    clip: str = setting(
        "ppo", "rule for ratios outside the clip range", "rl", choices="drlib.rl.clips:CLIPS"
    )
    level: Literal["token", "sequence"] = setting(
        "token", "unit of the ratio; sequence is GSPO", "rl"
    )
    aggregate: Literal["token", "sequence", "constant"] = setting(
        "token", "denominator of the loss: all tokens, per sequence, or a constant (Dr. GRPO)", "rl"
    )
    epsilon_low: float = setting(0.2, "clip range below 1", "rl")
    epsilon_high: float = setting(0.28, "clip range above 1 (DAPO: clip-higher)", "rl")
    correction: Literal["none", "truncate", "mask", "icepop", "geometric"] = setting(
        "none", "importance correction of the engine mismatch", "rl"
    )
    correction_low: float = setting(
        0.0, "lower bound of the correction; both bounds 0: the published ones", "rl"
    )
    correction_high: float = setting(0.0, "upper bound of the correction", "rl")
    correction_level: Literal["token", "sequence"] = setting(
        "token", "unit of the correction", "rl"
    )
    kl_coef: float = setting(0.0, "weight of the KL to the reference policy", "rl")
    kl_estimator: Literal["k1", "k2", "k3"] = setting("k3", "estimator of the KL", "rl")
    kl_unbiased: bool = setting(
        False, "importance-weight the estimate so that its gradient is unbiased", "rl"
    )
    denominator: Literal["kept", "all"] = setting(
        "kept", "tokens counted in the denominator: those with loss, or all (TRL)", "rl"
    )
    top_entropy: float = setting(
        1.0, "share of the tokens with loss, by entropy (80/20 rule: 0.2)", "rl"
    )
    entropy_tokens: Literal["top", "bottom", "random"] = setting(
        "top", "tokens selected by rl.loss.top_entropy; bottom and random are controls", "rl"
    )
    entropy_scope: Literal["micro", "mini", "batch"] = setting(
        "batch", "scope of the selection by rl.loss.top_entropy", "rl"
    )
    chunked_logprobs: bool = setting(
        False, "compute log-probabilities without a tokens x vocabulary matrix (TRL: always)", "rl"
    )


@dataclass(frozen=True)
class RLAdvantageConfig:
    """Advantages (drlib.rl.advantages)."""

    estimator: str = setting(
        "leave_one_out", "advantage estimator", "rl", choices="drlib.rl.advantages:ADVANTAGES"
    )
    baseline: Literal["trajectories", "samples", "roles"] = setting(
        "trajectories",
        "unit of the baseline; samples are the contexts of a rollout (WebResearcher), roles "
        "compare the planner's and the workers' part of a rollout separately",
        "rl",
    )
    context_weight: Literal["one", "shared"] = setting(
        "one", "loss weight of a context: 1, or 1 / contexts of its role in the rollout", "rl"
    )
    sample_multiple: int = setting(
        1, "down-sample contexts to a multiple of this number (WebResearcher)", "rl"
    )


@dataclass(frozen=True)
class RLFilterConfig:
    """Rollouts and groups that enter the loss (drlib.rl.filtering)."""

    overlong: Literal["exclude", "keep"] = setting(
        "exclude", "truncated rollouts without an answer; exclude is Tongyi's rule", "rl"
    )
    hallucination: Literal["keep", "exclude"] = setting(
        "keep", "correct answers after invented tool responses", "rl"
    )
    drop_equal: bool = setting(
        False, "drop groups with zero reward variance from the token count (DAPO)", "rl"
    )
    pipeline: bool = setting(False, "filter by quality, consistency and diversity", "rl")
    low_weight: float = setting(
        0.5, "loss weight of low-quality rollouts (rl.filter.pipeline)", "rl"
    )
    max_age: int = setting(
        0, "drop rollouts that are older than this many updates (GLM-5); 0: any age", "rl"
    )
    repair_groups: bool = setting(
        False, "refill groups that lost less than half, drop the others (GLM-5)", "rl"
    )


@dataclass(frozen=True)
class RLSamplingConfig:
    """Numbers of rollouts sampled and kept (drlib.rl.resampling)."""

    oversample: int = setting(1, "rollouts sampled per rollout kept", "rl")
    resample: Literal["none", "sample", "sort"] = setting(
        "none", "selection of the kept rollouts (GRPO-RoC)", "rl"
    )
    adaptive_group: bool = setting(
        False, "sample the second half of a group only if rewards of the first half differ", "rl"
    )
    draws: int = setting(
        1,
        "maximum number of question batches until rl.questions groups have reward variance (DAPO)",
        "rl",
    )
    duplicate: bool = setting(
        False, "repeat groups with variance in place of those without (DUPO)", "rl"
    )
    fork_temperature: float = setting(
        0.0, "temperature at forking tokens; the loss keeps rl.temperature; 0: the same", "rl"
    )
    fork_entropy: float = setting(
        0.672, "minimum entropy of a forking token in nats (80/20 rule: Qwen3-8B's p80)", "rl"
    )


@dataclass(frozen=True)
class RLOffPolicyConfig:
    """Old weights, engine mismatch and replay (drlib.rl.staleness)."""

    staleness: int = setting(0, "steps by which the engine's weights lag behind", "rl")
    reset_optimizer: bool = setting(
        False, "clear the optimizer's state when the engine gets new weights (GLM-5)", "rl"
    )
    engine_dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "dtype to which the engine's weights are rounded", "rl"
    )
    routing_replay: Literal["none", "r2", "r3"] = setting(
        "none", "replay expert choices of the old policy (r2) or of the engine (r3)", "rl"
    )
    replay_groups: int = setting(
        0, "earlier groups trained on again per step, by mean |advantage| (even)", "rl"
    )
    replay_age: int = setting(4, "maximum age of a replayed group in updates", "rl")
    rollouts: str = setting(
        "", "train offline on stored rollouts: a Parquet file or the folder of a run", "rl"
    )


@dataclass(frozen=True)
class RLAsynchronousConfig:
    """Rollouts in other processes during the updates (drlib.training.rollout_pool)."""

    actors: int = setting(
        0, "processes that sample during the updates; 0: sampling and updates alternate", "rl"
    )
    max_lag: int = setting(1, "maximum age of a trained rollout in updates", "rl")
    groups: int = setting(8, "groups that an actor samples at once", "rl")
    in_flight: bool = setting(False, "running rollouts continue with new weights", "rl")
    stale: Literal["pace", "drop", "requeue"] = setting(
        "pace",
        "start rollouts only if they will be young enough; or drop older ones, or ask their "
        "questions again",
        "rl",
    )


@dataclass(frozen=True)
class RLRewardConfig:
    """Rewards of rollouts (drlib.rewards)."""

    name: str = setting(
        "exact_match",
        "reward function; random is the control",
        "rl",
        choices="drlib.rewards.functions:REWARDS",
    )
    arguments: str = setting("", 'arguments of the reward as JSON, such as {"price": 0.2}', "rl")
    labels: Literal["right", "shuffled", "wrong", "majority"] = setting(
        "right",
        "controls: rewards permuted within the group, or its most frequent (wrong) answer as label",
        "rl",
    )
    overlong_buffer: int = setting(
        0, "tokens before the limit over which the reward falls by up to 1 (DAPO)", "rl"
    )


@dataclass(frozen=True)
class RLCurriculumConfig:
    """Selection of training questions (drlib.rl.curriculum)."""

    python_share: float = setting(0.25, "share of arithmetic questions for the sandbox", "rl")
    fictional_share: float = setting(0.5, "share of search questions in generated worlds", "rl")
    documents: str = setting(
        "", "more worlds, asked about as documents, such as wiki+folder:PATH", "rl"
    )
    document_share: float = setting(0.5, "share of search questions about them", "rl")
    environments: str = setting(
        "", "task environments, such as gym:chain_sum+swe:easy (drlib.environments)", "rl"
    )
    environment_share: float = setting(
        0.5, "share of their tasks among all, equal parts for each", "rl"
    )
    conditions: int = setting(3, "maximum conditions of an engine question; 1: chains only", "rl")
    trail_share: float = setting(0.0, "share of trails, which exceed a context", "rl")
    trail_pages: int = setting(12, "maximum pages of a trail", "rl")
    weighting: Literal["skills", "none"] = setting(
        "skills", "draw question kinds by p(1 - p) of their solve rate, or uniformly", "rl"
    )
    mixture: Literal["chance", "exact"] = setting(
        "chance", "meet the shares in expectation, or exactly (ProRL)", "rl"
    )
    pool: int = setting(0, "size of a fixed question set; 0: new questions every step", "rl")
    curation_every: int = setting(
        0, "steps between exchanges of mastered and hopeless questions (Tongyi); 0: none", "rl"
    )
    stages: Literal["one", "three"] = setting(
        "one", "rollout limits: the profile's, or rStar2-Agent's three stages", "rl"
    )


@dataclass(frozen=True)
class RLCallbacksConfig:
    """Mechanisms that watch or change a run (drlib.training.callbacks)."""

    emergency_stop: bool = setting(False, "stop when almost no rollout ends with an answer", "rl")
    kl_target: float = setting(
        0.0, "target KL in nats; adapts rl.loss.kl_coef; 0: fixed coefficient", "rl"
    )
    reference_every: int = setting(
        0, "steps between resets of the reference policy; 0: never", "rl"
    )
    reference_decay: float = setting(0.0, "weight of the old reference in a reset", "rl")
    reset_patience: int = setting(
        0, "validations without improvement before reference and optimizer are reset (ProRL)", "rl"
    )
    validate_every: int = setting(5, "steps per validation (rl.callbacks.reset_patience)", "rl")
    drift_factor: float = setting(1.0, "learning-rate factor after a drift alarm; 1: none", "rl")
    world_change: int = setting(
        0, "steps after which pages and search results change; 0: never", "rl", "evaluate"
    )


@dataclass(frozen=True)
class RLConfig:
    """Agentic reinforcement learning."""

    start: str = setting("", "policy folder to start from instead of the stage sft", "rl")
    steps: int = setting(100, "optimizer steps", "rl")
    questions: int = setting(48, "questions per step", "rl")
    group: int = setting(8, "rollouts per question (group size G)", "rl")
    lr: float = setting(4e-4, "learning rate of AdamW", "rl")
    warmup_steps: int = setting(3, "steps of linear warm-up", "rl")
    minibatches: int = setting(1, "updates per batch", "rl")
    agent: str = setting("react", "rollout agents, joined by + (drlib.agents)", "rl")
    temperature: float = setting(1.0, "temperature of sampling and loss", "rl")
    save_rollouts: bool = setting(
        False, "save all rollouts of every step, not only a few of three steps", "rl"
    )
    loss: RLLossConfig = field(default_factory=RLLossConfig)
    advantage: RLAdvantageConfig = field(default_factory=RLAdvantageConfig)
    filter: RLFilterConfig = field(default_factory=RLFilterConfig)
    sampling: RLSamplingConfig = field(default_factory=RLSamplingConfig)
    off_policy: RLOffPolicyConfig = field(default_factory=RLOffPolicyConfig)
    asynchronous: RLAsynchronousConfig = field(default_factory=RLAsynchronousConfig)
    reward: RLRewardConfig = field(default_factory=RLRewardConfig)
    curriculum: RLCurriculumConfig = field(default_factory=RLCurriculumConfig)
    callbacks: RLCallbacksConfig = field(default_factory=RLCallbacksConfig)


@dataclass(frozen=True)
class DistillConfig:
    """On-policy distillation; questions, limits and agent are those of `rl`."""

    start: str = setting(
        "", "policy folder of the student instead of that of the stage rl", "distill"
    )
    teachers: str = setting(
        "",
        "policy folders of the teachers by source of question, such as python=A,search=B, or one",
        "distill",
    )
    loss: Literal["sampled", "full"] = setting(
        "sampled",
        "reverse KL to the teacher: estimated from the sampled tokens, or over the full vocabulary",
        "distill",
    )
    steps: int = setting(25, "optimizer steps", "distill")
    questions: int = setting(384, "questions per step, one rollout each", "distill")
    lr: float = setting(4e-4, "learning rate of AdamW", "distill")


@dataclass(frozen=True)
class MergeConfig:
    """Merging of policies by mergekit."""

    policies: str = setting("", "policy folders to merge, separated by commas", "merge")
    method: Literal["linear", "task_arithmetic", "ties", "dare"] = setting(
        "linear", "mean of the weights, or sums of their differences to merge.base", "merge"
    )
    base: str = setting("", "policy folder from which all of them were trained", "merge")
    weights: str = setting(
        "", "weight of each policy, separated by commas; empty: equal weights", "merge"
    )
    density: float = setting(
        0.2, "share of each difference to merge.base that ties and dare keep", "merge"
    )


@dataclass(frozen=True)
class EvaluationShiftConfig:
    """A realistic environment of the same world (drlib.evaluation.environment_shift)."""

    fault_share: float = setting(
        0.0, "share of search and visit calls that fail with a server error", "evaluate"
    )
    latency_s: float = setting(
        0.0, "mean simulated latency of these calls in s; above 15 s they fail", "evaluate"
    )
    changed_share: float = setting(0.0, "share of pages with a changed fact", "evaluate")
    missing_share: float = setting(0.0, "share of pages that are missing", "evaluate")
    ranking_noise: float = setting(
        0.0, "noise of the search ranking (Plackett-Luce); 0: unchanged", "evaluate"
    )
    seed: int = setting(0, "seed of faults, latencies, drift and ranking", "evaluate")

    @property
    def is_active(self) -> bool:
        """True if any difference to the simulator is declared."""
        drift = self.changed_share or self.missing_share or self.ranking_noise
        return bool(self.fault_share or self.latency_s or drift)


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out evaluation."""

    questions: int = setting(200, "questions per kind", "evaluate")
    samples: int = setting(8, "answers per question at temperature 1", "evaluate")
    agent: str = setting("react", "agent that answers, such as heavy:n=4,merge=vote", "evaluate")
    world: str = setting(
        "",
        "another world to ask about, such as folder:PATH; empty: that of the run; none: only "
        "evaluation.documents and .environments",
        "evaluate",
    )
    documents: str = setting(
        "",
        "more worlds, asked about as documents, such as folder:PATH+folder:OTHER",
        "evaluate",
    )
    environments: str = setting(
        "", "task environments to evaluate, such as gym:chain_sum+swe:easy", "evaluate"
    )
    seed: int = setting(
        574959,
        "seed of the held-out questions and answers; drawn before the recipe was final",
        "evaluate",
    )
    shift: EvaluationShiftConfig = field(default_factory=EvaluationShiftConfig)


@dataclass(frozen=True)
class Config:
    """All settings of a run, grouped by section. Help texts give the units; shares are in 0..1."""

    profile: str = setting("laptop", "name of the profile, and of its folder in runs/")
    seed: int = setting(
        0, "seed of all random draws", "untrained", "demonstrations", "cpt", "sft", "rl", "merge"
    )
    processes: int = setting(2, "single-threaded data-parallel processes")
    plugins: str = setting("", "modules to import before a stage runs, separated by commas")
    world: WorldConfig = field(default_factory=WorldConfig)
    questions: QuestionsConfig = field(default_factory=QuestionsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    demonstrations: DemonstrationsConfig = field(default_factory=DemonstrationsConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    merge: MergeConfig = field(default_factory=MergeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @staticmethod
    def load(profile: str = "laptop", recipe: str = "", **overrides) -> "Config":
        """Load a profile, apply a recipe and overrides, and check every value.

        Args:
            profile: a name in `drlib/profiles`, such as "ci".
            recipe: a name in `drlib/recipes`, such as "dapo"; empty: none.
            overrides: settings by dotted name (`**{"rl.lr": 2e-4}`) or as keywords (`rl__lr=2e-4`).

        Raises:
            ValueError: a profile, recipe or setting is unknown, or a value is invalid.
        """
        values = read_settings("profiles", profile)
        if recipe:
            values |= read_settings("recipes", recipe)
        return Config(profile=profile).derive(**values | overrides)

    def derive(self, **overrides) -> "Config":
        """Return a copy with checked overrides; names as in `load`."""
        changes = {}
        for name, value in overrides.items():
            name = name.replace("__", ".")
            if name not in FIELDS:
                raise ValueError(_explain_unknown(name))
            changes[name] = _check_value(name, value)
        return _replace_settings(self.unrestricted(), changes)

    def get(self, name: str) -> Any:
        """Return the setting with a dotted name."""
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part)
        return value

    def flatten(self) -> dict[str, Any]:
        """Return all settings by dotted name."""
        config = self.unrestricted()
        return {name: config.get(name) for name in FIELDS}

    def overrides(self) -> dict[str, Any]:
        """Return the settings that differ from the profile, by dotted name."""
        base = Config.load(self.profile).flatten()
        return {name: value for name, value in self.flatten().items() if base[name] != value}

    @property
    def world_name(self) -> str:
        """`world.name` with an absolute path, if it has one."""
        return _absolute_path("world.name", self.world.name, Path.cwd())

    @property
    def model_path(self) -> str:
        """`model.path` as an absolute path, if it is a folder, `smol` or a GGUF file."""
        return _absolute_path("model.path", find_model(self.model.path), Path.cwd())

    def unrestricted(self) -> "Config":
        """Return all settings; undoes `restrict`."""
        return self

    def restrict(self, stages: Iterable[str]) -> "Config":
        """Return a view that can read only settings declared for `stages`, or for no stage.

        Reading another setting raises AttributeError, because the name of the stage's folder does
        not depend on it. The view has the same sections and methods.
        """
        return _build_view(self.unrestricted(), frozenset(stages))


def models_folder() -> Path:
    """Return the cache of converted models: DRLIB_MODELS, or drlib/models in the user's cache."""
    given = os.environ.get("DRLIB_MODELS", "")
    return Path(given).expanduser() if given else cache_folder() / "models"


def cache_folder() -> Path:
    """Return drlib's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "drlib"


def gguf_folder(file: Path) -> Path:
    """Return the folder in the cache for a conversion of `file`, by its path, size and time.

    Raises:
        ValueError: there is no such file.
    """
    try:
        state = file.expanduser().resolve().stat()
    except OSError as error:
        raise ValueError(f"no model file {file}: pass the path of an existing one") from error
    text = f"{file.expanduser().resolve()} {state.st_size} {state.st_mtime_ns}"
    return models_folder() / f"{file.stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def find_model(name: str) -> str:
    """Return the folder of `smol`, `smol-reader` or of a converted GGUF file; other names are
    unchanged.

    Raises:
        ValueError: the model is not converted; the message names the command.
    """
    convert = name
    if name in (SMOL, SMOL_READER):
        folder, convert = models_folder() / name, SMOL
    elif name.endswith(".gguf"):
        folder = gguf_folder(Path(name))
    else:
        return name
    if not folder.is_dir():
        raise ValueError(f"model {name} is not converted: run `drlib convert {convert}` once")
    return str(folder)


def runs_folder() -> Path:
    """Return the default folder of runs: runs/ of the working directory.

    Inside the checkout it is always the same folder, which commands and notebooks share.
    """
    here = Path.cwd()
    in_checkout = (ROOT / "pyproject.toml").exists() and here.is_relative_to(ROOT)
    return (ROOT if in_checkout else here) / "runs"


def absolute_paths(settings: Mapping[str, Any], base: Path | None = None) -> dict[str, Any]:
    """Return settings whose paths do not depend on the working directory.

    Args:
        settings: values by dotted name.
        base: start of relative paths; None: the working directory.
    """
    start = Path.cwd() if base is None else base
    return {
        name: _absolute_path(name, value, start) if name in PATH_SETTINGS else value
        for name, value in settings.items()
    }


def _absolute_path(name: str, value: Any, base: Path) -> Any:
    """Return the value of a setting in `PATH_SETTINGS` with an absolute path.

    Unchanged are hub ids, worlds without a path, and policies that do not exist. A policy that
    `base` lacks may be a committed one, relative to the checkout.
    """
    if not isinstance(value, str) or value in ("", NO_WORLD):
        return value
    if name in WORLD_SETTINGS:
        parts = [part.partition(":") for part in split_worlds(value)]
        return "+".join(
            f"{kind}:{_join(base, rest)}" if kind in PATH_WORLDS and rest else kind + colon + rest
            for kind, colon, rest in parts
        )
    if name in POLICY_SETTINGS:
        folders = [(key, _find_folder(path, (base, ROOT))) for key, path in split_policies(value)]
        return ",".join(f"{key}={path}" if key else path for key, path in folders)
    if name == STORED_ROLLOUTS:
        found = [path for path in (_join(base, value), _join(ROOT, value)) if path.exists()]
        return str(found[0]) if found else value
    return _find_folder(value, (base,))


def _find_folder(path: str, starts: Iterable[Path]) -> str:
    """Return the absolute path of the first existing folder; `path` itself if there is none."""
    found = [_join(start, path) for start in starts]
    return next((str(folder) for folder in found if folder.is_dir()), path)


def list_rollout_files(where: str) -> list[Path]:
    """Return the Parquet files of stored rollouts in a file or folder, in the order of steps; []
    if there are none.
    """
    path = Path(absolute_paths({STORED_ROLLOUTS: where})[STORED_ROLLOUTS])
    return [path] if path.is_file() else sorted(path.glob("trajectories_*.parquet"))


def split_policies(value: str) -> list[tuple[str, str]]:
    """Split a list of policy folders into (name, folder); the name may be "".

    >>> split_policies("python=runs/a,search=runs/b"), split_policies("runs/a")
    ([('python', 'runs/a'), ('search', 'runs/b')], [('', 'runs/a')])
    """
    found = []
    for part in filter(None, value.split(",")):
        name, equals, folder = part.partition("=")
        found.append((name, folder) if equals and name.isidentifier() else ("", part))
    return found


def split_worlds(name: str) -> list[str]:
    """Split the name of a mixture of worlds, such as "cldr+pydocs+folder:notes"; "" and "none" have
    none.
    """
    return WORLD_JOINT.split(name) if name not in ("", NO_WORLD) else []


def _join(base: Path, path: str) -> Path:
    return Path(os.path.abspath(base / Path(path).expanduser()))


def _collect_fields(kind: type, prefix: str = "") -> dict[str, dataclasses.Field]:
    """Return the leaf fields of a configuration class by dotted name."""
    leaves = {}
    for member in dataclasses.fields(kind):
        section = member.type
        if isinstance(section, type) and dataclasses.is_dataclass(section):
            leaves |= _collect_fields(section, f"{prefix}{member.name}.")
        else:
            leaves[prefix + member.name] = member
    return leaves


FIELDS = _collect_fields(Config)


def declared_for(stage: str) -> list[str]:
    """Return the dotted names of the settings that a stage reads itself."""
    return [name for name, member in FIELDS.items() if stage in member.metadata["stages"]]


def _explain_unknown(name: str) -> str:
    """Return the error message for an unknown setting."""
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in FIELDS if known.rpartition(".")[2] == leaf]
    close = same_leaf + difflib.get_close_matches(name, FIELDS, n=3, cutoff=0.6)
    similar = " or ".join(repr(known) for known in dict.fromkeys(close))
    hint = f"did you mean {similar}? " if similar else ""
    return f"unknown setting {name!r}: {hint}`drlib train --settings` lists all settings"


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse command-line settings such as `--rl.lr 2e-4 --rl.loss.clip=cispo`.

    Raises:
        ValueError: a setting is unknown or a value has the wrong type.
    """
    if not arguments:
        return {}
    from jsonargparse import ArgumentError, ArgumentParser  # lazy: most programs parse no settings

    for word in arguments:
        name = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and name not in FIELDS:
            raise ValueError(_explain_unknown(name))
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    for name, member in FIELDS.items():
        parser.add_argument(f"--{name}", type=member.type, default=argparse.SUPPRESS)
    try:
        return dict(vars(parser.parse_args(list(arguments)).as_flat()))
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).replace("Parser key", "setting").split())) from error


def load_from_arguments(profile: str, recipe: str, arguments: Sequence[str]) -> Config:
    """Load a configuration from a command line, with absolute paths, and import its plugins.

    Raises:
        ValueError: as in `Config.load` and `parse_overrides`, or a plugin cannot be imported.
    """
    overrides = absolute_paths(parse_overrides(arguments))
    load_plugins(overrides.get("plugins", ""))  # plugins register allowed values
    return Config.load(profile, recipe, **overrides)


def format_setting(name: str, value: Any) -> str:
    """Format a setting as on the command line, without the dashes."""
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def settings_table(names: Iterable[str], config: Config) -> str:
    """Return one line per setting: name, value, help and the stages that read it."""
    lines = []
    for name in names:
        metadata = FIELDS[name].metadata
        stages = f" ({', '.join(metadata['stages'])})" if metadata["stages"] else ""
        lines.append(f"{f'{name}={config.get(name)}':<46} {metadata['help']}{stages}")
    return "\n".join(lines)


def profile_names(kind: str = "profiles") -> list[str]:
    """Return the names of the shipped profiles or, for kind="recipes", of the recipes."""
    folder = resources.files("drlib") / kind
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if _is_yaml(file))


def _is_yaml(file) -> bool:
    return file.name.endswith(".yaml")


@cache
def _read_yaml(kind: str, name: str) -> Mapping:
    known = profile_names(kind)
    if name not in known:
        raise ValueError(f"unknown {kind.removesuffix('s')} {name!r}: {suggest_name(name, known)}")
    text = (resources.files("drlib") / kind / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text) or {}


def read_settings(kind: str, name: str) -> dict[str, Any]:
    """Return the settings of a profile or recipe by dotted name.

    Raises:
        ValueError: the profile or recipe does not exist.
    """
    return flatten_settings(_read_yaml(kind, name))


def flatten_settings(nested: Mapping, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name; dotted keys stay as they are."""
    flat = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _replace_settings(section, changes: Mapping[str, Any], prefix: str = ""):
    """Return a copy of a section with the settings in `changes` replaced.

    Args:
        section: a configuration dataclass.
        changes: new values by dotted name; names outside the section are ignored.
        prefix: dotted name of the section, with a trailing dot.
    """
    replaced = {}
    for member in dataclasses.fields(section):
        name = prefix + member.name
        if dataclasses.is_dataclass(member.type):
            if any(key.startswith(f"{name}.") for key in changes):
                subsection = getattr(section, member.name)
                replaced[member.name] = _replace_settings(subsection, changes, f"{name}.")
        elif name in changes:
            replaced[member.name] = changes[name]
    return dataclasses.replace(section, **replaced)


def _check_value(name: str, value: Any) -> Any:
    """Return the value, converted to float if the setting is one.

    Raises:
        ValueError: the value is invalid.
    """
    default = FIELDS[name].default
    if type(default) is float and type(value) in (int, str):
        value = _parse_float(value)
    fault = _find_fault(name, value, type(default))
    if fault:
        raise ValueError(f"setting {name!r} must {fault}")
    return value


def _parse_float(value: int | str) -> Any:
    """Return the value as a float if possible, because YAML parses 2e-4 as a string."""
    try:
        return float(value)
    except ValueError:
        return value


def _find_fault(name: str, value: Any, kind: type) -> str:
    """Return the requirement that a setting's value violates, or ""."""
    if type(value) is not kind:
        return f"be {kind.__name__}, got {type(value).__name__} ({value!r})"
    if isinstance(value, (int, float)) and value < 0:
        return f"not be negative, got {value}"
    if isinstance(value, float) and name.endswith("_share") and value > 1:
        return f"be a share in 0..1, got {value}"
    choices = get_args(FIELDS[name].type) or _list_choices(name)
    if choices and value not in choices:
        return f"be one of {tuple(choices)}, got {value!r}"
    return ""


def _list_choices(name: str) -> tuple:
    """Return the registered values of a setting, or () if any value is allowed.

    The registry is in a higher layer, so it is imported only when a value is checked.
    """
    source = FIELDS[name].metadata["choices"]
    if not source:
        return ()
    module, _, registry = source.partition(":")
    return tuple(getattr(importlib.import_module(module), registry))


class _RestrictedView:
    """Mixin of restricted views: raise if a setting of another stage is read."""

    def __getattribute__(self, name: str):
        state = object.__getattribute__(self, "__dict__")
        if name in state.get("_hidden", ()):
            dotted = f"{state['_prefix']}{name}"
            stages = FIELDS[dotted].metadata["stages"]
            raise AttributeError(
                f"this stage reads {dotted!r}, which is declared for {stages}, so its folder does "
                "not depend on the setting. Declare the stage in drlib/config.py"
            )
        return object.__getattribute__(self, name)

    def unrestricted(self) -> Config:
        return object.__getattribute__(self, "__dict__")["_source"]


@cache
def _build_view_class(kind) -> type:
    """Return a subclass of a configuration class whose instances are restricted views."""
    return type(f"Restricted{kind.__name__}", (_RestrictedView, kind), {})


def _build_view(section, stages: frozenset[str], prefix: str = ""):
    """Return a view of a section that raises if a setting of another stage is read."""
    view = object.__new__(_build_view_class(section.__class__))
    state = view.__dict__  # the dataclass is frozen
    hidden = set()
    for member in dataclasses.fields(section):
        value = getattr(section, member.name)
        if dataclasses.is_dataclass(member.type):
            value = _build_view(value, stages, f"{prefix}{member.name}.")
        elif member.metadata["stages"] and not stages & {*member.metadata["stages"]}:
            hidden.add(member.name)
        state[member.name] = value
    state.update(_hidden=frozenset(hidden), _prefix=prefix, _source=section)
    return view
