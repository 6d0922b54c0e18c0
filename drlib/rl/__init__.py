"""Policy-gradient reinforcement learning as pure functions: tensors and records in, tensors out.

In the order in which a batch of rollouts passes through them:

    curriculum   select questions and rollout limits
    resampling   keep or repeat rollouts of a group (GRPO-RoC, DAPO, DUPO)
    filtering    exclude rollouts from the loss or from the baseline
    advantages   compare each rollout with the other rollouts of its group
    losses       PPO, GSPO, CISPO, double-sided IS; with `clips`, `divergences`, `distillation`
    staleness    age limits and replay of older rollouts
    stability    KL control, reference resets, drift detection, emergency stop

There is no model, optimizer or file access here, so the local trainer, the TRL trainer, notebooks
and tests share one implementation. Rewards are in `drlib.rewards`.
"""
