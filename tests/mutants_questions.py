"""Mutants of training questions: question_scheduler.py and others (see `tests.mutants`)."""

from tests.mutants import Mutant

QUESTIONS = "tests/test_training_questions.py"
ASKING = "tests/test_training_question_scheduling.py"
LOOP = "tests/test_training_grpo.py"
EXCHANGE = f"{ASKING}::test_curation_replaces_settled_questions"
STAGES = f"{ASKING}::test_stage_limits_and_reset_in_the_loop"
TWO = f"{ASKING}::test_two_processes_are_bit_identical_to_one"

MUTANTS = [
    # ------------------------------------------------------------ sources and kinds
    Mutant(
        "questions: the curriculum although there is none",
        "drlib/training/question_scheduler.py",
        'if curriculum is None or self.config.rl.curriculum.weighting == "none":',
        "if curriculum is None:",
        (f"{QUESTIONS}::test_kinds_are_drawn_evenly_without_weighting",),
        "the control of the curriculum is the curriculum",
    ),
    Mutant(
        "questions: a mixture by chance",
        "drlib/training/question_scheduler.py",
        "        if self.mixture is None:\n            return [None] * n\n",
        "        if n:\n            return [None] * n\n",
        (f"{QUESTIONS}::test_exact_mixture_meets_its_shares_in_every_step",),
        "the shares are met in the mean only",
    ),
    Mutant(
        "questions: sources in a fixed order",
        "drlib/training/question_scheduler.py",
        "        rng.shuffle(sources)\n",
        "        sources.sort()\n",
        (f"{QUESTIONS}::test_exact_mixture_meets_its_shares_in_every_step",),
        "one agent of two gets all the sums",
    ),
    Mutant(
        "questions: trails beside the other shares",
        "drlib/training/question_scheduler.py",
        "PYTHON: (1 - trails) * sums,",
        "PYTHON: sums,",
        (f"{QUESTIONS}::test_source_shares_are_exact",),
        "the exact shares are not those that chance has in the mean",
    ),
    Mutant(
        "questions: the worlds of sources exchanged",
        "drlib/training/question_scheduler.py",
        "return FICTIONAL if task.world in worlds else REAL",
        "return REAL if task.world in worlds else FICTIONAL",
        (f"{ASKING}::test_loop_with_exact_mixture_logs_accuracy_by_source",),
        "the accuracy of invented worlds is told as the real one's",
    ),
    Mutant(
        "questions: a second draw repeats the first",
        "drlib/training/question_scheduler.py",
        '(f"-{again}" if again else "")',
        '""',
        (f"{QUESTIONS}::test_second_draw_of_a_step_has_new_questions",),
        "dynamic sampling asks the same questions until they are live",
    ),
    # ------------------------------------------------------------ a fixed set
    Mutant(
        "pool: the same question twice",
        "drlib/training/question_scheduler.py",
        "                if task.id not in found:\n",
        "                if task:\n",
        (f"{QUESTIONS}::test_pool_has_even_kinds_and_unique_questions",),
        "a pool is smaller than it says",
    ),
    Mutant(
        "epochs: twice in a step",
        "drlib/rl/curriculum.py",
        "return sorted(order, key=lambda q: q in just_drawn)",
        "return order",
        (f"{QUESTIONS}::test_pool_is_seeded_and_drawn_in_epochs",),
        "two groups of one question in a batch",
    ),
    Mutant(
        "epochs: always the same order",
        "drlib/rl/curriculum.py",
        "random.Random(f\"epoch-{self.seed}-{self.state['epoch']}\")",
        'random.Random(f"epoch-{self.seed}")',
        (f"{QUESTIONS}::test_pool_is_seeded_and_drawn_in_epochs",),
        "batches are made of the same questions in every epoch",
    ),
    Mutant(
        "epochs: begun anew after a kill",
        "drlib/training/grpo.py",
        '"questions": self.scheduler.state_dict(),',
        '"questions": {},',
        (f"{LOOP}::test_resumed_run_is_bit_identical[curation and stages]",),
        "a resumed run asks other questions than it would have",
    ),
    # ------------------------------------------------------------ curation
    Mutant(
        "curation: what is left is asked on",
        "drlib/training/question_selection.py",
        '        self.questions.epochs.keep(self.curation.state["active"])\n        return {',
        "        return {",
        (EXCHANGE,),
        "a refresh exchanges questions that nobody notices",
    ),
    Mutant(
        "curation: the step is not observed",
        "drlib/training/question_selection.py",
        "        self.curation.observe((name, solved) for name, _, solved in outcomes)\n",
        "",
        (EXCHANGE,),
        "mastered and hopeless questions stay for ever",
    ),
    Mutant(
        "curation: tries what is asked anyway",
        "drlib/training/question_selection.py",
        "[name for name in in_turn if name not in active][:few]",
        "[name for name in in_turn if name in active][:few]",
        (EXCHANGE,),
        "nothing ever enters the active set",
    ),
    Mutant(
        "curation: the tries behind the steps start anew",
        "drlib/training/question_selection.py",
        "            self._next = known.index(some[-1]) + 1\n",
        "            self._next = 0\n",
        (EXCHANGE,),
        "one question of the rest is tried again and again",
    ),
    Mutant(
        "curation: tries with the step's own random numbers",
        "drlib/training/question_selection.py",
        '            seed=step_seed(f"{config.seed}-probe-{why}", step),\n',
        "",
        (EXCHANGE,),
        "a try is the copy of a rollout that is trained on",
    ),
    Mutant(
        "curation: a fault counts as an answer",
        "drlib/training/question_selection.py",
        "return trajectory.reward is not None",
        "return True",
        (f"{ASKING}::test_unjudged_rollouts_are_no_outcome",),
        "a broken search engine makes questions hopeless",
    ),
    Mutant(
        "curation: outcomes of one process",
        "drlib/training/question_selection.py",
        "outcomes = sorted(self.ranks.gather(own))",
        "outcomes = sorted(own)",
        (TWO,),
        "two processes ask different questions",
    ),
    Mutant(
        "curation: tries of one process",
        "drlib/training/question_selection.py",
        "for name, right in ranks.gather(\n            [",
        "for name, right in list(\n            [",
        (TWO,),
        "a process knows half of the solve rates",
    ),
    Mutant(
        "curation: the cost of one process",
        "drlib/training/question_selection.py",
        "for name, n in ranks.sum(cost).items()",
        "for name, n in cost.items()",
        (TWO,),
        "a comparison at equal rollouts is not one",
    ),
    Mutant(
        "curation: begun anew after a kill",
        "drlib/training/grpo.py",
        '            self.callbacks.load_state_dict(extra["callbacks"])\n',
        "",
        (f"{LOOP}::test_resumed_run_is_bit_identical[curation and stages]",),
        "a resumed run begins its stages and its curation again",
    ),
    # ------------------------------------------------------------ stages
    Mutant(
        "stages: the limits stay",
        "drlib/training/grpo.py",
        "            self.agent = self.build_agent(state.config)\n",
        "            pass\n",
        (STAGES,),
        "the first stage's contexts are as long as the last one's",
    ),
    Mutant(
        "stages: no fresh start",
        "drlib/training/question_selection.py",
        "            trainer.learner.restart()\n",
        "            pass\n",
        (STAGES,),
        "the last stage has the momentum and the reference of the ones before",
    ),
    Mutant(
        "stages: easy questions, too",
        "drlib/training/question_selection.py",
        "        self.questions.epochs.keep(hard)\n",
        "",
        (f"{ASKING}::test_third_stage_drops_solved_questions_and_resets",),
        "the last stage is one of its limits alone",
    ),
    Mutant(
        "stages: tried under the limits before",
        "drlib/training/question_selection.py",
        'self._keep_hard(self._probe(list(self.questions.pool), config, step, "stage"))',
        "self._keep_hard(self._probe(list(self.questions.pool), self.config.derive("
        'rollout.max_calls=1), step, "stage"))',
        (f"{ASKING}::test_third_stage_drops_solved_questions_and_resets",),
        "what more calls would solve counts as hard",
    ),
]
