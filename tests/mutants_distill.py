"""Mutants of distillation and merging."""

from tests.mutants import Mutant

FULL = "tests/test_rl_distillation.py::"
STAGE = "tests/test_training_distill.py::"
MERGE = "tests/test_training_merge.py::"
SCORED = f"{STAGE}test_samples_are_scored_by_the_teacher_of_their_source"
MUTANTS = [
    Mutant(
        "distill_sign",
        "drlib/rl/distillation.py",
        "(logp_MV - teacher_MV).detach()",
        "(teacher_MV - logp_MV).detach()",
        (f"{FULL}test_full_loss_and_gradient_are_those_of_the_enumerated_kl",),
        "the student moves away from the teacher",
    ),
    Mutant(
        "distill_forward",
        "drlib/rl/distillation.py",
        "(logp_MV.exp() * (logp_MV",
        "(teacher_MV.exp() * (logp_MV",
        (f"{FULL}test_full_loss_and_gradient_are_those_of_the_enumerated_kl",),
        "the loss is weighted by the teacher's probabilities",
    ),
    Mutant(
        "distill_one_teacher",
        "drlib/training/distill.py",
        "teachers = [self.teachers[find_teacher(source, self.teachers)] for source in sources]",
        "teachers = [next(iter(self.teachers.values())) for source in sources]",
        (SCORED,),
        "the first teacher teaches every source",
    ),
    Mutant(
        "distill_full_ignored",
        "drlib/training/learner.py",
        'is_full = share.teachers is not None and config.distill.loss == "full"',
        "is_full = False",
        (SCORED,),
        "distill.loss=full trains on the sampled tokens",
    ),
    Mutant(
        "distill_teacher_order",
        "drlib/training/learner.py",
        "    return torch.cat(found)\n",
        "    return torch.cat(found[::-1])\n",
        (SCORED,),
        "scores belong to tokens of other samples",
    ),
    Mutant(
        "distill_faults_kept",
        "drlib/training/distill.py",
        "split_all_contexts(t for t in shard if not has_env_fault(t))",
        "split_all_contexts(shard)",
        (f"{STAGE}test_environment_faults_are_left_out_and_overlong_rollouts_kept",),
        "the student learns from rollouts in which a tool failed",
    ),
    Mutant(
        "distill_rl_rate",
        "drlib/training/distill.py",
        'for name in ("steps", "questions", "lr")',
        'for name in ("steps", "questions")',
        (f"{STAGE}test_loop_has_the_steps_questions_and_rate_of_distillation",),
        "distill.lr has no effect",
    ),
    Mutant(
        "distill_vocabulary",
        "drlib/training/distill.py",
        "load_model_tokenizer(str(folder)).get_vocab() == vocabulary,",
        "True,",
        (f"{STAGE}test_teacher_with_another_tokenizer_is_refused",),
        "a teacher of another vocabulary scores meaningless tokens",
    ),
    Mutant(
        "policies_by_path",
        "drlib/training/stages.py",
        "own[setting] = _hash_policies(setting, whole)",
        "own[setting] = own[setting]",
        (f"{MERGE}test_weights_and_folders_name_the_run",),
        "changed weights under the same path reuse the old run",
    ),
    Mutant(
        "dare_rescale",
        "drlib/training/merge.py",
        "weights = [weight / density for weight in weights]",
        "weights = list(weights)",
        (f"{MERGE}test_dare_drops_rescales_and_keeps_the_mean",),
        "DARE shrinks the task vectors",
    ),
    Mutant(
        "merge_base",
        "drlib/training/merge.py",
        'plan["base_model"] = str(base)',
        'plan["base_model"] = str(policies[0])',
        (f"{MERGE}test_linear_and_task_arithmetic_by_hand",),
        "task vectors are differences to a specialist",
    ),
]
