"""Faults in the engine and the learner of dense real models."""

from tests.mutants import Mutant

ENGINE = "tests/test_models_dense_decoder.py"
BATCHES = "tests/test_training_packing.py"
STAGES = "tests/test_training_real_local.py"

MUTANTS = [
    Mutant(
        "dense engine: positions turn the other way",
        "drlib/models/dense_decoder.py",
        "first * cos - second * sin, second * cos + first * sin",
        "first * cos + second * sin, second * cos - first * sin",
        (f"{ENGINE}::test_turns_match_transformers",),
        "the engine samples from another model than the trainer trains",
    ),
    Mutant(
        "dense engine: a token does not attend to itself",
        "drlib/models/dense_decoder.py",
        "self.columns[:length] <= positions_N[:, None]",
        "self.columns[:length] < positions_N[:, None]",
        (f"{ENGINE}::test_turns_match_transformers",),
        "every sampled token has a wrong context",
    ),
    Mutant(
        "dense engine: norms of queries and keys are ignored",
        "drlib/models/dense_decoder.py",
        'if "qk_gain" in w:',
        "if False:",
        (f"{ENGINE}::test_turns_match_transformers",),
        "Qwen3 samples from another distribution",
    ),
    Mutant(
        "dense engine: the head is not replaced",
        "drlib/models/dense_decoder.py",
        "        super().load(model)\n        self.head = self._pack(self.head)\n",
        "        old = vars(self).get('head')\n        super().load(model)\n"
        "        self.head = old or self._pack(self.head)\n",
        (f"{ENGINE}::test_update_weights_replaces_every_matrix",),
        "rollouts lag behind the trained policy",
    ),
    Mutant(
        "dense engine: half precision is exact",
        "drlib/models/dense_decoder.py",
        "self.dtype = dtype",
        "self.dtype = torch.float32",
        (f"{ENGINE}::test_bfloat16_is_near_float32",),
        "sampling takes twice as long",
    ),
    Mutant(
        "attention by products: it is not scaled",
        "drlib/models/packed.py",
        "key_1KTD[0].transpose(1, 2), alpha=scaling)",
        "key_1KTD[0].transpose(1, 2))",
        (f"{BATCHES}::test_dense_model_in_bfloat16",),
        "training in bfloat16 follows another gradient",
    ),
    Mutant(
        "attention by products: masks of other rows",
        "drlib/models/packed.py",
        "mask_NT.to(query_KMD.dtype).repeat(heads // groups, 1)",
        "mask_NT.to(query_KMD.dtype).repeat_interleave(heads // groups, 0)",
        (f"{BATCHES}::test_dense_model_in_bfloat16",),
        "tokens see later ones",
    ),
    Mutant(
        "real model: the engine keeps the cold start",
        "drlib/training/grpo.py",
        "        self.engine.update_weights(\n",
        "        _ = (\n",
        (f"{STAGES}::test_every_stage_writes_its_result",),
        "rollouts lag behind the trained policy",
    ),
    Mutant(
        "real model: adapters are ignored",
        "drlib/training/policies.py",
        'require(not faults, "; ".join(faults))',
        "pass",
        (f"{STAGES}::test_settings_that_would_be_ignored_are_rejected",),
        "a run trains all weights although a rank is set",
    ),
    Mutant(
        "real model: the prompt is not stored",
        "drlib/training/model_setup.py",
        "        save_trained_prompt(folder, BRIEF_PROMPT)\n",
        "        pass\n",
        (f"{STAGES}::test_ask_uses_the_prompt_of_the_training",),
        "drlib ask shows the policy a prompt that it has never seen",
    ),
    Mutant(
        "evaluation: the other world is ignored",
        "drlib/evaluation/evaluate.py",
        "    if config.evaluation.world:",
        "    if False:",
        (f"{STAGES}::test_questions_about_another_world",),
        "transfer is measured on the training world",
    ),
    Mutant(
        "mixture: equal titles are one page",
        "drlib/worlds/small.py",
        "if t.casefold() in taken else t for t in titles",
        "if False else t for t in titles",
        ("tests/test_worlds.py::test_merged_worlds_keep_links_and_separate_equal_titles",),
        "facts of two worlds are mixed",
    ),
]
