"""From trajectories to gradients: pure functions, in the order in which a batch goes through them.

    curriculum   which questions to ask next
    rewards      what a trajectory is worth
    resampling   which rollouts of a group to keep (GRPO-RoC, DAPO, DUPO)
    filtering    which of them may enter the loss, which the baseline
    advantages   how much better each was than its siblings
    losses       the policy gradient, and losses that imitate; `divergences` has its parts
    stability    controllers that watch a run; `staleness` is about the age of rollouts

There is no model, no optimiser and no file here: the local loop, TRL, notebooks and tests share it.
"""
