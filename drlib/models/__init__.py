"""Models and engines: the MoE policy, loading of any model, and everything that generates.

moe              build, save and load the policy; load any causal language model
engine           the interface of all engines: SamplingParams, Completion, Engine
local_engine     continuous batching for the policy; decoder, compiled_decoder, kernels,
sampling conversations    base of engines that generate one turn at a time transformers_engine,
vllm_engine, vllm_server, api_engine, scripted_engine packed           the trainer's forward
pass over packed samples chunked_logprobs log-probabilities over large vocabularies without an N
x V tensor router_bias      loss-free load balancing routing_replay   record and replay of
expert routes
"""
