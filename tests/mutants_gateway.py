"""Mutants of external agents and their gateway (see `tests.mutants`)."""

from tests.mutants import Mutant

GATEWAY = "tests/test_training_gateway.py"
EXTERNAL, QUEUE = "drlib/agents/external.py", "drlib/agents/request_queue.py"

MUTANTS = [
    Mutant(
        "gateway: text instead of recorded ids",
        EXTERNAL,
        "            turn = next(shared, None) or self._find_turn(message)\n",
        "            turn = next(shared, None)\n",
        (f"{GATEWAY}::test_branches_and_rewritten_histories_keep_ids_and_train_a_turn_once",),
        "a rewritten history is read with other ids and without the thoughts",
    ),
    Mutant(
        "gateway: every request starts a context",
        EXTERNAL,
        "        if continued:\n",
        "        if continued and not messages:\n",
        (f"{GATEWAY}::test_sampled_ids_are_kept_although_the_text_has_others",),
        "the history is read again in every turn, and turns of one context become several samples",
    ),
    Mutant(
        "gateway: the turns of another branch",
        EXTERNAL,
        "closest = max(same, key=",
        "closest = min(same, key=",
        (f"{GATEWAY}::test_branch_keeps_the_turns_of_the_context_that_it_shares",),
        "a branch gets thoughts of other turns",
    ),
    Mutant(
        "gateway: the first of equal contexts is continued",
        EXTERNAL,
        "    return turns, exact\n",
        "    return turns, 0\n",
        (f"{GATEWAY}::test_equal_messages_of_different_turns_are_told_apart",),
        "a turn is appended to a history that the agent did not mean",
    ),
    Mutant(
        "gateway: calls are told apart by their text only",
        EXTERNAL,
        "exact = self._known.get((message, message.call_ids))",
        "exact = self._known.get((message, ()))",
        (f"{GATEWAY}::test_equal_messages_of_different_turns_are_told_apart",),
        "the thought of another sample is put into the history",
    ),
    Mutant(
        "gateway: known turns are trained again",
        EXTERNAL,
        "        self.parts.append(([*ids], None))\n",
        "        n = len(ids)\n"
        "        self.parts.append(([*ids], Completion([*ids], [0.0] * n, [0.0] * n)))\n",
        (f"{GATEWAY}::test_branches_and_rewritten_histories_keep_ids_and_train_a_turn_once",),
        "a turn counts once per request that contains it",
    ),
    Mutant(
        "gateway: undelivered turns are trained",
        EXTERNAL,
        "            context.forget_turn(ids)\n",
        "            pass\n",
        (f"{GATEWAY}::test_a_turn_that_the_agent_never_got_is_not_trained",),
        "a turn gets the reward of an answer that it had no part in",
    ),
    Mutant(
        "gateway: a repeated request is sampled again",
        QUEUE,
        "            if earlier is not None and (is_retry or earlier.is_lost):\n",
        "            if earlier is not None and is_retry and earlier.is_lost:\n",
        (f"{GATEWAY}::test_a_repeated_request_gets_the_first_reply_and_is_recorded_once",),
        "a lost connection adds a context to the record",
    ),
    Mutant(
        "gateway: an agent's fault is a wrong answer",
        EXTERNAL,
        "            raise RolloutStopped(Termination.ENV_FAULT)\n        return event.answer",
        "            return None\n        return event.answer",
        (f"{GATEWAY}::test_faults_of_agents_are_excluded_and_never_scored",),
        "the policy is punished for a bug of the agent",
    ),
    Mutant(
        "gateway: max_tokens cuts text only",
        EXTERNAL,
        "                token_ids=completion.token_ids[:limit],\n",
        "                token_ids=completion.token_ids,\n",
        (f"{GATEWAY}::test_max_tokens_cuts_the_sample_of_the_unlimited_turn",),
        "tokens are trained that the agent did not read",
    ),
]
