"""The faults of the guard of paraphrases: drlib/synthesis/guard.py (see `tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_synthesis_guard.py"
GUARD = "drlib/synthesis/guard.py"

MUTANTS = [
    Mutant(
        "guard: what is excepted is not counted",
        GUARD,
        '    if said == wanted:\n        return ""\n    return "it loses an exception"',
        '    if said >= wanted:\n        return ""\n    return "it loses an exception"',
        (f"{TESTS}::test_a_not_is_added",),
        "a condition becomes its opposite",
    ),
    Mutant(
        "guard: the direction of a superlative is not looked at",
        GUARD,
        "        wanted = sum(part.most == most for part in extremes)\n",
        "        wanted = len(extremes) if re.search(pattern, text) else 0\n",
        (f"{TESTS}::test_earliest_is_dropped",),
        "the opposite is asked for",
    ),
    Mutant(
        "guard: numbers are compared without their bounds",
        GUARD,
        "            found |= set(zip(bounds, match.groups()))\n",
        '            found |= {("=", number) for number in match.groups()}\n',
        (f"{TESTS}::test_a_share_may_be_said_in_several_ways_but_not_changed",),
        "at least becomes at most",
    ),
    Mutant(
        "guard: names that the question does not tell may be told",
        GUARD,
        "        for name in sorted(names - ",
        "        for name in sorted(set() & names - ",
        (f"{TESTS}::test_a_hidden_step_is_named",),
        "a step is given away",
    ),
    Mutant(
        "guard: any relation may be added",
        GUARD,
        '            if relation in used or used & {*words.get("or", ())}:\n',
        "            if relation:\n",
        (f"{TESTS}::test_each_reason",),
        "a condition is added",
    ),
    Mutant(
        "guard: both ways of a relation are one",
        GUARD,
        "            if said > len(asked):\n",
        "            if said > 9:\n",
        (f"{TESTS}::test_a_direction_is_turned",),
        "what imports a module becomes what it imports",
    ),
]
