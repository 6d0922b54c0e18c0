"""Mutants of the training callbacks: KL, reference, resets, drift (see `tests.mutants`)."""

from tests.mutants import Mutant

STEERING = "tests/test_training_callbacks.py"
DRIFT = "tests/test_training_drift.py"
STAGES = "tests/test_training_stages.py"

MUTANTS = [
    # ------------------------------------------------------------ the KL's weight
    Mutant(
        "rl.callbacks.kl_target: doubled where it should be halved",
        "drlib/rl/stability.py",
        """            if ratio > 1.5:
                change = 2.0""",
        """            if ratio > 1.5:
                change = 0.5""",
        (f"{STEERING}::test_adaptive_kl_applies_from_the_next_step",),
        "the further the policy goes, the less it is held",
    ),
    Mutant(
        "rl.callbacks.kl_target: never updated",
        "drlib/training/callbacks.py",
        '            self.controller.update(state.metrics["kl"])\n',
        "            pass\n",
        (f"{STEERING}::test_adaptive_kl_follows_the_logged_kl",),
        "the weight is fixed whatever the target",
    ),
    Mutant(
        "rl.callbacks.kl_target: the loss keeps the setting",
        "drlib/training/learner.py",
        "kl_coef=self.kl_coef",
        "kl_coef=config.rl.loss.kl_coef",
        (f"{STEERING}::test_adapted_kl_coefficient_is_used_in_the_loss",),
        "a weight is steered that nothing reads",
    ),
    Mutant(
        "rl.callbacks.kl_target: a step without tokens counts",
        "drlib/training/callbacks.py",
        'if state.metrics["trained_share"] > 0:',
        "if True:",
        (f"{STEERING}::test_kl_coefficient_is_kept_without_training",),
        "a dead step reads as a KL of 0 and halves the weight",
    ),
    # ------------------------------------------------------------ the reference
    Mutant(
        "rl.callbacks.reference_every: one step late",
        "drlib/training/callbacks.py",
        "ReferenceReset(every=every or None)",
        "ReferenceReset(every=every + 1)",
        (f"{STEERING}::test_reference_is_updated_on_schedule",),
        "the reference moves in other steps than asked for",
    ),
    Mutant(
        "rl.callbacks.reference_decay: ignored",
        "drlib/training/callbacks.py",
        "learner.sync_reference(self.decay)",
        "learner.sync_reference(0.0)",
        (f"{STEERING}::test_reference_decay_mixes_weights",),
        "a moving average is a hard copy",
    ),
    Mutant(
        "reference: not in the checkpoint",
        "drlib/training/learner.py",
        '"reference": self.reference.state_dict() if self.is_reference_moved else None',
        '"reference": None',
        (f"{STEERING}::test_resumed_run_is_bit_identical",),
        "a resumed run is held near the cold start again",
    ),
    Mutant(
        "steering: state not loaded",
        "drlib/training/grpo.py",
        '            self.callbacks.load_state_dict(extra["callbacks"])\n',
        "",
        (f"{STEERING}::test_resumed_run_is_bit_identical",),
        "a resumed run forgets patience, averages and the KL's weight",
    ),
    # ------------------------------------------------------------ the hard reset
    Mutant(
        "rl.callbacks.reset_patience: Adam remembers",
        "drlib/training/optim.py",
        "            optimizer.state.clear()\n",
        "            pass\n",
        (f"{STEERING}::test_reset_clears_adam_when_patience_ends",),
        "a reset leaves the moments of the old objective",
    ),
    Mutant(
        "rl.callbacks.reset_patience: the reference stays",
        "drlib/training/learner.py",
        "        self.sync_reference()\n",
        "",
        (f"{STEERING}::test_reset_clears_adam_when_patience_ends",),
        "only half of ProRL's reset",
    ),
    Mutant(
        "rl.callbacks.reset_patience: any score is a new best",
        "drlib/rl/stability.py",
        'score > state["best"] + self.min_delta',
        "score > -1",
        (f"{STEERING}::test_loop_resets_on_stagnating_validation",),
        "stagnation is never seen",
    ),
    Mutant(
        "rl.callbacks.validate_every: every step",
        "drlib/training/callbacks.py",
        'if state["steps"] < self.every:',
        'if state["steps"] < 1:',
        (f"{STEERING}::test_validation_is_the_mean_over_skills",),
        "patience is counted in steps",
    ),
    Mutant(
        "validation: the mean over rollouts",
        "drlib/training/callbacks.py",
        'n, total = state["seen"].get(skill, (0, 0.0))',
        'skill = "any"; n, total = state["seen"].get(skill, (0, 0.0))',
        (f"{STEERING}::test_validation_is_the_mean_over_skills",),
        "the curriculum's mixture decides whether the policy stagnates",
    ),
    Mutant(
        "validation: skills not asked are forgotten",
        "drlib/training/callbacks.py",
        'state["known"] |= {',
        'state["known"] = {',
        (f"{STEERING}::test_validation_is_the_mean_over_skills",),
        "a window without the hardest skill looks like progress",
    ),
    # ------------------------------------------------------------ drift
    Mutant(
        "rl.callbacks.drift_factor: the rate is not lowered",
        "drlib/training/learner.py",
        "        factor *= self.lr_scale\n",
        "",
        (f"{DRIFT}::test_lowered_learning_rate_reaches_the_optimizer",),
        "alarms are logged and nothing follows",
    ),
    Mutant(
        "rl.callbacks.drift_factor: alarms are not told",
        "drlib/training/callbacks.py",
        "self.rate.update(bool(alarms))",
        "self.rate.update(False)",
        (f"{DRIFT}::test_changed_world_lowers_the_learning_rate",),
        "alarms are logged and nothing follows",
    ),
    Mutant(
        "rl.callbacks.drift_factor: learning is an alarm",
        "drlib/training/callbacks.py",
        'WORSE = {"reward": "down", "errors": "up"}',
        'WORSE = {"reward": "up", "errors": "down"}',
        (f"{DRIFT}::test_committed_runs_only_alarm_on_collapse",),
        "the better it learns, the slower",
    ),
    Mutant(
        "drift: of one rank",
        "drlib/training/callbacks.py",
        "trainer.ranks.gather([_facts(trajectory) for trajectory in state.rollouts])",
        "[_facts(trajectory) for trajectory in state.rollouts]",
        (f"{STAGES}::test_two_processes_are_bit_identical_to_one[every callback]",),
        "ranks learn at rates of their own",
    ),
    Mutant(
        "drift: the world's version is not looked at",
        "drlib/training/callbacks.py",
        'self.detector.update(signals, {"world": world})',
        "self.detector.update(signals)",
        (f"{DRIFT}::test_changed_world_lowers_the_learning_rate",),
        "a world that says it is another one is not heard",
    ),
    Mutant(
        "drift: times are watched",
        "drlib/training/callbacks.py",
        "if not name.startswith(NOT_REPEATABLE)",
        "if True",
        (f"{DRIFT}::test_rarely_called_tool_has_no_error_rate",),
        "two runs of one seed differ",
    ),
    Mutant(
        "drift: observations are not watched",
        "drlib/training/callbacks.py",
        "SHAPE = 0.4",
        "SHAPE = math.inf",
        (f"{DRIFT}::test_observation_length_change_alarms_once",),
        "pages of another form are not seen",
    ),
    # ------------------------------------------------------------ the changed world
    Mutant(
        "rl.callbacks.world_change: never",
        "drlib/training/rollouts.py",
        "return 0 < world_change <= step",
        "return 0 < world_change <= step - 1000",
        (f"{DRIFT}::test_world_changes_at_the_configured_step",),
        "there is no drift to be seen",
    ),
    Mutant(
        "rl.callbacks.world_change: invented worlds stay",
        "drlib/worlds/perturbed.py",
        "changed = {version: PerturbedWorld(world) for version, world in worlds.items()}",
        "changed = {}",
        (f"{DRIFT}::test_search_tasks_move_to_the_perturbed_world",),
        "half of the questions see no change",
    ),
    Mutant(
        "rl.callbacks.world_change: the evaluation does not hear of it",
        "drlib/evaluation/evaluate.py",
        "    if config.rl.callbacks.world_change and world is not None:",
        "    if False:",
        (f"{DRIFT}::test_evaluation_uses_the_perturbed_world",),
        "the policy is judged in a world that is gone",
    ),
]
