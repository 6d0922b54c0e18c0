"""The faults of questions in sentences, of fog and of cycles: drlib/synthesis/sentences.py,
clauses.py, phrases.py, read_back.py, families/websailor.py and websailor_v2.py (see
`tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_synthesis_sentences.py"
WORDS = f"{TESTS}::test_a_query_in_words_and_back"
PLAIN = "tests/test_synthesis_plainness.py"
PLAINNESS = "drlib/synthesis/plainness.py"
SENTENCES = "drlib/synthesis/sentences.py"
CLAUSES = "drlib/synthesis/clauses.py"
FOG = "drlib/synthesis/families/websailor.py"
FOGGY = "tests/test_synthesis_websailor.py"

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
        CLAUSES,
        "    if isinstance(of, Proj) and query.relation == inverse(of.relation):\n",
        "    if isinstance(of, Proj):\n",
        (WORDS,),
        "the relation in the middle is lost",
    ),
    Mutant(
        "sentences: a few years are a decade",
        CLAUSES,
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
    Mutant(
        "fog: a clue that fits the same things is fog",
        FOG,
        "    return fact < vague\n",
        "    return fact <= vague\n",
        (f"{FOGGY}::test_only_what_more_things_fit_is_fog",),
        "another name of a thing counts as vague",
    ),
    Mutant(
        "fog: a search is not asked",
        FOG,
        "    return [hit.title for hit in world.search(words, 1)] == [hidden]\n",
        "    return False\n",
        (f"{FOGGY}::test_a_clue_that_a_search_answers_with_what_it_hides_is_none",),
        "one search gives the hidden name",
    ),
    Mutant(
        "fog: seeds of which much is told",
        FOG,
        "    return tuple(title for title in titles if neighbours[title] <= most)\n",
        "    return tuple(title for title in titles if neighbours[title] >= most)\n",
        (f"{FOGGY}::test_rare_seeds_are_the_half_of_which_least_is_told",),
        "questions are about what everybody knows",
    ),
    Mutant(
        "plainness: a name may hold what is shared",
        PLAINNESS,
        "    if any(_names_what_is_shared(part, answers, book) for part in parts):\n"
        "        return True\n",
        "",
        (f"{PLAIN}::test_a_name_that_holds_what_is_shared_tells_it",),
        "waitstatus_to_exitcode tells its parameter",
    ),
    Mutant(
        "phrases: two lands in one name are joined by a sign",
        "drlib/synthesis/phrases.py",
        'title.replace(" & ", " and ")',
        "title",
        (f"{PLAIN}::test_two_lands_in_one_name_are_joined_by_a_word",),
        "no editor would print it",
    ),
    Mutant(
        "fog: initials that nothing of this relation has",
        FOG,
        "        if _initials(title) == short and graph.values(title, fact.relation)\n",
        "        if _initials(title) == short\n",
        (f"{FOGGY}::test_a_name_becomes_initials_that_similar_names_share",),
        "an idle branch keeps the clue from being used",
    ),
    Mutant(
        "cycles: the node where one closes is named",
        "drlib/synthesis/families/websailor_v2.py",
        'substitute(named, meeting, Var("X"))',
        "named",
        ("tests/test_synthesis_websailor_v2.py",),
        "a page of the cycle is given",
    ),
    Mutant(
        "sentences: a plural takes the verb of one",
        SENTENCES,
        "            return of_several(said) if several else said\n",
        "            return said\n",
        (f"{TESTS}::test_a_verb_agrees_with_its_noun",),
        "functions that raises",
    ),
    Mutant(
        "proven: vague names are said unproved",
        "drlib/synthesis/proven.py",
        "        if text and _means(text, wanted, grammar):\n",
        "        if text and (names or _means(text, wanted, grammar)):\n",
        (f"{FOGGY}::test_a_vague_wording_is_proved_with_the_names_in_it",),
        "a foggy question may have two meanings",
    ),
]
