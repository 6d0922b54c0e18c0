"""policy: the Mixture-of-Experts policy and what generates from it.

`moe` builds, initialises, saves and loads the model; `decoder` is its forward pass over a
key-value cache, `compiled` the same on a CPU, with the `loops` that numba compiles for it; `engine`
schedules many requests over that cache, and `sampling` draws their tokens. `hf`,
`vllm`, `vllm_server` and `api` are engines over other libraries and servers, `protocol` is what all
have in common, `turns` what lies between the turns of those that generate one at a time;
`model_chat` is the chat of any model, as its own template has it.
`replay` records which experts each token went to and makes another engine follow; `kernels`
computes log-probabilities over a large vocabulary without ever holding all the logits.
"""
