"""Code density on lines counted by hand, and the density of drlib compared with nanochat.

Run: python -m pytest tests/test_measure_tokens.py
"""

import pytest

from tests.measure_tokens import NANOCHAT, count, main, measure, package_files


@pytest.mark.parametrize(
    ("source", "tokens", "lines"),
    [
        ("x = 1\n", 3, 1),
        ("x = [1,\n     2]\n", 7, 2),
        ('"""A module."""\n\n# a comment\nx = 1  # another\n', 3, 1),
        ('def f(a):\n    """What it does."""\n    return a\n', 8, 2),
        ('class C:\n    """What\n    it is."""\n\n    x: int = 0\n', 8, 2),
        ('text = """one\ntwo\nthree"""\n', 3, 3),  # a string that is no docstring counts
        ('x = f"{a + 1} {b!r:>{width}}"\n', 3, 1),  # one string, in every Python
        ("", 0, 0),
    ],
)
def test_tokens_and_lines_match_counts_by_hand(source, tokens, lines):
    assert count(source) == (tokens, lines)


def test_tuple_assignment_is_denser_than_two_lines():
    packed, apart = count("a, b = 1, 2\n"), count("a = 1\nb = 2\n")
    assert packed[0] / packed[1] > apart[0] / apart[1]


def test_drlib_density_is_close_to_nanochat():
    """Within 20%; single packages may be denser."""
    tokens, lines = measure(path for files in package_files().values() for path in files)
    assert lines > 10_000
    assert tokens / lines <= 1.2 * NANOCHAT, f"{tokens / lines:.2f} tokens a line of code"


def test_script_prints_a_row_per_folder_and_the_sum(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text("x = 1\ny = 2\n")
    main([str(tmp_path / "one"), str(tmp_path / "two")])
    first, second, total = capsys.readouterr().out.splitlines()[1:]
    assert first.split()[1:] == second.split()[1:] == ["1", "2", "3.00"]
    assert total.split()[2:] == ["2", "4", "3.00"]
