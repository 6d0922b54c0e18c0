"""The faults of data sets: drlib/synthesis/draws.py, evidence.py, splitting.py and dataset.py
(see `tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_synthesis_dataset.py"

EXPANSION = "tests/test_synthesis_expansion.py"
CLUES = "tests/test_synthesis_clues.py"
ENGINE = "tests/test_synthesis_engine.py"

MUTANTS = [
    Mutant(
        "expansion: what must not be named is named",
        "drlib/synthesis/expansion.py",
        "known_by(title, graph) if row[0].of not in banned]\n    tried",
        "known_by(title, graph)]\n    tried",
        (f"{EXPANSION}::test_an_explanation_is_exact_and_each_condition_is_needed",),
        "a question names what it asks for on the way",
    ),
    Mutant(
        "expansion: a number is as good a clue as a thing",
        "drlib/synthesis/clues.py",
        "[NUMBER_WEIGHT if is_number(part.of) else 1.0 for",
        "[1.0 for",
        (f"{CLUES}::test_numbers_explain_only_where_little_else_does",),
        "questions hang on equal years",
    ),
    Mutant(
        "clues: what is banned is drawn",
        "drlib/synthesis/clues.py",
        "    return sum(map(named.__getitem__, banned.intersection(named)))\n",
        "    return 0\n",
        (f"{CLUES}::test_a_draw_names_nothing_that_is_banned_and_says_when_all_is",),
        "a question names what it asks for on the way",
    ),
    Mutant(
        "clues: a condition that can go stays",
        "drlib/synthesis/clues.py",
        "        if (one ^ lowest | more) not in smaller:\n",
        "        if (one ^ lowest | more) not in smaller and one == lowest:\n",
        (f"{CLUES}::test_no_third_condition_stands_beside_two_that_are_enough",),
        "three conditions where two are enough",
    ),
    Mutant(
        "clues: no page need list an answer",
        "drlib/synthesis/clues.py",
        "[one for one in telling if one & pages] if listed else telling",
        "telling",
        (f"{CLUES}::test_an_answer_is_explained_where_a_page_lists_one_of_its_conditions",),
        "half of all drafts cannot be solved with the tools",
    ),
    Mutant(
        "expansion: a constant stands next to the answer",
        "drlib/synthesis/expansion.py",
        "        near = next_to(answer, graph)\n",
        "        near = NOTHING\n",
        (f"{EXPANSION}::test_a_draft_never_names_the_answer_or_a_thing_on_the_way",),
        "one look at a page instead of three",
    ),
    Mutant(
        "engine: an answer that stands back never comes again",
        "drlib/synthesis/engine.py",
        "                answers += self.standing_back[hops]\n",
        "                pass\n",
        (f"{ENGINE}::test_answers_that_stand_back_come_again",),
        "a small world gives fewer questions than it has",
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
