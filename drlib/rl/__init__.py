"""From trajectories to gradients: pure functions.

In the order in which a batch of rollouts goes through them:

    curriculum   which questions to ask next
    rewards      what a trajectory is worth
    resampling   which rollouts of a group to keep (GRPO-RoC, DAPO, DUPO)
    filtering    which of them may enter the loss, which the baseline
    advantages   how much better each was than its siblings
    losses       the policy gradient, every choice in it a switch; `clips`, `divergences` and
                 `loss_metrics` have its parts, `distillation` gives it a teacher's advantages
    stability    controllers that watch a run; `staleness` is about the age of rollouts

Tensors and records come in, tensors and metrics go out; there is no model, no optimiser and no
file here, so that the local loop, a TRL trainer, the notebooks and the tests share one copy.
"""
