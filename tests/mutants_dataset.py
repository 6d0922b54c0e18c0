"""The faults of data sets: drlib/synthesis/draws.py, evidence.py, splitting.py and dataset.py
(see `tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_synthesis_dataset.py"

EXPANSION = "tests/test_synthesis_expansion.py"

MUTANTS = [
    Mutant(
        "expansion: what must not be named is named",
        "drlib/synthesis/expansion.py",
        "    if clues.names.isdisjoint(banned):  # mostly\n",
        "    if clues.names:\n",
        (f"{EXPANSION}::test_an_explanation_is_exact_and_each_condition_is_needed",),
        "a question names what it asks for on the way",
    ),
    Mutant(
        "expansion: a number is as good a clue as a thing",
        "drlib/synthesis/expansion.py",
        "1 / NUMBER_WEIGHT if is_number(name) else 1.0 for name",
        "1.0 for name",
        (f"{EXPANSION}::test_with_things_first_few_explanations_begin_with_a_number",),
        "questions hang on equal years",
    ),
    Mutant(
        "dataset: what stands beside a test answer is in training",
        "drlib/synthesis/splitting.py",
        "            near = set().union(*(self._by_name[title] for title in around)) - mine\n",
        "            near = set()\n",
        (f"{TESTS}::test_what_leads_to_a_test_answer_is_not_in_training",),
        "the test's neighbourhood was seen",
    ),
    Mutant(
        "dataset: other names of an answer are other answers",
        "drlib/synthesis/splitting.py",
        "for name in (one.answer, *one.names)}:\n",
        "for name in (one.answer,)}:\n",
        (f"{TESTS}::test_what_leads_to_a_test_answer_is_not_in_training",),
        "a test answer is learnt under another name",
    ),
    Mutant(
        "dataset: what is excepted is no evidence",
        "drlib/synthesis/evidence.py",
        "return facts_used(left, graph, found | excepted) | facts_used(right, graph, excepted)\n",
        "return facts_used(left, graph, found)\n",
        (f"{TESTS}::test_the_facts_by_which_a_question_is_answered",),
        "the evidence does not show why the exception holds",
    ),
    Mutant(
        "dataset: each family has a quota of its own",
        "drlib/synthesis/dataset.py",
        '        answer = normalise_answer(row["answer"])\n',
        '        answer = row["family"] + normalise_answer(row["answer"])\n',
        (f"{TESTS}::test_no_answer_has_more_than_its_share_over_all_families",),
        "a frequent answer is a good guess",
    ),
    Mutant(
        "dataset: a benchmark's questions are counted and kept",
        "drlib/synthesis/dataset.py",
        "    return [row for place, row in enumerate(rows) if place not in known]\n",
        "    return rows\n",
        (f"{TESTS}::test_a_benchmark_s_questions_are_left_out",),
        "the benchmark is learnt by heart",
    ),
    Mutant(
        "dataset: every block of a family is the same",
        "drlib/synthesis/draws.py",
        '    rng = random.Random(f"{family}-{seed}-{block}")\n',
        '    rng = random.Random(f"{family}-{seed}")\n',
        (f"{TESTS}::test_every_family_asks_what_has_one_answer",),
        "a data set ends after one block",
    ),
    Mutant(
        "dataset: what a model knows stays in",
        "drlib/synthesis/dataset.py",
        'if not row.get("closed_book")]',
        'if row.get("closed_book") != 1.0]',
        (f"{TESTS}::test_one_right_try_of_many_is_enough_to_leave_a_question_out",),
        "a question that needs no tool trains tool use",
    ),
    Mutant(
        "dataset: who could not be asked knows nothing",
        "drlib/synthesis/dataset.py",
        '    kept = [row for row in found if row["closed_book"] is not None]\n',
        "    kept = found\n",
        (f"{TESTS}::test_one_right_try_of_many_is_enough_to_leave_a_question_out",),
        "a server that is down makes every question hard",
    ),
]
