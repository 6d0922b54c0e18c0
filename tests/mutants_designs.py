"""Mutants of sequential designs, verdicts and budgets (see `tests.mutants`)."""

from tests.mutants import Mutant

DESIGNS = "drlib/experiments/designs.py"
VERDICTS = "drlib/experiments/verdicts.py"
TABLES = "drlib/experiments/tables.py"
BUDGET = "drlib/experiments/budget.py"
LEVELS = "tests/test_experiments_designs.py::"
FINDINGS = "tests/test_experiments_findings.py::"
PLANS = "tests/test_experiments_plan.py::"
CHOICES = "tests/test_experiments_budget.py::"

MUTANTS = [
    Mutant(
        "designs: another spending function",
        DESIGNS,
        "ndtri(side / 2) / math.sqrt(share)",
        "ndtri(side / 2) / share",
        (f"{LEVELS}test_spending_function_by_hand",),
        "looks of a design that was not documented",
    ),
    Mutant(
        "designs: looks are independent",
        DESIGNS,
        "places_C[self.half :, None] * np.sqrt(before * shares_N)",
        "places_C[self.half :, None] * 0 * np.sqrt(before * shares_N)",
        (f"{LEVELS}test_error_up_to_each_look_is_the_planned_one",),
        "levels of another design",
    ),
    Mutant(
        "designs: p-values of one side",
        DESIGNS,
        "min(difference, 2 * _overall(",
        "min(difference, _overall(",
        (f"{LEVELS}test_p_value_is_the_alpha_at_which_the_boundary_is_met",),
        "corrected verdicts with twice the error",
    ),
    Mutant(
        "verdicts: ordinary intervals at every look",
        VERDICTS,
        "differences_SQ[:look], design.confidence(look)",
        "differences_SQ[:look], 0.95",
        (f"{FINDINGS}test_claim_is_decided_at_the_first_look_with_a_verdict",),
        "each look would have the whole error",
    ),
    Mutant(
        "verdicts: later looks replace a verdict",
        VERDICTS,
        '            if outcome != "open":\n                break\n',
        "",
        (f"{FINDINGS}test_claim_is_decided_at_the_first_look_with_a_verdict",),
        "a claim could be decided twice",
    ),
    Mutant(
        "verdicts: a look uses all seeds",
        VERDICTS,
        "differences_SQ[:look], design.confidence(look)",
        "differences_SQ, design.confidence(look)",
        (f"{FINDINGS}test_claim_is_decided_at_the_first_look_with_a_verdict",),
        "tests between the looks",
    ),
    Mutant(
        "verdicts: Holm forgets the claims that are not judged yet",
        VERDICTS,
        "total = len({*judged, *planned})",
        "total = len(judged)",
        (f"{FINDINGS}test_correction_by_hand",),
        "the number of claims would depend on the results",
    ),
    Mutant(
        "verdicts: a changed design counts as registered",
        VERDICTS,
        'design = read_design(plan["design"]) if "design" in plan else None',
        "design = None",
        (f"{FINDINGS}test_design_is_registered_with_its_seeds",),
        "looks chosen after the data",
    ),
    Mutant(
        "tables: looks ignore a missing seed",
        TABLES,
        'ready = [*takewhile(lambda seed: seed in both, ran["seeds"])]',
        'ready = [seed for seed in ran["seeds"] if seed in both]',
        (f"{PLANS}test_claim_of_a_design_is_judged_at_its_looks",),
        "failed runs would select the seeds",
    ),
    Mutant(
        "budget: hours are ignored",
        BUDGET,
        "one.decided / max(one.hours, 1e-6)",
        "one.decided",
        (f"{CHOICES}test_next_claim_has_the_most_verdicts_per_hour",),
        "the most expensive claims first",
    ),
]
