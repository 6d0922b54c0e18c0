"""The faults of questions made harder round by round: drlib/questions/escalation.py (see
`tests.mutants`)."""

from tests.mutants import Mutant

ESCALATION = "drlib/questions/escalation.py"
TESTS = "tests/test_questions_escalation.py"
HARDER = f"{TESTS}::test_what_is_too_easy_comes_back_harder_with_its_answer"

MUTANTS = [
    Mutant(
        "escalation: what is too easy is not made harder",
        ESCALATION,
        "                waiting += [harder] if harder else []\n",
        "                waiting += [task] if harder else []\n",
        (HARDER,),
        "the same question is tried again",
    ),
    Mutant(
        "escalation: the rate that is hard enough is not asked for",
        ESCALATION,
        "            why = check_gates(task, easy)\n",
        "            why = check_gates(task)\n",
        (f"{TESTS}::test_a_rate_that_is_hard_enough_is_kept",),
        "questions that are hard enough are thrown away",
    ),
    Mutant(
        "escalation: a query may be asked twice",
        ESCALATION,
        "        asked.add(text)\n",
        "        asked.discard(text)\n",
        (f"{TESTS}::test_one_query_is_asked_once_and_a_second_run_tries_nothing_again",),
        "duplicates in the set",
    ),
    Mutant(
        "escalation: the upgrades on the way are forgotten",
        ESCALATION,
        "            done.stages[harder.id] = (*done.stages[task.id], stage)\n",
        "            done.stages[harder.id] = (stage,)\n",
        (HARDER,),
        "a question of three upgrades says that it had one",
    ),
]
