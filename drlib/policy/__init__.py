"""policy: the Mixture-of-Experts policy and what generates from it.

`moe` builds, initialises, saves and loads the model; `decoder` is its forward pass over a
key-value cache; `engine` schedules many requests over that cache and draws their tokens.
`replay` records which experts each token went to and makes another engine follow; `kernels`
computes log-probabilities over a large vocabulary without ever holding all the logits.
"""
