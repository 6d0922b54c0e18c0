"""From trajectories to gradients: pure functions.

rewards -> filtering -> advantages -> losses, in the order in which a batch of rollouts goes through
them. Tensors and records come in, tensors and metrics go out; there is no model, no optimiser and
no file here, so that the local loop, a TRL trainer, the notebooks and the tests share one copy.
"""
