"""Faults in judges and scores of answers."""

from tests.mutants import Mutant

JUDGES = "tests/test_rewards_judges.py"
MODEL = "tests/test_rewards_llm_judge.py"
FILES = "tests/test_evaluation_answer_files.py"
BENCHMARKS = "tests/test_evaluation_benchmarks.py"

MUTANTS = [
    Mutant(
        "judge: quantities ignore their unit",
        "drlib/rewards/judges.py",
        "return left[1] == right[1] or not right[1]",
        "return True",
        (f"{JUDGES}::test_quantities",),
        "dollars are euros",
    ),
    Mutant(
        "judge: identifiers are numbers",
        "drlib/rewards/judges.py",
        'if found is None or is_identifier(found["number"]):',
        "if found is None:",
        (f"{JUDGES}::test_rules_agree_with_the_labels_but_for_known_misses",),
        "a wrong post code or version is right",
    ),
    Mutant(
        "table: a row may match twice",
        "drlib/rewards/judges.py",
        "        left.remove(same)\n",
        "",
        (f"{JUDGES}::test_tables_by_hand",),
        "repeated rows raise the score",
    ),
    Mutant(
        "math: texts are read without dollar signs first",
        "drlib/rewards/math_judge.py",
        'marked = text if "$" in text',
        'marked = text if "" in text',
        (f"{JUDGES}::test_math_verify",),
        "only the first number of a formula counts",
    ),
    Mutant(
        "model judge: the first verdict in a text counts",
        "drlib/rewards/llm_judge.py",
        "if found := _LINE.match(last):",
        'if found := re.search("(incorrect|correct|not_attempted)", text, re.I):',
        (f"{MODEL}::test_replies_with_exactly_one_verdict_count",),
        "'not correct' is correct",
    ),
    Mutant(
        "model judge: errors are cached",
        "drlib/rewards/llm_judge.py",
        "if verdict is not Verdict.JUDGE_ERROR:\n            with",
        "if True:\n            with",
        (f"{MODEL}::test_verdicts_are_cached_and_errors_are_not",),
        "an answer that could not be judged stays unjudged",
    ),
    Mutant(
        "scores: errors are wrong answers",
        "drlib/evaluation/measures.py",
        "[each[q] for each in verdicts if each[q] is not Verdict.JUDGE_ERROR] for q in range(n)",
        "[each[q] for each in verdicts] for q in range(n)",
        (f"{FILES}::test_errors_are_excluded_and_bounded",),
        "a broken judge lowers the accuracy",
    ),
    Mutant(
        "scores: pass@k is one minus the share of failures",
        "drlib/evaluation/measures.py",
        "1.0 - math.comb(n - correct, k) / math.comb(n, k)",
        "1.0 - ((n - correct) / n) ** k",
        (f"{FILES}::test_pass_at_k_is_the_share_of_subsets",),
        "pass@k is biased",
    ),
    Mutant(
        "comparison: questions are matched by position",
        "drlib/evaluation/measures.py",
        "left[key] - right[key] for key in both",
        "left[key] - list(right.values())[i] for i, key in enumerate(both)",
        (f"{FILES}::test_comparison_pairs_by_question_and_leaves_errors_out",),
        "two sets in another order differ",
    ),
    Mutant(
        "correction: specificity is ignored",
        "drlib/evaluation/calibration.py",
        "(correct / n + calibration.specificity - 1) / informative",
        "(correct / n) / informative",
        ("tests/test_evaluation_calibration.py::test_correction_by_hand",),
        "false positives stay in the accuracy",
    ),
    Mutant(
        "benchmark: the key is the canary itself",
        "drlib/evaluation/benchmarks/benchmark.py",
        "return hashlib.sha256(canary.encode()).digest()",
        "return canary.encode()",
        (f"{BENCHMARKS}::test_decryption_vectors",),
        "BrowseComp cannot be decrypted",
    ),
    Mutant(
        "benchmark: short rows are filled",
        "drlib/evaluation/benchmarks/benchmark.py",
        "if None in row or None in row.values():",
        "if False:",
        (f"{BENCHMARKS}::test_files_that_are_none",),
        "a truncated file is read",
    ),
    Mutant(
        "benchmark: protected texts may be written",
        "drlib/evaluation/benchmarks/benchmark.py",
        "not any(item.protected for item in items)",
        "True",
        (f"{BENCHMARKS}::test_documents_become_a_world",),
        "protected questions leak into files",
    ),
    Mutant(
        "squad: the same words in another order are an exact match",
        "drlib/rewards/judges.py",
        "is_right = any(accepts(final, gold) for gold in golds) if accepts else best == 1",
        "is_right = best == 1",
        (f"{JUDGES}::test_squad_by_hand",),
        "accuracy on HotpotQA is too high",
    ),
    Mutant(
        "correction: rounds are counted as questions",
        "drlib/cli/evaluate.py",
        'n = measures["pass@1"]["questions"]',
        'n = measures["pass@1"]["questions"] * measures["rounds"]',
        ("tests/test_evaluation_calibration.py::test_commands",),
        "the corrected interval is too narrow",
    ),
    Mutant(
        "math: a comparison without result is a wrong answer",
        "drlib/rewards/math_judge.py",
        'raise ComparisonError(f"math-verify gave no result within {self.timeout_s} s")',
        "return False",
        (f"{JUDGES}::test_a_comparison_without_result_is_no_wrong_answer",),
        "a slow formula lowers the accuracy",
    ),
]
