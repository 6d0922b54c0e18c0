"""The jobs of the first hour (tests/first_hour).

Run: python -m pytest tests/test_first_hour.py
"""

from importlib import import_module
from pathlib import Path

import pytest

from tests.first_hour import printed

FOLDER = Path(__file__).with_name("first_hour")
JOBS = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", "printed"})


@pytest.mark.parametrize("job", JOBS)
def test_job(job, tmp_path):
    import_module(f"tests.first_hour.{job}").main(tmp_path)


def test_read_blocks_keeps_order_language_and_text(tmp_path, monkeypatch):
    text = "# Page\n\n```\none `x`\n```\n\n```python\n# a/b.py\n\nprint(2)\n```\n\n`no block`\n"
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(printed, "DOCS", tmp_path)
    first, second = printed.read_blocks("page.md")
    assert first == ("", "one `x`\n") and first.file_name == ""
    assert second == ("python", "# a/b.py\n\nprint(2)\n") and second.file_name == "a/b.py"
    assert printed.save_block(second, tmp_path) == tmp_path / "a" / "b.py"
    assert (tmp_path / "a" / "b.py").read_text() == second.text
    assert printed.find_block("page.md", "one") == first
    with pytest.raises(AssertionError, match="2 blocks"):
        printed.find_block("page.md", "\n")


def test_run_command_stops_at_the_first_failure(tmp_path):
    assert printed.run_command("pwd", tmp_path).stdout.strip() == str(tmp_path)
    assert printed.run_python("print(6 * 7)", tmp_path).stdout == "42\n"
    with pytest.raises(AssertionError, match="no such"):
        printed.run_command("echo no such >&2; false; touch later", tmp_path)
    assert not (tmp_path / "later").exists()
