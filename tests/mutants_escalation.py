"""Mutants of questions made harder round by round: drlib/questions/escalation.py (see
`tests.mutants`)."""

from tests.mutants import Mutant

ESCALATION = "drlib/questions/escalation.py"
TESTS = "tests/test_questions_escalation.py"
HARDER = f"{TESTS}::test_easy_questions_are_upgraded_with_the_same_answer"

MUTANTS = [
    Mutant(
        "escalation: easy questions are not made harder",
        ESCALATION,
        "                waiting += [harder] if harder else []\n",
        "                waiting += [task] if harder else []\n",
        (HARDER,),
        "the same question is rated again",
    ),
    Mutant(
        "escalation: the target rate is ignored",
        ESCALATION,
        "            why = check_gates(task, easy)\n",
        "            why = check_gates(task)\n",
        (f"{TESTS}::test_questions_below_the_easy_rate_are_kept",),
        "questions of the target difficulty are dropped",
    ),
    Mutant(
        "escalation: duplicate queries are kept",
        ESCALATION,
        "        asked.add(text)\n",
        "        asked.discard(text)\n",
        (f"{TESTS}::test_queries_are_unique_and_results_are_cached",),
        "duplicates in the set",
    ),
    Mutant(
        "escalation: earlier upgrades are forgotten",
        ESCALATION,
        "            done.stages[harder.id] = (*done.stages[task.id], stage)\n",
        "            done.stages[harder.id] = (stage,)\n",
        (HARDER,),
        "a question of three upgrades records only one",
    ),
]
