"""policy: the Mixture-of-Experts policy and what generates from it.

`moe` builds, initialises, saves and loads the model; `engine` generates from it.
"""
