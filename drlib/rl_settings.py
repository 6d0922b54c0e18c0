"""The settings of reinforcement learning: what is asked, how rollouts are made, the switches.

The first block is how much of it there is; all others are off by default, and then a step is the
published recipe of Tongyi DeepResearch. Each switch is one published mechanism, works with the
others, and says in its meaning which. `drlib.config` has them among its own; they are apart only
because they are many.
"""

from dataclasses import dataclass
from typing import Any, Literal

from drlib.settings import setting


def switch(default: Any, meaning: str, choices: str = "") -> Any:
    """A setting that the stages of reinforcement learning read."""
    return setting(default, meaning, "rl", choices=choices)


@dataclass(frozen=True)
class RLSettings:
    """Units are in the names; shares are in 0..1."""

    rl_start: str = switch("", "a policy's folder to start from instead of the stage sft")
    rl_steps: int = switch(100, "steps of reinforcement learning")
    rl_questions: int = switch(48, "questions a step")
    rl_group: int = switch(8, "rollouts a question")
    rl_lr: float = switch(4e-4, "learning rate of AdamW")
    rl_warmup_steps: int = switch(3, "steps of linear warm-up")
    rl_python_share: float = switch(0.25, "of the questions: sums for the sandbox")
    rl_fictional_share: float = switch(0.5, "of the search questions: invented worlds")
    rl_conditions: int = switch(
        3, "of a question at most, where the engine makes them (1: chains alone)"
    )
    rl_agent: str = switch(
        "react", "who rolls out: an agent's line (drlib.agents.agent_spec), several joined by +"
    )
    rl_trail_share: float = switch(
        0.0, "of the questions: trails, longer than a context (drlib.synthesis.trails)"
    )
    rl_trail_pages: int = switch(12, "pages of a trail, at most")
    rl_overlong: Literal["exclude", "keep"] = switch(
        "exclude", 'unanswered over-long failures in the loss ("exclude": Tongyi\'s rule)'
    )
    # Switches of reinforcement learning; with all of them as here a step is the published recipe.
    rl_advantage: str = switch(
        "leave_one_out", "the estimator", choices="drlib.rl.advantages:ADVANTAGES"
    )
    rl_baseline: Literal["trajectories", "samples"] = switch(
        "trajectories",
        'what rewards are compared over ("samples": the contexts of rollouts, WebResearcher)',
    )
    rl_sample_multiple: int = switch(
        1, "contexts that are trained on: a multiple of it (WebResearcher's down-sampling)"
    )
    rl_clip: str = switch(
        "ppo", "what happens to a ratio out of range", choices="drlib.rl.clips:CLIPS"
    )
    rl_level: Literal["token", "sequence"] = switch("token", "what the ratio is of")
    rl_aggregate: Literal["token", "sequence", "constant"] = switch(
        "token", "what the sum of the loss is divided by"
    )
    rl_epsilon_low: float = switch(0.2, "the ratio's range below 1")
    rl_epsilon_high: float = switch(0.28, "the ratio's range above 1")
    rl_correction: Literal["none", "truncate", "mask", "icepop", "geometric"] = switch(
        "none", "of the engine's mismatch"
    )
    rl_kl_coef: float = switch(0.0, "weight of the KL towards the cold start")
    rl_hallucination: Literal["keep", "exclude"] = switch(
        "keep", "successes after imagined responses in the loss"
    )
    rl_drop_equal: bool = switch(False, "groups of equal rewards leave the token count (DAPO)")
    rl_oversample: int = switch(1, "rollouts made for each one kept")
    rl_resample: Literal["none", "sample", "sort"] = switch(
        "none", "how those kept are chosen (GRPO-RoC)"
    )
    rl_routing: Literal["none", "r2", "r3"] = switch(
        "none", "experts replayed: as the policy before the update chose, or the engine"
    )
    rl_minibatches: int = switch(1, "updates a batch")
    rl_staleness: int = switch(0, "steps that the engine goes on with old weights")
    rl_engine: Literal["float32", "bfloat16"] = switch(
        "float32", "to which the engine's weights are rounded"
    )
    rl_emergency_stop: bool = switch(
        False, "stop when nearly no rollout ends with an answer any more"
    )
    rl_reward: str = switch(
        "exact_match", '("random": the control)', choices="drlib.rewards.functions:REWARDS"
    )
    rl_temperature: float = switch(1.0, "of sampling, and of the loss")

    # What rollouts are rewarded by, beside rl_reward.
    rl_labels: Literal["right", "shuffled", "wrong"] = switch(
        "right",
        'controls: a group\'s own rewards permuted ("shuffled"), or its most frequent wrong answer '
        'taken for the right one ("wrong")',
    )
    rl_overlong_buffer: int = switch(
        0, "tokens before the limit in which the reward falls by up to 1 (DAPO's soft penalty)"
    )

    # Which questions are asked.
    rl_curriculum: Literal["skills", "none"] = switch(
        "skills", "how kinds of question are drawn: by p(1 - p) of their solve rate, or evenly"
    )
    rl_mixture: Literal["chance", "exact"] = switch(
        "chance", "how the shares of sources are met: in the mean, or without chance (ProRL)"
    )
    rl_pool: int = switch(0, "questions of a fixed set that are asked again (0: always new ones)")
    rl_curation_every: int = switch(
        0,
        "steps from one exchange of mastered and hopeless questions to the next (Tongyi; 0: none)",
    )
    rl_stages: Literal["one", "three"] = switch(
        "one", "limits of a rollout: the profile's, or rStar2-Agent's three stages up to them"
    )

    # Which groups are made and which are trained on.
    rl_adaptive_group: bool = switch(
        False, "the second half of a group only where the first half's rewards differ"
    )
    rl_draws: int = switch(
        1, "batches drawn at most until rl_questions groups are live (DAPO's dynamic sampling)"
    )
    rl_duplicate: bool = switch(False, "live groups again in the place of dead ones (DUPO)")
    rl_pipeline: bool = switch(
        False, "the selective filtering pipeline: quality, consistency and diversity"
    )
    rl_low_weight: float = switch(0.5, "of a rollout of low quality in the loss (rl_pipeline)")
    rl_max_age: int = switch(
        0, "updates behind which a rollout is not trained on any more (GLM-5; 0: any age)"
    )
    rl_repair_groups: bool = switch(
        False, "groups that lost less than half are filled with copies, others left out (GLM-5)"
    )
    rl_replay_groups: int = switch(
        0, "earlier groups trained on again each step, by their mean |advantage| (an even number)"
    )
    rl_replay_age: int = switch(4, "updates behind which a group is not replayed any more")

    # Which tokens learn.
    rl_top_entropy: float = switch(1.0, "share of the tokens that learn (80/20 rule: 0.2)")
    rl_entropy_tokens: Literal["top", "bottom", "random"] = switch(
        "top", "which they are: those of the highest entropy, or a control"
    )
    rl_entropy_scope: Literal["micro", "mini", "batch"] = switch(
        "batch", "among which tokens they are chosen: a micro-batch's, an update's or a batch's"
    )
    rl_denominator: Literal["kept", "all"] = switch(
        "kept", "what the loss is divided by: the tokens left by the switches, or all (TRL)"
    )
    rl_correction_low: float = switch(0.0, "lower bound of rl_correction (both 0: the published)")
    rl_correction_high: float = switch(0.0, "upper bound of rl_correction")
    rl_correction_level: Literal["token", "sequence"] = switch("token", "what rl_correction is of")
    rl_frugal_head: bool = switch(
        False, "log-probabilities without a tokens x vocabulary matrix (trainer=trl: always)"
    )

    # What holds the policy near its reference, and what watches the run.
    rl_kl_estimator: Literal["k1", "k2", "k3"] = switch("k3", "of the KL towards the reference")
    rl_kl_unbiased: bool = switch(False, "the estimate weighed so that its gradient is the KL's")
    rl_kl_target: float = switch(
        0.0, "nats at which the KL is held by doubling and halving rl_kl_coef (0: it is fixed)"
    )
    rl_reference_every: int = switch(
        0, "steps after which the policy becomes its own reference (0: never)"
    )
    rl_reference_decay: float = switch(0.0, "what is kept of the old reference then")
    rl_reset_patience: int = switch(
        0, "validations without a new best, after which reference and optimizer start anew (ProRL)"
    )
    rl_validate_every: int = switch(
        5, "steps whose rollouts are one validation (rl_reset_patience)"
    )
    rl_drift_factor: float = switch(
        1.0, "of the learning rate after an alarm that the environment has drifted (1: none)"
    )
    rl_world_change: int = setting(
        0,
        "steps after which pages and search results change under the policy (0: never); the "
        "evaluation is in the changed world then (drlib.worlds.perturbed)",
        "rl",
        "evaluate",
    )
