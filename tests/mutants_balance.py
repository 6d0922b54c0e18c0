"""The faults of experts that are balanced by biases (see `tests.mutants`)."""

from tests.mutants import Mutant

BIAS = "tests/test_models_router_bias.py"
STAGES = "tests/test_training_stages.py"
ROUTER = "drlib/models/router_bias.py"

MUTANTS = [
    Mutant(
        "bias: full experts are filled",
        ROUTER,
        "router.bias_E -= rate * excess_E.sign()",
        "router.bias_E += rate * excess_E.sign()",
        (f"{BIAS}::test_bias_updates_balance_the_load",),
        "all tokens would end in the same experts",
    ),
    Mutant(
        "bias: a gate knows it",
        ROUTER,
        "return logits_NE, compute_gates(self, logits_NE, experts_NK), experts_NK",
        "return logits_NE, compute_gates(self, logits_NE + self.bias_E, experts_NK), experts_NK",
        (f"{BIAS}::test_bias_affects_selection_but_not_gates",),
        "the bias would disturb the gradient, which it is there to leave alone",
    ),
    Mutant(
        "bias: scored tokens are counted",
        ROUTER,
        "        if self.training and torch.is_grad_enabled():\n",
        "        if True:\n",
        (f"{BIAS}::test_only_training_passes_count_as_load",),
        "evaluations and old policies would move the policy",
    ),
    Mutant(
        "bias: counting goes on",
        ROUTER,
        "        router.load_E = None\n    return torch.stack(loads)",
        "    return torch.stack(loads)",
        (f"{BIAS}::test_only_training_passes_count_as_load",),
        "the biases would follow all tokens since the beginning",
    ),
    Mutant(
        "bias: of one rank's tokens",
        "drlib/training/balance.py",
        "    (load_LE,) = all_sum([pop_expert_load(model)])",
        "    load_LE = pop_expert_load(model)",
        (f"{STAGES}::test_two_processes_are_bit_identical_to_one",),
        "each rank would train another policy",
    ),
    Mutant(
        "bias: the engine has none",
        "drlib/models/compiled_decoder.py",
        'w.get("router_bias", self.no_bias_E).numpy()',
        "self.no_bias_E.numpy()",
        (f"{BIAS}::test_engine_samples_with_the_latest_biases",),
        "rollouts would be of another policy than the one that learns",
    ),
    Mutant(
        "bias: lost on the way to the next stage",
        "drlib/models/moe.py",
        "architecture = RouterBiasForCausalLM if is_biased else Qwen3MoeForCausalLM",
        "architecture = Qwen3MoeForCausalLM",
        (f"{BIAS}::test_checkpoint_keeps_biases_and_needs_drlib",),
        "a stage would send tokens elsewhere than the one before it",
    ),
    Mutant(
        "bias: the balance loss knows none",
        "drlib/training/packing.py",
        "balance_loss(router_logits, k, get_router_biases(model), batch.times())",
        "balance_loss(router_logits, k, None, batch.times())",
        (f"{BIAS}::test_balance_loss_counts_biased_selections",),
        "the loss would be of a load that nobody has",
    ),
    Mutant(
        "bias: RL does not move it",
        "drlib/training/learner.py",
        "                row |= balance_experts(self.model, config.trainer.router_bias_rate)\n",
        "",
        (f"{BIAS}::test_rl_step_updates_biases_and_the_engine",),
        "the setting would do nothing in RL",
    ),
]
