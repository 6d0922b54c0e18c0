"""Mutants of offline RL and of the temperature at forking tokens (see `tests.mutants`)."""

from tests.mutants import Mutant

STORED = "tests/test_training_stored_rollouts.py"
FORKS = "tests/test_models_forks.py"
LOSSES = "tests/test_rl_losses.py"
ADVANTAGES = "tests/test_rl_advantages.py"

MUTANTS = [
    Mutant(
        "offline: stored rollouts count as on-policy",
        "drlib/training/learner.py",
        " or bool(off_policy.rollouts)",
        "",
        (f"{STORED}::test_second_epoch_is_corrected_for_the_changed_policy",),
        "later passes over the data would have no importance weight and no clip",
    ),
    Mutant(
        "offline: every shard takes all groups",
        "drlib/training/stored_rollouts.py",
        "for i in ranks.assign(len(names), shard) for t",
        "for i in range(len(names)) for t",
        (f"{STORED}::test_groups_are_used_once_per_epoch",),
        "a group would be in the loss once per shard",
    ),
    Mutant(
        "offline: unknown log-probabilities are accepted",
        "drlib/training/stored_rollouts.py",
        "bool(np.isfinite(trajectory.logprobs[own_T]).all())",
        "True",
        (f"{STORED}::test_bad_row_is_named_with_its_file",),
        "a run would stop at a NaN far from its cause",
    ),
    Mutant(
        "reward-weighted cloning: the sign",
        "drlib/rl/advantages.py",
        "scaled = ((kept - kept.max()) / beta).exp()",
        "scaled = ((kept.min() - kept) / beta).exp()",
        (f"{ADVANTAGES}::test_weights_of_cloning_by_hand",),
        "failures would be cloned",
    ),
    Mutant(
        "cloning: the likelihood is weighted by the ratio",
        "drlib/rl/clips.py",
        "    return advantages_BT * logp_BT\n",
        "    return log_ratio_BT.exp() * advantages_BT\n",
        (f"{LOSSES}::test_log_likelihood_ignores_the_behaviour_policy",),
        "cloning would neglect what the policy does not do yet",
    ),
    Mutant(
        "forks: the log-probability is that of the other temperature",
        "drlib/models/sampling.py",
        "torch.log_softmax(logits_MV / (temperature or 1.0), -1)",
        "torch.log_softmax(logits_MV / forks.temperature, -1)",
        (f"{FORKS}::test_recorded_log_probabilities_are_the_training_policys",),
        "rollouts would differ from the policy that the loss computes",
    ),
    Mutant(
        "forks: the other tokens are drawn again",
        "drlib/models/sampling.py",
        "at = np.flatnonzero(entropies_N >= forks.entropy)",
        "at = np.flatnonzero(entropies_N < forks.entropy)",
        (f"{FORKS}::test_only_forks_are_drawn_again_and_keep_the_policys_log_probability",),
        "sure tokens would become random",
    ),
]
