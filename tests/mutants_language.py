"""The faults of questions in sentences: drlib/synthesis/sentences.py, phrases.py and read_back.py
(see `tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_synthesis_sentences.py"
WORDS = f"{TESTS}::test_a_query_in_words_and_back"
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
        "        parts = sorted(parts, key=_depth)\n",
        "        parts = sorted(parts, key=_depth, reverse=True)\n",
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
]
