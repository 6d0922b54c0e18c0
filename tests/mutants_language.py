"""The faults of questions in sentences: drlib/synthesis/sentences.py, phrases.py and read_back.py
(see `tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_synthesis_sentences.py"
WORDS = f"{TESTS}::test_a_query_in_words_and_back"
PLAIN = "tests/test_synthesis_plainness.py"
PLAINNESS = "drlib/synthesis/plainness.py"
SENTENCES = "drlib/synthesis/sentences.py"

MUTANTS = [
    Mutant(
        "sentences: what is excepted is not said",
        SENTENCES,
        "        if excluded is None:\n            return text\n",
        "        if text:\n            return text\n",
        (WORDS,),
        "the question has other answers than its query",
    ),
    Mutant(
        "sentences: every look-up back and forth is a likeness",
        SENTENCES,
        "    if isinstance(of, Proj) and query.relation == inverse(of.relation):\n",
        "    if isinstance(of, Proj):\n",
        (WORDS,),
        "the relation in the middle is lost",
    ),
    Mutant(
        "sentences: a few years are a decade",
        SENTENCES,
        "low % 10 == 0 and high == low + 9:",
        "low % 10 == 0:",
        (f"{TESTS}::test_a_decade_is_a_whole_one",),
        "a range is said wider than it is",
    ),
    Mutant(
        "sentences: what two steps found is called alike",
        SENTENCES,
        "            if nouns.count(step.noun) == 1:\n",
        "            if nouns:\n",
        (f"{TESTS}::test_two_steps_of_one_noun_are_told_apart_by_their_place",),
        "a sentence has two meanings",
    ),
    Mutant(
        "sentences: the deepest condition comes first",
        SENTENCES,
        "key=lambda part: (clauses(part), self.ends_in_a_clause(part)))",
        "key=lambda part: (-clauses(part), self.ends_in_a_clause(part)))",
        (WORDS,),
        "a clause hangs on the wrong noun",
    ),
    Mutant(
        "sentences: the latest for the earliest",
        SENTENCES,
        "        rank = ranks_of(label)[query.most]\n",
        "        rank = ranks_of(label)[not query.most]\n",
        (WORDS,),
        "the opposite is asked for",
    ),
    Mutant(
        "phrases: two things are called alike",
        "drlib/synthesis/phrases.py",
        """            found[f'"{title}"' if name in found else name] = title\n""",
        "            found[name] = title\n",
        (f"{TESTS}::test_no_two_names_are_said_alike",),
        "a name has two meanings",
    ),
    Mutant(
        "engine: readers get the words of a tiny policy",
        "drlib/synthesis/engine.py",
        '    if told.wording == "brackets":\n',
        '    if told.wording != "brackets":\n',
        (f"{TESTS}::test_the_engine_words_for_readers_or_for_a_small_policy",),
        "the two wordings are exchanged",
    ),
    Mutant(
        "plainness: a condition that leaves one thing tells nothing",
        PLAINNESS,
        "len(evaluate_query(part, book.graph)) < FEW for part in parts",
        "len(evaluate_query(part, book.graph)) > FEW for part in parts",
        (f"{PLAIN}::test_a_public_condition_that_leaves_few_tells_the_answer",),
        "the currency of Greenland says Denmark",
    ),
    Mutant(
        "plainness: names are not compared",
        PLAINNESS,
        "    return any(same_stem(one, two) for one in words for two in others)\n",
        "    return False\n",
        (f"{PLAIN}::test_names_that_share_a_word_tell",),
        "a name that looks like the answer is shown",
    ),
    Mutant(
        "plainness: a language of one land is as good as any",
        PLAINNESS,
        "    is_only_one = bool(book.source) and len(found) == 1",
        "    is_only_one = bool(book.source) and len(found) == 0",
        (f"{PLAIN}::test_a_language_of_one_land_names_it",),
        "a step needs no look-up",
    ),
    Mutant(
        "plainness: people are compared with products",
        PLAINNESS,
        "    return kinds != {book.kind(title) for title in answers} or (",
        "    return kinds == {book.kind(title) for title in answers} or (",
        (f"{PLAIN}::test_a_person_is_not_compared_with_a_product",),
        "a question that nobody asks counts as plain",
    ),
    Mutant(
        "plainness: strange facts are drawn too",
        PLAINNESS,
        'if book.phrases[relation].plain != "never" and',
        'if book.phrases[relation].plain != "" and',
        (f"{PLAIN}::test_plain_questions_are_drawn_from_what_people_ask_by",),
        "few draws are plain",
    ),
    Mutant(
        "sentences: the source hangs on an order",
        SENTENCES,
        '    if sentence.startswith((FIRST, "Name ")):\n',
        '    if sentence.startswith("Find nothing"):\n',
        (WORDS,),
        "nobody names according to CLDR",
    ),
]
