"""The faults of rewards as data, thresholds, the service and learned rewards (`tests.mutants`)."""

from tests.mutants import Mutant

BY_TASK = "tests/test_rewards_by_task.py"
SERVICE = "tests/test_rewards_service.py"
ENTITIES = "tests/test_rewards_entity_credit.py"
PROGRAMS = "tests/test_rewards_code_tests.py"
RUBRICS = "tests/test_rewards_rubrics.py"
OUTCOMES = "tests/test_rewards_outcome_model.py"
COMBINED = "drlib/rewards/combined.py"

MUTANTS = [
    Mutant(
        "threshold: a share belongs to the next pair",
        COMBINED,
        "if done <= share)",
        "if done < share)",
        (f"{BY_TASK}::test_boundaries_of_v_triunes_schedule",),
        "the threshold would rise one step too early",
    ),
    Mutant(
        "threshold: training never proceeds",
        "drlib/training/rollouts.py",
        'trajectory.metadata["progress"] = step / config.rl.steps',
        'trajectory.metadata["progress"] = 0.0',
        (f"{BY_TASK}::test_rollouts_of_training_carry_the_share_of_steps_done",),
        "near misses would be paid until the end",
    ),
    Mutant(
        "by task: the run's reward judges every task",
        COMBINED,
        "make_verifier(task.verifier) if task.verifier else",
        "make_verifier(task.verifier) if not task.verifier else",
        (f"{BY_TASK}::test_each_task_is_judged_by_its_own_verifier",),
        "a task's verifier would be ignored",
    ),
    Mutant(
        "sets: repeated items count",
        "drlib/rewards/judges.py",
        "            left.remove(same)\n    return 2 * (len(wanted)",
        "            left.pop()\n    return 2 * (len(wanted)",
        (f"{BY_TASK}::test_f1_of_items",),
        "one item written often would be a complete list",
    ),
    Mutant(
        "service: an error is a score of 0",
        "drlib/rewards/reward_service.py",
        'return {"error": "raised", "message"',
        'return {"value": 0.0, "parts": {}, "message"',
        (f"{SERVICE}::test_errors_of_a_verifier_name_the_sample",),
        "a broken verifier would punish the policy",
    ),
    Mutant(
        "service: samples change places",
        "drlib/rewards/remote_reward.py",
        '{**rows[i], "id": i} for i in missing',
        '{**rows[-1 - i], "id": i} for i in missing',
        (f"{SERVICE}::test_http_equals_in_process",),
        "rollouts would get the rewards of others",
    ),
    Mutant(
        "service: a lost connection is not retried",
        "drlib/rewards/remote_reward.py",
        "if time.monotonic() + pause_s > end:",
        "if True:",
        (f"{SERVICE}::test_200_clients_while_the_service_is_killed_and_restarted",),
        "a restart would lose samples",
    ),
    Mutant(
        "service: a rollout without an answer gets 0",
        "drlib/rewards/remote_reward.py",
        "            return RewardResult(None)\n\n    vars(judge)",
        "            return RewardResult(0.0)\n\n    vars(judge)",
        (f"{SERVICE}::test_rollouts_are_excluded_while_the_service_is_down",),
        "an outage would punish the policy",
    ),
    Mutant(
        "entity credit: answers are thoughts",
        "drlib/rewards/entity_credit.py",
        'r"<(tool_call|answer)>',
        'r"<(tool_call)>',
        (f"{ENTITIES}::test_share_of_entities_named_in_thoughts",),
        "a wrong answer could be a list of names",
    ),
    Mutant(
        "entity credit: the group is ignored",
        "drlib/rewards/entity_credit.py",
        "t.reward / most if",
        "t.reward if",
        (f"{ENTITIES}::test_credit_is_relative_to_the_best_of_the_group",),
        "the credit would depend on the length of the chain",
    ),
    Mutant(
        "code tests: a fault of the sandbox is a failed test",
        "drlib/rewards/code_tests.py",
        "if any(result.env_fault for result in done):",
        "if False:",
        (f"{PROGRAMS}::test_sandbox_faults_are_not_judged",),
        "a broken sandbox would punish the policy",
    ),
    Mutant(
        "code tests: any printed line counts",
        "drlib/rewards/code_tests.py",
        'result.ok and is_same_value(result.stdout.rstrip("\\n").rpartition("\\n")[2], expected)',
        'result.ok and expected in result.stdout.split("\\n")',
        (f"{PROGRAMS}::test_cheats_pass_no_complete_test_set",),
        "a program could print all values that it can think of",
    ),
    Mutant(
        "rubrics: criteria without discrimination count",
        "drlib/rewards/rubrics.py",
        "[spread_R[order_R] > 0]",
        "[spread_R[order_R] >= 0]",
        (f"{RUBRICS}::test_group_drops_criteria_without_discrimination",),
        "the differences would shrink with every criterion that all meet",
    ),
    Mutant(
        "outcome model: pairs of different questions",
        "drlib/training/reward_model.py",
        "groups[trajectory.group_id][side]",
        "groups[''][side]",
        (f"{OUTCOMES}::test_pairs_are_of_one_question",),
        "the model would learn which questions are easy",
    ),
    Mutant(
        "open answer: a worse answer than the correct one is paid",
        "drlib/rewards/outcome_model.py",
        "max(given - correct, 0.0)",
        "abs(given - correct)",
        (f"{OUTCOMES}::test_reward_of_open_answers_by_hand",),
        "the reward would grow with the distance in both directions",
    ),
    Mutant(
        "gate: the other terms pay wrong answers",
        COMBINED,
        "first.value * (1 - share + share * others.value)",
        "first.value * (1 - share) + share * others.value",
        (f"{OUTCOMES}::test_no_wrong_answer_outranks_a_right_one_through_the_gate",),
        "a wrong rollout could outrank a right one",
    ),
]
