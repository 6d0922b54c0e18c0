"""The mutants match the current code, and an undetected mutant is reported.

`make mutants` runs the mutants themselves.

Run: python -m pytest tests/test_mutants.py
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import ROOT, Mutant, all_mutants, judge


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_mutant_text_occurs_once_and_its_tests_exist(mutant):
    assert (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new
    for test in mutant.tests:
        path, _, name = test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        assert not name or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")


def test_names_are_unique_and_the_core_packages_have_mutants():
    names = Counter(mutant.name for mutant in all_mutants())
    assert len(names) >= 40 and max(names.values()) == 1
    packages = {Path(mutant.path).parts[1] for mutant in all_mutants()}
    assert {"rl", "training", "agents", "models", "sandbox", "tools"} <= packages


def test_undetected_mutant_is_reported_and_undone(tmp_path):
    """A toy checkout: a detected mutant, an undetected one, and one whose text is missing."""
    (tmp_path / "code.py").write_text("def double(x):\n    return 2 * x\n\n\nUNUSED = 1\n")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_code.py").write_text(
        "from code_under_test import double\n\n\ndef test_double():\n    assert double(3) == 6\n"
    )
    (tmp_path / "code.py").rename(tmp_path / "code_under_test.py")

    def mutant(old, new):
        return Mutant("m", "code_under_test.py", old, new, ("tests/test_code.py",), "")

    assert judge(mutant("2 * x", "3 * x"), tmp_path)[0] == "test_double"
    assert judge(mutant("UNUSED = 1", "UNUSED = 2"), tmp_path)[0] == ""
    with pytest.raises(ValueError, match="its text occurs 0 times"):
        judge(mutant("not there", ""), tmp_path)
    with pytest.raises(RuntimeError, match="the tests did not run"):
        judge(mutant("def double(x):", "def double(x:"), tmp_path)
    assert "return 2 * x" in (tmp_path / "code_under_test.py").read_text()
