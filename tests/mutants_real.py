"""The faults of a real model's stages on TRL, and of the planner (see `tests.mutants`)."""

from tests.mutants import Mutant

REAL = "tests/test_training_real.py"
PROCESSES = "tests/test_training_real_processes.py"
FIRST = f"{REAL}::test_first_step_matches_the_local_loop"
SECOND = f"{REAL}::test_second_step_uses_the_updated_curriculum"
SFT = f"{REAL}::test_sft_uses_only_correct_episodes"
BATCH = "tests/test_training_trl_batch.py"
ROUTES = "tests/test_models_routes.py"
KILLED = f"{PROCESSES}::test_killed_stage_resumes_to_the_same_weights"

MUTANTS = [
    Mutant(
        "real: what tools said is trained on",
        "drlib/training/grpo_trl.py",
        '"env_mask": sample.generated[first:end].astype(int).tolist(),',
        '"env_mask": [1] * (end - first),',
        (FIRST,),
        "a policy learns to write tool responses",
    ),
    Mutant(
        "real: a reward turned",
        "drlib/training/grpo_trl.py",
        '"advantage": [0.0 if row is None else row.advantage for row in rows],',
        '"advantage": [0.0 if row is None else -row.advantage for row in rows],',
        (FIRST,),
        "what was right is unlearned",
    ),
    Mutant(
        "real: the engine keeps its first weights",
        "drlib/training/grpo_trl.py",
        "        if is_own or ranks.first:\n            engine.update_weights(model)",
        "        if is_own or ranks.first:\n            engine.version += 1",
        (SECOND,),
        "rollouts are of a policy of long ago",
    ),
    Mutant(
        "real: the curriculum learns nothing",
        "drlib/training/grpo_trl.py",
        "        self.curriculum.update(state.outcomes)\n",
        "",
        (SECOND,),
        "what is solved already is asked for ever",
    ),
    Mutant(
        "real: a step of dead groups is taken",
        "drlib/training/grpo_trl.py",
        "return self.config.rl.loss.kl_coef == 0 and not self.has_gradient",
        "return False",
        (f"{REAL}::test_step_without_reward_variance_changes_nothing",),
        "the momentum and the balance loss move weights that nobody asked to move",
    ),
    Mutant(
        "real: the learning rate of the next step",
        "drlib/training/grpo_trl.py",
        "return schedule(step, config.rl.steps",
        "return schedule(step + 2, config.rl.steps + 2",
        (f"{REAL}::test_learning_rate_matches_the_local_loop",),
        "another schedule than the one that is declared",
    ),
    Mutant(
        "real: wrong attempts are taught",
        "drlib/training/sft_trl.py",
        "episodes = read_episodes(folder, config.sft.filter)",
        'episodes = read_episodes(folder, "none")',
        (SFT,),
        "the model learns from what it got wrong",
    ),
    Mutant(
        "real: adapters are thrown away",
        "drlib/training/model_setup.py",
        "return copy.deepcopy(model).merge_and_unload() if _has_adapters(model) else model",
        "return copy.deepcopy(model).unload() if _has_adapters(model) else model",
        (f"{REAL}::test_every_stage_writes_its_result",),
        "a stage trains and leaves the model as it was",
    ),
    Mutant(
        "real: a resumed run forgets the experts",
        "drlib/training/model_setup.py",
        "load_model(checkpoint if whole else where, dtype)",
        "load_model(where, dtype)",
        (KILLED,),
        "after a kill the experts are those of the start",
    ),
    Mutant(
        "real: a cut checkpoint is resumed from",
        "drlib/training/trl.py",
        "if not _is_complete(each):",
        "if False:",
        (f"{PROCESSES}::test_incomplete_checkpoint_is_ignored",),
        "a run that was killed at a bad moment cannot go on",
    ),
    Mutant(
        "real: sharding is asked for in vain",
        "drlib/training/trl.py",
        "        _enable_cpu_sharding(arguments)\n",
        "        pass\n",
        (f"{PROCESSES}::test_fsdp_over_two_processes_matches_one",),
        "FSDP2 is never tested",
    ),
    Mutant(
        "real: rows of the other group are kept",
        "drlib/training/trl.py",
        'return tokens_B if kl else tokens_B * (batch["advantages"] != 0)',
        'return tokens_B if kl else tokens_B * (batch["advantages"] <= 0)',
        (f"{BATCH}::test_gradients_match_the_full_batch",),
        "what was right never reaches the loss",
    ),
    Mutant(
        "real: a micro-batch's balance loss counts whole",
        "drlib/training/trl.py",
        "self.router_aux_loss_coef * part * found.aux_loss",
        "self.router_aux_loss_coef * found.aux_loss",
        (f"{BATCH}::test_balance_loss_is_the_mean_over_live_tokens",),
        "the more micro-batches, the more the experts are evened out",
    ),
    Mutant(
        "real: adapters move the router",
        "drlib/training/model_setup.py",
        "target_modules=sorted(linear | (EXPERTS if shared else set())),",
        'target_modules="all-linear",',
        (f"{REAL}::test_adapters_cover_attention_and_experts_only",),
        "tokens go to experts that were not trained on them",
    ),
    Mutant(
        "real: routes stand one token late",
        "drlib/agents/rollout_state.py",
        "                read = end - 1\n",
        "                read = end\n",
        (f"{ROUTES}::test_routes_of_the_sampling_pass_are_kept",),
        "every token is replayed through its neighbour's experts",
    ),
    Mutant(
        "plan: the simulation ignores weight transfer",
        "drlib/analysis/scaling_plots.py",
        "ready = [at + time.sync if at > trained else at for at in ready]",
        "ready = [at for at in ready]",
        ("tests/test_training_plan.py::test_asynchronous_step_time_matches_the_simulation",),
        "a plan promises more steps per hour than are possible",
    ),
    Mutant(
        "real: a gradient of NaN is taken",
        "drlib/training/trl.py",
        "if not wanted or not is_finite:",
        "if not wanted:",
        ("tests/test_training_finite.py::test_trl_loop_skips_non_finite_steps",),
        "one broken batch, and every weight is NaN for good",
    ),
    Mutant(
        "real: cuDNN's attention is used",
        "drlib/training/trl.py",
        "torch.backends.cuda.enable_cudnn_sdp(False)",
        "torch.backends.cuda.enable_cudnn_sdp(True)",
        (
            "tests/test_training_finite.py::test_trl_sft_disables_cudnn_attention",
            "tests/test_training_finite.py::test_trl_loop_skips_non_finite_steps",
        ),
        "on Hopper some rows' gradients are NaN",
    ),
    Mutant(
        "plan: an engine's copy of a sharded model",
        "drlib/training/planner.py",
        'elif config.engine.name in ("hf", "local") and loads["rl"].fsdp:',
        "elif False:",
        (
            "tests/test_training_plan.py"
            "::test_sharded_local_engine_needs_a_full_copy",
        ),
        "a run is promised room that its own rollouts need",
    ),
    Mutant(
        "real: evaluated on the CPU of a GPU's machine",
        "drlib/training/model_setup.py",
        "return TransformersEngine(model.to(default_device()), max",
        "return TransformersEngine(model, max",
        ("tests/test_training_devices.py::test_engine_uses_the_default_device",),
        "a run that pays for a GPU waits for a CPU",
    ),
    Mutant(
        "real: a broken gradient of another process is not seen",
        "drlib/training/trl.py",
        'return ranks.sum({"broken": float(not own)})["broken"] == 0',
        "return bool(own)",
        ("tests/test_training_finite.py::test_non_finite_gradient_of_another_rank_counts",),
        "processes that share a model take different steps",
    ),
    Mutant(
        "real: padding rows are trained on",
        "drlib/training/grpo_trl.py",
        '"weight": [0.0 if row is None else row.weight for row in rows],',
        '"weight": [1.0 if row is None else row.weight for row in rows],',
        (FIRST,),
        "rows that fill TRL's batch count in the denominator",
    ),
    Mutant(
        "real: probes and limits of a stage are ignored",
        "drlib/training/grpo_trl.py",
        "            self.agent = self.build_agent(state.config)\n",
        "            pass\n",
        (f"{REAL}::test_curriculum_stages_change_limits_and_reset_the_optimizer",),
        "the first stages roll out as long as the last",
    ),
]
