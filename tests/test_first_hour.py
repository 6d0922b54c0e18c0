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


PROGRAM = """
import atexit, os, signal, sys, tempfile

atexit.register(print, "at exit")
print(sys.argv[1:], os.getcwd(), os.environ["SEEN"], sys.stdin.read(), hasattr(tempfile, "mark"))
print("problem", file=sys.stderr)
tempfile.mark = os.environ["MARK"] = "left by a command"
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit({"raises": "a message", "fine": None}.get(sys.argv[1], 7))
"""


@pytest.mark.parametrize("real", [False, True], ids=["forked", "real"])
def test_command_gets_its_place_and_returns_its_end(real, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "lines").write_text("given")

    def run(word, before="python program.py"):
        text = f"{before} '{word}' < lines"
        return printed.try_command(text, tmp_path, real=real, SEEN="a b")

    for word, status in (("fine", 0), ("two words", 7), ("raises", 1)):
        ended = run(word)
        assert ended.status == status
        shown, last = ended.stdout.splitlines()
        assert shown == f"['{word}'] {tmp_path} a b given False" and last == "at exit"
        assert ended.stderr == "problem\n" + "a message\n" * (word == "raises")
    assert abs(run("killed").status) in (15, 128 + 15)
    assert run("wait", "timeout -s INT 0.1 python -c 'import time; time.sleep(60)'").status == 124
    unknown = printed.try_command("drlib nothing | cat", tmp_path, real=real)
    assert unknown.status == 2 and "unknown command 'nothing'" in unknown.stderr


def test_forked_command_imports_drlib_from_its_own_path(tmp_path):
    (tmp_path / "drlib").mkdir()
    (tmp_path / "drlib" / "__init__.py").write_text("print('another drlib')\n")
    text = "import drlib\nimport sys\nprint(drlib.__file__, 'torch' in sys.modules)"
    ended = printed.run_python(text, tmp_path)
    other, place = ended.stdout.splitlines()
    assert other == "another drlib" and place == f"{tmp_path}/drlib/__init__.py True"


def test_run_command_stops_at_the_first_failure(tmp_path):
    assert printed.run_command("pwd", tmp_path).stdout.strip() == str(tmp_path)
    assert printed.run_python("print(6 * 7)", tmp_path).stdout == "42\n"
    with pytest.raises(AssertionError, match="no such"):
        printed.run_command("echo no such >&2; false; touch later", tmp_path)
    assert not (tmp_path / "later").exists()
