"""Mutants of asynchronous training (see `tests.mutants`)."""

from tests.mutants import Mutant

POOL = "drlib/training/rollout_pool.py"
ENGINE = "drlib/models/local_engine.py"
ASYNCHRONOUS = "tests/test_training_asynchronous.py::"
WEIGHTS = "tests/test_models_local_engine_weights.py::"
LOGPROBS = f"{WEIGHTS}test_each_token_has_the_logprob_of_the_policy_of_its_version"

MUTANTS = [
    Mutant(
        "asynchronous: running contexts keep keys and values of old weights",
        ENGINE,
        "        self._forget(np.arange(len(self.state)))\n",
        "",
        (LOGPROBS,),
        "log-probabilities would be those of no policy",
    ),
    Mutant(
        "asynchronous: rows that have sampled are copied as fresh prompts",
        ENGINE,
        "                self.prompt_number[request] = -2 - request\n",
        "                pass\n",
        (LOGPROBS,),
        "a rollout would continue with another one's text",
    ),
    Mutant(
        "asynchronous: tokens have the version of the beginning",
        ENGINE,
        "            if self.has_new_weights:\n",
        "            if False:\n",
        (LOGPROBS, f"{WEIGHTS}test_parked_rows_are_read_again"),
        "ages and ratios would be wrong",
    ),
    Mutant(
        "asynchronous: admission ignores running groups",
        "drlib/rl/staleness.py",
        "(max_lag + version + 1) * batch - accepted - running)",
        "(max_lag + version + 1) * batch - accepted)",
        ("tests/test_rl_staleness.py::test_admission_bounds_the_age",),
        "groups would be trained older than allowed",
    ),
    Mutant(
        "asynchronous: the learner does not wait for groups that become too old",
        POOL,
        "if len(self._finished) >= wanted and not self._is_any_due():",
        "if len(self._finished) >= wanted:",
        (f"{ASYNCHRONOUS}test_the_learner_waits_for_a_slow_actor",),
        "groups of a slow actor would be trained too late",
    ),
    Mutant(
        "asynchronous: the job of a dead actor is lost",
        POOL,
        "        self._waiting.appendleft(name)\n",
        "",
        (f"{ASYNCHRONOUS}test_killed_actors_lose_and_repeat_nothing",),
        "questions would be missing, and the learner would wait forever",
    ),
    Mutant(
        "asynchronous: a checkpoint forgets what was drawn",
        POOL,
        '                "untrained": [list(ticket) for ticket in sorted(self._untrained)],\n',
        '                "untrained": [],\n',
        (f"{ASYNCHRONOUS}test_a_killed_learner_resumes_without_losing_a_question",),
        "questions in progress would be lost when the learner dies",
    ),
]
