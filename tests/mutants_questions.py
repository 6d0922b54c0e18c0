"""Mutants of training questions: question_scheduler.py and others (see `tests.mutants`)."""

from tests.mutants import Mutant

QUESTIONS = "tests/test_training_questions.py"
ASKING = "tests/test_training_question_scheduling.py"
PROCESSES = "tests/test_training_stages.py"
LOOP = "tests/test_training_grpo.py"
EXCHANGE = f"{ASKING}::test_curation_replaces_settled_questions"
STAGES = f"{ASKING}::test_stage_limits_and_reset_in_the_loop"
TWO = f"{PROCESSES}::test_two_processes_are_bit_identical_to_one[curation and replay]"

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
        "questions: a random mixture",
        "drlib/training/question_scheduler.py",
        "        if self.mixture is None:\n            return [None] * n\n",
        "        if n:\n            return [None] * n\n",
        (f"{QUESTIONS}::test_exact_mixture_meets_its_shares_in_every_step",),
        "the shares hold only on average",
    ),
    Mutant(
        "questions: sources in a fixed order",
        "drlib/training/question_scheduler.py",
        "        rng.shuffle(sources)\n",
        "        sources.sort()\n",
        (f"{QUESTIONS}::test_exact_mixture_meets_its_shares_in_every_step",),
        "one of two agents gets all sums",
    ),
    Mutant(
        "questions: trails beside the other shares",
        "drlib/training/question_scheduler.py",
        "PYTHON: others * (1 - trails) * sums,",
        "PYTHON: others * sums,",
        (f"{QUESTIONS}::test_source_shares_are_exact",),
        "the exact shares are not those that chance has in the mean",
    ),
    Mutant(
        "questions: the worlds of sources exchanged",
        "drlib/training/question_scheduler.py",
        "return FICTIONAL if task.world in worlds else REAL",
        "return REAL if task.world in worlds else FICTIONAL",
        (f"{ASKING}::test_loop_with_exact_mixture_logs_accuracy_by_source",),
        "the accuracy of fictional worlds is reported as the real one",
    ),
    Mutant(
        "questions: a second draw repeats the first",
        "drlib/training/question_scheduler.py",
        '(f"-{again}" if again else "")',
        '""',
        (f"{QUESTIONS}::test_second_draw_of_a_step_has_new_questions",),
        "dynamic sampling repeats the same questions",
    ),
    # ------------------------------------------------------------ a fixed set
    Mutant(
        "pool: the same question twice",
        "drlib/training/question_scheduler.py",
        "                if task.id not in found:\n",
        "                if task:\n",
        (f"{QUESTIONS}::test_pool_has_even_kinds_and_unique_questions",),
        "a pool is smaller than stated",
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
        "epochs: restarted after a kill",
        "drlib/training/grpo.py",
        '"questions": self.scheduler.state_dict(),',
        '"questions": {},',
        (f"{LOOP}::test_resumed_run_is_bit_identical[curation, stages, resampling, mixture]",),
        "a resumed run draws other questions",
    ),
    # ------------------------------------------------------------ curation
    Mutant(
        "curation: removed questions are still drawn",
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
        "mastered and unsolvable questions stay for ever",
    ),
    Mutant(
        "curation: active questions are probed",
        "drlib/training/question_selection.py",
        "[name for name in in_turn if name not in active][:few]",
        "[name for name in in_turn if name in active][:few]",
        (EXCHANGE,),
        "nothing ever enters the active set",
    ),
    Mutant(
        "curation: the probing order restarts",
        "drlib/training/question_selection.py",
        "            self._next = known.index(some[-1]) + 1\n",
        "            self._next = 0\n",
        (EXCHANGE,),
        "one remaining question is probed repeatedly",
    ),
    Mutant(
        "curation: probes use the random numbers of the step",
        "drlib/training/question_selection.py",
        '            seed=step_seed(f"{config.seed}-probe-{why}", step),\n',
        "",
        (EXCHANGE,),
        "a probe equals a rollout that is trained on",
    ),
    Mutant(
        "curation: a fault counts as an answer",
        "drlib/training/question_selection.py",
        "return trajectory.reward is not None",
        "return True",
        (f"{ASKING}::test_unjudged_rollouts_are_no_outcome",),
        "a broken search engine makes questions look unsolvable",
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
        "curation: probes of one process",
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
        "curation: restarted after a kill",
        "drlib/training/grpo.py",
        '            self.callbacks.load_state_dict(extra["callbacks"])\n',
        "",
        (f"{LOOP}::test_resumed_run_is_bit_identical[curation, stages, resampling, mixture]",),
        "a resumed run begins its stages and its curation again",
    ),
    # ------------------------------------------------------------ stages
    Mutant(
        "stages: the limits stay",
        "drlib/training/grpo.py",
        "            self.agent = self.build_agent(state.config)\n",
        "            pass\n",
        (STAGES,),
        "the first stage has the limits of the last one",
    ),
    Mutant(
        "stages: the state is not reset",
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
        "stages: probed under the previous limits",
        "drlib/training/question_selection.py",
        'self._keep_hard(self._probe(list(self.questions.pool), config, step, "stage"))',
        "self._keep_hard(self._probe(list(self.questions.pool), self.config.derive("
        'rollout.max_calls=1), step, "stage"))',
        (f"{ASKING}::test_third_stage_drops_solved_questions_and_resets",),
        "questions that need more calls count as hard",
    ),
]
