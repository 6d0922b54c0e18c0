"""Profiles and settings: one flat set of names for YAML files, notebooks and stages.

Names are flat (`rl_steps`, not `rl.steps`) so that the same word works in a papermill parameter
file, on a command line and in a README table. A typo must never run with a default.

`ci` takes seconds and proves that every stage runs; `laptop` takes minutes and learns; `gpu1` and
`gpu8` are not here yet (they come with the TRL trainer and the vLLM engine).
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_type_hints

from drlib.registry import nearest

ROOT = Path(__file__).resolve().parents[1]  # of the checkout: figures/, notebooks/, runs/


@dataclass(frozen=True)
class Config:
    """All settings of a run. Units are in the names; shares are in 0..1."""

    profile: str = "laptop"
    seed: int = 0
    world: str = "tour"
    processes: int = 2  # single-threaded data-parallel processes
    # policy
    vocabulary: int = 2048
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    experts: int = 8
    experts_per_token: int = 2
    expert_hidden: int = 64
    init: Literal["induction", "plain"] = "induction"
    # what a rollout may do
    search_results: int = 2
    max_calls: int = 6
    max_turn_tokens: int = 72
    max_context_tokens: int = 448
    # agentic pre-training
    cpt_steps: int = 600
    cpt_batch_tokens: int = 4096  # padded, over all processes
    cpt_muon_lr: float = 0.02
    cpt_adam_lr: float = 1e-3
    cpt_warmup_steps: int = 20
    cpt_decay_share: float = 0.4
    # demonstrations and the cold start
    demonstrations: int = 600
    demonstration_filter: Literal["correct", "none"] = "correct"
    sft_steps: int = 250
    sft_batch_tokens: int = 4096
    sft_muon_lr: float = 0.006
    sft_adam_lr: float = 1.2e-3
    sft_replay_share: float = 0.3
    sft_continued_steps: int = 1100  # the control: as much compute as RL has
    # reinforcement learning
    rl_start: str = ""  # a policy's folder to start from instead of the stage sft
    rl_steps: int = 100
    rl_questions: int = 48  # a step
    rl_group: int = 8  # rollouts a question
    rl_lr: float = 4e-4
    rl_warmup_steps: int = 3
    rl_python_share: float = 0.25
    rl_fictional_share: float = 0.5  # of the search questions
    # "exclude" is Tongyi's rule; "keep" trains on unanswered over-long negatives
    rl_overlong: Literal["exclude", "keep"] = "exclude"
    # switches of reinforcement learning; with all of them here a step is the published recipe
    rl_advantage: Literal["leave_one_out", "group_mean", "group_normalized", "batch_normalized"] = (
        "leave_one_out"
    )
    rl_clip: Literal["ppo", "double_sided", "cispo", "none"] = "ppo"
    rl_level: Literal["token", "sequence"] = "token"
    rl_aggregate: Literal["token", "sequence", "constant"] = "token"
    rl_epsilon_low: float = 0.2
    rl_epsilon_high: float = 0.28
    # of the engine's mismatch
    rl_correction: Literal["none", "truncate", "mask", "icepop", "geometric"] = "none"
    rl_kl_coef: float = 0.0  # towards the cold start
    rl_hallucination: Literal["keep", "exclude"] = "keep"  # successes after imagined responses
    rl_drop_equal: bool = False  # groups of equal rewards leave the token count (DAPO)
    rl_oversample: int = 1  # rollouts made for each one kept
    rl_resample: Literal["none", "sample", "sort"] = "none"  # how they are chosen (GRPO-RoC)
    rl_minibatches: int = 1  # updates a batch
    rl_staleness: int = 0  # steps that the engine goes on with old weights
    rl_engine: Literal["float32", "bfloat16"] = "float32"  # to which its weights are rounded
    rl_emergency_stop: bool = False  # when nearly no rollout ends with an answer any more
    rl_reward: Literal["exact_match", "random"] = "exact_match"  # "random": the control
    rl_temperature: float = 1.0
    balance_coef: float = 0.01  # load-balancing loss
    checkpoint_every: int = 20
    # evaluation
    eval_questions: int = 200  # of each kind
    eval_samples: int = 8
    eval_seed: int = 574959  # drawn before the last change of the recipe, in a commit of its own

    @staticmethod
    def load(profile: str, **overrides) -> "Config":
        """The settings of `profile` with `overrides`; ValueError names what is unknown or wrong."""
        if profile not in PROFILES:
            raise ValueError(f"unknown profile {profile!r}: {nearest(profile, PROFILES)}")
        return Config(profile=profile).derive(**PROFILES[profile] | overrides)

    def derive(self, **changes) -> "Config":
        """These settings with `changes`, checked like `load`."""
        kinds = get_type_hints(Config)
        for name, value in changes.items():
            if name not in kinds:
                raise ValueError(f"unknown parameter {name!r}: {nearest(name, kinds)}")
            choices, kind = get_args(kinds[name]), type(getattr(Config, name))  # of the default
            if kind is float and type(value) is int:
                value = changes[name] = float(value)
            number = kind is not str and type(value) is kind
            for wrong, fault in (
                (
                    type(value) is not kind,
                    f"be {kind.__name__}, got {type(value).__name__} ({value!r})",
                ),
                (number and value < 0, f"not be negative, got {value}"),
                (
                    number and name.endswith("_share") and value > 1,
                    f"be a share in 0..1, got {value}",
                ),
                (choices and value not in choices, f"be one of {choices}, got {value!r}"),
            ):
                if wrong:
                    raise ValueError(f"parameter {name!r} must {fault}")
        return dataclasses.replace(self, **changes)

    def pick(self, *prefixes: str) -> dict:
        """The settings whose names begin with one of `prefixes`: what a stage depends on."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k.startswith(prefixes)}


# Source recipe first: the one rule of Tongyi's that the tour departs from, by measurement (notebook
# 06): at this size, leaving over-long negatives out of the loss raises the over-long rate. The
# emergency stop ends what has collapsed, such as the control that is rewarded at random.
TOUR = {"rl_overlong": "keep", "rl_emergency_stop": True}
PROFILES: dict[str, dict] = {
    "laptop": TOUR,
    "ci": TOUR
    | {
        "cpt_steps": 12,
        "cpt_batch_tokens": 2048,
        "cpt_warmup_steps": 2,
        "demonstrations": 120,
        "sft_steps": 8,
        "sft_batch_tokens": 2048,
        "sft_continued_steps": 8,
        # This profile's own cold start has learned nothing yet: from it every rollout is over-long,
        # every group is dead, and no step has a gradient.
        "rl_start": "figures/reference/tour/policy_sft",
        "rl_steps": 3,
        "rl_questions": 8,
        "rl_group": 4,
        "checkpoint_every": 2,
        "eval_questions": 10,
        "eval_samples": 2,
    },
}
