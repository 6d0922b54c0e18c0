"""The list of faults is of today's code, and a fault that no test sees is reported.

What the tests see of them is what `make mutants` finds in a quarter of an hour and what
`tests/mutants.md` says; here is what keeps the list from growing old.

Run: python -m pytest tests/test_mutants.py
"""

from collections import Counter
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import ROOT, Mutant, all_mutants, judge


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_its_text_stands_once_in_its_file_and_its_tests_exist(mutant):
    assert (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new
    for test in mutant.tests:
        path, _, name = test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        assert not name or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")


def test_there_are_forty_and_more_each_by_its_own_name_in_every_room():
    names = Counter(mutant.name for mutant in all_mutants())
    assert len(names) >= 40 and max(names.values()) == 1
    rooms = {Path(mutant.path).parts[1] for mutant in all_mutants()}
    assert {"rl", "training", "agents", "models", "sandbox", "tools"} <= rooms


def test_a_fault_that_no_test_sees_is_reported_and_undone(tmp_path):
    """A toy checkout: one fault that its test sees, one that it does not, one that is not there."""
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
    with pytest.raises(ValueError, match="its text stands 0 times"):
        judge(mutant("not there", ""), tmp_path)
    with pytest.raises(RuntimeError, match="the tests did not run"):
        judge(mutant("def double(x):", "def double(x:"), tmp_path)
    assert "return 2 * x" in (tmp_path / "code_under_test.py").read_text()


def test_the_table_says_who_caught_what():
    caught = Mutant("sign", "drlib/rl/a.py", "", "", (), "wrong way")
    text = mutants.table([(caught, "test_a", 1.4), (caught, "", 2.0)])
    assert "1 of 2 faults caught" in text and "**nobody**" in text
    assert "| sign | rl/a.py | wrong way | `test_a` | 1 |" in text


def test_what_a_table_says_is_read_back_but_for_what_has_changed():
    one, two = all_mutants()[:2]
    text = mutants.table([(two, "test_b", 2.0), (one, "test_a", 1.0)])
    assert mutants.known_rows(text) == [(one, "test_a", 1.0), (two, "test_b", 2.0)]
    moved = text.replace(two.path.removeprefix("drlib/"), "elsewhere.py")
    kept = mutants.known_rows(moved)
    assert (two, "test_b", 2.0) not in kept
    assert mutants.in_order([(two, "", 0.0), (one, "", 0.0)])[0][0] == one


def test_the_committed_table_is_of_all_faults_of_the_list_and_each_was_caught():
    lines = mutants.TABLE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == [mutant.name for mutant in all_mutants()]
    assert all(row[3].startswith("`test_") for row in rows), "a fault that nobody caught"
    assert f"{len(rows)} of {len(rows)} faults caught" in "\n".join(lines)
