"""Mutants of variables: drlib/questions/joins.py, queries.py, sql_engine.py, the released
triples, and what checks, evidence and sentences make of a choice (see `tests.mutants`)."""

from tests.mutants import Mutant

TESTS = "tests/test_questions_joins.py"
ALL_CHOICES = f"{TESTS}::test_join_conditions_matches_brute_force"
EACH_CHOICE = f"{TESTS}::test_exists_is_the_union_over_its_bindings"
ONE_THING = f"{TESTS}::test_shared_variable_has_one_value"
SEVERAL = f"{TESTS}::test_variable_is_bound_consistently"
SAID = f"{TESTS}::test_cyclic_questions_round_trip_as_sentences"
FORMAT = "tests/test_questions_webshaper.py"
JOINS = "drlib/questions/joins.py"
QUERIES = "drlib/questions/queries.py"
SQL = "drlib/questions/sql_engine.py"
CHECKS = "drlib/questions/checks.py"
WEBSHAPER = "drlib/questions/webshaper.py"

MUTANTS = [
    Mutant(
        "joins: a variable may differ at each occurrence",
        QUERIES,
        "            found = _evaluate_each(of, name, evaluate_query(among, graph), graph)\n",
        "            found = {name: evaluate_query(bind(of, name, among), graph)}\n",
        (ONE_THING,),
        "a cycle is evaluated as a tree",
    ),
    Mutant(
        "joins: what an exception says of one thing is taken off all",
        QUERIES,
        "some - beside.get(title, NOTHING) for title",
        "some - NOTHING.union(*beside.values()) for title",
        (EACH_CHOICE,),
        "questions whose answer the exception does not touch have none",
    ),
    Mutant(
        "joins: a thing without one of the conditions is kept",
        QUERIES,
        "found = {title: found[title] & some for title, some in beside.items()}",
        "found = {title: some & beside.get(title, some) for title, some in found.items()}",
        (ALL_CHOICES,),
        "entities that match half of the conditions are answers",
    ),
    Mutant(
        "joins: an inner Exists does not hide the outer one",
        QUERIES,
        "    if type(query) is Exists and query.name == name:\n"
        "        return replace(query, among=bind(query.among, name, value))\n",
        "",
        (f"{TESTS}::test_inner_variable_shadows_the_outer_one",),
        "a variable is bound twice",
    ),
    Mutant(
        "joins: SQLite answers for the first choice alone",
        SQL,
        "            found |= self.answers(bind(query.of, query.name, title))\n",
        "            return self.answers(bind(query.of, query.name, title))\n",
        (ALL_CHOICES,),
        "the second engine verifies nothing",
    ),
    Mutant(
        "joins: a free variable is accepted in text",
        QUERIES,
        "    if unbound:\n",
        "    if unbound is None:\n",
        (f"{TESTS}::test_unbound_variable_is_an_error",),
        "an invalid file fails in the middle of a run",
    ),
    Mutant(
        "joins: a cycle is not cut",
        JOINS,
        "        while ends := [node for node, degree in graph.degree() if degree < 2]:\n",
        "        while ends := [node for node, degree in graph.degree() if degree < 3]:\n",
        (ALL_CHOICES,),
        "the shared entity is left open",
    ),
    Mutant(
        "joins: unconnected conditions are dropped",
        JOINS,
        "        for piece in [*guards, *more]:\n",
        "        for piece in more:\n",
        (ALL_CHOICES,),
        "a condition is ignored",
    ),
    Mutant(
        "joins: conditions on constants are dropped",
        JOINS,
        "        return And((end, *parts)) if parts else end\n",
        "        return end\n",
        (f"{TESTS}::test_conditions_on_a_constant_describe_it", ALL_CHOICES),
        "a condition is ignored",
    ),
    Mutant(
        "joins: a relation is inverted",
        JOINS,
        "            return Proj(inverse(condition.relation), "
        "self.build_operand(condition.tail))\n",
        "            return Proj(condition.relation, self.build_operand(condition.tail))\n",
        (ALL_CHOICES,),
        "head and tail are swapped",
    ),
    Mutant(
        "joins: two mentions of a variable are one",
        JOINS,
        "            if len(saying) == 1 and last in (saying[0].head, saying[0].tail):\n",
        "            if last in (saying[0].head, saying[0].tail):\n",
        (ALL_CHOICES,),
        "an Exists chooses among what it has not chosen yet",
    ),
    Mutant(
        "webshaper: what an Exists chooses among is not written",
        WEBSHAPER,
        "        yield from _iter_choice_triples(part, names)\n",
        "",
        (f"{FORMAT}::test_non_tree_rows_round_trip", ALL_CHOICES),
        "rows are lost",
    ),
    Mutant(
        "webshaper: a variable within words is no argument",
        WEBSHAPER,
        "        arguments += [_parse_end(name) for name in _IN_WORDS.findall(text)]\n",
        "",
        (f"{FORMAT}::test_non_triple_rows_become_predicates",),
        "a released row loses what it is about",
    ),
    Mutant(
        "webshaper: of three things in a row two are kept",
        WEBSHAPER,
        "    if len(arguments) == 2:\n",
        "    if len(arguments) >= 2:\n",
        (f"{FORMAT}::test_three_argument_row_becomes_an_entity",),
        "a sale has no buyer",
    ),
    Mutant(
        "checks: an unshared choice is accepted",
        CHECKS,
        "    is_idle = _has_idle_branch(query, ask) or _has_idle_choice(query, ask)\n",
        "    is_idle = _has_idle_branch(query, ask)\n",
        (SEVERAL,),
        "a tree counts as a cycle",
    ),
    Mutant(
        "checks: what an Exists chooses among may be idle",
        CHECKS,
        "        yield Exists(query.name, Anything(), query.of)\n",
        "        yield from ()\n",
        (f"{TESTS}::test_exists_range_must_be_needed",),
        "a sentence without information",
    ),
    Mutant(
        "evidence: every choice is shown, not those that answer",
        "drlib/questions/question_set.py",
        "                if found & evaluate_query(way, graph)\n",
        "                if evaluate_query(among, graph)\n",
        (SEVERAL,),
        "irrelevant facts are shown",
    ),
    Mutant(
        "sentences: what is chosen is said as if it were found",
        "drlib/questions/sentences.py",
        "        lead = CHOSEN if self.is_chosen else NEXT if number else FIRST\n",
        "        lead = NEXT if number else FIRST\n",
        (SAID,),
        "a choice reads like a search",
    ),
    Mutant(
        "solver: the first choice is the only one",
        "drlib/demonstrations/solver.py",
        "for title in sorted(self.answers(among))]",
        "for title in sorted(self.answers(among))[:1]]",
        (f"{TESTS}::test_solver_answers_cyclic_questions",),
        "a question with a cycle is not solved",
    ),
]
