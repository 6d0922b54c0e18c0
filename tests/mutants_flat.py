"""The faults of samples end to end: the pass, the head (see `tests.mutants`)."""

from tests.mutants import Mutant

BATCHES = "tests/test_training_batches.py"
GRADIENT = "tests/test_training_gradient.py"

MUTANTS = [
    Mutant(
        "flat pass: samples see each other",
        "drlib/policy/flat.py",
        "sample_lengths=list(lengths),",
        "sample_lengths=[sum(lengths)],",
        (BATCHES,),
        "a rollout is scored behind another one's text",
    ),
    Mutant(
        "flat pass: attention sees what comes",
        "drlib/policy/flat.py",
        "is_causal=True",
        "is_causal=False",
        (BATCHES,),
        "every token is read before it is predicted",
    ),
    Mutant(
        "flat pass: experts weigh the same",
        "drlib/policy/flat.py",
        "inner = module.act_fn(gate) * up * gates_Nk.reshape(-1)[order_M, None]",
        "inner = module.act_fn(gate) * up * 0.5",
        (BATCHES,),
        "the router has no gradient and no say",
    ),
    Mutant(
        "flat pass: the model keeps it",
        "drlib/policy/flat.py",
        "        config._attn_implementation, config._experts_implementation = before\n",
        "        pass\n",
        (BATCHES,),
        "the next caller of the model is told of samples that it did not pass",
    ),
    Mutant(
        "frugal head: forgets the temperature",
        "drlib/training/batches.py",
        "token_logprobs(hidden_MH, head.weight, ids_M, temperature=temperature)",
        "token_logprobs(hidden_MH, head.weight, ids_M)",
        (BATCHES,),
        "the same setting would learn something else with the other head",
    ),
    Mutant(
        "frugal head: the setting is not read",
        "drlib/training/gradient.py",
        "config.rl_temperature, config.rl_frugal_head)",
        "config.rl_temperature)",
        (GRADIENT,),
        "the setting would save no memory",
    ),
    Mutant(
        "flat pass: a sample's first token is scored",
        "drlib/training/batches.py",
        "    scored_N[starts_B] = False\n",
        "",
        (BATCHES,),
        "the first token is predicted from another sample's last one",
    ),
]
